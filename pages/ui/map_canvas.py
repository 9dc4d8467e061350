"""One long map: pooled as a whole, exact in a window, on a canvas that mouse and keys move.

A Plotly heatmap reports neither its zoom nor a selection and loses both with new data (plotly 7).
Here the browser sends its window, the page answers with the exact weights of it where they are few
enough to be seen singly, and the window is part of the address like everything else. As with the
grid of heads, what the browser reports are triggers, never state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import streamlit as st

from core.results import FloatArray
from pages.ui import canvas, charts

Window = tuple[int, int, int, int]
"""Query start and stop, key start and stop."""

HEIGHT_PX = 560

_canvas = st.components.v2.component(
    "headscope_map_canvas",
    html='<div class="map-root"></div>',
    css=canvas.style("map_canvas.css"),
    js=canvas.script("map_canvas.js"),
)


@dataclass(frozen=True)
class Part:
    """Exact weights [query, key] of a window, NaN where a token is hidden, with their labels."""

    window: Window
    weights: FloatArray
    query_labels: Sequence[str]
    key_labels: Sequence[str]


def map_payload(
    pooled: FloatArray,
    shape: tuple[int, int],
    window: Window,
    part: Part | None,
    words: dict[str, str],
    *,
    scale: charts.Scale,
    label: str,
    chosen: tuple[int, int] | None,
    dark: bool,
) -> bytes:
    """Returns what the component draws.

    Args:
        pooled: means [query cell, key cell] of the whole map.
        shape: queries and keys of the whole map.
        words: the strings it shows, by the names in map_canvas.js.
        chosen: the outlined query and key.
    """
    header = {
        "queries": shape[0],
        "keys": shape[1],
        "cells": list(pooled.shape),
        "window": list(window),
        "part": None if part is None else list(part.window),
        "queryLabels": None if part is None else list(part.query_labels),
        "keyLabels": None if part is None else list(part.key_labels),
        "chosen": None if chosen is None else list(chosen),
        "scale": scale,
        "label": label,
        "height": HEIGHT_PX,
        "light": charts.LIGHT_STOPS,
        "dark": charts.DARK_STOPS,
        "words": words,
    }
    numbers = [pooled] if part is None else [pooled, part.weights]
    body = b"".join(np.ascontiguousarray(n, dtype="<f4").tobytes() for n in numbers)
    return canvas.pack(header, body)


def show_map(
    payload: bytes,
    *,
    key: str,
    on_window: Callable[[Window], None],
    on_cell: Callable[[int, int], None],
) -> None:
    """Draws the map; the callbacks run before the next run of the page starts."""

    def moved() -> None:
        window = canvas.whole_numbers(st.session_state[key].window, 4)
        if window is not None:
            on_window((window[0], window[1], window[2], window[3]))

    def chose() -> None:
        cell = canvas.whole_numbers(st.session_state[key].cell, 2)
        if cell is not None:
            on_cell(cell[0], cell[1])

    _canvas(data=payload, key=key, on_window_change=moved, on_cell_change=chose)
