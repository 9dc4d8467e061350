"""All heads as a grid, one of them as a heatmap, the sentence as chips."""

import streamlit as st

from core.errors import HeadscopeError
from pages.ui import session
from pages.ui.captured import attention_of, capture_for_page
from pages.ui.controls import map_toolbar
from pages.ui.frame import require_frame
from pages.ui.grid_panel import grid_panel
from pages.ui.inspector import inspector, metrics_panel
from pages.ui.map_panel import map_panel
from pages.ui.messages import show_error, show_notes

require_frame()
words = session.words()
shown = capture_for_page(words("page.attention"), words)
if shown is not None:
    dark = st.context.theme.type == "dark"
    attention = attention_of(shown, session.current_view().kind)
    kinds = [str(t.kind) for t in shown.result.texts if t.text_index == attention.text_index]
    map_toolbar(attention, kinds, words)
    try:
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
        show_notes(shown.result.notes, words)
    except HeadscopeError as error:
        show_error(error, words, request_text=shown.request.texts[0])
