"""The evidence of a comparison, and its event: their fields in JSON, and words for them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hotreload.events.event import LateEvidence
from hotreload.features.compare.behaviour import Behaviour
from hotreload.json_fields import Fields, revision_fields, round_numbers
from hotreload.picture.words import AttemptWords, count_of, plain
from hotreload.types import Evidence, Revision

ALL_PAIRS = 3
"""The most answers that differ which the words show at length; in short they show one."""
BEHAVIOUR = "behaviour"
"""The code of a refusal of weights that answer too differently from those that are live."""


def behaviour_fields(behaviour: Behaviour) -> Fields:
    """Return how new weights differ from the live ones; what was not measured is null."""
    fields: Fields = round_numbers(asdict(behaviour))
    return fields


def evidence_of(found: Behaviour | None, cut_short: str = "") -> Evidence:
    """Return what a comparison found, and how far it came if it was cut short."""
    agreement = f"answers agree {found.agreement:.0%}" if found else ""
    cut = f"comparison {cut_short}" if cut_short else ""
    outcome = "cut_short" if cut_short else "compared" if found else "none"
    facts = {"behaviour": found and behaviour_fields(found), "not_compared": cut_short or None}
    return Evidence("compare", outcome, ", ".join(filter(None, (agreement, cut))), facts)


BLANK = evidence_of(None)
"""The evidence where nothing was compared."""


def words_of_comparison(attempt: Fields, at_length: bool) -> AttemptWords:
    """Say how the weights differ from those before them, and which answers differ most."""
    found = attempt.get("behaviour")
    lines = _list_differences(found["worst"])[: ALL_PAIRS if at_length else 1] if found else []
    if attempt.get("not_compared"):
        lines.append(f"comparison {plain(attempt['not_compared'])}")
    return AttemptWords(told={"behaviour": found and behaviour_text(found)}, lines=lines)


def _list_differences(worst: Sequence[Fields]) -> list[str]:
    return [
        f"answers differ: {each['prompt']!r}: live {each['live']!r}, new {each['new']!r}"
        for each in worst
        if each["live"] != each["new"]
    ]


def behaviour_text(found: Fields) -> str:
    """Say how weights that came differ from those before them."""
    agree, longer = f"answers agree {found['agreement']:.0%}", found["length_ratio"]
    is_whole = found["empty"] is not None
    if not is_whole:
        words = f"{agree} or more"
    elif longer is None:
        words = f"{agree}, something where there was nothing"
    else:
        words = f"{agree}, {longer:.2f} times as long"
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
        requests = count_of(found["heard"], "heard request")
        words += f", {found['heard_same_top']:.0%} along {requests}"
    bad = {name: found[name] for name in ("empty", "endless", "repeating")}
    more = [f"{n} {name}" for name, n in bad.items() if is_whole and n > found[f"live_{name}"]]
    return f"{words}; of {found['questions']} answers {', '.join(more)}" if more else words


def _right_answers(right: Fields) -> str:
    """Say how many are, beside the live weights', and whether that can be chance."""
    counts = f"{right['right']} of {right['expected']} answers right (before {right['live_right']}"
    changed = f"{right['worse']} worse, {right['better']} better, p {right['p_worse']:.2g}"
    drop = right["smallest_drop"]
    seen = "no loss could be seen" if drop is None else f"a loss of {drop:.1%} could be seen"
    return f"{counts}; {changed}; {seen})"


@dataclass(frozen=True, slots=True)
class LiveCompared(LateEvidence):
    """New weights were compared with those before them, or that was cut short."""

    generation: int
    revision: Revision
    found: Evidence

    @property
    def name(self) -> str:
        return "behaviour.cut_short" if self.found.facts["not_compared"] else "behaviour.compared"

    @property
    def evidence(self) -> Evidence:
        return self.found

    def fields(self) -> Fields:
        return {"generation": self.generation, **revision_fields(self.revision), **self.found.facts}
