import ast
import string
from pathlib import Path
from typing import get_args

import pytest

from core import errors, open_service
from core.results import Feed, Kind, ModelInfo
from pages.ui.controls import EXAMPLES
from pages.ui.i18n import CATALOGUES, Words, language_of_browser
from pages.ui.session import SCALES, SPECIALS, UNITS, VIEWS
from pages.ui.words_en import ENGLISH
from pages.ui.words_zh import CHINESE

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "app.py", *sorted((ROOT / "pages").rglob("*.py"))]


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_languages_have_the_same_keys() -> None:
    assert set(ENGLISH) == set(CHINESE)


@pytest.mark.parametrize("key", sorted(ENGLISH))
def test_languages_have_the_same_values_to_fill(key: str) -> None:
    assert fields(ENGLISH[key]) == fields(CHINESE[key])
    assert CHINESE[key].strip()


def used_keys() -> dict[str, str]:
    """Returns every literal key given to `words(...)` and the file that uses it."""
    found = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in ("words", "self._words")
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                found[node.args[0].value] = path.name
    return found


def test_every_used_key_exists() -> None:
    used = used_keys()
    assert len(used) > 40
    assert {key: name for key, name in used.items() if key not in ENGLISH} == {}


def test_every_key_is_used() -> None:
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in SOURCES if "words_" not in path.name
    )
    built = (
        "metric.",
        "pattern.",
        "kind.",
        "view.",
        "scale.",
        "unit.",
        "weighting.",
        "feed.",
        "error.",
        "fact.",
        "backend.",
    )
    unused = [
        k
        for k in ENGLISH
        if f'"{k}"' not in text and f"'{k}'" not in text and not k.startswith(built)
    ]
    # Keys put together from parts, each part a literal of the module that does it.
    parts = (
        "attention.title.",
        "attention.legend.",
        "attention.canvas.",
        "attention.map.how.",
        "bertviz.",
        "export.",
        "overview.card.",
        "page.",
        "progress.",
        "sidebar.model.",
        "sidebar.d",
        "attention.layer",
        "attention.head",
    )
    assert [k for k in unused if not k.startswith(parts)] == []


def test_keys_built_from_names_exist() -> None:
    kinds = [e.kind for e in vars(errors).values() if isinstance(e, type) and hasattr(e, "kind")]
    built = [f"error.{kind}" for kind in kinds]
    built += [f"view.{v}" for v in VIEWS] + [f"attention.title.{v}" for v in VIEWS]
    built += [f"scale.{s}" for s in SCALES] + [f"attention.legend.{s}" for s in SCALES]
    built += [f"kind.{k}" for k in get_args(Kind)] + [f"feed.{f}" for f in get_args(Feed)]
    built += [f"unit.{u}" for u in UNITS] + list(EXAMPLES)
    assert [key for key in built if key not in ENGLISH] == []
    assert SPECIALS == ("show", "hide")


def test_names_new_to_the_catalogue_are_shown_as_they_are() -> None:
    words = Words("zh")
    assert words.metric("brand_new") == "brand_new"
    assert words.pattern("brand new") == "brand new"
    assert words.pattern("duplicate of (3,4)") == "与 (3,4) 重复"
    assert words.metric("normalized_entropy") == "熵 / ln(可见数)"


def test_language_follows_the_browser() -> None:
    assert language_of_browser("zh-CN") == "zh"
    assert language_of_browser("de-DE") == "en"
    assert language_of_browser(None) == "en"
    assert set(CATALOGUES) == {"en", "zh"}


@pytest.mark.parametrize("info", open_service().models(), ids=lambda info: str(info.id))
def test_what_is_said_of_embedded_models_is_said_in_chinese_too(info: ModelInfo) -> None:
    for text in (info.languages, info.note, info.attention, info.position):
        assert Words("zh").fact(text) != text
        assert Words("en").fact(text) == text
    assert Words("zh").fact("a model of one's own") == "a model of one's own"
