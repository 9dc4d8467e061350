"""The files a map can be taken away as; nothing is made before somebody asks for it."""

import hashlib

import streamlit as st

from core import __version__
from core.results import AttentionResult
from pages.ui import canvas, export
from pages.ui.captured import Shown
from pages.ui.export import Sheet
from pages.ui.i18n import Words
from pages.ui.session import current_view

_png = st.components.v2.component(
    "headscope_png_button",
    html="<button type='button'></button>",
    css="""
button {
  width: 100%; min-height: 40px; padding: 4px 12px; border-radius: 8px; cursor: pointer;
  font: inherit; color: var(--st-text-color); background: transparent;
  border: 1px solid var(--st-border-color);
}
button:hover { border-color: var(--st-primary-color); color: var(--st-primary-color); }
""",
    js=(canvas.FOLDER / "png_button.js").read_text(encoding="utf-8"),
)


def facts_of(
    shown: Shown, attention: AttentionResult, layer: int | None, head: int | None
) -> dict[str, str]:
    """Returns what a file says about itself; the text only as a hash, it may be private."""
    model, view = shown.result.model, current_view()
    text = shown.request.texts[attention.text_index].encode("utf-8", "surrogatepass")
    return {
        "model": model.id,
        "revision": model.revision or "-",
        "dtype": model.dtype,
        "device": model.device,
        "backend": shown.result.backend,
        "kind": str(attention.kind),
        "layer": "mean" if layer is None else str(layer),
        "head": "mean" if head is None else str(head),
        "weights": view.weighting,
        "axes": view.unit,
        "special tokens": view.special,
        "random weights": "yes" if model.random_weights else "no",
        "text sha256": hashlib.sha256(text).hexdigest(),
        "made with": f"Headscope {__version__}",
    }


def export_panel(sheet: Sheet, words: Words) -> None:
    """Draws the line that opens the choice of files."""
    layer, head = sheet.facts["layer"], sheet.facts["head"]
    name = f"attention-layer-{layer}-head-{head}"
    # No popover: it closes with the click that opens another page, and its late report then stops
    # that page from being drawn (streamlit 1.67).
    opened = st.expander(words("export"), key="attention.export", on_change="rerun")
    if not opened.open:
        return
    with opened:
        st.caption(words("export.help"))
        for kind, mime, make in (
            ("csv", "text/csv", lambda: export.sheet_csv(sheet)),
            ("npz", "application/octet-stream", lambda: export.sheet_npz(sheet)),
            ("svg", "image/svg+xml", lambda: export.sheet_svg(sheet).encode()),
            ("html", "text/html", lambda: export.sheet_html(sheet, words.language).encode()),
        ):
            st.download_button(
                words(f"export.{kind}"),
                data=make,
                file_name=f"{name}.{kind}",
                mime=mime,
                key=f"export.{kind}",
                on_click="ignore",
                width="stretch",
            )
        data = {
            "svg": export.sheet_svg(sheet, as_picture=True),
            "name": f"{name}.png",
            "label": words("export.png"),
            "help": words("export.png.help"),
        }
        _png(data=data, key="export.png")
