"""The rows of `/status`: name, words and tone, made here for command, `top` and page alike.

A pure function of the other fields, so that a command can make them of a daemon that is older than
itself. Lines of a row's words end with a newline; a moment is a stamp in UTC, as in other fields; a
download has the `share` that is done, and words that are cut short are there as a `whole`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hotreload.figures import duration
from hotreload.picture.words import (
    NO_FEATURES,
    NOT_SEEN,
    TONES,
    Fields,
    OfFeatures,
    boot_text,
    count_of,
    damage_text,
    describe_order,
    drift_text,
    follows,
    is_held_by_rollback,
    loader_text,
    name_revision,
    older_text,
    outcome_word,
    plain,
    progress_text,
    rank_text,
    share_of,
    waiting_text,
    was_unasked,
    working_text,
)

BYTES_OF = {"fetching": "download", "staging": "loading"}
"""Names of the row, by the phase whose bytes are counted."""
ON_ONE_ENGINE = ("staging", "draining", "swapping", "probing", "comparing", "rolling_back")
"""The phases of an attempt that are gone through engine by engine."""
NOISE_WORDS = """\
an operator put noise on the live weights, and no probe judged them
`hotreload rollback` takes the noise off, and so does a restart"""


def rows_of(status: Fields, said: OfFeatures = NO_FEATURES) -> list[Fields]:
    """Return the rows; fields that an older daemon does not have are passed by.

    `said` by features are some. A command knows none: of an older daemon these are left out.
    """
    return [
        *_now(status),
        *_wrong_weights(status),
        *_attempt_rows(status, said.at_work),
        *_requests(status, said.rows),
        *_replicas(status),
        *_workers(status),
        *_choice_rows(status),
        *_past(status, said.last_attempt),
    ]


def row(name: str, words: Any, tone: str | None = None) -> Fields:
    """Make one row."""
    return {"name": name, "words": str(words), "tone": tone}


def _now(status: Fields) -> Iterator[Fields]:
    """Yield the state, and the live generation."""
    state = plain(status["state"])
    yield row("state", state, TONES.get(state))
    if rank := status.get("rank"):
        yield row("rank", rank_text(rank))
    if boot := status.get("boot"):
        yield row("boot", boot_text(boot), "wait")
    if status["generation"] is not None:
        yield row("generation", status["generation"])
        yield {**row("revision", name_revision(status)), "whole": status["revision"]}
        yield row("fingerprint", plain(status["fingerprint"]))
        yield row("live since", status["live_since"])
    if warming := [each["warming"] for each in status.get("replicas", ()) if each.get("warming")]:
        done, total = (sum(each[name] for each in warming) for name in ("done", "total"))
        yield row("warming", f"compiled for {done} of {total} sizes of batches", "wait")
    for trouble in status.get("troubles", ()):
        yield row("trouble", "\n".join(_trouble(trouble)), "bad")
    if died := status.get("last_life"):
        words = map(plain, filter(None, (died["message"], died["todo"])))
        yield row("last life", "\n".join(words), "wait")
    if loading := status.get("loading"):
        yield row("loaded", f"{loader_text(loading)}: {drift_text(loading)}")


def _trouble(trouble: Fields) -> Iterator[str]:
    """Describe a trouble: the fault, since when, and what to do about it."""
    yield f"{plain(trouble['code'])}: {plain(trouble['message'])}"
    yield f"since {trouble['since']}"
    if trouble["todo"]:
        yield f"to do: {plain(trouble['todo'])}"


def _wrong_weights(status: Fields) -> Iterator[Fields]:
    """Yield faults of the live weights, or of our loader."""
    if drifted := status.get("drifted"):
        words = f"no longer what went live: {damage_text(drifted)}"
        yield row("drifted", f"{words}\nsince {drifted['since']}", "bad")
    if (loader := status.get("loader")) and not loader["trusted"]:
        yield row("own loader", f"switched off: {plain(loader['reason'])}", "bad")
    if status.get("noise"):
        yield row("noise", NOISE_WORDS, "bad")


def _attempt_rows(status: Fields, at_work: str | None) -> Iterator[Fields]:
    """Yield the checkpoint that is wanted, how far it is, and what the source holds back.

    A rank that follows has no wish of its own, and looks at its source when rank 0 asks.
    """
    if not follows(status):
        yield row("wanted", _describe_wanted(status), "wait" if status.get("overruled") else None)
    if status["waiting_for"]:
        yield row("waiting for", waiting_text(status))
    if status["phase"]:
        yield row("phase", f"{plain(status['phase'])}{working_text(status['attempt'], at_work)}")
    if progress := status.get("progress"):
        phase = plain(progress.get("phase", "fetching"))  # a daemon of before knows no other
        far = row(BYTES_OF.get(phase, phase), progress_text(progress))
        yield {**far, "share": share_of(progress)}
    if (source := status.get("source")) and not follows(status):
        yield row("source", _source(source), "wait" if source["stale"] else None)
    if status.get("passed_over"):
        yield row("passed over", "\n".join(_passed_over(status)), "wait")


def _describe_wanted(status: Fields) -> str:
    if not status["wanted"]:
        return "nothing yet"
    is_live = status["wanted"] == status["revision"]
    wanted = "what is live" if is_live else name_revision(status, "wanted", "wanted_label")
    overruled = status.get("overruled")
    if not overruled:
        return wanted
    name = name_revision(overruled)
    wish = f"it overrules the source's {name} until the source wishes something new"
    by_hand = "" if was_unasked(overruled["verb"]) else "by hand: "
    return f"{wanted}, {by_hand}{describe_order(overruled)}\n{wish}"


def _source(source: Fields) -> str:
    """Name its kind, and since when and why it is stale."""
    kind = plain(source.get("kind", "unknown"))
    if not source["stale"]:
        return kind
    seen, error = source["last_seen"], source["error"]
    since = f"last seen {seen}" if seen else NOT_SEEN
    why = f": {plain(error)}" if error and error != NOT_SEEN else ""
    return f"{kind}, stale, {since}{why}"


def _passed_over(status: Fields) -> Iterator[str]:
    """Say why folders are passed over, and how many more there are."""
    folders = status["passed_over"]
    yield from (plain(folder["reason"]) for folder in folders)
    if (more := status["passed_over_total"] - len(folders)) > 0:
        yield f"and {more} more"


def _requests(status: Fields, further: Iterable[Fields]) -> Iterator[Fields]:
    """Yield requests: at the gate, by generation, and how a swap treats them; not on followers."""
    if not follows(status):
        gate, answering = status["gate"], status.get("answering")
        counts = f"{gate['inside']} inside, {gate['held']} held"
        yield row("gate", f"{plain(gate['state'])}, {counts}")
        if answering:
            yield row(
                "answering", _describe_answering(answering), "wait" if answering[1:] else None
            )
        yield from further
    if mode := status.get("mode"):
        why = status["mode_reason"]
        yield row("mode", f"{plain(mode)}: {plain(why)}" if why else plain(mode))


def _describe_answering(answering: Sequence[Fields]) -> str:
    """Say how many requests each generation answers: the live one, and those from before."""
    live, *older = answering
    now = f"{count_of(live['requests'], 'request')} by generation {live['generation']}"
    return f"{now}, {older_text(older)}" if older else now


def _replicas(status: Fields) -> Iterator[Fields]:
    """Yield each engine, where there are several."""
    replicas = status.get("replicas", [])
    for each in replicas if len(replicas) > 1 else ():
        state = plain(each["state"])
        says = _describe_serving if state == "serving" else _absent
        tone = "bad" if each["drifted"] else None if state == "serving" else TONES.get(state)
        yield row(f"replica {each['index']}", f"{state}{says(each, status)}", tone)


def _workers(status: Fields) -> Iterator[Fields]:
    """Yield how many processes answer HTTP, where that is not left to the engine's own."""
    workers = status.get("workers")
    if not workers or not workers["wanted"]:
        return
    serving, wanted, lost = workers["serving"], workers["wanted"], workers["lost"]
    words = f"{serving} serve" if serving == wanted else f"{serving} of {wanted} serve"
    since = f", {lost} lost since the start" if lost else ""
    yield row("workers", f"{words}{since}", None if serving == wanted else "wait")


