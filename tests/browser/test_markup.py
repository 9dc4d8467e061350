"""A vocabulary that is markup: both pages show each label letter by letter, and nothing runs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import serve, settled, wait_for_title
from tests.pages.tiny import tiny_model

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Page]

WORDS = (
    "<b>bold</b>",
    "<img/src=x/onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "&lt;",
    "$x^2$",
    ":red[hi]",
    "[link](javascript:alert(1))",
    "{{7*7}}",
    '"quoted"',
    "`code`",
    "苹果",
)
SHOWN = ("[CLS]", *WORDS, "[SEP]")
LABELS = [f"{i} {token}" for i, token in enumerate(SHOWN)]


@pytest.fixture(scope="module")
def markup_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder with random weights; each word of WORDS is one token of its vocabulary."""
    return tiny_model(tmp_path_factory.mktemp("roots") / "markup-random", WORDS)


@pytest.fixture(scope="module")
def markup_url(markup_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = os.environ.get("HEADSCOPE_HOME", str(tmp_path_factory.mktemp("home")))
    with serve(
        "app.py",
        tmp_path_factory.mktemp("markup"),
        HEADSCOPE_MODEL_ROOTS=str(markup_folder.parent),
        HEADSCOPE_HOME=home,
    ) as address:
        yield address


def words_of(page: Page, line: int = 0) -> list[str]:
    return page.locator(".chips").nth(line).locator(".word").all_text_contents()


def no_element_was_made(page: Page) -> bool:
    """Whether the document has no element that a token could have become."""
    return bool(
        page.evaluate(
            """() => !document.querySelector('img[src="x"], [onerror], [href^="javascript:"]')
              && ![...document.querySelectorAll("b")].some((b) => b.textContent === "bold")
              && ![...document.querySelectorAll("script")]
                   .some((s) => s.textContent.includes("alert(1)"))
              && ![...document.querySelectorAll(".katex")].length"""
        )
    )


def test_markup_vocabulary_is_shown_letter_by_letter(
    open_page: OpenPage, markup_url: str, markup_folder: Path
) -> None:
    page = open_page(f"{markup_url}/?model=/nothing-here")
    box = page.get_by_role("textbox", name="Folder with config.json and safetensors")
    box.fill(str(markup_folder))
    box.press("Enter")
    wait_for_title(page, "Layer 0, head 0")
    page.get_by_label("Text", exact=True).fill(" ".join(WORDS))
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".xtick text")).to_have_count(len(SHOWN))
    wait_for_title(page, "Layer 0, head 0")
    assert page.locator(".xtick text").all_text_contents() == LABELS
    assert sorted(page.locator(".ytick text").all_text_contents()) == sorted(LABELS)
    assert words_of(page, 0) == words_of(page, 1) == list(SHOWN)
    expect(page).to_have_title("Attention maps · Headscope")

    # Hover of each token on the diagonal.
    page.locator(".nsewdrag").scroll_into_view_if_needed()
    plot = page.locator(".nsewdrag").bounding_box()
    assert plot is not None
    side = plot["width"] / len(SHOWN), plot["height"] / len(SHOWN)
    for i, label in enumerate(LABELS):
        page.mouse.move(plot["x"] + (i + 0.5) * side[0], plot["y"] + (i + 0.5) * side[1])
        page.wait_for_function(
            "label => (document.querySelector('.hoverlayer')?.textContent ?? '').includes(label)",
            arg=f"query {label}key {label}",
        )

    # Each token chosen: its name stands before both lines, and in the chip's own tooltip.
    for i, token in enumerate(SHOWN):
        page.locator(".chips").first.locator("button").nth(i).click()
        expect(page.locator(".line .name").first).to_have_text(f"{token} looks at")
    titles = [
        chip.get_attribute("title") for chip in page.locator(".chips").first.locator("button").all()
    ]
    assert [(t or "").rsplit(": ", 1)[0] for t in titles] == LABELS
    assert no_element_was_made(page)

    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    settled(page)
    expect(page.locator(".chips .word")).to_have_count(len(SHOWN))
    assert words_of(page) == list(SHOWN)
    page.get_by_text("Ids and places in the text").click()
    # The table is a canvas; its accessible copy holds the cells of the rows in view.
    cells = page.locator('[data-testid="stDataFrame"] td')
    expect(cells.filter(has_text="alert").first).to_be_attached()
    shown = cells.all_text_contents()
    assert [token for token in WORDS if token not in shown] == []
    assert no_element_was_made(page)
    expect(page).to_have_title("Overview · Headscope")
