"""Our own loader: reads each tensor once, proves its bytes while they pass, and places the leaf.

Nothing is copied to disk and nothing is mapped: each piece of memory that a leaf may keep belongs
to that leaf alone. Knows rules and arrays, and nothing of engines.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotreload.checkpoint.file_reader import Changed, HashedPieces, Readable
from hotreload.checkpoint.fingerprint import TensorSum
from hotreload.checkpoint.known_names import CASTABLE, STORED_DTYPES
from hotreload.engine.weights.leaf.leaf_rules import Array, Ingredient, Ingredients
from hotreload.engine.weights.leaf.measures import MEASURED_AT_A_TIME, One, Tally
from hotreload.engine.weights.leaf.on_device import (
    Arrived,
    add_to_stack,
    as_leaf,
    empty_stack,
    finish_leaf,
    keep_as_it_is,
    make_leaf,
    pays_on_device,
    put,
)
from hotreload.engine.weights.load.checked_bytes import open_checked, words_for
from hotreload.engine.weights.memory.host_arrays import (
    copy_to_host,
    fresh,
    in_order,
    lay,
    place_array,
)
from hotreload.engine.weights.memory.page_locked import LockedBuffers, ring_for
from hotreload.types import Checkpoint, TensorBytes

PIECE = MEASURED_AT_A_TIME
"""Read, hashed and measured at a time."""
LARGEST_PIECE, LONG_READ = 16 << 20, 0.004
"""Of storage that takes so many seconds for a read larger pieces are read."""
SMALL = 1 << 20
"""Leaves of fewer bytes are placed together: each call takes its time, whatever it places."""
TOGETHER = 64
DTYPES: Mapping[str, Any] = {name: jnp.dtype(STORED_DTYPES[name][0]) for name in CASTABLE}
"""The dtypes of tensors that become leaves."""


@dataclass(slots=True)
class Made:
    """A leaf with its figures."""

    leaf: Any
    """On its device, or an array in host memory."""
    one: One
    change: float | None = None
    """The distance from the live leaf, if its maker measured it."""
    is_shared: bool = False
    """True where it was not made: a set that is there holds it."""


Recipe = tuple[Sequence[Ingredient], jax.Array]
"""The parts of a leaf, and the live one that it is to be like."""


class Reader:
    """Makes leaves of one checkpoint's tensors; belongs to one thread."""

    def __init__(
        self, checkpoint: Checkpoint, cancel: threading.Event, report: Callable[[int], None]
    ) -> None:
        """`report` is called with the number of bytes of each piece that has been read."""
        self._checkpoint = checkpoint
        self._cancel = cancel
        self._report = report
        self._files: dict[str, Readable] = {}
        self._tally = Tally()
        self.there: Callable[[Sequence[Ingredient], jax.Array], Made | None] = lambda *_: None
        """Find a leaf that is there already, once all its tensors have passed."""
        self._was_there = False
        """True if the leaf before was there already: the next one probably is, too."""
        self._piece = PIECE
        self._scratch = fresh(0)
        """Memory that no leaf may take over: the next tensor is read into it."""
        self._rings: dict[tuple[Any, ...], LockedBuffers | None] = {}
        """By the leaves' device and the tensors' itemsize; None where there can be none."""
        self._sum = TensorSum()
        """Of the tensor that was last read for a device."""

    def make_leaves(self, recipes: Sequence[Recipe]) -> list[Made]:
        """Make the leaves of these tensors, each placed like its live one; several at once."""
        if len(recipes) == 1 and self._pays_on_device(*recipes[0]):
            return [self._on_device(*recipes[0])]
        made = self.make_on_host(recipes)
        pairs = zip(made, recipes, strict=True)
        new = [(each, live) for each, (_, live) in pairs if not each.is_shared]
        leaves = _place([each.leaf for each, _ in new], [live for _, live in new])
        jax.block_until_ready(leaves)  # type: ignore[no-untyped-call]
        for leaf, (each, _) in zip(leaves, new, strict=True):
            each.leaf = leaf
        return made

    def make_on_host(self, recipes: Sequence[Recipe]) -> list[Made]:
        """Make the leaves in host memory; each owns its buffer."""
        return [self._on_host(*recipe) for recipe in recipes]

    def _pays_on_device(self, parts: Sequence[Ingredient], live: jax.Array) -> bool:
        return all(
            part.tensor in self._checkpoint.held and pays_on_device(live, self._stored_dtype(part))
            for part in parts
        )

    def _on_device(self, parts: Sequence[Ingredient], live: jax.Array) -> Made:
        """The leaf made there of bytes in the file's order: here they are read, hashed, summed up.

        Figures are waited for: when they are there, no transfer reads our memory any more.
        """
        if parts[0].expert is not None:
            return self._make_stack(parts, live)
        part, tensor = parts[0], self._read_for_device(parts[0], live)
        if (there := self.there(parts, live)) is not None:
            return there
        is_kept = part.rule.moves_nothing and tensor.dtype == live.dtype
        if is_kept and isinstance(tensor, np.ndarray):
            leaf, *measured = keep_as_it_is(tensor, live)
        else:
            raw, stored = put(tensor, part, live), self._stored_dtype(part)
            leaf, *measured = make_leaf(raw, part.rule, live, stored)
        return Made(*finish_leaf(leaf, live, [Arrived(part, self._sum.value, *measured)]))

    def _make_stack(self, parts: Sequence[Ingredient], live: jax.Array) -> Made:
        stack, arrived = empty_stack(live), list[Arrived]()
        for part in parts:
            tensor, stored = self._read_for_device(part, live), self._stored_dtype(part)
            stack, *measured = add_to_stack(stack, put(tensor, part, live), part, live, stored)
            arrived.append(Arrived(part, self._sum.value, *measured))
            if isinstance(tensor, np.ndarray):  # the next is read into its memory
                jax.block_until_ready(measured)  # type: ignore[no-untyped-call]
        made = Made(*finish_leaf(as_leaf(stack, live), live, arrived))
        return self.there(parts, live) or made

    def _read_for_device(self, part: Ingredient, live: jax.Array) -> Array | jax.Array:
        """Read a tensor that goes to the leaf's device; a ring has it there already."""
        if (ring := self._ring_for(part, live)) is None:
            tensor, pieces = self.borrow(part)
        else:
            held = self._checkpoint.held[part.tensor]
            pieces = self._read(part.tensor, held, ring.memory_for(held.end - held.begin))
        self._sum.reset()
        for piece in pieces:
            self._sum.update(piece.reshape(-1).view(np.uint8))
        return tensor if ring is None else ring.take()

    def _ring_for(self, part: Ingredient, live: jax.Array) -> LockedBuffers | None:
        itemsize = np.dtype(self._stored_dtype(part)).itemsize
        key = (live.committed, frozenset(live.devices()), itemsize)
        if key not in self._rings:
            self._rings[key] = ring_for(live, itemsize)
        return self._rings[key]

    def _on_host(self, parts: Sequence[Ingredient], live: jax.Array) -> Made:
        """The leaf in memory of its own, where JAX may leave it.

        An expert whose tensor is left out stays what it is in the live leaf. A leaf that is
        probably there already is only read and hashed at first: it takes no memory then.
        """
        if self._was_there and len(parts) == 1 and parts[0].expert is None:
            return self._find_or_make(parts, live)
        self._tally.begin()
        leaf = fresh(live.nbytes).view(live.dtype).reshape(live.shape)
        given = [part.tensor in self._checkpoint.held for part in parts]
        if not all(given):
            leaf[...] = copy_to_host(live)
        for part, is_given in zip(parts, given, strict=True):
            own = leaf if part.expert is None else leaf[part.expert, ...]
            if is_given:
                tensor = self._read_measured(own, part)
                if part is parts[-1] and (there := self.there(parts, live)) is not None:
                    self._was_there = True
                    return there
                if tensor is not None:
                    lay(part.rule.apply(tensor), own)
            else:
                self._tally.add(part.tensor, [in_order(part.rule.restore(own))])
        return Made(leaf, self._tally.one)

    def _find_or_make(self, parts: Sequence[Ingredient], live: jax.Array) -> Made:
        """Read a tensor into memory that is used again; make the leaf of it if it is not there."""
        tensor = _read_through(*self.borrow(parts[0]))
        there = self.there(parts, live)
        self._was_there = there is not None
        if there is not None:
            return there
        tensor = tensor.astype(live.dtype, copy=False)
        self._tally.begin()
        self._tally.add(parts[0].tensor, [tensor])
        leaf = fresh(live.nbytes).view(live.dtype).reshape(live.shape)
        lay(parts[0].rule.apply(tensor), leaf)
        return Made(leaf, self._tally.one)

    def _read_measured(self, own: Array, part: Ingredient) -> Array | None:
        """Read what a part becomes, measured as in the file; None where it is in place already."""
        stored = self._stored_dtype(part)
        if part.rule.moves_nothing and stored == own.dtype:
            memory = own.reshape(-1).view(np.uint8)
            self._tally.add(part.tensor, self.read_into(memory, part))
            return None
        tensor, pieces = self.borrow(part)
        if stored != own.dtype:
            tensor = _read_through(tensor, pieces).astype(own.dtype)
            pieces = iter([tensor])
        self._tally.add(part.tensor, pieces)
        return tensor

    def check(self, tensor: str) -> None:
        """Read a tensor and make nothing of it; CheckpointChanged unless it is what was checked."""
        held = self._checkpoint.held[tensor]
        for _ in self._read(tensor, held, [self._room(held.end - held.begin)]):
            pass

    def close(self) -> None:
        """Let go of the files. What was read of them is what was checked, whatever they are now."""
        for file in self._files.values():
            file.close()
        for ring in filter(None, self._rings.values()):
            ring.close()
        self._files, self._rings = {}, {}

    def borrow(self, part: Ingredient) -> tuple[Array, Iterator[Array]]:
        """The tensor as the file has it, once these pieces have passed; the next overwrites it."""
        held = self._checkpoint.held[part.tensor]
        memory = self._room(held.end - held.begin)
        tensor: Array = memory.view(self._stored_dtype(part)).reshape(part.rule.shape)
        return tensor, self.read_into(memory, part)

    def read_into(self, memory: Array, part: Ingredient) -> Iterator[Array]:
        """Fill memory with the tensor as the file has it; each piece, as soon as it is there."""
        held, stored = self._checkpoint.held[part.tensor], self._stored_dtype(part)
        return (piece.view(stored) for piece in self._read(part.tensor, held, [memory]))

    def _stored_dtype(self, part: Ingredient) -> Any:
        return DTYPES[self._checkpoint.tensors[part.tensor].dtype]

    def _room(self, size: int) -> Array:
        """Memory for tensors that the leaf does not keep, one after the other."""
        if len(self._scratch) < size:
            self._scratch = fresh(0)  # free it before there is more of it
            self._scratch = fresh(size)
        return self._scratch[:size]

    def _read(self, tensor: str, held: TensorBytes, memories: Iterable[Array]) -> Iterator[Array]:
        """Fill memories with the tensor's bytes; refuse them unless they are as when checked.

        Bytes that are read for the first time are checked meanwhile. The values are good, and not
        all are zero, if the sum of their squares is a number other than 0: else each is looked at.
        """
        first = self._checkpoint.first_read
        if first and (kept := first.take(tensor)) is not None:
            read = 0
            for memory in memories:
                memory[:] = np.frombuffer(kept[read : read + len(memory)], np.uint8)
                read += len(memory)
                yield memory
            self._report(len(kept))
            return
        seen, read = first and first.begin(tensor), held.begin
        is_measured, filled = self._tally.passing == tensor, list[memoryview]()
        with words_for(held.file):
            hashing = HashedPieces(self._file(held.file), self._piece, self._cancel)
            for memory in memories:
                for piece in hashing.into(memoryview(memory), read):
                    self._report(len(piece))
                    if seen and is_measured:
                        filled.append(piece)
                    elif seen:
                        seen.look(piece)
                    yield np.frombuffer(piece, np.uint8)
                read += len(memory)
            if hashing.seconds > LONG_READ * hashing.reads:
                self._piece = min(4 * self._piece, LARGEST_PIECE)
            if seen and is_measured:
                seen.look_in_doubt(filled, self._tally.squares)
            digest = hashing.digest()
            if not (first.end(tensor, digest, seen) if first else digest == held.digest):
                raise Changed(f"the bytes of {tensor} are different now")

    def _file(self, name: str) -> Readable:
        if name not in self._files:
            self._files[name] = open_checked(self._checkpoint, name, self._cancel)
        return self._files[name]


