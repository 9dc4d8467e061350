"""BertViz's two views at the foot of the attention page, drawn when somebody asks for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import streamlit as st

from core.results import AttentionResult, MapRequest
from pages.ui import session
from pages.ui.bertviz_view import (
    Maps,
    View,
    data_address,
    most_tokens,
    view_height,
    view_html,
)
from pages.ui.captured import Shown, was_cancelled, working
from pages.ui.i18n import Words
from pages.ui.session import current_view, keep_widget

VIEWS: tuple[View, ...] = ("head", "model")
MOST_AT_FIRST = 12
"""Layers and heads that are chosen to begin with; BertViz was made for twelve of each."""


@dataclass(frozen=True)
class Chosen:
    """What the form asked to draw."""

    view: View
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    first_token: int


@st.fragment
def bertviz_panel(shown: Shown, attention: AttentionResult, words: Words, *, dark: bool) -> None:
    """Draws the form, and the view once it has been asked for."""
    if was_cancelled(shown, words):
        return
    st.subheader(words("bertviz.title"), anchor=False)
    with st.expander(words("bertviz.open"), expanded="headscope.bertviz" in st.session_state):
        _form(attention, words)
        chosen = st.session_state.get("headscope.bertviz")
        if not isinstance(chosen, Chosen):
            return
        layers = [layer for layer in chosen.layers if layer < attention.n_layers]
        heads = [head for head in chosen.heads if head < attention.n_heads]
        if not layers or not heads:
            st.warning(words("bertviz.none"))
            return
        with working(shown, words, key="bertviz.progress") as shown:
            maps, note = _maps(shown, attention, chosen, layers, heads, words)
        if not maps.query_labels or not maps.key_labels:
            st.info(words("attention.map.all_special"))
            return
        html = view_html(
            chosen.view,
            maps,
            layer=current_view().layer if current_view().layer in layers else layers[0],
            layer_word=words("attention.layer"),
            dark=dark,
        )
        st.caption(note)
        st.iframe(data_address(html), height=view_height(chosen.view, maps))
        st.caption(words(f"bertviz.how.{chosen.view}"))


def _form(attention: AttentionResult, words: Words) -> None:
    kept = st.session_state.get("headscope.bertviz")
    if not isinstance(kept, Chosen):
        near = min(current_view().layer, attention.n_layers - 1) // MOST_AT_FIRST * MOST_AT_FIRST
        layers = tuple(range(attention.n_layers))[near : near + MOST_AT_FIRST]
        kept = Chosen("head", layers, tuple(range(min(attention.n_heads, MOST_AT_FIRST))), 0)
    with st.form("bertviz.form", border=False):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            keep_widget("bertviz.view", kept.view)
            st.segmented_control(
                words("bertviz.view"),
                VIEWS,
                format_func=lambda view: words(f"bertviz.view.{view}"),
                key="bertviz.view",
                required=True,
            )
            for name, count, chosen in (
                ("layers", attention.n_layers, kept.layers),
                ("heads", attention.n_heads, kept.heads),
            ):
                # A default and not a value from the session: drawn anew in the browser, a form's
                # field without one comes out empty (streamlit 1.67).
                st.multiselect(
                    words(f"bertviz.{name}"),
                    range(count),
                    default=[i for i in chosen if i < count],
                    key=f"bertviz.{name}.{count}",
                    width=330,
                )
            last = max(len(attention.query_tokens), len(attention.key_tokens)) - 1
            keep_widget("bertviz.first", min(kept.first_token, last))
            st.number_input(words("bertviz.first"), 0, last, step=1, key="bertviz.first", width=130)
            st.form_submit_button(
                words("bertviz.draw"),
                type="primary",
                on_click=_draw,
                args=(attention.n_layers, attention.n_heads),
            )


def _draw(n_layers: int, n_heads: int) -> None:
    state = st.session_state
    state["headscope.bertviz"] = Chosen(
        state["bertviz.view"],
        tuple(sorted(state[f"bertviz.layers.{n_layers}"])),
        tuple(sorted(state[f"bertviz.heads.{n_heads}"])),
        state["bertviz.first"],
    )


def _maps(
    shown: Shown,
    attention: AttentionResult,
    chosen: Chosen,
    layers: Sequence[int],
    heads: Sequence[int],
    words: Words,
) -> tuple[Maps, str]:
    """Returns the weights of the view, and a line that says what was left out."""
    count = most_tokens(chosen.view, len(layers), len(heads))
    windows = []
    for tokens in (attention.query_tokens, attention.key_tokens):
        first = min(chosen.first_token, max(0, len(tokens) - count))
        windows.append((first, min(first + count, len(tokens))))
    service = session.service()
    found = [
        [
            service.head_map(
                MapRequest(
                    shown.request,
                    kind=attention.kind,
                    text_index=attention.text_index,
                    layer=layer,
                    head=head,
                    rows=windows[0],
                    keys=windows[1],
                    hide_special=current_view().special == "hide",
                    joining=session.current_joining(),
                ),
                progress=shown.report,
            )
            for head in heads
        ]
        for layer in layers
    ]
    shown_at = found[0][0]
    maps = Maps(
        np.stack([np.stack([made.weights for made in row]) for row in found]),
        layers,
        heads,
        attention.n_heads,
        [attention.query_tokens[i].text for i in shown_at.query_index],
        [attention.key_tokens[i].text for i in shown_at.key_index],
    )
    longest = max(len(attention.query_tokens), len(attention.key_tokens))
    if longest <= count:
        return maps, words("bertviz.all", count=longest)
    start, stop = windows[1]
    return maps, words("bertviz.cut", start=start, stop=stop - 1, count=longest, most=count)
