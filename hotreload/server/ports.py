"""The protocols of all that the server needs from the rest of the daemon, and of its features."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import APIRouter
from starlette.requests import Request

from hotreload.core.way_in.admission import UNCONDITIONAL, Conditions
from hotreload.json_fields import Fields
from hotreload.types import Lease, Staged


class Encoder(Protocol):
    """Encodes prompts as an engine does, in a process without an engine."""

    @property
    def name(self) -> str:
        """The encoder's name, equal to `encodes_as` of an engine that encodes alike."""

    async def encode(self, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the request with ids in place of texts or chat; None if only the engine can.

        It checks the request as the engine does, and raises the same refusals.
        """

    def make_texts(self, request: Mapping[str, Any]) -> "AnswerTexts":
        """Return the maker of the texts of the answers to a request that was encoded here."""


class AnswerTexts(Protocol):
    """Makes the texts of the answers to one request from their tokens."""

    def add_text(self, piece: dict[str, Any]) -> dict[str, Any]:
        """Return the piece, which is an answer's newest, with its text."""


class ClientAnswers[P](Protocol):
    """Prepares requests, and answers those that the gate has admitted.

    P is the type of a prepared request.
    """

    @property
    def encodes_as(self) -> str:
        """The name of the encoder: an `Encoder` of this name encodes alike. Empty if none does."""

    async def prepare(self, request: Mapping[str, Any]) -> P:
        """Check a request in the engine's schema and encode its prompts, outside the loop.

        The request may have fields beside that schema. `messages` is a chat for the model's
        template, with `template_args`. `copies` is the number of answers to each prompt. With
        `text_at_end` only the last piece of a stream has the text. With `seed_is_a_wish` the seed
        is ignored by an engine that has no seeds. With `tools` each answer has `tool_calls`: the
        `name` and `arguments` of each call so far, which are not in its text. `tool_choice` is
        `auto`, `required` or, for a single call, `one`. BadRequest names the field at fault.
        """

    async def tokenize(self, asked: Mapping[str, Any]) -> list[list[int]]:
        """Encode each of the texts in `text`, or the chat in `messages`, by the engine's tokenizer.

        The other fields are `add_special_tokens`, true by default, for texts, and `template_args`
        for a chat. A text may be longer than a prompt, up to a limit; then BadRequest.
        """

    async def detokenize(self, ids: Sequence[list[int]], *, skip_special: bool) -> list[str]:
        """Decode each list of ids; BadRequest names one that is not in the vocabulary."""

    def generate(
        self, prepared: P, weights: Staged | None = None
    ) -> AsyncGenerator[Fields | list[Fields], None]:
        """Yield the answers in the engine's schema; closing the generator aborts them.

        The lease's `weights` make them from start to end; None means the live weights. Without
        `stream` there is one item, a list for a batch. With `stream` each item is one answer with
        its whole `text` so far, and in a batch its `index`. BadRequest comes before any item.
        """

    async def abort_asked(self, rid: str | None) -> int:
        """Abort the clients' requests with this id, or all if None; return their number.

        Each answer ends with its text so far and the finish reason `abort`, whose code is `asked`.
        """


class ReadableWeights(Protocol):
    """The live weights, for requests that read them."""

    async def checksums(self) -> dict[str, int]:
        """Compute the checksum of each live leaf now."""

    async def first_values(self, name: str, most: int) -> list[Any]:
        """Return the first numbers, or rows, of a live leaf, or of a checkpoint's tensor.

        BadRequest if no leaf or tensor has the name, and on an engine over several hosts.
        """


class PrefixCaches(Protocol):
    """The cached prefixes of prompts in an engine."""

    async def flush(self) -> int:
        """Drop every cached prefix that no running request uses; return the number of tokens.

        Running requests go on unchanged. An engine that cannot overlap drops none here: its swaps
        drop all.
        """


class Replays[P](Protocol):
    """The choice of requests that can be asked again."""

    def askable(self, prepared: P) -> Mapping[int, Sequence[int]]:
        """Return the token ids of each prompt that can be replayed, by the index of its answer.

        Prompts that do not fit beside many others are left out.
        """


class AnsweringEngine[P](Protocol):
    """An engine, as far as requests need it."""

    @property
    def answers(self) -> ClientAnswers[P]:
        """Prepares requests and answers them."""

    @property
    def weights(self) -> ReadableWeights:
        """The live weights."""

    @property
    def switch(self) -> PrefixCaches:
        """The cached prefixes."""

    @property
    def unseen(self) -> Replays[P]:
        """Says which requests can be replayed."""

    def facts(self) -> Mapping[str, Any]:
        """Return the model, devices and settings of the engine, under upstream's names."""


class Admitter[P](Protocol):
    """Admits requests to the model and chooses the engine that answers each."""

    def lend_engine(self) -> AbstractContextManager[AnsweringEngine[P]]:
        """Lend an engine to encode and validate a request before admission.

        NotServing if no request will be admitted.
        """

    @property
    def lets_in(self) -> bool:
        """True if requests are admitted now, or will be after a swap."""

    def admit(
        self, asked: Conditions = UNCONDITIONAL
    ) -> AbstractAsyncContextManager[Lease[AnsweringEngine[P]]]:
        """Wait until the gate is open, and yield a lease on an engine and its weights.

        NotServing if the gate is sealed or full, or the engine still starts. NotNewEnough if the
        wanted generation does not come in time. GenerationGone if the wanted weights no longer
        answer.
        """


class Entrance[P](Admitter[P], Protocol):
    """The entrance that every request passes."""

    def engines(self) -> Sequence[AnsweringEngine[P]]:
        """List all engines that answer; NotServing when there is none."""

    def inspect(self) -> AbstractAsyncContextManager[Lease[AnsweringEngine[P]]]:
        """Lease an engine to read from it, also during a pause. NotServing as for `admit`."""

    def check_answers_here(self) -> None:
        """Raise NotServing if another host of the engine admits the requests."""

    async def wait_until_empty(self, within: float) -> None:
        """Wait until no request is inside; DrainTimedOut if that takes longer than `within`."""


class OtherProcess:
    """Another process, which answers some of the requests that this one accepts; as it is, none."""

    def is_for(self, head: bytes) -> bool:
        """True if that process answers requests that begin with these bytes."""
        return False

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        """Give that process a connection and its unanswered bytes; False if it takes none now.

        OSError where this process cannot answer the request either.
        """
        return False

    def make_room(self, *, is_local: bool) -> bool:
        """Have that process close an idle connection; False if it has none."""
        return False

    def shut_down(self) -> None:
        """Have that process answer the requests it has, and accept no more."""

    @property
    def is_shut_down(self) -> bool:
        """True if this process need not wait for answers of that one."""
        return True


class Metrics(Protocol):
    """The metrics that the server updates."""

    def request_finished(self, route: str, code: int, seconds: float) -> None:
        """Count a request that ended; code 499 if the client left, 503 if the server cut it off."""

    def first_token(self, seconds: float) -> None:
        """Record the seconds from a request to the first chunk of its stream."""

    def tokens(self, count: int) -> None:
        """Count generated tokens."""


class MetricsPage(Metrics, Protocol):
    """The metrics, and their page."""

    def latest(self) -> Future[bytes]:
        """Return the page for a scraper. Requests share the future: do not cancel it."""


Admit = Callable[[Request], Awaitable[None]]
"""Returns if a request may use the admin routes, and raises Refused if not."""


def make_no_routes(entrance: Entrance[Any], admission: Admit) -> APIRouter:
    """Return an empty router."""
    return APIRouter()


@dataclass(frozen=True, slots=True)
class FeatureRoutes:
    """The routes of one feature, and their part of `GET /openapi.json`."""

    make: Callable[[Entrance[Any], Admit], APIRouter] = make_no_routes
    """Builds the router; routes that change something depend on the check of administrators."""
    paths: frozenset[str] = frozenset()
    """The paths by which their requests are counted."""
    adds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The types of fields that the feature adds, by the names of the kernel's documents."""
