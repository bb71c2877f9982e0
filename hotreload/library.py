"""One swap without a daemon: an engine with random weights takes on a checkpoint and answers.

It uses the daemon's parts but no daemon, and yields what happens as JSON objects.
"""

import tempfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.digests import Digests
from hotreload.checkpoint.fit import Policy, served_by
from hotreload.engine.options import EngineOptions
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.weights.sets import StagingOptions
from hotreload.errors import (
    BadRequest,
    CheckpointIncompatible,
    CheckpointRejected,
    ConfigError,
    EngineLost,
    HotReloadError,
    NotEnoughMemory,
    SourceUnavailable,
)
from hotreload.events import Publish
from hotreload.hub_names import names_a_repo
from hotreload.sources.hub.client import usual_token
from hotreload.sources.hub.once import download
from hotreload.threads import in_thread, uninterrupted
from hotreload.types import Checkpoint, Revision, Served

PROMPT = "你是谁"
RANDOM = Revision("random", "random weights")

DOWNLOAD_HINTS = {
    "denied": "check the name; for a private or gated repo give --token-file, or set HF_TOKEN",
    "rate_limited": "wait as long as the hub says, then run the same command again",
}

Fields = dict[str, Any]
"""A JSON object."""


async def swap_once(
    *,
    model: str | Path,
    checkpoint: str | Path,
    prompt: str = PROMPT,
    max_new_tokens: int = 32,
    device: str = "auto",
    tp: int = 1,
    dtype: str = "auto",
    cast: bool = False,
    args: Mapping[str, Any] | None = None,
    cache: Path | None = None,
    token: Callable[[], str | None] = usual_token,
    publish: Publish = lambda event: None,
) -> AsyncGenerator[Fields]:
    """Start on random weights, swap the checkpoint in, ask once; yield what happens.

    Model and checkpoint are folders, or `org/name@revision`, downloaded into `cache`. The objects
    are `engine_ready_dummy`, `weights_swapped` and `generate_result`; when a step fails, the last
    object is `weights_swap_error`, with a hint. Close the generator if you leave it early.
    """
    policy = Policy(dtype_change="cast" if cast else "reject")
    options = partial(EngineOptions, device=device, tp=tp, dtype=dtype, args=args or {})
    digests = Digests()
    fetch = partial(_on_this_disk, cache=cache, digests=digests, token=token, publish=publish)
    named = (str(model), str(checkpoint))
    try:
        model, checkpoint = [await fetch(name) for name in named]
        _check_there(model, "model", "config.json")
        _check_there(checkpoint, "checkpoint")
        began = time.perf_counter()
        async with _random_engine(options(model, load_format="dummy")) as engine:
            model_id = named[0] if names_a_repo(named[0]) else model.absolute().name
            yield {"event": "engine_ready_dummy", "model_id": model_id} | _ready(
                engine, model, checkpoint, began
            )
            check = partial(_checked, engine, model, checkpoint, policy=policy, digests=digests)
            yield await _swapped(engine, check)
            yield await _answered(engine, prompt, max_new_tokens)
    except HotReloadError as error:
        yield _failed(error, Path(model), Path(checkpoint))


async def _on_this_disk(
    name: str,
    *,
    cache: Path | None,
    digests: Digests,
    token: Callable[[], str | None],
    publish: Publish,
) -> Path:
    if not names_a_repo(name):
        return Path(name)
    if cache is None:
        raise ConfigError(f"{name}: a download needs a cache folder")
    return await download(name, cache=cache, digests=digests, token=token, publish=publish)


@asynccontextmanager
async def _random_engine(options: EngineOptions) -> AsyncIterator[SglangEngine]:
    with tempfile.TemporaryDirectory(prefix="hotreload-") as spool:
        terms = StagingOptions(Path(spool), loader="upstream")  # one checkpoint: nothing to compare
        engine = await SglangEngine.start(options, revision=RANDOM, terms=terms)
        try:
            yield engine
        finally:
            await uninterrupted(engine.close())


def _check_there(folder: Path, option: str, file: str | None = None) -> None:
    if folder.is_dir() and (file is None or (folder / file).is_file()):
        return
    what = "is no folder" if not folder.is_dir() else f"has no {file}"
    raise SourceUnavailable(f"--{option} {folder} {what}")


