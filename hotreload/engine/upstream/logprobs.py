"""Makes a batch ask for the log-probabilities that its requests want, and for no others."""

from collections.abc import Callable
from functools import wraps
from typing import Any

USUAL_COUNTS = (0, 1, 5, 20, 64)
"""The numbers of alternatives that a step makes; a larger one is rounded up to a power of two.
Each number is compiled once: with a number for each request, all requests would wait each time."""


def list_what_is_asked(batch_class: type) -> None:
    """Make a batch's lists again whenever its requests change.

    0.1.0rc0 and main update the lists only while some request asks for log-probabilities, do not
    lengthen those that an ended request leaves, and let two batches share one list. The next
    request that ended beside them then ended the engine (IndexError in `filter_batch`). Goes when
    `filter_batch` and `merge_batch` look at the requests.
    """
    for name in ("filter_batch", "merge_batch"):
        change = getattr(batch_class, name)
        if not hasattr(change, "__wrapped__"):  # once, however many engines there are
            setattr(batch_class, name, _list_around(change))


def _list_around(change: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(change)
    def change_and_list(self: Any, *args: Any, **more: Any) -> Any:
        batches = [self, *(each for each in args if isinstance(each, type(self)))]
        for batch in batches:
            _list(batch)
        result = change(self, *args, **more)
        _list(self)
        return result

    return change_and_list


def _list(batch: Any) -> None:
    for info in getattr(batch, "reqs_info", ()):  # 0.0.2 has no such lists
        wanted = bool(batch.return_logprob and info.reqs)
        info.top_logprobs_nums = [req.top_logprobs_num for req in info.reqs] if wanted else None
        info.token_ids_logprobs = [req.token_ids_logprob for req in info.reqs] if wanted else None


def compile_few_kinds(*metadata_classes: type) -> None:
    """Let steps share one compiled program that differ only in the log-probabilities asked for.

    0.1.0rc0 and main hand the lists to the compiler as constants. It only needs the largest number,
    and if any ids are asked for. Each new mix of requests compiled the sampler again, while all
    requests waited. The host later removes log-probabilities that a request did not ask for. Goes
    when the lists are no constants.
    """
    for kind in metadata_classes:
        make = kind.from_model_worker_batch  # type: ignore[attr-defined]
        if not hasattr(make, "__wrapped__"):
            kind.from_model_worker_batch = staticmethod(_round_counts(make))  # type: ignore[attr-defined]


def _round_counts(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def make_and_round(batch: Any, *args: Any, **more: Any) -> Any:
        made = make(batch, *args, **more)
        if (numbers := getattr(made, "top_logprobs_nums", None)) is not None:
            vocabulary = batch.sampling_info.vocab_size
            made.top_logprobs_nums = [round_up(max(numbers, default=0), vocabulary)]
        if (ids := getattr(made, "token_ids_logprobs", None)) is not None:
            made.token_ids_logprobs = [None if all(each is None for each in ids) else []]
        return made

    return make_and_round


def round_up(most: int, vocabulary: int) -> int:
    """Return the next number that may be compiled; at most the number of tokens there are."""
    usual = next((each for each in USUAL_COUNTS if each >= most), None)
    return min(vocabulary, 1 << (most - 1).bit_length() if usual is None else usual)
