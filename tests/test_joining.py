"""Tokens joined to words: found in the text as typed, whatever the tokenizer made of it."""

from functools import cache

import numpy as np
import pytest

from core.home import words_folder
from core.joining import join_tokens, join_weights, phrase_spans, unit_ranges, word_spans
from core.models.loading import LoadedModel, load_model, wrap_module
from core.models.sources import SourcePolicy
from core.models.tokens import encode
from core.results import CaptureRequest, Joining, MapRequest, ModelRequest, OverviewRequest, Token
from core.service import HeadscopeService
from tests.models.conftest import byte_fallback_tokenizer

WORDS = Joining()
MIXED = "It's 3.14 苹果公司👩‍👩‍👧 café — 我吃了一个苹果, don’t … 🇨🇳\nok"
MIXED_WORDS = [
    *("It's", "3.14", "苹果公司", "👩‍👩‍👧", "café", "—", "我", "吃", "了", "一个", "苹果"),
    *(",", "don’t", "…", "🇨🇳", "ok"),
]


def words_of(text: str) -> list[str]:
    return [text[a:b] for a, b in word_spans(text)]


def test_words_numbers_signs_and_emoji_are_found() -> None:
    assert words_of(MIXED) == MIXED_WORDS


def test_decomposed_letters_stay_with_their_word() -> None:
    assert words_of("cafe\u0301s") == ["cafe\u0301s"]


@pytest.mark.parametrize("text", ["", "  \n\t ", "\u200d\u0301"])
def test_nothing_to_join_is_no_error(text: str) -> None:
    assert unit_ranges(text, (Token(0, "<s>", None, True),), WORDS) == (range(1),)


def test_jieba_keeps_its_files_in_our_folder() -> None:
    words_of("苹果公司")
    assert (words_folder() / "jieba.cache").is_file()


def joined(text: str, offsets: list[tuple[int, int] | None], joining: Joining = WORDS) -> list[str]:
    tokens = tuple(Token(i, "?", o, o is None) for i, o in enumerate(offsets))
    ranges = unit_ranges(text, tokens, joining)
    assert [i for unit in ranges for i in unit] == list(range(len(tokens)))
    return [t.text for t in join_tokens(text, tokens, ranges)]


def test_a_bare_mark_joins_the_word_after_it() -> None:
    # SentencePiece: mark (0, 1) over the first character, then the word itself (0, 2).
    assert joined("苹果公司", [None, (0, 1), (0, 2), (2, 4), None]) == ["?", "苹果公司", "?"]
    # And a mark that is a blank of the text.
    assert joined("ab 12", [(0, 2), (2, 3), (3, 5)]) == ["ab", "12"]
    assert joined("ab ", [(0, 2), (2, 3), None]) == ["ab", "?", "?"]


def test_a_line_break_is_a_unit_of_its_own() -> None:
    assert joined("ab\ncd", [(0, 2), (2, 3), (3, 5)]) == ["ab", "?", "cd"]


def test_a_token_over_two_words_keeps_them_together() -> None:
    assert joined("end. 苹", [(0, 3), (3, 6)]) == ["end", ". 苹"]
    assert joined("abcd, x", [(0, 2), (2, 5), (6, 7)]) == ["abcd,", "x"]


def test_chosen_spans_are_joined_wherever_they_stand() -> None:
    text = "red apple, red apples"
    offsets = [(0, 3), (4, 9), (9, 10), (11, 14), (15, 20), (20, 21)]
    spans = Joining("spans", ("red apple", "apple"))
    assert phrase_spans(text, spans.phrases) == [(0, 9), (11, 20)]
    assert joined(text, offsets, spans) == ["red apple", ",", "red apple", "s"]


def test_join_sums_over_keys_and_means_over_queries() -> None:
    weights = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.0, 1.0, 0.0]], np.float32)
    made = join_weights(weights, [range(1), range(1, 3)], [range(2), range(2, 3)])
    np.testing.assert_allclose(made, [[0.8, 0.2], [0.65, 0.35]], atol=1e-7)


# --- the four kinds of tokenizer on one mixed text -------------------------------------------

MODELS = {
    "WordPiece": "minilm-en",
    "SentencePiece": "e5-small-multilingual",
    "byte BPE": "smollm2-135m",
}


@cache
def loaded(kind: str) -> LoadedModel:
    if kind == "byte fallback":
        return wrap_module(_rows(), byte_fallback_tokenizer(), "tiny")
    return load_model(ModelRequest(MODELS[kind]), SourcePolicy())


def _rows() -> object:
    from torch import nn

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(400, 2)

        def get_input_embeddings(self) -> nn.Module:
            return self.table

    return Rows()


