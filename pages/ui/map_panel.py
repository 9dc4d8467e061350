"""The right half of the attention page: the map of the chosen head, whole or pooled with a part."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import streamlit as st

from core.limits import OVERVIEW_SIZE
from core.results import AttentionResult, FloatArray, MapRequest, MapResult, OverviewRequest
from pages.ui import charts, quantities, session
from pages.ui.captured import Shown
from pages.ui.charts import MapWords
from pages.ui.export import Sheet
from pages.ui.export_panel import export_panel, facts_of
from pages.ui.i18n import Words
from pages.ui.labels import axis_labels, plain_label
from pages.ui.map_canvas import Part, Window, map_payload, show_map
from pages.ui.session import change_map, current_view

WHOLE_TOKENS = 512
"""Longest axis whose map is sent whole (1 MiB as float32); longer ones are pooled."""

PART_TOKENS = 256
"""Side of the exact part of a pooled map."""


@dataclass(frozen=True)
class Place:
    """Which map: layer and head, None for the mean over that axis."""

    layer: int | None
    head: int | None


def chosen_place(attention: AttentionResult) -> Place:
    """Returns the map the view names, clamped to the model."""
    view = current_view()
    layer = min(view.layer, attention.n_layers - 1)
    head = min(view.head, attention.n_heads - 1)
    return Place(
        layer if view.view in ("head", "heads") else None,
        head if view.view in ("head", "layers") else None,
    )


def map_request(
    shown: Shown,
    attention: AttentionResult,
    rows: tuple[int, int] | None = None,
    keys: tuple[int, int] | None = None,
    cells: int | None = None,
) -> MapRequest:
    """Returns the request of the chosen map, of a part of it, or of its means."""
    place = chosen_place(attention)
    return MapRequest(
        shown.request,
        kind=attention.kind,
        text_index=attention.text_index,
        layer=place.layer,
        head=place.head,
        rows=rows,
        keys=keys,
        hide_special=current_view().special == "hide",
        weighting=session.current_weighting(),
        joining=session.current_joining(),
        cells=cells,
    )


def is_whole(attention: AttentionResult) -> bool:
    """Returns whether the map is short enough to be sent whole."""
    longest = max(len(attention.query_tokens), len(attention.key_tokens))
    return longest <= WHOLE_TOKENS


def map_title(attention: AttentionResult, words: Words) -> str:
    """Returns the title of the chosen map, with the pattern of a single head."""
    place = chosen_place(attention)
    if session.current_weighting() == "rollout":
        last = attention.n_layers - 1 if place.layer is None else place.layer
        return words("attention.title.rollout", layer=last)
    title = words(
        f"attention.title.{current_view().view}",
        layer=place.layer,
        head=place.head,
        n_layers=attention.n_layers,
        n_heads=attention.n_heads,
        count=attention.n_layers * attention.n_heads,
    )
    if place.layer is not None and place.head is not None:
        title += " · " + words.pattern(attention.patterns[place.layer][place.head])
    return title


def map_panel(
    shown: Shown, attention: AttentionResult, words: Words, *, dark: bool
) -> MapResult | None:
    """Draws the map, what to read from it and what not, and the download.

    Returns:
        The whole map where it is short enough, else None.
    """
    title = map_title(attention, words)
    whole = None
    if is_whole(attention):
        whole = session.service().head_map(map_request(shown, attention), progress=shown.report)
        table = _table(whole, attention)
        if whole.weights.size:
            _draw_whole(whole, attention, title, words, dark=dark)
            _agreement(shown, attention, words)
        else:
            st.info(words("attention.map.all_special"))
    else:
        table = _draw_long(shown, attention, title, words, dark=dark)
    _read_lines(attention, words)
    export_panel(_sheet(table, shown, attention, title, words), words)
    return whole


def _agreement(shown: Shown, attention: AttentionResult, words: Words) -> None:
    """Draws how much of this reading lies where the raw weights lie."""
    if session.current_weighting() == "raw":
        return
    share = session.service().overlap(map_request(shown, attention), progress=shown.report)
    st.caption(words("attention.overlap", share=quantities.share(share)))


def _read_lines(attention: AttentionResult, words: Words) -> None:
    view = current_view()
    lines = [words(f"attention.map.how.{session.current_weighting()}")]
    if view.view != "head":
        lines.append(words("attention.map.average"))
    if session.current_joining() is not None:
        located = any(t.offset is not None for t in attention.query_tokens)
        lines.append(words("attention.map.joined" if located else "attention.map.unjoined"))
    if view.special == "hide" and not _is_norm():
        lines.append(words("attention.map.hidden"))
    st.caption(" ".join(lines) + "  \n" + words("attention.map.not"))


def _scale() -> charts.Scale:
    scale = current_view().scale
    return "sqrt" if scale == "sqrt" else "row" if scale == "row" else "linear"


def _is_norm() -> bool:
    return session.current_weighting() == "norm"


def _legend() -> str:
    return f"norm.{_scale()}" if _is_norm() else _scale()


def _draw_whole(
    whole: MapResult, attention: AttentionResult, title: str, words: Words, *, dark: bool
) -> None:
    figure = charts.head_figure(
        whole.weights,
        axis_labels(attention.query_tokens, whole.query_index),
        axis_labels(attention.key_tokens, whole.key_index),
        MapWords(
            title=title,
            legend=words(f"attention.legend.{_legend()}"),
            query=words("attention.hover.query"),
            key=words("attention.hover.key"),
            weight=words("attention.hover.weight"),
            query_axis=words("attention.axis.query"),
            key_axis=words("attention.axis.key"),
        ),
        scale=_scale(),
        top=float(whole.weights.max(initial=0)) if _is_norm() else 1.0,
        dark=dark,
    )
    st.plotly_chart(
        figure,
        key="attention.map",
        config={"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d"]},
        alt=title,
    )


@dataclass(frozen=True)
class Table:
    """What is shown, for a file: weights [query, key] and a label a row and column."""

    weights: FloatArray
    query_labels: list[str]
    key_labels: list[str]


def _table(exact: MapResult, attention: AttentionResult) -> Table:
    return Table(
        exact.weights,
        [plain_label(attention.query_tokens, i) for i in exact.query_index],
        [plain_label(attention.key_tokens, i) for i in exact.key_index],
    )


def cell_labels(n_tokens: int, n_cells: int) -> list[str]:
    """Returns the label of each pooled cell: the token positions it covers."""
    edges = [i * n_tokens // n_cells for i in range(n_cells + 1)]
    return [f"{a}–{b - 1}" if b - a > 1 else str(a) for a, b in pairwise(edges)]


def shown_window(attention: AttentionResult) -> Window:
    """Returns the window of the map that the view names, clamped to the text; else all of it."""
    shape = len(attention.query_tokens), len(attention.key_tokens)
    named = current_view().window.split(".")
    asked = [int(v) for v in named if v.isascii() and v.isdigit() and len(v) < 9]
    if len(asked) != 4:
        return (0, shape[0], 0, shape[1])
    rows = _clamped(asked[0], asked[1], shape[0])
    return (*rows, *_clamped(asked[2], asked[3], shape[1]))


def _clamped(start: int, stop: int, count: int) -> tuple[int, int]:
    first = max(0, min(start, count - 1))
    return first, max(first + 1, min(stop, count))


def part_windows(attention: AttentionResult) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns [start, stop) of the queries and keys that are shown singly."""
    q0, q1, k0, k1 = shown_window(attention)
    return (q0, min(q1, q0 + PART_TOKENS)), (k0, min(k1, k0 + PART_TOKENS))


