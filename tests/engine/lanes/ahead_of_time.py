"""Flips, trades, releases in an engine with ahead-of-time programs, as JSON; a process of its own.

SGLANG_JAX_AOT_DISPATCH must be set before sgl_jax is imported.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotreload.engine.lanes.lane import Bound
from hotreload.engine.weights.leaf.leaves import place_copy
from hotreload.engine.weights.memory import one_set
from hotreload.hot.memory_release import MemoryLender
from tests.engine import real
from tests.engine.lanes.crowd import Voices, check_memory, end, lanes_of, tell

PROMPT = "hello there"
FLIPS = 3


@contextmanager
def compilations() -> Iterator[list[int]]:
    """Which dispatchers compiled a program meanwhile."""
    from sgl_jax.srt.model_executor.aot_dispatch import AotDispatcher

    compiled, compile_first = list[int](), AotDispatcher._compile_and_first_call

    def compile_and_note(self: Any, key: Any, arguments: Any) -> Any:
        compiled.append(id(self))
        return compile_first(self, key, arguments)

    AotDispatcher._compile_and_first_call = compile_and_note
    try:
        yield compiled
    finally:
        AotDispatcher._compile_and_first_call = compile_first


async def what_flips_compile(root: Path) -> dict[str, Any]:
    """What is compiled for the first answers, and at flips and turns after them."""
    voices = Voices(root)
    async with real.engine_of(voices.folder(1), root / "spool") as engine:
        with compilations() as first:
            whole = [(await tell(engine, 40, prompt=PROMPT)).is_whole]
        lanes: list[dict[str, Any]] = []
        with compilations() as later:
            for number in range(2, 2 + FLIPS):
                live = await engine.weights.stage(voices.checkpoint(number))
                before = await engine.switch.flip(live)
                both = (tell(engine, 40, weights, PROMPT) for weights in (before, live))
                whole += [each.is_whole for each in await asyncio.gather(*both)]
                lanes.append(look_at([lane.bound for lane in lanes_of(engine)]))
                await end(engine, before)
        await check_memory(engine)
    compiled = {"compiled first": len(first), "compiled later": len(later)}
    return compiled | {"whole": whole, "lanes": lanes}


async def what_trades_compile(root: Path) -> dict[str, Any]:
    """The same where one set is on the device, and what is still there of a leaf that leaves it."""
    voices, stays = Voices(root), list[int]()
    async with real.engine_of(voices.folder(1), root / "spool", memory="host") as engine:
        whole = [(await tell(engine, 40, prompt=PROMPT)).is_whole]
        spare = await engine.weights.stage(voices.checkpoint(2))
        await engine.switch.scrub()
        before = await real.device_bytes()

        def place(leaf: Any, sharding: Any) -> Any:
            leaves_it = leaf.nbytes if leaf.nbytes >= real.MATRIX_BYTES else 0
            stays.append(real.bytes_of_arrays(real.MATRIX_BYTES) - (before - leaves_it))
            return place_copy(leaf, sharding)

        one_set.place_copy = place  # type: ignore[attr-defined]
        with compilations() as later:
            for _ in range(FLIPS):
                spare = await engine.switch.exchange(spare)
                whole.append((await tell(engine, 40, prompt=PROMPT)).is_whole)
                await engine.switch.scrub()
        (lane,) = lanes_of(engine)
        own = holds_its_own(lane.bound)
    return {"compiled later": len(later), "whole": whole, "own leaves": own, "stays": max(stays)}


async def what_releases_compile(root: Path) -> dict[str, Any]:
    """The same where all memory is given back meanwhile, and other weights take its place."""
    voices = Voices(root)
    async with real.engine_of(voices.folder(1), root / "spool") as engine:
        whole = [(await tell(engine, 40, prompt=PROMPT)).is_whole]
        await engine.switch.scrub()
        lender = MemoryLender(engine)
        with compilations() as later:
            for number in range(2, 2 + FLIPS):
                held = [*engine.weights.live_leaves().values()]
                await lender.release_weights()
                await lender.release_pool()
                assert all(leaf.is_deleted() for leaf in held)
                await lender.take_pool()
                await lender.take_room_for_weights()
                zeros = await engine.switch.exchange(
                    await engine.weights.stage(voices.checkpoint(number))
                )
                await engine.weights.release(zeros)
                whole.append((await tell(engine, 40, prompt=PROMPT)).is_whole)
        (lane,) = lanes_of(engine)
        own = holds_its_own(lane.bound)
    return {"compiled later": len(later), "whole": whole, "own leaves": own}


def look_at(lanes: list[Bound]) -> dict[str, Any]:
    """What the lanes that run side by side compute with."""
    return {
        "dispatchers": len({id(each.dispatcher) for each in lanes}),
        "own leaves": [holds_its_own(each) for each in lanes],
    }


def holds_its_own(bound: Bound) -> bool:
    """Whether the programs of a lane read its leaves, and no others."""
    own = {id(leaf) for leaf in bound.leaves}
    programs = [each for each in bound.dispatcher._cache.values() if isinstance(each, tuple)]
    return bool(programs) and all(id(leaf) in own for each in programs for leaf in each[3])


if __name__ == "__main__":
    root = Path(sys.argv[1])
    told = {
        "flips": asyncio.run(what_flips_compile(root / "flips")),
        "releases": asyncio.run(what_releases_compile(root / "releases")),
        "trades": asyncio.run(what_trades_compile(root / "trades")),
    }
    print(json.dumps(told))
