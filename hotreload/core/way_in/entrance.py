"""Admits every request to the least busy engine.

The entrance has one gate before each engine. It knows the requests inside and those that wait, but
nothing of HTTP, weights or engines.
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

from hotreload.core.rules import USUAL_RULES
from hotreload.core.way_in.admission import UNCONDITIONAL, Admission, Conditions
from hotreload.core.way_in.gate import Bell, ExactWeights, Gate, MustLeave
from hotreload.errors import EngineLost, GenerationGone, NotServing
from hotreload.events import Publish
from hotreload.types import AnsweringGeneration, GateState, Generation, Lease


@dataclass(frozen=True, slots=True)
class _Wish:
    """The conditions of one request, and the features that decide on its admission."""

    asked: Conditions
    admissions: Sequence[Admission]

    def holder(self) -> Admission | None:
        """Return the first feature that makes the request wait; None if it need not wait."""
        for each in self.admissions:
            if each.holds(self.asked):
                return each
        return None

    def weights(self) -> Sequence[ExactWeights]:
        """Return the weights that must answer, asked anew each time, as a session may begin."""
        wanted: Sequence[ExactWeights] = (self.asked.exactly,) if self.asked.exactly else ()
        for each in self.admissions:
            if named := each.weights_for(self.asked):
                wanted = (*wanted, *named)
        return wanted

    def engine(self) -> int | None:
        """Return the index of the engine that the first feature with a preference prefers."""
        for each in self.admissions:
            if (index := each.engine_for(self.asked)) is not None:
                return index
        return None


class Entrance[E]:
    """Admits requests to the engines; with a single engine this is its gate."""

    def __init__(
        self,
        publish: Publish,
        *,
        replicas: int = 1,
        max_held: int = USUAL_RULES.max_held,
        hold_arrivals: bool = True,
        admissions: Sequence[Admission] = (),
    ) -> None:
        """Make a gate before each engine; each is closed until weights are live there.

        With `hold_arrivals` a request at a closed gate waits, `max_held` of them at most; else it
        is refused.
        """
        self._entry_bell = bell = Bell()  # a request that waits at one gate may enter another
        self._new_gate = partial(
            Gate[E], publish=publish, hold_arrivals=hold_arrivals, entry_bell=bell
        )
        self.gates = [self._new_gate(replica=at, max_held=max_held) for at in range(replicas)]
        """The gates, by the replica's index."""
        self.admissions = admissions
        """Features that decide on each admission, in this order."""
        self._turn = 0
        self._ending: tuple[str, str] | None = None

    def renew(self, index: int) -> Gate[E]:
        """Replace the sealed gate of a lost engine by a new one."""
        for each in self.admissions:
            each.engine_lost(self.gates[index])
        gate = self._new_gate(replica=index, max_held=self.gates[index].max_held)
        self.gates[index] = gate
        if self._ending is not None:
            reason, code = self._ending
            gate.seal(reason, code=code)
        return gate

    def look_again(self) -> None:
        """Have every waiting request ask the features again."""
        self._entry_bell.ring()

    def check_answers_here(self) -> None:
        """Raise nothing: this host admits requests."""

    @contextmanager
    def lend_engine(self) -> Iterator[E]:
        """Lend an engine to encode and validate a request before admission; NotServing when sealed.

        Every engine checks and encodes alike; the lease says which one answers.
        """
        gate = self._choose_gate(0)
        with _seal_when_lost(gate):
            yield gate.get_engine()

    def engines(self) -> list[E]:
        """List the engines that answer, even behind closed gates; NotServing when there is none."""
        leases = [gate.lease for gate in self.gates if gate.lease and not gate.is_lost]
        return [lease.engine for lease in leases] or [self.gates[0].get_engine()]

    def admit(self, asked: Conditions = UNCONDITIONAL) -> AbstractAsyncContextManager[Lease[E]]:
        """Admit one request; the lease it yields says which weights answer, from start to end.

        While only an older generation answers than it asks for, the request waits as long as it
        says; then NotNewEnough. GenerationGone when the weights that it or a feature names answer
        no more.
        """
        return self._inside(_Wish(asked, self.admissions))

    def inspect(self) -> AbstractAsyncContextManager[Lease[E]]:
        """Lease an engine to read from it: a swap makes the reader wait, a feature does not."""
        return self._inside(_Wish(UNCONDITIONAL, ()))

    @asynccontextmanager
    async def _inside(self, wish: _Wish) -> AsyncIterator[Lease[E]]:
        async with AsyncExitStack() as inside:
            gate, lease = await self._let_in(inside, wish)
            for each in wish.admissions:
                if (answering := each.track(wish.asked, gate, lease)) is not None:
                    inside.enter_context(answering)
            with _seal_when_lost(gate):
                yield lease

    async def _let_in(self, inside: AsyncExitStack, wish: _Wish) -> tuple[Gate[E], Lease[E]]:
        now = asyncio.get_running_loop().time
        until, at_least = now() + wish.asked.within, wish.asked.at_least
        while True:
            came = now()
            await self._wait_for_features(wish)
            until += now() - came
            gate = self._gate_for(wish)
            left = max(0.0, until - now())
            must_leave = partial(self._must_leave, gate, wish)
            try:
                passing = gate.admit(at_least, left, must_leave, wish.weights)
                lease = await inside.enter_async_context(passing)
                if self._holder(wish) is None:
                    return gate, lease
                await inside.aclose()  # a feature made it wait just before the gate let it in
            except MustLeave:
                continue
            except GenerationGone:
                # The weights ended while it waited for a swap: another engine may have them still.
                if gate.lease_of(wish.weights()) or not self._gates_with(wish.weights()):
                    raise
            except NotServing:
                # The engine was lost while the request waited there: another one may answer.
                if gate.state is not GateState.SEALED or not self.lets_in:
                    raise

    async def _wait_for_features(self, wish: _Wish) -> None:
        """Wait as long as a feature makes the request wait."""
        while (holder := self._holder(wish)) is not None:
            with holder.count_waiting(wish.asked):
                while self._holder(wish) is holder:
                    await self._entry_bell.wait()

    def _holder(self, wish: _Wish) -> Admission | None:
        """Return the feature that makes the request wait; none does once the gates are sealed."""
        holder = wish.holder()
        return holder if holder is not None and self.lets_in else None

    def _gates_with(self, wanted: Sequence[ExactWeights]) -> list[Gate[E]]:
        """List the gates behind which these weights answer: only the open ones, if any is open."""
        unsealed = (gate for gate in self.gates if gate.state is not GateState.SEALED)
        having = [gate for gate in unsealed if gate.lease_of(wanted)]
        return [gate for gate in having if gate.state is GateState.OPEN] or having

    def _gate_for(self, wish: _Wish) -> Gate[E]:
        """Choose the gate of an engine that can answer the request, the preferred one if it can."""
        wanted, at_least = wish.weights(), wish.asked.at_least
        having = self._gates_with(wanted) if wanted else self._list_open(at_least)
        if not having:
            return self._choose_gate(0 if wanted else at_least)
        preferred = wish.engine()
        return next((gate for gate in having if gate.replica == preferred), None) or (
            self._least_busy(having)
        )

    def _list_open(self, at_least: int) -> list[Gate[E]]:
        """List the open gates with a generation that is new enough."""
        is_open = (gate for gate in self.gates if gate.state is GateState.OPEN)
        return [gate for gate in is_open if not gate.is_before(at_least)]

    def _choose_gate(self, at_least: int) -> Gate[E]:
        """Choose the gate of the least busy engine that answers now, else one to wait at."""
        if new_enough := self._list_open(at_least):
            return self._least_busy(new_enough)
        unsealed = [gate for gate in self.gates if gate.state is not GateState.SEALED]
        if not unsealed:
            return self.gates[0]
        is_open = self._list_open(0)
        return is_open[0] if is_open else self._least_busy(unsealed)

    def _must_leave(self, gate: Gate[E], wish: _Wish) -> bool:
        """Return True when a request must leave this gate: for a feature, or for an open gate."""
        if self._holder(wish) is not None:
            return True
        others = (each for each in self.gates if each is not gate)
        is_open = (each for each in others if each.state is GateState.OPEN)
        if wanted := wish.weights():
            return any(each.lease_of(wanted) for each in is_open)
        return any(not each.is_before(wish.asked.at_least) for each in is_open)

    def _least_busy(self, gates: Sequence[Gate[E]]) -> Gate[E]:
        """Choose the gate with the fewest requests inside; equally busy gates take turns."""
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

    def list_answering(self) -> list[AnsweringGeneration]:
        """List the generations that answer, live ones first, each with its requests; for any
        thread.

        The live generation of a lost engine counts only for the requests still inside.
        """
        gates = tuple(self.gates)
        there = [gate for gate in gates if not gate.is_lost] or gates
        gone = [gate for gate in gates if gate not in there]
        by_gate = [gate.list_answering() for gate in there]
        live = [each for answering in by_gate for each in answering[:1]]
        older = [each for answering in by_gate for each in answering[1:]]
        older += [each for gate in gone for each in gate.list_answering() if each.requests]
        counts: dict[Generation, int] = {}
        for each in (*live, *older):
            counts[each.generation] = counts.get(each.generation, 0) + each.requests
        return [AnsweringGeneration(generation, count) for generation, count in counts.items()]

    def allow(self, max_held: int) -> None:
        """Let so many requests wait at each gate from now on."""
        for gate in self.gates:
            gate.max_held = max_held

    def seal(self, reason: str, *, code: str = "not_serving") -> None:
        """Refuse every request from now on, at later gates, too; requests inside go on."""
        self._ending = self._ending or (reason, code)
        for gate in self.gates:
            gate.seal(reason, code=code)

    @property
    def is_lost(self) -> bool:
        """True when no request is admitted any more because the engines are lost."""
        return not self.lets_in and any(gate.is_lost for gate in self.gates)

    async def wait_until_empty(self, within: float) -> None:
        """Wait until no request is inside; DrainTimedOut says how many still are."""
        await asyncio.gather(*(gate.wait_until_empty(within) for gate in self.gates))


@contextmanager
def _seal_when_lost(gate: Gate[Any]) -> Iterator[None]:
    """Seal the gate when the block raises EngineLost: later requests go on to another engine."""
    try:
        yield
    except EngineLost as lost:
        gate.seal(str(lost), code=lost.code)
        raise
