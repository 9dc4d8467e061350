"""Files as a browser makes and opens them: the PNG, and the page that needs no network."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from core.results import CaptureRequest, ModelRequest
from pages.ui import charts
from tests.browser.test_attention import MARKUP, run_text
from tests.fakes import weights

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Page]


def save(page: Page, kind: str, folder: Path) -> Path:
    button = page.get_by_role("button", name=f"{kind} (")
    if not button.is_visible():
        page.get_by_text("Download", exact=True).click()
    with page.expect_download() as download:
        button.click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_the_png_is_the_map_three_times_as_large(
    open_page: OpenPage, fake_url: str, tmp_path: Path
) -> None:
    page = open_page(f"{fake_url}/?layer=2&head=5")
    run_text(page, "one two three four five six")
    path = save(page, "PNG", tmp_path)
    assert path.name == "attention-layer-2-head-5.png"
    request = CaptureRequest(
        ModelRequest("e5-small-multilingual"), ("one two three four five six",)
    )
    expected = charts.colours(weights(request, "encoder", 2, 5, 8, 8), dark=False).astype(int)
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    # The frame of the map is a grey line; its cells are 28 px wide.
    side, scale = 28, 3
    left = 44 + charts.label_width([f"{i} {t}" for i, t in enumerate(SHOWN)], 11)
    for row in range(8):
        for column in range(8):
            y = round(scale * (64 + (row + 0.5) * side))
            x = round(scale * (left + (column + 0.5) * side))
            assert np.abs(picture[y, x] - expected[row, column]).max() <= 2, (row, column)


SHOWN = ["<s>", "one", "two", "three", "four", "five", "six", "</s>"]


def test_the_page_opens_alone_and_tells_the_weight_under_the_pointer(
    open_page: OpenPage, fake_url: str, tmp_path: Path, browser: Browser
) -> None:
    page = open_page(f"{fake_url}/?layer=1&head=3")
    run_text(page, " ".join(MARKUP))
    table = save(page, "CSV", tmp_path)
    rows = list(csv.reader(io.StringIO(table.read_text(encoding="utf-8-sig"))))
    path = save(page, "HTML", tmp_path)
    context = browser.new_context(offline=True)
    alone, troubles = context.new_page(), []
    alone.on("console", lambda m: troubles.append(m.text) if m.type == "error" else None)
    alone.on("pageerror", lambda error: troubles.append(str(error)))
    alone.on("dialog", lambda dialog: (troubles.append("dialog"), dialog.dismiss()))
    asked = []
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto(path.as_uri())
    cell = alone.locator("#cells > rect").nth(3 * (len(rows) - 1) + 2)
    cell.hover()
    expect(alone.locator("#where")).to_have_text(
        f"{rows[4][0]} → {rows[0][3]}: {float(rows[4][3]):.7g}"
    )
    expect(alone.locator("td").filter(has_text="e5-small-multilingual")).to_be_visible()
    assert alone.locator("svg text").filter(has_text="<b>bold</b>").count() == 2
    context.close()
    assert not troubles
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
