"""What a program asks, in the engine's own schema."""

from types import MappingProxyType
from typing import Any

import pytest

from hotreload.errors import BadRequest
from hotreload.hot.asking import check_whole_number, request_for


@pytest.mark.parametrize(
    ("prompt", "request_made"),
    [
        ("a", {"text": "a"}),
        (("a", "b"), {"text": ["a", "b"]}),
        (["a", "b"], {"text": ["a", "b"]}),
        ((1, 2), {"input_ids": [1, 2]}),
        (([1], [2]), {"input_ids": [[1], [2]]}),
        ([(1,), (2,)], {"input_ids": [[1], [2]]}),
        ([], {"input_ids": []}),
    ],
)
def test_a_prompt_may_be_a_tuple_wherever_it_may_be_a_list(
    prompt: Any, request_made: dict[str, Any]
) -> None:
    assert request_for(prompt, None, {}) == request_made | {"sampling_params": {}}


def test_any_mapping_does_as_sampling_parameters() -> None:
    cold = MappingProxyType({"temperature": 0})
    assert request_for("a", cold, {})["sampling_params"] == {"temperature": 0}
    assert request_for(("a", "b"), (cold, cold), {})["sampling_params"] == [{"temperature": 0}] * 2


@pytest.mark.parametrize("prompt", [None, 5, b"Who?", {"text": "Who?"}, {"Who?"}])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    kind = type(prompt).__name__
    with pytest.raises(BadRequest, match=f"prompt must be a text, .* and is a {kind}"):
        request_for(prompt, None, {})


@pytest.mark.parametrize("number", ["1", 1.0, True, None])
def test_what_is_no_number_is_refused(number: object) -> None:
    with pytest.raises(BadRequest, match="at_least must be a whole number"):
        check_whole_number("at_least", number)
