"""Stop strings cost the loop nothing, and are found however the model's tokens cut them."""

from typing import Any

import pytest

from hotreload.engine.upstream.patches import look_by_bytes


class Params:
    """As much of upstream's sampling parameters as their stop strings need."""

    def __init__(self, stop: Any) -> None:
        self.stop_strs = stop
        self.stop_str_max_len = -1

    def normalize(self, tokenizer: Any) -> None:
        raise NotImplementedError


look_by_bytes(Params)


@pytest.mark.parametrize(
    ("stop", "strings", "longest"),
    [(None, [], 0), ([], [], 0), ("by", ["by"], 3), (["a", "漢字"], ["a", "漢字"], 7)],
)
def test_no_stop_string_is_encoded(stop: Any, strings: list[str], longest: int) -> None:
    params = Params(stop)
    params.normalize(None)
    assert (params.stop_strs, params.stop_str_max_len) == (strings, longest)


@pytest.mark.real_engine
def test_upstream_has_what_is_set_here() -> None:
    from sgl_jax.srt.sampling.sampling_params import SamplingParams

    class Own(SamplingParams):  # type: ignore[misc, unused-ignore]
        pass

    look_by_bytes(Own)
    params = Own(stop="by")
    params.normalize(None)
    theirs = SamplingParams(stop="by")
    theirs.normalize(None)
    assert vars(params).keys() == vars(theirs).keys()
    assert params.stop_strs == ["by"]
