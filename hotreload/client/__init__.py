"""A daemon's client for Python programs, with the standard library alone (docs/api.md)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotreload.client.asynchronous import AsyncClient
    from hotreload.client.synchronous import Client, DaemonAnswer

__all__ = ["AsyncClient", "Client", "DaemonAnswer"]


def __getattr__(name: str) -> Any:
    """Import a class when it is asked for: the command's verbs wait for no asyncio."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "asynchronous" if name == "AsyncClient" else "synchronous"
    return getattr(import_module(f"hotreload.client.{home}"), name)
