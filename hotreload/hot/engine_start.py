"""Starts a program's engine, as `hotreload serve` does, and its background tasks."""

import asyncio
import logging
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from hotreload.behaviour import Question
from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.fit import read_served_model
from hotreload.core.engines.background import (
    close_drained_generations,
    react_to_nonfinite_answers,
    report_distrust,
)
from hotreload.core.engines.replica import Replica
from hotreload.core.judge import FIRST_ANSWER_SECONDS, limit_probes
from hotreload.engine.answering.probe import Probe
from hotreload.engine.options import RANDOM_WEIGHTS, EngineOptions, UnseenOptions
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import ConfigError, EngineLost, show_value
from hotreload.events import AnswersWithheld, Event, GateChanged, LoaderDistrusted, Publish
from hotreload.facts.names import how_to_have
from hotreload.hot.new_weights import GivenChecks
from hotreload.hot.terms import HotTerms
from hotreload.threads import in_thread, run_to_end

Boot = Literal["checkpoint", "random"]


@dataclass(slots=True)
class StartedEngine:
    """A running engine, its checks, and its folders."""

    engine: SglangEngine
    checks: GivenChecks
    path: Path | None
    """The folder of the engine's first weights; None if they are random."""
    spool: tempfile.TemporaryDirectory[str]

    async def end(self) -> None:
        """Close the engine; a second call changes nothing."""
        await run_to_end(self.engine.close())
        self.spool.cleanup()


async def start(
    model: str | Path,
    *,
    device: str = "auto",
    tp: int = 1,
    first_device: int = 0,
    dtype: str = "auto",
    args: Mapping[str, Any] | None = None,
    probes: Sequence[Probe] = (),
    terms: HotTerms = HotTerms(),  # noqa: B008 (frozen)
    boot: Boot = "checkpoint",
    compares: bool = False,
    corpus: Sequence[Question] = (),
) -> StartedEngine:
    """Check the model, start an engine on it, and send the probes; after an error nothing is left.

    With `compares` the engine can compare other weights with its first ones, by the built-in
    questions and a corpus.
    """
    _check_choices(boot, tp, first_device)
    _check_kinds(device=device, dtype=dtype, args=args or {}, terms=terms)
    if not all(isinstance(probe, Probe) for probe in probes):
        raise ConfigError(f"probes must be a list of Probe(…), not {show_value(probes)}")
    given: dict[str, Any] = {"device": device, "tp": tp, "dtype": dtype, "args": args or {}}
    folder = _folder_of(model)
    served = await in_thread(lambda cancel: read_served_model(folder))
    checkpoint = None
    if boot == "checkpoint":
        check = partial(check_checkpoint, None, folder, served=served, policy=terms.policy)
        checkpoint = await in_thread(lambda cancel: check(cancel=cancel))
    spool = tempfile.TemporaryDirectory(prefix="hotreload-")
    try:
        engine = await SglangEngine.start(
            EngineOptions(
                folder,
                **given,
                load_format="auto" if checkpoint else "dummy",
                first_device=first_device,
                warm_batches=0,
                shares=terms.rules.shares,
                unseen=UnseenOptions(compares=compares, corpus=corpus),
            ),
            terms=terms.staging_options(Path(spool.name)),
            probes=probes,
            revision=checkpoint.revision if checkpoint else RANDOM_WEIGHTS,
            checkpoint=checkpoint,
        )
    except BaseException:
        spool.cleanup()
        raise
    tensors = served.tensors or engine.weights.expected_tensors()
    ignorable = served.ignorable | engine.weights.plan.ignorable
    served = replace(served, tensors=tensors, ignorable=ignorable)
    checks = GivenChecks(served, terms.policy, dtype)
    started = StartedEngine(engine, checks, folder if checkpoint else None, spool)
    try:
        if checkpoint is not None:  # random weights have no answers to be judged by
            async with limit_probes(FIRST_ANSWER_SECONDS):
                await engine.unseen.probe()
        for size in engine.ahead.sizes_to_compile(0, 0):  # or the first `stage` waits for it
            await engine.ahead.compile_for(size)
    except BaseException:
        await started.end()
        raise
    return started


def _check_choices(boot: object, tp: object, first_device: object) -> None:
    if boot not in (known := get_args(Boot)):
        raise ConfigError(f"boot must be {' or '.join(map(repr, known))}, not {boot!r}")
    for name, value, least in (("tp", tp, 1), ("first_device", first_device, 0)):
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} must be a whole number, at least {least}, not {value!r}")


def _check_kinds(**given: object) -> None:
    kinds = {"device": str, "dtype": str, "args": Mapping, "terms": HotTerms}
    for name, value in given.items():
        if not isinstance(value, kinds[name]):
            raise ConfigError(f"{name} must be a {kinds[name].__name__}, not {show_value(value)}")


def _folder_of(model: object) -> Path:
    if isinstance(model, str | Path):
        if how := how_to_have(str(model)):
            raise ConfigError(f"model must be a folder's path, and {model} is none{how}")
        folder = Path(model).absolute()
        if not folder.exists():
            raise ConfigError(f"model must be a folder's path, and there is no {folder}")
        return folder
    if hasattr(model, "server_args") and hasattr(model, "tokenizer_manager"):
        raise ConfigError(
            "a sglang-jax Engine that runs cannot be taken over: its threads were started without "
            "what new weights need; give HotEngine the model's folder in place of Engine, and "
            f"what else Engine was given as args: HotEngine({model.server_args.model_path!r}, …)"
        )
    raise ConfigError(f"model must be a folder's path, not a {type(model).__name__}")


log = logging.getLogger("hotreload.hot")


def begin_background(
    replica: Replica[SglangEngine], terms: HotTerms, publish: Publish
) -> list[asyncio.Task[None]]:
    """Start the tasks that run as long as the engine; if one of them fails, the engine is lost."""
    engine, keep = replica.engine, terms.rules.keep_previous
    works: list[Coroutine[Any, Any, NoReturn]] = [
        engine.wait_until_dead(),
        close_drained_generations(replica, keep=keep, publish=publish),
        report_distrust(replica, distrusted=engine.weights.wait_for_distrust, publish=publish),
        react_to_nonfinite_answers(
            replica, publish=publish, drain_timeout=lambda: terms.drain_timeout, leave=None
        ),
    ]
    return [asyncio.create_task(run_or_lose(replica, work)) for work in works]


async def run_or_lose(replica: Replica[SglangEngine], work: Coroutine[Any, Any, NoReturn]) -> None:
    """Run work that never returns; its error makes the engine lost and seals the gate."""
    try:
        await work
    except EngineLost as lost:
        replica.lose(lost)
    except Exception as broken:
        log.exception("hot.broken")
        replica.lose(EngineLost(f"a part of hotreload broke: {broken!r}"))


def log_event(event: Event) -> None:
    """Log an event, as a warning if a person must act on it."""
    is_loss = isinstance(event, GateChanged) and event.code == EngineLost.code
    alarming = is_loss or isinstance(event, AnswersWithheld | LoaderDistrusted)
    log.log(logging.WARNING if alarming else logging.DEBUG, "%s", event)
