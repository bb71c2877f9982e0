"""Gets answers from a running engine, and aborts each request whose client has left.

Knows upstream's tokenizer manager; requests were checked before they come here.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from hotreload.engine.answering.answer_text import AnswerText
from hotreload.engine.answering.grammars import could_not_follow
from hotreload.engine.answering.items import Item, Parsed
from hotreload.engine.lanes.lane import in_lane, lane_of
from hotreload.engine.upstream import patches
from hotreload.engine.upstream.outlet import Outlet
from hotreload.engine.upstream.thread.nonfinite_logits import check_finite
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.errors import BadRequest, cut
from hotreload.threads import run_to_end
from hotreload.types import AS_ASKED, FOR_A_SWAP

Answer = dict[str, Any]

ABORT_AGAIN_SECONDS = 1.0
ENDED_FOR_A_SWAP: Mapping[str, Any] = {
    "code": FOR_A_SWAP,
    "message": "ended early for a swap of the weights: it ran longer than [reload] finish_timeout "
    "(or drain_timeout, where swaps drain), and on_drain_timeout says not to wait; ask again",
}
ENDED_AS_ASKED: Mapping[str, Any] = {
    "message": "Aborted",
    "status_code": None,
    "err_type": None,
    "code": AS_ASKED,
}
"""SGLang's words for it, and our code."""

NO_TOKENS: Mapping[str, Any] = {"type": "length", "length": 0}
"""The end of an answer that was to have none."""


