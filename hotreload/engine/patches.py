"""Each work-round of an upstream fault: what, which versions, when it can go.

`0.0.2` is the release, `main` the repository as of August 2026. Nothing here knows of
checkpoints or generations.
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

from hotreload.engine.batches import joined, part_of, places_alike

FILES = 65535
"""The file limit upstream asks for."""

RING = 256
"""So many times the requests that may run is the ring of tokens that wait to be read."""

SYNC_THREAD = "_sync_expert_ids_d2h_thread_func"

IDLE_POLL_MS = 1000
"""How long an idle scheduler sleeps at a time; a message wakes it at once."""


@contextmanager
def importing_upstream() -> Iterator[None]:
    """Import sgl_jax in here: undo what its import does to the process.

    Both versions replace `threading._register_atexit` (which breaks executors' clean exit) and
    set the uvloop policy for every loop of the process; the daemon chooses its own loop.
    Goes when `entrypoints/engine.py` no longer does either at import.
    """
    register_atexit = threading._register_atexit  # type: ignore[attr-defined]
    policy = asyncio.get_event_loop_policy()
    try:
        with _tolerating_double_registration():
            yield
    finally:
        threading._register_atexit = register_atexit  # type: ignore[attr-defined]
        asyncio.set_event_loop_policy(policy)


@contextmanager
def _tolerating_double_registration() -> Iterator[None]:
    """0.0.2 with jax >= 0.8: `NativeAttention` is an nnx module and registered by hand too.

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

    with _replaced(jax.tree_util, "register_pytree_node_class", tolerant):
        yield


def ready_first_release(loader: type, sampler: types.ModuleType) -> None:
    """Make the generation of sglang-jax whose models take `rngs` (0.0.2) run here at all.

    flax >= 0.12.1 wants a mesh context its models do not give ("An auto mesh context is
    required"), and off TPU its sampler passes a 3-tuple to a function that unpacks 2, while
    the TPU branch is plain JAX and right everywhere. Goes with 0.0.2.
    """
    if "rngs" not in inspect.signature(loader.__init__).parameters:  # type: ignore[misc]
        return
    import flax

    if "flax_always_shard_variable" in flax.config._values:
        flax.config.update("flax_always_shard_variable", False)
    if hasattr(sampler, "top_k_top_p_min_p_sampling_from_probs_jax_not_tpu_runtime"):
        sampler.is_tpu_runtime = lambda: True  # type: ignore[attr-defined]


def quiet(level: int) -> None:
    """No progress bars, and upstream's loggers at `level` (both versions, by design)."""
    import tqdm  # type: ignore[import-untyped]

    logging.getLogger("sgl_jax").setLevel(level)
    tqdm.tqdm.monitor_interval = 0  # or the first bar starts a thread that never ends
    for name, module in list(sys.modules.items()):
        bar = getattr(module, "tqdm", None) if name.startswith("sgl_jax.") else None
        if isinstance(bar, type):
            module.tqdm = _silent(bar)  # type: ignore[attr-defined]


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _silent(bar: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: bar(*args, **{**kwargs, "disable": True})


@contextmanager
def starting(
    entry: types.ModuleType,
    *,
    launch_scheduler: Callable[..., dict[str, Any]],
    run_detokenizer: Callable[..., None],
    devices: Sequence[Any],
) -> Iterator[None]:
    """Construct upstream's Engine in here: it leaves the process as it was.

    Both versions would install SIGCHLD and SIGQUIT handlers (and fail outside the main
    thread), reset all logging, register an exit hook that kills every child of ours, catch a
    failed start and send SIGQUIT instead of raising, and end their threads by signals.
    `_set_envs_and_config` also raises the file limit, and warns where it may not: that is kept
    without the warning. Goes when the engine can be embedded.
    """
    no_exit_hook = types.SimpleNamespace(register=lambda *args: None)
    replaced = {
        "_set_envs_and_config": lambda server_args: _raise_file_limit(),
        "atexit": no_exit_hook,
        "configure_logger": lambda *args, **kwargs: None,
        "run_scheduler_loop_thread_after_create": launch_scheduler,
        "run_detokenizer_thread": run_detokenizer,
    }
    with ExitStack() as undo:
        for name, value in replaced.items():
            undo.enter_context(_replaced(entry, name, value))
        undo.enter_context(_on_devices(devices))
        undo.enter_context(_naming(devices[0].platform))
        yield


@contextmanager
def _naming(platform: str) -> Iterator[None]:
    """Both versions start only where JAX_PLATFORMS is the device's bare name, or not set.

    `tpu,cpu` is right on a TPU, and JAX has read it by now. Goes when `ServerArgs` does not
    compare them.
    """
    named = os.environ.get("JAX_PLATFORMS", "")
    if "," not in named:
        yield
        return
    os.environ["JAX_PLATFORMS"] = platform
    try:
        yield
    finally:
        os.environ["JAX_PLATFORMS"] = named


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _on_devices(devices: Sequence[Any]) -> Iterator[None]:
    """0.0.2 builds its mesh of every device there is, whatever tp says; main has an argument."""
    from sgl_jax.srt.managers import scheduler

    create = scheduler.create_device_mesh
    if "device_indexes" in inspect.signature(create).parameters:
        yield
        return

    def create_on(*args: Any, **kwargs: Any) -> Any:
        return create(*args, **{**kwargs, "devices": list(devices)})

    with _replaced(scheduler, "create_device_mesh", create_on):
        yield


@contextmanager
def with_threads_that_end(scheduler_class: type, worker_class: type) -> Iterator[None]:
    """Construct a scheduler in here: the threads it starts can be ended.

    Otherwise they keep every weight of a closed engine alive. The watchdog of both versions is
    left out (`SglangEngine` looks for a hang itself), and main's thread for expert statistics
    ends when it meets an `EndOfQueue`. Goes when an engine can be closed.
    """
    with ExitStack() as undo:
        undo.enter_context(_replaced(scheduler_class, "watchdog_thread", lambda self: None))
        if hasattr(worker_class, SYNC_THREAD):
            run = getattr(worker_class, SYNC_THREAD)
            undo.enter_context(_replaced(worker_class, SYNC_THREAD, _passing_an_end(run)))
        yield


def _passing_an_end(run: Callable[[Any], None]) -> Callable[[Any], None]:
    def run_to_the_end(self: Any) -> None:
        with suppress(SystemExit):
            run(self)

    return run_to_the_end


class EndOfQueue:
    """Unpacked, it ends the thread that does so; upstream's `except Exception` lets it pass."""

    def __iter__(self) -> Iterator[Any]:
        raise SystemExit


class DeathNotice:
    """Stands where upstream keeps the process it sends SIGQUIT to when a thread fails.

    In single-process mode that is *our* parent: a shell, systemd or PID 1 (0.0.2 and main).
    """

    def __init__(self, report: Callable[[str], None], who: str) -> None:
        self._report = report
        self._who = who

    def send_signal(self, signal: int) -> None:
        """Report the death instead of signalling anybody."""
        self._report(f"{self._who} failed")


def report_deaths(scheduler: Any, report: Callable[[str], None]) -> None:
    """Let failing engine threads tell us, and nobody else."""
    worker = scheduler.tp_worker
    owners = {"scheduler": scheduler, "forward": worker, "worker": getattr(worker, "worker", None)}
    for name, owner in owners.items():
        if hasattr(owner, "parent_process"):
            owner.parent_process = DeathNotice(report, f"the {name} thread")


def keep_pending_tokens(tp_worker: Any) -> None:
    """Give each batch as many slots for its tokens as it has requests, not as it is padded to.

    0.0.2 with overlap scheduling: tokens not yet read wait in a ring of 3 x max_running_requests
    slots. A prefill is padded to max_running_requests, so the third one in a row overwrites the
    tokens of those that decode meanwhile: about 1 answer in 40 said a word twice when requests
    arrived one by one. The ring is widened too: each chunk of a long prompt and each answer of
    one token takes slots while nothing is decoded. main has a slot for each request.
    """
    if not hasattr(tp_worker, "future_token_ids_ct"):
        return
    import jax
    import jax.numpy as jnp

    old, size = tp_worker.future_token_ids_map, RING * tp_worker.max_running_requests
    ring = jnp.zeros((size + tp_worker.max_running_requests + 1,), old.dtype)
    tp_worker.future_token_ids_map = jax.device_put(ring, old.sharding)
    tp_worker.future_token_ids_limit = size
    forward = tp_worker.forward_batch_generation

    def forward_counting_requests(batch: Any, **more: Any) -> Any:
        before = tp_worker.future_token_ids_ct
        result = forward(batch, **more)
        taken = before + batch.real_bs
        tp_worker.future_token_ids_ct = taken % tp_worker.future_token_ids_limit
        return result

    tp_worker.forward_batch_generation = forward_counting_requests


def abort_safely(tokenizer_manager: Any, abort_request: type) -> None:
    """An abort of a waiting request forgets it, and one of an unknown request is ignored.

    0.0.2 and main keep the state for ever, and raise KeyError for a request that just ended,
    which ends the process. Goes when `_handle_abort_req` pops with a default.
    """
    original = tokenizer_manager._handle_abort_req

    def forget(aborted: Any) -> None:
        if aborted.rid in tokenizer_manager.rid_to_state:
            original(aborted)
            del tokenizer_manager.rid_to_state[aborted.rid]

    mapping = tokenizer_manager._result_dispatcher._mapping
    mapping[:] = [(kind, forget if kind is abort_request else fn) for kind, fn in mapping]


def decode_as_each_asked(detokenizer: Any, batch_kind: type) -> None:
    """Every text by its own request's flags, and nothing is kept of one that has ended.

    0.0.2 decodes a whole batch by the flags of its first request: one client's
    `skip_special_tokens` changes what others read. And it keeps the ids of the last 65,536
    answers, gigabytes of long ones. Goes when `handle_batch_token_id_out` does neither.
    """
    original = detokenizer.handle_batch_token_id_out

    def handle(batch: Any) -> Any:
        groups = places_alike(batch)
        if len(groups) > 1:
            answer = joined([(places, original(part_of(batch, places))) for places in groups])
        else:
            answer = original(batch)
        for rid, reason in zip(batch.rids, batch.finished_reasons, strict=True):
            if reason is not None:
                detokenizer.decode_status.pop(rid, None)
        return answer

    mapping = detokenizer._request_dispatcher._mapping
    mapping[:] = [(kind, handle if kind is batch_kind else fn) for kind, fn in mapping]


def wait_while_idle(
    scheduler: Any, is_idle: Callable[[], bool], between_steps: Callable[[], None]
) -> None:
    """Sleep instead of spinning while nothing runs or waits; call `between_steps` when idle.

    In single-process mode both versions burn a whole core in a Python loop, and halve the speed
    of every other thread of the process. `sleep_on_idle` is an argument that nothing reads.
    Goes when it works.
    """
    import zmq

    receive = scheduler.recv_requests
    poller = zmq.Poller()
    for socket in (scheduler.recv_from_tokenizer, scheduler.recv_from_rpc):
        poller.register(socket, zmq.POLLIN)

    def receive_when_there_is_any() -> Any:
        between_steps()
        if is_idle():
            poller.poll(IDLE_POLL_MS)
        return receive()

    scheduler.recv_requests = receive_when_there_is_any
