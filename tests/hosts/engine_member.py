"""One of two real processes that hold one engine together; does what lines that it reads ask.

`main` is what runs in that process; `pair` forks two. What they are asked and answer goes through
pipes with names: Gloo writes to the standard output.
"""

import asyncio
import json
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any

from hotreload.hosts.steps import in_step
from tests.hosts.daemons import ONE_DEVICE
from tests.hosts.member import free_address
from tests.integration.forked import zygote_of
from tests.integration.zygote import ENGINE_OF_A_RANK

PATIENCE = 240.0
OPENED = 100
"""From this number on ranks number the folders that they start from, each its own."""
SECRET = "a-secret-of-these-two-processes-alone"
STEPS = 3
"""How many checkpoints there are; the engine starts from the first."""


def pipes_of(root: Path, rank: int) -> tuple[Path, Path]:
    """What a rank is asked through, and what it answers through."""
    return root / f"questions{rank}", root / f"answers{rank}"


class Refused(Exception):
    """What was asked of a rank failed there; the words begin with the error's name."""


class Rank:
    """One of the two processes, as a test asks it."""

    def __init__(self, address: str, rank: int, root: Path, ended: ExitStack) -> None:
        questions, answers = pipes_of(root, rank)
        for pipe in (questions, answers):
            os.mkfifo(pipe)
        # Open for both: to write alone it would have to be read already.
        self._questions = ended.enter_context(questions.open("r+b", buffering=0))
        with (root / f"rank{rank}.log").open("wb") as log, open(os.devnull, "wb") as nowhere:
            self.process = zygote_of(ENGINE_OF_A_RANK).begin(
                ENGINE_OF_A_RANK,
                [address, str(rank), str(root)],
                {**os.environ, **ONE_DEVICE},
                log,
                out=nowhere,
            )
        ended.callback(self.process.wait)
        ended.callback(self.process.kill)
        self._numbers = count()
        self._asked: dict[int, Future[Any]] = {}
        threading.Thread(target=self._read, args=[answers], daemon=True).start()

    def ask(self, name: str, *about: Any) -> Future[Any]:
        """Ask it to do something; others can be asked before that is done."""
        number, answer = next(self._numbers), Future[Any]()
        self._asked[number] = answer
        self._questions.write(f"{json.dumps([number, name, *about])}\n".encode())
        return answer

    def does(self, name: str, *about: Any) -> Any:
        """What comes of it; Refused when it failed."""
        return self.ask(name, *about).result(PATIENCE)

    def _read(self, pipe: Path) -> None:
        with pipe.open() as answers:
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
        return [answer.result(PATIENCE) for answer in self._asked(name, *about)]

    def fail(self, name: str, *about: Any) -> list[str]:
        """Why each refuses the same."""
        return [str(answer.exception(PATIENCE)) for answer in self._asked(name, *about)]

    def _asked(self, name: str, *about: Any) -> list[Future[Any]]:
        return [rank.ask(name, *about) for rank in self.ranks]


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

    def __init__(self, joined: Any, root: Path, checkpoints: dict[int, Any]) -> None:
        self._joined = joined
        self._root = root
        self._checkpoints = checkpoints
        self._member: Any = None
        self._following: Any = None
        self._leading: Any = None
        self._staged: Any = None
        self._before: Any = None
        self._launched: list[list[int]] = []

    async def patience(self, seconds: float) -> None:
        self._joined.meeting.within = seconds

    async def listen(self, looks: int) -> None:
        """Count another rank as gone after so many looks, ten a second."""
        from hotreload.hosts.life.rank_group import Beats, watch

        ranks = self._joined.ranks
        beats = Beats(self._joined.store, ranks.own, list(ranks.others))
        beats.every, beats.silent_looks = 0.1, looks
        self._beating = asyncio.create_task(watch(beats, lambda why: self._member.lose(str(why))))

    async def build(self, number: int, damage: str = "") -> None:
        """Build this rank's part of an engine, from a path that leads nowhere on any other."""
        from hotreload.engine.options import EngineOptions
        from hotreload.engine.weights.sets import StagingOptions
        from hotreload.hosts.engine.rank_engine import RankEngine
        from hotreload.quiet import Quiet
        from tests.engine import real

        rank, checkpoint = self._joined.ranks.own, self._checkpoints[number]
        own = shutil.copytree(checkpoint.path, self._root / f"rank{rank}" / f"{number}{damage}")
        if damage:
            (own / damage).unlink()
        held = os.open(own, os.O_RDONLY)
        os.dup2(held, OPENED + rank)
        model = Path(f"/proc/self/fd/{OPENED + rank}")
        self._member = await RankEngine.start_rank(
            self._joined,
            EngineOptions(
                model,
                device="cpu",
                tp=2,
                dtype="bfloat16",
                args=real.ARGS | real.ONE_SIZE,
            ),
            terms=StagingOptions(self._root / f"spool{rank}", quiet=Quiet(priority="normal")),
            probes=(),
            revision=checkpoint.revision,
            checkpoint=checkpoint,
        )
        os.close(held)
        os.close(OPENED + rank)
        shutil.rmtree(own)

        self._note_launches()

    def _note_launches(self) -> None:
        """Note in which turn each lane launches a batch."""
        thread = self._member._scheduler
        worker = thread.scheduler.tp_worker
        launch = worker.forward_batch_generation

        def launch_and_note(*args: Any, **more: Any) -> Any:
            self._launched.append([thread.turns._number, thread.lanes._rotation.current.number])
            return launch(*args, **more)

        worker.forward_batch_generation = launch_and_note

    async def launched(self) -> list[list[int]]:
        """The turn and the lane of each batch since this was last asked."""
        told, self._launched = self._launched, []
        return told

    async def live(self) -> str:
        return str(self._member.weights.live.fingerprint)

    async def measured(self) -> bool:
        """Whether what is live is still what went live; each rank measures its share."""
        return bool(await self._member.weights.checksums() == self._member.weights.live.leaves)

    async def stage(self, number: int) -> str:
        self._staged = await self._member.weights.stage(self._checkpoints[number])
        return str(self._staged.fingerprint)

    async def exchange(self) -> None:
        self._before = await self._member.switch.exchange(self._staged)

    async def release(self) -> None:
        await self._member.weights.release(self._before)

    async def drop(self) -> None:
        await self._member.weights.release(self._staged)

    async def prove(self) -> None:
        await self._member.unseen.prove(self._staged)

    async def flip(self) -> None:
        self._before = await self._member.switch.flip(self._staged)

    async def retire(self) -> None:
        await self._member.switch.retire(self._before)
        await self._member.weights.release(self._before)

    async def ask(self, prompt: str, tokens: int = 12) -> str:
        params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": tokens > 12}
        request = {"text": prompt, "sampling_params": params}
        async for answer in self._engine.answers.generate(
            await self._engine.answers.prepare(request)
        ):
            text = answer["text"]
        return str(text)

    @property
    def _engine(self) -> Any:
        """What requests are asked of."""
        return self._leading or self._member

    async def cannot_overlap(self) -> str | None:
        why: str | None = self._member.switch.cannot_overlap
        return why

    async def batches(self) -> list[int]:
        scheduler = self._member._scheduler
        return [scheduler.turns._number, scheduler.scheduler.forward_ct]

    async def lost(self) -> str:
        from hotreload.errors import EngineLost

        try:
            await self._member.wait_until_dead()
        except EngineLost as lost:
            return str(lost)
        return "nothing"

    async def close(self) -> None:
        await self._member.close()

    async def follow(self) -> None:
        """From now on this rank does what rank 0 says."""
        from hotreload.hosts.steps import take_part
        from hotreload.hosts.vote import Follower
        from tests.hosts.slice import FollowsOnly

        follower = Follower(self._joined.store, 1)
        own = FollowsOnly(self._member, self._prepare)
        following = follower.follow(partial(take_part, own))
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
        from hotreload.hosts.engine.engine_over_ranks import EngineOverRanks
        from hotreload.hosts.steps import StepSeconds
        from hotreload.hosts.vote import Chair

        chair = Chair(self._joined.store, [1])
        seconds = StepSeconds(meet=PATIENCE, stage=PATIENCE, prove=PATIENCE)
        self._leading = EngineOverRanks(self._member, chair, seconds)

    async def reload(self, number: int, label: str = "", within: float = PATIENCE) -> str:
        """Stage, prove, flip, and let what answered before end."""
        from dataclasses import replace

        checkpoint = self._checkpoints[number]
        revision = replace(checkpoint.revision, label=label)
        ranks = self._leading._ranks
        ranks.seconds = replace(ranks.seconds, stage=within)
        engine = self._leading
        staged = await engine.weights.stage(replace(checkpoint, revision=revision))
        try:
            await engine.unseen.prove(staged)
        except BaseException:
            await engine.weights.release(staged)
            raise
        before = await engine.switch.flip(staged)
        await engine.switch.retire(before)
        await engine.weights.release(before)
        return str(engine.weights.live.fingerprint)

    async def drifted(self) -> bool:
        """Whether what is live on all ranks is not what went live."""
        return bool(await self._leading.weights.checksums() != self._leading.weights.live.leaves)


