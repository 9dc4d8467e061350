import pytest

from pages.ui.messages import literal
from pages.ui.session import View, parse_view, view_params


def test_parse_view_reads_back_what_view_params_wrote() -> None:
    view = View(model="minilm-en", layer=4, head=7, view="heads", special="hide", lang="zh")
    assert parse_view(view_params(view)) == view


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layer", "abc"),
        ("layer", "-1"),
        ("layer", "²"),
        ("layer", ""),
        ("view", "everything"),
        ("lang", "fr"),
        ("model", ""),
        ("model", "x" * 501),
        ("dtype", "fp8"),
    ],
)
def test_parse_view_ignores_what_makes_no_sense(name: str, value: str) -> None:
    assert parse_view({name: value}) == View()


def test_parse_view_survives_huge_numbers() -> None:
    assert parse_view({"layer": "9" * 5000}).layer < 10**7


def test_view_params_name_what_a_link_needs_and_no_text() -> None:
    assert set(view_params(View())) == {"model", "layer", "head"}
    assert "text" not in view_params(View(lang="zh"))


def test_literal_leaves_nothing_for_markdown() -> None:
    assert literal("a_b*c*") == "a\\_b\\*c\\*"
    assert literal("two\nlines") == "two lines"
