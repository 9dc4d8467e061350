"""The left half of the attention page: all heads at once, on a canvas or as a plain table."""

import base64

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from core.results import AttentionResult, OverviewRequest
from pages.ui import charts, head_grid, quantities, session
from pages.ui.captured import Shown
from pages.ui.controls import special_switch
from pages.ui.i18n import Words
from pages.ui.session import View, change_map, current_view, keep_widget

MAP = "map"
TOOLTIP_METRICS = ("normalized_entropy", "first_token_mass")


def grid_panel(shown: Shown, attention: AttentionResult, words: Words, *, dark: bool) -> None:
    """Draws the grid with its colour picker; choosing a head changes the view."""
    view = current_view()
    colours = [MAP, *defined_metrics(attention)]
    colour = view.colour if view.colour in colours else MAP
    with st.container(horizontal=True, vertical_alignment="bottom", key="attention.grid.head"):
        keep_widget("attention.colour", colour)
        st.selectbox(
            words("attention.colour"),
            colours,
            format_func=lambda c: words("attention.colour.map") if c == MAP else words.metric(c),
            key="attention.colour",
            on_change=session.changer("attention.colour", "colour", colours, change_map),
            width=230,
        )
    with st.container(horizontal=True, key="attention.grid.switches"):
        special_switch(words)
        keep_widget("attention.plain", st.session_state.get("headscope.plain", False))
        st.toggle(
            words("attention.plain"),
            key="attention.plain",
            help=words("attention.plain.help"),
            on_change=_remember_plain,
        )
    pixels, legend = _pixels(shown, attention, colour)
    if st.session_state["attention.plain"]:
        _plain_grid(pixels, dark=dark)
    else:
        figures = [m for m in TOOLTIP_METRICS if m in attention.metrics]
        if colour != MAP:
            figures = [colour, *(m for m in figures if m != colour)][:2]
        layers, heads = chosen_cells(view, attention)
        payload = head_grid.grid_payload(
            pixels,
            head_grid.tooltips(attention, figures, words),
            chosen_layers=layers,
            chosen_heads=heads,
            legend=legend,
            label=words("attention.grid.label"),
        )
        head_grid.show_grid(payload, key="attention.grid", on_choose=choose_head)
    if colour == MAP:
        st.caption(words("attention.grid.how"))
    else:
        help_line = words.metric_help(colour)
        st.caption(
            words("attention.grid.how_metric", metric=words.metric(colour)) + f" {help_line}"
        )


def defined_metrics(attention: AttentionResult) -> list[str]:
    """Returns the metrics with at least one value for this text."""
    return [name for name, value in attention.metrics.items() if np.isfinite(value).any()]


def chosen_cells(view: View, attention: AttentionResult) -> tuple[list[int], list[int]]:
    """Returns the layers and heads that make up the map shown."""
    layers = list(range(attention.n_layers))
    heads = list(range(attention.n_heads))
    if view.view in ("head", "heads"):
        layers = [min(view.layer, attention.n_layers - 1)]
    if view.view in ("head", "layers"):
        heads = [min(view.head, attention.n_heads - 1)]
    return layers, heads


def choose_head(layer: int, head: int) -> None:
    """Shows one head; a mean makes way for it."""
    change_map(layer=layer, head=head, view="head")


def _remember_plain() -> None:
    st.session_state["headscope.plain"] = st.session_state["attention.plain"]


def _pixels(
    shown: Shown, attention: AttentionResult, colour: str
) -> tuple[NDArray[np.uint8], tuple[str, str] | None]:
    if colour != MAP:
        pixels, low, high = head_grid.metric_pixels(attention.metrics[colour])
        return pixels, (quantities.significant(low), quantities.significant(high))
    request = OverviewRequest(
        shown.request,
        kind=attention.kind,
        text_index=attention.text_index,
        size=head_grid.thumbnail_size(attention.n_layers, attention.n_heads),
        hide_special=current_view().special == "hide",
        joining=session.current_joining(),
    )
    # Kept for the session: a click on a head must not pool all the others once more.
    kept = st.session_state.get("headscope.thumbnails")
    if kept is None or kept[0] != request:
        result = session.service().overview(request, progress=shown.report)
        kept = (request, head_grid.map_pixels(result.weights))
        st.session_state["headscope.thumbnails"] = kept
    return kept[1], None


def _plain_grid(pixels: NDArray[np.uint8], *, dark: bool) -> None:
    n_layers, n_heads = pixels.shape[:2]
    table = _colour_table(dark)
    columns = {
        f"H{head}": [_picture(pixels[layer, head], table) for layer in range(n_layers)]
        for head in range(n_heads)
    }
    st.dataframe(
        pd.DataFrame(columns, index=[f"L{layer}" for layer in range(n_layers)]),
        column_config={n: st.column_config.ImageColumn(n, width=44) for n in columns},
        row_height=44,
        height=560,
        on_select=_choose_cell,
        selection_mode="single-cell",
        key="attention.table",
    )


def _choose_cell() -> None:
    cells = st.session_state["attention.table"].selection.cells
    if cells:
        row, column = cells[0]
        if str(column).startswith("H"):
            choose_head(int(row), int(str(column)[1:]))


def _colour_table(dark: bool) -> NDArray[np.uint8]:
    table = charts.colours(np.arange(256) / 254, dark)
    table[head_grid.UNDEFINED] = 128
    return table


def _picture(pixels: NDArray[np.uint8], table: NDArray[np.uint8]) -> str:
    grown = pixels.repeat(max(1, 24 // pixels.shape[0]), 0).repeat(max(1, 24 // pixels.shape[1]), 1)
    return "data:image/png;base64," + base64.b64encode(charts.png(table[grown])).decode("ascii")
