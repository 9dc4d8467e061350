"""The sidebar every page shares, and the pickers of the attention page."""

from collections.abc import Mapping
from typing import get_args

import streamlit as st
from streamlit.navigation.page import Page

from core.limits import MAX_PHRASES
from core.results import AttentionResult, Device, Dtype, Feed, ModelInfo
from pages.ui import quantities, session
from pages.ui.i18n import LANGUAGE_NAMES, LANGUAGES, Words
from pages.ui.messages import literal
from pages.ui.session import (
    SCALES,
    UNITS,
    VIEWS,
    WEIGHTINGS,
    change_map,
    change_view,
    changer,
    current_view,
    keep_widget,
)

HUB, FOLDER = "@hub", "@folder"

EXAMPLES: dict[str, str] = {
    "example.fruit": "我吃了一个苹果",
    "example.company": "苹果公司发布了新手机",
    "example.both": "我一边吃着甜苹果，一边看苹果公司的市值上涨",
    "example.bank": "She sat on the bank of the river and called her bank about the loan.",
    "example.pronoun": "The animal didn't cross the street because it was too tired.",
    "example.mixed": "我用 iPhone 给妈妈打了一个电话, then I ate an apple.",
    "example.code": "def add(a, b):\n    total = a + b\n    return total",
    "example.repeat": "苹果 苹果 苹果 apple apple apple",
}


@st.fragment(key=session.LINKS)
def _page_links(pages: Mapping[str, Page], words: Words) -> None:
    """Draws the links to all pages; each opens with what is looked at now."""
    params = session.view_params(current_view())
    for name, page in pages.items():
        st.page_link(page, label=words(f"page.{name}"), query_params=params)


def sidebar(pages: Mapping[str, Page], words: Words) -> None:
    """Draws links to all pages, model, text, how it is fed, hardware, language, links to copy."""
    with st.sidebar:
        _page_links(pages, words)
        _model_picker(words)
        _text_box(words)
        _hardware(words)
        keep_widget("sidebar.language", words.language)
        st.segmented_control(
            words("sidebar.language"),
            LANGUAGES,
            format_func=lambda name: LANGUAGE_NAMES[name],
            key="sidebar.language",
            required=True,
            on_change=changer("sidebar.language", "lang", LANGUAGES),
        )
        with st.popover(words("share"), key="sidebar.share", width="stretch"):
            _share(words)


def _models() -> tuple[ModelInfo, ...]:
    # What listens needs a recording, and the box beside takes text.
    return tuple(info for info in session.service().models() if info.input == "text")


def _model_picker(words: Words) -> None:
    view = current_view()
    ids = [info.id for info in _models()]
    source = _source(view.model, ids)
    keep_widget("sidebar.model", source)
    names = {HUB: words("sidebar.model.hub"), FOLDER: words("sidebar.model.folder")}
    st.selectbox(
        words("sidebar.model"),
        [*ids, HUB, FOLDER],
        format_func=lambda name: names.get(name, name),
        key="sidebar.model",
        on_change=_choose_source,
        args=(tuple(ids),),
    )
    if source == HUB:
        _typed_model("sidebar.hub_id", "hub_id", words("sidebar.model.hub_help"), words)
    elif source == FOLDER:
        roots = ", ".join(session.model_roots()) or words("sidebar.model.no_roots")
        note = words("sidebar.model.folder_help", roots=literal(roots))
        _typed_model("sidebar.folder", "folder_path", note, words)
    info = _known(view.model)
    if info is not None:
        _model_card(info, words)


def _source(model: str, ids: list[str]) -> str:
    chosen = st.session_state.get("headscope.source")
    if chosen in (HUB, FOLDER):
        return str(chosen)
    if model in ids:
        return model
    return FOLDER if model.startswith(("/", "~", ".")) or "\\" in model else HUB


def _choose_source(ids: tuple[str, ...]) -> None:
    chosen = st.session_state["sidebar.model"]
    if chosen in ids:
        st.session_state.pop("headscope.source", None)
        session.forget_failure()
        feed = current_view().feed
        change_view(
            model=chosen, kind="", feed=feed if feed in _feeds(chosen, "typed") else "typed"
        )
    elif chosen in (HUB, FOLDER):
        st.session_state["headscope.source"] = chosen


def _typed_model(key: str, label: str, note: str, words: Words) -> None:
    view = current_view()
    if key not in st.session_state:
        known = session.known_model(view.model) is not None
        st.session_state[key] = "" if known else view.model
    st.text_input(
        words(f"sidebar.model.{label}"), key=key, on_change=_load_typed, args=(key,), help=note
    )
    st.button(words("sidebar.model.load"), key=f"{key}.load", on_click=_load_typed, args=(key,))


def _load_typed(key: str) -> None:
    model = str(st.session_state[key]).strip()
    if model:
        session.forget_failure()
        st.session_state.pop("headscope.source", None)
        change_view(model=model, kind="")


def _model_card(info: ModelInfo, words: Words) -> None:
    lines = [
        words(
            "sidebar.card",
            n_layers=info.n_layers,
            n_heads=info.n_heads,
            parameters=quantities.count(info.parameters),
        )
    ]
    if info.languages:
        languages = literal(words.fact(info.languages))
        lines.append(words("sidebar.card.languages", languages=languages))
    if info.licence:
        lines.append(words("sidebar.card.licence", licence=literal(info.licence)))
    if info.note:
        lines.append(literal(words.fact(info.note)))
    if not info.ready:
        lines.append(words("sidebar.card.not_ready"))
    st.caption("  \n".join(lines))


