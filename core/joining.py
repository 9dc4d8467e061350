"""Tokens joined to words, or to spans that a person chose, by where they stand in the text.

A unit is a run of neighbouring tokens. Words are found in the text as typed, not in the tokens, so
that subwords, SentencePiece pieces and the byte pieces of one Chinese character come out alike:
neighbouring tokens belong together when one word reaches into both. Where a token itself reaches
over two words (a comma glued to a word), these words stay one unit; a token is never split.
"""

import functools
import logging
import threading
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import regex

from core.home import words_folder
from core.models.display import SPACE_MARK, make_visible
from core.results import FloatArray, Joining, Token

_HAN = regex.compile(r"\p{Han}+")
# A number, a word with its inner apostrophes, else one character as people see it, so that an emoji
# of several code points stays whole (UAX 29).
_WORD = regex.compile(
    r"(?V1)\p{Han}+|\p{N}+(?:[.,]\p{N}+)+"
    r"|[[\p{L}\p{M}\p{N}_]--\p{Han}]+(?:['’][[\p{L}\p{M}]--\p{Han}]+)*|(?!\s)\X"
)


def unit_ranges(text: str, tokens: Sequence[Token], joining: Joining) -> tuple[range, ...]:
    """Returns the tokens of each unit, in order; every token is in exactly one.

    Special tokens, and tokens that cannot point into the text, are units of their own.

    Args:
        text: as typed; offsets of tokens point into it.
    """
    if joining.unit == "words":
        parts = word_spans(text)
    else:
        parts = phrase_spans(text, joining.phrases)
    starts, stops = [a for a, _ in parts], [b for _, b in parts]
    edges = [0]
    reach = -1
    for i, token in enumerate(tokens):
        first, last = _touched(text, token, starts, stops)
        # A blank of its own (a bare word-start mark) belongs to the word after it.
        waits = i > 0 and joining.unit == "words" and _is_mark(text, tokens[i - 1])
        together = (0 <= first <= reach) or (waits and not token.is_special and token.offset)
        if i and not together:
            edges.append(i)
        reach = last
    return tuple(range(a, b) for a, b in zip(edges, [*edges[1:], len(tokens)], strict=True))


def _touched(
    text: str, token: Token, starts: Sequence[int], stops: Sequence[int]
) -> tuple[int, int]:
    """Returns first and last part that a token reaches into, (-1, -1) for none."""
    if token.is_special or token.offset is None:
        return -1, -1
    start, stop = token.offset
    first, last = bisect_right(stops, start), bisect_left(starts, stop) - 1
    return (first, last) if first <= last else (-1, -1)


def _is_mark(text: str, token: Token) -> bool:
    if token.is_special or token.offset is None:
        return False
    covered = text[slice(*token.offset)]
    return not covered.strip() and "\n" not in covered


def word_spans(text: str) -> list[tuple[int, int]]:
    """Returns [start, end) of each word, number, sign and emoji of a text, blanks left out.

    Runs of Chinese characters are segmented with jieba's dictionary (its hidden Markov model off:
    it invents words, and a person can look the dictionary's up).
    """
    found: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        start, stop = match.span()
        if _HAN.fullmatch(match.group()):
            for word in _segmented(match.group()):
                found.append((start, start + len(word)))
                start += len(word)
        else:
            found.append((start, stop))
    return found


def phrase_spans(text: str, phrases: Sequence[str]) -> list[tuple[int, int]]:
    """Returns [start, end) of each place where one of the phrases stands; of two that overlap the
    one that begins first, the longer of two that begin together."""
    wanted = sorted({p for p in phrases if p.strip()}, key=len, reverse=True)
    if not wanted:
        return []
    return [m.span() for m in regex.finditer("|".join(map(regex.escape, wanted)), text)]


def join_tokens(text: str, tokens: Sequence[Token], ranges: Sequence[range]) -> tuple[Token, ...]:
    """Returns a token a unit: its text as typed, the place of all of it, the id of its first."""
    return tuple(_joined(text, [tokens[i] for i in unit]) for unit in ranges)


def _joined(text: str, parts: Sequence[Token]) -> Token:
    places = [t.offset for t in parts if t.offset is not None]
    if not places:
        return parts[0]
    start, stop = min(a for a, _ in places), max(b for _, b in places)
    typed = make_visible(text[start:stop].strip()).replace(SPACE_MARK, " ")
    return Token(parts[0].id, typed or parts[0].text, (start, stop), parts[0].is_special)


def join_weights(weights: FloatArray, rows: Sequence[range], keys: Sequence[range]) -> FloatArray:
    """Returns weights [unit, unit] of weights [query, key]: the sum over keys, the mean over rows.

    Args:
        rows, keys: neighbouring units that cover the array, positions counted from its corner.
    """
    summed = np.add.reduceat(weights.astype(np.float64), [u.start for u in keys], axis=-1)
    summed = np.add.reduceat(summed, [u.start for u in rows], axis=-2)
    counts = np.array([len(u) for u in rows], dtype=np.float64)
    joined: FloatArray = (summed / counts[:, None]).astype(np.float32)
    return joined


_guard = threading.Lock()


def _segmented(run: str) -> list[str]:
    with _guard:
        return list(_chinese().cut(run, HMM=False))


@functools.cache
def _chinese() -> Any:
    """Returns jieba's segmenter, whose dictionary is cached inside our own folder."""
    with warnings.catch_warnings():
        # Old escapes in its source, and pkg_resources where that is still there.
        warnings.simplefilter("ignore")
        import jieba
    jieba.setLogLevel(logging.WARNING)
    folder = words_folder()
    folder.mkdir(parents=True, exist_ok=True)
    segmenter = jieba.Tokenizer()
    segmenter.tmp_dir = str(folder)
    segmenter.initialize()
    return segmenter