class Answers:
    """Hands requests to the tokenizer manager, under ids of our own.

    A client's id is no key: two clients may choose the same, and upstream aborts `ab` with `a`.
    Ours say in which lane a request is answered.
    """

    def __init__(self, tokenizer_manager: Any, watch: EngineWatch, outlet: Outlet) -> None:
        from sgl_jax.srt.managers.io_struct import AbortReq, BatchTokenIDOut
        from sgl_jax.srt.sampling.sampling_params import SamplingParams

        self._manager = tokenizer_manager
        self._watch = watch
        self._asked_as: dict[str, str | None] = {}
        """The client's id of each of its prompts under way, by our own; a probe is no client's."""
        self._ended_by_us: dict[str, Mapping[str, Any]] = {}
        """The words for those that we end."""
        watch.on_loss = self._wake_all
        # Upstream would add signal handlers to our loop, and kill the process at SIGTERM.
        tokenizer_manager.no_create_loop = True
        patches.abort_safely(tokenizer_manager, AbortReq)
        patches.wait_without_timers(tokenizer_manager)
        patches.look_by_bytes(SamplingParams)
        self._tokens_kind: type = BatchTokenIDOut
        self._outlet = outlet
        outlet.begin(self._hear)

    @property
    def under_way(self) -> int:
        """Number of prompts that the engine is busy with."""
        return len(self._manager.rid_to_state)

    def send(self, message: Any) -> None:
        """Send a message to the scheduler thread."""
        self._manager.send_to_scheduler.send_pyobj(message)

    def abort(self, is_meant: Callable[[int], bool]) -> None:
        """End every answer under way in the lanes that are meant with the text it has so far."""
        running = self._manager.rid_to_state
        self._end([rid for rid in running if is_meant(lane_of(rid))], ENDED_FOR_A_SWAP)

    def abort_asked(self, rid: str | None) -> int:
        """End the answers to prompts that clients call so, or to all of theirs; how many."""
        asked = [own for own, theirs in self._asked_as.items() if rid in (None, theirs)]
        self._end(asked, ENDED_AS_ASKED)
        return len(asked)

    def _end(self, meant: Iterable[str], why: Mapping[str, Any]) -> None:
        for rid in meant:
            self._ended_by_us.setdefault(rid, why)
            self._manager.abort_request(rid)

    async def generate(self, parsed: Parsed, lane: int) -> AsyncGenerator[Answer | list[Answer]]:
        """The answers as upstream forms them: whole, in a list for a batch, or piece by piece."""
        self._watch.check()
        if not parsed.is_batch:
            async with aclosing(self._answer(parsed.items[0], lane, parsed)) as answers:
                async for answer in answers:
                    yield answer
        elif parsed.stream:
            async with aclosing(self._merge(parsed, lane)) as answers:
                async for answer in answers:
                    yield answer
        else:
            yield await self._all(parsed, lane)

    async def close(self) -> None:
        """Stop hearing; answers still awaited never come."""
        self._outlet.end()

    async def _answer(self, item: Item, lane: int, parsed: Parsed) -> AsyncGenerator[Answer]:
        from sgl_jax.srt.managers.io_struct import GenerateReqInput

        rid = in_lane(lane, item.name or uuid.uuid4().hex)
        if not item.is_probe:
            self._asked_as[rid] = item.rid
        request = GenerateReqInput(
            input_ids=item.input_ids,
            sampling_params=item.sampling_params,
            stream=parsed.stream,
            rid=rid,
            **item.logprobs,
        )
        pieces = self._manager.generate_request(request, None)
        wording = AnswerText(self._manager.tokenizer, item.input_ids, item.sampling_params)
        try:
            while (piece := await self._next(pieces)) is not None:
                answer = _for_client(piece, item.rid)
                if item.is_prompt_alone:
                    answer = _without_tokens(answer["meta_info"])
                if not (parsed.text_at_end and answer["meta_info"]["finish_reason"] is None):
                    answer = wording.with_text(answer)
                check_finite(answer)
                if (why := self._ended_by_us.get(rid)) is not None:
                    _say_why(answer["meta_info"], why)
                elif item.grammar is not None and _is_aborted(answer["meta_info"]):
                    raise could_not_follow(item.grammar)
                yield answer
        finally:
            self._asked_as.pop(rid, None)
            self._ended_by_us.pop(rid, None)
            await run_to_end(self._leave(pieces, rid))

    async def _next(self, pieces: AsyncIterator[Answer]) -> Answer | None:
        self._watch.check()
        try:
            piece = await anext(pieces, None)
        except (ValueError, TypeError, AssertionError) as fault:
            self._watch.check()
            raise BadRequest(cut(str(fault), 300)) from fault
        self._watch.check()
        return piece

    async def _leave(self, pieces: Any, rid: str) -> None:
        """Return only when the engine has forgotten the request: a drain counts on it."""
        await pieces.aclose()
        states = self._manager.rid_to_state
        while (state := states.get(rid)) is not None and self._watch.reason is None:
            self._manager.abort_request(rid)
            state.event.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(ABORT_AGAIN_SECONDS):
                    await state.event.wait()
        states.pop(rid, None)

    async def _all(self, parsed: Parsed, lane: int) -> list[Answer]:
        tasks = [asyncio.create_task(self._whole(item, lane, parsed)) for item in parsed.items]
        try:
            return [await task for task in tasks]
        finally:
            await run_to_end(all_ended(tasks))

    async def _whole(self, item: Item, lane: int, parsed: Parsed) -> Answer:
        async with aclosing(self._answer(item, lane, parsed)) as answers:
            return await anext(answers)

    async def _merge(self, parsed: Parsed, lane: int) -> AsyncGenerator[Answer]:
        """The pieces of all answers as they come, each with the index of its prompt."""
        newest = Newest(len(parsed.items))
        tasks = [
            asyncio.create_task(self._feed(self._answer(item, lane, parsed), index, newest))
            for index, item in enumerate(parsed.items)
        ]
        try:
            async for piece in newest.pieces():
                yield piece
        finally:
            await run_to_end(all_ended(tasks))

    async def _feed(self, pieces: AsyncGenerator[Answer], index: int, into: "Newest") -> None:
        try:
            async with aclosing(pieces):
                async for answer in pieces:
                    into.put(index, {**answer, "index": index})
            into.end()
        except Exception as fault:
            into.fail(fault)

    def _hear(self, message: Any) -> None:
        """Have upstream note its scheduler's messages; its own loop over them ends the process."""
        try:
            if isinstance(message, self._tokens_kind):
                self._list_new_tokens(message)
            self._manager._result_dispatcher(message)
        except Exception as fault:
            self._watch.lose(f"handling answers failed: {type(fault).__name__}: {fault}")

    def _list_new_tokens(self, batch: Any) -> None:
        """Put the new tokens where they stand if upstream has no tokenizer: it wants no text then.

        As many as are counted: with the end token, and those that a text does not show. They stand
        at the end of those to be decoded, of which the first begin with the end of the prompt.
        """
        states, batch.output_ids = self._manager.rid_to_state, []
        told = zip(batch.rids, batch.decode_ids, batch.completion_tokens, strict=True)
        for rid, ids, count in told:
            state = states.get(rid)
            known = len(state.output_ids) if state is not None else 0
            batch.output_ids.append(ids[len(ids) - (count - known) :])

    def _wake_all(self) -> None:
        """Wake every request that waits for an answer: a lost engine sends none."""
        for rid, state in list(self._manager.rid_to_state.items()):
            state.finished = True
            state.out_list.append({"text": "", "meta_info": {"id": rid, "finish_reason": None}})
            state.event.set()


