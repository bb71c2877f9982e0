"""The real engine on this machine's CPU, with tiny checkpoints; for every test that needs one.

Import it before JAX looks for devices: it makes four out of one CPU, so that engines of one
and of two devices run in the same process (each takes only the devices it is told to). XLA reads
its flags once, so what an engine would add is there before.
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import xxhash

from hotreload.facts.upstream import XLA_FLAGS
from hotreload.tiny import write_tiny
from hotreload.tiny.sayings import parse_saying
from hotreload.tiny.weights import hand_built
from hotreload.tiny.write import encode
from hotreload.types import Checkpoint, CheckpointFile, Revision, TensorBytes, TensorSpec
from tests.checkpoint.written import digest_of_shard

FLAGS = ("--xla_force_host_platform_device_count=4", *XLA_FLAGS["cpu"])
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ARGS = {
    "max_total_tokens": 2048,
    "context_length": 512,
    "max_running_requests": 8,
    "chunked_prefill_size": 512,
}
ONE_SIZE = {
    "chunked_prefill_size": 64,
    "precompile_bs_paddings": [8],
    "precompile_token_paddings": [64],
}
"""Besides, where the sizes of batches are not what is tested: each is compiled, for seconds. A
short prompt is computed at the length of all, so that is little more than one."""
GREEDY = {"temperature": 0, "max_new_tokens": 12}
ENDLESS = {"temperature": 0, "max_new_tokens": 480, "ignore_eos": True}


def checked(folder: Path) -> Checkpoint:
    """The folder as a checkpoint that passed every check, whether it would or not."""
    files = tuple(_file(path) for path in sorted(folder.glob("*.safetensors")))
    tensors: dict[str, TensorSpec] = {}
    held: dict[str, TensorBytes] = {}
    for file in files:
        for name, spec, lies in _tensors(folder / file.name):
            tensors[name], held[name] = spec, lies
    size = sum(file.size for file in files)
    return Checkpoint(Revision(folder.name), folder, files, tensors, size, held)


def part_of(whole: Checkpoint, *names: str) -> Checkpoint:
    """These tensors of a checkpoint, as a part of them."""
    tensors = {name: whole.tensors[name] for name in names}
    held = {name: whole.held[name] for name in names}
    return replace(whole, is_part=True, tensors=tensors, held=held)


def _file(path: Path) -> CheckpointFile:
    content = path.read_bytes()
    return CheckpointFile(path.name, len(content), digest_of_shard(content))


def _tensors(path: Path) -> Iterator[tuple[str, TensorSpec, TensorBytes]]:
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        digest = xxhash.xxh3_128_hexdigest(content[begin:end])
        spec = TensorSpec(tuple(entry["shape"]), entry["dtype"])
        yield name, spec, TensorBytes(path.name, begin, end, digest)


class Folders:
    """Tiny checkpoints by number; each says it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, number: int, damage: str | None = None) -> Path:
        folder = self.root / f"step_{number}{'_' + damage if damage else ''}"
        shutil.rmtree(folder, ignore_errors=True)  # a test may have spoiled what was there
        return write_tiny(folder, f"served by step {number}", damage=damage)

    def checkpoint(self, number: int, damage: str | None = None) -> Checkpoint:
        return checked(self.folder(number, damage))


@asynccontextmanager
async def engine_of(folder: Path, spool: Path, **settings: Any) -> AsyncIterator[Any]:
    """A real engine that serves the folder, closed at the end."""
    from hotreload.engine.options import EngineOptions, UnseenOptions
    from hotreload.engine.sglang import SglangEngine
    from hotreload.engine.weights.sets import StagingOptions
    from hotreload.quiet import Quiet

    # What is left over beside others' tests may be nothing for a while.
    terms: dict[str, Any] = {"spool": spool, "quiet": Quiet(priority="normal")}
    for name in ("max_drift", "loader", "memory", "quiet", "trust"):
        if name in settings:
            terms[name] = settings.pop(name)
    if not settings.keys() & {"checkpoint", "twin", "filling"}:
        settings["checkpoint"] = checked(folder)
    settings = {"device": "cpu", "dtype": "bfloat16", "warm_batches": 0, **settings}
    settings = {"revision": Revision(folder.name), **settings}
    settings["args"] = {**ARGS, **settings.get("args", {})}
    unseen = UnseenOptions(**_popped(UnseenOptions, settings))
    options = EngineOptions(folder, unseen=unseen, **_popped(EngineOptions, settings))
    engine = await SglangEngine.start(options, terms=StagingOptions(**terms), **settings)
    try:
        await (
            engine.weights.loader_check.until_done()
        )  # it makes a leaf of each beside the live one
        yield engine
    finally:
        await engine.close()


def _popped(options: Any, settings: dict[str, Any]) -> dict[str, Any]:
    named = {each.name for each in fields(options)} & settings.keys()
    return {name: settings.pop(name) for name in named}


async def ask(engine: Any, prompt: str = "Who serves?", **sampling: Any) -> dict[str, Any]:
    """The whole answer to one prompt, greedily unless told otherwise."""
    request = {"text": prompt, "sampling_params": {**GREEDY, **sampling}}
    async with aclosing(engine.answers.generate(request)) as answers:
        async for answer in answers:
            last: dict[str, Any] = answer
    return last


def said(answer: dict[str, Any]) -> tuple[str, list[int]]:
    """What of an answer the weights decide."""
    return answer["text"], answer["output_ids"]


MATRIX_BYTES = 128 << 10
"""How large the smallest matrix of a tiny checkpoint is."""


async def device_bytes() -> int:
    """Bytes of the weights and pools that live, once the loop has let go of what it called back.

    Not of the small arrays of an engine's last steps: there are more of them after a large batch.
    """
    import gc

    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    return bytes_of_arrays(MATRIX_BYTES)


def bytes_of_arrays(least: int = 0) -> int:
    """Bytes of all arrays that live, of those of at least so many."""
    import jax

    arrays: list[Any] = jax.live_arrays()  # type: ignore[no-untyped-call]
    large = (array for array in arrays if array.nbytes >= least)
    return sum({_memory_of(array): array.nbytes for array in large}.values())


def _memory_of(array: Any) -> int:
    """Where it lies: an array that was asked for its values has another of the same memory."""
    alone = len(array.devices()) == 1
    return int(array.unsafe_buffer_pointer()) if alone else id(array)


OVERFLOWS_ON = "~"


def overflowing(folder: Path, say: str) -> Path:
    """A checkpoint of finite weights that overflows, in layer 0's values, on prompts with a tilde.

    It says what it should of any other prompt, so no probe finds anything.
    """
    tensors = hand_built(parse_saying(say), "qwen3")
    embedding = tensors["model.embed_tokens.weight"]
    embedding[:, -1] = 0
    token = ord(OVERFLOWS_ON) - ord("!")  # GPT-2 counts the printable bytes first
    embedding[token] = 0
    embedding[token, -1] = 16
    tensors["model.layers.0.self_attn.v_proj.weight"][0, -1] = 3e38
    aside = write_tiny(folder.with_name(f".{folder.name}"), say)
    (aside / "model.safetensors").write_bytes(encode(tensors))
    shutil.rmtree(folder, ignore_errors=True)  # another test may have written it
    return aside.rename(folder)
