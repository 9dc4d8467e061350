"""Reads numbers and names from a binary file in memory, and says where a file ends too early."""

import struct
from typing import Any

from core.errors import CorruptFileError


class BinaryReader:
    """A cursor over the bytes of a file; all numbers are little-endian.

    Attributes:
        position: offset of the next byte to be read.
    """

    def __init__(self, data: memoryview, name: str) -> None:
        self._data = data
        self._name = name
        self.position = 0

    def numbers(self, layout: str) -> tuple[Any, ...]:
        """Returns the numbers that `layout` (as in the struct module) describes."""
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def number(self, layout: str) -> Any:
        """Returns one number."""
        return self.numbers(layout)[0]

    def take(self, n_bytes: int) -> memoryview:
        """Returns the next bytes without copying them.

        Raises:
            CorruptFileError: the file ends before.
        """
        part = self.at(self.position, n_bytes)
        self.position += n_bytes
        return part

    def at(self, start: int, n_bytes: int) -> memoryview:
        """Returns bytes at an absolute offset without moving the cursor."""
        if n_bytes < 0 or start < 0 or start + n_bytes > len(self._data):
            raise CorruptFileError(
                f"{self._name} announces {n_bytes} bytes at offset {start}, but has "
                f"{len(self._data)} in all."
            )
        return self._data[start : start + n_bytes]
