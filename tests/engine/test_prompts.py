"""Prompts are checked, encoded and rendered beside the loop; chats by the model's own template."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from hotreload.behaviour import HEARD_ANSWER, NOTED, HeardRequest, Question
from hotreload.engine.answering import prompts, requests
from hotreload.engine.answering.canaries import Canaries
from hotreload.engine.answering.probe import Probe
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.answering.sampling_params import GRAMMARS
from hotreload.engine.answering.unseen import (
    MOST_TOKENS,
    as_items,
    in_batches,
    largest_batch,
)
from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.errors import BadRequest, ConfigError, NotServing, ProbeFailed
from hotreload.threads import left_behind, list_left_behind
from hotreload.tiny import write_tiny
from hotreload.tiny.sayings import END_ID, PAD_ID
from tests.waiting import turn_until

LIMITS = EngineLimits(vocabulary=2000, input_tokens=5000, total_tokens=5120)
SAMPLING = frozenset({"temperature", "max_new_tokens", "sampling_seed"}) | GRAMMARS.keys()
CAN = Capabilities(logprobs=False, grammars=False, seeds=True, sampling=SAMPLING)
HELLO = [{"role": "user", "content": "hello"}]
LONG = "a" * (prompts.SHORT_PROMPT + 1)
CHAT: dict[str, Any] = {"messages": HELLO, "sampling_params": {}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer_of(write_tiny(tmp_path_factory.mktemp("model") / "tiny"))


def tokenizer_of(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def with_template(folder: Path, template: str | None) -> Any:
    write_tiny(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer_of(folder)


class Slow:
    """A tokenizer that finishes no text before it is told to."""

    def __init__(self, tokenizer: Any) -> None:
        self.may_end = threading.Event()
        self.running = 0
        self.texts = self.characters = 0
        self._tokenizer = tokenizer

    def __call__(self, text: str, **options: Any) -> Any:
        if text:
            self.texts += 1
            self.characters += len(text)
            self.running += 1
            assert self.may_end.wait(30)
            self.running -= 1
        return self._tokenizer(text, **options)


async def until(slow: Slow, running: int) -> None:
    """A thread has no event of the loop."""
    await turn_until(lambda: slow.running == running, pause=0.001)


async def test_the_loop_turns_while_a_long_text_is_encoded(tokenizer: Any) -> None:
    slow = Slow(tokenizer)
    preparing = asyncio.create_task(Prompts(slow, LIMITS, CAN).prepare({"text": [LONG, "b"]}))
    await until(slow, 1)  # so the loop turns, for it was here that this was seen
    slow.may_end.set()
    parsed = await preparing
    assert [tokenizer.decode(item.input_ids) for item in parsed.items] == [LONG, "b"]


async def test_so_many_are_encoded_at_a_time_and_the_rest_wait(tokenizer: Any) -> None:
    slow = Slow(tokenizer)
    front = Prompts(slow, LIMITS, CAN)
    asking = [
        asyncio.create_task(front.prepare({"text": LONG})) for _ in range(prompts.THREADS + 3)
    ]
    await until(slow, prompts.THREADS)
    assert slow.running == prompts.THREADS
    slow.may_end.set()
    prepared = await asyncio.gather(*asking)
    assert {tokenizer.decode(parsed.items[0].input_ids) for parsed in prepared} == {LONG}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotreload.engine.answering.crews.CREW_SECONDS", 0.05)
    monkeypatch.setattr("hotreload.threads.LEAVE_AFTER", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_prompts_that_hang_are_refused_and_never_more_threads_than_a_few(
    tokenizer: Any,
) -> None:
    slow = Slow(tokenizer)
    front = Prompts(slow, LIMITS, CAN)
    asking = [front.prepare({"text": LONG}) for _ in range(prompts.THREADS)]
    refusals = await asyncio.gather(*asking, return_exceptions=True)
    assert {str(refusal) for refusal in refusals} == {
        "the making of a prompt took longer than 0.05 s"
    }
    with pytest.raises(NotServing, match="every thread for the making of a prompt hangs"):
        await front.prepare(CHAT)
    assert slow.running == prompts.THREADS
    assert left_behind() is None, "no read hangs: checkpoints may be read"
    slow.may_end.set()
    while list_left_behind():  # noqa: ASYNC110 the threads have only to return
        await asyncio.sleep(0.001)
    with pytest.raises(BadRequest, match="at least one token"):
        await front.prepare({"text": [LONG, ""]})


@pytest.mark.usefixtures("impatient")
async def test_what_was_given_up_encodes_nothing_more(tokenizer: Any) -> None:
    slow = Slow(tokenizer)
    with pytest.raises(BadRequest, match="took longer"):
        await Prompts(slow, LIMITS, CAN).prepare({"text": [LONG] * 5})
    slow.may_end.set()
    while list_left_behind():  # noqa: ASYNC110 the thread has only to return
        await asyncio.sleep(0.001)
    assert slow.texts == 1


async def test_normal_prompts_do_not_wait_for_long_ones(tokenizer: Any) -> None:
    slow = Slow(tokenizer)
    front = Prompts(slow, EngineLimits(2000, 10**5, 10**5), CAN)
    long = [asyncio.create_task(front.prepare({"text": "a" * 70_000})) for _ in range(5)]
    await until(slow, prompts.THREADS)
    normal = asyncio.create_task(front.prepare({"text": LONG}))
    await until(slow, prompts.THREADS + 1)
    slow.may_end.set()
    assert len(await asyncio.gather(normal, *long)) == 6


async def test_a_text_that_is_too_long_is_encoded_only_so_far(tokenizer: Any) -> None:
    seen = Slow(tokenizer)
    seen.may_end.set()
    with pytest.raises(BadRequest, match="more than 16320 tokens, the engine") as caught:
        await Prompts(seen, LIMITS, CAN).prepare({"text": "hello and " * 12_000})
    assert caught.value.code == "context_length_exceeded"
    assert seen.characters < 50_000


async def test_a_prompt_that_is_too_long_ends_the_whole_batch_before_the_next(
    tokenizer: Any,
) -> None:
    seen = Slow(tokenizer)
    seen.may_end.set()
    with pytest.raises(BadRequest, match="tokens, the engine takes at most 4999"):
        await Prompts(seen, LIMITS, CAN).prepare({"text": ["漢" * 20_000] * 100})
    assert seen.texts <= 2
    with pytest.raises(BadRequest, match="has 163841 characters"):
        await Prompts(seen, LIMITS, CAN).prepare({"text": ["hello", "a" * 163_841]})
    assert seen.texts <= 2, "the lengths of all are looked at before the first is encoded"


async def test_what_is_looked_at_piece_by_piece_and_fits_is_encoded_as_a_whole(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "USUAL_TOKEN", 0)
    seen = Slow(tokenizer)
    seen.may_end.set()
    text = "hello " * 4000
    parsed = await Prompts(seen, EngineLimits(2000, 10**5, 10**5), CAN).prepare({"text": text})
    assert parsed.items[0].input_ids == tokenizer(text)["input_ids"]
    assert seen.texts == 3


async def test_a_chat_that_its_template_makes_too_long_is_not_encoded(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path / "m", "{{ messages[0]['content'] * 100000 }}")
    with pytest.raises(BadRequest, match="messages: has 500000 characters"):
        await Prompts(tokenizer, LIMITS, CAN).prepare(CHAT)


async def test_a_short_text_is_encoded_at_once(tokenizer: Any) -> None:
    slow = Slow(tokenizer)
    slow.may_end.set()
    preparing = Prompts(slow, LIMITS, CAN).prepare({"text": ["a", "b"]})
    with pytest.raises(StopIteration) as done:
        preparing.send(None)
    assert len(done.value.value.items) == 2


async def test_ids_are_those_the_tokenizer_gives_special_tokens_and_all(tokenizer: Any) -> None:
    text = "Grüße <|end|> \0 and 漢字"
    parsed = await Prompts(tokenizer, LIMITS, CAN).prepare({"text": text})
    assert parsed.items[0].input_ids == tokenizer(text)["input_ids"]


async def test_a_chat_is_rendered_by_the_template_of_the_model(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    parsed = await Prompts(tokenizer, LIMITS, CAN).prepare({**CHAT, "messages": messages})
    (item,) = parsed.items
    assert tokenizer.decode(item.input_ids) == "system: Be brief.\nuser: hello\nassistant: "


async def test_special_tokens_stand_only_where_the_template_puts_them(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path / "m", "{{ messages[0]['content'] }}<|end|>")
    plain = tokenizer("hello")["input_ids"]
    begins_with_pad = TemplateProcessing(single="<|pad|> $A", special_tokens=[("<|pad|>", PAD_ID)])
    tokenizer.backend_tokenizer.post_processor = begins_with_pad
    front = Prompts(tokenizer, LIMITS, CAN)
    assert (await front.prepare({"text": "hello"})).items[0].input_ids == [PAD_ID, *plain]
    assert (await front.prepare(CHAT)).items[0].input_ids == [*plain, END_ID]


async def test_an_answer_to_a_chat_may_fill_the_context(tokenizer: Any) -> None:
    front = Prompts(tokenizer, LIMITS, CAN)
    (item,) = (await front.prepare(CHAT)).items
    assert len(item.input_ids) + item.sampling_params["max_new_tokens"] == LIMITS.total_tokens - 1
    asked = {**CHAT, "sampling_params": {"max_new_tokens": 3}}
    assert (await front.prepare(asked)).items[0].sampling_params == {"max_new_tokens": 3}


async def test_what_the_client_says_for_the_template_reaches_it(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path / "m", "{{ 'deep' if thinking else 'flat' }}")
    front = Prompts(tokenizer, LIMITS, CAN)
    deep = await front.prepare({**CHAT, "template_args": {"thinking": True}})
    flat = await front.prepare(CHAT)
    said = [tokenizer.decode(parsed.items[0].input_ids) for parsed in (deep, flat)]
    assert said == ["deep", "flat"]


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "tools", "return_tensors"])
async def test_a_client_brings_no_template_of_its_own(tokenizer: Any, name: str) -> None:
    with pytest.raises(BadRequest, match=f"{name} is the server's to decide") as caught:
        await Prompts(tokenizer, LIMITS, CAN).prepare({**CHAT, "template_args": {name: "x"}})
    assert caught.value.param == "template_args"


async def test_without_a_template_a_chat_is_refused_with_what_to_do(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path / "m", None)
    with pytest.raises(BadRequest, match="no chat template; ask /v1/completions") as caught:
        await Prompts(tokenizer, LIMITS, CAN).prepare(CHAT)
    assert (caught.value.code, caught.value.param) == ("no_chat_template", "messages")


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[5]['content'] }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 // 0 }}",
        "{% for x in range(10 ** 9) %}{% endfor %}",
        "{{ unfinished",
    ],
)
async def test_a_template_that_fails_is_a_bad_request_and_no_fault_of_ours(
    tmp_path: Path, template: str
) -> None:
    tokenizer = with_template(tmp_path / "m", template)
    with pytest.raises(BadRequest, match="the chat template of this model refuses them") as caught:
        await Prompts(tokenizer, LIMITS, CAN).prepare(CHAT)
    assert caught.value.code == "chat_template"


async def test_a_chat_that_cannot_fit_is_not_rendered(tokenizer: Any) -> None:
    many = [{"role": "user", "content": ""}] * 200_000
    with pytest.raises(BadRequest, match="200000 characters are too many"):
        await Prompts(tokenizer, LIMITS, CAN).prepare({**CHAT, "messages": many})


async def test_copies_are_items_of_their_own_each_with_its_seed(tokenizer: Any) -> None:
    front = Prompts(tokenizer, LIMITS, CAN)
    ask = {"text": ["a", "b"], "copies": 2, "sampling_params": {"sampling_seed": 2**31 - 1}}
    parsed = await front.prepare(ask)
    said = [tokenizer.decode(item.input_ids) for item in parsed.items]
    assert said == ["a", "a", "b", "b"]
    seeds = [item.sampling_params["sampling_seed"] for item in parsed.items]
    assert seeds == [2**31 - 1, 1_000_002, 2**31 - 1, 1_000_002]
    assert parsed.is_batch
    one = await front.prepare({"text": "a", "copies": 1})
    assert not one.is_batch


def test_a_seed_that_would_be_ignored_is_refused(tokenizer: Any) -> None:
    cannot = Capabilities(logprobs=False, grammars=False, seeds=False, sampling=SAMPLING)
    ask = {"text": "a", "sampling_params": {"sampling_seed": 3}}
    with pytest.raises(BadRequest, match="enable_deterministic_sampling") as caught:
        Prompts(tokenizer, LIMITS, cannot).parse(ask)
    assert caught.value.param == "sampling_params.sampling_seed"


def test_a_seed_that_is_a_wish_is_left_out_where_it_would_be_ignored(tokenizer: Any) -> None:
    cannot = Capabilities(logprobs=False, grammars=False, seeds=False, sampling=SAMPLING)
    drawn = {"temperature": 1.0, "sampling_seed": 3}
    ask = {"text": "a", "sampling_params": drawn, "seed_is_a_wish": True}
    for can, wanted in ((cannot, {"temperature": 1.0}), (CAN, drawn)):
        assert Prompts(tokenizer, LIMITS, can).parse(ask).items[0].sampling_params == wanted


def test_a_seed_asks_for_nothing_where_nothing_is_drawn(tokenizer: Any) -> None:
    cannot = Capabilities(logprobs=False, grammars=False, seeds=False, sampling=SAMPLING)
    greedy = {"temperature": 0, "sampling_seed": 3}
    for can, wanted in ((cannot, {"temperature": 0}), (CAN, greedy)):
        parsed = Prompts(tokenizer, LIMITS, can).parse({"text": "a", "sampling_params": greedy})
        assert parsed.items[0].sampling_params == wanted


def test_a_probe_that_cannot_be_asked_is_a_fault_of_the_settings(tokenizer: Any) -> None:
    unsure = Probe("hi", 16, min_mean_logprob=-1.0)
    front = Prompts(tokenizer, LIMITS, CAN)
    with pytest.raises(ConfigError, match="cannot be asked: return_logprob"):
        Canaries([unsure], front)
    canaries = Canaries([Probe("hi", 16)], front)
    with pytest.raises(ConfigError, match="cannot be asked: return_logprob"):
        canaries.change([unsure])


async def test_probes_are_changed_as_a_whole_or_not_at_all(tokenizer: Any) -> None:
    """A longer one has no room where weights are proven: that was made for those of the start."""
    asked: list[str] = []

    async def generate(parsed: Any) -> Any:
        asked.append(tokenizer.decode(parsed.items[0].input_ids))
        yield {"text": "yes", "output_ids": [1], "meta_info": {}}

    canaries = Canaries([Probe("one two three", 16)], Prompts(tokenizer, LIMITS, CAN))
    with pytest.raises(ConfigError, match=r"room for \d+; restart hotreload for it"):
        canaries.change([Probe("one", 8), Probe("one two three", 17)])
    await canaries.ask(canaries.in_batches(), generate)
    canaries.change([Probe("one", 8), Probe("two", 8, contains="yes")])
    await canaries.ask(canaries.in_batches(), generate)
    assert [text.strip() for text in asked] == ["one two three", "one", "two"]
    canaries.change([Probe("one", 8, contains="no")])
    with pytest.raises(ProbeFailed, match="expected 'no' in it"):
        await canaries.ask(canaries.in_batches(), generate)


def test_probes_that_find_no_room_together_are_asked_one_after_the_other(tokenizer: Any) -> None:
    few, many = Probe("one two three", 16), [Probe("one", 8)] * 3
    canaries = Canaries([few], Prompts(tokenizer, LIMITS, CAN))
    canaries.change([few, *many])
    assert [len(batch) for batch in canaries.in_batches()] == [4]
    assert [*canaries.in_batches(lambda needs: sum(needs) <= canaries.room)] == [
        many[:2],
        [few],
        many[:1],
    ]


def test_what_is_asked_to_compare_weights_must_fit_in_the_context(tokenizer: Any) -> None:
    assert sum(largest_batch((), Prompts(tokenizer, LIMITS, CAN))) > 200
    with pytest.raises(BadRequest):
        largest_batch((), Prompts(tokenizer, EngineLimits(2000, 30, 40), CAN))


def test_a_question_of_a_corpus_that_cannot_be_asked_is_named_with_its_line(
    tokenizer: Any,
) -> None:
    prompts = Prompts(tokenizer, LIMITS, CAN)
    for question in (
        Question("one", LIMITS.total_tokens, place="prompts.jsonl: line 7"),
        Question("one " * 2000, 8, place="prompts.jsonl: line 7"),
    ):
        with pytest.raises(ConfigError, match=r"\[compare\] corpus: prompts.jsonl: line 7: cann"):
            largest_batch((question,), prompts)


def test_questions_are_put_together_that_find_rows_and_room(tokenizer: Any) -> None:
    prompts = Prompts(tokenizer, LIMITS, CAN)
    short = [Question("one", 9)] * 20
    needs = as_items(short, prompts)[0].needs
    room = 100 * needs
    long = Question("one", room)

    def batches(*asked: Question) -> list[int]:
        found = in_batches(as_items(asked, prompts), lambda needs: sum(needs) <= room)
        return [len(batch.request.items) for batch in found]

    assert batches(*short) == [16, 4]
    assert batches(*short[:3], long, *short[:2]) == [3, 1, 2]
    assert batches(long) == [1]
    assert batches() == []


def test_room_is_made_for_the_most_that_are_asked_together_and_not_for_all_that_is_long(
    tokenizer: Any,
) -> None:
    prompts, large = Prompts(tokenizer, LIMITS, CAN), LIMITS.total_tokens - 10
    built_in = largest_batch((), prompts)
    assert len(built_in) == 16
    assert len(largest_batch([Question("one", 200)] * 3, prompts)) == 16
    many = largest_batch([Question("one", large)] * 40, prompts)
    assert many == sorted(many)
    assert sum(many) <= MOST_TOKENS or len(many) == 1


def noted_of(tokenizer: Any, question: Question, tokens: int) -> int:
    """Places of an answer of so many tokens at which it is told what was expected."""
    (batch,) = in_batches(as_items([question], Prompts(tokenizer, LIMITS, CAN)), lambda needs: True)
    (item,) = batch.request.items
    step = tuple(np.zeros((1, *shape)) for shape in ((), (), (4,), (4,)))
    batch.along.noted[item.name] = [(step, 0)] * tokens
    ended = {"finish_reason": {"type": "length"}}
    (found,) = batch.read_answers([{"text": "", "output_ids": [7] * tokens, "meta_info": ended}])
    assert len(found.tokens) == tokens
    return len(found.expected)


def test_of_a_long_answer_the_beginning_alone_is_noted(tokenizer: Any) -> None:
    """A thousand long answers would take gigabytes else."""
    assert noted_of(tokenizer, Question("one", 40), 30) == NOTED


def test_of_what_weights_are_led_along_every_token_is_noted(tokenizer: Any) -> None:
    """Each of them costs a step; and no more than those, though a step more was under way."""
    heard = HeardRequest((1, 2), (7,) * HEARD_ANSWER)
    assert noted_of(tokenizer, heard.question, HEARD_ANSWER) == HEARD_ANSWER > NOTED
