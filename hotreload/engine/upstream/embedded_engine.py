"""Imports, starts and ends upstream in our process, and keeps it from changing that process.

`0.0.2` is the release, `main` the repository as of August 2026. `patches` mends what upstream
does wrong while it runs.
"""

import asyncio
import inspect
import logging
import os
import resource
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from hotreload.facts.upstream import GPU_NAMES

FILE_LIMIT = 65535
"""The file limit upstream asks for."""

SYNC_THREAD = "_sync_expert_ids_d2h_thread_func"


@contextmanager
def import_upstream() -> Iterator[None]:
    """Import sgl_jax in this context: the changes of its import to the process are undone.

    Both versions replace `threading._register_atexit` (which breaks executors' clean exit) and
    set the uvloop policy for every loop of the process; the daemon chooses its own loop.
    Goes when `entrypoints/engine.py` no longer does either at import.
    """
    register_atexit = threading._register_atexit  # type: ignore[attr-defined]
    policy = asyncio.get_event_loop_policy()
    try:
        with _tolerate_double_registration():
            yield
    finally:
        threading._register_atexit = register_atexit  # type: ignore[attr-defined]
        asyncio.set_event_loop_policy(policy)


def forget_arrays() -> None:
    """Free the arrays that upstream keeps on the device for all engines; they are made again.

    0.1.0rc0 and main keep an array of zeros for each size of a batch, for ever. Goes when such an
    array belongs to an engine.
    """
    module: Any = sys.modules.get("sgl_jax.srt.sampling.sampling_batch_info")
    if hasattr(module, "_zero_linear_penalty_cache"):
        with module._zero_linear_penalty_lock:
            module._zero_linear_penalty_cache.clear()


@contextmanager
def _tolerate_double_registration() -> Iterator[None]:
    """Let `NativeAttention` be registered twice: 0.0.2 does so, and jax >= 0.8 refuses that.

    Goes with 0.0.2; main registers it once.
    """
    import jax

    register = jax.tree_util.register_pytree_node_class

    def tolerant(cls: Any) -> Any:
        try:
            return register(cls)
        except ValueError:
            if cls.__name__ != "NativeAttention":
                raise
            return cls

    with _replace(jax.tree_util, "register_pytree_node_class", tolerant):
        yield


def quiet(level: int) -> None:
    """Turn off progress bars and set upstream's loggers to `level`; both versions are loud."""
    import tqdm  # type: ignore[import-untyped]

    logging.getLogger("sgl_jax").setLevel(level)
    tqdm.tqdm.monitor_interval = 0  # or the first bar starts a thread that never ends
    for name, module in list(sys.modules.items()):
        bar = getattr(module, "tqdm", None) if name.startswith("sgl_jax.") else None
        if isinstance(bar, type):
            module.tqdm = _silent(bar)  # type: ignore[attr-defined]


