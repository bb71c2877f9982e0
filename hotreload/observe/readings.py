"""The metrics that are read at a scrape instead of counted before: they never lag behind."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from hotreload.attempts import Attempt
from hotreload.core.ledger import Ledger
from hotreload.picture.picture import KeyFigures, Picture, ReplicaFigures
from hotreload.picture.report import Family, counter, gauge, shorten
from hotreload.picture.surroundings import passed_over_families
from hotreload.troubles import TROUBLES
from hotreload.types import AnsweringGeneration, Generation, Outcome

WEIGHT_PLACES = ("live", "previous", "staged")
KV_USES = ("requests", "prefixes", "free")
FAILURES = {Outcome.REJECTED, Outcome.POSTPONED, Outcome.LOST}


def list_families(picture: Picture, max_leaves: int) -> Iterator[Family]:
    """Yield every metric, each from the start; `max_leaves` is as of `_live`."""
    yield from _live(picture.live, max_leaves)
    yield from _replicas(picture.readings.replicas())
    yield from _generations(picture.readings.answering())
    yield from _keys(picture.readings.keys())
    yield from _ledger(picture.ledger)
    yield from _names(picture)
    yield from _ranks(picture)
    yield from picture.pace.families()
    yield from picture.replicas.families()
    yield from picture.workers.families()
    yield from passed_over_families(picture.passed_over.event)
    yield from picture.replicas.trust_families()
    of_features = (code for each in picture.reports for code in each.troubles)
    yield from picture.troubles.families((*TROUBLES, *of_features))
    for report in picture.reports:
        yield from report.families()
    yield from picture.loads.families()


def _live(live: Generation | None, max_leaves: int) -> Iterator[Family]:
    """Yield the live generation, taken once: a scrape in mid-swap never mixes two generations.

    `max_leaves` is the largest number of leaves whose checksum is exported.
    """
    said, number = {}, 0
    if live is not None:
        number = live.number
        said[str(number), live.revision.id, live.revision.label, live.fingerprint] = 1
    labels = ("generation", "revision", "label", "fingerprint")
    yield gauge("live_info", "The live generation; always 1.", said, *labels)
    words = "The number of the live generation; 0 before the first."
    yield gauge("generation", words, number)
    words = "1 while weights with noise on them answer (`hotreload perturb`)."
    yield gauge("noise_live", words, live is not None and live.revision.is_noise)
    if max_leaves:
        sums = dict(islice(live.leaves.items(), max_leaves)) if live else {}
        words = "Each live leaf's checksum, at most 2^53."
        yield gauge("leaf_checksum", words, sums, "leaf")
    words = "Live leaves without an exported checksum: beyond [metrics] max_leaves."
    yield gauge("leaf_checksums_left_out", words, left_out(live, max_leaves))


def left_out(live: Generation | None, max_leaves: int) -> int:
    """Count the leaves that are too many; none where no checksum is asked for."""
    return max(0, len(live.leaves) - max_leaves) if live and max_leaves else 0


def _replicas(replicas: Sequence[ReplicaFigures]) -> Iterator[Family]:
    """Yield what each engine does and holds now, by its index."""

    def of_each(read: Callable[[ReplicaFigures], float]) -> Mapping[str, float]:
        return {str(index): read(each) for index, each in enumerate(replicas)}

    words = "Requests that are being answered now."
    yield gauge("requests_inside", words, of_each(lambda each: each.inside), "replica")
    words = "Requests that wait at the closed gate now."
    yield gauge("requests_held", words, of_each(lambda each: each.held), "replica")
    words = "Requests in the engine that wait for a place in a batch."
    yield gauge("engine_waiting", words, of_each(lambda each: each.load.waiting), "replica")
    words = "Requests in the engine that make tokens."
    yield gauge("engine_running", words, of_each(lambda each: each.load.running), "replica")
    words = "Compilations after the first answers."
    yield counter("recompiles", words, of_each(lambda each: each.recompiles), "replica")
    words = "Bytes read or copied for weights that were staged; shared leaves are not read."
    yield counter("staged_bytes", words, of_each(lambda each: each.staged_bytes), "replica")
    tokens, weights = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    for at, each in enumerate(replicas):
        held = (each.load.kv_requests, each.load.kv_prefixes, each.load.kv_free)
        tokens |= {(use, str(at)): count for use, count in zip(KV_USES, held, strict=True)}
        places = {**dict.fromkeys(WEIGHT_PLACES, 0), **each.weights}
        weights |= {(place, str(at)): count for place, count in places.items()}
    words = (
        "Tokens of the KV pool, by what holds them; cached ones are free for requests. All 0 "
        "where the pool has several parts."
    )
    yield gauge("kv_tokens", words, tokens, "use", "replica")
    words = "Bytes of weights on an engine's devices, by place; shared ones count once."
    yield gauge("weights_bytes", words, weights, "place", "replica")


def _generations(answering: Sequence[AnsweringGeneration]) -> Iterator[Family]:
    """Count the generations that answer, and the requests that older ones still have to end."""
    words = "Generations that answer requests now; 0 while booting."
    yield gauge("generations_answering", words, len(answering))
    words = "Requests that older generations than the live one still answer."
    yield gauge("requests_on_previous", words, sum(older.requests for older in answering[1:]))


def _keys(keys: Mapping[str, KeyFigures]) -> Iterator[Family]:
    """Yield what named API keys have asked for; no series without such a key."""
    words = "Requests to the model, by the name of the API key."
    yield counter(
        "key_requests", words, {name: each.requests for name, each in keys.items()}, "key"
    )
    refused = dict[tuple[str, str], float]()
    for name, each in keys.items():
        refused[name, "requests"] = each.refused_by_requests
        refused[name, "tokens_per_minute"] = each.refused_by_tokens
    words = "Requests refused with 429, by the name of the API key."
    yield counter("key_refused", words, refused, "key", "limit")
    words = "Tokens of prompts and answers, by the name of the API key."
    yield counter("key_tokens", words, {name: each.tokens for name, each in keys.items()}, "key")


def _ledger(ledger: Ledger) -> Iterator[Family]:
    words = "When an engine was last lost, also before a restart; 0 for never."
    yield gauge("engine_lost_timestamp_seconds", words, ledger.lost_at)
    words = "1 while an operator's choice is live instead of the revision the source wishes."
    yield gauge("overruled", words, ledger.overruled is not None)
    words = (
        "When new weights last went live, also before a restart; 0 for never. A rollback, "
        "noise and a start are nothing new."
    )
    yield gauge("last_new_timestamp_seconds", words, new_at(ledger))


def new_at(ledger: Ledger) -> float:
    """Find when a revision first went live, of the one that did so last; 0 for never."""
    first: dict[str, float] = {}
    for place in tuple(ledger.generations):  # whole at once: the loop changes it meanwhile
        if not place.revision.is_noise:
            first.setdefault(place.revision.id, place.since)
    return max(first.values(), default=0.0)


def _names(picture: Picture) -> Iterator[Family]:
    """Yield series whose labels name a thing; an empty family while there is none.

    Each is there once at most, so they stay few.
    """
    words = "The revision that is wanted, also when it is live; always 1."
    wish, failed = picture.wishes.wanted, last_failure(picture.ledger)
    wished = {(wish.id, wish.label): 1} if wish is not None else {}
    yield gauge("wanted_info", words, wished, "revision", "label")
    words = (
        "The last failed attempt, also before a restart: checkpoint, outcome, beginning of "
        "the reason; always 1."
    )
    labels = ("revision", "label", "outcome", "reason", "message")
    yield gauge("last_failure_info", words, {_said_of(failed): 1} if failed else {}, *labels)


def last_failure(ledger: Ledger) -> Attempt | None:
    """Find the attempt that failed last, in this life or an earlier one."""
    attempts = tuple(ledger.attempts)  # whole at once: the loop changes it meanwhile
    failed = (each for each in attempts if each.outcome in FAILURES and not each.dry_run)
    return next(failed, None)


def _said_of(attempt: Attempt) -> tuple[str, ...]:
    revision, reason = attempt.revision, attempt.reason
    code, message = (reason.code, reason.message) if reason else ("", "")
    return (revision.id, revision.label, attempt.outcome.value, code, shorten(message))


def _ranks(picture: Picture) -> Iterator[Family]:
    """Yield the metrics of the ranks; one host alone is no rank."""
    rank = picture.setup.rank
    words = "Hosts over which the engine lies ([engine] nnodes)."
    yield gauge("ranks", words, rank.of if rank else 1)
    if rank is None:
        return
    words = "Which of several hosts this is; 0 decides and answers. No series with one host."
    yield gauge("rank", words, rank.own)
    if not rank.follows:
        words = (
            "On rank 0: seconds since each other rank's last sign of life; after 30 s the engine "
            "is lost."
        )
        heard = {str(other): seconds for other, seconds in picture.readings.silences().items()}
        yield gauge("rank_heard_seconds", words, heard, "rank")
