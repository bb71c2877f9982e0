"""Words for JSON fields, as `/status` and `/history` say them to command, `top` and page alike.

Moments stay stamps in UTC here, and users numbers: the program that shows them writes them as
its reader knows them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotreload.figures import duration, percent, size

Fields = dict[str, Any]

TONES = {
    "serving": "good",
    "following": "good",
    "live": "good",
    "passed": "good",
    "reloading": "wait",
    "booting": "wait",
    "stopping": "wait",
    "starting": "wait",
    "postponed": "wait",
    "superseded": "dim",
    "rejected": "bad",
    "lost": "bad",
}
"""The tone of a state or an outcome: `good`, `wait`, `bad` or `dim`."""
LOADER_WORDS = {"own": "by our own loader", "upstream": "by upstream's loader"}
NOT_SEEN = "not seen since the start"
WAITS_FOR_DATA = "waiting for data"
BY_ANSWERS = "by clients' answers"
ORDERED = ("dry_run", "perturb", "pin", "reload", "rollback", "unpin", "version")
"""Verbs of orders; any other verb, beside a start's, is a feature's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptWords:
    """The words of one judge for what it found in an attempt."""

    notes: Sequence[str] = ()
    """Beside the reason why it ended so."""
    told: Mapping[str, str | None] = field(default_factory=dict)
    """Fields of the attempt's words, a line each; null where there is nothing to say."""
    lines: Sequence[str] = ()
    """Below all that, line by line."""

    @property
    def all_lines(self) -> list[str]:
        """All but the notes."""
        return [*filter(None, self.told.values()), *self.lines]


WordAttempt = Callable[[Fields, bool], AttemptWords]
"""Word the facts of one judge in an attempt's fields, at length or in short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfFeatures:
    """The words of features for a status; a command knows none."""

    held: str | None = None
    """The words for a feature that holds requests."""
    at_work: str | None = None
    """The doing of one of them in the attempt under way."""
    rows: Sequence[Fields] = ()
    last_attempt: Sequence[str] = ()
    """Lines of what they found in the last attempt."""


NO_FEATURES = OfFeatures()


def plain(value: Any) -> str:
    """Show what came from elsewhere so that it cannot drive a terminal or begin a line."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(value))


def name_revision(
    fields: Mapping[str, Any], revision: str = "revision", label: str = "label"
) -> str:
    """Name a revision as people know it, and the beginning of its id."""
    identity = plain(fields.get(revision) or "nothing")[:12]
    known_as = fields.get(label)
    return f"{plain(known_as)} ({identity})" if known_as else identity


def short_name(fields: Mapping[str, Any], revision: str = "revision", label: str = "label") -> str:
    """Name a revision in a sentence or a narrow column, by its label if it has one."""
    return plain(fields.get(label) or (fields.get(revision) or "nothing")[:12])


def who(by: Mapping[str, Any]) -> str:
    """Name the caller: a user of this machine and the process, or the address of an admin key."""
    requester = f"uid {by['uid']} (pid {by['pid']})"
    if "address" in by:
        requester = f"{plain(by['address'])} (admin key)"
    return f"{requester} through {plain(by['route'])}" if "route" in by else requester


def describe_order(by: Mapping[str, Any]) -> str:
    """Say which user asked for something, when, and for which purpose."""
    reason = f": {plain(by['reason'])}" if by["reason"] else ""
    requester = BY_ANSWERS if was_unasked(by["verb"]) else f"by {who(by)}"
    return f"{plain(by['verb'])} {requester}, {by['at']}{reason}"


def was_unasked(verb: str) -> bool:
    """True of what a feature did by itself, because of what clients were answered."""
    return verb not in ("start", *ORDERED)


def goes_back(verb: str | None) -> bool:
    """True of what leaves weights for older ones."""
    return verb is not None and (verb == "rollback" or was_unasked(verb))


def count_of(number: int, noun: str) -> str:
    """Count things."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def older_text(older: Sequence[Fields]) -> str:
    """Say what generations from before the live one still answer, the newest of them first."""
    still = (f"{count_of(o['requests'], 'request')} still by {o['generation']}" for o in older)
    return ", ".join(still)


def outcome_word(attempt: Mapping[str, Any]) -> str:
    """Name an attempt's end; that of a rollback has a name of its own."""
    verb = (attempt.get("by") or {}).get("verb")
    is_rollback = attempt["outcome"] == "live" and goes_back(verb)
    word = "rolled back" if is_rollback else plain(attempt["outcome"])
    return f"{word}, dry run" if attempt.get("dry_run") else word


