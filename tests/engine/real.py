"""The real engine on this machine's CPU, with tiny checkpoints; for every test that needs one.

Import it before JAX looks for devices: it makes two out of one CPU, so that engines of one
and of two devices run in the same process (each takes only the devices it is told to).
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import xxhash

from hotreload.tiny import write_tiny
from hotreload.tiny.shards import encode
from hotreload.tiny.weights import hand_built
from hotreload.tiny.words import parse_saying
from hotreload.types import Checkpoint, CheckpointFile, Revision, TensorSpec

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ARGS = {
    "max_total_tokens": 2048,
    "context_length": 512,
    "max_running_requests": 8,
    "chunked_prefill_size": 512,
}
GREEDY = {"temperature": 0, "max_new_tokens": 12}
ENDLESS = {"temperature": 0, "max_new_tokens": 480, "ignore_eos": True}


def checked(folder: Path) -> Checkpoint:
    """The folder as a checkpoint that passed every check, whether it would or not."""
    files = tuple(_file(path) for path in sorted(folder.glob("*.safetensors")))
    tensors = {name: spec for file in files for name, spec in _tensors(folder / file.name)}
    return Checkpoint(Revision(folder.name), folder, files, tensors, sum(f.size for f in files))


def _file(path: Path) -> CheckpointFile:
    content = path.read_bytes()
    return CheckpointFile(path.name, len(content), xxhash.xxh3_128_hexdigest(content))


def _tensors(path: Path) -> list[tuple[str, TensorSpec]]:
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    header.pop("__metadata__", None)
    return [(name, TensorSpec(tuple(e["shape"]), e["dtype"])) for name, e in header.items()]


class Folders:
    """Tiny checkpoints by number; each says it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, number: int, damage: str | None = None) -> Path:
        folder = self.root / f"step_{number}{'_' + damage if damage else ''}"
        return write_tiny(folder, f"served by step {number}", damage=damage)

    def checkpoint(self, number: int, damage: str | None = None) -> Checkpoint:
        return checked(self.folder(number, damage))


@asynccontextmanager
async def engine_of(folder: Path, spool: Path, **settings: Any) -> AsyncIterator[Any]:
    """A real engine that serves the folder, closed at the end."""
    from hotreload.engine.sglang import SglangEngine

    settings = {"dtype": "bfloat16", **settings, "args": {**ARGS, **settings.get("args", {})}}
    engine = await SglangEngine.start(
        model=folder, device="cpu", spool=spool, revision=Revision(folder.name), **settings
    )
    try:
        yield engine
    finally:
        await engine.close()


async def ask(engine: Any, prompt: str = "Who serves?", **sampling: Any) -> dict[str, Any]:
    """The whole answer to one prompt, greedily unless told otherwise."""
    request = {"text": prompt, "sampling_params": {**GREEDY, **sampling}}
    async with aclosing(engine.generate(request)) as answers:
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

    import jax

    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    sizes = [array.nbytes for array in jax.live_arrays()]  # type: ignore[no-untyped-call]
    return sum(size for size in sizes if size >= MATRIX_BYTES)


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
    return aside.rename(folder)
