"""/weights_checker: checksums of the live weights, and a comparison with a snapshot."""

from collections.abc import Mapping, Sequence

from hotreload.errors import BadRequest, shown
from hotreload.json_fields import Fields
from hotreload.server.ports import Entrance
from hotreload.server.sglang.answers import checksums

NO_RANDOM_WEIGHTS = (
    "reset_tensors (vLLM's reset) is refused: random numbers would answer clients; POST "
    "/admin/perturb_weights puts noise on some leaves, as a generation of its own, and a rollback "
    "takes it back"
)
MOST_LISTED_LEAVES = 10
"""The most leaves that are named when they differ from the snapshot."""


class WeightsChecker[P]:
    """Computes checksums on one engine, and keeps a snapshot until it is compared."""

    def __init__(self, entrance: Entrance[P]) -> None:
        self._entrance = entrance
        self._snapshot: Mapping[str, int] | None = None

    async def run(self, action: str, skip: Sequence[str] = ()) -> Fields:
        """Carry out the action; BadRequest if it is unknown or if leaves differ."""
        match action:
            case "checksum":
                leaves, facts = await self._now()
                return checksums(_without(leaves, skip), facts)
            case "snapshot":
                self._snapshot, _ = await self._now()
                return {}
            case "compare":
                return await self._compare(skip)
            case "reset_tensors":
                raise BadRequest(NO_RANDOM_WEIGHTS)
        raise BadRequest(f"Unsupported action={shown(action)}: checksum, snapshot or compare")

    async def _now(self) -> tuple[Mapping[str, int], Mapping[str, object]]:
        async with self._entrance.inspect() as lease:  # no swap while they are computed
            return await lease.engine.weights.checksums(), lease.engine.facts()

    async def _compare(self, skip: Sequence[str]) -> Fields:
        if self._snapshot is None:
            raise BadRequest("there is no snapshot to compare with: send action=snapshot first")
        now, before = _without((await self._now())[0], skip), _without(self._snapshot, skip)
        differ = sorted(name for name in now if now[name] != before.get(name))
        if differ:
            named = [f"name={name}" for name in differ[:MOST_LISTED_LEAVES]]
            named += [f"and {more} more"] if (more := len(differ) - len(named)) else []
            raise BadRequest("\n".join(["check tensor equality failed:", *named]))
        self._snapshot = None
        return {}


def _without(leaves: Mapping[str, int], skip: Sequence[str]) -> Mapping[str, int]:
    return {name: leaves[name] for name in leaves if not any(part in name for part in skip)}
