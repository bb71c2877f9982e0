"""Source and Engine: all the core needs of the world."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from hotreload.behaviour.asked import Answered, Question
from hotreload.facts.listed import Listed
from hotreload.types import Checkpoint, HowFar, Noise, Revision, Staged


class Source(Protocol):
    """A place that checkpoints come from."""

    def wanted(self) -> AsyncIterator[Revision]:
        """Yield the newest complete revision, now and whenever it becomes another one."""
        ...

    async def fetch(self, revision: Revision) -> Path:
        """Return a local folder that holds the revision; SourceUnavailable when it cannot be."""
        ...

    async def resolve(self, name: str | None) -> Revision:
        """Return the revision an operator names (a path, a folder's name, a hub revision).

        None asks for the newest. SourceUnavailable or BadRequest when there is none.
        """
        ...

    def content_of(self, revision: Revision) -> str:
        """The content id that the files of a revision must have to be it; for any thread."""
        ...

    def wake(self, cause: str) -> None:
        """Look now, whenever the next look is due; for any thread."""
        ...

    def listed(self) -> Sequence[Listed]:
        """List what its last look saw, the newest first; for any thread, and reads nothing."""
        ...

    def named(self) -> Sequence[str]:
        """List the ids of revisions of its last look, the newest first; for any thread."""
        ...

    async def close(self) -> None:
        """Stop looking, which ends `wanted`; twice is once."""
        ...


class Engine(Protocol):
    """A model that answers requests, and whose weights can be exchanged.

    Engines that overlap serve several sets at once: `flip` says which one answers new requests.
    In any other, `exchange` puts one set in the place of the only one.
    """

    @property
    def live(self) -> Staged:
        """The weights that answer new requests."""
        ...

    @property
    def cannot_overlap(self) -> str | None:
        """The reason why two sets of weights cannot answer side by side; None when they can."""
        ...

    @property
    def spares_wait_on_host(self) -> bool:
        """True if one set of weights at a time is on the device, and all that is spare on the host.

        Such an engine cannot overlap.
        """
        ...

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load a checkpoint where spare weights wait, complete and of the live ones' signature.

        Answers under way stay bit-identical. A cancelled or failed call leaves nothing behind.
        """
        ...

    async def lacks_room(self, checkpoint: Checkpoint | None) -> str | None:
        """Say what memory is missing for one more set of weights; None when it is there.

        Some is kept free for the answering itself. Of a checkpoint only those leaves count that no
        set holds already; None stands for a set that shares none.
        """
        ...

    async def twin(self, staged: Staged) -> Staged:
        """Stage the weights that another engine of the same model holds as `staged`.

        They are copied from its devices to this one's, bit for bit; complete and of the live
        ones' signature. Answers under way stay bit-identical. A cancelled or failed call leaves
        nothing behind. TryAgain when the copy is not the same, or they are not held any more.
        """
        ...

    @property
    def staging(self) -> HowFar | None:
        """Progress of `stage` with a checkpoint; None while it has none. For any thread."""
        ...

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        """Stage a copy of the live weights with noise on some leaves, under this name.

        CheckpointRejected when that is no other, finite set of weights. Else as `stage`.
        """
        ...

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live and return what was live: its own inverse.

        Only while drained, and no other set answers. Whatever the old weights left in caches is
        forgotten. Raises EngineLost when nobody can say which weights are live; after any other
        error the old ones are.
        """
        ...

    async def prove(self, staged: Staged) -> None:
        """Ask staged weights the canary prompts; ProbeFailed when an answer is bad.

        What they compute reaches nobody who is served. A cancelled call leaves nothing behind.
        """
        ...

    @property
    def cannot_compare(self) -> str | None:
        """The reason why weights that answer nobody cannot be asked questions; None if they can."""
        ...

    async def answer_unseen(
        self, staged: Staged, questions: Sequence[Question]
    ) -> Sequence[Answered]:
        """Ask weights questions, as `prove` does, and say what they answered and expected.

        AnswerNonfinite when they make no numbers of one. A cancelled call leaves nothing behind.
        """
        ...

    def as_candidate(self, staged: Staged) -> AbstractAsyncContextManager[None]:
        """Have staged weights answer whoever holds a lease on them, as long as the block lasts.

        What they compute reaches nobody who is served, and no client ends it or is counted by it.
        At the end what is under way is ended. Only where two sets can answer side by side.
        """
        ...

    async def flip(self, staged: Staged) -> Staged:
        """Have `staged` answer new requests from now on; return what answered them before.

        That goes on for those who began under it, until `retire`. `staged` may be spare, or
        answer older requests still. Raises EngineLost when nobody can say which weights answer.
        """
        ...

    async def retire(self, staged: Staged) -> None:
        """Wait until nothing is under way under weights that nobody holds a lease on any more.

        Then the engine has forgotten what they cached, and they are spare.
        """
        ...

    async def scrub(self) -> None:
        """Overwrite all that failed weights computed (the KV pool), so none of it can answer."""
        ...

    async def probe(self, *, briefly: bool = False) -> None:
        """Ask the live weights the canary prompts; ProbeFailed when an answer is bad.

        `briefly` asks only how each answer begins: that it does, and by numbers.
        """
        ...

    async def withheld(self, beyond: int) -> int:
        """Wait until more answers than these were withheld, all told, as no numbers; how many.

        What made them so may have spoiled the caches for everybody, until a scrub.
        """
        ...

    async def abort(self, staged: Staged | None = None) -> None:
        """End every answer under way (under these weights), with the finish reason `abort`."""
        ...

    async def stow(self, staged: Staged) -> Staged:
        """Have spare weights in host memory, not on the device; `staged` is spent."""
        ...

    async def unstow(self, staged: Staged) -> Staged:
        """Bring stowed weights back to where spare ones wait; what is there already stays."""
        ...

    async def release(self, staged: Staged) -> None:
        """Free spare weights; `staged` is spent."""
        ...

    def lose(self, why: str) -> None:
        """Count it as lost, if it is not yet: all that wait for it hear EngineLost."""
        ...
