"""The one service, and what a person is looking at.

The address is the truth for everything a link should reopen: model, layer, head, view and the
like. Each value is clamped when read, and every change goes through `change_view`, which adds one
entry to the browser's history, so that Back and Forward do what people expect. The text stays in
the session: it may be private and long. Widgets never hold state of their own; they are set from
here on each run, so neither another page nor another language loses anything.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlencode, urlsplit, urlunsplit

import streamlit as st
from streamlit.errors import StreamlitAPIException
from streamlit.navigation.page import Page

from core import open_service
from core.errors import HeadscopeError
from core.results import (
    CaptureRequest,
    Device,
    Dtype,
    Feed,
    Joining,
    Kind,
    ModelInfo,
    ModelRequest,
    Weighting,
)
from core.service import HeadscopeService
from pages.ui.i18n import LANGUAGES, Words, language_of_browser

DEFAULT_MODEL = "e5-small-multilingual"
DEFAULT_TEXT = "我吃了一个苹果"
TOP_TOKENS = 10
LINK_TEXT_CHARS = 2000
"""Longest text put into a link: browsers and proxies begin to refuse addresses above 8 kB."""

MAPS, LINKS, SHARE = "maps", "links", "share"
"""Keys of the fragments that a choice on the attention page draws again: nothing else changes."""

VIEWS = ("head", "heads", "layers", "all")
SCALES = ("linear", "sqrt", "row")
SPECIALS = ("show", "hide")
WEIGHTINGS = get_args(Weighting)
UNITS = ("tokens", "words", "spans")
MAX_INDEX = 9999


@dataclass(frozen=True)
class View:
    """What is looked at; every field is a parameter of the address.

    Attributes:
        view: one head, the mean of a layer's heads, of a head over layers, or of all.
        kind: encoder, decoder or cross; "" for the model's first.
        colour: "map" or the metric that colours the grid.
        weighting: raw weights, weighted by norm, or rolled out.
        unit: what stands on the axes: tokens, words, or spans that were chosen.
        window: part of a long map, "query start.stop.key start.stop"; "" for all of it.
    """

    model: str = DEFAULT_MODEL
    layer: int = 0
    head: int = 0
    view: str = "head"
    kind: str = ""
    scale: str = "linear"
    special: str = "show"
    weighting: str = "raw"
    unit: str = "tokens"
    colour: str = "map"
    window: str = ""
    feed: str = "typed"
    dtype: str = "auto"
    device: str = "auto"
    lang: str = ""


_CHOICES: Mapping[str, Sequence[str]] = {
    "view": VIEWS,
    "kind": get_args(Kind),
    "scale": SCALES,
    "special": SPECIALS,
    "weighting": WEIGHTINGS,
    "unit": UNITS,
    "feed": get_args(Feed),
    "dtype": get_args(Dtype),
    "device": get_args(Device),
    "lang": LANGUAGES,
}
_DEFAULTS = View()
_ALWAYS = ("model", "layer", "head")


def parse_view(params: Mapping[str, str]) -> View:
    """Returns the view an address names; what is missing or makes no sense becomes the default."""
    values: dict[str, Any] = {}
    for field in fields(View):
        raw = params.get(field.name)
        if raw is None:
            continue
        if isinstance(getattr(_DEFAULTS, field.name), int):
            if raw.isascii() and raw.isdigit():
                values[field.name] = min(int(raw[:9]), MAX_INDEX * 100)
        elif field.name in _CHOICES:
            if raw in _CHOICES[field.name]:
                values[field.name] = raw
        elif 0 < len(raw) <= 500:
            values[field.name] = raw
    return View(**values)


def view_params(view: View) -> dict[str, str]:
    """Returns the address parameters of a view, without those at their default."""
    return {
        field.name: str(getattr(view, field.name))
        for field in fields(View)
        if field.name in _ALWAYS or getattr(view, field.name) != getattr(_DEFAULTS, field.name)
    }


@st.cache_resource(show_spinner=False)
def service() -> HeadscopeService:
    """Returns the one service of this process; the default model warms up beside it."""
    roots = [Path(p) for p in os.environ.get("HEADSCOPE_MODEL_ROOTS", "").split(os.pathsep) if p]
    opened = open_service(roots)
    threading.Thread(target=_warm_up, args=(opened,), name="warm-up", daemon=True).start()
    return opened


def _warm_up(opened: HeadscopeService) -> None:
    try:
        opened.model_info(ModelRequest(DEFAULT_MODEL))
    except HeadscopeError:
        # The page that needs the model meets the same error and shows it.
        return


def model_roots() -> list[str]:
    """Returns the folders under which people may open models."""
    return [p for p in os.environ.get("HEADSCOPE_MODEL_ROOTS", "").split(os.pathsep) if p]


def begin_run(page: str, pages: Mapping[str, Page]) -> None:
    """Settles what this run shows; called once by app.py before anything is drawn.

    Args:
        page: address of the page. A page opened without parameters, as by typing its address,
            takes over what the page before showed; the same page without parameters, as after
            Back, shows the default.
        pages: all pages by name, for links between them.
    """
    state = st.session_state
    state["headscope.pages"] = dict(pages)
    params = st.query_params.to_dict()
    if "headscope.text" not in state:
        state["headscope.text"] = params.get("text", DEFAULT_TEXT)[: 10 * LINK_TEXT_CHARS]
    bare = not any(field.name in params for field in fields(View))
    moved = state.get("headscope.page") not in (None, page)
    if bare and (moved or state.get("headscope.carried", False)) and "headscope.view" in state:
        state["headscope.carried"] = True
    else:
        state["headscope.carried"] = False
        state["headscope.view"] = parse_view(params)
    state["headscope.page"] = page


def page(name: str) -> Page:
    """Returns a page to link to."""
    found = st.session_state["headscope.pages"][name]
    assert isinstance(found, Page)
    return found


def current_view() -> View:
    """Returns what is looked at in this run."""
    view = st.session_state.get("headscope.view", _DEFAULTS)
    assert isinstance(view, View)
    return view


def change_view(**changes: Any) -> None:
    """Changes what is looked at and puts it into the address, as one step of the history."""
    view = replace(current_view(), **changes)
    st.session_state["headscope.view"] = view
    st.session_state["headscope.carried"] = False
    params = view_params(view)
    if st.query_params.to_dict() != params:
        st.query_params.from_dict(params)


def change_map(**changes: Any) -> None:
    """Changes what is looked at and draws only the parts that show it, not the whole page.

    For callbacks; it ends them.
    """
    change_view(**changes)
    redraw(MAPS, LINKS, SHARE)


def redraw(*fragments: str) -> None:
    """Draws these parts of the page and not the rest. For callbacks; it ends them.

    A browser may report a change just after another page was opened, where the parts are gone;
    then that page is drawn as it would have been (streamlit 1.67).
    """
    with contextlib.suppress(StreamlitAPIException):
        st.rerun(list(fragments))


def words() -> Words:
    """Returns the strings of the language in use."""
    lang = current_view().lang
    if lang == "zh":
        return Words("zh")
    return Words("en") if lang == "en" else Words(language_of_browser(st.context.locale))


def current_text() -> str:
    """Returns the text that is run, as typed."""
    return str(st.session_state.get("headscope.text", DEFAULT_TEXT))


def set_text(text: str) -> None:
    """Sets the text to run; a run that failed or was cancelled is tried again."""
    st.session_state["headscope.text"] = text
    forget_failure()
    if "text" in st.query_params:
        # The address must not go on naming a text that is no longer shown.
        change_view()


def forget_failure() -> None:
    """Lets a request that failed or was cancelled run once more."""
    st.session_state.pop("headscope.failed", None)
    st.session_state.pop("headscope.cancelled", None)


def known_model(model: str) -> ModelInfo | None:
    """Returns what is known of an embedded model before it is loaded."""
    return next((info for info in service().models() if info.id == model), None)


def current_request() -> CaptureRequest:
    """Returns the one capture every page of this session looks at.

    It is the same object value on every page, so that no page runs the model again.
    """
    view, text = current_view(), current_text()
    info = known_model(view.model)
    writes = info is None or info.kind == "decoder"
    return CaptureRequest(
        model=ModelRequest(view.model, dtype=_dtype(view), device=_device(view)),
        texts=(text,),
        feed=_feed(view),
        truncate=st.session_state.get("headscope.truncate") == text,
        beyond=st.session_state.get("headscope.beyond") == text,
        # Values are kept for norm-weighted maps, so that no choice runs the model again.
        hold_values=True,
        top_tokens=TOP_TOKENS if writes else 0,
    )


def current_joining() -> Joining | None:
    """Returns how tokens are joined on the axes of maps; None where each stands for itself.

    The spans stay in the session, as the text does.
    """
    unit = current_view().unit
    if unit == "words":
        return Joining()
    phrases = tuple(st.session_state.get("headscope.phrases", ()))
    return Joining("spans", phrases) if unit == "spans" and phrases else None


def current_weighting() -> Weighting:
    """Returns how weights are read on maps."""
    return next(w for w in WEIGHTINGS if w == current_view().weighting)


def _dtype(view: View) -> Dtype:
    return next(d for d in get_args(Dtype) if d == view.dtype)


def _device(view: View) -> Device:
    return next(d for d in get_args(Device) if d == view.device)


def _feed(view: View) -> Feed:
    return next(f for f in get_args(Feed) if f == view.feed)


def link(*, with_text: bool) -> str:
    """Returns the address that reopens this view, with the text only when asked for."""
    params = view_params(current_view())
    if with_text:
        params["text"] = current_text()
    base = urlsplit(st.context.url or "http://localhost:8501/")
    return urlunsplit((base.scheme, base.netloc, base.path, urlencode(params), ""))


def keep_widget(key: str, value: object) -> None:
    """Sets a widget to what the view says; call just before the widget is drawn."""
    if st.session_state.get(key) != value or key not in st.session_state:
        st.session_state[key] = value


def changer(
    key: str,
    field: str,
    choices: Collection[object],
    change: Callable[..., None] = change_view,
) -> Callable[[], None]:
    """Returns a callback that puts a widget's value into the view.

    Args:
        key: of the widget.
        field: of `View`.
        choices: values that are taken; others change nothing. A select box whose labels were
            translated reports its old label as if somebody had chosen it (streamlit 1.67).
        change: `change_view` or `change_map`.
    """

    def changed() -> None:
        value = st.session_state.get(key)
        if value in choices:
            change(**{field: value})

    return changed
