"""BertViz's head view and model view as one HTML page: offline, safe, and small.

The package's own functions load their libraries from the internet, put tokens into a script
unescaped (a token `</script>` ends it) and write each weight twice with twenty characters
(bertviz 1.4.1). So only its two JavaScript files are used: with d3 and jQuery inside the page, data
as JSON that cannot end its element, and weights as one byte each. The page may load nothing (its
own security policy forbids it) and is shown from a data address, which has no access to ours.
"""

import base64
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pages.ui.safe import safe_json

View = Literal["head", "model"]

MAX_LINES: dict[View, int] = {"head": 50_000, "model": 150_000}
"""SVG lines of a view, one a weight: about 1.3 s and 2.8 s to paint on two cores."""

MAX_TOKENS: dict[View, int] = {"head": 128, "model": 64}
LABEL_CHARS = 13
"""BertViz leaves 110 px for a label and cuts what is longer at its beginning."""

_VENDOR = Path(__file__).parent / "vendor"
_LIBRARIES = ("jquery-3.7.1.slim.min.js", "d3-5.7.0.min.js")

# BertViz asks require.js for its libraries; they are here already.
_REQUIRE = "window.require={config(){}};window.requirejs=(names,run)=>run(window.jQuery,window.d3);"

_UNPACK = """
const headscopeParams = JSON.parse(document.getElementById("data").textContent);
{
  const bytes = Uint8Array.from(atob(headscopeParams.bytes), (c) => c.charCodeAt(0));
  const [layers, heads, rows, columns] = headscopeParams.shape;
  let at = 0;
  const list = (n, make) => Array.from({ length: n }, make);
  headscopeParams.attention[0].attn = list(layers, () => list(heads, () => list(rows, () =>
    list(columns, () => Math.round((bytes[at++] / 255) * 1000) / 1000))));
}
"""

_STYLE = """
body { margin: 0; background: #ffffff; color: #1c1e2b; }
body { font: 14px "Source Sans", "Helvetica Neue", Arial, "Noto Sans CJK SC", sans-serif; }
#controls { display: flex; gap: 14px; align-items: end; min-height: 28px; user-select: none; }
#heads { display: flex; }
#heads span { width: 20px; text-align: center; font-size: 11px; }
"""
_DARK = """
body { background: #13141c; color: #e6e7f2; color-scheme: dark; }
svg text { fill: #e6e7f2; }
#vis .background { fill: #3b3e55; }
svg, #vis rect[fill="black"] { fill: #13141c; }
"""


@dataclass(frozen=True)
class Maps:
    """What a view shows.

    Attributes:
        weights: [layer, head, query, key], 0..1.
        layers, heads: their numbers in the model.
        n_heads: of the model; the model view leaves room for all.
        query_labels, key_labels: tokens as people read them.
    """

    weights: NDArray[np.float32]
    layers: Sequence[int]
    heads: Sequence[int]
    n_heads: int
    query_labels: Sequence[str]
    key_labels: Sequence[str]


def most_tokens(view: View, n_layers: int, n_heads: int) -> int:
    """Returns how many tokens a view of so many heads can draw without keeping people waiting."""
    maps = n_heads if view == "head" else n_layers * n_heads
    return min(MAX_TOKENS[view], math.isqrt(MAX_LINES[view] // max(1, maps)))


def view_html(view: View, maps: Maps, *, layer: int, layer_word: str, dark: bool) -> str:
    """Returns a page that needs nothing from anywhere.

    Args:
        layer: shown first in the head view, one of `maps.layers`.
        layer_word: in front of the head view's choice of layer.
    """
    params: dict[str, Any] = {
        "attention": [
            {
                "name": None,
                "left_text": [_cut(label) for label in maps.query_labels],
                "right_text": [_cut(label) for label in maps.key_labels],
            }
        ],
        "default_filter": "0",
        "root_div_id": "bertviz",
        "include_layers": list(maps.layers),
        "shape": maps.weights.shape,
        "bytes": _bytes(maps.weights),
    }
    controls = ""
    if view == "head":
        params |= {"layer": layer, "heads": None}
        numbers = "".join(f"<span>{int(head)}</span>" for head in maps.heads)
        controls = (
            f'<div id="controls"><label>{_escaped(layer_word)} <select id="layer"></select></label>'
            f"</div><div id=heads>{numbers}</div>"
        )
    else:
        params |= {
            "display_mode": "dark" if dark else "light",
            "include_heads": list(maps.heads),
            "total_heads": maps.n_heads,
        }
    # The first mark is the one that is read; another stands in a comment.
    script = _bertviz(f"{view}_view.js").replace("PYTHON_PARAMS", "headscopeParams", 1)
    libraries = "".join(f"<script>{_vendored(name)}</script>" for name in _LIBRARIES)
    return (
        "<!doctype html><meta charset=utf-8>"
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "script-src 'unsafe-inline'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}{_DARK if dark else ''}</style>{libraries}<script>{_REQUIRE}</script>"
        f'<div id="bertviz">{controls}<div id="vis"></div></div>'
        f'<script type="application/json" id="data">{safe_json(params)}</script>'
        f"<script>{_UNPACK}</script><script>{script}</script>"
    )


def view_height(view: View, maps: Maps) -> int:
    """Returns the pixels a view takes (the sizes are BertViz's own)."""
    n_tokens = max(len(maps.query_labels), len(maps.key_labels))
    if view == "head":
        return math.ceil(30 + 22.5 * n_tokens) + 64
    thumbnails = len(maps.layers) * (n_tokens * 84 / maps.n_heads + 10) + 38
    return math.ceil(max(thumbnails, 18 * n_tokens + 55)) + 24


def data_address(html: str) -> str:
    """Returns a page as an address of its own, so that it has no access to the page around it."""
    return "data:text/html;charset=utf-8;base64," + base64.b64encode(html.encode()).decode("ascii")


def _bytes(weights: NDArray[np.float32]) -> str:
    # Weights of a broken model may be NaN; they are drawn as nothing, the metrics name it.
    wide = np.clip(np.nan_to_num(weights), 0, 1)
    return base64.b64encode(np.rint(255 * wide).astype(np.uint8).tobytes()).decode("ascii")


def _cut(label: str) -> str:
    return label if len(label) <= LABEL_CHARS else label[: LABEL_CHARS - 1] + "…"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


@cache
def _vendored(name: str) -> str:
    return (_VENDOR / name).read_text(encoding="utf-8")


@cache
def _bertviz(name: str) -> str:
    # Importing the package would take a second and a half for nothing.
    found = importlib.util.find_spec("bertviz")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / name).read_text(encoding="utf-8")
