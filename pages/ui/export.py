"""A map as a file: CSV, NPZ, SVG for print, and a page that opens without a network.

Every file says what it shows and where it comes from. Tokens are data in all of them: the SVG is
built as a tree, the page holds them as JSON that cannot end its element.
"""

import base64
import csv
import io
import json
import math
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.results import FloatArray
from pages.ui import charts
from pages.ui.safe import printable, safe_json

PLOT_PX = 640
MOST_CELL_PX = 28
MOST_RECTANGLES = 64 * 64
"""Up to here every cell is a shape of its own, with its weight; above, the map is one picture."""

_SVG = "http://www.w3.org/2000/svg"
_HIDDEN = "#eceef4"
_INK, _GREY = "#1c1e2b", "#5b5f73"


@dataclass(frozen=True)
class Sheet:
    """What is shown, ready for a file.

    Attributes:
        weights: [query, key], NaN where nothing is shown.
        top: weight of the last colour.
        facts: name -> value: model, revision, precision, layer, head and the like.
    """

    weights: FloatArray
    query_labels: Sequence[str]
    key_labels: Sequence[str]
    title: str
    legend: str
    query_axis: str
    key_axis: str
    how: str
    scale: charts.Scale
    top: float
    facts: Mapping[str, str]


def sheet_csv(sheet: Sheet) -> bytes:
    """Returns keys across, one row a query; the corner cell holds the facts as JSON.

    Labels start with their index, so no spreadsheet takes a token for a formula.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    corner = "query \\ key " + json.dumps(dict(sheet.facts), ensure_ascii=False)
    writer.writerow([corner, *sheet.key_labels])
    for label, row in zip(sheet.query_labels, sheet.weights, strict=True):
        writer.writerow([label, *(f"{float(w):.7g}" for w in row)])
    # Spreadsheets take a file without this mark for the local encoding and break Chinese.
    return out.getvalue().encode("utf-8-sig")


def sheet_npz(sheet: Sheet) -> bytes:
    """Returns weights (float32), both lists of labels, and the facts as JSON; no pickles."""
    out = io.BytesIO()
    np.savez_compressed(
        out,
        weights=np.asarray(sheet.weights, dtype=np.float32),
        query_labels=np.array(sheet.query_labels, dtype=np.str_),
        key_labels=np.array(sheet.key_labels, dtype=np.str_),
        facts=np.array(json.dumps(dict(sheet.facts), ensure_ascii=False)),
    )
    return out.getvalue()


def colours(sheet: Sheet) -> np.ndarray:
    """Returns the colours [query, key, 3] of a sheet, bytes of red, green and blue."""
    weights = np.asarray(sheet.weights, dtype=np.float64)
    top: FloatArray | float = sheet.top
    if sheet.scale == "row":
        top = np.nan_to_num(weights).max(axis=1, keepdims=True, initial=0)
    shares = np.divide(weights, top, out=np.zeros_like(weights), where=np.asarray(top) > 0)
    if sheet.scale == "sqrt":
        shares = np.sqrt(shares)
    found = charts.colours(np.nan_to_num(shares), dark=False)
    found[np.isnan(weights)] = [int(_HIDDEN[i : i + 2], 16) for i in (1, 3, 5)]
    return found


def sheet_svg(sheet: Sheet, *, as_picture: bool = False) -> str:
    """Returns the map as an SVG for print: title, axes, legend, and the facts below.

    Args:
        as_picture: draw the cells as one picture even where there are few (smaller to send).
    """
    n_query, n_key = sheet.weights.shape
    cell = min(MOST_CELL_PX, PLOT_PX / max(n_query, n_key, 1))
    wide, high = cell * n_key, cell * n_query
    left = 44 + charts.label_width(sheet.query_labels, 11)
    top = 64
    below = 0.71 * (charts.label_width(sheet.key_labels, 11) + 11) + 34
    width = left + max(wide, 420) + 24
    facts = "; ".join(f"{name}: {value}" for name, value in sheet.facts.items())
    lines = textwrap.wrap(printable(facts), max(40, int(width / 5.2)))
    height = top + high + below + 13 * len(lines) + 10
    size = {"width": _px(width), "height": _px(height), "viewBox": f"0 0 {width:.0f} {height:.0f}"}
    font = "'Source Sans 3', 'Helvetica Neue', Arial, 'Noto Sans CJK SC', sans-serif"
    root = ET.Element("svg", {"xmlns": _SVG, **size, "font-family": font, "fill": _INK})
    ET.SubElement(root, "title").text = printable(sheet.title)
    ET.SubElement(root, "metadata").text = printable(json.dumps(dict(sheet.facts)))
    ET.SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": "#ffffff"})
    _text(root, sheet.title, 12, 24, 16, {"font-weight": "600"})
    _legend(root, sheet, left + max(wide, 420))
    cells = ET.SubElement(root, "g", {"id": "cells", "transform": f"translate({left:.1f} {top})"})
    if n_query * n_key <= MOST_RECTANGLES and not as_picture:
        _rectangles(cells, sheet, cell)
    else:
        _one_picture(cells, sheet, wide, high)
    frame = {"width": _px(wide), "height": _px(high), "fill": "none", "stroke": "#c9cbd8"}
    ET.SubElement(cells, "rect", frame)
    step = math.ceil(12 / cell)
    for i in range(0, n_query, step):
        y = top + (i + 0.5) * cell + 4
        _text(root, sheet.query_labels[i], left - 6, y, 11, {"text-anchor": "end"})
    for i in range(0, n_key, step):
        x, y = left + (i + 0.5) * cell + 4, top + high + 12
        turn = {"text-anchor": "end", "transform": f"rotate(-45 {x:.1f} {y:.1f})"}
        _text(root, sheet.key_labels[i], x, y, 11, turn)
    middle = {"text-anchor": "middle"}
    _text(root, sheet.key_axis, left + wide / 2, top + high + below - 8, 12, middle)
    y = top + high / 2
    _text(root, sheet.query_axis, 16, y, 12, middle | {"transform": f"rotate(-90 16 {y:.1f})"})
    for i, line in enumerate(lines):
        _text(root, line, 12, top + high + below + 13 * (i + 1), 10, {"fill": _GREY})
    return ET.tostring(root, encoding="unicode")


def _text(root: ET.Element, text: str, x: float, y: float, size: int, more: dict[str, str]) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "font-size": str(size)}
    ET.SubElement(root, "text", place | more).text = printable(text)


def _px(value: float) -> str:
    return f"{value:.1f}"


def _legend(root: ET.Element, sheet: Sheet, right: float) -> None:
    fade = ET.SubElement(ET.SubElement(root, "defs"), "linearGradient", {"id": "fade"})
    for at, colour in charts.colour_scale(sheet.scale, dark=False):
        ET.SubElement(fade, "stop", {"offset": f"{at:.4f}", "stop-color": colour})
    bar = {"x": _px(right - 160), "y": "44", "width": "110", "height": "8", "fill": "url(#fade)"}
    ET.SubElement(root, "rect", bar | {"stroke": "#c9cbd8"})
    _text(root, sheet.legend, right - 50, 38, 11, {"text-anchor": "end", "fill": _GREY})
    _text(root, "0", right - 166, 52, 11, {"text-anchor": "end", "fill": _GREY})
    end = "max" if sheet.scale == "row" else f"{sheet.top:.3g}"
    _text(root, end, right - 44, 52, 11, {"fill": _GREY})


def _rectangles(cells: ET.Element, sheet: Sheet, cell: float) -> None:
    for i, row in enumerate(colours(sheet)):
        for j, (red, green, blue) in enumerate(row):
            place = {
                "x": _px(j * cell),
                "y": _px(i * cell),
                "width": _px(cell),
                "height": _px(cell),
            }
            fill = {"fill": f"#{red:02x}{green:02x}{blue:02x}"}
            shape = ET.SubElement(cells, "rect", place | fill)
            weight = float(sheet.weights[i, j])
            words = f"{sheet.query_labels[i]} → {sheet.key_labels[j]}: {weight:.7g}"
            ET.SubElement(shape, "title").text = printable(words)


def _one_picture(cells: ET.Element, sheet: Sheet, wide: float, high: float) -> None:
    picture = base64.b64encode(charts.png(colours(sheet))).decode("ascii")
    size = {"width": _px(wide), "height": _px(high), "preserveAspectRatio": "none"}
    style = {"style": "image-rendering: pixelated"}
    ET.SubElement(cells, "image", size | style | {"href": f"data:image/png;base64,{picture}"})


_PAGE_STYLE = """
body { max-width: 900px; margin: 24px auto; padding: 0 16px; color: #1c1e2b; background: #fff;
  font: 15px/1.5 "Source Sans 3", "Helvetica Neue", Arial, "Noto Sans CJK SC", sans-serif; }