class Newest:
    """The newest piece of each of several answers; a slow reader misses those before it.

    Nothing is lost by that, since a piece holds all of its answer so far. A queue of such pieces
    would grow with the square of the answer's length.
    """

    def __init__(self, answers: int) -> None:
        self._running = answers
        self._pieces: dict[object, Answer] = {}
        self._fault: Exception | None = None
        self._moved = asyncio.Event()

    def put(self, which: object, piece: Answer) -> None:
        """Take a piece of one of the answers."""
        self._pieces[which] = piece
        self._moved.set()

    def end(self) -> None:
        """Note that one of the answers is whole."""
        self._running -= 1
        self._moved.set()

    def fail(self, fault: Exception) -> None:
        """Note that one of the answers failed: then none is given."""
        self._fault = fault
        self._moved.set()

    async def pieces(self) -> AsyncIterator[Answer]:
        """Yield pieces until all answers have ended; the piece that waits longest comes first."""
        while (piece := await self.next()) is not None:
            yield piece

    async def next(self) -> Answer | None:
        """The piece that waits longest, once there is one; None when all answers have ended."""
        while self._running and not (self._pieces or self._fault):
            self._moved.clear()
            await self._moved.wait()
        if self._fault is not None:
            raise self._fault
        return self._pieces.pop(next(iter(self._pieces))) if self._pieces else None


async def all_ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel these tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _say_why(meta: dict[str, Any], why: Mapping[str, Any]) -> None:
    """Say why we ended the answer: upstream says only `Aborted`."""
    if _is_aborted(meta):
        meta["finish_reason"] = {**meta["finish_reason"], **why}


def _is_aborted(meta: dict[str, Any]) -> bool:
    return bool((meta.get("finish_reason") or {}).get("type") == "abort")


def _without_tokens(meta: dict[str, Any]) -> Answer:
    """Return the answer without the token that the request did not want, and its details."""
    meta = {name: [] if name.startswith("output_") else value for name, value in meta.items()}
    ended = meta["finish_reason"]
    if ended is not None and not _is_aborted(meta):
        ended = NO_TOKENS
    return {"output_ids": [], "meta_info": {**meta, "completion_tokens": 0, "finish_reason": ended}}


def _for_client(piece: Answer, rid: str | None) -> Answer:
    """The tokens, with the client's id, if it gave one."""
    meta = piece["meta_info"]
    if rid is not None:
        meta["id"] = rid
    return {"output_ids": piece.get("output_ids") or [], "meta_info": meta}
