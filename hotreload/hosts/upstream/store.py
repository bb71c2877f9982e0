"""The store of jax.distributed, which runs beside the process of rank 0, for all ranks."""

from typing import Any

from hotreload.errors import EngineLost

NOTHING_THERE = ("DEADLINE_EXCEEDED", "NOT_FOUND")


class Store:
    """Keys and their values, the same for all ranks; every call blocks, and any thread may call.

    The store exists from joining the other ranks until leaving them. EngineLost if it is gone: it
    runs beside rank 0, and the others end with it.
    """

    def __init__(self) -> None:
        import jax
        from jax._src import distributed

        # The client has no public name; both versions of jax have it here.
        self._client: Any = distributed.global_state.client
        self._fault: type[Exception] = jax.errors.JaxRuntimeError

    def put(self, key: str, value: str) -> None:
        """Write this value under the key; ranks that wait for the key get it."""
        try:
            self._client.key_value_set(key, value, allow_overwrite=True)
        except self._fault as fault:
            raise _engine_lost(fault) from fault

    def get(self, key: str, within: float) -> str | None:
        """Return the key's value, after a wait of at most so many seconds; None if it has none."""
        try:
            ms = max(1, round(within * 1000))
            value: bytes = self._client.blocking_key_value_get_bytes(key, ms)
        except self._fault as fault:
            if str(fault).startswith(NOTHING_THERE):
                return None
            raise _engine_lost(fault) from fault
        return value.decode(errors="replace")

    def forget(self, key: str) -> None:
        """Delete the key, and every key below it (after a slash)."""
        try:
            self._client.key_value_delete(key)
        except self._fault as fault:
            raise _engine_lost(fault) from fault


def _engine_lost(fault: Exception) -> EngineLost:
    why = str(fault).partition("\n")[0]
    return EngineLost(f"rank 0 has ended, or is out of reach: the ranks' store says {why}")
