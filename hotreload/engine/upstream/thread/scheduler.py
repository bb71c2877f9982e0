"""The engine's scheduler thread: runs it, ends it, and works on it between two steps.

Knows which state of a scheduler must be empty or forgotten; nothing of weights.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from hotreload import failpoints
from hotreload.engine.grammar_trials.program import deep_stack
from hotreload.engine.lanes.compiled_sizes import CompiledSizes
from hotreload.engine.lanes.fits import why_no_lanes
from hotreload.engine.lanes.lanes import Lanes
from hotreload.engine.slots import find_slot
from hotreload.engine.upstream import embedded_engine, patches
from hotreload.engine.upstream.distributed import Distributed
from hotreload.engine.upstream.thread.load_notes import Load
from hotreload.engine.upstream.thread.nonfinite_logits import end_nonfinite
from hotreload.threads import forget_locals
from hotreload.types import Shares

log = logging.getLogger("hotreload.engine")

SILENT_TURN_SECONDS = 5 * patches.IDLE_POLL_MS / 1000
"""An idle loop turns every `IDLE_POLL_MS`; one that is silent for this long is not idle."""


@dataclass(frozen=True, slots=True)
class Wake:
    """A message without content: an idle scheduler sleeps until some message comes."""


class SchedulerStopped(BaseException):
    """Ends an engine loop from within; upstream's `except Exception` lets it pass."""


