"""Nothing chosen is forgotten: on another page, in another language, after Back, reloaded."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import click_head, settled, wait_for_title

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Page]

# Name of the page's link in English and in Chinese; a new page joins the test by its line.
PAGES = [
    ("Attention maps", "注意力图"),
    ("Overview", "概览"),
]
TEXT = "she sells sea shells"


def go(page: Page, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    settled(page)


def expect_kept(page: Page, *, chinese: bool = False) -> None:
    """Holds what every page shows, and the address, to the choices made at the start."""
    box = page.get_by_label("文本" if chinese else "Text", exact=True)
    expect(box).to_have_value(TEXT)
    for part in ("model=minilm-en", "layer=4", "head=7", "scale=sqrt", "special=hide"):
        assert part in page.url
    assert "sells" not in page.url


def expect_map(page: Page, *, chinese: bool = False) -> None:
    wait_for_title(page, "第 4 层，第 7 头" if chinese else "Layer 4, head 7")
    expect(page.get_by_role("radio", name="平方根" if chinese else "square root")).to_be_checked()
    label = "隐藏特殊词元" if chinese else "Hide special tokens"
    expect(page.get_by_role("switch", name=label)).to_be_checked()


@pytest.fixture
def chosen(open_page: OpenPage, fake_url: str) -> Page:
    """A page with every choice made, by address and by hand."""
    page = open_page(f"{fake_url}/?model=minilm-en&layer=4&head=7&scale=sqrt&special=hide")
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".chips").first).to_contain_text("shells")
    settled(page)
    return page


def test_every_page_keeps_the_choices_in_both_languages(chosen: Page) -> None:
    for english, _ in PAGES[1:]:
        go(chosen, english)
        expect_kept(chosen)
    go(chosen, PAGES[0][0])
    expect_map(chosen)
    chosen.get_by_role("radio", name="中文").click()
    for _, chinese in PAGES[1:]:
        go(chosen, chinese)
        expect_kept(chosen, chinese=True)
    go(chosen, PAGES[0][1])
    expect_map(chosen, chinese=True)
    chosen.get_by_role("radio", name="English").click()
    expect_map(chosen)
    expect_kept(chosen)


@pytest.mark.parametrize("name", [english for english, _ in PAGES])
def test_a_page_keeps_the_choices_when_colours_change(chosen: Page, name: str) -> None:
    go(chosen, name)
    chosen.emulate_media(color_scheme="dark")
    chosen.wait_for_function(
        "getComputedStyle(document.querySelector('.stApp')).backgroundColor === 'rgb(18, 19, 26)'"
    )
    settled(chosen)
    expect_kept(chosen)


@pytest.mark.parametrize("name", [english for english, _ in PAGES])
def test_a_page_reloads_with_its_address_choices(chosen: Page, name: str) -> None:
    go(chosen, name)
    chosen.reload()
    settled(chosen)
    # The text is private to the session, which ends with a reload; all else is in the address.
    expect(chosen.get_by_role("heading", name=name, exact=True)).to_be_visible()
    for part in ("model=minilm-en", "layer=4", "head=7", "scale=sqrt", "special=hide"):
        assert part in chosen.url
    if name != PAGES[0][0]:
        go(chosen, PAGES[0][0])
    expect_map(chosen)


def test_back_and_forward_pass_through_pages(chosen: Page) -> None:
    for english, _ in PAGES[1:]:
        go(chosen, english)
    for english, _ in reversed(PAGES[:-1]):
        chosen.go_back()
        expect(chosen.get_by_role("heading", name=english, exact=True)).to_be_visible()
        settled(chosen)
        expect_kept(chosen)
    expect_map(chosen)
    for english, _ in PAGES[1:]:
        chosen.go_forward()
        expect(chosen.get_by_role("heading", name=english, exact=True)).to_be_visible()
        settled(chosen)
        expect_kept(chosen)


def test_back_undoes_a_head_chosen_after_another_page(chosen: Page) -> None:
    go(chosen, PAGES[1][0])
    go(chosen, PAGES[0][0])
    click_head(chosen, 2, 3)
    wait_for_title(chosen, "Layer 2, head 3")
    chosen.go_back()
    expect_map(chosen)
    expect_kept(chosen)
