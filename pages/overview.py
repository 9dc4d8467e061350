"""What is loaded, how it reads the text, and where to go next."""

import streamlit as st

from pages.ui import session
from pages.ui.captured import attention_of, capture_for_page
from pages.ui.frame import require_frame
from pages.ui.messages import show_notes
from pages.ui.model_card import facts_panel, next_cards, next_tokens_panel, tokens_panel

require_frame()
words = session.words()
shown = capture_for_page(words("page.overview"), words)
if shown is not None:
    dark = st.context.theme.type == "dark"
    attention = attention_of(shown, session.current_view().kind)
    left, right = st.columns([5, 7], gap="medium")
    with left:
        st.subheader(words("overview.model"), anchor=False)
        facts_panel(shown.result, words)
    with right:
        st.subheader(words("overview.tokens"), anchor=False)
        tokens_panel(attention, words, dark=dark)
        st.subheader(words("overview.next"), anchor=False)
        next_tokens_panel(shown.result, words)
        st.subheader(words("overview.go"), anchor=False)
        next_cards(attention, words, session.page("attention"))
        show_notes(shown.result.notes, words)
