"""Signs all that the ranks of one engine say through a store that anybody may write to.

A signature is good for one key in one life of the engine, so nothing can be said again elsewhere or
later. What is not signed by a rank of this life counts as not there: who writes into the store can
keep ranks from hearing each other, and have none of them do anything.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable

from hotreload.errors import DeviceUnavailable
from hotreload.hosts.bounds import NotBelieved, words
from hotreload.hosts.doubts import Doubts
from hotreload.hosts.hearing import Ear
from hotreload.hosts.upstream.store import Store

AGAIN_SECONDS = 0.05
"""Time until what is not signed is looked at again: it may be written over."""
NONCE_BYTES = 16
BEFORE_LIFE = "joining"


class SignedStore(Store):
    """A store around one that others can write to."""

    def __init__(self, store: Store, secret: str, life: str) -> None:
        """`life` is what no other life of the engine has."""
        self._store = store
        self._secret = secret.encode()
        self._life = life
        self._doubts = Doubts()

    def put(self, key: str, value: str) -> None:
        """Have the key hold this value; whoever waits for it gets it."""
        self._store.put(key, f"{self._signature(key, value)} {value}")

    def get(self, key: str, within: float) -> str | None:
        """The value that a rank of this life gave the key; None when it has none by then."""
        until = time.monotonic() + within
        while (text := self._store.get(key, max(until - time.monotonic(), 0.001))) is not None:
            signature, _, value = text.partition(" ")
            if hmac.compare_digest(signature.encode(), self._signature(key, value).encode()):
                return value
            self._doubts.tell(key, "no rank of this life has signed it")
            if (left := until - time.monotonic()) <= 0:
                return None
            time.sleep(min(left, AGAIN_SECONDS))
        return None

    def forget(self, key: str) -> None:
        """Let go of the key, and of every key that begins with it and a slash."""
        self._store.forget(key)

    def _signature(self, key: str, value: str) -> str:
        signed = "".join(f"{len(each)}:{each}" for each in (self._life, key, value))
        said = signed.encode(errors="surrogatepass")
        return hmac.new(self._secret, said, hashlib.sha256).hexdigest()


async def signed_for_this_life(
    store: Store, secret: str, own: int, others: Iterable[int], within: float
) -> SignedStore:
    """Agree on what this life has that no other had: a number that each rank has drawn.

    Each trusts its own number. DeviceUnavailable names a rank that does not know the secret.
    """
    joining = SignedStore(store, secret, BEFORE_LIFE)
    ear = Ear(joining)
    drawn = {own: secrets.token_hex(NONCE_BYTES)}
    joining.put(_key(own), drawn[own])
    for rank in others:
        theirs = await ear.hear(_key(rank), _nonce, within)
        if theirs is None:
            raise DeviceUnavailable(
                f"rank {rank} has not shown within {within:g} s that it knows the secret: compare "
                "[engine] join_secret_file by `hotreload doctor --meet` on all hosts"
            )
        drawn[rank] = theirs
    return SignedStore(store, secret, " ".join(drawn[rank] for rank in sorted(drawn)))


def _nonce(text: str) -> str:
    if len(text) != 2 * NONCE_BYTES:
        raise NotBelieved("it is no number that a rank has drawn")
    return words(text)


def _key(rank: int) -> str:
    return f"hotreload/life/{rank}"