@contextmanager
def _replace(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _silent(bar: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: bar(*args, **{**kwargs, "disable": True})


@contextmanager
def patch_start(
    entry: types.ModuleType,
    *,
    launch_scheduler: Callable[..., dict[str, Any]],
    devices: Sequence[Any],
) -> Iterator[None]:
    """Construct upstream's Engine in this context: the process stays as it was.

    Both versions would install SIGCHLD and SIGQUIT handlers (and fail outside the main
    thread), reset all logging, register an exit hook that kills every child of ours, catch a
    failed start and send SIGQUIT instead of raising, and end their threads by signals.
    `_set_envs_and_config` also raises the file limit, and warns where it may not: we raise it,
    without the warning. Goes when the engine can be embedded.
    """
    _read_configs_anew()
    no_exit_hook = types.SimpleNamespace(register=lambda *args: None)
    replaced = {
        "_set_envs_and_config": lambda server_args: _raise_file_limit(),
        "atexit": no_exit_hook,
        "configure_logger": lambda *args, **kwargs: None,
        "run_scheduler_loop_thread_after_create": launch_scheduler,
        # Text is made where answers are delivered (answering.answer_text).
        "run_detokenizer_thread": lambda *args: None,
    }
    with ExitStack() as undo:
        for name, value in replaced.items():
            undo.enter_context(_replace(entry, name, value))
        undo.enter_context(_on_devices(devices))
        undo.enter_context(_name_platform(devices[0].platform))
        undo.enter_context(_skip_joining())
        undo.enter_context(_scan_own_files())
        yield


def _read_configs_anew() -> None:
    """Forget the models' configs that were read in this process.

    0.0.2 writes into its kept config the number of key and value heads with a copy for each
    device. The next engine on that model repeated those, and failed at its first step. Goes with
    0.0.2; main changes a copy.
    """
    from sgl_jax.srt.hf_transformers_utils import get_config

    get_config.cache_clear()


@contextmanager
def _skip_joining() -> Iterator[None]:
    """Keep the start from joining ranks that have met already: 0.0.2 joins again, which fails.

    Both versions would also keep a rank above 0 in the start for ever, unless a variable is 0.
    """
    import jax

    variable = "SGLANG_BLOCK_NONZERO_RANK_CHILDREN"
    before = os.environ.get(variable)
    os.environ[variable] = "0"
    try:
        with _replace(jax.distributed, "initialize", lambda *args, **kwargs: None):
            yield
    finally:
        os.environ.pop(variable)
        if before is not None:
            os.environ[variable] = before


@contextmanager
def _scan_own_files() -> Iterator[None]:
    """Let each of several ranks read the headers of the weights in its own folder.

    0.1.0rc0 and main send rank 0's headers to all ranks, with paths that only rank 0 has.
    Goes when `_scan_weight_info` sends no paths; 0.0.2 has none.
    """
    import jax
    from sgl_jax.srt.utils import weight_utils

    loader: Any = getattr(weight_utils, "WeightLoader", None)
    if jax.process_count() == 1 or not hasattr(loader, "_scan_weight_info"):
        yield
        return
    scan = loader._scan_weight_info
    alone = types.SimpleNamespace(process_index=lambda: 0)
    to_no_rank = types.SimpleNamespace(broadcast_one_to_all=lambda sent, is_source: sent)

    def scan_here(self: Any) -> Any:
        with (
            _replace(weight_utils, "jax", alone),
            _replace(weight_utils, "multihost_utils", to_no_rank),
        ):
            return scan(self)

    with _replace(loader, "_scan_weight_info", scan_here):
        yield


@contextmanager
def _name_platform(platform: str) -> Iterator[None]:
    """Set JAX_PLATFORMS to the device's bare name meanwhile: both versions refuse any other.

    `tpu,cpu` is right on a TPU, `cuda` on a GPU, and JAX has read it by now. Goes when
    `ServerArgs` does not compare it with the device.
    """
    named = os.environ.get("JAX_PLATFORMS", "")
    if "," not in named and named not in GPU_NAMES:
        yield
        return
    os.environ["JAX_PLATFORMS"] = platform
    try:
        yield
    finally:
        os.environ["JAX_PLATFORMS"] = named


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(FILE_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _on_devices(devices: Sequence[Any]) -> Iterator[None]:
    """Have 0.0.2 build its mesh of `devices`: it takes all there are; main has an argument.

    0.0.2 also measures the fullest device of the machine: beside another engine it would find no
    room for a KV pool. It drops every compiled program of the process, too: other engines would
    compile again while clients wait. main does neither.
    """
    from sgl_jax.srt.managers import scheduler
    from sgl_jax.srt.model_executor import model_runner

    create, measure = scheduler.create_device_mesh, model_runner.get_available_device_memory
    if "device_indexes" in inspect.signature(create).parameters:
        yield
        return

    def create_on(*args: Any, **kwargs: Any) -> Any:
        return create(*args, **{**kwargs, "devices": list(devices)})

    def free_on(device: str, *args: Any, **kwargs: Any) -> Any:
        if device == "cpu":  # the machine's memory
            return measure(device, *args, **kwargs)
        stats = [each.memory_stats() for each in devices]
        return min(each["bytes_limit"] - each["bytes_in_use"] for each in stats)

    with (
        _replace(scheduler, "create_device_mesh", create_on),
        _replace(model_runner, "get_available_device_memory", free_on),
    ):
        yield


@contextmanager
def with_threads_that_end(scheduler_class: type, worker_class: type) -> Iterator[None]:
    """Construct a scheduler in this context: the threads it starts can be ended.

    Otherwise they keep every weight of a closed engine alive. The watchdog of both versions is
    left out (`SglangEngine` finds a hang itself). main's thread for expert statistics ends when it
    meets an `EndOfQueue`. Goes when an engine can be closed.
    """
    with ExitStack() as undo:
        undo.enter_context(_replace(scheduler_class, "watchdog_thread", lambda self: None))
        if hasattr(worker_class, SYNC_THREAD):
            run = getattr(worker_class, SYNC_THREAD)
            undo.enter_context(_replace(worker_class, SYNC_THREAD, _pass_an_end(run)))
        yield


def _pass_an_end(run: Callable[[Any], None]) -> Callable[[Any], None]:
    def run_to_the_end(self: Any) -> None:
        with suppress(SystemExit):
            run(self)

    return run_to_the_end


class EndOfQueue:
    """Ends the thread that unpacks it; upstream's `except Exception` lets SystemExit pass."""

    def __iter__(self) -> Iterator[Any]:
        raise SystemExit


class DeathNotice:
    """Stands where upstream keeps the process it sends SIGQUIT to when a thread fails.

    In single-process mode that is *our* parent: a shell, systemd or PID 1 (0.0.2 and main).
    """

    def __init__(self, report: Callable[[str], None], thread: str) -> None:
        self._report = report
        self._thread = thread

    def send_signal(self, signal: int) -> None:
        """Report the death instead of sending a signal."""
        self._report(f"{self._thread} failed")


def report_deaths(scheduler: Any, report: Callable[[str], None]) -> None:
    """Let failing engine threads report to us, instead of signalling another process."""
    worker = scheduler.tp_worker
    owners = {"scheduler": scheduler, "forward": worker, "worker": getattr(worker, "worker", None)}
    for name, owner in owners.items():
        if hasattr(owner, "parent_process"):
            owner.parent_process = DeathNotice(report, f"the {name} thread")
