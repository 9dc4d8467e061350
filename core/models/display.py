"""Turns the pieces of a tokenizer into text that people can read.

Byte-level and SentencePiece tokenizers cut characters into bytes; such a piece is shown as the
part of its character that it is ("苹 1/3"), never as letters of a byte alphabet. Which kind of
tokenizer it is, is read from its decoder, not from its name. Blanks are shown as one mark.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

SPACE_MARK = "▁"
_VISIBLE = {" ": SPACE_MARK, "\n": "↵", "\t": "⇥", "\r": "␍"}
_JOINERS = "\u200c\u200d"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTINUED = 0x80

Style = Literal["bytes", "marks", "plain"]


@dataclass(frozen=True)
class PieceReader:
    """How the pieces of one tokenizer are read.

    Attributes:
        style: "bytes" (byte-level alphabet), "marks" (SentencePiece), "plain" (anything else).
        has_byte_pieces: pieces such as <0xE8> stand for single bytes.
    """

    style: Style
    has_byte_pieces: bool

    def to_bytes(self, piece: str) -> bytes | None:
        """Returns the bytes of the text a piece stands for; None when it is not made of any."""
        if self.style == "bytes":
            try:
                return bytes(_BYTE_OF_LETTER[letter] for letter in piece)
            except KeyError:
                return None
        if self.has_byte_pieces and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return None


def piece_reader(tokenizer: Any) -> PieceReader:
    """Returns how this tokenizer's pieces are read, from its decoder and pre-tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = _part_types(getattr(backend, "decoder", None))
    parts |= _part_types(getattr(backend, "pre_tokenizer", None))
    if "ByteLevel" in parts:
        return PieceReader("bytes", has_byte_pieces=False)
    if "ByteFallback" in parts or "Metaspace" in parts:
        return PieceReader("marks", has_byte_pieces="ByteFallback" in parts)
    if backend is not None:
        return PieceReader("plain", has_byte_pieces=False)
    if getattr(tokenizer, "byte_decoder", None):
        return PieceReader("bytes", has_byte_pieces=False)
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    has_bytes = "<0x00>" in vocabulary and "<0xFF>" in vocabulary
    return PieceReader("marks" if has_bytes else "plain", has_byte_pieces=has_bytes)


def display_pieces(
    pieces: Sequence[str], is_literal: Sequence[bool], reader: PieceReader
) -> list[str]:
    """Returns one readable string a piece.

    Args:
        is_literal: pieces that are text as they stand: special and added tokens.
    """
    out = [""] * len(pieces)
    run: list[tuple[int, bytes]] = []

    def flush() -> None:
        for (index, _), text in zip(run, _display_bytes([b for _, b in run]), strict=True):
            out[index] = text
        run.clear()

    for index, piece in enumerate(pieces):
        raw = None if is_literal[index] else reader.to_bytes(piece)
        if raw is not None:
            run.append((index, raw))
            continue
        flush()
        out[index] = make_visible(piece)
    flush()
    return out


def make_visible(text: str) -> str:
    """Returns the text with blanks, control and invisible characters shown by marks or codes."""
    out = []
    for index, character in enumerate(text):
        if character in _VISIBLE:
            out.append(_VISIBLE[character])
        elif character in _JOINERS and 0 < index < len(text) - 1:
            out.append(character)
        elif _is_invisible(character):
            out.append(f"⟨{ord(character):04X}⟩")
        else:
            out.append(character)
    shown = "".join(out)
    # An accent of its own needs something to sit on.
    return "◌" + shown if shown and unicodedata.category(shown[0]) in ("Mn", "Me") else shown


def _is_invisible(character: str) -> bool:
    # U+FFFD is the sign for a broken character; here it only ever stands in the text as typed.
    if character == "\ufffd" or "\ufe00" <= character <= "\ufe0f":
        return True
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")


def _display_bytes(chunks: Sequence[bytes]) -> list[str]:
    """Returns readable text for each of several chunks of one UTF-8 stream.

    A character that lies in several chunks is shown in each with its place among them.
    """
    stream = b"".join(chunks)
    characters = _characters(stream)
    bounds: list[tuple[int, int]] = []
    start = 0
    for chunk in chunks:
        bounds.append((start, start + len(chunk)))
        start += len(chunk)
    touching: dict[int, list[int]] = {}
    for number, (begin, end, _) in enumerate(characters):
        touching[number] = [i for i, (a, b) in enumerate(bounds) if a < end and b > begin]
    texts: list[list[str]] = [[] for _ in chunks]
    whole = [""] * len(chunks)

    def close(index: int) -> None:
        if whole[index]:
            texts[index].append(make_visible(whole[index]))
            whole[index] = ""

    for number, (begin, end, character) in enumerate(characters):
        holders = touching[number]
        if character is None:
            for index in holders:
                close(index)
                a, b = max(begin, bounds[index][0]), min(end, bounds[index][1])
                texts[index].append(" ".join(f"0x{byte:02X}" for byte in stream[a:b]))
        elif len(holders) == 1:
            whole[holders[0]] += character
        else:
            for place, index in enumerate(holders, start=1):
                close(index)
                texts[index].append(f"{make_visible(character)} {place}/{len(holders)}")
    for index in range(len(chunks)):
        close(index)
    return [" ".join(parts) for parts in texts]


def _characters(stream: bytes) -> list[tuple[int, int, str | None]]:
    """Returns [start, end) of each character of a UTF-8 stream; None for bytes that make none."""
    out: list[tuple[int, int, str | None]] = []
    position = 0
    while position < len(stream):
        length = _announced_length(stream[position])
        part = stream[position : position + length]
        try:
            out.append((position, position + length, part.decode()))
            position += length
        except UnicodeDecodeError:
            out.append((position, position + 1, None))
            position += 1
    return out


def _announced_length(lead: int) -> int:
    if lead < _CONTINUED:
        return 1
    return 2 if lead >> 5 == 0b110 else 3 if lead >> 4 == 0b1110 else 4 if lead >> 3 == 30 else 1


def _part_types(part: Any) -> set[str]:
    """Returns the types of a decoder or pre-tokenizer and of all it is made of."""
    if part is None:
        return set()
    state = part.__getstate__()
    return _types_in(json.loads(state)) if isinstance(state, bytes | str) else set()


def _types_in(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(_types_in, node))
    if not isinstance(node, dict):
        return set()
    own = {node["type"]} if isinstance(node.get("type"), str) else set()
    return own.union(*(_types_in(value) for value in node.values()))


def _byte_alphabet() -> dict[str, int]:
    """Returns the letter -> byte table of byte-level tokenizers.

    Printable bytes of Latin-1 stand for themselves, the others for letters from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_alphabet()
