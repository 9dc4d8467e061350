"""The frame of every page: the icon of the tab, and how close things stand."""

from pathlib import Path

import streamlit as st
from streamlit.navigation.page import Page

PAGES = Path(__file__).parents[1]

ICON = Path(__file__).parent / "icon.png"
"""A small causal map. A file, because a named icon would be fetched from a font server."""

ADDRESSES = ("overview",)
"""Pages with an address of their own, named like their files; the others open at the root."""

_STYLE = """<style>
.stMainBlockContainer { padding: 4.2rem 2.2rem 3rem; }
.stSidebar [data-testid="stSidebarHeader"] { height: 2.6rem; margin-bottom: 0; }
.stMainBlockContainer h1 { font-size: 1.75rem; padding: 0; }
.stMainBlockContainer h3 { font-size: 1.1rem; padding: .3rem 0 .45rem; }
.stMainBlockContainer [data-testid="stHeading"] { min-height: 0; }
.stSidebar [data-testid="stVerticalBlock"] { gap: .7rem; }
.st-key-attention-blocks { align-items: flex-start; }
.st-key-attention-blocks > div { min-width: 340px !important; width: auto !important; }
.st-key-attention-blocks > div:nth-child(1) { flex: 5 1 350px !important; max-width: 520px; }
.st-key-attention-blocks > div:nth-child(2) { flex: 7 1 500px !important; max-width: 660px; }
.st-key-attention-blocks > div:nth-child(3) { flex: 6 1 500px !important; }
</style>"""

# The primary colour of the dark theme is light, and Streamlit writes white on it.
_DARK_STYLE = """<style>
button[kind^="primary"], button[kind^="primary"] p { color: #12131a !important; }
button[kind^="primary"]:is(:hover, :focus, :active) { background: #c3c5ff !important; }
</style>"""


def navigation() -> tuple[str, dict[str, Page]]:
    """Returns the name of the page to show, and all pages by name in the order of the sidebar.

    The titles here only name the browser's tab until the language is known; the sidebar draws its
    own translated links, which carry the view along (Streamlit's own links would drop it).
    """
    pages = {
        "attention": st.Page(PAGES / "attention.py", title="Attention maps", default=True),
    }
    for name in ADDRESSES:
        pages[name] = st.Page(PAGES / f"{name}.py", title=name.capitalize(), url_path=name)
    chosen = st.navigation(list(pages.values()), position="hidden")
    name = next(name for name, page in pages.items() if page == chosen)
    st.session_state["headscope.framed"] = True
    return name, pages


def require_frame() -> None:
    """Starts again with app.py when a page was run without it; each page calls this first.

    Streamlit takes a `pages` folder for its older kind of app until `st.navigation` has been
    called once in the process. So a link straight to a page, as the first visit after a start,
    runs that page alone (streamlit 1.67).
    """
    if not st.session_state.pop("headscope.framed", False):
        navigation()
        st.session_state.pop("headscope.framed", None)
        st.rerun()


def page_style() -> None:
    """Brings the parts of the page closer together than Streamlit has them."""
    st.html(_STYLE + (_DARK_STYLE if st.context.theme.type == "dark" else ""))
