"""The engine's process, as a worker asks it: has each request answered, and tells how it goes."""

import asyncio
import logging
from typing import Any

from hotreload.errors import HotReloadError
from hotreload.json_fields import Fields
from hotreload.server.model import EngineAnswer, Model
from hotreload.server.ports import Metrics
from hotreload.server.workers import message_kinds
from hotreload.server.workers.answer_steps import Teller
from hotreload.server.workers.error_fields import as_message
from hotreload.server.workers.message_kinds import Word
from hotreload.server.workers.wire import Message, Wire

log = logging.getLogger("hotreload.server")


class AskedByWorker:
    """The requests of one worker, each in a task of its own."""

    def __init__(self, wire: Wire, model: Model, metrics: Metrics) -> None:
        self._wire = wire
        self._model = model
        self._metrics = metrics
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def hear(self, message: Message) -> None:
        """Heed what it tells."""
        match message:
            case [Word.ASK, name, fields]:
                task = asyncio.create_task(self._answer(name, fields), name="asked by a worker")
                self._tasks[name] = task
                task.add_done_callback(lambda _: self._tasks.pop(name, None))
            case [Word.LEAVE, name]:
                if name in self._tasks:
                    self._tasks[name].cancel()
            case [Word.FINISHED, route, code, seconds]:
                self._metrics.request_finished(route, code, seconds)
            case [Word.FIRST_TOKEN, seconds]:
                self._metrics.first_token(seconds)

    def abandon(self) -> None:
        """The worker is gone, and all who waited for its answers."""
        for task in self._tasks.values():
            task.cancel()

    async def _answer(self, name: int, fields: Fields) -> None:
        try:
            await self._told(name, fields)
        except HotReloadError as fault:
            self._wire.tell(Word.FAILED, name, as_message(fault))
        except Exception as fault:
            log.error("request.failed", exc_info=fault)
            self._wire.tell(Word.FAILED, name, as_message(None))
        else:
            self._wire.tell(Word.OVER, name)

    async def _told(self, name: int, fields: Fields) -> None:
        ask = message_kinds.ask_of(fields, asyncio.get_running_loop().time())
        tellers: dict[Any, Teller] = {}
        async with self._model.answering(ask) as begun:
            self._wire.tell(Word.BEGUN, name, message_kinds.generation_parts(begun.generation))
            async for item in begun.items:
                self._tell(name, item, tellers)
                await self._wire.caught_up()

    def _tell(self, name: int, item: EngineAnswer, tellers: dict[Any, Teller]) -> None:
        if isinstance(item, list):
            self._wire.tell(Word.BATCH, name, item)
            return
        index = item.get("index")
        if (teller := tellers.get(index)) is None:
            teller = tellers[index] = Teller()
            teller.step(item)
            self._wire.tell(Word.WHOLE, name, index, item)
        elif (step := teller.step(item)) is not None:
            self._wire.tell(Word.STEP, name, index, step)
        else:
            self._wire.tell(Word.WHOLE, name, index, item)
