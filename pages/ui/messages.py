"""Core's errors as people see them: headline, message, what to do next; never a traceback."""

import streamlit as st

from core.errors import HeadscopeError
from core.limits import MAX_TEXT_CHARS
from pages.ui import session
from pages.ui.i18n import CATALOGUES, Words


def literal(text: str) -> str:
    """Returns text that Markdown shows letter by letter (tokens and file names are data)."""
    escaped = "".join(f"\\{c}" if c in "\\`*_{}[]()#+-.!|~$:<>&\"'@=^" else c for c in text)
    return " ".join(escaped.splitlines())


def headline(error: HeadscopeError, words: Words) -> str:
    """Returns the translated headline of an error's kind."""
    key = f"error.{error.kind}"
    return words(key if key in CATALOGUES[words.language] else "error.internal")


def show_error(error: HeadscopeError, words: Words, *, request_text: str) -> None:
    """Draws an error with its hint and the one click that may mend it."""
    lines = [f"**{headline(error, words)}**", literal(error.message)]
    if error.hint:
        lines.append(literal(error.hint))
    st.error("\n\n".join(lines))
    with st.container(horizontal=True):
        if error.kind == "too-large" and len(request_text) <= MAX_TEXT_CHARS:
            st.button(
                words("error.cut"),
                key="error.cut",
                type="primary",
                on_click=_run_anyway,
                args=("headscope.truncate", request_text),
            )
            if _goes_beyond():
                st.button(
                    words("error.beyond"),
                    key="error.beyond",
                    help=words("error.beyond.help"),
                    on_click=_run_anyway,
                    args=("headscope.beyond", request_text),
                )
        st.button(words("error.retry"), key="error.retry", on_click=session.forget_failure)
        if session.current_view().model != session.DEFAULT_MODEL:
            st.button(words("error.default"), key="error.default", on_click=_default_model)


def show_empty(words: Words) -> None:
    """Draws what to do where there is no text, with one click that does it."""
    st.info(words("error.empty"))
    st.button(
        words("error.empty.action"), key="error.empty", type="primary", on_click=_default_text
    )


def _goes_beyond() -> bool:
    try:
        return session.service().model_info(session.current_request().model).reads_beyond
    except HeadscopeError:
        return False


def _run_anyway(how: str, text: str) -> None:
    st.session_state.pop("headscope.truncate", None)
    st.session_state.pop("headscope.beyond", None)
    st.session_state[how] = text
    session.forget_failure()


def _default_model() -> None:
    session.forget_failure()
    session.change_view(model=session.DEFAULT_MODEL)


def _default_text() -> None:
    st.session_state["sidebar.text"] = session.DEFAULT_TEXT
    session.set_text(session.DEFAULT_TEXT)


def show_notes(notes: tuple[str, ...], words: Words) -> None:
    """Draws what people should know about a run."""
    if notes:
        st.caption(f"**{words('overview.notes')}**  \n" + "  \n".join(literal(n) for n in notes))
