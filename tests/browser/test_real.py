"""The app as people start it: embedded models, real text, a real browser."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import click_head, settled, wait_for_title

pytestmark = [pytest.mark.browser, pytest.mark.models]
OpenPage = Callable[..., Page]

BYTE_LETTERS = "æåäèçĲĳĥľŁĶĮ\ufffd"


def chip_texts(page: Page) -> list[str]:
    page.wait_for_selector(".chips .word")
    return page.locator(".chips").first.locator(".word").all_text_contents()


def test_first_screen_is_real_attention_of_e5_on_apple(open_page: OpenPage, real_url: str) -> None:
    page = open_page(real_url)
    wait_for_title(page, "Layer 0, head 0")
    expect(page.get_by_text("e5-small-multilingual · 12 × 12 heads · 6 tokens")).to_be_visible()
    expect(page.get_by_text("random weights")).to_have_count(0)
    expect(page.locator(".chips").first).to_contain_text("苹果")
    click_head(page, 9, 2)
    wait_for_title(page, "Layer 9, head 2")


def test_chinese_through_a_byte_tokenizer_is_readable(open_page: OpenPage, real_url: str) -> None:
    page = open_page(f"{real_url}/?model=smollm2-135m")
    wait_for_title(page, "Layer 0, head 0")
    labels = page.locator(".xtick text").all_text_contents() + chip_texts(page)
    assert len(labels) >= 20
    assert not set("".join(labels)) & set(BYTE_LETTERS)
    page.get_by_role("link", name="Overview").click()
    settled(page)
    expect(page.get_by_text("Most likely next tokens")).to_be_visible()
    assert not set("".join(chip_texts(page))) & set(BYTE_LETTERS)


@pytest.mark.parametrize("where", ["", "overview"])
@pytest.mark.parametrize(
    ("model", "text", "limit"),
    [("e5-small-multilingual", "苹果" * 600, "512"), ("smollm2-135m", "apple " * 9000, "8192")],
)
def test_text_above_the_limit_is_a_sentence_with_the_limit(
    open_page: OpenPage, real_url: str, model: str, text: str, limit: str, where: str
) -> None:
    page = open_page(f"{real_url}/{where}?model={model}")
    before = chip_texts(page)
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Run", exact=True).click()
    error = page.locator('[data-testid="stAlert"]')
    expect(error).to_contain_text("Too large")
    assert limit in error.inner_text().replace(",", "")
    assert "1000000000000000019884624838656" not in error.inner_text()
    expect(page.get_by_role("button", name="Cut the text to the limit and run")).to_be_visible()
    # The last good view stays, and the app works on.
    settled(page)
    assert chip_texts(page) == before
    if not where:
        wait_for_title(page, "Layer 0, head 0")


def test_cut_text_runs(open_page: OpenPage, real_url: str) -> None:
    page = open_page(real_url)
    page.get_by_label("Text", exact=True).fill("苹果" * 600)
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Cut the text to the limit and run").click()
    expect(page.get_by_text("512 tokens", exact=False).first).to_be_visible(timeout=60_000)


def test_norms_show_how_little_a_sink_moves(open_page: OpenPage, real_url: str) -> None:
    page = open_page(f"{real_url}/?layer=6&head=0&weighting=norm")
    wait_for_title(page, "Layer 6, head 0")
    expect(page.get_by_text("Kobayashi")).to_be_visible()
    expect(page.get_by_text("Agreement with the raw weights")).to_be_visible()
    page.get_by_role("radio", name="rollout").click()
    wait_for_title(page, "Rollout through layer 6")
    page.get_by_role("radio", name="raw").click()
    wait_for_title(page, "Layer 6, head 0")
    # No choice ran the model again: the capture's time stands as it was.
    expect(page.get_by_text("Agreement with the raw weights")).to_have_count(0)


def test_a_wrong_folder_is_refused_in_a_sentence(open_page: OpenPage, real_url: str) -> None:
    page = open_page(f"{real_url}/?model=/etc")
    error = page.locator('[data-testid="stAlert"]')
    expect(error).to_be_visible()
    assert "Traceback" not in page.inner_text("body")
    page.get_by_role("button", name="Back to the default model").click()
    wait_for_title(page, "Layer 0, head 0")