def batches(places: Sequence[int], leaves: Sequence[Any]) -> Iterator[list[int]]:
    """Divide the places of a set into those that are made together; large leaves one by one."""
    small = [place for place in places if leaves[place].nbytes < SMALL]
    yield from ([place] for place in places if leaves[place].nbytes >= SMALL)
    for begin in range(0, len(small), TOGETHER):
        yield small[begin : begin + TOGETHER]


def why_not_by_rules(
    checkpoint: Checkpoint, parts: Ingredients, dtypes: Mapping[str, Any]
) -> str | None:
    """Say why our own loader can do nothing with a checkpoint; `dtypes` are those of the leaves."""
    for path, each in parts.items():
        for part in each:
            spec = checkpoint.tensors.get(part.tensor)
            if spec is None and checkpoint.is_part:
                continue
            if spec is None or part.tensor not in checkpoint.held:
                return f"the location of {part.tensor} is unknown"
            if spec.shape != part.rule.shape:
                return f"{part.tensor} is {spec.shape}, not {part.rule.shape}"
            if spec.dtype not in DTYPES:
                return f"{part.tensor} is {spec.dtype}, served as {dtypes[path]}"
    return None


def _read_through(tensor: Array, pieces: Iterator[Array]) -> Array:
    """The tensor, when all its pieces have passed."""
    for _ in pieces:
        pass
    return tensor


def _place(arrays: list[Array], lives: list[jax.Array]) -> list[jax.Array]:
    if len(lives) > 1 and all(live.committed and live.is_fully_addressable for live in lives):
        leaves: list[jax.Array] = jax.device_put(arrays, [live.sharding for live in lives])
        return leaves
    return [
        place_array(array, live.sharding) if live.committed else jnp.asarray(array)
        for array, live in zip(arrays, lives, strict=True)
    ]