@pytest.mark.models
@pytest.mark.parametrize("kind", [*MODELS, "byte fallback"])
def test_a_mixed_text_gives_whole_words(kind: str) -> None:
    tokens = encode(loaded(kind), MIXED).tokens
    ranges = unit_ranges(MIXED, tokens, WORDS)
    assert [i for unit in ranges for i in unit] == list(range(len(tokens)))
    units = [t for t in join_tokens(MIXED, tokens, ranges) if t.offset and t.text.strip("▁↵ ")]
    # A unit is a word, or several that one token reaches over; nothing is cut or lost.
    starts = {a for a, _ in word_spans(MIXED)}
    stops = {b for _, b in word_spans(MIXED)}
    for unit in units:
        typed = MIXED[slice(*unit.offset)]
        start = unit.offset[0] + len(typed) - len(typed.lstrip())
        assert start in starts, unit
        assert unit.offset[0] + len(typed.rstrip()) in stops, unit
    assert "".join(u.text for u in units).replace(" ", "") == "".join(MIXED_WORDS)
    assert [u.text for u in units].count("苹果") + [u.text for u in units].count("苹果,") == 1


@pytest.mark.models
@pytest.mark.parametrize("kind", list(MODELS))
def test_rows_of_words_sum_to_one_and_equal_the_map_of_tokens(kind: str) -> None:
    service = HeadscopeService()
    request = CaptureRequest(ModelRequest(MODELS[kind]), (MIXED,))
    shown = service.joined(MapRequest(request, joining=WORDS))
    tokens = service.capture(request).texts[0].query_tokens
    ranges = unit_ranges(MIXED, tokens, WORDS)
    for layer, head in ((0, 0), (3, 2), (None, None)):
        asked = MapRequest(request, layer=layer, head=head, joining=WORDS)
        made = service.head_map(asked).weights
        whole = service.head_map(MapRequest(request, layer=layer, head=head)).weights
        assert made.shape == (len(ranges), len(ranges)) == (len(shown.query_tokens),) * 2
        np.testing.assert_allclose(made.sum(1), 1, atol=1e-6)
        expected = np.array(
            [
                [sum(float(whole[q, k]) for q in a for k in b) / len(a) for b in ranges]
                for a in ranges
            ]
        )
        np.testing.assert_allclose(made, expected, atol=1e-6)
        part = service.head_map(
            MapRequest(request, layer=layer, head=head, joining=WORDS, rows=(2, 5), keys=(1, 4))
        )
        np.testing.assert_allclose(part.weights, made[2:5, 1:4], atol=1e-7)
        assert (part.query_index, part.key_index) == ((2, 3, 4), (1, 2, 3))
    pictures = service.overview(OverviewRequest(request, size=256, joining=WORDS)).weights
    np.testing.assert_allclose(
        pictures[3, 2],
        service.head_map(MapRequest(request, layer=3, head=2, joining=WORDS)).weights,
        atol=1e-3,
    )


@pytest.mark.models
def test_hidden_specials_leave_rows_of_words_that_sum_to_one() -> None:
    service = HeadscopeService()
    request = CaptureRequest(ModelRequest(MODELS["SentencePiece"]), (MIXED,))
    asked = MapRequest(request, layer=5, head=1, joining=WORDS, hide_special=True)
    made = service.head_map(asked)
    assert made.query_index[0] == 1
    np.testing.assert_allclose(made.weights.sum(1), 1, atol=1e-6)


@pytest.mark.models
@pytest.mark.parametrize("joining", [None, WORDS])
@pytest.mark.parametrize("hide_special", [False, True])
def test_a_pooled_map_holds_the_means_of_the_exact_one(
    joining: Joining | None, hide_special: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small tiles, so that the picture is put together from many.
    monkeypatch.setattr("core.maps.TILE_BYTES", 20_000)
    service = HeadscopeService()
    request = CaptureRequest(ModelRequest(MODELS["WordPiece"]), ((MIXED + " ") * 6,))
    asked = {"joining": joining, "hide_special": hide_special, "layer": 2, "head": None}
    exact = service.head_map(MapRequest(request, **asked))
    n = len(service.joined(MapRequest(request, joining=joining)).query_tokens)
    wide = np.full((n, n), np.nan)
    wide[np.ix_(exact.query_index, exact.key_index)] = exact.weights
    pooled = service.head_map(MapRequest(request, **asked, cells=7))
    edges = [i * n // 7 for i in range(8)]
    assert pooled.query_index == tuple(edges[:-1])
    for i in range(7):
        for j in range(7):
            cell = wide[edges[i] : edges[i + 1], edges[j] : edges[j + 1]]
            assert pooled.weights[i, j] == pytest.approx(np.nanmean(cell), abs=1e-6)
