"""One of two real processes that hold one engine together; does what lines on its input ask.

Run as a program it is that process; `pair` starts two. What they answer goes through a pipe of its
own: Gloo writes to the standard output.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from hotreload.ranks.steps import in_step
from tests.ranks.member import free_address

PATIENCE = 240.0
STEPS = 3
"""How many checkpoints there are; the engine starts from the first."""


class Refused(Exception):
    """What was asked of a rank failed there; the words begin with the error's name."""


class Rank:
    """One of the two processes, as a test asks it."""

    def __init__(self, address: str, rank: int, root: Path, ended: ExitStack) -> None:
        reads, writes = os.pipe()
        command = [sys.executable, "-m", "tests.ranks.engine_member", address, str(rank)]
        flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
        self.process = subprocess.Popen(
            [*command, str(root), str(writes)],
            env={**os.environ, **flags, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=ended.enter_context((root / f"rank{rank}.log").open("w")),
            pass_fds=[writes],
            text=True,
        )
        ended.enter_context(self.process)
        ended.callback(self.process.kill)
        os.close(writes)
        self._numbers = count()
        self._asked: dict[int, Future[Any]] = {}
        threading.Thread(target=self._read, args=[reads], daemon=True).start()

    def ask(self, name: str, *about: Any) -> Future[Any]:
        """Ask it to do something; others can be asked before that is done."""
        number, answer = next(self._numbers), Future[Any]()
        self._asked[number] = answer
        assert self.process.stdin is not None
        print(json.dumps([number, name, *about]), file=self.process.stdin, flush=True)
        return answer

    def does(self, name: str, *about: Any) -> Any:
        """What comes of it; Refused when it failed."""
        return self.ask(name, *about).result(PATIENCE)

    def _read(self, reads: int) -> None:
        with os.fdopen(reads) as answers:
            for line in answers:
                number, fault, value = json.loads(line)
                if fault is None:
                    self._asked.pop(number).set_result(value)
                else:
                    self._asked.pop(number).set_exception(Refused(fault))
        for left in self._asked.values():
            left.set_exception(Refused("the process has ended"))


class Pair:
    """Both of them."""

    def __init__(self, ranks: list[Rank]) -> None:
        self.ranks = ranks
        self.leader, self.other = ranks

    def do(self, name: str, *about: Any) -> list[Any]:
        """What each says to the same question, asked at once."""
        return [answer.result(PATIENCE) for answer in [r.ask(name, *about) for r in self.ranks]]


@contextmanager
def pair(root: Path) -> Iterator[Pair]:
    """Two processes with an engine of two devices over both; killed at the end, by their ids."""
    from tests.engine import real

    for number in range(1, STEPS + 1):
        real.Folders(root).folder(number)
    with ExitStack() as ended:
        address = free_address()
        yield Pair([Rank(address, rank, root, ended) for rank in (0, 1)])


# --- in the process itself -----------------------------------------------------------------------


class Doing:
    """What a member can be asked."""

    def __init__(self, member: Any, checkpoints: dict[int, Any]) -> None:
        self._member = member
        self._checkpoints = checkpoints
        self._following: Any = None
        self._over: Any = None
        self._staged: Any = None
        self._before: Any = None

    async def patience(self, seconds: float) -> None:
        self._member.meeting.within = seconds

    async def listen(self, looks: int) -> None:
        """Count another rank as gone after so many looks, ten a second."""
        self._member.beats.every, self._member.beats.silent_looks = 0.1, looks

    async def live(self) -> str:
        return str(self._member.live.fingerprint)

    async def measured(self, name: str) -> str:
        return str(await self._member.fingerprint(name))

    async def stage(self, number: int) -> str:
        self._staged = await self._member.stage(self._checkpoints[number])
        return str(self._staged.fingerprint)

    async def exchange(self) -> None:
        self._before = await self._member.exchange(self._staged)

    async def release(self) -> None:
        await self._member.release(self._before)

    async def drop(self) -> None:
        await self._member.release(self._staged)

    async def prove(self) -> None:
        await self._member.prove(self._staged)

    async def flip(self) -> None:
        self._before = await self._member.flip(self._staged)

    async def retire(self) -> None:
        await self._member.retire(self._before)
        await self._member.release(self._before)

    async def ask(self, prompt: str, tokens: int = 12) -> str:
        lane = self._member.live.weights.lane
        return await self._said(prompt, lane, max_new_tokens=tokens, ignore_eos=tokens > 12)

    async def cannot_overlap(self) -> str | None:
        why: str | None = self._member.cannot_overlap
        return why

    async def batches(self) -> list[int]:
        scheduler = self._member.parts.running_scheduler
        return [scheduler.turns._number, scheduler.scheduler.forward_ct]

    async def lost(self) -> str:
        from hotreload.errors import EngineLost

        try:
            await self._member.died()
        except EngineLost as lost:
            return str(lost)
        return "nothing"

    async def close(self) -> None:
        await self._member.close()

    async def follow(self) -> None:
        """From now on this rank does what rank 0 says."""
        from hotreload.engine.ranks.store import DistributedStore
        from hotreload.ranks.following import Following
        from hotreload.ranks.vote import Follower

        follower = Follower(DistributedStore(), 1)
        following = follower.follow(Following(self._member, self._prepare))
        self._following = asyncio.create_task(following)

    async def _prepare(self, revision: Any) -> Any:
        from hotreload.errors import CheckpointCorrupt

        if revision.label == "torn here":
            raise CheckpointCorrupt("it is torn on this host", code="truncated")
        if revision.label == "slow here":
            await asyncio.sleep(PATIENCE)
        return self._checkpoints[int(revision.id.removeprefix("step_"))]

    async def lead(self) -> None:
        """From now on the other rank does what this one says."""
        from hotreload.engine.ranks.store import DistributedStore
        from hotreload.ranks.over import OverRanks
        from hotreload.ranks.vote import Chair

        chair = Chair(DistributedStore(), [1])
        self._over = OverRanks(self._member, chair, stage_within=PATIENCE, within=PATIENCE)

    async def reload(self, number: int, label: str = "", within: float = PATIENCE) -> str:
        """Stage, prove, flip, and let what answered before end."""
        from dataclasses import replace

        checkpoint = self._checkpoints[number]
        revision = replace(checkpoint.revision, label=label)
        self._over._stage_within = within
        staged = await self._over.stage(replace(checkpoint, revision=revision))
        try:
            await self._over.prove(staged)
        except BaseException:
            await self._over.release(staged)
            raise
        before = await self._over.flip(staged)
        await self._over.retire(before)
        await self._over.release(before)
        return str(self._member.live.fingerprint)

    async def _said(self, prompt: str, lane: int, **sampling: Any) -> str:
        params = {"temperature": 0, "max_new_tokens": 12, **sampling}
        parsed = await self._member.prompts.prepare({"text": prompt, "sampling_params": params})
        async for answer in self._member.front.generate(parsed, lane):
            text = answer["text"]
        return str(text)


async def _run(address: str, rank: int, root: Path, told: Callable[[list[Any]], None]) -> None:
    from hotreload.engine.ranks.member import Member
    from hotreload.engine.upstream.joining import Ranks
    from hotreload.engine.weights.quiet import Quiet
    from hotreload.engine.weights.sets import StagingTerms
    from tests.engine import real

    checkpoints = {n: real.checked(root / f"step_{n}") for n in range(1, STEPS + 1)}
    terms = StagingTerms(root / f"spool{rank}", quiet=Quiet(priority="normal"))
    member = await Member.start(
        Ranks(rank, 2, address),
        model=root / "step_1",
        device="cpu",
        tp=2,
        dtype="bfloat16",
        terms=terms,
        checkpoint=checkpoints[1],
        args=real.ARGS,
        within=120,
    )
    doing, tasks = Doing(member, checkpoints), set()
    step = "start"
    async for number, name, *about in _lines():
        if name == "step":
            step, work = about[0], asyncio.sleep(0)
        else:
            work = getattr(doing, name)(*about)
        with in_step(f"{step} {name}"):
            task = asyncio.create_task(_told(number, work, told))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _told(number: int, work: Awaitable[Any], told: Callable[[list[Any]], None]) -> None:
    try:
        told([number, None, await work])
    except Exception as fault:
        told([number, f"{type(fault).__name__}: {fault}", None])


async def _lines() -> Any:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield json.loads(line)


def main(address: str, rank: str, root: str, writes: str) -> None:
    """Hold this rank's part until the input ends."""
    with os.fdopen(int(writes), "w") as answers:

        def told(said: list[Any]) -> None:
            print(json.dumps(said), file=answers, flush=True)

        asyncio.run(_run(address, int(rank), Path(root), told))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
