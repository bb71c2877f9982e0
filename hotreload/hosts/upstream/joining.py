"""Joins the processes that hold one engine together, before anything looks for devices."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hotreload.errors import DeviceUnavailable
from hotreload.hosts.upstream.coordinator.keeper import Coordinator, in_place_of_jaxs

HEARTBEAT_SECONDS = 100
"""After this JAX ends every process because one is silent; we look more often, and say so."""
LEAVE_SECONDS = 10
"""Time that a rank that ends waits for the others to end too."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Number of this process among several, and where they meet."""

    own: int
    count: int
    address: str
    """The host and port where rank 0 is met."""
    secret: str | None = field(default=None, repr=False)
    """A secret that all of them know, and nobody else; None where whoever comes is trusted."""

    @property
    def leads(self) -> bool:
        """True for rank 0, which decides."""
        return self.own == 0

    @property
    def others(self) -> Iterator[int]:
        """The numbers of all the others."""
        return (rank for rank in range(self.count) if rank != self.own)


def join(ranks: Ranks, within: int) -> None:
    """Meet the other ranks; from now on JAX knows the devices of all of them.

    DeviceUnavailable when they do not come. With jax 0.10.2 the process is aborted instead.
    """
    if not ranks.leads:
        _initialize(ranks, within)
        return
    seconds = {"heartbeat_seconds": HEARTBEAT_SECONDS, "end_within": LEAVE_SECONDS}
    coordinator = Coordinator(ranks.address, ranks.count, **seconds)
    try:
        with in_place_of_jaxs(coordinator):
            _initialize(ranks, within)
        coordinator.let_nobody_else_in()
    except BaseException:
        coordinator.shutdown()
        raise


def _initialize(ranks: Ranks, within: int) -> None:
    import jax

    try:
        jax.distributed.initialize(
            ranks.address,
            ranks.count,
            ranks.own,
            cluster_detection_method="deactivate",  # the settings say who is who
            initialization_timeout=within,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=LEAVE_SECONDS,
        )
    except jax.errors.JaxRuntimeError as fault:
        why = str(fault).partition("\n")[0]
        raise DeviceUnavailable(
            f"the other {ranks.count - 1} ranks were not met at {ranks.address} within "
            f"{within} s: {why}"
        ) from fault


def leave() -> None:
    """Leave the other ranks; waits for them to leave too."""
    import jax

    jax.distributed.shutdown()  # type: ignore[no-untyped-call]
