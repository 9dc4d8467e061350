"""The hub, played by functions: what it says becomes a sentence, and only safe files are asked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from core.errors import (
    AdapterOnlyError,
    GatedModelError,
    HeadscopeError,
    MissingFileError,
    NoNetworkError,
    UnknownModelError,
    UnsafeFilesError,
    UnsupportedModelError,
)
from core.models import hub
from core.models.sources import Source

SOURCE = Source("hub", "org/name", revision="main")


def answer(kind: type[Exception]) -> Exception:
    """Returns one of the hub's own errors, made without a conversation."""
    error = kind.__new__(kind)
    Exception.__init__(error, "x")
    return error


@pytest.mark.parametrize(
    ("raised", "error", "words"),
    [
        (answer(GatedRepoError), GatedModelError, "accepted its licence"),
        (answer(RepositoryNotFoundError), UnknownModelError, "no model 'org/"),
        (answer(RevisionNotFoundError), UnknownModelError, "no revision 'main'"),
        (answer(LocalEntryNotFoundError), NoNetworkError, "hub cannot be reached"),
        (OfflineModeIsEnabled("x"), NoNetworkError, "minilm-en"),
        (ConnectionError("x"), NoNetworkError, "cannot be reached"),
        (HTTPError("x"), NoNetworkError, "cannot be reached"),
        (OSError(28, "No space left on device"), MissingFileError, "No space left"),
    ],
)
def test_errors_become_sentences(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, error: type[HeadscopeError], words: str
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise raised

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(error, match=words):
        hub.fetch_from_hub(SOURCE)


def test_close_embedded_name_is_offered() -> None:
    raised = answer(RepositoryNotFoundError)
    with (
        pytest.raises(UnknownModelError, match=r"Did you mean smollm2-135m\?"),
        hub.hub_errors(Source("hub", "someone/smollm2-135")),
    ):
        raise raised


Fake = Callable[[dict[str, str]], list[list[str]]]


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    """Serves files by name; returns the list of patterns that were asked for."""

    def serve(files: dict[str, str]) -> list[list[str]]:
        asked: list[list[str]] = []

        def snapshot(repo: str, **options: Any) -> str:
            assert (repo, options["revision"]) == ("org/name", "main")
            patterns = options["allow_patterns"]
            asked.append(patterns)
            for name, content in files.items():
                if any(Path(name).match(pattern) for pattern in patterns):
                    (tmp_path / name).write_text(content)
            return str(tmp_path)

        monkeypatch.setattr(hub, "snapshot_download", snapshot)
        monkeypatch.setattr(hub.HfApi, "list_repo_files", lambda *_, **__: list(files))
        return asked

    return serve


def test_small_files_come_first_and_python_never(fake_hub: Fake, tmp_path: Path) -> None:
    files = {"config.json": '{"model_type": "bert"}', "model.safetensors": "", "evil.py": ""}
    asked = fake_hub(files)
    assert hub.fetch_from_hub(SOURCE) == (tmp_path, tmp_path.name)
    assert asked[1] == ["model.safetensors"]
    assert not (tmp_path / "evil.py").exists()


def test_shards_are_asked_by_name(fake_hub: Fake) -> None:
    index = json.dumps({"weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors"}})
    files = {"config.json": '{"model_type": "bert"}', "model.safetensors.index.json": index}
    asked = fake_hub(files | {"m-1.safetensors": "", "m-2.safetensors": "", "x.safetensors": ""})
    hub.fetch_from_hub(SOURCE)
    assert asked[1] == ["m-1.safetensors", "m-2.safetensors"]


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        ({"readme.txt": ""}, MissingFileError, r"no config\.json"),
        ({"adapter_config.json": '{"r": 4}'}, AdapterOnlyError, "rank 4"),
        ({"config.json": '{"model_type": "mystery"}'}, UnsupportedModelError, "mystery"),
        (
            {"config.json": '{"model_type": "bert"}', "pytorch_model.bin": ""},
            UnsafeFilesError,
            "can run code",
        ),
        ({"config.json": '{"model_type": "bert"}'}, MissingFileError, "no weights"),
        (
            {
                "config.json": '{"model_type": "bert"}',
                "model.safetensors.index.json": '{"weight_map": {"a": "*.bin"}}',
            },
            UnsafeFilesError,
            "outside its folder",
        ),
    ],
)
def test_repositories_without_a_usable_model(
    fake_hub: Fake, files: dict[str, str], error: type[HeadscopeError], words: str
) -> None:
    fake_hub(files)
    with pytest.raises(error, match=words):
        hub.fetch_from_hub(SOURCE)


def test_offline_machine_gets_a_sentence() -> None:
    # Not played: the library itself, told by the environment to stay offline.
    with pytest.raises(NoNetworkError, match="'org/name' is not on this machine"):
        hub.fetch_from_hub(SOURCE)
