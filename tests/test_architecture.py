"""Who may import whom: the rules of docs/architecture.md, read from the source files.

Imports inside functions count as well: they run, too.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC_CORE = {"core.service", "core.results", "core.errors", "core.limits"}
PLAIN_CORE = {"core.results", "core.errors", "core.limits", "core.shapes"}
SCREEN_LIBRARIES = {"streamlit", "plotly", "bertviz"}
MODEL_LIBRARIES = {"torch", "transformers", "tokenizers", "safetensors"}
PURE_PARTS = ("metrics", "diagnosis", "compare", "memory")
USES_TRANSFORMERS = ("models", "capture", "attribution", "memory")

Rule = tuple[str, str]


def imports(source: str) -> Iterator[str]:
    """Yields every module a source imports, with a name imported from a package as its module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they lead"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_within(module: str, parents: set[str] | tuple[str, ...]) -> bool:
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)


def broken_rules(path: str, source: str) -> list[Rule]:
    """Returns (module, rule) for each import of a file that no rule allows.

    Args:
        path: relative to the repository, with forward slashes.
    """
    parts = path.split("/")
    found = list(imports(source))
    broken: list[Rule] = []

    def forbid(rule: str, modules: Iterator[str]) -> None:
        broken.extend((module, rule) for module in modules)

    if parts[0] == "core":
        outside = (*SCREEN_LIBRARIES, "pages", "app")
        forbid("core draws nothing", (m for m in found if is_within(m, outside)))
        forbid("core needs no tests", (m for m in found if is_within(m, ("tests",))))
        part = parts[1]
        if part not in USES_TRANSFORMERS:
            forbid("transformers stays low", (m for m in found if is_within(m, ("transformers",))))
        if part in PURE_PARTS:
            allowed = PLAIN_CORE | {f"core.{part}"}
            forbid(
                "pure parts know results only",
                (m for m in found if m.startswith("core.") and not is_within(m, allowed)),
            )
        if part in ("models", "capture"):
            others = {"core.models", "core.capture", "core.cache", "core.service"} - {
                f"core.{part}"
            }
            forbid("only the service joins them", (m for m in found if is_within(m, others)))
        if part == "cli.py":
            allowed = PUBLIC_CORE | {"core.open_service", "core.__version__"}
            forbid(
                "the command line has one door",
                (m for m in found if m.startswith("core.") and not is_within(m, allowed)),
            )
        elif part not in ("service.py", "__init__.py", "__main__.py"):
            forbid(
                "nobody below knows the door",
                (m for m in found if is_within(m, ("core.service", "core.cli"))),
            )
    if parts[0] in ("pages", "app.py"):
        allowed = PUBLIC_CORE | {"core.open_service", "core.__version__"}
        forbid(
            "pages have one door to core",
            (m for m in found if m.startswith("core.") and not is_within(m, allowed)),
        )
        forbid("pages hold no tensors", (m for m in found if is_within(m, tuple(MODEL_LIBRARIES))))
        if parts[:2] != ["pages", "ui"]:
            forbid("charts are drawn in ui", (m for m in found if is_within(m, ("plotly",))))
            forbid(
                "pages share through ui",
                (m for m in found if m.startswith("pages.") and not is_within(m, ("pages.ui",))),
            )
        else:
            forbid(
                "ui knows no page",
                (m for m in found if m.startswith("pages.") and not is_within(m, ("pages.ui",))),
            )
    return broken


def source_files() -> list[Path]:
    files = [*(ROOT / "core").rglob("*.py"), *(ROOT / "pages").rglob("*.py")]
    return sorted([*files, *ROOT.glob("app.py")])


@pytest.mark.parametrize("path", source_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_file_imports_only_what_it_may(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    assert broken_rules(name, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/service.py", "import streamlit"),
        ("core/capture/seam.py", "def late():\n    import plotly.express"),
        ("core/results.py", "from pages.ui import charts"),
        ("core/metrics/heads.py", "from core.capture import store"),
        ("core/metrics/heads.py", "import transformers"),
        ("core/diagnosis/rules.py", "from core import service"),
        ("core/capture/engine.py", "from core.models.loading import load"),
        ("core/models/loading.py", "import core.cache"),
        ("core/models/loading.py", "from core.service import HeadscopeService"),
        ("core/cli.py", "from core.capture import engine"),
        ("pages/attention.py", "from core.capture import engine"),
        ("pages/attention.py", "import plotly.graph_objects"),
        ("pages/attention.py", "from pages import overview"),
        ("pages/ui/charts.py", "import torch"),
        ("pages/ui/charts.py", "from pages.attention import x"),
        ("app.py", "from core.models import catalogue"),
    ],
)
def test_a_broken_rule_is_seen(path: str, source: str) -> None:
    assert broken_rules(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/capture/engine.py", "import torch\nfrom core.errors import HeadscopeError"),
        ("core/service.py", "from core.models import loading\nfrom core.capture import engine"),
        ("core/metrics/heads.py", "import torch\nfrom core.results import Kind"),
        ("pages/attention.py", "import streamlit\nfrom pages.ui import charts"),
        ("pages/ui/charts.py", "import plotly\nfrom core.results import MapResult"),
        ("pages/ui/session.py", "from core import open_service"),
    ],
)
def test_what_the_rules_allow_is_allowed(path: str, source: str) -> None:
    assert broken_rules(path, source) == []


def test_the_walk_sees_the_sources() -> None:
    assert len(source_files()) > 5
