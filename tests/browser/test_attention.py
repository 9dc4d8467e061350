"""The attention page in a browser, on the fake service."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import click_head, settled, title_of_map, wait_for_title

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Page]

MARKUP = (
    "<b>bold</b>",
    "<img/src=x/onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "&lt;",
    "&amp;",
    "&#x27;",
    "$x^2$",
    "a_b*c*",
    ":red[hi]",
    "[link](javascript:alert(1))",
    "{{7*7}}",
    '"quoted"',
    "'single'",
    "`code`",
    "%{x}",
    "<br>",
    ",comma,",
)


def run_text(page: Page, text: str) -> None:
    box = page.get_by_label("Text", exact=True)
    box.fill(text)
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_timeout(300)
    settled(page)


def tick_texts(page: Page, axis: str) -> list[str]:
    return page.locator(f".{axis}tick text").all_text_contents()


def expect_chips(page: Page, tokens: list[str]) -> None:
    """Waits until the upper line of chips shows these tokens, letter by letter."""
    page.wait_for_function(
        """tokens => {
          const roots = [...document.querySelectorAll("*")].map((e) => e.shadowRoot);
          const line = roots.map((r) => r?.querySelector(".chips")).find(Boolean);
          const shown = [...(line?.querySelectorAll(".word") ?? [])].map((w) => w.textContent);
          return JSON.stringify(shown) === JSON.stringify(tokens);
        }""",
        arg=tokens,
    )


def test_click_on_a_head_shows_its_map(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    wait_for_title(page, "Layer 0, head 0")
    click_head(page, 3, 5)
    wait_for_title(page, "Layer 3, head 5")
    assert "layer=3" in page.url
    assert "head=5" in page.url
    assert "text" not in page.url
    # The sidebar is not drawn again, but its links are.
    overview = page.get_by_role("link", name="Overview")
    expect(overview).to_have_attribute("href", re.compile(r"layer=3&head=5"))
    page.get_by_role("button", name="Copy link").click()
    copied = page.locator('[data-testid="stCode"]').first
    expect(copied).to_contain_text("layer=3&head=5")


def test_every_word_of_the_map_is_inside_its_picture(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    run_text(page, "internationalisation of 苹果公司发布了新手机")
    wait_for_title(page, "Layer 0, head 0")
    words = ".gtitle, .xtick text, .ytick text, .xtitle, .ytitle, .cbaxis text, .cbtitle text"
    outside = page.evaluate(
        """words => {
          const chart = document.querySelector(".js-plotly-plot").getBoundingClientRect();
          return [...document.querySelectorAll(words)].filter((word) => {
            const box = word.getBoundingClientRect();
            return box.top < chart.top || box.left < chart.left - 1 ||
              box.right > chart.right + 1 || box.bottom > chart.bottom;
          }).map((word) => word.textContent);
        }""",
        words,
    )
    assert page.locator(words).count() >= 12
    assert outside == []


def test_arrow_keys_and_enter_choose_a_head(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    wait_for_title(page, "Layer 0, head 0")
    page.locator("canvas.grid").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator(".tip")).to_contain_text("Layer 2, head 1")
    page.keyboard.press("Enter")
    wait_for_title(page, "Layer 2, head 1")


def test_tooltip_names_head_pattern_and_two_figures(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    box = page.locator("canvas.grid").bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 60)
    lines = page.locator(".tip div")
    expect(lines).to_have_count(4)
    assert re.match(r"Layer \d+, head \d+", lines.nth(0).inner_text())


def test_back_and_forward_show_what_they_showed(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    click_head(page, 3, 5)
    wait_for_title(page, "Layer 3, head 5")
    click_head(page, 4, 7)
    wait_for_title(page, "Layer 4, head 7")
    page.go_back()
    wait_for_title(page, "Layer 3, head 5")
    page.go_back()
    wait_for_title(page, "Layer 0, head 0")
    page.go_forward()
    wait_for_title(page, "Layer 3, head 5")


def test_link_opens_what_the_sender_saw(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(f"{fake_url}/?model=minilm-en&layer=2&head=9&view=head&scale=sqrt&lang=zh")
    wait_for_title(page, "第 2 层，第 9 头")
    expect(page.get_by_role("heading", name="注意力图")).to_be_visible()
    expect(page).to_have_title("注意力图 · Headscope")


def test_link_with_text_opens_the_text(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(f"{fake_url}/?text=one%20two%20three")
    expect(page.get_by_label("Text", exact=True)).to_have_value("one two three")
    expect_chips(page, ["<s>", "one", "two", "three", "</s>"])


def test_first_visit_straight_to_a_page_has_its_frame(open_page: OpenPage, slow_url: str) -> None:
    # The first request of this server: no other page was opened before.
    page = open_page(f"{slow_url}/overview?model=minilm-en&layer=1&head=1")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible()


def test_cancel_stops_and_says_so(open_page: OpenPage, slow_url: str) -> None:
    page = open_page(f"{slow_url}/?model=minilm-en")
    box = page.get_by_label("Text", exact=True)
    box.fill("a text that takes its time")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text(re.compile(r"layer \d of 6"))).to_be_visible()
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_text("Cancelled.")).to_be_visible()
    settled(page)
    # The last good view stays.
    wait_for_title(page, "Layer 0, head 0")
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_text("Cancelled.")).to_have_count(0, timeout=30_000)
    settled(page)
    expect(page.locator(".chips").first).to_contain_text("time")


def test_nothing_is_forgotten_between_pages_and_languages(
    open_page: OpenPage, fake_url: str
) -> None:
    page = open_page(f"{fake_url}/?model=minilm-en&layer=4&head=7")
    run_text(page, "she sells sea shells")
    page.get_by_text("Hide special tokens").click()
    settled(page)
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("link", name="Attention maps").click()
    wait_for_title(page, "Layer 4, head 7")
    page.get_by_role("radio", name="中文").click()
    wait_for_title(page, "第 4 层，第 7 头")
    expect(page.get_by_label("文本", exact=True)).to_have_value("she sells sea shells")
    expect_chips(page, ["she", "sells", "sea", "shells"])
    page.get_by_role("radio", name="English").click()
    wait_for_title(page, "Layer 4, head 7")
    expect_chips(page, ["she", "sells", "sea", "shells"])
    # A select box must not report its old translated label as a choice.
    assert "colour" not in page.url
    page.go_back()
    wait_for_title(page, "第 4 层，第 7 头")
    page.go_back()
    wait_for_title(page, "Layer 4, head 7")
    expect(page.get_by_label("Text", exact=True)).to_have_value("she sells sea shells")
    assert "she" not in page.url


def test_a_draft_survives_a_click_on_a_head(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    page.get_by_label("Text", exact=True).fill("not run yet")
    click_head(page, 1, 1)
    wait_for_title(page, "Layer 1, head 1")
    expect(page.get_by_label("Text", exact=True)).to_have_value("not run yet")


def test_long_text_stays_out_of_the_address(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    run_text(page, "word " * 4000)
    expect(page.locator(".where")).to_contain_text("means of 16 × 16 tokens a cell")
    click_head(page, 1, 1)
    expect(page.get_by_role("heading", name="Layer 1, head 1")).to_be_visible()
    assert len(page.url) < 300


def test_repeated_tokens_keep_their_own_cells(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    run_text(page, "苹果 苹果 苹果 apple apple apple")
    names = ["0 <s>", "1 苹果", "2 苹果", "3 苹果", "4 apple", "5 apple", "6 apple", "7 </s>"]
    expect(page.locator(".xtick text")).to_have_count(8)
    assert tick_texts(page, "x") == names
    assert sorted(tick_texts(page, "y")) == names
    page.get_by_text("Download", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV (table)").click()
    rows = Path(download.value.path()).read_text(encoding="utf-8-sig").splitlines()
    weight = float(rows[1 + 3].split(",")[1 + 2])
    page.locator(".nsewdrag").scroll_into_view_if_needed()
    plot = page.locator(".nsewdrag").bounding_box()
    side = plot["width"] / 8, plot["height"] / 8
    page.mouse.move(plot["x"] + 2.5 * side[0], plot["y"] + 3.5 * side[1])
    page.wait_for_selector(".hoverlayer .hovertext", state="attached")
    hover = page.locator(".hoverlayer").text_content()
    assert "3 苹果" in hover
    assert "2 苹果" in hover
    assert f"{weight:.4f}" in hover
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    settled(page)
    expect_chips(page, [name.split()[1] for name in names])
    chips = page.locator(".chips button").all()
    assert [chip.get_attribute("title") for chip in chips] == names


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_markup_is_shown_letter_by_letter(open_page: OpenPage, fake_url: str, scheme: str) -> None:
    page = open_page(fake_url, color_scheme=scheme)
    run_text(page, " ".join(MARKUP))
    expected = ["<s>", *MARKUP, "</s>"]
    expect_chips(page, expected)
    assert tick_texts(page, "x") == [f"{i} {token}" for i, token in enumerate(expected)]
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    settled(page)
    expect_chips(page, expected)


def test_a_token_shows_both_directions(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    run_text(page, "one two three")
    page.locator(".chips").first.get_by_role("button", name="two").click()
    expect(page.locator(".line .name").first).to_have_text("two looks at")
    expect(page.locator(".line .name").last).to_have_text("two is looked at by")
    shares = page.locator(".chips").first.locator(".figure").all_text_contents()
    assert 97 <= sum(int(s.split()[0]) for s in shares if s) <= 103
    assert title_of_map(page).startswith("Layer 0, head 0")


def test_escape_brings_a_zoomed_map_back(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    wait_for_title(page, "Layer 0")
    plot = page.locator(".nsewdrag").bounding_box()
    before = len(tick_texts(page, "x"))
    page.mouse.move(plot["x"] + 20, plot["y"] + 20)
    page.mouse.down()
    page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] / 2, steps=5)
    page.mouse.up()
    page.wait_for_timeout(400)
    assert len(tick_texts(page, "x")) < before
    page.locator("canvas.grid").focus()
    page.keyboard.press("Escape")
    expect(page.locator(".xtick text")).to_have_count(before)


def test_plain_grid_chooses_with_the_keyboard(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    page.get_by_text("Plain grid").click()
    settled(page)
    table = page.locator('[data-testid="stDataFrame"]').first
    table.locator("canvas").first.wait_for()
    box = table.bounding_box()
    page.mouse.click(box["x"] + 130, box["y"] + 60)
    page.wait_for_function("new URLSearchParams(location.search).has('layer')")
    settled(page)
    first = title_of_map(page)
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "old => { const t = document.querySelector('.gtitle')?.textContent; return t && t != old }",
        arg=first,
    )


def test_empty_text_says_what_to_do(open_page: OpenPage, fake_url: str) -> None:
    page = open_page(fake_url)
    run_text(page, "   ")
    expect(page.get_by_text("There is no text yet")).to_be_visible()
    page.get_by_role("button", name="Use 我吃了一个苹果").click()
    expect(page.get_by_text("There is no text yet")).to_have_count(0)
