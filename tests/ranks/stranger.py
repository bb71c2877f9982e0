"""Somebody who reaches the store of ranks, and is none of them."""

import jax


class RefusedByJax(Exception):
    """JAX's own client needs what the service says to who joins it."""


class Stranger:
    """A `ranks.store.Store` through JAX's client, which has not joined."""

    def __init__(self, address: str) -> None:
        if jax.__version_info__ >= (0, 9):
            words = "its client ends this process: it has not heard the service's incarnation"
            raise RefusedByJax(f"jax {jax.__version__}: {words}")
        from jaxlib import _jax

        self._client = _jax.get_distributed_runtime_client(address, 7, use_compression=True)

    def put(self, key: str, value: str) -> None:
        self._client.key_value_set(key, value, allow_overwrite=True)

    def get(self, key: str, within: float) -> str | None:
        return str(self._client.blocking_key_value_get(key, round(within * 1000)))

    def forget(self, key: str) -> None:
        self._client.key_value_delete(key)

    def keys(self, folder: str) -> list[str]:
        return [key for key, _ in self._client.key_value_dir_get(folder)]
