"""4,096 tokens through a real model in a real browser: the map, and windows of it, exact."""

import json
import re
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from playwright.sync_api import Locator, Page, expect

from core.models.loading import LoadedModel, load_model
from core.models.sources import SourcePolicy
from core.models.tokens import encode
from core.results import ModelRequest
from tests.browser.conftest import click_head, settled

pytestmark = [pytest.mark.browser, pytest.mark.models]
OpenPage = Callable[..., Page]

MODEL, TOKENS = "smollm2-135m", 4096
LAYER, HEAD = 2, 1
PAGE_LIMIT_BYTES = 2_000_000
SENTENCE = "In year {i} she sat on the bank of the river, ate {i} apples (苹果) and forgot them. "


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(ModelRequest(MODEL), SourcePolicy())


@pytest.fixture(scope="module")
def text(loaded: LoadedModel) -> str:
    """A text of exactly 4,096 tokens."""
    made = "".join(SENTENCE.format(i=i) for i in range(200))
    end = encode(loaded, made).tokens[TOKENS - 1].offset[1]
    assert len(encode(loaded, made[:end]).ids) == TOKENS
    return made[:end]


@pytest.fixture(scope="module")
def eager_map(loaded: LoadedModel, text: str) -> np.ndarray:
    """The map as transformers' own eager attention gives it, of the first layers alone."""
    module = loaded.module
    body = getattr(module, "model", module)
    body.layers = body.layers[: LAYER + 1]
    module.set_attn_implementation("eager")
    with torch.no_grad():
        ids = torch.tensor([encode(loaded, text).ids])
        return body(input_ids=ids, output_attentions=True).attentions[LAYER][0, HEAD].numpy()


def view(canvas: Locator) -> dict:
    return json.loads(canvas.get_attribute("data-view"))


def drag(page: Page, canvas: Locator, start: tuple[float, float], side: float) -> None:
    """Draws a square whose corner and side are shares of the map."""
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    plot = canvas.evaluate("c => c.plot()")
    corner = [
        box[axis] + plot[axis] + share * plot["side"]
        for axis, share in zip("xy", start, strict=True)
    ]
    page.mouse.move(*corner)
    page.mouse.down()
    page.mouse.move(corner[0] + 6, corner[1] + 6)
    page.mouse.move(*(at + side * plot["side"] for at in corner))
    page.mouse.up()


def test_a_long_text_is_seen_whole_and_exact(
    open_page: OpenPage, real_url: str, text: str, eager_map: np.ndarray
) -> None:
    page = open_page(f"{real_url}/?model={MODEL}&layer={LAYER}&head={HEAD}&scale=sqrt")
    received = []
    page.on("websocket", lambda s: s.on("framereceived", lambda data: received.append(len(data))))
    page.reload()
    settled(page)
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    expect(page.get_by_text(re.compile(r"layer \d+ of 30.* left"))).to_be_visible(timeout=60_000)
    canvas = page.locator("canvas.map")
    expect(canvas).to_be_visible(timeout=300_000)
    settled(page)
    seen = view(canvas)
    assert seen["window"] == [0, TOKENS, 0, TOKENS]
    assert not seen["exact"]
    expect(page.locator(".where")).to_contain_text("means of 16 × 16 tokens a cell")
    assert sum(received) < PAGE_LIMIT_BYTES

    for start, side in (((0.0, 0.0), 0.03), ((0.4, 0.42), 0.05), ((0.2, 0.9), 0.06)):
        received.clear()
        drag(page, canvas, start, side)
        expect(page.locator(".where")).to_contain_text("exact weights")
        q0, q1, k0, k1 = window = view(canvas)["window"]
        assert view(canvas)["part"] == window
        assert abs(q0 - start[1] * TOKENS) < 20
        assert abs(k0 - start[0] * TOKENS) < 20
        assert abs((q1 - q0) - side * TOKENS) < 20
        shown = canvas.evaluate(
            "(c, places) => places.map(([q, k]) => c.weight(q, k))",
            [list(place) for place in product(range(q0, q1), range(k0, k1))],
        )
        eager = eager_map[q0:q1, k0:k1]
        assert np.abs(np.array(shown).reshape(eager.shape) - eager).max() <= 1e-5
        assert view(canvas)["queryLabels"][0].startswith(f"{q0} ")
        assert sum(received) < PAGE_LIMIT_BYTES
        page.get_by_role("button", name="The whole map").click()
        expect(page.locator(".where")).to_contain_text("means of 16")
        expect(page).to_have_url(re.compile(r"window=0\.4096\.0\.4096"))
        settled(page)

    # Back undoes the last look, and the window is part of the link.
    page.go_back()
    expect(page.locator(".where")).to_contain_text("exact weights")
    assert view(canvas)["window"] == window
    assert "window=" + ".".join(map(str, window)) in page.url


def test_the_map_is_worked_by_keys(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    page.get_by_label("Text", exact=True).fill("word " * 1022)
    page.get_by_role("button", name="Run", exact=True).click()
    canvas = page.locator("canvas.map")
    canvas.focus()
    for key, window in (
        ("+", [256, 768, 256, 768]),
        ("+", [384, 640, 384, 640]),
        ("ArrowRight", [384, 640, 448, 704]),
        ("ArrowUp", [320, 576, 448, 704]),
    ):
        canvas.press(key)
        shown = re.escape(json.dumps(window, separators=(",", ":")))
        expect(canvas).to_have_attribute("data-view", re.compile(f'"window":{shown}'))
    expect(page.locator(".where")).to_contain_text("exact weights")
    assert view(canvas)["part"] == [320, 576, 448, 704]
    # Another head keeps the window; a click on a cell chooses both tokens.
    click_head(page, 3, 3)
    expect(page.get_by_role("heading", name="Layer 3, head 3")).to_be_visible()
    assert view(canvas)["window"] == [320, 576, 448, 704]
    plot = canvas.evaluate("c => c.plot()")
    middle = {axis: plot[axis] + plot["side"] / 2 + 1 for axis in "xy"}
    canvas.click(position=middle)
    expect(page.locator(".chips").first.locator(".chosen")).to_have_attribute(
        "title", re.compile("576 ")
    )
    canvas.press("Home")
    expect(page.locator(".where")).to_contain_text("means of 4 × 4")
