"""Reads and checks the header of a safetensors file, trusting no number in it.

A header says how long it is and where each tensor lies. Files come from strangers, so nothing is
allocated from a number in the file before that number was held against the file's real size.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import CorruptFileError, MissingFileError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

_LENGTH_BYTES = 8
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: its data type as safetensors names it, its shape and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    n_bytes: int

    @property
    def n_elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Returns the tensors a safetensors file announces, after holding them against its size.

    Raises:
        CorruptFileError: the file cannot be what it says it is.
        MissingFileError: it cannot be read at all.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length_raw = file.read(_LENGTH_BYTES)
            if len(length_raw) < _LENGTH_BYTES:
                raise _corrupt(path, f"it has {size} bytes, too few for any weights")
            length = int.from_bytes(length_raw, "little")
            there = size - _LENGTH_BYTES
            if length > MAX_HEADER_BYTES or length > there:
                raise _corrupt(
                    path,
                    f"its header should be {length} bytes long, but {there} are there "
                    f"and {MAX_HEADER_BYTES} are allowed",
                )
            raw = file.read(length)
    except OSError as error:
        raise MissingFileError(
            f"{path.name} cannot be read: {error.strerror or error}.",
            "Check the file and its permissions.",
        ) from error
    return _check(path, _parse(path, raw), there - length)


def _parse(path: Path, raw: bytes) -> Mapping[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a name occurs twice")
        return made

    try:
        header = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"its header is not readable ({error})") from error
    if not isinstance(header, dict):
        raise _corrupt(path, "its header is not a table of tensors")
    header.pop("__metadata__", None)
    return header


def _check(path: Path, header: Mapping[str, Any], data_bytes: int) -> dict[str, TensorEntry]:
    entries: dict[str, TensorEntry] = {}
    spans: list[tuple[int, int, str]] = []
    for name, value in header.items():
        entry, begin, end = _entry(path, name, value)
        entries[name] = entry
        spans.append((begin, end, name))
    announced = max((end for _, end, _ in spans), default=0)
    if announced > data_bytes:
        raise _corrupt(
            path,
            f"{announced} bytes of weights are announced, but {data_bytes} are there",
            "It is cut off or damaged: copy or download it again.",
        )
    spans.sort()
    expected = 0
    for begin, end, name in spans:
        if begin < expected:
            raise _corrupt(path, f"tensor '{name}' overlaps the one before it")
        if begin > expected:
            raise _corrupt(path, f"{begin - expected} bytes before tensor '{name}' are no tensor's")
        expected = end
    if expected != data_bytes:
        raise _corrupt(path, f"{data_bytes - expected} bytes at its end belong to no tensor")
    return entries


def _entry(path: Path, name: str, value: Any) -> tuple[TensorEntry, int, int]:
    def is_count(number: Any) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and number >= 0

    try:
        dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _corrupt(path, f"the entry of tensor '{name}' is not readable") from error
    if dtype not in _BITS:
        raise _corrupt(path, f"tensor '{name}' has the unknown data type {dtype!r}")
    if not isinstance(shape, list) or not all(map(is_count, [*shape, begin, end])):
        raise _corrupt(path, f"tensor '{name}' has a shape or place that is no whole number")
    entry = TensorEntry(dtype, tuple(shape), end - begin)
    if entry.n_elements * _BITS[dtype] != 8 * entry.n_bytes:
        raise _corrupt(
            path,
            f"tensor '{name}' of shape {shape} in {dtype} needs "
            f"{entry.n_elements * _BITS[dtype] // 8} bytes, but {entry.n_bytes} are announced",
        )
    return entry, begin, end


def _corrupt(path: Path, reason: str, hint: str = "") -> CorruptFileError:
    return CorruptFileError(
        f"{path.name} is damaged: {reason}.", hint or "Save or download the model again."
    )
