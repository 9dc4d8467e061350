"""The readers of the two private formats, on bytes worked out by hand."""

import struct

import numpy as np
import pytest

from core.errors import CorruptFileError
from core.models.binary import BinaryReader
from core.models.convert_e5 import _normalizer, dequantise
from core.models.convert_whisper import read_arrays


def test_dequantise_takes_low_halves_first() -> None:
    # Byte i holds i in its low half and 15 - i in its high half; 8 is zero, the scale is 0.5.
    block = np.float16(0.5).tobytes() + bytes(i | (15 - i) << 4 for i in range(16))
    expected = [(i - 8) / 2 for i in range(16)] + [(7 - i) / 2 for i in range(16)]
    assert dequantise(block, 1, 32).tolist() == [expected]


def test_dequantise_fills_rows_in_order() -> None:
    blocks = b"".join(np.float16(scale).tobytes() + bytes([0x99] * 16) for scale in (1, 2, 3, 4))
    assert dequantise(blocks, 2, 64)[:, ::32].tolist() == [[1, 2], [3, 4]]


def test_binary_reader_says_where_a_file_ends() -> None:
    reader = BinaryReader(memoryview(struct.pack("<IH", 7, 9)), "model.bin")
    assert (reader.number("I"), reader.number("H"), reader.position) == (7, 9, 6)
    with pytest.raises(CorruptFileError, match=r"model\.bin announces 4 bytes at offset 6"):
        reader.number("I")


def ct2_file(specification: str = "WhisperSpec", kind: int = 4, count: int = 1) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    array = np.array([1, 2, 3, 4], dtype="<f2")
    out = struct.pack("<I", 6) + text(specification) + struct.pack("<II", 3, count)
    out += text("encoder/x") + struct.pack("<B2IBI", 2, 2, 2, kind, array.nbytes)
    return out + array.tobytes()


def test_read_arrays() -> None:
    assert read_arrays(ct2_file(), "m")["encoder/x"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (ct2_file("TransformerSpec"), "holds a 'TransformerSpec'"),
        (ct2_file(kind=9), "data type 9"),
        (ct2_file(kind=3), "2 numbers for shape"),
        (ct2_file(count=2), "announces 2 bytes"),
        (b"", "has 0 in all"),
    ],
)
def test_read_arrays_refuses_other_files(content: bytes, words: str) -> None:
    with pytest.raises(CorruptFileError, match=words):
        read_arrays(content, "m")


def test_normaliser_takes_its_exceptions_from_the_table() -> None:
    table = {"\x01": "", "\t": " ", "\u200b": " ", "\uff21": "A"}
    normalise = _normalizer(table).normalize_str
    assert normalise("\x01ａ\t\u200bb ") == "a b"
    assert normalise("～e\u0301") == "～\u00e9"