async def _run(
    address: str, rank: int, root: Path, questions: IO[str], told: Callable[[list[Any]], None]
) -> None:
    from hotreload.hosts.engine.joined_ranks import JoinedRanks
    from hotreload.hosts.upstream.ranks import Ranks
    from tests.engine import real

    checkpoints = {n: real.checked(root / f"step_{n}") for n in range(1, STEPS + 1)}
    joined = await JoinedRanks.join(Ranks(rank, 2, address, SECRET), within=120)
    doing, tasks = Doing(joined, root, checkpoints), set()
    step = "start"
    async for number, name, *about in _lines(questions):
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


async def _lines(questions: IO[str]) -> Any:
    while line := await asyncio.to_thread(questions.readline):
        yield json.loads(line)


def main(arguments: Sequence[str]) -> None:
    """Hold this rank's part until nobody can ask any more."""
    from tests.hosts.keeping import keep_what_is_compiled

    address, rank, root = arguments[0], int(arguments[1]), Path(arguments[2])
    keep_what_is_compiled()
    reads, writes = pipes_of(root, rank)
    with reads.open() as questions, writes.open("w") as answers:

        def told(said: list[Any]) -> None:
            print(json.dumps(said), file=answers, flush=True)

        asyncio.run(_run(address, rank, root, questions, told))
    os._exit(0)