def _describe_serving(replica: Fields, status: Fields) -> str:
    gate, attempt = replica["gate"], status["attempt"]
    words = f", generation {replica['generation']}, {gate['inside']} inside"
    if gate["held"]:
        words += f", {gate['held']} held"
    if replica["drifted"]:
        words += ", live weights drifted"
    is_at_work = status["phase"] in ON_ONE_ENGINE and attempt["replica"] == replica["index"]
    return f"{words}, {plain(status['phase'])}" if is_at_work else words


def _absent(replica: Fields, status: Fields) -> str:
    began = ", began" if replica["state"] == "starting" else ""
    words = f"{began} {replica['since']}"
    if replica["again_in"] is not None:
        words += f", started again in {duration(replica['again_in'])}"
    return f"{words}: {plain(replica['reason'])}" if replica["reason"] else words


def _choice_rows(status: Fields) -> Iterator[Fields]:
    """Yield operators' choices, and what became of their settings and of the state file."""
    if status["pinned"]:
        by = f"\n{describe_order(status['pin'])}" if status.get("pin") else ""
        words = "the source is not followed until `hotreload unpin`"
        name, how = ("held", "by a rollback") if is_held_by_rollback(status) else ("pinned", "yes")
        yield row(name, f"{how}, {words}{by}", "wait")
    if (kept := status.get("state_file")) and not kept["saved"]:
        words = f"a restart forgets what changes: {plain(kept['error'])}"
        yield row("not saved", f"{words}\nsince {kept['since']}", "bad")
    settings = status.get("settings") or {"error": None, "waiting": []}
    if settings["error"]:
        words = f"reread {settings['read_at']}, but not applied"
        yield row("settings", f"{words}: {plain(settings['error'])}", "bad")
    elif settings["waiting"]:
        names = ", ".join(map(plain, settings["waiting"]))
        yield row("settings", f"changed, and want a restart: {names}", "wait")


