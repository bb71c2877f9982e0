"""What must hold for generations: what a number means, how numbers move, what may go live."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.histories.record import OUTCOMES, Fields, Identity, Life, Record, Request
from tests.integration.test_damage import REASONS

FAULTS_OF_FILES = {"truncated", "missing", "index", "io", "bad_header"}
"""Why a folder may be refused whose files were changed after it was published."""
ALWAYS = {"crashed", "rolled_back"}
"""Two kills over two attempts look like the checkpoint's fault; an operator may say it is."""

ATTEMPTS = {f"reload.{outcome}" for outcome in OUTCOMES}
PIN = "/admin/pin"
CHANGES = {PIN, *(f"/admin/{verb}" for verb in ("unpin", "reload_weights", "rollback"))}
CHANGES |= {"/admin/perturb_weights"}
LAG = 5.0
"""So long after it happened we may hear of an event."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Somebody saw at some moment between start and end that this generation was live."""

    start: float
    end: float
    number: int
    identity: Identity
    where: str
    is_of_a_conversation: bool = False
    """It goes on by the weights it began with."""


def sightings(record: Record) -> Iterator[Sighting]:
    """All of them: in answers, in /status, in /events, in state files."""
    for request in record.requests:
        for said in request.said:
            identity = (said.revision, said.fingerprint)
            yield Sighting(
                request.start,
                request.end,
                said.generation,
                identity,
                request.route,
                bool(request.session),
            )
    for look in record.looks("/status"):
        if look.fields.get("generation") is not None:
            yield Sighting(look.start, look.end, *_named(look.fields), look.route)
    never = float("-inf")  # it happened at any time before we heard of it
    for heard in record.heard:
        if heard.fields["event"] == "generation.live":
            yield Sighting(never, heard.at, *_named(heard.fields), "/events")
    for life in record.lives:
        for number, revision, fingerprint in life.left:
            yield Sighting(never, life.ended or 0.0, number, (revision, fingerprint), "state.json")


def _named(fields: Fields) -> tuple[int, Identity]:
    return fields["generation"], (fields["revision"], fields["fingerprint"])


def check_meaning(record: Record) -> Iterator[str]:
    """A number stands for one revision, also across restarts; equal revisions are equal weights."""
    meant: dict[int, Identity] = {}
    prints: dict[str, str] = {}
    pairs = dict.fromkeys((each.number, each.identity) for each in sightings(record))
    for number, identity in pairs:
        if (first := meant.setdefault(number, identity)) != identity:
            yield f"generation {number} is {first} and {identity}"
        revision, fingerprint = identity
        if prints.setdefault(revision, fingerprint) != fingerprint:
            yield f"{revision} has fingerprints {prints[revision]} and {fingerprint}"


def check_order(record: Record) -> Iterator[str]:
    """Once anybody has seen a generation, whoever asks later sees no older one.

    So an answer, held or not, was made by what was live at some moment of its request.
    """
    seen = sorted(sightings(record), key=lambda each: each.end)
    asked = sorted((s for s in seen if s.start > 0), key=lambda each: each.start)
    newest, position = None, 0
    for sighting in asked:
        while position < len(seen) and seen[position].end < sighting.start:
            if newest is None or seen[position].number > newest.number:
                newest = seen[position]
            position += 1
        is_older = newest is not None and sighting.number < newest.number
        if newest is not None and is_older and not sighting.is_of_a_conversation:
            yield (
                f"{sighting.where} at {sighting.start:.3f} by generation {sighting.number}, when "
                f"{newest.where} had shown {newest.number} at {newest.end:.3f}"
            )


def check_moves(record: Record) -> Iterator[str]:
    """Within a life each generation is one more, by an attempt; the start is one of them."""
    left: list[tuple[int, str, str]] = []
    kills = 0
    for life in record.lives:
        events = record.events(life)
        live = [each for each in events if each["event"] == "generation.live"]
        if live:
            yield from _wrong_start(life, live[0], left, kills)
        numbers = [each["generation"] for each in live]
        if any(later != number + 1 for number, later in pairwise(numbers)):
            yield f"life {life.number}: generations {numbers}"
        by_attempt = [each["generation"] for each in events if each["event"] == "reload.live"]
        if by_attempt != numbers and not (life.was_killed and by_attempt == numbers[:-1]):
            yield f"life {life.number}: generations {numbers}, attempts made {by_attempt}"
        left, kills = life.left or left, kills + 1 if life.was_killed else 0


