"""The sentence as token chips, read twice: what a token looks at, and who looks at it.

Only the figures of one row and one column travel, so long texts cost as little as short ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import streamlit as st

from core.results import FloatArray, Token
from pages.ui import charts, quantities

Axis = Literal["query", "key"]

FIGURE_FROM = 0.01
"""Smaller shares are shaded but not printed; the tooltip has them."""

_HERE = Path(__file__).parent
_chips = st.components.v2.component(
    "headscope_token_chips",
    html='<div class="chips-root"></div>',
    css=(_HERE / "token_chips.css").read_text(encoding="utf-8"),
    js=(_HERE / "token_chips.js").read_text(encoding="utf-8"),
)


@dataclass(frozen=True)
class ChipLine:
    """One line of chips.

    Attributes:
        axis: what a click on it chooses.
        index: token positions shown; weights has one share 0..1 for each, None without shading.
        chosen: position outlined, or None.
        is_share: whether weights are shares of 1, or numbers of another size.
    """

    axis: Axis
    name: str
    label: str
    tokens: Sequence[Token]
    index: Sequence[int]
    weights: FloatArray | None
    chosen: int | None
    is_share: bool = True


def chip_data(lines: Sequence[ChipLine], *, dark: bool, clickable: bool = True) -> dict[str, Any]:
    """Returns what the component draws; strengths are relative to the line's largest weight."""
    return {
        "stops": charts.stops(dark),
        "clickable": clickable,
        "lines": [_line_data(line) for line in lines],
    }


def _line_data(line: ChipLine) -> dict[str, Any]:
    weights = None if line.weights is None else np.asarray(line.weights, dtype=np.float64)
    peak = 0.0 if weights is None else float(weights.max(initial=0))
    tokens = []
    for at, index in enumerate(line.index):
        token = line.tokens[index]
        strength: float | None = None
        figure: str | None = None
        title = f"{index} {token.text}"
        if weights is not None:
            weight = float(weights[at])
            strength = round(weight / peak, 4) if peak > 0 else 0.0
            if line.is_share:
                figure = f"{100 * weight:.0f} %" if weight >= FIGURE_FROM else ""
                title += f": {quantities.share(weight)}"
            else:
                figure = f"{weight:.2g}" if weight >= FIGURE_FROM * peak else ""
                title += f": {quantities.significant(weight)}"
        tokens.append(
            {
                "index": index,
                "text": token.text,
                "special": token.is_special,
                "title": title,
                "strength": strength,
                "figure": figure,
            }
        )
    return {
        "axis": line.axis,
        "name": line.name,
        "label": line.label,
        "chosen": line.chosen,
        "tokens": tokens,
    }


def show_chips(
    data: dict[str, Any], *, key: str, on_choose: Callable[[Axis, int], None] | None = None
) -> None:
    """Draws the lines; `on_choose` gets axis and token position before the next run starts."""

    def choose() -> None:
        choice = parse_choice(st.session_state[key].token)
        if choice is not None and on_choose is not None:
            on_choose(*choice)

    _chips(data=data, key=key, on_token_change=choose)


def parse_choice(value: object) -> tuple[Axis, int] | None:
    """Returns axis and position of what the browser sent, or None when it is neither."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    axis, index = value
    if not isinstance(index, int | float) or index < 0 or index != int(index):
        return None
    if axis == "query":
        return ("query", int(index))
    return ("key", int(index)) if axis == "key" else None
