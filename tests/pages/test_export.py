"""Every file is opened again and held against what was shown."""

import base64
import csv
import io
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from core.results import MapRequest
from pages.ui import charts, export
from pages.ui.export import Sheet
from tests.fakes import FakeService
from tests.pages.test_attention import OpenApp, type_text

SVG = "{http://www.w3.org/2000/svg}"
FACTS = {"model": "m,1", "revision": "abc", "text sha256": "00ff", "made with": "Headscope"}
LABELS = ["0 <s>", '1 </script><b>"x"', "2 苹果, =1+1", "3 \x00\x1b&amp;"]


def sheet(n: int = 4, scale: charts.Scale = "linear", top: float = 1.0) -> Sheet:
    weights = np.random.default_rng(0).random((n, n)).astype(np.float32)
    labels = LABELS if n == 4 else [f"{i} w" for i in range(n)]
    return Sheet(
        weights,
        labels,
        labels,
        "Layer <1>",
        "weight",
        "query",
        "key",
        "how & why",
        scale,
        top,
        FACTS,
    )


def test_csv_holds_every_weight_and_the_facts() -> None:
    shown = sheet()
    rows = list(csv.reader(io.StringIO(export.sheet_csv(shown).decode("utf-8-sig"))))
    assert json.loads(rows[0][0].removeprefix("query \\ key ")) == FACTS
    assert rows[0][1:] == LABELS == [row[0] for row in rows[1:]]
    found = np.array([[float(w) for w in row[1:]] for row in rows[1:]], dtype=np.float32)
    np.testing.assert_allclose(found, shown.weights, rtol=1e-6)


def test_npz_is_the_data_itself_and_needs_no_pickle() -> None:
    shown = sheet()
    with np.load(io.BytesIO(export.sheet_npz(shown)), allow_pickle=False) as found:
        np.testing.assert_array_equal(found["weights"], shown.weights)
        # numpy drops zeros at the end of a text; there are none.
        assert found["query_labels"].tolist() == LABELS == found["key_labels"].tolist()
        assert json.loads(str(found["facts"])) == FACTS


@pytest.mark.parametrize("scale", ["linear", "sqrt", "row"])
def test_svg_shows_each_weight_in_its_colour(scale: charts.Scale) -> None:
    shown = sheet(scale=scale)
    root = ET.fromstring(export.sheet_svg(shown))
    cells = root.find(f"{SVG}g[@id='cells']").findall(f"{SVG}rect")[:-1]
    assert len(cells) == 16
    top = shown.weights.max(1) if scale == "row" else np.ones(4)
    for at, cell in enumerate(cells):
        row, column = divmod(at, 4)
        weight = float(cell.find(f"{SVG}title").text.rsplit(": ", 1)[1])
        assert weight == pytest.approx(shown.weights[row, column], rel=1e-6)
        share = shown.weights[row, column] / top[row]
        share = share**0.5 if scale == "sqrt" else share
        # The colour of a share, worked out here from the scale's own stops.
        at_stop = next(i for i in range(4) if share <= charts.LIGHT_STOPS[i + 1][0])
        (a, low), (b, high) = charts.LIGHT_STOPS[at_stop : at_stop + 2]
        for channel in (1, 3, 5):
            x, y = int(low[channel : channel + 2], 16), int(high[channel : channel + 2], 16)
            expected = x + (y - x) * (share - a) / (b - a)
            assert int(cell.get("fill")[channel : channel + 2], 16) == pytest.approx(
                expected, abs=1
            )
    texts = [t.text for t in root.iter(f"{SVG}text")]
    for wanted in ("Layer <1>", "query", "key", "weight", "0 <s>", "2 苹果, =1+1"):
        assert wanted in texts
    assert "abc" in " ".join(texts)
    assert json.loads(root.find(f"{SVG}metadata").text) == FACTS


def test_a_large_svg_holds_one_picture_of_the_weights() -> None:
    shown = sheet(90)
    root = ET.fromstring(export.sheet_svg(shown))
    address = next(root.iter(f"{SVG}image")).get("href")
    picture = Image.open(io.BytesIO(base64.b64decode(address.split(",", 1)[1])))
    assert picture.size == (90, 90)
    np.testing.assert_array_equal(np.asarray(picture), charts.colours(shown.weights, dark=False))
    labels = [t.text for t in root.iter(f"{SVG}text") if t.text.endswith(" w")]
    assert len(labels) < 2 * 90


def test_hidden_cells_are_grey_and_null() -> None:
    shown = sheet()
    shown.weights[1, 2] = np.nan
    assert export.colours(shown)[1, 2].tolist() == [0xEC, 0xEE, 0xF4]
    assert data_of(export.sheet_html(shown, "en"))["weights"][1][2] is None


def data_of(page: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])


def test_the_page_holds_the_weights_and_no_token_as_markup() -> None:
    shown = sheet()
    page = export.sheet_html(shown, "zh")
    data = data_of(page)
    np.testing.assert_allclose(data["weights"], shown.weights, rtol=1e-6)
    assert data["query_labels"] == LABELS
    assert data["facts"] == FACTS
    assert "default-src 'none'" in page
    assert page.count("<script") == 2
    assert "<b>" not in page
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_nothing_is_made_before_somebody_asks(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise AssertionError("a file was made for nobody")

    for name in ("sheet_svg", "sheet_html", "sheet_csv", "sheet_npz"):
        monkeypatch.setattr(export, name, fail)
    app: AppTest = type_text(open_app(), "one two three")
    assert not app.exception


def test_the_facts_name_model_layer_and_text(open_app: OpenApp, fake: FakeService) -> None:
    made: list[Sheet] = []
    from pages.ui import map_panel

    original = map_panel.export_panel
    map_panel.export_panel = lambda s, w: made.append(s)
    try:
        type_text(open_app(model="minilm-en", layer="4", head="7"), "one two three")
    finally:
        map_panel.export_panel = original
    shown = made[-1]
    assert shown.facts["model"] == "minilm-en"
    assert (shown.facts["layer"], shown.facts["head"]) == ("4", "7")
    # printf 'one two three' | sha256sum
    assert shown.facts["text sha256"].startswith("6899ee404683a14e")
    expected = fake.head_map(MapRequest(fake.runs[-1], layer=4, head=7)).weights
    np.testing.assert_array_equal(shown.weights, expected)
