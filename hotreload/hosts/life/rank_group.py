"""The ranks of one engine: how they meet, agree, watch each other, and part.

All must have the same facts. Ranks that differ in one of these would compute different things in
the same turn, or would not agree which checkpoint is good.

Each rank writes a number every second, its heartbeat, and reads those of the others. Between two
requests nothing else shows that a process is gone. JAX has its own heartbeats, and ends this
process without any log line of ours: hotreload must notice earlier. The end of rank 0 shows without
heartbeats, since the store ends with it.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import NoReturn

from hotreload import __version__
from hotreload.errors import EngineLost, RankLeft, first_of
from hotreload.facts.upstream import version_of
from hotreload.hosts.engine.joined_ranks import JoinedRanks
from hotreload.hosts.messages import InvalidMessage, parse_number, parse_text
from hotreload.hosts.upstream.ranks import Ranks, Store
from hotreload.life.start.model_files import digests_of_side_files
from hotreload.settings.credentials import read_join_secret
from hotreload.settings.faults import mask
from hotreload.settings.load import Settings, list_judging
from hotreload.settings.tables import as_json
from hotreload.threads import in_thread, run_to_end

log = logging.getLogger("hotreload.ranks")


Lose = Callable[[EngineLost], None]
"""Called when another rank is gone, before this rank ends anything."""


def ranks_of(settings: Settings) -> Ranks | None:
    """Return this process's place among those of one engine; None for an engine of one process."""
    engine = settings.engine
    if engine.nnodes == 1:
        return None
    assert engine.dist_init_addr is not None, "the settings were checked"
    return Ranks(engine.node_rank, engine.nnodes, engine.dist_init_addr)


def ranks_with_secret(settings: Settings) -> Ranks | None:
    """Return the same with the join secret; ConfigError if its file has no valid secret."""
    ranks, file = ranks_of(settings), settings.engine.join_secret_file
    if ranks is None or file is None:
        return ranks
    return replace(ranks, secret=read_join_secret(file))


# --- the facts that must be alike -----------------------------------------------------------------

PACKAGES = ("sglang-jax", "jax", "jaxlib", "transformers")
"""The packages that compute, and that make tokens of text."""
ALIKE_IN_ENGINE = ("nnodes", "tp", "dtype")
ALIKE_IN_RELOAD = ("shadow_share", "fading_share")
"""The settings that decide which weights compute in a turn."""
COMPARED = b"hotreload: do all hosts have this secret?"
DIGEST = "sha256:"
"""The beginning of a fact that is a digest: two can be compared, and their texts stay unknown."""
NUMBERS_GIVEN = "numbers"
"""The name under which a rank sends, beside the facts, the last number given to a generation."""


def list_facts(settings: Settings) -> dict[str, str]:
    """Return the facts that every other host must share; reads the model's small files."""
    return {
        "hotreload": __version__,
        **{package: version_of(package) for package in PACKAGES},
        **{name: str(getattr(settings.engine, name)) for name in ALIKE_IN_ENGINE},
        **{f"[reload] {name}": str(getattr(settings.reload, name)) for name in ALIKE_IN_RELOAD},
        **{f"[engine.args] {name}": text for name, text in _args(settings)},
        **dict(_judging_settings(settings)),
        **dict(_secret(settings.engine.join_secret_file)),
        **{f"the model's {name}": digest for name, digest in _files(settings.engine.model)},
    }


async def read_facts(settings: Settings) -> dict[str, str]:
    """Return the facts, read in a thread that is left behind if a read hangs."""
    leave_as = "a read of the model's small files"
    return await in_thread(lambda cancel: list_facts(settings), leave_as=leave_as)


