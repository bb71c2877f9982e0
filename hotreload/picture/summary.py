"""The state of the daemon in one sentence: which weights answer, if they are wanted, what to do.

A pure function of /status, which serves it as `summary`, so that command, `top` and page say the
same. Each finding has a code that `hotreload explain` knows.
"""

from collections.abc import Iterator, Sequence

from hotreload.figures import duration
from hotreload.picture.words import (
    NO_FEATURES,
    Fields,
    OfFeatures,
    boot_text,
    count_of,
    follows,
    is_held_by_rollback,
    plain,
    short_name,
    waiting_text,
    was_unasked,
    working_text,
)

EACH = "hotreload status --check"
"""Prints every finding with its own next command."""
CONTENT = ("that is what is wanted", "nothing else is wanted")
"""The words where nothing newer is known of."""
FROM_GOOD_TO_BAD = ("good", "wait", "bad")
"""From the best to the worst."""


def summed_up(status: Fields, said: OfFeatures = NO_FEATURES) -> Fields:
    """Return the sentence, its tone, the next command, and each thing that is wrong.

    `said` is what features say of it; a command knows none.
    """
    wish, wishes = _wish(status, said.at_work)
    others = list(_wrong(status))
    findings = [*wishes, *others]
    nobody = _nobody(status)
    words = [
        *([nobody["words"]] if nobody else [_who(status, said.held), wish["words"]]),
        *_name_other_faults(others),
    ]
    parts = [nobody or wish, *_held_up(said.held), *findings]
    return {
        "words": "; ".join(filter(None, words)),
        "tone": max((each["tone"] for each in parts), key=FROM_GOOD_TO_BAD.index),
        "next": _next(nobody or wish, findings),
        "findings": findings,
        "doing": _describe_work(status, said),
    }


def _next(first: Fields, findings: Sequence[Fields]) -> str | None:
    if len(findings) > 1:
        return EACH
    return str(findings[0]["next"]) if findings else first["next"]


def _name_other_faults(findings: Sequence[Fields]) -> Iterator[str]:
    """Name the faults beside the wish by their codes; `status --check` has the words."""
    codes = list(dict.fromkeys(each["code"] for each in findings))
    if codes:
        yield f"{count_of(len(codes), 'trouble')}: {', '.join(codes)}"


def _nobody(status: Fields) -> Fields | None:
    """Say why no request is answered; None where requests are."""
    if not status["reasons"]:
        return None
    words = f"no request is answered: {'; '.join(status['reasons'])}"
    match status["state"]:
        case "lost":
            return _part(words, "bad", "hotreload explain EngineLost")
        case "booting":
            boot = status.get("boot")
            since = f", for {duration(boot['step_seconds'])}" if boot else ""
            return _part(words + since, "wait", "hotreload status --wait")
        case _:
            return _part(words, "wait")


def _who(status: Fields, held: str | None) -> str:
    generation = f"generation {status['generation']}, {short_name(status)}"
    if follows(status):
        return f"holds {generation}; rank 0 answers"
    return f"{generation}, is paused" if held else f"{generation}, answers"


def _held_up(held: str | None) -> list[Fields]:
    """Say that new requests wait, which is no fault."""
    return [_part("", "wait")] if held else []


def _describe_work(status: Fields, said: OfFeatures) -> str:
    """Say what it does at this moment."""
    if boot := status.get("boot"):
        return f"answers no request: booting: {boot_text(boot)}"
    if status["reasons"]:
        return f"answers no request: {'; '.join(status['reasons'])}"
    if follows(status):
        return "holds its part of the engine; rank 0 decides and answers"
    return f"{said.held or _answers(status)}; {_works_at(status, said.at_work)}"


def _answers(status: Fields) -> str:
    """Say if requests wait; where generations overlap, for the cleaning after NaN."""
    gate = status["gate"]
    if gate["state"] != "holding":
        return "answers requests"
    is_a_swap = status["phase"] and status.get("mode") != "overlap"
    why = "the weights are exchanged" if is_a_swap else "the KV pool is cleaned"
    return f"holds {count_of(gate['held'], 'request')} while {why}"


def _works_at(status: Fields, at_work: str | None) -> str:
    if attempt := status["attempt"]:
        return f"{attempt.get('doing', status['phase'])}{working_text(attempt, at_work)}"
    if status["waiting_for"]:
        return f"waits: {waiting_text(status)}"
    if status["pinned"]:
        held = "held by a rollback" if is_held_by_rollback(status) else "pinned"
        return f"{held}, so the source is not followed"
    if newer := status.get("refused_newer"):
        return f"waits for one that is newer than {short_name(newer)}"
    if overruled := status.get("overruled"):
        return f"waits for one that is newer than the source's {short_name(overruled)}"
    return "nothing newer is wanted"


def _wish(status: Fields, at_work: str | None) -> tuple[Fields, list[Fields]]:
    """Say if the wanted revision answers, and else its fault, and if a newer one is refused."""
    if follows(status) or status["reasons"]:
        return _part("", "good"), []
    wish, findings = _of_the_wanted(status, at_work)
    newer = status.get("refused_newer")
    if newer is None or newer["revision"] == status["wanted"]:
        return wish, findings
    said = _describe_failure(
        f"{short_name(newer)} is newer and was refused", newer, "bad", _row_of(newer)
    )
    words = said[0]["words"]
    words = words if wish["words"] in CONTENT else f"{wish['words']}; {words}"
    return _part(words, "bad"), [*findings, *said[1]]