figure { margin: 0; overflow: auto; }
#where { min-height: 1.5em; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; font-size: 13px; } td, th { padding: 3px 12px 3px 0; }
th { text-align: left; font-weight: 600; } td { overflow-wrap: anywhere; } p { color: #5b5f73; }
"""

_PAGE_SCRIPT = """
const sheet = JSON.parse(document.getElementById("data").textContent);
const cells = document.getElementById("cells");
const where = document.getElementById("where");
cells.addEventListener("pointermove", (event) => {
  const box = cells.lastElementChild.getBoundingClientRect();
  const at = (share, n) => Math.max(0, Math.min(n - 1, Math.floor(share * n)));
  const row = at((event.clientY - box.top) / box.height, sheet.query_labels.length);
  const column = at((event.clientX - box.left) / box.width, sheet.key_labels.length);
  const weight = sheet.weights[row][column] ?? "-";
  where.textContent = `${sheet.query_labels[row]} \\u2192 ${sheet.key_labels[column]}: ${weight}`;
});
"""


def sheet_html(sheet: Sheet, language: str) -> str:
    """Returns one page with the map, its weights under the pointer, and the facts as a table."""
    data = {
        "weights": [[_number(w) for w in row] for row in sheet.weights],
        "query_labels": list(sheet.query_labels),
        "key_labels": list(sheet.key_labels),
        "facts": dict(sheet.facts),
    }
    table = ET.Element("table")
    for name, value in sheet.facts.items():
        row = ET.SubElement(table, "tr")
        ET.SubElement(row, "th").text = printable(name)
        ET.SubElement(row, "td").text = printable(value)
    title, how = ET.Element("title"), ET.Element("p")
    title.text, how.text = printable(sheet.title), printable(sheet.how)
    parts = [ET.tostring(part, encoding="unicode", method="html") for part in (title, how, table)]
    return (
        f'<!doctype html><html lang="{language}"><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "script-src 'unsafe-inline'; style-src 'unsafe-inline'\">"
        f"{parts[0]}<style>{_PAGE_STYLE}</style><figure>{sheet_svg(sheet)}</figure>"
        f'<div id="where" aria-live="polite"></div>{parts[1]}{parts[2]}'
        f'<script type="application/json" id="data">{safe_json(data)}</script>'
        f"<script>{_PAGE_SCRIPT}</script></html>"
    )


def _number(weight: float) -> float | None:
    return float(f"{float(weight):.7g}") if math.isfinite(weight) else None
