"""BertViz's views in a real browser: nothing fetched, nothing run that is a token, true weights."""

import base64
import time
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import FrameLocator, Page, expect

from core.results import CaptureRequest, ModelRequest
from tests.browser.conftest import settled
from tests.browser.test_attention import MARKUP
from tests.browser.test_speed import REFERENCE_S, TOLERANCE, reference_s
from tests.fakes import weights

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Page]

TEXT = " ".join(f"word{i}" for i in range(62))
TOKENS = 64
SIZE_LIMIT = 2_000_000
PAINT_LIMIT_S = 3.0
WIDE = {"viewport": {"width": 1280, "height": 900}}


def run_text(page: Page, text: str) -> None:
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_timeout(500)
    settled(page)


def draw(page: Page, view: str) -> tuple[FrameLocator, float]:
    """Returns the view and when it was asked for."""
    form = page.get_by_text("Head view and model view")
    form.scroll_into_view_if_needed()
    if not page.get_by_role("button", name="Draw").is_visible():
        form.click()
    page.get_by_role("radio", name=view).click()
    start = time.monotonic()
    page.get_by_role("button", name="Draw").click()
    return page.frame_locator("iframe[src^='data:']"), start


def html_of(page: Page) -> str:
    address = page.locator("iframe[src^='data:']").get_attribute("src")
    return base64.b64decode(address.split(",", 1)[1]).decode()


def weight(layer: int, head: int) -> np.ndarray:
    request = CaptureRequest(ModelRequest("e5-small-multilingual"), (TEXT,))
    return weights(request, "encoder", layer, head, TOKENS, TOKENS)


def test_head_view_of_all_heads_is_small_quick_and_true(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(f"{fake_url}/?layer=2")
    run_text(page, TEXT)
    # On a busier or slower machine the limit grows in proportion.
    limit_s = PAINT_LIMIT_S * max(1.0, reference_s() / REFERENCE_S / TOLERANCE)
    frame, start = draw(page, "heads of a layer")
    expect(frame.locator("#attention line")).to_have_count(12 * TOKENS * TOKENS)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    seconds = time.monotonic() - start
    print(f"head view: {len(html_of(page)) / 1e6:.2f} MB, {seconds:.1f} s, limit {limit_s:.1f} s")  # noqa: T201
    assert seconds < limit_s
    assert len(html_of(page)) < SIZE_LIMIT
    labels = frame.locator("#left text").all_text_contents()
    assert labels == ["<s>", *TEXT.split(), "</s>"]
    # A line's strength is its weight shared among the heads that are on.
    shown = frame.locator("#attention").evaluate(
        """(group) => [...group.querySelectorAll(".headAttention")].map((head) =>
             [...head.querySelectorAll("line")].map((l) => +l.getAttribute("stroke-opacity")))"""
    )
    for head in (0, 7):
        found = 12 * np.array(shown[head]).reshape(TOKENS, TOKENS)
        assert np.abs(found - weight(2, head)).max() <= 0.5 / 255 + 0.0006


def test_model_view_is_capped_and_says_so(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url, color_scheme="dark")
    run_text(page, TEXT)
    frame, start = draw(page, "all chosen heads")
    expect(frame.locator(".attn_background")).to_have_count(144)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    print(f"model view: {len(html_of(page)) / 1e6:.2f} MB, {time.monotonic() - start:.1f} s")  # noqa: T201
    assert frame.locator("line").count() == 144 * 32 * 32
    expect(page.get_by_text("Tokens 0–31 of 64: with so many heads at most 32")).to_be_visible()
    assert "background: #13141c" in html_of(page)
    frame.locator("rect[style='opacity: 0;']").first.click()
    expect(frame.locator("text.detail")).to_have_text("Layer 0, Head 0")


def test_tokens_are_never_markup_in_bertviz(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    breakout = "</script><script>window.top.broken=1;alert(1)</script>"
    run_text(page, " ".join([*MARKUP, breakout, "PYTHON_PARAMS", "__ATT__"]))
    frame, _ = draw(page, "heads of a layer")
    expect(frame.locator("#left text").first).to_be_visible()
    labels = frame.locator("#left text").all_text_contents()
    whole = ["<s>", *MARKUP, breakout, "PYTHON_PARAMS", "__ATT__", "</s>"]
    assert labels == [t if len(t) <= 13 else t[:12] + "…" for t in whole]
    assert page.evaluate("window.broken") is None
    # And the view cannot reach the page around it.
    inside = next(f for f in page.frames if f.url.startswith("data:"))
    reached = inside.evaluate("() => { try { return !!parent.document } catch { return false } }")
    assert reached is False
