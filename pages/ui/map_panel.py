"""The right half of the attention page: the map of the chosen head, whole or pooled with a part."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import streamlit as st

from core.limits import OVERVIEW_SIZE
from core.results import AttentionResult, FloatArray, MapRequest, MapResult, OverviewRequest
from pages.ui import charts, session
from pages.ui.captured import Shown
from pages.ui.charts import MapWords
from pages.ui.i18n import Words
from pages.ui.labels import axis_labels, plain_label
from pages.ui.session import change_map, changer, current_view, keep_widget

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
) -> MapRequest:
    """Returns the request of the chosen map or of a part of it."""
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
    )


def is_whole(attention: AttentionResult) -> bool:
    """Returns whether the map is short enough to be sent whole."""
    longest = max(len(attention.query_tokens), len(attention.key_tokens))
    return longest <= WHOLE_TOKENS


def map_title(attention: AttentionResult, words: Words) -> str:
    """Returns the title of the chosen map, with the pattern of a single head."""
    place = chosen_place(attention)
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
    whole = None
    title = map_title(attention, words)
    if is_whole(attention):
        whole = session.service().head_map(map_request(shown, attention), progress=shown.report)
        exact = whole
        if whole.weights.size:
            _draw(whole.weights, exact, attention, title, words, dark=dark, key="attention.map")
        else:
            st.info(words("attention.map.all_special"))
    else:
        _draw_pooled(shown, attention, title, words, dark=dark)
        exact = _draw_part(shown, attention, words, dark=dark)
    _read_lines(words)
    _download(exact, attention, words)
    return whole


def _read_lines(words: Words) -> None:
    view = current_view()
    lines = [words("attention.map.how")]
    if view.view != "head":
        lines.append(words("attention.map.average"))
    if view.special == "hide":
        lines.append(words("attention.map.hidden"))
    st.caption(" ".join(lines) + "  \n" + words("attention.map.not"))


def _draw(
    weights: FloatArray,
    exact: MapResult,
    attention: AttentionResult,
    title: str,
    words: Words,
    *,
    dark: bool,
    key: str,
) -> None:
    _show(
        weights,
        axis_labels(attention.query_tokens, exact.query_index),
        axis_labels(attention.key_tokens, exact.key_index),
        title,
        words,
        dark=dark,
        key=key,
    )


def _show(
    weights: FloatArray,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    title: str,
    words: Words,
    *,
    dark: bool,
    key: str,
) -> None:
    scale = current_view().scale
    chosen: charts.Scale = "sqrt" if scale == "sqrt" else "row" if scale == "row" else "linear"
    figure = charts.head_figure(
        weights,
        query_labels,
        key_labels,
        MapWords(
            title=title,
            legend=words(f"attention.legend.{chosen}"),
            query=words("attention.hover.query"),
            key=words("attention.hover.key"),
            weight=words("attention.hover.weight"),
            query_axis=words("attention.axis.query"),
            key_axis=words("attention.axis.key"),
        ),
        scale=chosen,
        dark=dark,
    )
    st.plotly_chart(
        figure,
        key=key,
        config={"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d"]},
        alt=title,
    )


def pooled_labels(n_tokens: int, n_cells: int, words: Words) -> list[str]:
    """Returns the label of each pooled cell: the token positions it covers."""
    edges = [i * n_tokens // n_cells for i in range(n_cells + 1)]
    return [words("attention.pooled.cell", start=a, stop=b - 1) for a, b in pairwise(edges)]


def _draw_pooled(
    shown: Shown, attention: AttentionResult, title: str, words: Words, *, dark: bool
) -> None:
    request = OverviewRequest(
        shown.request,
        kind=attention.kind,
        text_index=attention.text_index,
        size=OVERVIEW_SIZE,
    )
    pooled = session.service().overview(request, progress=shown.report).weights
    place = chosen_place(attention)
    part = pooled if place.layer is None else pooled[place.layer : place.layer + 1]
    part = part if place.head is None else part[:, place.head : place.head + 1]
    weights = part.astype(np.float32).mean(axis=(0, 1))
    _show(
        weights,
        pooled_labels(len(attention.query_tokens), weights.shape[0], words),
        pooled_labels(len(attention.key_tokens), weights.shape[1], words),
        title,
        words,
        dark=dark,
        key="attention.map",
    )
    note = words("attention.pooled", count=len(attention.key_tokens), size=weights.shape[1])
    if current_view().special == "hide":
        note += " " + words("attention.pooled.special")
    st.caption(note)


def part_windows(attention: AttentionResult) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns [start, stop) of the exact part's queries and keys, clamped to the text."""
    view = current_view()
    windows = []
    for start, tokens in (
        (view.start_query, attention.query_tokens),
        (view.start_key, attention.key_tokens),
    ):
        first = max(0, min(start, len(tokens) - PART_TOKENS))
        windows.append((first, min(first + PART_TOKENS, len(tokens))))
    return windows[0], windows[1]


def exact_part(
    shown: Shown, attention: AttentionResult, rows: tuple[int, int], keys: tuple[int, int]
) -> MapResult:
    """Returns the exact weights of a window of queries and keys.

    With special tokens hidden the rows are renormalised over all keys, not over the window: a
    part must show what the whole map would.
    """
    service = session.service()
    if current_view().special != "hide":
        return service.head_map(map_request(shown, attention, rows, keys), progress=shown.report)
    wide = service.head_map(map_request(shown, attention, rows, None), progress=shown.report)
    at = [i for i, key in enumerate(wide.key_index) if keys[0] <= key < keys[1]]
    return MapResult(
        np.ascontiguousarray(wide.weights[:, at]),
        wide.query_index,
        tuple(wide.key_index[i] for i in at),
    )


def _draw_part(shown: Shown, attention: AttentionResult, words: Words, *, dark: bool) -> MapResult:
    rows, keys = part_windows(attention)
    st.subheader(words("attention.window"), anchor=False)
    with st.container(horizontal=True, key="attention.part"):
        for name, field, window, tokens in (
            ("query", "start_query", rows, attention.query_tokens),
            ("key", "start_key", keys, attention.key_tokens),
        ):
            key = f"attention.{field}"
            keep_widget(key, window[0])
            st.number_input(
                words(f"attention.window.{name}"),
                0,
                max(0, len(tokens) - PART_TOKENS),
                step=PART_TOKENS // 2,
                key=key,
                width=160,
                on_change=changer(key, field, range(len(tokens)), change_map),
            )
    part = exact_part(shown, attention, rows, keys)
    title = words(
        "attention.window.title",
        query_start=rows[0],
        query_stop=rows[1] - 1,
        key_start=keys[0],
        key_stop=keys[1] - 1,
    )
    if part.weights.size:
        _draw(part.weights, part, attention, title, words, dark=dark, key="attention.part.map")
    else:
        st.info(words("attention.map.all_special"))
    return part


def _download(exact: MapResult, attention: AttentionResult, words: Words) -> None:
    place = chosen_place(attention)

    def make() -> bytes:
        return charts.map_csv(
            exact.weights,
            [plain_label(attention.query_tokens, i) for i in exact.query_index],
            [plain_label(attention.key_tokens, i) for i in exact.key_index],
            "query \\ key",
        )

    layer = "mean" if place.layer is None else str(place.layer)
    head = "mean" if place.head is None else str(place.head)
    st.download_button(
        words("attention.csv"),
        data=make,
        file_name=f"attention-layer-{layer}-head-{head}.csv",
        mime="text/csv",
        key="attention.csv",
        help=words("attention.csv.help"),
        on_click="ignore",
    )
