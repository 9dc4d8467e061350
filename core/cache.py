"""A cache bounded in bytes in which equal requests are computed once.

The first who asks computes; others who ask for the same wait, and are told now and then so that
they may give up. When the one who computes is stopped, the next in line takes over.
"""

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from cachetools import LRUCache

Value = TypeVar("Value")
WAIT_S = 0.1


class ByteCache(Generic[Value]):
    """Least recently used values, at most `budget_bytes` of them by their own account."""

    def __init__(self, budget_bytes: int, size_of: Callable[[Value], int]) -> None:
        self.budget_bytes = budget_bytes
        self._size_of = size_of
        self._values: LRUCache[Hashable, Value] = LRUCache(
            budget_bytes, getsizeof=lambda value: max(1, min(size_of(value), budget_bytes))
        )
        self._guard = threading.Lock()
        self._computing: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable) -> Value | None:
        """Returns the value, now the most recently used, or None."""
        with self._guard:
            return self._values.get(key)

    def compute_once(
        self, key: Hashable, compute: Callable[[], Value], waiting: Callable[[], None]
    ) -> Value:
        """Returns the cached value or computes it; `waiting` is called while somebody else does.

        Whatever `compute` or `waiting` raises goes to the caller; nothing is cached then.
        """
        while True:
            with self._guard:
                if (found := self._values.get(key)) is not None:
                    return found
                lock = self._computing.setdefault(key, threading.Lock())
            if not lock.acquire(timeout=WAIT_S):
                waiting()
                continue
            try:
                with self._guard:
                    if (found := self._values.get(key)) is not None:
                        return found
                value = compute()
                with self._guard:
                    # A value above the whole budget is kept alone: it was just asked for.
                    self._values[key] = value
                    self._computing.pop(key, None)
                return value
            finally:
                lock.release()


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
