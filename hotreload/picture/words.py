"""Words for JSON fields, as `/status` and `/history` say them to command, `top` and page alike.

Moments stay stamps in UTC here, and users numbers: the program that shows them writes them as
its reader knows them.
"""

from collections.abc import Iterator, Mapping, Sequence
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
ALL_PAIRS, LAST_LINES = 3, 3
"""So many answers that differ, and lines of a command, words tell of."""
WAITS_FOR_DATA = "waiting for data"
BY_ANSWERS = "by clients' answers"
ORDERED = ("dry_run", "perturb", "pin", "reload", "rollback", "unpin", "version")
"""The verbs of those who order something; beside these and a start, one is a feature's name."""


def plain(value: Any) -> str:
    """Show what came from elsewhere so that it cannot drive a terminal or begin a line."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(value))


def named(fields: Mapping[str, Any], revision: str = "revision", label: str = "label") -> str:
    """Name a revision as people know it, and the beginning of its id."""
    identity = plain(fields.get(revision) or "nothing")[:12]
    known_as = fields.get(label)
    return f"{plain(known_as)} ({identity})" if known_as else identity


def short_name(fields: Mapping[str, Any], revision: str = "revision", label: str = "label") -> str:
    """Name a revision in a sentence or a narrow column, by its label if it has one."""
    return plain(fields.get(label) or (fields.get(revision) or "nothing")[:12])


def who(by: Mapping[str, Any]) -> str:
    """Name the one who asked: a user of this machine and their process, or who showed a key."""
    asker = f"uid {by['uid']} (pid {by['pid']})"
    if "address" in by:
        asker = f"{plain(by['address'])} (admin key)"
    return f"{asker} through {plain(by['route'])}" if "route" in by else asker


def asked(by: Mapping[str, Any]) -> str:
    """Say which user asked for something, when, and for which purpose."""
    reason = f": {plain(by['reason'])}" if by["reason"] else ""
    asker = BY_ANSWERS if was_unasked(by["verb"]) else f"by {who(by)}"
    return f"{plain(by['verb'])} {asker}, {by['at']}{reason}"


def was_unasked(verb: str) -> bool:
    """True of what a feature did by itself, because of what clients were answered."""
    return verb not in ("start", *ORDERED)


def goes_back(verb: str | None) -> bool:
    """True of what leaves weights for older ones."""
    return verb is not None and (verb == "rollback" or was_unasked(verb))


def counted(number: int, noun: str) -> str:
    """Count things."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def older_text(older: Sequence[Fields]) -> str:
    """Say what generations from before the live one still answer, the newest of them first."""
    still = (f"{counted(o['requests'], 'request')} still by {o['generation']}" for o in older)
    return ", ".join(still)


def outcome_word(attempt: Mapping[str, Any]) -> str:
    """Name an attempt's end; one that an operator asked for to go back is told as what it is."""
    verb = (attempt.get("by") or {}).get("verb")
    is_rollback = attempt["outcome"] == "live" and goes_back(verb)
    word = "rolled back" if is_rollback else plain(attempt["outcome"])
    return f"{word}, dry run" if attempt.get("dry_run") else word


def attempt_words(attempt: Fields, others: Sequence[str] = ()) -> Fields:
    """Return the words for an attempt in a table; where there is nothing to say it is null.

    `others` are words of judges whose facts have none here.
    """
    by, held = attempt.get("by"), attempt["pause_seconds"]
    change = drift_text(attempt) if attempt.get("loader") else None
    bake = attempt.get("bake") or {"reason": None}
    judged = bake["reason"] and f"bake {plain(bake['outcome'])}: {plain(bake['reason'])}"
    notes = (by and plain(by["reason"]), _left(attempt), change, judged, *map(plain, others))
    return {
        "outcome": outcome_word(attempt),
        "tone": TONES.get(attempt["outcome"], "dim"),
        "took": duration(sum(attempt["phases"].values())),
        "held": duration(held) if held else None,
        "by": _asker(by) if by else None,
        "notes": [note for note in notes if note],
        "behaviour": behaviour_text(found) if (found := attempt.get("behaviour")) else None,
        "judged": judged_words(attempt, ALL_PAIRS if attempt["outcome"] == "rejected" else 1),
    }


def judged_words(attempt: Fields, pairs: int = ALL_PAIRS) -> list[str]:
    """Say which answers differ most, so many at most, and what a command that judged said last."""
    worst = (attempt.get("behaviour") or {"worst": ()})["worst"]
    differ = [each for each in worst if each["live"] != each["new"]]
    words = [
        f"answers differ: {each['prompt']!r}: live {each['live']!r}, new {each['new']!r}"
        for each in differ[:pairs]
    ]
    if attempt.get("not_compared"):
        words.append(f"comparison {plain(attempt['not_compared'])}")
    if said := attempt.get("command_said"):
        words.append(f"the command said: {plain(' / '.join(said[-LAST_LINES:]))}")
    return words


