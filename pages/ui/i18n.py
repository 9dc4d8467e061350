"""The words of the interface in English and Chinese.

Every string a person reads goes through `Words`, so that a language is one file and a missing
string is a failing test. Messages of core (`HeadscopeError`) come in English with their figures;
the interface puts its own translated headline above them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from pages.ui.words_en import ENGLISH
from pages.ui.words_zh import CHINESE, CHINESE_FACTS

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
LANGUAGE_NAMES: Mapping[str, str] = {"en": "English", "zh": "中文"}
CATALOGUES: Mapping[Language, Mapping[str, str]] = {"en": ENGLISH, "zh": CHINESE}


@dataclass(frozen=True)
class Words:
    """Looks strings up in one language."""

    language: Language

    def __call__(self, key: str, **values: object) -> str:
        """Returns the string of `key` with its values put in.

        Raises:
            KeyError: no such string; a slip of ours that a test finds.
        """
        return CATALOGUES[self.language][key].format(**values)

    def fact(self, text: str) -> str:
        """Returns a sentence of the core about a model in this language, or as it came."""
        return CHINESE_FACTS.get(text, text) if self.language == "zh" else text

    def metric(self, name: str) -> str:
        """Returns a metric's name for people; the bare name when it is new to the catalogue."""
        return CATALOGUES[self.language].get(f"metric.{name}", name)

    def metric_help(self, name: str) -> str:
        """Returns one sentence on what the metric says, or nothing."""
        return CATALOGUES[self.language].get(f"metric.{name}.help", "")

    def pattern(self, name: str) -> str:
        """Returns the name of a pattern; `duplicate of (l,h)` keeps its place."""
        catalogue = CATALOGUES[self.language]
        if name.startswith("duplicate of "):
            return catalogue["pattern.duplicate"].format(place=name.removeprefix("duplicate of "))
        return catalogue.get(f"pattern.{name}", name)


def language_of_browser(locale: str | None) -> Language:
    """Returns the language to start with for a browser's locale such as `zh-CN`."""
    return "zh" if (locale or "").lower().startswith("zh") else "en"
