"""One swap, or one comparison of two checkpoints, without a daemon.

A swap is a thin layer over `AsyncHotEngine`; it yields its events as JSON objects.
"""

import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.behaviour import Question
from hotreload.checkpoint.digests import Digests
from hotreload.engine.sglang import SglangEngine
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
from hotreload.facts.names import names_a_repo
from hotreload.features.compare.comparison import BothWeights, KnownAnswers, compare_both
from hotreload.features.compare.evidence import Behaviour
from hotreload.hot.asynchronous import AsyncHotEngine
from hotreload.hot.engine_start import StartedEngine, start
from hotreload.hot.terms import HotTerms
from hotreload.json_fields import Fields
from hotreload.sources.hub.client import usual_token
from hotreload.sources.huggingface import download

USUAL_QUESTION = "你是谁"
ANY_LOADING_SECONDS = 7 * 86400.0
"""A load may take as long as it needs: the caller may cancel at any time."""
FOR_ONE_CHECKPOINT = HotTerms(
    keep_previous="none",
    loader="upstream",  # our own loader could not be compared with it
    stage_timeout=ANY_LOADING_SECONDS,
)

DOWNLOAD_HINTS = {
    "denied": "check the name; for a private or gated repo give --token-file, or set HF_TOKEN",
    "rate_limited": "wait as long as the hub says, then run the same command again",
}


