"""Facts about the model that is loaded, its tokens, and where to go next."""

import numpy as np
import pandas as pd
import streamlit as st

from core.results import AttentionResult, CaptureResult, ModelInfo
from pages.ui import quantities
from pages.ui.i18n import Words
from pages.ui.messages import literal
from pages.ui.session import current_view, view_params
from pages.ui.token_chips import ChipLine, chip_data, show_chips


def model_facts(result: CaptureResult, words: Words) -> list[tuple[str, str]]:
    """Returns name and value of every fact worth a line, in reading order."""
    info = result.model
    facts = [("fact.family", info.family), ("fact.kind", words(f"fact.kind.{info.kind}"))]
    if info.random_weights:
        facts.append(("fact.weights", words("fact.weights.random")))
    shape = "fact.shape.both" if info.n_decoder_layers else "fact.shape.value"
    facts += [
        (
            "fact.shape",
            words(
                shape,
                n_layers=info.n_layers,
                n_decoder_layers=info.n_decoder_layers,
                n_heads=info.n_heads,
            ),
        ),
        ("fact.groups", _groups(info, words)),
        ("fact.head_dim", str(info.head_dim)),
        ("fact.d_model", str(info.d_model)),
        ("fact.parameters", quantities.count(info.parameters)),
        ("fact.vocabulary", f"{info.vocab_size:,}"),
        ("fact.attention", words.fact(info.attention)),
        ("fact.norm", words(f"fact.norm.{info.norm}") if info.norm in ("pre", "post") else ""),
        ("fact.position", words.fact(info.position)),
        ("fact.max_tokens", _limit(info, words)),
        ("fact.prefix", f"“{info.prefix}”" if info.prefix else words("fact.no")),
        ("fact.chat", words("fact.yes" if info.has_chat_template else "fact.no")),
        ("fact.offsets", words("fact.yes" if info.has_offsets else "fact.no")),
        ("fact.runs", f"{info.device.upper()} {info.dtype}".strip()),
        ("fact.backend", words(f"backend.{result.backend}")),
        ("fact.licence", info.licence),
        ("fact.languages", words.fact(info.languages)),
        ("fact.revision", info.revision),
        ("fact.note", words.fact(info.note)),
    ]
    kept_empty = ("fact.norm", "fact.position", "fact.attention")
    return [
        (words(name), value or words("fact.unknown"))
        for name, value in facts
        if value or name in kept_empty
    ]


def _groups(info: ModelInfo, words: Words) -> str:
    if info.n_kv_heads in (0, info.n_heads):
        return words("fact.groups.none", n_kv_heads=info.n_heads)
    size = info.n_heads // info.n_kv_heads
    return words("fact.groups.some", n_kv_heads=info.n_kv_heads, size=size)


def _limit(info: ModelInfo, words: Words) -> str:
    if info.max_tokens is None:
        return words("fact.max_tokens.none")
    count = f"{info.max_tokens:,}"
    if info.max_tokens_source:
        return words("fact.max_tokens.source", count=count, source=info.max_tokens_source)
    return words("fact.max_tokens.value", count=count)


def facts_panel(result: CaptureResult, words: Words) -> None:
    """Draws the table of facts."""
    facts = model_facts(result, words)
    names = [words("overview.fact"), words("overview.value")]
    # Cells of this table are Markdown and wrap; a data frame would cut long facts off.
    table = pd.DataFrame([(name, literal(value)) for name, value in facts], columns=names)
    st.table(table.set_index(names[0]), border="horizontal")


def tokens_panel(attention: AttentionResult, words: Words, *, dark: bool) -> None:
    """Draws the tokens as chips, and their ids and places as a table on demand."""
    tokens = attention.key_tokens
    line = ChipLine(
        axis="key",
        name="",
        label=words("overview.tokens"),
        tokens=tokens,
        index=range(len(tokens)),
        weights=None,
        chosen=None,
    )
    show_chips(chip_data([line], dark=dark, clickable=False), key="overview.chips")
    st.caption(words("overview.tokens.how", count=len(tokens)))
    with st.expander(words("overview.tokens.table"), key="overview.tokens.table"):
        rows = [
            {
                words("overview.tokens.index"): i,
                words("overview.tokens.token"): token.text,
                words("overview.tokens.id"): token.id,
                words("overview.tokens.place"): "–"
                if token.offset is None
                else f"{token.offset[0]}–{token.offset[1]}",
                words("overview.tokens.special"): token.is_special,
            }
            for i, token in enumerate(tokens)
        ]
        st.dataframe(pd.DataFrame(rows), hide_index=True, key="overview.tokens")


def next_tokens_panel(result: CaptureResult, words: Words) -> None:
    """Draws the most likely next tokens, or says why there are none."""
    top = next((t.top_tokens for t in result.texts if t.top_tokens), ())
    if not top:
        st.caption(words("overview.next.none"))
        return
    name, probability = words("overview.next.token"), words("overview.next.probability")
    table = pd.DataFrame({name: [t for t, _ in top], probability: [100 * p for _, p in top]})
    bars = st.column_config.ProgressColumn(
        probability, format="%.1f %%", min_value=0.0, max_value=100.0
    )
    st.dataframe(table, hide_index=True, column_config={probability: bars}, key="overview.next")
    st.caption(words("overview.next.how"))


def strongest(attention: AttentionResult, metric: str) -> tuple[int, int, float] | None:
    """Returns layer, head and value of the head that scores highest, None when undefined."""
    values = np.asarray(attention.metrics.get(metric, np.array([])), dtype=np.float64)
    if not np.isfinite(values).any():
        return None
    layer, head = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return int(layer), int(head), float(values[layer, head])


def next_cards(attention: AttentionResult, words: Words, page: object) -> None:
    """Draws the cards that each open a prepared view of the attention page."""
    view = current_view()
    count = attention.n_layers * attention.n_heads
    cards = [("map", words("overview.card.map.text", count=count), view_params(view))]
    for name, metric in (("sink", "first_token_mass"), ("previous", "previous_mass")):
        found = strongest(attention, metric)
        if found is None:
            continue
        layer, head, value = found
        place = {"layer": str(layer), "head": str(head), "colour": metric}
        text = words(
            f"overview.card.{name}.text", layer=layer, head=head, share=quantities.share(value)
        )
        params = {k: v for k, v in view_params(view).items() if k != "view"}
        cards.append((name, text, params | place))
    for column, (name, text, params) in zip(st.columns(len(cards)), cards, strict=True):
        with column, st.container(border=True, height="stretch", key=f"overview.card.{name}"):
            st.markdown(f"**{words(f'overview.card.{name}')}**")
            st.caption(text)
            st.page_link(
                page,  # type: ignore[arg-type]
                label=words("overview.card.open"),
                icon=":material/arrow_forward:",
                query_params=params,
            )
