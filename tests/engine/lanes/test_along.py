"""What is noted of a lane's steps: pieces of prompts, given answers, and answers of their own."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotreload.engine.answering.items import Item
from hotreload.engine.answering.unseen import UnseenBatch, UnseenItem
from hotreload.engine.lanes.along import LEAST, Along, PromptPart, note_along, parts_of
from hotreload.errors import AnswerNonfinite

VOCABULARY = 40


class Runner:
    """Makes of each token of a batch logits by which the token that comes after it is likeliest."""

    def __init__(self, *, is_newer: bool) -> None:
        self.mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
        self.is_newer = is_newer

    def forward(self, forward_batch: Any, logits_metadata: Any) -> Any:
        rows = np.asarray(forward_batch.input_ids)
        if forward_batch.forward_mode.is_extend():
            last = logits_metadata.logits_indices if self.is_newer else None
            if last is None:
                last = np.cumsum(logits_metadata.extend_seq_lens) - 1
            rows = rows[np.asarray(last)]
        logits = 9.0 * jax.nn.one_hot(jnp.asarray(rows) + 1, VOCABULARY)
        return SimpleNamespace(next_token_logits=logits), 0

    def step(self, along: Along, ids: list[int], lengths: list[int], *, is_prompt: bool) -> Any:
        """Return the likeliest token of each row that the sampler is handed."""
        self.along = along
        spec = jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
        where = jax.sharding.NamedSharding(self.mesh, spec)
        mode = SimpleNamespace(is_extend=lambda: is_prompt)
        batch = SimpleNamespace(input_ids=np.array(ids), forward_mode=mode)
        ends = np.cumsum(lengths) - 1
        metadata = SimpleNamespace(
            extend_seq_lens=jax.device_put(np.array(lengths, np.int32), where),
            logits_indices=jax.device_put(ends.astype(np.int32), where) if self.is_newer else None,
        )
        output, _ = self.forward(batch, metadata)
        return np.argmax(output.next_token_logits, axis=-1).tolist()


@pytest.fixture(params=[False, True])
def runner(request: pytest.FixtureRequest) -> Runner:
    made = Runner(is_newer=request.param)
    note_along(made)
    return made


def tops(along: Along, name: str) -> list[int]:
    return [int(np.asarray(each[3])[row][0]) for each, row in along.noted[name]]


def own(along: Along, name: str) -> list[float]:
    return [float(np.asarray(each[0])[row]) for each, row in along.noted[name]]


def test_all_places_of_a_given_answer_are_noted_in_the_steps_of_its_prompt(runner: Runner) -> None:
    """Its prompt is 1, 2 and its answer 3, 9, 4; beside it somebody answers to 20, 21."""
    along = Along({"led": (3, 9, 4)})
    along.note_launch([PromptPart("1.led", 0, 3, 4), PromptPart("1.free", 0, 1, 2)])
    assert runner.step(along, [1, 2, 3, 20, 0, 0], [3, 1, 0], is_prompt=True)[:2] == [4, 21]
    along.note_launch([PromptPart("1.led", 3, 4, 4), PromptPart("1.free", 1, 2, 2)])
    assert runner.step(along, [9, 21, 0, 0, 0, 0], [1, 1, 0], is_prompt=True)[:2] == [10, 22]
    along.note_launch([PromptPart("1.free", 1, 2, 2)])
    assert runner.step(along, [22, 0, 0], [], is_prompt=False)[0] == 23
    assert (tops(along, "led"), tops(along, "free")) == ([3, 4, 10], [22, 23])
    likeliest = -0.0048
    assert own(along, "free") == pytest.approx([likeliest] * 2, abs=1e-4)
    assert own(along, "led") == pytest.approx([likeliest, likeliest - 9, likeliest - 9], abs=1e-4)


def test_a_lane_of_clients_computes_as_ever(runner: Runner) -> None:
    assert runner.step(None, [1, 2, 20], [2, 1], is_prompt=True) == [3, 21]  # type: ignore[arg-type]


def test_a_request_is_computed_to_where_a_batch_takes_it() -> None:
    request = SimpleNamespace(
        rid="1.a", origin_input_ids=[1] * 9, output_ids=[], fill_ids=[1] * 7, extend_input_len=4
    )
    assert parts_of([request], is_prompt=True) == [PromptPart("1.a", 3, 7, 9)]
    assert parts_of([request], is_prompt=False) == [PromptPart("1.a", 8, 9, 9)]


def test_of_what_is_no_number_in_the_middle_nothing_is_made() -> None:
    sampling = {"max_new_tokens": 1}
    item = Item([1, 2, 3, 9], sampling, {}, None, name="0000")
    batch = UnseenBatch([UnseenItem(item, (3, 9, 4))])
    logits = jnp.full((4, VOCABULARY), LEAST)
    batch.along.note_launch([PromptPart("1.0000", 0, 4, 4)])
    batch.along.note_logits(logits)
    answer: Any = {"meta_info": {}, "output_ids": [7], "text": ""}
    (found,) = batch.read_answers([answer])
    assert (found.tokens, len(found.expected)) == ((3, 9, 4), 3)
    batch.along.noted.clear()
    batch.along.note_launch([PromptPart("1.0000", 0, 4, 4)])
    batch.along.note_logits(logits.at[2, 5].set(jnp.nan))
    with pytest.raises(AnswerNonfinite, match="NaN"):
        batch.read_answers([answer])
