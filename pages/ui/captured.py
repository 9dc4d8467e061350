"""The capture a page looks at: run it once, show how it goes, keep the last good one on errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from core.errors import CancelledError, HeadscopeError
from core.results import (
    AttentionResult,
    CaptureRequest,
    CaptureResult,
    MapRequest,
    ProgressCallback,
)
from pages.ui import quantities, session
from pages.ui.i18n import Words
from pages.ui.messages import literal, show_empty, show_error
from pages.ui.progress import ProgressView, cancelled


@dataclass(frozen=True)
class Shown:
    """What the page shows: a request, its result, and a way to report further work on it."""

    request: CaptureRequest
    result: CaptureResult
    report: ProgressCallback


def capture_for_page(title: str, words: Words) -> Shown | None:
    """Draws title and context line and returns the capture to show.

    Returns:
        The capture asked for; after an error or a cancel the last good one, with the reason drawn
        above it; None when there is nothing to show.
    """
    st.title(title, anchor=False)
    line = st.container(height=40, border=False, key="page.context", gap=None)
    place = line.empty()
    request = session.current_request()
    if not request.texts[0].strip():
        show_empty(words)
        return _last_good(request, place, words)
    state = st.session_state
    failed = state.get("headscope.failed")
    if failed is not None and failed[0] == request:
        show_error(failed[1], words, request_text=request.texts[0])
        return _last_good(request, place, words)
    if state.get("headscope.cancelled") == request:
        _show_cancelled(words)
        return _last_good(request, place, words)
    return _run(request, place, words)


def _run(request: CaptureRequest, place: DeltaGenerator, words: Words) -> Shown | None:
    view = _progress(request, place, words)
    state = st.session_state
    service = session.service()
    try:
        cached = service.is_cached(request)
        result = service.capture(request, progress=view.report)
    except HeadscopeError as error:
        view.clear()
        state["headscope.failed"] = (request, error)
        show_error(error, words, request_text=request.texts[0])
        return _last_good(request, place, words)
    except CancelledError:
        view.clear()
        cancelled(request)
        _show_cancelled(words)
        return _last_good(request, place, words)
    view.clear()
    state["headscope.good"] = request
    state["headscope.info"] = result.model
    _context_line(place, request, result, words, cached=cached)
    return Shown(request, result, view.report)


def _last_good(asked: CaptureRequest, place: DeltaGenerator, words: Words) -> Shown | None:
    good = st.session_state.get("headscope.good")
    if not isinstance(good, CaptureRequest) or good == asked:
        return None
    service = session.service()
    if not service.is_cached(good):
        return None
    view = _progress(good, place, words)
    try:
        result = service.capture(good, progress=view.report)
    except (HeadscopeError, CancelledError):
        # The reason of the run that was asked for is on the page already.
        return None
    view.clear()
    _context_line(place, good, result, words, cached=True)
    st.caption(
        words(
            "context.kept",
            text=literal(_shorten(good.texts[0])),
            model=literal(result.model.id),
        )
    )
    return Shown(good, result, view.report)


@contextmanager
def working(shown: Shown, words: Words, key: str) -> Iterator[Shown]:
    """Gives the capture with a report that draws here, for what a fragment still has to work out.

    Args:
        key: of the place; each fragment has its own.
    """
    view = ProgressView(st.empty(), words, lambda: cancelled(shown.request), key=key)
    try:
        yield replace(shown, report=view.report)
    except HeadscopeError:
        view.clear()
        raise
    view.clear()


def was_cancelled(shown: Shown, words: Words) -> bool:
    """Returns whether the person cancelled work on this capture, and draws that it was."""
    if st.session_state.get("headscope.cancelled") != shown.request:
        return False
    _show_cancelled(words)
    return True


def _progress(request: CaptureRequest, place: DeltaGenerator, words: Words) -> ProgressView:
    return ProgressView(place, words, lambda: cancelled(request), key="progress")


def _show_cancelled(words: Words) -> None:
    st.info(words("progress.cancelled"))
    st.button(
        words("progress.again"),
        key="progress.again",
        type="primary",
        on_click=session.forget_failure,
    )


def context_line(
    request: CaptureRequest, result: CaptureResult, words: Words, *, cached: bool
) -> str:
    """Returns the grey line of facts under a page's title (plain text)."""
    model, first = result.model, result.texts[0]
    parts = [
        model.id,
        words("context.heads", n_layers=first.n_layers, n_heads=first.n_heads),
        words("context.tokens", count=len(first.key_tokens)),
        f"{model.device.upper()} {model.dtype}".strip(),
        words("context.seconds", time=quantities.duration(result.seconds)),
    ]
    if cached:
        parts[-1] += " " + words("context.cached")
    if model.random_weights:
        parts.insert(1, words("context.random"))
    parts.append(words("context.text", text=_shorten(request.texts[0])))
    return " · ".join(p for p in parts if p)


def _context_line(
    place: DeltaGenerator,
    request: CaptureRequest,
    result: CaptureResult,
    words: Words,
    *,
    cached: bool,
) -> None:
    place.caption(literal(context_line(request, result, words, cached=cached)))


def _shorten(text: str, limit: int = 48) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def attention_of(shown: Shown, kind: str) -> AttentionResult:
    """Returns the attention of a kind, or the first there is."""
    return next((t for t in shown.result.texts if t.kind == kind), shown.result.texts[0])


def joined(shown: Shown, attention: AttentionResult) -> AttentionResult:
    """Returns the attention with words or spans on its axes where the view says so."""
    joining = session.current_joining()
    if joining is None:
        return attention
    request = MapRequest(
        shown.request, kind=attention.kind, text_index=attention.text_index, joining=joining
    )
    return session.service().joined(request)