def _ready(engine: SglangEngine, model: Path, checkpoint: Path, began: float) -> Fields:
    folders = {"model": model, "checkpoint": checkpoint, "temporary": tempfile.gettempdir()}
    return {
        **engine.facts(),
        "folders": {name: str(folder) for name, folder in folders.items()},
        "leaves": engine.leaf_count,
        "seconds": _since(began),
    }


async def _swapped(engine: SglangEngine, check: Callable[[threading.Event], Checkpoint]) -> Fields:
    began, structure = time.perf_counter(), engine.structure()
    checkpoint = await in_thread(check)
    old = await engine.exchange(await engine.stage(checkpoint))
    await engine.scrub()  # random weights may have made NaN of a prompt
    await engine.release(old)
    _check_structure(structure, engine.structure())
    return {
        "event": "weights_swapped",
        "snapshot": str(checkpoint.path),
        "revision": checkpoint.revision.id,
        "leaves": engine.leaf_count,
        "bytes": engine.live.bytes,
        "fingerprint_before": old.fingerprint,
        "fingerprint_after": engine.live.fingerprint,
        "seconds": _since(began),
    }


def _checked(
    engine: SglangEngine,
    model: Path,
    folder: Path,
    cancel: threading.Event,
    *,
    policy: Policy,
    digests: Digests,
) -> Checkpoint:
    """Run the daemon's checks against what the engine says it needs."""
    stated = served_by(model)
    ignorable = stated.ignorable | engine.ignorable
    served = Served(engine.expected_tensors(), stated.config, stated.side_files, ignorable)
    folder = folder.absolute()
    return check_checkpoint(
        None, folder, served=served, policy=policy, cancel=cancel, digests=digests
    )


def _check_structure(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Staging refuses weights of another structure; this checks the live weights once more."""
    if changed := sorted({path for path, _ in before.items() ^ after.items()}):
        raise CheckpointIncompatible(
            f"the exchange changed the structure of {len(changed)} leaves", findings=changed[:10]
        )


async def _answered(engine: SglangEngine, prompt: str, max_new_tokens: int) -> Fields:
    sampling = {"temperature": 0, "max_new_tokens": max_new_tokens}
    request = {"text": prompt, "sampling_params": sampling}
    async with aclosing(engine.generate(request)) as answers:
        answer = await anext(answers)
    assert isinstance(answer, dict)
    return {
        "event": "generate_result",
        "prompt": prompt,
        "sampling_params": sampling,
        "text": answer["text"],
        "raw": answer,
    }


def _failed(error: HotReloadError, model: Path, checkpoint: Path) -> Fields:
    return {
        "event": "weights_swap_error",
        "error": type(error).__name__,
        "code": error.code,
        "message": str(error),
        "findings": list(error.findings),
        "hint": _hint(error, model, checkpoint),
    }


def _hint(error: HotReloadError, model: Path, checkpoint: Path) -> str:
    missing = next((each for each in (model, checkpoint) if not each.exists()), None)
    if isinstance(error, SourceUnavailable):
        return _hint_where(error, missing)
    if error.code == "dtype":
        return (
            "--dtype says what the engine serves, --cast lets the loader change the file's dtype; "
            "the random weights of sglang-jax 0.0.2 fit --dtype bfloat16 alone"
        )
    hints: dict[type[HotReloadError], str] = {
        ConfigError: "[engine] NAME in the message is --NAME here, [engine.args] --engine-arg",
        CheckpointRejected: f"`hotreload check {checkpoint} --against {model}` lists all that is "
        "wrong with it",
        NotEnoughMemory: "free space, or name another disk with --cache"
        if error.code == "disk"
        else "the message says where; --engine-arg mem_fraction_static=0.5 leaves more",
        BadRequest: "change --prompt or --max-new-tokens; the weights were swapped",
        EngineLost: "the log on stderr says what happened; start again",
    }
    return next((hint for kind, hint in hints.items() if isinstance(error, kind)), "try again")


def _hint_where(error: HotReloadError, missing: Path | None) -> str:
    if missing is not None and names_a_repo(str(missing)):
        going_on = "what was downloaded is kept; run the same command again to get the rest"
        return DOWNLOAD_HINTS.get(error.code, going_on)
    if missing is None:
        return "a model is a folder with config.json and tokenizer, a checkpoint one with weights"
    return "name a folder that is there; relative paths start at the current folder"


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 3)
