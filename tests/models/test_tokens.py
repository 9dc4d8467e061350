"""Texts to tokens on tiny tokenizers: limits before running, offsets in the text as typed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from core import limits
from core.errors import BadInputError, HeadscopeError, TooLargeError
from core.models.loading import LoadedModel, load_model, wrap_module
from core.models.sources import SourcePolicy
from core.models.tokens import encode, encode_target, tokens_of
from core.results import Feed, ModelRequest
from tests.models.conftest import (
    WORDS,
    byte_fallback_tokenizer,
    byte_level_tokenizer,
    word_tokenizer,
)

TEMPLATE = (
    "{% for m in messages %}[CLS] {{ m['content'] | trim }} [SEP]{% endfor %}"
    "{% if add_generation_prompt %} the{% endif %}"
)


def with_tokenizer(tokenizer: Any, rows: int = 400, **info: Any) -> LoadedModel:
    """A model that only has an embedding: nothing here may run it."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(rows, 2)

        def get_input_embeddings(self) -> nn.Module:
            return self.table

    loaded = wrap_module(Rows(), tokenizer, "tiny")
    return replace(loaded, info=replace(loaded.info, **info))


WORDY = with_tokenizer(word_tokenizer(), max_tokens=8, max_tokens_source="test", prefix="the ")


@pytest.fixture
def tiny_loaded(tiny: Path) -> LoadedModel:
    return load_model(ModelRequest(str(tiny)), SourcePolicy())


def test_specials_have_no_offset_and_unknown_words_do() -> None:
    tokens = encode(WORDY, "apple xyz").tokens
    assert [t.text for t in tokens] == ["[CLS]", "apple", "[UNK]", "[SEP]"]
    assert [t.offset for t in tokens] == [None, (0, 5), (6, 9), None]
    assert [t.is_special for t in tokens] == [True, False, False, True]


def test_special_token_typed_into_the_text_is_special() -> None:
    token = encode(WORDY, "apple [SEP] bank").tokens[2]
    assert (token.text, token.is_special, token.offset) == ("[SEP]", True, None)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", BadInputError, "text is empty"),
        (" \n\t ", BadInputError, r"only blanks \(4"),
        ("x" * (limits.MAX_TEXT_CHARS + 1), TooLargeError, "1,000,001 characters; at most 1,000"),
        ("apple " * 9, TooLargeError, r"11 tokens; tiny reads at most 8 \(test\).*--truncate"),
    ],
)
def test_texts_that_are_refused(text: str, error: type[HeadscopeError], words: str) -> None:
    with pytest.raises(error, match=words):
        encode(WORDY, text)


def test_truncation_keeps_the_end_token_and_says_so() -> None:
    made = encode(WORDY, "apple bank " * 9, truncate=True)
    assert len(made.ids) == 8
    assert made.tokens[-1].text == "[SEP]"
    assert made.tokens[-2].offset == (28, 32)
    assert "20 tokens; only the first 8" in made.note


def test_rotary_decoders_may_read_past_their_limit() -> None:
    text = "apple bank " * 9
    with pytest.raises(TooLargeError, match=r"--truncate on the command line\)\."):
        encode(WORDY, text, beyond=True)
    rotary = replace(WORDY, info=replace(WORDY.info, kind="decoder", position="rotary"))
    with pytest.raises(TooLargeError, match="--beyond"):
        encode(rotary, text)
    made = encode(rotary, text, beyond=True)
    assert len(made.ids) == 20
    assert "20 tokens, tiny was made for 8" in made.note


def test_text_of_exactly_the_limit_is_taken() -> None:
    assert len(encode(WORDY, "apple " * 6).ids) == 8


def test_prefix_is_not_part_of_the_text() -> None:
    tokens = encode(WORDY, "apple bank", feed="prefix").tokens
    assert [t.text for t in tokens] == ["[CLS]", "the", "apple", "bank", "[SEP]"]
    assert [t.offset for t in tokens] == [None, None, (0, 5), (6, 10), None]


