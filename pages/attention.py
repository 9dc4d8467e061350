"""All heads as a grid, one of them as a heatmap, the sentence as chips."""

import streamlit as st

from core.errors import HeadscopeError
from core.results import CaptureRequest
from pages.ui import session
from pages.ui.bertviz_panel import bertviz_panel
from pages.ui.captured import (
    Shown,
    attention_of,
    capture_for_page,
    joined,
    was_cancelled,
    working,
)
from pages.ui.controls import map_toolbar
from pages.ui.frame import require_frame
from pages.ui.grid_panel import grid_panel
from pages.ui.i18n import Words
from pages.ui.inspector import inspector, metrics_panel
from pages.ui.map_panel import map_panel
from pages.ui.messages import show_error, show_notes


@st.fragment(key=session.MAPS)
def maps(shown: Shown, asked: CaptureRequest, words: Words) -> None:
    """Draws all that a choice on this page changes; a choice draws it again, and not the rest."""
    if session.current_request() != asked:
        # A button below an error chose another model, or to cut the text.
        st.rerun()
    if was_cancelled(shown, words):
        return
    dark = st.context.theme.type == "dark"
    attention = attention_of(shown, session.current_view().kind)
    kinds = [str(t.kind) for t in shown.result.texts if t.text_index == attention.text_index]
    map_toolbar(attention, kinds, words)
    try:
        attention = joined(shown, attention)
        with working(shown, words, key="maps.progress") as shown:
            # Three blocks that stand side by side where there is room; the third wraps below else.
            with st.container(horizontal=True, gap="medium", key="attention-blocks"):
                with st.container(key="attention-grid"):
                    st.subheader(words("attention.grid"), anchor=False)
                    grid_panel(shown, attention, words, dark=dark)
                with st.container(key="attention-map"):
                    whole = map_panel(shown, attention, words, dark=dark)
                with st.container(key="attention-words"):
                    st.subheader(words("chips.title"), anchor=False)
                    inspector(shown, attention, whole, words, dark=dark)
            metrics_panel(attention, words)
            bertviz_panel(shown, attention, words, dark=dark)
    except HeadscopeError as error:
        show_error(error, words, request_text=shown.request.texts[0])


require_frame()
words = session.words()
shown = capture_for_page(words("page.attention"), words)
if shown is not None:
    maps(shown, session.current_request(), words)
    show_notes(shown.result.notes, words)