def exact_part(
    shown: Shown, attention: AttentionResult, rows: tuple[int, int], keys: tuple[int, int]
) -> MapResult:
    """Returns the exact weights of a window of queries and keys."""
    return session.service().head_map(
        map_request(shown, attention, rows, keys), progress=shown.report
    )


def _draw_long(
    shown: Shown, attention: AttentionResult, title: str, words: Words, *, dark: bool
) -> Table:
    """Draws a map too long to be sent whole: its means, and the exact weights of a small window."""
    window = shown_window(attention)
    rows, keys = part_windows(attention)
    pooled = _pooled(shown, attention)
    part = None
    table = Table(
        pooled,
        cell_labels(len(attention.query_tokens), pooled.shape[0]),
        cell_labels(len(attention.key_tokens), pooled.shape[1]),
    )
    if (*rows, *keys) == window:
        exact = exact_part(shown, attention, rows, keys)
        part = _part(exact, attention, window)
        table = _table(exact, attention)
    scale = _scale()
    names = ("closer", "wider", "whole", "exact", "mean", "rowPeak")
    spoken = {name: words(f"attention.canvas.{name}") for name in names}
    spoken["pooled"] = words(
        "attention.canvas.pooled",
        rows=math.ceil(len(attention.query_tokens) / pooled.shape[0]),
        columns=math.ceil(len(attention.key_tokens) / pooled.shape[1]),
    )
    spoken |= {name: words(f"attention.hover.{name}") for name in ("query", "key", "weight")}
    spoken |= {f"{name}Axis": words(f"attention.axis.{name}") for name in ("query", "key")}
    spoken["legend"] = words(f"attention.canvas.{_legend()}")
    st.subheader(title, anchor=False)
    payload = map_payload(
        pooled,
        (len(attention.query_tokens), len(attention.key_tokens)),
        window,
        part,
        spoken,
        scale=scale,
        label=title,
        chosen=_chosen_cell(),
        dark=dark,
    )
    show_map(
        payload,
        key="attention.map",
        on_window=lambda w: change_map(window=".".join(map(str, w))),
        on_cell=choose_cell,
    )
    st.caption(words("attention.canvas.how"))
    return table