def find_differences(own: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return a sentence for each fact in which another host differs from this one."""
    names = dict.fromkeys([*own, *theirs])
    pairs = ((name, own.get(name), theirs.get(name)) for name in names)
    return [_sentence(name, here, there) for name, here, there in pairs if here != there]


def _sentence(name: str, here: str | None, there: str | None) -> str:
    if here is None or there is None:
        has, lacks = ("there", "here") if here is None else ("here", "there")
        return f"{name} is given {has} and not {lacks}"
    if here.startswith(DIGEST):
        return f"{name} is another there than here"
    return f"{name} is {there or 'not installed'} there and {here or 'not installed'} here"


def _args(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield [engine.args], with secrets masked: the ranks' store has no password."""
    for name, value in sorted(settings.engine.args.items()):
        yield name, json.dumps(mask(name, value), sort_keys=True)


def _secret(file: Path | None) -> Iterator[tuple[str, str]]:
    """Yield a digest that differs for different secrets, and does not reveal them."""
    if file is not None:
        key = read_join_secret(file).encode()
        yield "[engine] join_secret_file", DIGEST + hmac.new(key, COMPARED, "sha256").hexdigest()


def _judging_settings(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings that decide whether a checkpoint is good."""
    data = as_json(settings)
    for name in sorted(list_judging(type(settings)) - {"probe"}):
        section, key = name.split(".")
        yield f"[{section}] {key}", json.dumps(data[section][key])
    yield "[[probe]]", _digest(json.dumps(data["probe"], sort_keys=True).encode())


def _files(model: Path | None) -> Iterator[tuple[str, str]]:
    for name, digest in digests_of_side_files(model) if model is not None else ():
        yield name, DIGEST + digest


def _digest(content: bytes) -> str:
    return DIGEST + hashlib.sha256(content).hexdigest()


# --- heartbeats -----------------------------------------------------------------------------------

BEAT_SECONDS = 1.0
SILENT_LOOKS = 30
"""The number of reads in a row without a new heartbeat after which a rank counts as gone."""
AT_ONCE = 0.01
LEAVING, LOST = "leaves: ", "has lost its part: "
GOODBYES: dict[str, type[EngineLost]] = {LEAVING: RankLeft, LOST: EngineLost}
"""The beginning of a rank's last message, before its reason: it ends in order, or has failed."""
LONGEST_GOODBYE = 2000
"""The most characters of that reason."""


class Beats:
    """The heartbeats that one rank sends, and those that it reads."""

    def __init__(self, store: Store, own: int, others: Sequence[int]) -> None:
        self.every = BEAT_SECONDS
        self.silent_looks = SILENT_LOOKS
        self._store = store
        self._own = own
        self._last_beats: dict[int, int] = dict.fromkeys(others, 0)
        self._silent = dict.fromkeys(others, 0)
        """The reads in a row without a new heartbeat: reads, since a starved process reads late."""
        self._new_at = dict.fromkeys(others, time.monotonic())

    @property
    def silences(self) -> dict[int, float]:
        """Seconds since the last new heartbeat of each other rank; any thread may read it."""
        now = time.monotonic()
        return {rank: now - at for rank, at in self._new_at.items()}

    async def run(self) -> NoReturn:
        """Send and read heartbeats, until EngineLost names a rank that is silent or leaves."""
        for beat in count(1):
            if self._list_gone():
                break
            await in_thread(partial(self._beat_and_read, str(beat)))
            await asyncio.sleep(self.every)
        named = " and ".join(f"rank {rank}" for rank in self._list_gone())
        silent = self.silent_looks * self.every
        raise EngineLost(f"{named} has not been heard of for {silent:g} s")

    async def leave(self, why: str, *, goodbye: str = LEAVING) -> None:
        """Report to the others that this rank leaves, or has lost its part: the engine ends.

        Call it after `run`.
        """
        await in_thread(lambda cancel: self._store.put(_key(self._own), goodbye + why))

    def _beat_and_read(self, news: str, cancel: threading.Event) -> None:
        self._store.put(_key(self._own), news)
        self._read_others()

    def _read_others(self) -> None:
        for rank, before in list(self._last_beats.items()):
            message = self._store.get(_key(rank), AT_ONCE) or ""
            for goodbye, error in GOODBYES.items():
                if message.startswith(goodbye):
                    raise error(f"rank {rank} {parse_text(message[:LONGEST_GOODBYE])}")
            now = max(before, _number(message))  # anything may write an old number again
            self._silent[rank] = self._silent[rank] + 1 if now == before else 0
            if now != before:
                self._new_at[rank] = time.monotonic()
            self._last_beats[rank] = now

    def _list_gone(self) -> list[int]:
        return [rank for rank, looks in self._silent.items() if looks >= self.silent_looks]


def _key(rank: int) -> str:
    return f"hotreload/beat/{rank}"


def _number(message: str) -> int:
    try:
        return parse_number(message)
    except InvalidMessage:
        return 0


# --- from the meeting to the parting --------------------------------------------------------------


@asynccontextmanager
async def meet(ranks: Ranks, within: float, lose: Lose) -> AsyncIterator[tuple[JoinedRanks, Beats]]:
    """Hold the meeting of all ranks; EngineLost, also from the body, if one is gone.

    A rank that ends by itself sends the others its reason: none of them can go on without it. If
    rank 0 ends, all leave together. No rank waits for one that is gone.
    """
    log.info("ranks.meeting", extra={"rank": ranks.own, "of": ranks.count, "at": ranks.address})
    joined = await JoinedRanks.join(ranks, within)
    log.info("ranks.met", extra={"rank": ranks.own, "of": ranks.count})
    watched = list(ranks.others) if ranks.leads else [0]  # rank 0 watches all others
    beats = Beats(joined.store, ranks.own, watched)
    gone: list[EngineLost] = []

    def note_gone(why: EngineLost) -> None:
        gone.append(why)
        lose(why)

    try:
        async with asyncio.TaskGroup() as tasks:
            beating = tasks.create_task(watch(beats, note_gone), name="beats")
            yield joined, beats
            beating.cancel()
    except BaseException as end:
        await run_to_end(_part(joined, beats, end, gone))
        raise


async def watch(beats: Beats, lose: Lose) -> None:
    """Watch the others until EngineLost names one that is gone."""
    try:
        await beats.run()
    except EngineLost as lost:
        lose(lost)
        raise


async def _part(
    joined: JoinedRanks, beats: Beats, end: BaseException, gone: Sequence[EngineLost]
) -> None:
    """Send the others this rank's reason, unless another has gone first; leave with rank 0."""
    is_lost = _is_lost(end)
    if not gone:
        try:
            await beats.leave(_in_words(end), goodbye=LOST if is_lost else LEAVING)
        except EngineLost:
            return  # the store is gone, and rank 0 with it
    has_left = any(isinstance(why, RankLeft) for why in gone)
    rank_0_goes = not (is_lost or gone) if joined.ranks.leads else has_left
    if rank_0_goes:
        await joined.leave()


def _is_lost(end: BaseException) -> bool:
    if isinstance(end, BaseExceptionGroup):
        return end.subgroup(EngineLost) is not None
    return isinstance(end, EngineLost)


def _in_words(end: BaseException) -> str:
    first = first_of(end)
    return "it was asked to stop" if isinstance(first, asyncio.CancelledError) else str(first)
