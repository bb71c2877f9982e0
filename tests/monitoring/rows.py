"""What the dashboard shows: its panels by row, and what each asks.

The expressions use no recording rule, so the dashboard works without our rules.
"""

from dataclasses import dataclass, field
from typing import Any

SCOPE = 'job=~"$job",instance=~"$instance"'
JSON = dict[str, Any]

LINES: JSON = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "auto"}
STEPS: JSON = {**LINES, "lineInterpolation": "stepAfter"}
STACKED: JSON = {**STEPS, "fillOpacity": 40, "stacking": {"mode": "normal", "group": "A"}}
POINTS: JSON = {"drawStyle": "points", "pointSize": 7, "showPoints": "always"}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel; `queries` are pairs of expression and legend."""

    title: str
    about: str
    queries: list[tuple[str, str]]
    alerts: tuple[str, ...] = ()
    """The alerts of config/prometheus/ whose runbooks say what to do about what it shows."""
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    unit: str = "short"
    draw: JSON = field(default_factory=lambda: LINES)
    bad_from: float | None = None
    """From this value on it is red."""
    good_from: float | None = None
    """Below this value it is red."""
    hidden: tuple[str, ...] = ("Time", "__name__")
    """Columns that a table does not show."""
    at_least: str | None = None
    """The shortest step, and the shortest `$__interval`."""
    value: str = "Value"
    """What a table calls the column of the numbers."""
    newest_first: bool = False
    """Whether a table is sorted by generation."""


def series(name: str, *labels: str) -> str:
    """A metric of the chosen jobs and instances."""
    return f"hotreload_{name}{{{','.join([SCOPE, *labels])}}}"


def quantiles(name: str, window: str, *labels: str) -> list[tuple[str, str]]:
    """The median and the 99th percentile of a histogram."""
    rate = f"sum by (le) (rate({series(f'{name}_bucket', *labels)}[{window}]))"
    return [(f"histogram_quantile({q}, {rate})", f"p{q * 100:g}") for q in (0.5, 0.99)]


def rate_by(label: str, name: str) -> str:
    """What a counter gains in a second, by a label, where it gains anything."""
    return f"sum by ({label}) (rate({series(name)}[$__rate_interval])) > 0"


def in_an_hour(label: str, name: str) -> str:
    """How often something happened in the last hour, by a label.

    `increase` guesses what happened at the edges of its window: of an hour that is less than one.
    """
    return f"sum by ({label}) (round(increase({series(name)}[1h])))"


def happened_in_an_hour(label: str, name: str) -> str:
    """The same where it happened, or the legend lists each outcome, reason and loader."""
    return f"{in_an_hour(label, name)} > 0"


def leaf_changes() -> str:
    """The checksums that are others than a step before."""
    checksum = series("leaf_checksum")
    return f"{checksum} != {checksum} offset $__interval"


def named(what: str) -> str:
    """The series of each instance, with the generation that is live and its checkpoint's name.

    `topk` keeps one: after a restart of Prometheus itself the last one is there for a while, too.
    """
    live = f"topk by (job, instance) (1, {series('live_info')})"
    return f"({what}) * on (job, instance) group_left (generation, label) {live}"


def within_the_range(what: str) -> str:
    """For a table: the last number of each series that was there in the time shown."""
    return f"last_over_time(({what})[$__range:$__interval])"


def share_of_errors() -> str:
    """Which part of the requests for answers ended with a 5xx."""
    answers, errors = 'route=~"/generate|/v1/.*completions"', 'code=~"5.."'
    failed, all_of_them = (
        summed(f"rate({series('requests_total', *labels)}[$__rate_interval])")
        for labels in ((answers, errors), (answers,))
    )
    return f"{failed} / ({all_of_them} > 0)"


def of_each(histogram: str) -> str:
    """The buckets of a histogram, for each instance."""
    return summed(f"rate({series(f'{histogram}_bucket')}[$__rate_interval])", "le")


def mean_by(label: str, name: str) -> str:
    """The mean of what a histogram took in, by a label, where it took in anything."""
    spent, count = (
        f"sum by ({label}) (rate({series(f'{name}_{part}')}[$__rate_interval]))"
        for part in ("sum", "count")
    )
    return f"{spent} / ({count} > 0)"


def part_of_the_pool(use: str) -> str:
    """Which part of the KV pool is held for this; nothing where its size is not known."""
    held, use_is = series("kv_tokens"), f'use="{use}"'
    return f"{summed(series('kv_tokens', use_is))} / ({summed(held)} > 0)"


def summed(what: str, *labels: str) -> str:
    """A number of each instance, its engines taken together."""
    return f"sum by ({', '.join(['job', 'instance', *labels])}) ({what})"


LIVE = [
    Panel(
        title="Ready",
        about="1 while requests are answered, at once or held for a swap.",
        kind="stat",
        width=6,
        height=4,
        good_from=1,
        alerts=("NotReady", "WaitsForFiles", "DaemonDown"),
        queries=[(series("ready"), "{{instance}}")],
    ),
    Panel(
        title="Last reload went live",
        about="0 when the last attempt was refused or put off.",
        kind="stat",
        width=6,
        height=4,
        good_from=1,
        alerts=("LastReloadFailed", "NothingNew"),
        queries=[(series("last_reload_successful"), "{{instance}}")],
    ),
    Panel(
        title="Behind what is wanted",
        about="Since when something is wanted that is not live; 0 while what is wanted is live.",
        kind="stat",
        width=6,
        height=4,
        unit="s",
        bad_from=1800,
        alerts=("WeightsStale",),
        queries=[
            (
                f"(time() - {series('wanted_since_timestamp_seconds')})"
                f" * ({series('wanted_since_timestamp_seconds')} > bool 0)",
                "{{instance}}",
            )
        ],
    ),
    Panel(
        title="Different weights",
        about="How many different sets of weights the instances of a job serve; 1 is right.",
        kind="stat",
        width=6,
        height=4,
        bad_from=2,
        alerts=("GenerationSkew",),
        queries=[
            (f"count by (job) (count by (job, fingerprint) ({series('live_info')}))", "{{job}}")
        ],
    ),
    Panel(
        title="Live generation",
        about="What answered when. A rollback is a new generation, too.",
        kind="state-timeline",
        width=24,
        height=6,
        unit="none",  # `short` writes 1234 as 1.23 K
        alerts=("EngineLost", "RestartLoop"),
        queries=[(series("generation"), "{{instance}}")],
    ),
    Panel(
        title="What is live",
        about="The revision, its label, and the fingerprint of the weights.",
        kind="table",
        width=24,
        height=5,
        hidden=("Time", "__name__", "Value"),
        alerts=("SourceOverruled", "NoiseAnswers"),
        queries=[(series("live_info"), "")],
    ),
    Panel(
        title="Troubles",
        about="What is wrong and stays wrong until somebody mends it; empty while nothing is. "
        "`hotreload explain` with its code says more.",
        kind="state-timeline",
        width=10,
        height=6,
        unit="none",
        alerts=("Trouble", "StateNotSaved"),
        queries=[(f"{series('trouble')} > 0", "{{instance}} {{code}}")],
    ),
    Panel(
        title="What to do about the troubles",
        about="In the daemon's words, of the troubles that stand now.",
        kind="table",
        width=14,
        height=6,
        hidden=("Time", "__name__", "Value"),
        queries=[(series("trouble_info"), "")],
    ),
]

RELOADS = [
    Panel(
        title="Reloads in an hour",
        about="Attempts that ended in the hour before, by how they ended.",
        draw=STACKED,
        alerts=("BakeConvicted",),
        queries=[(happened_in_an_hour("outcome", "reloads_total"), "{{outcome}}")],
    ),
    Panel(
        title="Rejections in an hour",
        about="Checkpoints that were refused in the hour before, by reason. `hotreload explain` "
        "with a reason says what it means and what to do.",
        draw=STACKED,
        alerts=("RejectedAfterExchange",),
        queries=[
            (happened_in_an_hour("reason", "rejections_total"), "{{reason}}"),
            (happened_in_an_hour("instance", "rollbacks_total"), "{{instance}} after the exchange"),
        ],
    ),
    Panel(
        title="Phase under way",
        about="How long the phase that runs has run; nothing between attempts.",
        unit="s",
        draw=POINTS,
        alerts=("ReloadStuck",),
        queries=[
            (
                f"(time() - {series('phase_since_timestamp_seconds')})"
                f" and {series('phase_since_timestamp_seconds')} > 0",
                "{{instance}} {{phase}}",
            )
        ],
    ),
    Panel(
        title="Phase times",
        about="The mean of the attempts that ended.",
        unit="s",
        draw=POINTS,
        queries=[(mean_by("phase", "phase_seconds"), "{{phase}}")],
    ),
    Panel(
        title="Pause",
        about="How long swaps held arrivals, over the last hour; 0 where generations overlap.",
        unit="s",
        alerts=("PauseTooLong",),
        queries=quantiles("pause_seconds", "1h"),
    ),
    Panel(
        title="Exchange",
        about="The exchange of the weights itself, inside the pause, or by overlap the flip to the "
        "new ones, over the last hour.",
        unit="s",
        queries=quantiles("swap_seconds", "1h"),
    ),
]

REQUESTS = [
    Panel(
        title="Requests",
        about="Requests that ended, by route and code; 499 is a client that went first.",
        width=6,
        unit="reqps",
        draw=STACKED,
        alerts=("WorkerLost",),
        queries=[(rate_by("route, code", "requests_total"), "{{route}} {{code}}")],
    ),
    Panel(
        title="Share of errors",
        about="Which part of the requests for answers ended with a 5xx.",
        width=6,
        unit="percentunit",
        bad_from=0.05,
        alerts=("ErrorsAnswered", "AnswersWithheld"),
        queries=[(share_of_errors(), "{{instance}}")],
    ),
    Panel(
        title="Held and inside",
        about="Requests that wait at the closed gate (for a swap where swaps drain, or for the "
        "cleaning after NaN), or for the end of a pause, and requests that are being answered.",
        width=6,
        draw=STEPS,
        alerts=("RequestsHeld", "Paused"),
        queries=[
            (summed(series("requests_held")), "{{instance}} held"),
            (summed(series("requests_paused")), "{{instance}} paused"),
            (summed(series("requests_inside")), "{{instance}} inside"),
        ],
    ),
    Panel(
        title="Old generations that fade out",
        about="How many generations answer, 1 between swaps, and how many requests the older of "
        "them still have to end.",
        width=6,
        draw=STEPS,
        alerts=("OldGenerationAnswers",),
        queries=[
            (series("generations_answering"), "{{instance}} generations"),
            (series("requests_on_previous"), "{{instance}} requests by older ones"),
        ],
    ),
    Panel(
        title="Time to first token",
        about="From a streamed request to its first token; where swaps drain, their pause is "
        "part of it.",
        unit="s",
        queries=quantiles("time_to_first_token_seconds", "$__rate_interval"),
    ),
    Panel(
        title="Time to first token by generation",
        about="The median, in a colour for each generation that was live. For a minute after a "
        "swap it is still of both.",
        unit="s",
        queries=[
            (
                named(f"histogram_quantile(0.5, {of_each('time_to_first_token_seconds')})"),
                "{{instance}} generation {{generation}} ({{label}})",
            )
        ],
    ),
    Panel(
        title="Time of /generate",
        about="From the request to the end of its answer.",
        unit="s",
        queries=quantiles("request_seconds", "$__rate_interval", 'route="/generate"'),
    ),
]

BEHAVIOUR = [
    Panel(
        title="Agreement with what was live",
        about="Of the last comparison: the part of an answer that is the same up to the first "
        "token that differs, and the share of places where both expect the same token, along the "
        "live weights' answers and along clients'. docs/judge.md says what each figure is.",
        width=6,
        unit="percentunit",
        draw=STEPS,
        queries=[
            (series("behaviour_agreement"), "{{instance}} answers agree"),
            (series("behaviour_same_top"), "{{instance}} same top"),
            (series("behaviour_heard_same_top"), "{{instance}} same top, clients'"),
        ],
    ),
    Panel(
        title="Divergence from what was live",
        about="Of the last comparison, in nats a token; what is below the noise means nothing.",
        width=6,
        unit="none",
        draw=STEPS,
        queries=[
            (series("behaviour_mean_kl"), "{{instance}} mean KL"),
            (series("behaviour_noise_kl"), "{{instance}} noise"),
        ],
    ),
    Panel(
        title="Length and perplexity",
        about="Of the last comparison: how many times as long the new answers are, and how many "
        "times as much plain texts surprise the new weights; 1 is no difference.",
        width=6,
        unit="none",
        draw=STEPS,
        queries=[
            (series("behaviour_length_ratio"), "{{instance}} length"),
            (series("behaviour_perplexity_ratio"), "{{instance}} perplexity"),
        ],
    ),
    Panel(
        title="Right answers",
        about="Of the last comparison: the share of right answers, of those that the corpus "
        "expects; empty where it expects none.",
        width=6,
        unit="percentunit",
        draw=STEPS,
        queries=[
            (series("behaviour_accuracy"), "{{instance}} new"),
            (series("behaviour_live_accuracy"), "{{instance}} live"),
        ],
    ),
    Panel(
        title="What was compared last",
        about="The checkpoint, its generation if it went live, and the reason if it did not. "
        "`hotreload explain behaviour` says what to do about that one.",
        kind="table",
        width=12,
        height=5,
        hidden=("Time", "__name__", "Value"),
        queries=[(series("behaviour_info"), "")],
    ),
    Panel(
        title="Time of a comparison",
        about="Of the last one.",
        kind="stat",
        width=6,
        height=5,
        unit="s",
        queries=[(series("behaviour_seconds"), "{{instance}}")],
    ),
    Panel(
        title="Requests heard",
        about="Requests of clients that the last comparison went by; 0 unless [compare] mirror "
        "or replay is set.",
        kind="stat",
        width=6,
        height=5,
        queries=[(series("behaviour_heard"), "{{instance}}")],
    ),
]

ENGINE = [
    Panel(
        title="Queue and running requests",
        about="In the engine: what waits for a place in a batch, and what makes tokens.",
        width=6,
        draw=STEPS,
        queries=[
            (summed(series("engine_waiting")), "{{instance}} waiting"),
            (summed(series("engine_running")), "{{instance}} running"),
        ],
    ),
    Panel(
        title="KV use",
        about="Which part of the KV pool requests hold, and which part cached prefixes, which are "
        "given back when requests need it.",
        width=6,
        unit="percentunit",
        queries=[
            (part_of_the_pool("requests"), "{{instance}} requests"),
            (part_of_the_pool("prefixes"), "{{instance}} cached prefixes"),
        ],
    ),
    Panel(
        title="Tokens a second",
        about="Tokens generated for clients.",
        width=6,
        queries=[
            (
                f"sum by (instance) (rate({series('tokens_total')}[$__rate_interval]))",
                "{{instance}}",
            )
        ],
    ),
    Panel(
        title="Recompilations in an hour",
        about="Compilations after the first answers, in the hour before. Right after a swap there "
        "should be none.",
        width=6,
        draw=STEPS,
        queries=[(in_an_hour("instance", "recompiles_total"), "{{instance}}")],
    ),
]

REPLICAS = [
    Panel(
        title="Replicas that serve",
        about="Of the engines that a daemon is to have ([engine] replicas).",
        width=6,
        draw=STEPS,
        alerts=("ReplicaLost",),
        queries=[
            (series("replicas_serving"), "{{instance}} serve"),
            (series("replicas"), "{{instance}} wanted"),
        ],
    ),
    Panel(
        title="Generation by replica",
        about="What is live in each engine; 0 while it does not serve. A reload goes from one to "
        "the next.",
        kind="state-timeline",
        width=18,
        unit="none",
        alerts=("ReplicasDiffer",),
        queries=[(series("replica_generation"), "{{instance}} {{replica}}")],
    ),
    Panel(
        title="Requests by replica",
        about="Requests that each engine answers; each new one goes to the least busy.",
        width=12,
        draw=STACKED,
        queries=[(series("requests_inside"), "{{instance}} {{replica}}")],
    ),
    Panel(
        title="Replicas started again in an hour",
        about="Engines that were lost and started again beside the others, in the hour before.",
        width=12,
        draw=STEPS,
        alerts=("ReplicaLost",),
        queries=[
            (in_an_hour("instance, replica", "replica_restarts_total"), "{{instance}} {{replica}}")
        ],
    ),
]

WEIGHTS = [
    Panel(
        title="Bytes of weights held",
        about="Live, from before (still answering, or kept for a rollback), and staged for a swap: "
        "two sets at a time, or as many as [reload] sets allows.",
        unit="bytes",
        draw=STACKED,
        queries=[(summed(series("weights_bytes"), "place"), "{{instance}} {{place}}")],
    ),
    Panel(
        title="Staged",
        about="Bytes read for weights in a second; those of leaves that did not change are not "
        "read.",
        unit="Bps",
        queries=[
            (
                f"sum by (instance) (rate({series('staged_bytes_total')}[$__rate_interval]))",
                "{{instance}}",
            )
        ],
    ),
    Panel(
        title="Live weights that drifted",
        about="1 while leaves that answer are no longer what went live; looked at only where "
        "[checks] verify_live_every is set.",
        kind="stat",
        bad_from=1,
        alerts=("LiveWeightsDrifted",),
        queries=[(series("live_drifted"), "{{instance}} {{replica}}")],
    ),
    Panel(
        title="Leaves changed by the live generation",
        about="How many leaves differ from those of the generation before.",
        draw=STEPS,
        queries=[(series("leaves_changed"), "{{instance}}")],
    ),
    Panel(
        title="Largest change of a leaf",
        about="In the checkpoint that was staged last: the root mean square of the change, over "
        "that of the live leaf. `hotreload history` names the leaf.",
        unit="percentunit",
        draw=STEPS,
        queries=[(series("largest_change"), "{{instance}}")],
    ),
    Panel(
        title="Checkpoints by loader in an hour",
        about="Staged in the hour before. What upstream's loader takes, our own does not "
        "understand, or it is switched off.",
        draw=STACKED,
        alerts=("LoaderDistrusted",),
        queries=[(happened_in_an_hour("loader", "loads_total"), "{{loader}}")],
    ),
    Panel(
        title="Generations and how many leaves each changed",
        about="What was live in the time shown; 0 for the first after a start, which has nothing "
        "to be compared with. Over many days, what lived for less than a step is left out.",
        kind="table",
        width=10,
        height=10,
        unit="none",
        at_least="15s",
        value="leaves changed",
        newest_first=True,
        queries=[(within_the_range(named(series("leaves_changed"))), "")],
    ),
    Panel(
        title="Leaf checksums that changed at each generation",
        about="One line for each leaf that a generation changed, with its new checksum; filter by "
        "the heads of the columns. Empty with [metrics] per_leaf = false; of more leaves than "
        "[metrics] max_leaves the first ones.",
        kind="table",
        width=14,
        height=10,
        unit="none",
        at_least="15s",
        value="checksum",
        newest_first=True,
        queries=[(within_the_range(named(leaf_changes())), "")],
    ),
]

SOURCES = [
    Panel(
        title="Since the last look that worked",
        about="Grows while the folder or hub cannot be looked at.",
        width=12,
        unit="s",
        bad_from=300,
        alerts=("SourceDead", "SourcePassedOver"),
        queries=[
            (f"time() - {series('source_last_scan_timestamp_seconds')}", "{{instance}}"),
        ],
    ),
    Panel(
        title="Looks at the source",
        about="By what caused them.",
        width=12,
        unit="cps",
        draw=STACKED,
        queries=[(rate_by("cause", "source_scans_total"), "{{cause}}")],
    ),
    Panel(
        title="Downloads",
        about="Bytes that come from the hub in a second; none with a folder as the source.",
        width=12,
        unit="Bps",
        queries=[
            (
                f"sum by (instance) (rate({series('fetched_bytes_total')}[$__rate_interval]))",
                "{{instance}}",
            )
        ],
    ),
    Panel(
        title="Download under way",
        about="How much of it is there; 0 when there is none.",
        width=12,
        unit="percentunit",
        queries=[(series("fetch_progress_ratio"), "{{instance}}")],
    ),
]

ROWS = {
    "What answers": LIVE,
    "Reloads": RELOADS,
    "Requests": REQUESTS,
    "Behaviour of new weights": BEHAVIOUR,
    "Engine": ENGINE,
    "Replicas": REPLICAS,
    "Weights": WEIGHTS,
    "Source": SOURCES,
}