class SchedulerThread:
    """Runs a scheduler's own event loop, and jobs of ours when it is idle between steps."""

    def __init__(
        self,
        scheduler: Any,
        report: Callable[[str], None],
        shares: Shares,
        distributed: Distributed | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._report = report
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._jobs_at_a_turn: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._stopping = False
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._turned_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="hotreload-scheduler", daemon=True)
        scheduler._request_dispatcher._mapping.append((Wake, lambda message: None))
        embedded_engine.report_deaths(scheduler, report)
        patches.keep_pending_tokens(scheduler.tp_worker)
        patches.keep_cache_locations(scheduler)
        end_nonfinite(scheduler)
        self.cannot_overlap = why_no_lanes(scheduler)
        """Reason why two generations cannot answer side by side in it; None when they can."""
        self._lanes = None if self.cannot_overlap else Lanes(scheduler, shares)
        self.load = Load(scheduler, self._lanes)
        """Notes of how busy it is, for any thread to read."""
        self.turns = distributed.keep_in_step(scheduler, self._check_stop) if distributed else None
        """Keeps the processes of the engine in step; None where there is one."""
        patches.wait_while_idle(scheduler, self._is_idle, self._between_steps)

    def start(self) -> None:
        """Begin to serve, on a stack as large as that of the threads that compile grammars."""
        with deep_stack():
            self._thread.start()

    @property
    def serving_threads(self) -> set[int | None]:
        """The ids of the threads that clients wait for."""
        forward = getattr(self.scheduler.tp_worker, "forward_thread", self._thread)
        return {self._thread.ident, forward.ident}

    @property
    def lanes(self) -> Lanes:
        """The lanes of this scheduler; only where there is no reason against them."""
        assert self._lanes is not None, self.cannot_overlap
        return self._lanes

    @property
    def compiled_sizes(self) -> CompiledSizes:
        """The sizes of batches that are compiled for; without lanes none are noted."""
        return CompiledSizes() if self._lanes is None else self._lanes.compiled

    def forget_unused(self) -> int:
        """Drop the cached prefixes that no running request uses; return their number of tokens.

        Only a job of `submit_at_a_turn` may call this. Without lanes no prefix is dropped.
        """
        return 0 if self._lanes is None else self._lanes.forget_unused()

    def bind(self, leaves: list[Any]) -> None:
        """Compute with these leaves from now on; only while one set answers, and none is asked."""
        if self._lanes is None:
            find_slot(self.scheduler.tp_worker.get_model_runner()).rebind(leaves)
        else:
            self._lanes.exchange(leaves)

    def submit_at_a_turn[T](self, job: Callable[[], T]) -> Future[T]:
        """Run `job` on this thread at the beginning of its next turn; the caller wakes it."""
        future: Future[T] = Future()
        self._jobs_at_a_turn.append((job, future))
        return future

    def submit[T](self, job: Callable[[], T]) -> Future[T]:
        """Run `job` on this thread as soon as nothing runs or waits; the caller wakes it.

        Cancelling the future before that takes the job back.
        """
        future: Future[T] = Future()
        self._jobs.append((job, future))
        return future

    def stand_still(self) -> None:
        """Compute nothing from the end of this job until `go_on`; only a job of `submit` may ask.

        Work that is done meanwhile calls `note_turn`: a thread that stands still for long counts
        as hung.
        """
        self._may_go_on.clear()

    def go_on(self) -> None:
        """Compute again."""
        self.note_turn()
        self._may_go_on.set()

    def note_turn(self) -> None:
        """The loop turned, or what it stands still for goes on."""
        self._turned_at = time.monotonic()

    def ask_to_stop(self) -> None:
        """End the loop at its next turn, whatever runs; the caller wakes it."""
        self._stopping = True

    def join(self, timeout: float) -> bool:
        """Wait for the end; False when it did not come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def drop_references(self) -> None:
        """Hold nothing of the engine any more, once it has ended: an error may hold this object."""
        del self.scheduler, self._lanes, self.load, self.turns

    def fault(self) -> str | None:
        """Name an engine thread that has ended, if any."""
        threads = [self._thread, *worker_threads(self.scheduler)]
        ended = [thread.name for thread in threads if not thread.is_alive()]
        return f"engine thread {ended[0]} has ended" if ended else None

    def progress(self) -> tuple[bool, int]:
        """Say if something is under way, and how many batches were begun: so a hang shows.

        A batch that was launched is under way until its result is there. A loop that has nothing
        to do and yet does not turn also counts as busy.
        """
        is_under_way = not self.has_nothing_to_do() or self._silent_seconds() > SILENT_TURN_SECONDS
        return is_under_way, self.scheduler.forward_ct

    def is_turning(self, within: float) -> bool:
        """Say if the loop turned in the last `within` seconds, or is busy with a step.

        An idle loop turns every second. A step may compile: `EngineWatch` says when it takes too
        long.
        """
        return not self.has_nothing_to_do() or self._silent_seconds() <= within

    def _silent_seconds(self) -> float:
        return time.monotonic() - self._turned_at

    def _run(self) -> None:
        try:
            _event_loop(self.scheduler)
        except SchedulerStopped:
            return
        except Exception as fault:
            log.critical("engine.internal_error", exc_info=fault)
            self._report(f"the scheduler thread failed: {type(fault).__name__}: {fault}")

    def has_nothing_to_do(self) -> bool:
        """Say if nothing runs or waits, in any lane; on this thread, or as a guess."""
        return is_idle(self.scheduler) and (self._lanes is None or self._lanes.are_others_idle)

    def _is_idle(self) -> bool:
        lanes = self._lanes
        waits = self.has_nothing_to_do() or (lanes is not None and lanes.only_gather)
        if self._jobs or self._jobs_at_a_turn or not waits:
            return False
        if lanes is not None and lanes.has_ending:
            return False  # it ends when its turn comes
        if self.turns is not None and self.turns.has_orders:
            return False
        failpoints.reach_in_thread("resting")
        return True

    def _between_steps(self) -> None:
        self.note_turn()
        self._check_stop()
        while self._jobs_at_a_turn:
            _run_job(*self._jobs_at_a_turn.popleft())
        while self._jobs and self.has_nothing_to_do():
            _run_job(*self._jobs.popleft())
        while not self._may_go_on.wait(SILENT_TURN_SECONDS):
            self._check_stop()
        self.load.note(self._turned_at)
        if self._lanes is not None:
            self._lanes.turn()

    def _check_stop(self) -> None:
        if self._stopping:
            raise SchedulerStopped


def _run_job(job: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(job())
    except Exception as fault:  # the caller's, not the engine's: the loop must go on
        forget_locals(fault)
        future.set_exception(fault)


def _event_loop(scheduler: Any) -> None:
    from sgl_jax.srt.managers import scheduler as upstream

    if hasattr(upstream, "dispatch_scheduler_event_loop"):
        upstream.dispatch_scheduler_event_loop(scheduler, scheduler.server_args)
    elif scheduler.enable_overlap:
        scheduler.event_loop_overlap()
    else:
        scheduler.event_loop_normal()


def worker_threads(scheduler: Any) -> list[threading.Thread]:
    """The threads a scheduler has beside its own; version and arguments decide which."""
    worker: Any = getattr(scheduler, "tp_worker", None)
    owners = (worker, getattr(worker, "worker", None))
    names = ("forward_thread", "sync_expert_ids_d2h_thread")
    found = (getattr(owner, name, None) for owner in owners for name in names)
    return list({id(thread): thread for thread in found if thread is not None}.values())


def end_worker_threads(scheduler: Any, seconds: float) -> None:
    """End these threads through their queues; only when the scheduler's own does not run."""
    worker: Any = getattr(scheduler, "tp_worker", None)
    if hasattr(worker, "forward_thread"):
        worker.input_queue.put((None, None, None, None))
    inner = getattr(worker, "worker", worker)
    if hasattr(inner, "sync_queue"):
        inner.sync_queue.put(embedded_engine.EndOfQueue())
    for thread in worker_threads(scheduler):
        thread.join(seconds)