def _of_the_wanted(status: Fields, at_work: str | None) -> tuple[Fields, list[Fields]]:
    wanted, overruled = status["wanted"], status.get("overruled")
    if status.get("noise") and wanted in (None, status["revision"]):
        return _part("an operator put that noise on", "bad"), []
    if is_held_by_rollback(status) and wanted in (None, status["revision"]):
        held = "a rollback holds it, and the source is not followed"
        return _part(held, "good", "hotreload unpin"), []
    if overruled and not was_unasked(overruled["verb"]) and wanted == status["revision"]:
        wish = short_name(overruled)
        return _part(f"that is what an operator chose over the source's {wish}", "good"), []
    if wanted in (None, status["revision"]):
        return _content(status), []
    return _not_met(status, f"{short_name(status, 'wanted', 'wanted_label')} is wanted", at_work)


def _content(status: Fields) -> Fields:
    """Say that nothing else is wanted, unless something newer is passed over, or waited for."""
    words = CONTENT[status["wanted"] is None]
    if status.get("refused_newer"):
        return _part(words, "good")
    if passed := status.get("passed_over"):
        label, code = plain(passed[0]["label"]), plain(passed[0]["code"])
        return _part(f"{label} is newer and is passed over ({code})", "wait")
    if status["waiting_for"] and not status["source"]["stale"]:
        return _part(f"{words}; it waits: {waiting_text(status)}", "wait")
    return _part(words, "good")


def _not_met(status: Fields, wish: str, at_work: str | None) -> tuple[Fields, list[Fields]]:
    """Say what became of a wish that is not live."""
    wanted, attempt, last = status["wanted"], status["attempt"], status["last_attempt"]
    if attempt and attempt["revision"] == wanted:
        phase = status["phase"]
        phase = f" ({phase.replace('_', ' ')}{working_text(attempt, at_work)})" if phase else ""
        return _part(f"{wish} and on its way{phase}", "wait"), []
    if status["pinned"]:
        holder = "a rollback" if is_held_by_rollback(status) else "a pin"
        return _part(f"{wish}, but {holder} holds this one", "wait", "hotreload unpin"), []
    refusal = next((each for each in status["refused"] if each["revision"] == wanted), None)
    if refusal:
        newer = status.get("refused_newer")
        times = _row_of(newer) if newer and newer["revision"] == wanted else ""
        return _describe_failure(f"{wish} and was refused", refusal, "bad", times)
    if last is not None and last["revision"] == wanted and last["outcome"] == "postponed":
        return _describe_failure(f"{wish} and was put off", last, "wait")
    return _part(f"{wish} and not live yet", "wait"), []


def _row_of(newer: Fields) -> str:
    """Say how many were refused in a row, and since when."""
    ago, count = f"{duration(newer['seconds'])} ago", newer["in_a_row"]
    return f", {ago}" if count == 1 else f": {count} in a row, the first {ago}"


def _describe_failure(
    words: str, why: Fields, tone: str, times: str = ""
) -> tuple[Fields, list[Fields]]:
    said = why["reason"].removeprefix(f"{why['code']}: ")
    finding = _make_finding(why["code"], f"{words}{times}: {said}", tone)
    return _part(f"{words} ({why['code']}){times}", tone), [finding]


def _wrong(status: Fields) -> Iterator[Fields]:
    """Find all else that is wrong; fields that an older daemon does not have are passed by."""
    for trouble in status.get("troubles", ()):
        yield _make_finding(trouble["code"], trouble["message"])
    if status.get("drifted"):
        yield _make_finding("LiveWeightsDrifted", "live leaves are no longer what went live")
    if status.get("noise"):
        yield _make_finding("NoiseAnswers", "an operator put noise on the live weights")
    if (kept := status.get("state_file")) and not kept["saved"]:
        yield _make_finding(
            "StateNotSaved", f"a restart would forget what changes: {kept['error']}"
        )
    for replica in status.get("replicas", ()):
        if replica["state"] == "lost" and not status["reasons"]:
            why = f"replica {replica['index']} is lost: {replica['reason']}"
            yield _make_finding("ReplicaLost", why)
    workers = status.get("workers") or {"wanted": 0, "serving": 0, "lost": 0}
    if workers["lost"] and workers["serving"] < workers["wanted"] and not status["reasons"]:
        why = f"{workers['serving']} of {workers['wanted']} workers answer HTTP"
        yield _make_finding("WorkerLost", why, "wait")
    if (loader := status.get("loader")) and not loader["trusted"]:
        why = f"our own loader is switched off: {loader['reason']}"
        yield _make_finding("LoaderDistrusted", why, "wait")
    if status["source"]["stale"] and not follows(status) and not status["reasons"]:
        why = f"the source does not answer: {status['source']['error']}"
        yield _make_finding("SourceDead", why, "wait")
    if passed := status.get("passed_over"):
        more = status["passed_over_total"] - 1
        why = f"{passed[0]['reason']}{f'; and {more} more' if more > 0 else ''}"
        yield _make_finding("SourcePassedOver", why, "wait")


def _part(words: str, tone: str, then: str | None = None) -> Fields:
    return {"words": words, "tone": tone, "next": then}


def _make_finding(code: str, words: str, tone: str = "bad", then: str | None = None) -> Fields:
    return {"code": code, **_part(words, tone, then or f"hotreload explain {code}")}
