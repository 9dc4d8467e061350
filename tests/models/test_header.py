"""Headers of safetensors files from strangers: good ones are read, all others refused in words."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from core.errors import CorruptFileError
from core.models.header import TensorEntry, read_header


def raw_file(path: Path, header: Any, data: bytes, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def tensor(begin: int, end: int, shape: list[Any] | None = None, dtype: str = "F32") -> Any:
    return {"dtype": dtype, "shape": shape or [4], "data_offsets": [begin, end]}


def test_reads_what_safetensors_writes(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    tensors = {"a": torch.zeros(2, 3), "b": torch.zeros(5, dtype=torch.bfloat16)}
    save_file(tensors | {"scalar": torch.tensor(1)}, path, metadata={"format": "pt"})
    entries = read_header(path)
    assert entries["a"] == TensorEntry("F32", (2, 3), 24)
    assert entries["b"] == TensorEntry("BF16", (5,), 10)
    assert entries["scalar"].n_elements == 1


@pytest.mark.parametrize(
    ("header", "data", "length", "reason"),
    [
        ({"w": tensor(0, 16)}, bytes(16), 2**60, r"1152921504606846976 bytes long, but"),
        ({"w": tensor(0, 16)}, bytes(7), None, "16 bytes of weights are announced, but 7"),
        ({"w": tensor(0, 16), "x": tensor(16, 4096)}, bytes(32), None, "needs 16 bytes, but 4080"),
        (
            {"w": tensor(0, 16), "x": tensor(16, 4096, [1020])},
            bytes(32),
            None,
            "4096 bytes of weights are announced, but 32 are there",
        ),
        ({"w": tensor(0, 16), "x": tensor(8, 24)}, bytes(24), None, "'x' overlaps"),
        ({"w": tensor(0, 16), "x": tensor(20, 36)}, bytes(36), None, "4 bytes before tensor 'x'"),
        ({"w": tensor(0, 16)}, bytes(20), None, "4 bytes at its end"),
        (b'{},"__metadata__":{"key":"value"}}       ', b"", None, "header is not readable"),
        (b'{"w":1,"w":2}', b"", None, "a name occurs twice"),
        (b"[" * 100_000, b"", None, "not readable"),
        ([], b"", None, "not a table"),
        ({"w": 3}, b"", None, "entry of tensor 'w'"),
        ({"w": tensor(0, 16, dtype="F33")}, bytes(16), None, "unknown data type 'F33'"),
        ({"w": tensor(0, 16, [-4])}, bytes(16), None, "no whole number"),
        ({"w": tensor(0, 16, [True])}, bytes(16), None, "no whole number"),
        ({"w": tensor(16, 0)}, bytes(16), None, "-16 are announced"),
    ],
)
def test_refuses_damaged_files(
    tmp_path: Path, header: Any, data: bytes, length: int | None, reason: str
) -> None:
    path = raw_file(tmp_path / "bad.safetensors", header, data, length)
    with pytest.raises(CorruptFileError, match=reason):
        read_header(path)


@pytest.mark.parametrize("content", [b"", b"abc"])
def test_refuses_files_too_short_for_a_header(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "short.safetensors"
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=f"it has {len(content)} bytes"):
        read_header(path)