def is_idle(scheduler: Any) -> bool:
    """Say if nothing runs or waits, and no result of a step is still to come."""
    if hasattr(scheduler, "is_fully_idle"):
        return bool(scheduler.is_fully_idle())
    return not (
        scheduler.waiting_queue
        or scheduler.chunked_req
        or scheduler.cur_batch
        or scheduler.last_batch
        or scheduler.running_batch.reqs
        or getattr(scheduler, "result_queue", None)
    )


def forget_caches(scheduler: Any) -> None:
    """Empty the prefix cache and the pools, so that no answer reads what other weights wrote."""
    if hasattr(scheduler, "flush_cache"):
        # main raises nothing when it keeps its caches: only its answer says so.
        done, message, _ = scheduler.flush_cache()
        if not done:
            raise RuntimeError(f"the engine kept its caches: {message}")
        return
    scheduler.tree_cache.reset()
    scheduler.req_to_token_pool.clear()
    scheduler.token_to_kv_pool_allocator.clear()


def rewrite_pools(model_runner: Any, rewrite: Callable[[Any], Any], kind: Any = None) -> None:
    """Replace every device buffer of the KV pools (and of states kept with them) in place.

    `kind` is what stands for them there, if not they themselves.
    """
    import jax

    kind = kind or jax.Array
    for pool in _pools(model_runner):
        for name, value in list(vars(pool).items()):
            if isinstance(value, kind):
                setattr(pool, name, rewrite(value))
            elif isinstance(value, list) and any(isinstance(v, kind) for v in value):
                for i, buffer in enumerate(value):  # one at a time: no second pool in memory
                    value[i] = rewrite(buffer) if isinstance(buffer, kind) else buffer


def _pools(model_runner: Any) -> Iterator[Any]:
    pools = getattr(model_runner, "memory_pools", None)
    found = list(pools._pools.values()) if pools is not None else [model_runner.token_to_kv_pool]
    seen: set[int] = set()
    while found:
        pool = found.pop()
        if id(pool) in seen:
            continue
        seen.add(id(pool))
        yield pool
        # A pool of pools (sliding windows on main) holds its parts as attributes.
        found += [part for part in vars(pool).values() if hasattr(part, "kv_buffer")]
