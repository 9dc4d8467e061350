"""A cache bounded in bytes in which equal requests are computed once.

The first who asks computes; others who ask for the same wait, and are told now and then so that
they may give up. When the one who computes is stopped, the next in line takes over.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cachetools import LRUCache

Value = TypeVar("Value")
WAIT_S = 0.1


class _Leaving(LRUCache[Hashable, Value]):
    """Hands on what it drops for want of room."""

    def __init__(
        self,
        maxsize: int,
        getsizeof: Callable[[Value], int],
        leave: Callable[[Hashable, Value], None],
    ) -> None:
        super().__init__(maxsize, getsizeof)
        self._leave = leave

    def popitem(self) -> tuple[Hashable, Value]:
        key, value = super().popitem()
        self._leave(key, value)
        return key, value


@dataclass
class _Turn:
    """Who asks for one key that is not there yet."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    n_asking: int = 0


class ByteCache(Generic[Value]):
    """Least recently used values, at most `budget_bytes` of them by their own account.

    Args:
        spill: called with a value that no longer fits; it moves the value's bytes out of memory and
            says whether it could.
        spill_budget_bytes: most bytes of moved values; beyond it the least recently used are let
            go. A moved value is answered like any other.
    """

    def __init__(
        self,
        budget_bytes: int,
        size_of: Callable[[Value], int],
        *,
        spill: Callable[[Value], bool] | None = None,
        spill_budget_bytes: int = 0,
    ) -> None:
        def capped(limit: int) -> Callable[[Value], int]:
            # A value above the whole budget is kept alone: it was just asked for.
            return lambda value: max(1, min(size_of(value), limit))

        self.budget_bytes = budget_bytes
        self._spill = spill
        self._values = _Leaving(budget_bytes, capped(budget_bytes), self._move)
        self._spilled: LRUCache[Hashable, Value] = LRUCache(
            max(1, spill_budget_bytes), capped(max(1, spill_budget_bytes))
        )
        self._guard = threading.Lock()
        self._turns: dict[Hashable, _Turn] = {}

    def get(self, key: Hashable) -> Value | None:
        """Returns the value, now the most recently used, or None."""
        with self._guard:
            found = self._values.get(key)
            return self._spilled.get(key) if found is None else found

    def compute_once(
        self, key: Hashable, compute: Callable[[], Value], waiting: Callable[[int], None]
    ) -> Value:
        """Returns the cached value or computes it; `waiting` is called while somebody else does.

        Whatever `compute` or `waiting` raises goes to the caller; nothing is cached then.
        """
        with self._guard:
            turn = self._turns.setdefault(key, _Turn())
            turn.n_asking += 1
        try:
            while not turn.lock.acquire(timeout=WAIT_S):
                waiting(0)
            try:
                found = self.get(key)
                if found is None:
                    found = compute()
                    with self._guard:
                        self._values[key] = found
                return found
            finally:
                turn.lock.release()
        finally:
            with self._guard:
                turn.n_asking -= 1
                if not turn.n_asking:
                    del self._turns[key]

    def _move(self, key: Hashable, value: Value) -> None:
        # The guard is held: nobody finds the value in neither place, or half moved.
        if self._spill is not None and self._spill(value):
            self._spilled[key] = value


class FairQueue:
    """Lets one piece of work onto the device at a time, in the order of asking."""

    def __init__(self) -> None:
        self._guard = threading.Condition()
        self._line: list[object] = []

    def run(self, work: Callable[[], Value], waiting: Callable[[int], None]) -> Value:
        """Runs `work` when its turn comes; `waiting` gets the place in the line (1 = next).

        A caller whose `waiting` raises leaves the line.
        """
        ticket = object()
        with self._guard:
            self._line.append(ticket)
        try:
            while True:
                with self._guard:
                    place = self._line.index(ticket)
                    if place == 0:
                        break
                    self._guard.wait(WAIT_S)
                waiting(place)
            return work()
        finally:
            with self._guard:
                self._line.remove(ticket)
                self._guard.notify_all()