def behaviour_text(found: Fields) -> str:
    """Say how weights that came differ from those before them."""
    longer, longer_than_none = found["length_ratio"], "something where there was nothing"
    times = longer_than_none if longer is None else f"{longer:.2f} times as long"
    words = f"answers agree {found['agreement']:.0%}, {times}"
    if found["mean_kl"] is not None:
        words += f", mean KL {found['mean_kl']:.3g} (noise {found['noise_kl'] or 0:.3g})"
    elif not found["tokens"]:
        words += ", no KL: the live answers hold nothing to be led along"
    if found["same_top"] is not None:
        words += f", same top {found['same_top']:.0%}"
    if found["perplexity_ratio"] is not None:
        words += f", perplexity {found['perplexity_ratio']:.3g} times"
    if right := found.get("right_answers"):
        words += f", {_right_answers(right)}"
    if found.get("heard") and found["heard_same_top"] is not None:
        requests = counted(found["heard"], "heard request")
        words += f", {found['heard_same_top']:.0%} along {requests}"
    bad = {name: found[name] for name in ("empty", "endless", "repeating")}
    more = [f"{count} {name}" for name, count in bad.items() if count > found[f"live_{name}"]]
    return f"{words}; of {found['questions']} answers {', '.join(more)}" if more else words


def _right_answers(right: Fields) -> str:
    """Say how many are, beside the live weights', and whether that can be chance."""
    counts = f"{right['right']} of {right['expected']} answers right (before {right['live_right']}"
    changed = f"{right['worse']} worse, {right['better']} better, p {right['p_worse']:.2g}"
    drop = right["smallest_drop"]
    seen = "no loss could be seen" if drop is None else f"a loss of {drop:.1%} could be seen"
    return f"{counts}; {changed}; {seen})"


def _asker(by: Fields) -> str:
    verb = plain(by["verb"])
    return verb if was_unasked(verb) else f"{verb}, {who(by)}"


def _left(attempt: Fields) -> str | None:
    """Name the weights that a rollback left."""
    left = attempt.get("replaced")
    if not left or outcome_word(attempt) != "rolled back":
        return None
    return f"from {named(left)}, generation {left['generation']}"


def boot_text(boot: Fields) -> str:
    """Say which step of a start runs, for how long, how far it is and how long it took last."""
    words = f"{plain(boot['doing'])}, for {duration(boot['step_seconds'])}"
    if boot["usual_seconds"] is not None:
        words += f" ({duration(boot['usual_seconds'])} last time)"
    return f"{words}, {_how_far(boot)}" if boot["total"] else words


def working_text(attempt: Fields) -> str:
    """Say for how long the phase of an attempt has run, and which command decides meanwhile.

    Nothing, of a daemon that does not tell it.
    """
    if "phase_seconds" not in attempt:
        return ""
    words = f", for {duration(attempt['phase_seconds'])}"
    if (command := attempt["command"]) is None:
        return words
    times = f"for {duration(command['seconds'])} of {duration(command['within'])} at most"
    program = f"[command] run ({plain(command['name'])})"
    return f"{words}: {program} decides, {times}, try {command['try']}"


def waiting_text(status: Fields) -> str:
    """Say what is waited for, and for how long."""
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
    return ", ".join(_progress(progress))


def _progress(progress: Mapping[str, Any]) -> Iterator[str]:
    yield f"{size(progress['done_bytes'])} of {size(progress['total_bytes'])}"
    rate, left = progress["bytes_per_second"], progress["seconds_left"]
    yield f"{size(rate)}/s" if rate else WAITS_FOR_DATA
    if left is not None:
        yield f"{duration(left)} left"


def loader_text(loading: Fields) -> str:
    """Say which loader made the weights, and why it was not our own."""
    words, why = LOADER_WORDS[loading["loader"]], loading["loader_reason"]
    return f"{words} ({plain(why)})" if why else words


def drift_text(loading: Fields) -> str:
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
    """True if a rollback, and no pin, holds what is live against the source."""
    return bool(status["pinned"] and (status.get("pin") or {}).get("verb") == "rollback")


def rank_text(rank: Fields) -> str:
    """Say which rank this is, and who decides."""
    which = f"{rank['own']} of {rank['of']}"
    if not rank["own"]:
        return f"{which}, decides and answers"
    return f"{which}; rank 0, met at {plain(rank['leader'])}, decides and answers"