def _wrong_start(
    life: Life, first: Fields, left: list[tuple[int, str, str]], kills: int
) -> Iterator[str]:
    """The next number, or the last one for the same weights.

    For each kill before it one may be left out: the number that was reserved before its weights
    went live.
    """
    number, identity = _named(first)
    if not left:
        if number != 1:
            yield f"life {life.number} began with generation {number} and no memory"
        return
    highest, *known = max(left)
    if not highest < number <= highest + 1 + kills and (number, *identity) != (highest, *known):
        yield f"life {life.number} began with generation {number} after {highest}"


# --- what may go live, and what may be refused ----------------------------------------------


def check_refused(record: Record) -> Iterator[str]:
    """What was refused is neither tried again nor live, but by force or by a rollback to it."""
    refused: set[str] = set()
    for heard in record.heard:
        event, revision = heard.fields["event"], heard.fields.get("revision", "")
        is_tried = event == "generation.live" or event in ATTEMPTS
        again = is_tried and revision in refused
        if again and not any(_may_lift(each, revision, heard.at) for each in record.requests):
            yield f"{heard.fields['label']} was refused, and {event} at {heard.at:.3f}"
        if event == "reload.rejected":
            refused.add(revision)
        elif event == "reload.live":  # generation.live came just before it
            refused.discard(revision)


def _may_lift(request: Request, revision: str, at: float) -> bool:
    """Whether an operator's ask at that time was for it; one cut off may have been for any."""
    if not (request.asked.get("force") or request.route == "/admin/rollback"):
        return False
    named = request.fields.get("revision")
    is_then = request.start <= at and (named is None or request.end >= at - LAG)
    return is_then and named in (None, revision)


def check_deserved(record: Record) -> Iterator[str]:
    """What is refused deserves it, and for the reason that is told."""
    for revision, label, code in sorted(_all_refused(record)):
        published = [each for each in record.publications if each.revision == revision]
        fair = ALWAYS | {REASONS[each.damage] for each in published if each.damage}
        if label in record.touched:
            fair |= FAULTS_OF_FILES
        if code not in fair:
            damages = [each.damage for each in published]
            yield f"{label} ({damages}) was refused for {code!r}"


def _all_refused(record: Record) -> set[tuple[str, str, str]]:
    rejected = (
        heard.fields for heard in record.heard if heard.fields["event"] == "reload.rejected"
    )
    told = {(each["revision"], each["label"], each["code"]) for each in rejected}
    for look in record.looks("/status"):
        told |= {(revision, label, code) for revision, label, code in look.fields["refused"]}
    return told


def check_rollbacks(record: Record) -> Iterator[str]:
    """A rollback brings back the very weights of the older generation."""
    known = {each.number: each.identity for each in sightings(record)}
    for request in record.requests:
        if request.route != "/admin/rollback" or request.fields.get("outcome") != "live":
            continue
        now = known.get(request.fields["generation"])
        named = request.asked.get("generation")
        older = {known.get(number) for number in known if number < request.fields["generation"]}
        meant = {known.get(named)} if named is not None else older
        if now not in meant:
            yield f"a rollback to {named or 'the one before'} made {request.fields}, which is {now}"
        after = request.fields.get("checksum_after")
        if after is not None and now is not None and after != now[1]:
            yield f"a rollback told checksum {after}, and generation {now} is live"


def check_pins(record: Record) -> Iterator[str]:
    """After the answer to a pin that generation answers, until an operator asks for another.

    So does the one that a rollback made, unless it was to go on following the source.
    """
    changes = [each for each in record.requests if each.route in CHANGES]
    for pin in (each for each in changes if _holds(each) and each.status == 200):
        others = (each.start for each in changes if each is not pin and each.end > pin.start)
        life = record.life_of(pin)
        until = min((*others, (life and life.ended) or float("inf")))
        for request in record.requests:
            if pin.end < request.start and request.end < until:
                for said in request.said:
                    if said.generation != pin.fields["generation"]:
                        yield f"{said.generation} at {request.start:.3f}, pinned: {pin.fields}"


def _holds(request: Request) -> bool:
    is_rollback = request.route == "/admin/rollback"
    return request.route == PIN or (is_rollback and bool(request.fields.get("pinned")))
