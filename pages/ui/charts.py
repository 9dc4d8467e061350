"""Results as Plotly figures and colour scales; nothing here needs a running app."""

import html
import struct
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from core.results import FloatArray

Scale = Literal["linear", "sqrt", "row"]
Stops = tuple[tuple[float, str], ...]

# One hue, white to deep indigo; on dark from near-black to bright. Lightness falls (rises) evenly.
LIGHT_STOPS: Stops = (
    (0.0, "#ffffff"),
    (0.25, "#d5d6f2"),
    (0.5, "#9a9bdd"),
    (0.75, "#5d5bb9"),
    (1.0, "#221d6b"),
)
DARK_STOPS: Stops = (
    (0.0, "#171923"),
    (0.25, "#31346a"),
    (0.5, "#5c60b5"),
    (0.75, "#979bec"),
    (1.0, "#eceeff"),
)
ALL_TICKS_BELOW = 41
"""Up to here every token gets its tick; above, Plotly thins them out by itself."""

SCALE_STEPS = 33
LONGEST_LABEL_PX = 300


@dataclass(frozen=True)
class MapWords:
    """The strings of a map's figure."""

    title: str
    legend: str
    query: str
    key: str
    weight: str
    query_axis: str
    key_axis: str


def stops(dark: bool) -> Stops:
    """Returns the sequential colours of attention for a theme."""
    return DARK_STOPS if dark else LIGHT_STOPS


def colour_scale(scale: Scale, dark: bool) -> list[tuple[float, str]]:
    """Returns Plotly's colour scale; for the square root the colours are moved, not the values.

    So hover and colour bar keep the true weights.
    """
    base = stops(dark)
    if scale != "sqrt":
        return list(base)
    positions = np.linspace(0, 1, SCALE_STEPS)
    found = colours(positions, dark)
    return [(float(p**2), "#" + c.tobytes().hex()) for p, c in zip(positions, found, strict=True)]


def colours(shares: NDArray[np.floating[Any]], dark: bool) -> NDArray[np.uint8]:
    """Returns the colours [..., 3] of shares 0..1, bytes of red, green and blue."""
    at = [position for position, _ in stops(dark)]
    channels = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for _, c in stops(dark)])
    mixed = [np.interp(shares, at, channels[:, i]) for i in range(3)]
    return np.stack(mixed, axis=-1).round().astype(np.uint8)


def head_figure(
    weights: FloatArray,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    words: MapWords,
    *,
    scale: Scale = "linear",
    top: float = 1.0,
    dark: bool = False,
    height: int = 620,
) -> go.Figure:
    """Returns the heatmap of one map.

    Args:
        weights: [query, key], 0..top.
        query_labels, key_labels: one a row and a column, all different, escaped (`axis_labels`).
    """
    if len(set(query_labels)) < len(query_labels) or len(set(key_labels)) < len(key_labels):
        raise ValueError("axis labels must differ, or Plotly merges their rows")
    shown: NDArray[np.float32] = np.ascontiguousarray(weights, dtype=np.float32)
    hover = f"{words.query} %{{y}}<br>{words.key} %{{x}}<br>{words.weight} "
    extra: dict[str, Any] = {}
    if scale == "row":
        extra["customdata"] = shown
        peak = shown.max(axis=1, keepdims=True, initial=0)
        shown = np.divide(shown, np.where(peak > 0, peak, 1), dtype=np.float32)
        hover += "%{customdata:.4f}"
    else:
        hover += "%{z:.4f}"
    n_query, n_key = shown.shape
    gap = 1 if max(n_query, n_key) <= 32 else 0
    heatmap = go.Heatmap(
        z=shown,
        x=list(key_labels),
        y=list(query_labels),
        zmin=0,
        zmax=1 if scale == "row" or top <= 0 else top,
        xgap=gap,
        ygap=gap,
        colorscale=colour_scale(scale, dark),
        hovertemplate=hover + "<extra></extra>",
        colorbar={
            # Above the map: beside it, it would take a fifth of the width from the square.
            "orientation": "h",
            "title": {"text": words.legend, "side": "top", "font": {"size": 12}},
            "thickness": 8,
            "outlinewidth": 0,
            "tickfont": {"size": 11},
            "len": 0.55,
            "x": 1,
            "xanchor": "right",
            "y": 1.01,
            "yanchor": "bottom",
        },
        **extra,
    )
    # Margins are settled here: left to Plotly, it draws the whole map several times to find them,
    # which takes longer than everything else between a click and its picture.
    ticks = {"type": "category", "showgrid": False, "zeroline": False, "automargin": False}
    every = {"tickmode": "linear", "tick0": 0, "dtick": 1}
    key_size, query_size = (12 if n < 24 else 10 for n in (n_key, n_query))
    below = label_width(key_labels, key_size)
    below = 0.71 * (below + key_size) if n_key > 5 else key_size
    layout = go.Layout(
        title={
            "text": words.title,
            "font": {"size": 16},
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
            # Plotly lifts the title by the height of a level colour bar, 30 px, wherever it stands.
            "pad": {"t": 37},
        },
        height=height,
        margin={
            "l": label_width(query_labels, query_size) + 38,
            "r": 8,
            "t": 78,
            "b": below + 42,
            "pad": 0,
            "autoexpand": False,
        },
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="#2a2d3b" if dark else "#eceef4",
        hoverlabel={"font": {"size": 13}},
        dragmode="zoom",
        xaxis={
            **ticks,
            **(every if n_key < ALL_TICKS_BELOW else {"nticks": 24}),
            "title": {"text": words.key_axis, "font": {"size": 12}, "standoff": 8},
            "tickfont": {"size": key_size},
            "tickangle": -45 if n_key > 5 else 0,
            "constrain": "domain",
            "constraintoward": "left",
            "range": [-0.5, n_key - 0.5],
        },
        yaxis={
            **ticks,
            **(every if n_query < ALL_TICKS_BELOW else {"nticks": 24}),
            "title": {"text": words.query_axis, "font": {"size": 12}, "standoff": 8},
            "tickfont": {"size": query_size},
            "range": [n_query - 0.5, -0.5],
            "scaleanchor": "x" if n_query == n_key else None,
            "constrain": "domain",
            "constraintoward": "top",
        },
    )
    return go.Figure(heatmap, layout)


def label_width(labels: Sequence[str], size: int) -> float:
    """Returns the pixels that the widest label takes; East Asian characters are square."""
    longest = 0.0
    for label in labels:
        wide = sum(unicodedata.east_asian_width(c) in "WF" for c in html.unescape(label))
        longest = max(longest, wide + 0.58 * (len(html.unescape(label)) - wide))
    return min(longest * size, LONGEST_LABEL_PX)


def png(picture: NDArray[np.uint8]) -> bytes:
    """Returns an RGB picture [row, column, 3] as a PNG file."""
    rows, columns, _ = picture.shape

    def chunk(name: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + check

    lines: Any = b"".join(b"\0" + picture[row].tobytes() for row in range(rows))
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 6))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")
