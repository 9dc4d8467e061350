"""Page config, navigation and the shared sidebar. Nothing else."""

import streamlit as st

from pages.ui import session
from pages.ui.controls import page_links, sidebar
from pages.ui.frame import ICON, navigation, page_style

st.set_page_config(
    page_title="Headscope",
    page_icon=str(ICON),
    layout="wide",
    initial_sidebar_state="expanded",
)
name, pages = navigation()
session.begin_run(name, pages)
words = session.words()
st.set_page_config(
    page_title=f"{words(f'page.{name}')} · Headscope",
    page_icon=str(ICON),
    layout="wide",
    menu_items={"About": words("app.about")},
)
page_style()
page_links(pages, words)
sidebar(words)
pages[name].run()
