"""Takes upstream's batches of answers apart by their flags, and joins them again."""

import dataclasses
from collections.abc import Sequence
from typing import Any


def places_alike(batch: Any) -> list[list[int]]:
    """The places in a batch, grouped by the flags of their requests."""
    flags = zip(batch.skip_special_tokens, batch.spaces_between_special_tokens, strict=True)
    groups: dict[Any, list[int]] = {}
    for place, each in enumerate(flags):
        groups.setdefault(each, []).append(place)
    return list(groups.values())


def part_of(batch: Any, places: Sequence[int]) -> Any:
    """The part of a batch that stands in these places."""
    fields = _lists(batch, len(batch.rids)).items()
    return dataclasses.replace(batch, **{name: [of[at] for at in places] for name, of in fields})


def joined(parts: Sequence[tuple[Sequence[int], Any]]) -> Any:
    """One batch of all the parts, each request in its place."""
    order = [place for places, _ in parts for place in places]
    whole: dict[str, list[Any]] = {}
    names = [_lists(part, len(places)).keys() for places, part in parts]
    for name in set.intersection(*map(set, names)):
        values = [value for _, part in parts for value in getattr(part, name)]
        at = dict(zip(order, values, strict=True))
        whole[name] = [at[place] for place in sorted(at)]
    return dataclasses.replace(parts[0][1], **whole)


def _lists(batch: Any, size: int) -> dict[str, list[Any]]:
    """The batch's fields with a value for each request; the other lists are None or empty."""
    fields = {each.name: getattr(batch, each.name) for each in dataclasses.fields(batch)}
    return {k: v for k, v in fields.items() if isinstance(v, list) and len(v) == size}