async def swap_once(
    *,
    model: str | Path,
    checkpoint: str | Path,
    prompt: str = USUAL_QUESTION,
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
    """Start on random weights, swap the checkpoint in, send one request; yield each event.

    Model and checkpoint are folders, or `org/name@revision`, downloaded into `cache`. The objects
    are `engine_ready_dummy`, `weights_swapped` and `generate_result`; if a step fails, the last
    object is `weights_swap_error`, with a hint. Close the generator if you leave it early.
    """
    terms = replace(FOR_ONE_CHECKPOINT, dtype_change="cast" if cast else "reject")
    options = {"device": device, "tp": tp, "dtype": dtype, "args": args}
    digests = Digests()
    fetch = partial(_on_this_disk, cache=cache, digests=digests, token=token, publish=publish)
    named = (str(model), str(checkpoint))
    try:
        model, checkpoint = [await fetch(name) for name in named]
        _check_there(model, f"--model {model}", "config.json")
        _check_there(checkpoint, f"--checkpoint {checkpoint}")
        began = time.perf_counter()
        async with _on_random_weights(model, terms, digests, options) as (hot, engine):
            model_id = named[0] if names_a_repo(named[0]) else model.absolute().name
            yield {"event": "engine_ready_dummy", "model_id": model_id} | _ready(
                engine, model, checkpoint, began
            )
            yield await _swap_fields(hot, engine, checkpoint)
            yield await _answer_fields(hot, prompt, max_new_tokens)
    except HotReloadError as error:
        yield _error_fields(error, Path(model), Path(checkpoint))


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of two checkpoints that answered the same questions."""

    live: str
    new: str
    """Their fingerprints."""
    behaviour: Behaviour


async def compare_once(
    live: str | Path,
    new: str | Path,
    *,
    device: str = "auto",
    tp: int = 1,
    dtype: str = "auto",
    args: Mapping[str, Any] | None = None,
    terms: HotTerms = FOR_ONE_CHECKPOINT,
    corpus: Sequence[Question] = (),
    cache: Path | None = None,
    token: Callable[[], str | None] = usual_token,
    publish: Publish = lambda event: None,
    begins: Callable[[str], None] = lambda step: None,
) -> Compared:
    """Start an engine with one checkpoint, load another beside it, and compare their answers.

    The checkpoints are folders, or `org/name@revision`, downloaded into `cache`. The checks are
    those of a reload; nothing goes live. The questions are the built-in ones, and a `corpus`.
    `begins` is called at each step. Raises the first fault.
    """
    fetch = partial(_on_this_disk, cache=cache, digests=Digests(), token=token, publish=publish)
    names = (str(live), str(new))
    folders = [await fetch(name) for name in names]
    _check_there(folders[0], names[0], "config.json")
    _check_there(folders[1], names[1])
    begins(f"starting an engine with {names[0]}")
    on = partial(start, device=device, tp=tp, dtype=dtype, args=args)
    started = await on(folders[0], terms=terms, compares=True, corpus=corpus)
    try:
        return await _compare_answers(started, folders[1], names, corpus, begins)
    finally:
        await started.end()


async def _compare_answers(
    started: StartedEngine,
    folder: Path,
    names: tuple[str, str],
    corpus: Sequence[Question],
    begins: Callable[[str], None],
) -> Compared:
    engine, (live, new) = started.engine, names
    if (why := engine.unseen.cannot_compare) is not None:
        raise ConfigError(f"this engine cannot compare weights: {why}")
    begins(f"checking {new}")
    checkpoint = await started.checks.check(folder)
    begins(f"loading {new} beside {live}")
    staged = await engine.weights.stage(checkpoint)
    begins("asking both the same")
    found = await compare_both(
        BothWeights(engine, engine.weights.live, staged), KnownAnswers(), corpus
    )
    if found is None:
        raise CheckpointRejected(
            f"{live} makes no numbers of what it is asked: there is nothing to compare with"
        )
    return Compared(engine.weights.live.fingerprint, staged.fingerprint, found)


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
async def _on_random_weights(
    model: Path, terms: HotTerms, digests: Digests, options: Mapping[str, Any]
) -> AsyncIterator[tuple[AsyncHotEngine, SglangEngine]]:
    """Hold an engine with random weights; the checkpoint is checked against its tensors."""
    started = await start(model, terms=terms, boot="random", **options)
    needed = started.engine.weights.expected_tensors()
    started.checks = started.checks.against(needed, digests)
    async with AsyncHotEngine(started, terms) as hot:
        yield hot, started.engine


def _check_there(folder: Path, said: str, file: str | None = None) -> None:
    if folder.is_dir() and (file is None or (folder / file).is_file()):
        return
    what = "is no folder" if not folder.is_dir() else f"has no {file}"
    raise SourceUnavailable(f"{said} {what}")


def _ready(engine: SglangEngine, model: Path, checkpoint: Path, began: float) -> Fields:
    folders = {"model": model, "checkpoint": checkpoint, "temporary": tempfile.gettempdir()}
    return {
        **engine.facts(),
        "folders": {name: str(folder) for name, folder in folders.items()},
        "leaves": engine.weights.leaf_count,
        "seconds": _since(began),
    }


async def _swap_fields(hot: AsyncHotEngine, engine: SglangEngine, checkpoint: Path) -> Fields:
    began, before, structure = time.perf_counter(), hot.fingerprint, engine.weights.structure()
    async with await hot.stage(checkpoint) as staged:
        staged.is_proven = True  # what it answers is shown, whatever it is
        live = await staged.flip()
    _check_structure(structure, engine.weights.structure())
    return {
        "event": "weights_swapped",
        "snapshot": _whole(checkpoint),
        "revision": live.revision.id,
        "leaves": len(live.leaves),
        "bytes": live.bytes,
        "fingerprint_before": before,
        "fingerprint_after": live.fingerprint,
        "seconds": _since(began),
    }


def _check_structure(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """CheckpointIncompatible if the live weights' structure changed; staging checks it before."""
    if changed := sorted({path for path, _ in before.items() ^ after.items()}):
        raise CheckpointIncompatible(
            f"the exchange changed the structure of {len(changed)} leaves", findings=changed[:10]
        )


async def _answer_fields(hot: AsyncHotEngine, prompt: str, max_new_tokens: int) -> Fields:
    sampling = {"temperature": 0, "max_new_tokens": max_new_tokens}
    answer = await hot.generate(prompt, sampling)
    return {
        "event": "generate_result",
        "prompt": prompt,
        "sampling_params": sampling,
        "text": answer["text"],
        "raw": answer,
    }


def _error_fields(error: HotReloadError, model: Path, checkpoint: Path) -> Fields:
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


def _whole(folder: Path) -> str:
    return str(folder.absolute())


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 3)
