"""Protocols of Source and Engine: all that the core needs of the world."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from hotreload.behaviour import Answered, Question
from hotreload.facts.listed import Listed
from hotreload.types import Checkpoint, HowFar, Noise, Revision, Staged


class Source(Protocol):
    """A place that checkpoints come from."""

    def follow_newest(self) -> AsyncIterator[Revision]:
        """Yield the newest complete revision, now and whenever another one becomes the newest."""

    async def fetch(self, revision: Revision) -> Path:
        """Return a local folder that holds the revision; SourceUnavailable when there is none."""

    async def resolve(self, name: str | None) -> Revision:
        """Return the revision an operator names (a path, a folder's name, a hub revision).

        None asks for the newest. SourceUnavailable or BadRequest when there is none.
        """

    def content_of(self, revision: Revision) -> str:
        """Return the content id that the revision's files must have; for any thread."""

    def wake(self, cause: str) -> None:
        """Look now, without waiting for the next look; for any thread."""

    def list_seen(self) -> Sequence[Listed]:
        """List the checkpoints that the last look saw, newest first, without reading; for any
        thread."""

    def list_ids(self) -> Sequence[str]:
        """List the ids of the revisions that the last look saw, newest first; for any thread."""

    async def close(self) -> None:
        """Stop looking, which ends `follow_newest`; a second call does nothing."""


class WeightSets(Protocol):
    """The live set of an engine's weights, and the spare ones beside it."""

    @property
    def live(self) -> Staged:
        """The weights that answer new requests."""

    @property
    def spares_wait_on_host(self) -> bool:
        """True if the device holds one set of weights at a time, and the host holds all spare sets.

        Such an engine cannot overlap.
        """

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load a checkpoint where spare weights wait, complete and of the live weights' signature.

        Answers under way stay bit-identical. A cancelled or failed call leaves nothing behind.
        """

    async def lacks_room(self, checkpoint: Checkpoint | None) -> str | None:
        """Return what memory is missing for one more set of weights; None when there is enough.

        Some memory is kept free for answering. Only leaves of the checkpoint that no set holds
        already count; None stands for a set that shares no leaf.
        """

    async def twin(self, staged: Staged) -> Staged:
        """Stage a copy of the weights that another engine of the same model holds as `staged`.

        The copy is bit for bit, from device to device, complete and of the live weights' signature.
        Answers under way stay bit-identical. A cancelled or failed call leaves nothing behind.
        TryAgain when the copy differs, or the other engine holds them no more.
        """

    @property
    def staging_progress(self) -> HowFar | None:
        """Progress of `stage`; None when no checkpoint is being staged. For any thread."""

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        """Stage a copy of the live weights with noise on some leaves, under this revision.

        CheckpointRejected when the result is not finite, or equals the live weights. Else as
        `stage`.
        """

    async def stow(self, staged: Staged) -> Staged:
        """Move spare weights to host memory; `staged` cannot be used afterwards."""

    async def unstow(self, staged: Staged) -> Staged:
        """Bring stowed weights back to where spare weights wait; weights already there stay."""

    async def release(self, staged: Staged) -> None:
        """Free spare weights; `staged` cannot be used afterwards."""


class WeightSwitch(Protocol):
    """Changes which weights answer clients.

    An engine that overlaps answers by several sets at once, and `flip` chooses the one for new
    requests. In any other engine `exchange` puts one set in the place of the only one.
    """

    @property
    def cannot_overlap(self) -> str | None:
        """The reason why two sets of weights cannot answer side by side; None when they can."""

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live and return the old live weights; a second call reverses the first.

        Called only while no request is under way. The caches forget the old weights. Raises
        EngineLost when it is unknown which weights are live; after any other error the old ones
        are.
        """

    async def flip(self, staged: Staged) -> Staged:
        """Answer new requests by `staged` from now on; return the weights that answered before.

        Those go on answering older requests until `retire`. `staged` may be spare, or answer older
        requests still. Raises EngineLost when it is unknown which weights answer.
        """

    async def retire(self, staged: Staged) -> None:
        """Wait until nothing is under way under weights on which no request holds a lease.

        Then the engine has dropped their cache, and they are spare.
        """

    async def scrub(self) -> None:
        """Overwrite the KV pool, so that no answer can read what failed weights computed."""


class UnseenAnswers(Protocol):
    """The answers of each set of weights that no client sees."""

    async def prove(self, staged: Staged) -> None:
        """Ask staged weights the canary prompts; ProbeFailed when an answer is bad.

        Their results never reach a client's answer. A cancelled call leaves nothing behind.
        """

    async def probe(self, *, briefly: bool = False) -> None:
        """Ask the live weights the canary prompts; ProbeFailed when an answer is bad.

        `briefly` asks for the beginning of each answer alone.
        """

    @property
    def cannot_compare(self) -> str | None:
        """The reason why staged weights cannot be asked questions; None if they can."""

    async def ask(self, staged: Staged, questions: Sequence[Question]) -> Sequence[Answered]:
        """Ask weights questions, as `prove` does, and return their answers and expectations.

        AnswerNonfinite when the logits of one are not finite. A cancelled call leaves nothing
        behind.
        """

    def as_candidate(self, staged: Staged) -> AbstractAsyncContextManager[None]:
        """Let requests with a lease on staged weights be answered while the block lasts.

        Their results never reach a client's answer; no client can end them, and metrics do not
        count them. At the end requests under way are ended. Only for engines that overlap.
        """


class ClientAnswers(Protocol):
    """The answers to clients' requests that are under way."""

    async def wait_for_withheld(self, beyond: int) -> int:
        """Wait until more than `beyond` answers were withheld as not finite; return the total.

        The cause may have spoiled the caches for every request, until a scrub.
        """

    async def abort(self, staged: Staged | None = None) -> None:
        """End every answer under way, or those by these weights, with finish reason `abort`."""


class Engine(Protocol):
    """A model that answers requests, and whose weights can be exchanged."""

    @property
    def weights(self) -> WeightSets:
        """The sets of weights."""

    @property
    def switch(self) -> WeightSwitch:
        """Changes which of them answer."""

    @property
    def unseen(self) -> UnseenAnswers:
        """Asks each of them apart from clients."""

    @property
    def answers(self) -> ClientAnswers:
        """Answers clients by them."""

    def lose(self, why: str) -> None:
        """Mark the engine as lost, if it is not yet: every caller that waits gets EngineLost."""
