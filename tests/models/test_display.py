"""Pieces as people read them: never letters of a byte alphabet, nothing invisible."""

import pytest
from transformers import PreTrainedTokenizerFast

from core.models.display import PieceReader, display_pieces, make_visible, piece_reader
from tests.models.conftest import byte_fallback_tokenizer, byte_level_tokenizer, word_tokenizer

BYTES = PieceReader("bytes", has_byte_pieces=False)
MARKS = PieceReader("marks", has_byte_pieces=True)
PLAIN = PieceReader("plain", has_byte_pieces=False)


def shown(pieces: list[str], reader: PieceReader, literal: set[int] = frozenset()) -> list[str]:  # type: ignore[assignment]
    return display_pieces(pieces, [i in literal for i in range(len(pieces))], reader)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (byte_level_tokenizer(), BYTES),
        (byte_fallback_tokenizer(), MARKS),
        (word_tokenizer(), PLAIN),
    ],
)
def test_kind_is_read_from_the_decoder(
    tokenizer: PreTrainedTokenizerFast, expected: PieceReader
) -> None:
    assert piece_reader(tokenizer) == expected


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["Hello", "Ġworld"], ["Hello", "▁world"]),
        (["Ċ", "ĉ", "ĠĠ", "č"], ["↵", "⇥", "▁▁", "␍"]),
        (["è", "ĭ", "¹"], ["苹 1/3", "苹 2/3", "苹 3/3"]),
        (["Ġè", "ĭ¹"], ["▁ 苹 1/2", "苹 2/2"]),
        (["ĭ¹", "æŀľ"], ["0x8B 0xB9", "果"]),
        (["è"], ["0xE8"]),
        (["Ã©"], ["é"]),
    ],
)
def test_byte_level_pieces(pieces: list[str], expected: list[str]) -> None:
    result = shown(pieces, BYTES)
    # Stray bytes of one piece may be listed one by one or together.
    assert result == expected


def test_a_special_token_ends_a_character() -> None:
    pieces = ["è", "<|end|>", "ĭ", "¹"]
    assert shown(pieces, BYTES, {1}) == ["0xE8", "<|end|>", "0x8B", "0xB9"]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["▁我", "吃"], ["▁我", "吃"]),
        (["<0xE8>", "<0x8B>", "<0xB9>", "▁a"], ["苹 1/3", "苹 2/3", "苹 3/3", "▁a"]),
        (["<0x0A>"], ["↵"]),
        (["<0xFF>"], ["0xFF"]),
    ],
)
def test_sentencepiece_pieces(pieces: list[str], expected: list[str]) -> None:
    assert shown(pieces, MARKS) == expected


def test_plain_pieces_stay_letter_by_letter() -> None:
    pieces = ["##ing", "<b>bold</b>", "&lt;", "$x^2$", ":red[hi]", "<0xE8>", "Ġ"]
    assert shown(pieces, PLAIN) == pieces


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\u200bb", "a⟨200B⟩b"),
        ("\u202e", "⟨202E⟩"),
        ("\0", "⟨0000⟩"),
        ("\u3000", "⟨3000⟩"),
        ("\ufffd", "⟨FFFD⟩"),
        ("\u0301", "◌\u0301"),
        ("👨\u200d👩", "👨\u200d👩"),
        ("\u200d", "⟨200D⟩"),
        ("שלום", "שלום"),
        ("", ""),
    ],
)
def test_invisible_characters_are_named(text: str, expected: str) -> None:
    assert make_visible(text) == expected