def _past(status: Fields, found: Iterable[str]) -> Iterator[Fields]:
    """Yield the end of the last attempt, and what was refused."""
    if last := status["last_attempt"]:
        tone = None if last["outcome"] == "live" else TONES.get(last["outcome"])
        yield row("last attempt", "\n".join(_last_attempt(last, found)), tone)
    if status["refused"]:
        yield row("refused", "\n".join(map(_refusal, status["refused"])))


def _last_attempt(attempt: Fields, found: Iterable[str]) -> Iterator[str]:
    number = attempt["generation"]
    became = f" as generation {number}" if number is not None else ""
    yield f"{name_revision(attempt)}: {outcome_word(attempt)}{became}, {attempt['finished_at']}"
    if attempt.get("by"):
        yield f"asked for: {describe_order(attempt['by'])}"
    if attempt["reason"]:
        yield plain(attempt["reason"])
    if attempt.get("loader") and attempt["outcome"] != "live":  # of the live ones `loaded` says it
        yield drift_text(attempt)
    yield from found
    if attempt["phases"]:
        spent = attempt["phases"].items()
        yield ", ".join(f"{plain(name)} {duration(took)}" for name, took in spent)
    if attempt["pause_seconds"]:
        yield f"requests held {duration(attempt['pause_seconds'])}"


def _refusal(refusal: Fields) -> str:
    return f"{name_revision(refusal)}: {plain(refusal['reason'])}, {refusal['at']}"
