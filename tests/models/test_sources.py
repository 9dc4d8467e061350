"""Where a name leads: an embedded id, a folder, the hub, or a clear refusal."""

from pathlib import Path

import pytest

from core.errors import BadInputError, HeadscopeError, UnknownModelError, UnsafeFilesError
from core.models.catalogue import CATALOGUE
from core.models.sources import SourcePolicy, resolve

ANY = SourcePolicy()


def test_embedded_ids_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "minilm-en").mkdir()
    monkeypatch.chdir(tmp_path)
    assert [resolve(i, None, ANY).kind for i in CATALOGUE] == ["embedded"] * 4


def test_folder_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    source = resolve(str(tmp_path / "link"), None, ANY)
    assert (source.kind, source.folder) == ("folder", (tmp_path / "real").resolve())


def test_hub_id_keeps_its_revision() -> None:
    source = resolve("some-org/some_model.v2", "main", ANY)
    assert (source.kind, source.id, source.revision) == ("hub", "some-org/some_model.v2", "main")


@pytest.mark.parametrize(
    ("name", "revision", "error", "words"),
    [
        ("", None, BadInputError, "No model is named"),
        ("   ", None, BadInputError, "No model is named"),
        ("a\0b", None, BadInputError, "not a readable name"),
        ("minilm-en", "v1", BadInputError, "no revisions; 'v1'"),
        ("/no/such/folder", None, UnknownModelError, "no folder '/no/such/folder'"),
        ("./none", None, UnknownModelError, "no folder"),
        ("minilm", None, UnknownModelError, r"Did you mean minilm-en\?"),
        ("a/b/c", None, UnknownModelError, "no model 'a/b/c'"),
        ("bad name!", None, UnknownModelError, "Embedded are"),
        (__file__, None, UnknownModelError, "is a file, not a folder"),
    ],
)
def test_names_that_lead_nowhere(
    name: str, revision: str | None, error: type[HeadscopeError], words: str
) -> None:
    with pytest.raises(error, match=words):
        resolve(name, revision, ANY)


@pytest.fixture
def roots(tmp_path: Path) -> SourcePolicy:
    (tmp_path / "allowed/model").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "allowed/link").symlink_to(tmp_path / "outside")
    return SourcePolicy(roots=(tmp_path / "allowed",))


def test_folders_below_a_root_may_be_named_briefly(roots: SourcePolicy, tmp_path: Path) -> None:
    expected = (tmp_path / "allowed/model").resolve()
    assert resolve(str(tmp_path / "allowed/model"), None, roots).folder == expected
    assert resolve("model", None, roots).folder == expected


@pytest.mark.parametrize("name", ["outside", "allowed/link", "allowed/../outside", "missing"])
def test_folders_outside_the_roots_are_refused_alike(
    roots: SourcePolicy, tmp_path: Path, name: str
) -> None:
    with pytest.raises(UnsafeFilesError, match="not below a folder that may be opened"):
        resolve(f"{tmp_path}/{name}", None, roots)


def test_no_roots_at_all_says_how_to_set_them(tmp_path: Path) -> None:
    with pytest.raises(UnsafeFilesError, match="set HEADSCOPE_MODEL_ROOTS"):
        resolve(str(tmp_path), None, SourcePolicy(roots=()))


def test_missing_folder_below_a_root_is_unknown(roots: SourcePolicy, tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="below the allowed ones"):
        resolve(f"{tmp_path}/allowed/none", None, roots)


def test_hub_can_be_closed() -> None:
    with pytest.raises(UnknownModelError):
        resolve("org/name", None, SourcePolicy(allow_hub=False))
