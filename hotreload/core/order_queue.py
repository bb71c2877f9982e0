"""Which order is carried out now, and which one comes before its turn."""

import asyncio

from hotreload.core.orders import Order
from hotreload.core.reload import Reload
from hotreload.errors import Busy, NotServing
from hotreload.types import Attempt


class OrderQueue:
    """One order at a time; one that overrules it may be given before it is done."""

    def __init__(self) -> None:
        self.first: Order | None = None
        """The order that is not done yet."""
        self._overruling: Order | None = None
        self._is_over = False

    @property
    def promises(self) -> list[asyncio.Future[Attempt]]:
        """The futures of the orders that are not done yet."""
        return [order.done for order in (self.first, self._overruling) if order is not None]

    def take(self, order: Order, under_way: Reload | None) -> None:
        """Take an operator's order; Busy while another is not done.

        A rollback overrules what can still be given up.
        """
        if self._is_over:
            raise NotServing("hotreload is stopping", code="stopping")
        if self.first is None:
            self.first = order
        elif order.overrules and self._may_be_overruled(self.first, under_way):
            self.first.is_overruled, self._overruling = True, order
        else:
            raise Busy(f"{self.first.revision} was asked for and is not done; ask again then")

    def _may_be_overruled(self, order: Order, under_way: Reload | None) -> bool:
        if not order.may_be_overruled or self._overruling is not None:
            return False
        return under_way is None or under_way.revision != order.revision or under_way.may_give_up

    def drop(self, order: Order) -> None:
        """End the turn of the first order; whoever still waits for it is told."""
        self.first, self._overruling = self._overruling, None
        order.done.cancel()

    def end(self) -> None:
        """Cancel all orders: none will be carried out any more."""
        self._is_over = True
        for promise in self.promises:
            promise.cancel()
        self.first = self._overruling = None
