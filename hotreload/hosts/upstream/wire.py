"""Encrypts rank 0's messages to the others: they unpickle them, and must know the sender.

The encryption is libzmq's CURVE, with a key pair derived from the join secret. The public key is
never sent: a process without the secret can neither send as rank 0 nor read its messages.
"""

import hashlib
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hotreload.errors import ConfigError

PURPOSE = b"hotreload: the key by which rank 0 sends its turns"


@dataclass(frozen=True, slots=True)
class _Keys:
    """Rank 0's key pair."""

    public: bytes
    secret: bytes


@contextmanager
def guard_sockets(join_secret: str | None) -> Iterator[None]:
    """Encrypt the sockets between hosts of a scheduler that is constructed in this block."""
    from sgl_jax.srt.managers import scheduler

    if join_secret is None:
        yield
        return
    make, keys = scheduler.get_zmq_socket, _keys_of(join_secret)

    def make_guarded(context: Any, kind: Any, endpoint: str, bind: bool) -> Any:
        is_between_hosts = endpoint.startswith("tcp://")
        made_by = _GuardedContext(context, keys, bind) if is_between_hosts else context
        return make(made_by, kind, endpoint, bind)

    scheduler.get_zmq_socket = make_guarded
    try:
        yield
    finally:
        scheduler.get_zmq_socket = make


class _GuardedContext:
    """Makes encrypted sockets, in a context's place; sglang-jax then binds or connects them."""

    def __init__(self, context: Any, keys: _Keys, binds: bool) -> None:
        self._context = context
        self._keys = keys
        self._binds = binds

    def socket(self, kind: Any) -> Any:
        """Return a socket that accepts only CURVE."""
        import zmq

        made = self._context.socket(kind)
        if self._binds:
            made.curve_server = True
            made.curve_publickey, made.curve_secretkey = self._keys.public, self._keys.secret
        else:
            made.curve_serverkey = self._keys.public
            made.curve_publickey, made.curve_secretkey = zmq.curve_keypair()
        return made


def _keys_of(join_secret: str) -> _Keys:
    import zmq
    from zmq.utils import z85

    if not zmq.has("curve"):
        raise ConfigError(
            "[engine] join_secret_file: the installed pyzmq cannot encrypt (it has no CURVE); "
            "install its wheel"
        )
    drawn = hmac.new(join_secret.encode(), PURPOSE, hashlib.sha256).digest()
    secret: bytes = z85.encode(drawn)  # type: ignore[no-untyped-call]
    return _Keys(zmq.curve_public(secret), secret)
