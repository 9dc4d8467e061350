"""Tokens as labels: one per position, never equal, never read as markup."""

import html
from collections.abc import Iterable, Sequence

from core.results import Token


def axis_labels(tokens: Sequence[Token], index: Iterable[int]) -> list[str]:
    """Returns a label for each position: its index, then the token.

    Plotly merges equal names of an axis and reads tags, so the index makes them differ and
    `<`, `>` and `&` are escaped. Quotes are not: Plotly would show the escape.
    """
    return [html.escape(plain_label(tokens, i), quote=False) for i in index]


def plain_label(tokens: Sequence[Token], i: int) -> str:
    """Returns a label for tables and files."""
    return f"{i} {tokens[i].text}"
