"""Prompts: requests checked, texts encoded and chats rendered, on threads of their own.

A long text takes seconds, and a chat template is a program that came with the model.
"""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from hotreload.core.threads import all_left_behind, in_thread
from hotreload.engine.probe import Probe, request_for
from hotreload.engine.requests import Capabilities, Limits, Messages, Parsed, check_length, parse
from hotreload.errors import BadRequest, ConfigError, NotServing

THREADS = 4
"""More at a time would take the processor from those who run the engine."""
SECONDS = 30.0
"""So long one request may take; what takes longer is left behind."""
SHORT = 1000
"""Characters or ids that are encoded or checked at once: a thread would take longer, most of all
under load, when it has to wait for its turn."""
LEFT_AS = "the making of a prompt"
SCALARS = (str, int, float, bool)
A_PROGRAMS_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a template may raise beside its own errors."""


class Prompts:
    """Makes requests fit for the engine, with the tokenizer the engine booted with."""

    def __init__(self, tokenizer: Any, limits: Limits, can: Capabilities) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._can = can
        self._places = asyncio.Semaphore(THREADS)
        # The first call turns off what the tokenizer's file says of padding and truncation. From
        # then on nothing in it changes, and threads may share it.
        self._encode("")

    async def prepare(self, request: Mapping[str, Any]) -> Parsed:
        """The request as the engine takes it; BadRequest names the parameter at fault."""
        if _is_short(request):
            return self.parse(request)
        async with self._places:
            if all_left_behind().count(LEFT_AS) >= THREADS:
                words = "every thread that makes prompts hangs in one that took too long before"
                raise NotServing(words, code="prompts_hang", retry_after=SECONDS)
            return await self._in_time(request)

    def parse(self, request: Mapping[str, Any]) -> Parsed:
        """The same; blocks."""
        limits, can = self._limits, self._can
        return parse(request, limits=limits, can=can, encode=self._encode, chat=self._chat)

    def check_probes(self, probes: Sequence[Probe]) -> None:
        """A probe the engine cannot answer would reject every checkpoint."""
        for probe in probes:
            try:
                self.parse(request_for(probe))
            except BadRequest as fault:
                raise ConfigError(f"[[probe]] {probe.prompt!r} cannot be asked: {fault}") from fault

    async def _in_time(self, request: Mapping[str, Any]) -> Parsed:
        try:
            async with asyncio.timeout(SECONDS) as deadline:
                return await in_thread(
                    lambda cancel: self.parse(request), leave_as=LEFT_AS, is_read=False
                )
        except TimeoutError:
            if not deadline.expired():
                raise
            raise BadRequest(f"the prompt was not encoded within {SECONDS:g} s") from None

    def _encode(self, text: str) -> list[int]:
        """The ids of a text, as upstream's tokenizer manager makes them."""
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def _chat(self, messages: Messages, arguments: Mapping[str, Any]) -> list[int]:
        """The ids of a chat, by the template of the model."""
        if not getattr(self._tokenizer, "chat_template", None):
            raise BadRequest(
                "messages: this model's tokenizer has no chat template; ask /v1/completions, or "
                "serve a model whose tokenizer_config.json has a chat_template",
                code="no_chat_template",
                param="messages",
            )
        self._check_arguments(arguments)
        text = self._rendered(messages, arguments)
        check_length("messages", text, self._limits)
        # Special tokens stand in the template.
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _rendered(self, messages: Messages, arguments: Mapping[str, Any]) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=True,
                **arguments,
            )
        except (TemplateError, *A_PROGRAMS_FAULTS) as fault:
            raise BadRequest(
                f"messages: the chat template of this model refuses them: {fault}",
                code="chat_template",
                param="messages",
            ) from fault
        return text

    def _check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """They are for the template; what the tokenizer itself takes, a client must not set."""
        own = inspect.signature(self._tokenizer.apply_chat_template).parameters
        for name, value in arguments.items():
            if name in own:
                words = f"{name} is the server's to decide"
            elif not isinstance(value, SCALARS):
                words = f"{name[:60]} must be a string, a number, true or false"
            else:
                continue
            raise BadRequest(f"template_args: {words}", param="template_args")


def _is_short(request: Mapping[str, Any]) -> bool:
    """Whether its prompts take well under a millisecond; a template may always take long."""
    if request.get("messages") is not None:
        return False
    prompts = (request.get("text"), request.get("input_ids"))
    return sum(_size(prompt) for prompt in prompts) <= SHORT


def _size(prompt: Any) -> int:
    if isinstance(prompt, list):
        return len(prompt) + sum(len(each) for each in prompt if isinstance(each, str | list))
    return len(prompt) if isinstance(prompt, str) else 0