def attempt_words(attempt: Fields, judged: Sequence[AttemptWords] = ()) -> Fields:
    """Return the words for an attempt in a table; null where there are none.

    `judged` are the words of the judges of its weights.
    """
    by, held = attempt.get("by"), attempt["pause_seconds"]
    change = drift_text(attempt) if attempt.get("loader") else None
    of_judges = (note for each in judged for note in each.notes)
    notes = (by and plain(by["reason"]), _name_left(attempt), change, *of_judges)
    return {
        "outcome": outcome_word(attempt),
        "tone": TONES.get(attempt["outcome"], "dim"),
        "took": duration(sum(attempt["phases"].values())),
        "held": duration(held) if held else None,
        "by": _asker(by) if by else None,
        "notes": [note for note in notes if note],
        **{name: told for each in judged for name, told in each.told.items()},
        "judged": [line for each in judged for line in each.lines],
    }


def _asker(by: Fields) -> str:
    verb = plain(by["verb"])
    return verb if was_unasked(verb) else f"{verb}, {who(by)}"


def _name_left(attempt: Fields) -> str | None:
    """Name the weights that a rollback left."""
    left = attempt.get("replaced")
    if not left or outcome_word(attempt) != "rolled back":
        return None
    return f"from {name_revision(left)}, generation {left['generation']}"


def boot_text(boot: Fields) -> str:
    """Say which step of a start runs, for how long, how far it is and how long it took last."""
    words = f"{plain(boot['doing'])}, for {duration(boot['step_seconds'])}"
    if boot["usual_seconds"] is not None:
        words += f" ({duration(boot['usual_seconds'])} last time)"
    return f"{words}, {_how_far(boot)}" if boot["total"] else words


def working_text(attempt: Fields, at_work: str | None) -> str:
    """Say for how long an attempt's phase has run, and what a feature does meanwhile.

    Empty for an older daemon, which does not send that.
    """
    if "phase_seconds" not in attempt:
        return ""
    words = f", for {duration(attempt['phase_seconds'])}"
    return f"{words}: {at_work}" if at_work else words


def waiting_text(status: Fields) -> str:
    """Say which wait goes on, and for how long."""
    since = status.get("waiting_seconds")
    words = plain(status["waiting_for"])
    return words if since is None else f"{words} ({duration(since)} so far)"


def _how_far(boot: Fields) -> str:
    done, total = boot["done"], boot["total"]
    if boot["unit"] == "bytes":
        return f"{size(done)} of {size(total)}"
    return f"{done} of {total} {plain(boot['unit'])}"


def share_of(progress: Mapping[str, Any]) -> float:
    """Return which part of a download or a loading is done, 0 to 1."""
    done, total = progress["done_bytes"], progress["total_bytes"]
    return done / total if total else 0.0


def progress_text(progress: Mapping[str, Any]) -> str:
    """Say how far a download or a loading is, how fast, and how long it still takes."""
    rate, left = progress["bytes_per_second"], progress["seconds_left"]
    far = f"{size(progress['done_bytes'])} of {size(progress['total_bytes'])}"
    words = f"{far}, {f'{size(rate)}/s' if rate else WAITS_FOR_DATA}"
    return words if left is None else f"{words}, {duration(left)} left"


def loader_text(loading: Mapping[str, Any]) -> str:
    """Say which loader made the weights, and why it was not our own."""
    words, why = LOADER_WORDS[loading["loader"]], loading["loader_reason"]
    return f"{words} ({plain(why)})" if why else words


def drift_text(loading: Mapping[str, Any]) -> str:
    """Say how many leaves changed, and which of them most."""
    all_leaves = loading["leaves_staged"] + loading["leaves_shared"]
    words = f"{loading['leaves_changed']} of {all_leaves} leaves changed"
    if not loading["most_changed"]:
        return words
    change = loading["largest_change"]  # none where no number says it, as with a leaf that was zero
    much = "" if change is None else f" by {percent(change)}"
    return f"{words}, most: {plain(loading['most_changed'])}{much}"


def damage_text(drifted: Fields) -> str:
    """Name the live leaves that are no longer what went live."""
    shown = [plain(leaf) for leaf in drifted["leaves"]]
    more = drifted["leaves_total"] - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more > 0 else [])])


def follows(status: Fields) -> bool:
    """True if another host decides and answers instead."""
    return bool((status.get("rank") or {}).get("own"))


def is_held_by_rollback(status: Fields) -> bool:
    """Return True if a rollback, and no pin, holds the live generation against the source."""
    return bool(status["pinned"] and (status.get("pin") or {}).get("verb") == "rollback")


def rank_text(rank: Fields) -> str:
    """Say which rank this is, and that rank 0 decides."""
    which = f"{rank['own']} of {rank['of']}"
    if not rank["own"]:
        return f"{which}, decides and answers"
    return f"{which}; rank 0, met at {plain(rank['leader'])}, decides and answers"
