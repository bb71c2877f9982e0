"""Checks requests, encodes texts and renders chats; what takes long does so on other threads.

A long text takes seconds, and a chat template is a program that came with the model.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hotreload.engine.answering.crews import Crew
from hotreload.engine.answering.grammars import Grammars
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.requests import (
    Encode,
    Messages,
    check_length,
    encode_within_limits,
    items_of,
    parse,
    telling_refusals,
    with_ids,
)
from hotreload.engine.answering.sampling_params import check_ids
from hotreload.engine.answering.tool_calls import ToolFormat
from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.errors import BadRequest, cut

THREADS = 2
"""Threads of each crew: more would take the processor from the engine's threads."""
SHORT_PROMPT = 1000
"""Up to how many characters or ids a request is prepared on the loop: a thread would take longer,
most of all under load, when it has to wait for its turn."""
IDS_A_CHARACTER = 16
"""The number of a client's ids that are checked in the time in which one character is encoded."""
LONG_PROMPT = 2**16
"""Beyond how many characters or ids a request goes to a crew of its own: long requests wait for
each other, and hold up no shorter one."""
SCALARS = (str, int, float, bool)
IsGivenUp = Callable[[], bool]
"""Returns True once no request waits for a piece of work any more."""
FAULTS_OF_A_TEMPLATE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that a template may raise beside its own."""


class Prompts:
    """Makes requests fit for the engine, with the tokenizer the engine booted with."""

    def __init__(
        self,
        tokenizer: Any,
        limits: EngineLimits,
        can: Capabilities,
        grammars: Grammars | None = None,
        calling: ToolFormat | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.limits = limits
        self.capabilities = can
        self._grammars = grammars
        self._calling = calling
        self._usual = Crew(THREADS, "the making of a prompt")
        self._long = Crew(THREADS, "the making of a long prompt")
        # The first call turns off what the tokenizer's file says of padding and truncation. From
        # then on nothing in the tokenizer changes, and threads may share it.
        self._encode("")

    async def prepare(self, request: Mapping[str, Any]) -> Parsed:
        """The request as the engine takes it; BadRequest names the parameter at fault."""
        parsed = await self._by_size(request, partial(self.parse, request))
        return parsed if self._grammars is None else await self._grammars.prepare_grammars(parsed)

    def parse(self, request: Mapping[str, Any], is_given_up: IsGivenUp = lambda: False) -> Parsed:
        """The same without its grammars; blocks, and ends soon after `is_given_up` says so."""
        calls = None
        if self._calling is not None:
            request, calls = self._calling.arrange(request)
        limits, can, encode = self.limits, self.capabilities, self._until(is_given_up)
        parsed = parse(request, limits=limits, can=can, encode=encode, chat=self._chat)
        return parsed if calls is None else replace(parsed, calls=calls)

    async def encode_texts(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The request with ids in the place of its texts, or its chat; BadRequest as `prepare`.

        All of it is checked: what `prepare` would refuse first is refused here, and first.
        """

        def check(is_given_up: IsGivenUp) -> Mapping[str, Any]:
            made = with_ids(request, self.limits, self._until(is_given_up), self._chat)
            items_of(made, limits=self.limits, can=self.capabilities)
            return made

        return await self._by_size(request, check)

    async def tokenize(self, asked: Mapping[str, Any]) -> list[list[int]]:
        """The ids of each text, or of a chat as the model is asked it; BadRequest says why not."""
        is_special = asked.get("add_special_tokens", True)

        def ids(is_given_up: IsGivenUp) -> list[list[int]]:
            if asked.get("messages") is not None:
                return [self._chat(asked["messages"], asked.get("template_args") or {}, None)]
            return [self._ids_of(text, is_special) for text in asked["text"]]

        return await self._by_size(asked, ids)

    async def detokenize(self, ids: Sequence[list[int]], *, skip_special: bool) -> list[str]:
        """The text of each list of ids; BadRequest names an id that there is not."""
        for each in ids:
            if each:
                check_ids("tokens", each, self.limits.vocabulary)

        def texts(is_given_up: IsGivenUp) -> list[str]:
            decode = self.tokenizer.decode
            return [str(decode(each, skip_special_tokens=skip_special)) for each in ids]

        return await self._by_size({"text": ids}, texts)  # an id takes as long as a character

    def close(self) -> None:
        """End what tries and compiles grammars."""
        if self._grammars is not None:
            self._grammars.close()

    async def _by_size[T](self, asked: Mapping[str, Any], work: Callable[[IsGivenUp], T]) -> T:
        """Do it on the loop when it is short, else in a thread of the crew for its size."""
        size = _size_of(asked)
        if size <= SHORT_PROMPT and not _takes_long(asked):
            return work(lambda: False)
        crew = self._usual if size <= LONG_PROMPT else self._long
        return await crew.run(lambda cancel: work(cancel.is_set))

    def _until(self, is_given_up: IsGivenUp) -> Encode:
        """Return an encoder of texts that stops once its request has left."""

        def encode(text: str) -> list[int]:
            if is_given_up():
                raise BadRequest("nobody waits for it any more")
            return self._encode(text)

        return encode

    def _encode(self, text: str) -> list[int]:
        """The ids of a text, as upstream's tokenizer manager makes them."""
        ids: list[int] = self.tokenizer(text)["input_ids"]
        return ids

    def _ids_of(self, text: str, is_special: bool) -> list[int]:
        check_length("text", text, self.limits)
        with telling_refusals():
            return self._encode(text) if is_special else self._encode_rendered(text)

    def _chat(self, messages: Messages, arguments: Mapping[str, Any], tools: Any) -> list[int]:
        """The ids of a chat, by the template of the model."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise BadRequest(
                "messages: this model's tokenizer has no chat template; ask /v1/completions, or "
                "serve a model whose tokenizer_config.json has a chat_template",
                code="no_chat_template",
                param="messages",
            )
        self._check_arguments(arguments)
        text = self._render(messages, arguments, tools)
        check_length("messages", text, self.limits)
        return encode_within_limits(text, self._encode_rendered, self.limits)

    def _encode_rendered(self, text: str) -> list[int]:
        """The ids of a text made by a template, which puts the special tokens in itself."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _render(self, messages: Messages, arguments: Mapping[str, Any], tools: Any) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=True,
                **({"tools": tools} if tools else {}),
                **arguments,
            )
        except (TemplateError, *FAULTS_OF_A_TEMPLATE) as fault:
            raise BadRequest(
                f"messages: the chat template of this model refuses them: {cut(str(fault), 300)}",
                code="chat_template",
                param="messages",
            ) from fault
        return text

    def _check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Let a client set arguments of the template, and none of the tokenizer's own."""
        own = inspect.signature(self.tokenizer.apply_chat_template).parameters
        for name, value in arguments.items():
            if name in own:
                words = f"{name} is the server's to decide"
            elif not isinstance(value, SCALARS):
                words = f"{cut(name)} must be a string, a number, true or false"
            else:
                continue
            raise BadRequest(f"template_args: {words}", param="template_args")


def _takes_long(request: Mapping[str, Any]) -> bool:
    """Say if a request may take long though its prompts are short; a template always may."""
    each_its_own = ("sampling_params", "token_ids_logprob")
    lists = any(isinstance(request.get(name), list) for name in each_its_own)
    return lists or request.get("messages") is not None


def _size_of(request: Mapping[str, Any]) -> int:
    messages = [message["content"] for message in request.get("messages") or ()]
    prompts = (request.get("text"), messages)
    return sum(map(_size, prompts)) + _size(request.get("input_ids")) // IDS_A_CHARACTER


def _size(prompt: Any) -> int:
    if isinstance(prompt, list):
        if prompt and isinstance(prompt[0], int):
            return len(prompt)
        return len(prompt) + sum(len(each) for each in prompt if isinstance(each, str | list))
    return len(prompt) if isinstance(prompt, str) else 0
