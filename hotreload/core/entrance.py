"""Every request comes in here, and is let in to one of the engines: the least busy one.

Behind it stands one gate before each engine. It knows who is inside and who waits; nothing of
HTTP, weights or what an engine is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from hotreload.core.gate import AnsweredElsewhere, Bell, Exactly, Gate
from hotreload.core.pause import Pause
from hotreload.core.rules import PAUSE_LIMIT
from hotreload.core.sessions import Sessions
from hotreload.errors import EngineLost, GenerationGone, NotServing
from hotreload.events import Publish
from hotreload.types import Answering, GateState, Generation, Lease


@dataclass(frozen=True, slots=True)
class _Wish:
    """The wish of one request about who answers it."""

    waits: Callable[[], bool]
    """True while it waits for a pause to end."""
    at_least: int = 0
    within: float = 0.0
    exactly: Exactly | None = None
    session: Hashable | None = None


class Entrance[E]:
    """One way in for all who ask; where there is one engine alone, its gate is all there is."""

    def __init__(
        self,
        publish: Publish,
        *,
        replicas: int = 1,
        max_held: int = 1024,
        hold_arrivals: bool = True,
        pause_limit: float = PAUSE_LIMIT,
        sessions: float = 0.0,
    ) -> None:
        """Make a gate before each of so many engines; each is closed until weights are live there.

        `hold_arrivals` is for while it is closed, or somebody paused: those who come wait, at most
        `max_held` of them, or are refused.
        """
        self._new_gate = partial(Gate[E], publish=publish, hold_arrivals=hold_arrivals)
        self._moved = Bell()
        self.gates = [self._gate(index, max_held) for index in range(replicas)]
        """By the replica's index."""
        self.pause = Pause(
            publish,
            changed=self._moved.ring,
            limit=pause_limit,
            max_held=max_held,
            hold_arrivals=hold_arrivals,
        )
        self.sessions = Sessions(sessions)
        """Conversations that stand by the weights they began with."""
        self._turn = 0
        self._ending: tuple[str, str] | None = None

    def renew(self, index: int) -> Gate[E]:
        """Put a new gate in the place of one that was sealed because its engine was lost."""
        self.sessions.leave(self.gates[index])
        gate = self._gate(index, self.gates[index].max_held)
        self.gates[index] = gate
        if self._ending is not None:
            reason, code = self._ending
            gate.seal(reason, code=code)
        return gate

    def _gate(self, index: int, max_held: int) -> Gate[E]:
        gate = self._new_gate(replica=index, max_held=max_held)
        gate.moved = self._moved  # who waits at one gate may go in at another that moved
        return gate

    @contextmanager
    def preparing(self) -> Iterator[E]:
        """An engine that makes a request ready before it is let in; NotServing when none will be.

        Every engine checks and encodes alike. Which one answers, the lease alone says.
        """
        gate = self._best(0)
        with _sealed_when_lost(gate):
            yield gate.preparer()

    def engines(self) -> list[E]:
        """List the engines that answer, also those whose gates let nobody in just now.

        NotServing when there is none.
        """
        leases = [gate.lease for gate in self.gates if gate.lease and not gate.is_lost]
        return [lease.engine for lease in leases] or [self.gates[0].preparer()]

    @asynccontextmanager
    async def passing(
        self,
        at_least: int = 0,
        within: float = 0.0,
        *,
        exactly: Exactly | None = None,
        session: Hashable | None = None,
    ) -> AsyncIterator[Lease[E]]:
        """Let one request through; the lease it yields says who answers, from start to end.

        An older generation than `at_least` is waited out, within a timeout; then NotNewEnough.
        `exactly` names the weights that are to answer it. Those of a `session` are all answered by
        the same, at the engine that answered it last if it can. GenerationGone when none has them.
        """
        wish = _Wish(self._is_paused, at_least, within, exactly, session)
        async with self._inside(wish) as lease:
            yield lease

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Lease[E]]:
        """Let in one who looks at the engine or its weights: a swap holds him, no pause does."""
        async with self._inside(_Wish(lambda: False)) as lease:
            yield lease

    @asynccontextmanager
    async def _inside(self, wish: _Wish) -> AsyncIterator[Lease[E]]:
        async with AsyncExitStack() as inside:
            gate, lease = await self._let_in(inside, wish)
            with self.sessions.answering(wish.session, gate, lease), _sealed_when_lost(gate):
                yield lease

    async def _let_in(self, inside: AsyncExitStack, wish: _Wish) -> tuple[Gate[E], Lease[E]]:
        now = asyncio.get_running_loop().time
        until, at_least = now() + wish.within, wish.at_least
        wanted = partial(self._wanted, wish)
        while True:
            came = now()
            await self._no_pause(wish)
            until += now() - came
            gate = self._gate_for(wish)
            left = max(0.0, until - now())
            elsewhere = partial(self._lets_in_elsewhere, gate, wish)
            try:
                passing = gate.passing(at_least, left, elsewhere, wanted)
                lease = await inside.enter_async_context(passing)
                if not wish.waits():
                    return gate, lease
                await inside.aclose()  # a pause began as the gate let him in
            except AnsweredElsewhere:
                continue
            except GenerationGone:
                # Gone while it waited there, for a swap: another engine may have it still.
                if gate.lease_of(wanted()) or not self._gates_with(wanted()):
                    raise
            except NotServing:
                # Its engine was lost while it waited there: another one may answer.
                if gate.state is not GateState.SEALED or not self.lets_in:
                    raise

    async def _no_pause(self, wish: _Wish) -> None:
        if wish.waits():
            with self.pause.holding():
                while wish.waits():
                    await self._moved.wait()

    def _is_paused(self) -> bool:
        """True while those who come wait for a pause's end; who is refused need not."""
        return self.pause.stands and self.lets_in

    def _wanted(self, wish: _Wish) -> Sequence[Exactly]:
        """The weights it is to be answered by; asked anew each time, as a session may begin."""
        asked = (wish.exactly,) if wish.exactly else ()
        return (*asked, *self.sessions.weights_of(wish.session))

    def _gates_with(self, wanted: Sequence[Exactly]) -> list[Gate[E]]:
        """List the gates behind which these weights answer: those that are open, if any is."""
        unsealed = (gate for gate in self.gates if gate.state is not GateState.SEALED)
        having = [gate for gate in unsealed if gate.lease_of(wanted)]
        return [gate for gate in having if gate.state is GateState.OPEN] or having

    def _gate_for(self, wish: _Wish) -> Gate[E]:
        """The gate of the engine that has the weights it wants; a session goes where it was."""
        wanted = self._wanted(wish)
        having = self._gates_with(wanted) if wanted else []
        if not having:
            return self._best(0 if wanted else wish.at_least)
        replica = self.sessions.replica_of(wish.session)
        return next((gate for gate in having if gate.replica == replica), None) or (
            self._least_busy(having)
        )

    def _best(self, at_least: int) -> Gate[E]:
        """The gate of the least busy engine among those that answer now, else one to wait at."""
        unsealed = [gate for gate in self.gates if gate.state is not GateState.SEALED]
        if not unsealed:
            return self.gates[0]
        is_open = [gate for gate in unsealed if gate.state is GateState.OPEN]
        new_enough = [gate for gate in is_open if not gate.is_before(at_least)]
        if new_enough:
            return self._least_busy(new_enough)
        return is_open[0] if is_open else self._least_busy(unsealed)

    def _lets_in_elsewhere(self, gate: Gate[E], wish: _Wish) -> bool:
        """True when a request is to wait at this gate no longer: for a pause, or for nothing."""
        others = (each for each in self.gates if each is not gate)
        is_open = (each for each in others if each.state is GateState.OPEN)
        if wanted := self._wanted(wish):
            return wish.waits() or any(each.lease_of(wanted) for each in is_open)
        return wish.waits() or any(not each.is_before(wish.at_least) for each in is_open)

    def _least_busy(self, gates: Sequence[Gate[E]]) -> Gate[E]:
        """Choose the gate with the fewest inside; those that are equally busy take turns."""
        self._turn += 1
        places = len(self.gates)
        return min(gates, key=lambda gate: (gate.inside, (gate.replica - self._turn) % places))

    @property
    def lets_in(self) -> bool:
        """True while any engine answers, or will after a swap."""
        return any(gate.state is not GateState.SEALED for gate in self.gates)

    @property
    def inside(self) -> int:
        """Count the requests that are being answered; for any thread."""
        return sum(gate.inside for gate in tuple(self.gates))

    @property
    def held(self) -> int:
        """Count the requests that wait at closed gates; for any thread."""
        return sum(gate.held for gate in tuple(self.gates))

    def answering(self) -> list[Answering]:
        """List who answers requests, those that are live first; for any thread.

        What is live on a lost engine answers nobody who comes: it counts for those inside alone.
        """
        gates = tuple(self.gates)
        there = [gate for gate in gates if not gate.is_lost] or gates
        gone = [gate for gate in gates if gate not in there]
        by_gate = [gate.answering() for gate in there]
        live = [each for answering in by_gate for each in answering[:1]]
        older = [each for answering in by_gate for each in answering[1:]]
        older += [each for gate in gone for each in gate.answering() if each.requests]
        counts: dict[Generation, int] = {}
        for each in (*live, *older):
            counts[each.generation] = counts.get(each.generation, 0) + each.requests
        return [Answering(generation, count) for generation, count in counts.items()]

    def allow(self, max_held: int) -> None:
        """Let so many wait at each gate, and for the end of a pause, from now on."""
        self.pause.max_held = max_held
        for gate in self.gates:
            gate.max_held = max_held

    def seal(self, reason: str, *, code: str = "not_serving") -> None:
        """Refuse everybody from now on, whichever engine may come; those inside go on."""
        self._ending = self._ending or (reason, code)
        for gate in self.gates:
            gate.seal(reason, code=code)

    @property
    def is_lost(self) -> bool:
        """True when nobody is let in any more because the engines are lost."""
        return not self.lets_in and any(gate.is_lost for gate in self.gates)

    async def drained(self, within: float) -> None:
        """Wait until nobody is inside; DrainTimedOut names how many still are."""
        await asyncio.gather(*(gate.drained(within) for gate in self.gates))


@contextmanager
def _sealed_when_lost(gate: Gate[Any]) -> Iterator[None]:
    """Let nobody in after the first who hears that the engine is lost: who asks again goes on to
    another one."""
    try:
        yield
    except EngineLost as lost:
        gate.seal(str(lost), code=lost.code)
        raise