@pytest.mark.parametrize("feed", ["prefix", "chat"])
def test_feed_that_the_model_does_not_have(feed: Feed) -> None:
    with pytest.raises(BadInputError, match=r"tiny has no (prefix|chat template).*as typed"):
        encode(with_tokenizer(word_tokenizer()), "apple", feed=feed)


def test_chat_template_keeps_offsets_of_the_text_as_typed() -> None:
    loaded = with_tokenizer(word_tokenizer(chat_template=TEMPLATE))
    tokens = encode(loaded, "  the apple ", feed="chat").tokens
    assert [t.text for t in tokens] == ["[CLS]", "the", "apple", "[SEP]", "the"]
    assert [t.offset for t in tokens] == [None, (2, 5), (6, 11), None, None]


def test_chat_template_that_fails_is_a_sentence() -> None:
    loaded = with_tokenizer(word_tokenizer(chat_template="{{ raise_exception('no users') }}"))
    with pytest.raises(BadInputError, match="does not take this text: no users"):
        encode(loaded, "apple", feed="chat")


def test_ids_without_a_row_are_named() -> None:
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["newtokenone", "newtokentwo"])
    loaded = with_tokenizer(tokenizer, rows=len(WORDS))
    with pytest.raises(BadInputError, match=r"9 \('newtokenone'\).*9 of the embedding"):
        encode(loaded, "newtokenone apple")
    assert len(encode(loaded, "apple").ids) == 3


def test_byte_level_text_keeps_characters_together() -> None:
    loaded = with_tokenizer(byte_level_tokenizer())
    tokens = encode(loaded, "苹 a").tokens
    assert [t.text for t in tokens] == ["苹 1/3", "苹 2/3", "苹 3/3", "▁", "a"]
    assert [t.offset for t in tokens] == [(0, 1)] * 3 + [(1, 2), (2, 3)]


def test_byte_fallback_text() -> None:
    tokens = encode(with_tokenizer(byte_fallback_tokenizer()), "a苹").tokens
    assert [t.text for t in tokens] == ["▁a", "苹 1/3", "苹 2/3", "苹 3/3"]


STRANGE = [
    "\ud800a",
    "a\0b",
    "👨‍👩‍👧‍👦",
    "שלום",
    "a\u200bb\u202ec",
    "e\u0301",
    "\ufffd?",
    "\U0010ffff",
]


@pytest.mark.parametrize("text", STRANGE, ids=ascii)
@pytest.mark.parametrize(
    "tokenizer",
    [word_tokenizer(), byte_level_tokenizer(), byte_fallback_tokenizer()],
    ids=["words", "bytes", "fallback"],
)
def test_strange_texts_never_crash(text: str, tokenizer: Any) -> None:
    made = encode(with_tokenizer(tokenizer), text)
    assert len(made.ids) == len(made.tokens)
    for token in made.tokens:
        assert token.text
        assert "\ufffd" not in token.text
        assert token.offset is None or 0 <= token.offset[0] < token.offset[1] <= len(text)
    assert bool(made.note) == ("\ud800" in text)


def test_generated_tokens_point_to_no_text() -> None:
    loaded = with_tokenizer(byte_level_tokenizer())
    ids = encode(loaded, "苹").ids
    tokens = tokens_of(loaded, ids[:2])
    assert [(t.text, t.offset) for t in tokens] == [("0xE8", None), ("0x8B", None)]


def test_target_gets_a_start_token_and_loses_its_end() -> None:
    config = T5Config(
        vocab_size=len(WORDS), d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    tokenizer = word_tokenizer(eos_token="[SEP]")
    made = encode_target(wrap_module(T5ForConditionalGeneration(config), tokenizer), "apple")
    assert [t.text for t in made.tokens] == ["[PAD]", "[CLS]", "apple"]
    assert [t.offset for t in made.tokens] == [None, None, (0, 5)]


def test_model_without_tokenizer_reads_no_text() -> None:
    with pytest.raises(BadInputError, match="no tokenizer"):
        encode(with_tokenizer(None), "apple")


def test_tiny_roberta_like_limit_is_checked_before_running(tiny_loaded: LoadedModel) -> None:
    with pytest.raises(TooLargeError, match="at most 32"):
        encode(tiny_loaded, "apple " * 31)
