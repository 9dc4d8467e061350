"""What one token looks at, who looks at it, and the figures of the chosen head."""

import numpy as np
import pandas as pd
import streamlit as st

from core.results import AttentionResult, FloatArray, MapResult, Token
from pages.ui import map_panel, quantities, session
from pages.ui.captured import Shown, was_cancelled, working
from pages.ui.i18n import Words
from pages.ui.messages import literal
from pages.ui.session import current_view
from pages.ui.token_chips import Axis, ChipLine, chip_data, show_chips

SHARES = frozenset(
    {
        "max_weight",
        "diagonal_mass",
        "previous_mass",
        "next_mass",
        "position_bias_max",
        "first_token_mass",
        "block_coverage",
        "uniform_rows",
        "induction_score",
        "sink_logit_mass",
    }
)
"""Metrics that are shares of a weight or of rows, printed as percentages."""


@st.fragment
def inspector(
    shown: Shown, attention: AttentionResult, whole: MapResult | None, words: Words, *, dark: bool
) -> None:
    """Draws the sentence twice; a click on a token redraws this part of the page alone."""
    if was_cancelled(shown, words):
        return
    query, key = _chosen(attention, whole)
    if query is None or key is None:
        return
    with working(shown, words, key="chips.progress") as shown:
        rows, columns, row, column, outside = _row_and_column(shown, attention, whole, query, key)
    query_text = attention.query_tokens[query].text
    key_text = attention.key_tokens[key].text
    is_share = session.current_weighting() != "norm"
    lines = [
        ChipLine(
            axis="key",
            name=words("chips.keys_of", token=query_text),
            label=words("chips.label.keys"),
            tokens=attention.key_tokens,
            index=columns,
            weights=row,
            chosen=key,
            is_share=is_share,
        ),
        ChipLine(
            axis="query",
            name=words("chips.queries_of", token=key_text),
            label=words("chips.label.queries"),
            tokens=attention.query_tokens,
            index=rows,
            weights=column,
            chosen=query,
            is_share=is_share,
        ),
    ]
    show_chips(
        chip_data(lines, dark=dark),
        key="attention.chips",
        on_choose=lambda axis, index: _choose(attention, axis, index),
    )
    note = words("chips.how")
    if whole is None:
        note += " " + words(
            "chips.part", start=columns[0], stop=columns[-1], count=len(attention.key_tokens)
        )
        st.caption(note)
        if is_share:
            st.text(words("chips.outside", token=query_text, share=quantities.share(outside)))
    else:
        st.caption(note)


def _choose(attention: AttentionResult, axis: Axis, index: int) -> None:
    chosen = dict(st.session_state.get("headscope.token", {}))
    axes = (axis,) if attention.kind == "cross" else ("query", "key")
    chosen.update(dict.fromkeys(axes, index))
    st.session_state["headscope.token"] = chosen


def _chosen(attention: AttentionResult, whole: MapResult | None) -> tuple[int | None, int | None]:
    rows, keys = map_panel.part_windows(attention)
    queries = whole.query_index if whole is not None else range(*rows)
    columns = whole.key_index if whole is not None else range(*keys)
    chosen = st.session_state.get("headscope.token", {})
    query = _settle(chosen.get("query"), queries, attention.query_tokens)
    key = _settle(chosen.get("key"), columns, attention.key_tokens)
    if attention.kind != "cross" and "key" not in chosen and query in columns:
        key = query
    return query, key


def _settle(
    index: int | None, shown: range | tuple[int, ...], tokens: tuple[Token, ...]
) -> int | None:
    """Returns the chosen position when it is shown, else the last ordinary token there is."""
    if index is not None and index in shown:
        return index
    ordinary = [i for i in shown if not tokens[i].is_special]
    return ordinary[-1] if ordinary else (shown[0] if len(shown) else None)


def _row_and_column(
    shown: Shown, attention: AttentionResult, whole: MapResult | None, query: int, key: int
) -> tuple[list[int], list[int], FloatArray, FloatArray, float]:
    """Returns shown queries and keys, the two lines of weights, and the row's share not shown."""
    if whole is not None:
        return (
            list(whole.query_index),
            list(whole.key_index),
            whole.weights[whole.query_index.index(query)],
            whole.weights[:, whole.key_index.index(key)],
            0.0,
        )
    rows, keys = map_panel.part_windows(attention)
    service = session.service()
    across = service.head_map(
        map_panel.map_request(shown, attention, (query, query + 1), None), progress=shown.report
    )
    down = map_panel.exact_part(shown, attention, rows, (key, key + 1))
    at = [i for i, k in enumerate(across.key_index) if keys[0] <= k < keys[1]]
    line: FloatArray = np.zeros(len(across.key_index))
    column: FloatArray = np.zeros(len(down.query_index))
    if across.weights.size:
        line = across.weights[0]
    if down.weights.size:
        column = down.weights[:, 0]
    outside = float(line.sum() - line[at].sum())
    columns = [across.key_index[i] for i in at]
    return list(down.query_index), columns, line[at], column, max(0.0, outside)


def metrics_table(attention: AttentionResult, layer: int, head: int, words: Words) -> pd.DataFrame:
    """Returns the figures of one head beside those of all heads, ready to read."""
    rows = []
    for name, values in attention.metrics.items():
        wide = np.asarray(values, dtype=np.float64)
        known = wide[np.isfinite(wide)]
        if not known.size:
            continue
        spread = f"{_figure(name, float(known.min()))} – {_figure(name, float(known.max()))}"
        rows.append(
            {
                words("attention.metrics.name"): words.metric(name),
                words("attention.metrics.value"): _figure(name, float(wide[layer, head])),
                words("attention.metrics.median"): _figure(name, float(np.median(known))),
                words("attention.metrics.range"): spread,
                words("attention.metrics.meaning"): words.metric_help(name),
            }
        )
    return pd.DataFrame(rows)


def _figure(name: str, value: float) -> str:
    return quantities.share(value) if name in SHARES else quantities.significant(value)


def metrics_panel(attention: AttentionResult, words: Words) -> None:
    """Draws the table of figures, or says why a mean map has none."""
    st.subheader(words("attention.metrics"), anchor=False)
    view = current_view()
    if view.view != "head":
        st.caption(words("attention.metrics.mean"))
        return
    place = map_panel.chosen_place(attention)
    table = metrics_table(attention, place.layer or 0, place.head or 0, words)
    st.dataframe(table, hide_index=True, key="attention.metrics", height="content")
    missing = [n for n, v in attention.metrics.items() if not np.isfinite(v).any()]
    if missing:
        names = ", ".join(words.metric(n) for n in missing)
        st.caption(literal(words("attention.metrics.note", names=names)))
