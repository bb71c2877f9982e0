"""The engine's end of a worker's connection: answers each request that the worker sends."""

import asyncio
import logging
from typing import Any

from hotreload.errors import HotReloadError
from hotreload.json_fields import Fields
from hotreload.server.model import EngineAnswer, Model
from hotreload.server.ports import Metrics
from hotreload.server.workers import message_kinds
from hotreload.server.workers.answer_steps import StepMaker
from hotreload.server.workers.message_kinds import MessageKind, error_fields
from hotreload.server.workers.wire import Message, Wire

log = logging.getLogger("hotreload.server")


class WorkerRequests:
    """The requests that one worker has sent, each answered in a task of its own."""

    def __init__(self, wire: Wire, model: Model, metrics: Metrics) -> None:
        self._wire = wire
        self._model = model
        self._metrics = metrics
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def receive(self, message: Message) -> None:
        """Handle one message of the worker."""
        match message:
            case [MessageKind.ASK, name, fields]:
                task = asyncio.create_task(self._answer(name, fields), name="asked by a worker")
                self._tasks[name] = task
                task.add_done_callback(lambda _: self._tasks.pop(name, None))
            case [MessageKind.LEAVE, name]:
                if name in self._tasks:
                    self._tasks[name].cancel()
            case [MessageKind.FINISHED, route, code, seconds]:
                self._metrics.request_finished(route, code, seconds)
            case [MessageKind.FIRST_TOKEN, seconds]:
                self._metrics.first_token(seconds)

    def cancel_all(self) -> None:
        """Abort every answer, because the worker has ended and its clients with it."""
        for task in self._tasks.values():
            task.cancel()

    async def _answer(self, name: int, fields: Fields) -> None:
        try:
            await self._answer_request(name, fields)
        except HotReloadError as fault:
            self._wire.send(MessageKind.FAILED, name, error_fields(fault))
        except Exception as fault:
            log.error("request.failed", exc_info=fault)
            self._wire.send(MessageKind.FAILED, name, error_fields(None))
        else:
            self._wire.send(MessageKind.OVER, name)

    async def _answer_request(self, name: int, fields: Fields) -> None:
        request = message_kinds.request_from(fields, asyncio.get_running_loop().time())
        step_makers: dict[Any, StepMaker] = {}
        async with self._model.open_answer(request) as answer:
            self._wire.send(
                MessageKind.BEGUN, name, message_kinds.generation_parts(answer.generation)
            )
            async for item in answer.items:
                self._send_item(name, item, step_makers)
                await self._wire.drain()

    def _send_item(self, name: int, item: EngineAnswer, step_makers: dict[Any, StepMaker]) -> None:
        if isinstance(item, list):
            self._wire.send(MessageKind.BATCH, name, item)
            return
        index = item.get("index")
        if (step_maker := step_makers.get(index)) is None:
            step_maker = step_makers[index] = StepMaker()
            step_maker.step(item)
            self._wire.send(MessageKind.WHOLE, name, index, item)
        elif (step := step_maker.step(item)) is not None:
            self._wire.send(MessageKind.STEP, name, index, step)
        else:
            self._wire.send(MessageKind.WHOLE, name, index, item)