def _pooled(shown: Shown, attention: AttentionResult) -> FloatArray:
    """Returns means [query cell, key cell] of the chosen map."""
    plain = session.current_weighting() == "raw" and not session.current_joining()
    if not plain or current_view().special == "hide":
        request = map_request(shown, attention, cells=OVERVIEW_SIZE)
        return session.service().head_map(request, progress=shown.report).weights
    return _mean_of_overview(shown, attention)


def _mean_of_overview(shown: Shown, attention: AttentionResult) -> FloatArray:
    """Returns the same from the pictures that every capture keeps of plain tokens."""
    request = OverviewRequest(
        shown.request,
        kind=attention.kind,
        text_index=attention.text_index,
        size=OVERVIEW_SIZE,
    )
    weights = session.service().overview(request, progress=shown.report).weights
    place = chosen_place(attention)
    chosen = weights if place.layer is None else weights[place.layer : place.layer + 1]
    chosen = chosen if place.head is None else chosen[:, place.head : place.head + 1]
    mean: FloatArray = chosen.mean(axis=(0, 1), dtype=np.float32)
    return mean


def _part(exact: MapResult, attention: AttentionResult, window: Window) -> Part:
    q0, q1, k0, k1 = window
    weights = np.full((q1 - q0, k1 - k0), np.nan, np.float32)
    at = np.ix_([q - q0 for q in exact.query_index], [k - k0 for k in exact.key_index])
    weights[at] = exact.weights
    return Part(
        window,
        weights,
        [plain_label(attention.query_tokens, i) for i in range(q0, q1)],
        [plain_label(attention.key_tokens, i) for i in range(k0, k1)],
    )


def choose_cell(query: int, key: int) -> None:
    """Chooses the token that looks and the token looked at."""
    st.session_state["headscope.token"] = {"query": query, "key": key}


def _chosen_cell() -> tuple[int, int] | None:
    chosen = st.session_state.get("headscope.token", {})
    return (chosen["query"], chosen["key"]) if chosen.keys() >= {"query", "key"} else None


def _sheet(
    table: Table, shown: Shown, attention: AttentionResult, title: str, words: Words
) -> Sheet:
    place = chosen_place(attention)
    # The colours of the long map and of norms end at the largest number there is.
    relative = _is_norm() or not is_whole(attention)
    return Sheet(
        weights=table.weights,
        query_labels=table.query_labels,
        key_labels=table.key_labels,
        title=title,
        legend=words(f"attention.canvas.{_legend()}"),
        query_axis=words("attention.axis.query"),
        key_axis=words("attention.axis.key"),
        how=words(f"attention.map.how.{session.current_weighting()}"),
        scale=_scale(),
        top=float(np.nan_to_num(table.weights).max(initial=0)) if relative else 1.0,
        facts=facts_of(shown, attention, place.layer, place.head),
    )