def _text_box(words: Words) -> None:
    if "sidebar.text" not in st.session_state:
        st.session_state["sidebar.text"] = session.current_text()
    with st.form("sidebar.form", border=False, enter_to_submit=True):
        st.text_area(
            words("sidebar.text"),
            key="sidebar.text",
            height=116,
            placeholder=words("sidebar.text.placeholder"),
            help=words("sidebar.text.help"),
        )
        st.form_submit_button(
            words("sidebar.run"),
            key="sidebar.run",
            type="primary",
            width="stretch",
            on_click=_run_text,
        )
    st.selectbox(
        words("sidebar.examples"),
        list(EXAMPLES),
        index=None,
        format_func=words,
        placeholder=words("sidebar.examples.choose"),
        key="sidebar.example",
        on_change=_choose_example,
        label_visibility="collapsed",
    )
    view = current_view()
    keep_widget("sidebar.feed", view.feed)
    st.segmented_control(
        words("sidebar.feed"),
        _feeds(view.model, view.feed),
        format_func=lambda name: words(f"feed.{name}"),
        key="sidebar.feed",
        required=True,
        help=words("sidebar.feed.help"),
        on_change=changer("sidebar.feed", "feed", get_args(Feed)),
    )


def _feeds(model: str, chosen: str) -> list[str]:
    """Returns the ways of feeding that the model has, and the one in use."""
    info = _known(model)
    if info is None:
        return list(get_args(Feed))
    has = {"typed": True, "chat": info.has_chat_template, "prefix": bool(info.prefix)}
    return [feed for feed in get_args(Feed) if has[feed] or feed == chosen]


def _known(model: str) -> ModelInfo | None:
    """Returns what is known of a model: as loaded when it was, else as embedded."""
    info = st.session_state.get("headscope.info")
    if isinstance(info, ModelInfo) and info.id == model:
        return info
    return session.known_model(model)


def _run_text() -> None:
    session.set_text(str(st.session_state["sidebar.text"] or ""))


def _choose_example() -> None:
    chosen = st.session_state["sidebar.example"]
    if chosen in EXAMPLES:
        st.session_state["sidebar.text"] = EXAMPLES[chosen]
        session.set_text(EXAMPLES[chosen])
    st.session_state["sidebar.example"] = None


def _hardware(words: Words) -> None:
    view = current_view()
    with st.expander(words("sidebar.hardware"), key="sidebar.hardware"):
        for name, choices in (("device", get_args(Device)), ("dtype", get_args(Dtype))):
            key = f"sidebar.{name}"
            keep_widget(key, getattr(view, name))
            st.selectbox(
                words(f"sidebar.{name}"),
                choices,
                format_func=lambda c: words("sidebar.auto") if c == "auto" else str(c),
                key=key,
                on_change=changer(key, name, choices),
            )


@st.fragment(key=session.SHARE)
def _share(words: Words) -> None:
    st.markdown(words("share.view"))
    st.code(session.link(with_text=False), language=None, wrap_lines=True)
    st.markdown(words("share.text"))
    text = session.current_text()
    if len(text) > session.LINK_TEXT_CHARS:
        limit = session.LINK_TEXT_CHARS
        st.caption(words("share.too_long", characters=len(text), limit=limit))
    else:
        st.code(session.link(with_text=True), language=None, wrap_lines=True)
        st.caption(words("share.text_note"))


def map_toolbar(attention: AttentionResult, kinds: list[str], words: Words) -> None:
    """Draws which map is shown and how: one head or a mean, which head, scale, kind."""
    view = current_view()
    with st.container(horizontal=True, vertical_alignment="top", key="attention.toolbar"):
        _segments("view", VIEWS, "attention.view", words)
        limits = {"layer": attention.n_layers, "head": attention.n_heads}
        averaged = {"layer": view.view in ("layers", "all"), "head": view.view in ("heads", "all")}
        for name, limit in limits.items():
            key = f"attention.{name}"
            keep_widget(key, min(getattr(view, name), limit - 1))
            st.number_input(
                words(key),
                0,
                limit - 1,
                step=1,
                key=key,
                width=104,
                disabled=averaged[name],
                on_change=changer(key, name, range(limit), change_map),
            )
        _segments("scale", SCALES, "attention.scale", words)
        _segments("weighting", WEIGHTINGS, "attention.weighting", words)
        _segments("unit", UNITS, "attention.unit", words)
        if view.unit == "spans":
            _phrases(words)
        if len(kinds) > 1:
            _segments("kind", kinds, "attention.kind", words, current=attention.kind)


def _phrases(words: Words) -> None:
    kept = list(st.session_state.get("headscope.phrases", ()))
    keep_widget("attention.phrases", kept)
    st.multiselect(
        words("attention.phrases"),
        kept,
        key="attention.phrases",
        accept_new_options=True,
        max_selections=MAX_PHRASES,
        placeholder=words("attention.phrases.placeholder"),
        help=words("attention.phrases.help"),
        width=320,
        on_change=_keep_phrases,
    )


def _keep_phrases() -> None:
    st.session_state["headscope.phrases"] = tuple(st.session_state["attention.phrases"])
    session.redraw(session.MAPS)


def special_switch(words: Words) -> None:
    """Draws the switch that leaves special tokens out of every map."""
    keep_widget("attention.special", current_view().special == "hide")
    st.toggle(
        words("attention.special"),
        key="attention.special",
        help=words("attention.special.help"),
        on_change=_hide_special,
    )


def _segments(
    field: str, choices: tuple[str, ...] | list[str], label: str, words: Words, current: str = ""
) -> None:
    key = f"attention.{field}.choice"
    keep_widget(key, current or getattr(current_view(), field))
    st.segmented_control(
        words(label),
        choices,
        format_func=lambda name: words(f"{field}.{name}"),
        key=key,
        required=True,
        on_change=changer(key, field, choices, change_map),
    )


def _hide_special() -> None:
    change_map(special="hide" if st.session_state["attention.special"] else "show")
