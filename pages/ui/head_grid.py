"""All heads of a model as one grid: a canvas that the mouse and the arrow keys work.

The pictures travel as one byte a pixel, heads row by row. The chosen head comes back as a trigger,
never as state: the address stays the truth, so Back works.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from core.results import AttentionResult, FloatArray
from pages.ui import canvas, charts, quantities
from pages.ui.i18n import Words

UNDEFINED = 255
"""Pixel of a cell whose metric is not defined; values use 0..254."""

PIXEL_BUDGET = 144 * 1024
"""Bytes of all thumbnails together: a page stays well under 1 MB."""

_grid = st.components.v2.component(
    "headscope_head_grid",
    html='<div class="grid-root"></div>',
    css=canvas.style("head_grid.css"),
    js=canvas.script("head_grid.js"),
)


def thumbnail_size(n_layers: int, n_heads: int) -> int:
    """Returns the side of a thumbnail in pixels, smaller where there are many heads."""
    return int(min(48, max(12, math.isqrt(PIXEL_BUDGET // (n_layers * n_heads)))))


def map_pixels(weights: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Returns thumbnails [layer, head, row, column] as bytes, each scaled to its own maximum."""
    # Weights of a broken model may be NaN; its cells are drawn empty, the metrics name it.
    wide = np.nan_to_num(np.asarray(weights, dtype=np.float32))
    peak = wide.max(axis=(2, 3), keepdims=True, initial=0)
    return np.rint(wide / np.where(peak > 0, peak, 1) * 254).astype(np.uint8)


def metric_pixels(values: FloatArray) -> tuple[NDArray[np.uint8], float, float]:
    """Returns one pixel a head [layer, head, 1, 1] with the values of colour 0 and 1.

    Shares are drawn from 0 to 1 so that two models can be compared; other metrics from their
    smallest to their largest value.
    """
    wide = np.asarray(values, dtype=np.float64)
    known = np.isfinite(wide)
    low, high = 0.0, 1.0
    if known.any() and (wide[known].min() < 0 or wide[known].max() > 1):
        low, high = float(wide[known].min()), float(wide[known].max())
    span = high - low if high > low else 1.0
    scaled = np.clip((np.where(known, wide, low) - low) / span, 0, 1)
    pixels = np.where(known, np.rint(254 * scaled), UNDEFINED).astype(np.uint8)
    return pixels[:, :, None, None], low, high


def tooltips(attention: AttentionResult, metrics: Sequence[str], words: Words) -> list[list[str]]:
    """Returns the lines of each head's tooltip: place, pattern, two figures."""
    out = []
    for layer in range(attention.n_layers):
        for head in range(attention.n_heads):
            lines = [words("attention.grid.tooltip", layer=layer, head=head)]
            lines.append(words.pattern(attention.patterns[layer][head]))
            for name in metrics:
                value = float(attention.metrics[name][layer, head])
                known = math.isfinite(value)
                figure = (
                    quantities.significant(value) if known else words("attention.grid.undefined")
                )
                lines.append(f"{words.metric(name)}: {figure}")
            out.append(lines)
    return out


def grid_payload(
    pixels: NDArray[np.uint8],
    tips: list[list[str]],
    *,
    chosen_layers: Sequence[int],
    chosen_heads: Sequence[int],
    legend: tuple[str, str] | None,
    label: str,
) -> bytes:
    """Returns what the component draws.

    Args:
        pixels: [layer, head, row, column].
        chosen_layers, chosen_heads: the cells that are outlined are those of both; a mean over
            heads chooses a whole row, a mean over layers a whole column.
        legend: the values of the first and the last colour; None where each cell has its own.
    """
    n_layers, n_heads, rows, columns = pixels.shape
    header = {
        "layers": n_layers,
        "heads": n_heads,
        "rows": rows,
        "columns": columns,
        "undefined": UNDEFINED if legend else None,
        "chosenLayers": list(chosen_layers),
        "chosenHeads": list(chosen_heads),
        "tips": tips,
        "legend": legend,
        "label": label,
        "light": charts.LIGHT_STOPS,
        "dark": charts.DARK_STOPS,
    }
    return canvas.pack(header, pixels.tobytes())


def show_grid(payload: bytes, *, key: str, on_choose: Callable[[int, int], None]) -> None:
    """Draws the grid; `on_choose` gets layer and head before the next run starts."""

    def choose() -> None:
        place = canvas.whole_numbers(st.session_state[key].head, 2)
        if place is not None:
            on_choose(place[0], place[1])

    _grid(data=payload, key=key, on_head_change=choose)
