"""Starts the server; in a session, page config, navigation and the shared sidebar."""

import streamlit as st
from streamlit import runtime

from pages.ui import session
from pages.ui.addresses import page_routes
from pages.ui.controls import sidebar
from pages.ui.frame import ICON, navigation, page_style


def run() -> None:
    """Draws what one session sees."""
    name, pages = navigation()
    session.begin_run(name, pages)
    words = session.words()
    st.set_page_config(
        page_title=f"{words(f'page.{name}')} · Headscope",
        page_icon=str(ICON),
        layout="wide",
        initial_sidebar_state="expanded",
        menu_items={"About": words("app.about")},
    )
    page_style()
    sidebar(pages, words)
    pages[name].run()


# `streamlit run` imports this file once to get the server, then runs it for every session.
if runtime.exists():
    run()
else:
    app = st.App(__file__, routes=page_routes())
