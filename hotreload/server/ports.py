"""All the server needs of the rest of the daemon, as shapes; nothing here is implemented."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from hotreload.core.way_in.admission import UNCONDITIONAL, Conditions
from hotreload.json_fields import Fields
from hotreload.types import Lease, Staged


class Preparer[P](Protocol):
    """Something that makes requests ready for any engine. P is the type of a request made ready."""

    @property
    def encodes_as(self) -> str:
        """The name of how it encodes: an `Encoder` of this name encodes alike. Empty: none does."""
        ...

    async def prepare(self, request: Mapping[str, Any]) -> P:
        """Check a request in the engine's own schema and encode its prompts, off the loop.

        Beside that schema it takes `messages`, a chat for the model's template, with
        `template_args`, and `copies`, how often each prompt is to be answered. With `text_at_end`
        of a stream only the last piece of each answer has its text. A seed that `seed_is_a_wish`
        says is one is left out where the engine ignores seeds. With `tools` for the
        template each answer has `tool_calls`: the `name` and `arguments` of each call so far, which
        is no part of its text. `tool_choice` is `auto`, `required` or, for a single call, `one`.
        BadRequest names the field at fault.
        """
        ...

    async def tokenize(self, asked: Mapping[str, Any]) -> list[list[int]]:
        """Encode each of the texts in `text`, or the chat in `messages`, by the engine's tokenizer.

        The other fields are `add_special_tokens`, true by default, for texts, and `template_args`
        for a chat. It may be longer than a prompt may be, though not without end; BadRequest.
        """
        ...

    async def detokenize(self, ids: Sequence[list[int]], *, skip_special: bool) -> list[str]:
        """Decode each list of ids; BadRequest names one that is not in the vocabulary."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Return what runs, and on what, under upstream's names."""
        ...


class Encoder(Protocol):
    """Something that encodes prompts as an engine does, in a process that has none."""

    @property
    def name(self) -> str:
        """The name of how it encodes, as the engine has it that does it alike."""
        ...

    async def encode(self, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The request with ids in the place of texts, or of a chat; None if only an engine can.

        All of it is checked as that engine would, whose refusals it raises.
        """
        ...

    def make_texts(self, request: Mapping[str, Any]) -> "AnswerTexts":
        """Make what has the texts of the answers to a request that was encoded here."""
        ...


class AnswerTexts(Protocol):
    """The texts of the answers to one request, which asked the engine for theirs at the end."""

    def add_text(self, piece: dict[str, Any]) -> dict[str, Any]:
        """The newest piece of one of the answers, with its text."""
        ...


class AnsweringEngine[P](Preparer[P], Protocol):
    """An engine, as far as it answers a request that was let in."""

    def generate(
        self, prepared: P, weights: Staged | None = None
    ) -> AsyncGenerator[Fields | list[Fields], None]:
        """Yield answers in the engine's own schema; closed or cancelled, it aborts the generation.

        All of them are made by these weights of the lease, from start to end; None: the live ones.
        Not streamed: one item, which is a list for a batch. Streamed: one object a chunk with the
        whole `text` so far, and in a batch its `index`. BadRequest comes before any item.
        """
        ...

    def askable(self, prepared: P) -> Mapping[int, Sequence[int]]:
        """Return the ids of each prompt, by the index of its answer, that can be asked unseen.

        Those are left out for which there is no room with so many others.
        """
        ...

    async def checksums(self) -> dict[str, int]:
        """Compute the checksum of each live leaf now."""
        ...

    async def first_values(self, name: str, most: int) -> list[Any]:
        """Show the first numbers, or rows, of a live leaf, or of a checkpoint's tensor.

        BadRequest when nothing is called so. An engine over several hosts shows none.
        """
        ...

    async def abort_asked(self, rid: str | None) -> int:
        """End the answers to prompts that clients call so, or to all of theirs; return how many.

        Each ends with what it has and the finish reason `abort`, whose code is `asked`.
        """
        ...

    async def flush(self) -> int:
        """Forget every cached prefix that nothing under way uses; return how many tokens.

        What is under way goes on as it is. None are forgotten in an engine that cannot overlap,
        where a swap forgets all of them.
        """
        ...


class WayIn[P](Protocol):
    """The way by which requests to the model come in; it alone chooses the engine that answers."""

    def lend_preparer(self) -> AbstractContextManager[Preparer[P]]:
        """Lend what makes a request ready before it is let in; NotServing when none is let in."""
        ...

    @property
    def lets_in(self) -> bool:
        """True if requests are let in now, or will be after a swap."""
        ...

    def admit(
        self, asked: Conditions = UNCONDITIONAL
    ) -> AbstractAsyncContextManager[Lease[AnsweringEngine[P]]]:
        """Wait while holding, then yield what answers; NotServing when sealed, full or booting.

        An older generation than is asked for is waited out so long; NotNewEnough when in vain.
        GenerationGone when the weights that are asked for answer no more.
        """
        ...


class Gate[P](WayIn[P], Protocol):
    """The gate that every request passes."""

    def engines(self) -> Sequence[AnsweringEngine[P]]:
        """List all engines that answer; NotServing when there is none."""
        ...

    def inspect(self) -> AbstractAsyncContextManager[Lease[AnsweringEngine[P]]]:
        """Yield what answers to who looks at it: no admission holds him. NotServing as above."""
        ...

    def check_answers_here(self) -> None:
        """Raise NotServing if another host of the engine lets requests in."""
        ...

    async def wait_until_empty(self, within: float) -> None:
        """Wait until nobody is inside; DrainTimedOut when it takes longer."""
        ...


class Metrics(Protocol):
    """The metrics that the server counts in."""

    def request_finished(self, route: str, code: int, seconds: float) -> None:
        """Count a request that ended; 499 when the client left first, 503 when we cut it short."""
        ...

    def first_token(self, seconds: float) -> None:
        """Note the seconds from a request to the first chunk of its stream."""
        ...

    def tokens(self, count: int) -> None:
        """Count generated tokens."""
        ...

    def latest(self) -> Future[bytes]:
        """The page a scraper reads; many share the future, so nobody may cancel it."""
        ...
