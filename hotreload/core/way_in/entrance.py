"""Every request comes in here, and is let in to one of the engines: the least busy one.

Behind it stands one gate before each engine. It knows who is inside and who waits; nothing of
HTTP, weights or what an engine is.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from functools import partial
from typing import Any

from hotreload.core.way_in.admission import UNCONDITIONAL, Admission, Conditions
from hotreload.core.way_in.bell import Bell
from hotreload.core.way_in.exact_weights import ExactWeights
from hotreload.core.way_in.gate import AnsweredElsewhere, Gate
from hotreload.errors import EngineLost, GenerationGone, NotServing
from hotreload.events import Publish
from hotreload.types import Answering, GateState, Generation, Lease


@dataclass(frozen=True, slots=True)
class _Wish:
    """The conditions of one request, and the admissions that have a say in it."""

    asked: Conditions
    admissions: Sequence[Admission]

    def holder(self) -> Admission | None:
        """The first admission for which it has to wait."""
        for each in self.admissions:
            if each.holds(self.asked):
                return each
        return None

    def weights(self) -> Sequence[ExactWeights]:
        """The weights it is to be answered by; asked anew each time, as a session may begin."""
        wanted: Sequence[ExactWeights] = (self.asked.exactly,) if self.asked.exactly else ()
        for each in self.admissions:
            if named := each.weights_for(self.asked):
                wanted = (*wanted, *named)
        return wanted

    def engine(self) -> int | None:
        """The index of the engine that the first admission prefers that prefers any."""
        for each in self.admissions:
            if (index := each.engine_for(self.asked)) is not None:
                return index
        return None


class Entrance[E]:
    """One way in for all who ask; where there is one engine alone, its gate is all there is."""

    def __init__(
        self,
        publish: Publish,
        *,
        replicas: int = 1,
        max_held: int = 1024,
        hold_arrivals: bool = True,
        admissions: Sequence[Admission] = (),
    ) -> None:
        """Make a gate before each of so many engines; each is closed until weights are live there.

        `hold_arrivals` is for while it is closed: those who come wait, at most `max_held` of them,
        or are refused.
        """
        self._new_gate = partial(Gate[E], publish=publish, hold_arrivals=hold_arrivals)
        self._moved = Bell()
        self.gates = [self._gate(index, max_held) for index in range(replicas)]
        """By the replica's index."""
        self.admissions = admissions
        """They have a say in each request, in this order."""
        self._turn = 0
        self._ending: tuple[str, str] | None = None

    def renew(self, index: int) -> Gate[E]:
        """Put a new gate in the place of one that was sealed because its engine was lost."""
        for each in self.admissions:
            each.engine_lost(self.gates[index])
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

    def look_again(self) -> None:
        """Have all that wait here ask the admissions anew."""
        self._moved.ring()

    def check_answers_here(self) -> None:
        """Raise nothing: this host lets requests in."""

    @contextmanager
    def lend_preparer(self) -> Iterator[E]:
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

    def admit(self, asked: Conditions = UNCONDITIONAL) -> AbstractAsyncContextManager[Lease[E]]:
        """Let one request through; the lease it yields says who answers, from start to end.

        An older generation than `at_least` is waited out, within a timeout; then NotNewEnough.
        GenerationGone when the weights that it or an admission names answer no more.
        """
        return self._inside(_Wish(asked, self.admissions))

    def inspect(self) -> AbstractAsyncContextManager[Lease[E]]:
        """Let in one who looks at the engine or its weights: a swap holds it, no admission."""
        return self._inside(_Wish(UNCONDITIONAL, ()))

    @asynccontextmanager
    async def _inside(self, wish: _Wish) -> AsyncIterator[Lease[E]]:
        async with AsyncExitStack() as inside:
            gate, lease = await self._let_in(inside, wish)
            for each in wish.admissions:
                if (answering := each.track(wish.asked, gate, lease)) is not None:
                    inside.enter_context(answering)
            with _sealed_when_lost(gate):
                yield lease

    async def _let_in(self, inside: AsyncExitStack, wish: _Wish) -> tuple[Gate[E], Lease[E]]:
        now = asyncio.get_running_loop().time
        until, at_least = now() + wish.asked.within, wish.asked.at_least
        while True:
            came = now()
            await self._held(wish)
            until += now() - came
            gate = self._gate_for(wish)
            left = max(0.0, until - now())
            elsewhere = partial(self._lets_in_elsewhere, gate, wish)
            try:
                passing = gate.admit(at_least, left, elsewhere, wish.weights)
                lease = await inside.enter_async_context(passing)
                if self._holder(wish) is None:
                    return gate, lease
                await inside.aclose()  # it has to wait since just before the gate let it in
            except AnsweredElsewhere:
                continue
            except GenerationGone:
                # Gone while it waited there, for a swap: another engine may have it still.
                if gate.lease_of(wish.weights()) or not self._gates_with(wish.weights()):
                    raise
            except NotServing:
                # Its engine was lost while it waited there: another one may answer.
                if gate.state is not GateState.SEALED or not self.lets_in:
                    raise

    async def _held(self, wish: _Wish) -> None:
        """Have it wait as long as an admission holds it."""
        while (holder := self._holder(wish)) is not None:
            with holder.count_waiting(wish.asked):
                while self._holder(wish) is holder:
                    await self._moved.wait()

    def _holder(self, wish: _Wish) -> Admission | None:
        """The admission for which it has to wait; what is refused need not."""
        holder = wish.holder()
        return holder if holder is not None and self.lets_in else None

    def _gates_with(self, wanted: Sequence[ExactWeights]) -> list[Gate[E]]:
        """List the gates behind which these weights answer: those that are open, if any is."""
        unsealed = (gate for gate in self.gates if gate.state is not GateState.SEALED)
        having = [gate for gate in unsealed if gate.lease_of(wanted)]
        return [gate for gate in having if gate.state is GateState.OPEN] or having

    def _gate_for(self, wish: _Wish) -> Gate[E]:
        """The gate of an engine that can answer it, the preferred one if that can."""
        wanted, at_least = wish.weights(), wish.asked.at_least
        having = self._gates_with(wanted) if wanted else self._open(at_least)
        if not having:
            return self._best(0 if wanted else at_least)
        preferred = wish.engine()
        return next((gate for gate in having if gate.replica == preferred), None) or (
            self._least_busy(having)
        )

    def _open(self, at_least: int) -> list[Gate[E]]:
        """List the gates that let in now, where a generation answers that is new enough."""
        is_open = (gate for gate in self.gates if gate.state is GateState.OPEN)
        return [gate for gate in is_open if not gate.is_before(at_least)]

    def _best(self, at_least: int) -> Gate[E]:
        """The gate of the least busy engine among those that answer now, else one to wait at."""
        if new_enough := self._open(at_least):
            return self._least_busy(new_enough)
        unsealed = [gate for gate in self.gates if gate.state is not GateState.SEALED]
        if not unsealed:
            return self.gates[0]
        is_open = self._open(0)
        return is_open[0] if is_open else self._least_busy(unsealed)

    def _lets_in_elsewhere(self, gate: Gate[E], wish: _Wish) -> bool:
        """True when a request is to leave this gate: to wait for an admission, or to be let in."""
        if self._holder(wish) is not None:
            return True
        others = (each for each in self.gates if each is not gate)
        is_open = (each for each in others if each.state is GateState.OPEN)
        if wanted := wish.weights():
            return any(each.lease_of(wanted) for each in is_open)
        return any(not each.is_before(wish.asked.at_least) for each in is_open)

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
        """Let so many wait at each gate from now on."""
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

    async def wait_until_empty(self, within: float) -> None:
        """Wait until nobody is inside; DrainTimedOut names how many still are."""
        await asyncio.gather(*(gate.wait_until_empty(within) for gate in self.gates))


@contextmanager
def _sealed_when_lost(gate: Gate[Any]) -> Iterator[None]:
    """Let nobody in after the first who hears that the engine is lost: who asks again goes on to
    another one."""
    try:
        yield
    except EngineLost as lost:
        gate.seal(str(lost), code=lost.code)
        raise
