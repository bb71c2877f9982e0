"""The other processes of one engine, from the moment they have met until this process leaves.

Their messages go through a store that any process of the network may write to: each message is
signed. A signature holds for one key in one life of the engine, and no message can be replayed
under another key or later. A value without a valid signature counts as missing. An attacker can
therefore delay messages between ranks, and cannot make a rank do anything.
"""

import asyncio
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Iterable

from hotreload.errors import DeviceUnavailable
from hotreload.hosts.engine.joint_jobs import MeetingPlace
from hotreload.hosts.messages import Doubts, InvalidMessage, MessageReader, parse_text
from hotreload.hosts.upstream.ranks import Ranks, Store, join, leave
from hotreload.threads import in_thread

UNSIGNED_SECONDS = 0.05
"""Seconds until a value without a valid signature is read again: it may be overwritten."""
NONCE_BYTES = 16
BEFORE_LIFE = "joining"


class SignedStore(Store):
    """A store that signs its values, around one that any process can write to."""

    def __init__(self, store: Store, secret: str, life: str) -> None:
        """`life` is a text that no other life of the engine has."""
        self._store = store
        self._secret = secret.encode()
        self._life = life
        self._doubts = Doubts()

    def put(self, key: str, value: str) -> None:
        """Write this value under the key; ranks that wait for the key get it."""
        self._store.put(key, f"{self._signature(key, value)} {value}")

    def get(self, key: str, within: float) -> str | None:
        """Return the value that a rank of this life wrote; None if none comes within the time."""
        until = time.monotonic() + within
        while (text := self._store.get(key, max(until - time.monotonic(), 0.001))) is not None:
            signature, _, value = text.partition(" ")
            if hmac.compare_digest(signature.encode(), self._signature(key, value).encode()):
                return value
            self._doubts.log_once(key, "no rank of this life has signed it")
            if (left := until - time.monotonic()) <= 0:
                return None
            time.sleep(min(left, UNSIGNED_SECONDS))
        return None

    def forget(self, key: str) -> None:
        """Delete the key, and every key below it (after a slash)."""
        self._store.forget(key)

    def _signature(self, key: str, value: str) -> str:
        signed = "".join(f"{len(each)}:{each}" for each in (self._life, key, value))
        data = signed.encode(errors="surrogatepass")
        return hmac.new(self._secret, data, hashlib.sha256).hexdigest()


async def sign_for_this_life(
    store: Store, secret: str, own: int, others: Iterable[int], within: float
) -> SignedStore:
    """Return a store signed for this life alone: by a random number of each rank.

    Each rank trusts its own number. DeviceUnavailable names a rank that does not know the secret.
    """
    joining = SignedStore(store, secret, BEFORE_LIFE)
    reader = MessageReader(joining)
    drawn = {own: secrets.token_hex(NONCE_BYTES)}
    joining.put(_key(own), drawn[own])
    for rank in others:
        theirs = await reader.receive(_key(rank), _nonce, within)
        if theirs is None:
            raise DeviceUnavailable(
                f"rank {rank} has not shown within {within:g} s that it knows the secret: compare "
                "[engine] join_secret_file by `hotreload doctor --meet` on all hosts"
            )
        drawn[rank] = theirs
    return SignedStore(store, secret, " ".join(drawn[rank] for rank in sorted(drawn)))


def _nonce(text: str) -> str:
    if len(text) != 2 * NONCE_BYTES:
        raise InvalidMessage("it is no number that a rank has drawn")
    return parse_text(text)


def _key(rank: int) -> str:
    return f"hotreload/life/{rank}"


LIFE_SECONDS = 60.0
"""The longest wait, after all ranks have met, for a rank to prove that it knows the secret."""


class JoinedRanks:
    """The ranks of one engine that have met, and their store; made by `join` on every rank."""

    def __init__(self, ranks: Ranks, store: Store) -> None:
        self.ranks = ranks
        self.store = store
        self.meeting = MeetingPlace(store, ranks)
        self._builds = 0

    @classmethod
    async def join(cls, ranks: Ranks, within: float) -> "JoinedRanks":
        """Meet the others; DeviceUnavailable if they do not come within so many seconds.

        Call it before anything looks for devices. With jax 0.10.2 the process is aborted instead.
        """
        seconds = max(1, math.ceil(within))
        waiting = "the wait for the other ranks"  # no cancel ends it
        await in_thread(
            lambda cancel: join(ranks, seconds),
            discard=lambda joined: leave(),
            leave_as=waiting,
            is_read=False,
        )
        store = Store()
        if ranks.secret is None:
            return cls(ranks, store)
        others = ranks.others
        signed = sign_for_this_life(store, ranks.secret, ranks.own, others, LIFE_SECONDS)
        return cls(ranks, await signed)

    def next_build(self) -> str:
        """Return the name of the next engine; all ranks call it for each build."""
        self._builds += 1
        return f"build {self._builds}"

    async def leave(self) -> None:
        """Leave the others, and wait a while for them to leave too."""
        await asyncio.to_thread(leave)
