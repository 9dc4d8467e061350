"""Fetches a model from the Hugging Face hub: small files first, then only its safetensors.

Weights are fetched only after the config was found acceptable, so that a model that cannot be
shown costs kilobytes. No Python file is ever fetched.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from core.errors import (
    CorruptFileError,
    GatedModelError,
    HeadscopeError,
    MissingFileError,
    NoNetworkError,
    UnknownModelError,
    UnsafeFilesError,
)
from core.models.catalogue import CATALOGUE
from core.models.folder import (
    INDEX_FILE,
    PICKLE_SUFFIXES,
    SINGLE_FILE,
    adapter_error,
    check_config,
    is_plain_name,
    read_json_object,
)
from core.models.sources import Source, unknown_model
from core.results import Progress, ProgressCallback

_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.spm", "*.jinja", "*.tiktoken"]
_SUBFOLDERS = ["*/*"]


def fetch_from_hub(source: Source, progress: ProgressCallback | None = None) -> tuple[Path, str]:
    """Returns the folder of a hub model in the hub's own cache, and its full revision.

    Raises:
        NoNetworkError: the hub cannot be reached and the model is not in the cache.
        GatedModelError, UnknownModelError: the hub says so.
        UnsafeFilesError: there are only pickle files.
        MissingFileError: no weights at all.
    """

    def step(done: int) -> None:
        if progress is not None:
            progress(Progress("fetch", done, 2))

    step(0)
    with hub_errors(source):
        folder = _snapshot(source, _SMALL_FILES)
        config_path = folder / "config.json"
        if not config_path.is_file():
            adapter = folder / "adapter_config.json"
            if adapter.is_file():
                raise adapter_error(read_json_object(adapter))
            raise MissingFileError(
                f"The hub's '{source.id}' has no config.json, so it is not a transformers model.",
                "Choose another model.",
            )
        check_config(read_json_object(config_path))
        step(1)
        folder = _snapshot(source, _weight_names(folder))
        if not any(folder.glob("*.safetensors")):
            _raise_no_safetensors(source)
    step(2)
    return folder, folder.name


@contextmanager
def hub_errors(source: Source) -> Iterator[None]:
    """Turns what the hub's library raises into errors for people."""
    try:
        yield
    except HeadscopeError:
        raise
    except GatedRepoError as error:
        raise GatedModelError(
            f"The hub gives '{source.id}' only to people who accepted its licence.",
            "Accept it on the model's page, run `hf auth login` on this machine, and try again.",
        ) from error
    except RevisionNotFoundError as error:
        raise UnknownModelError(
            f"'{source.id}' has no revision '{source.revision}'.",
            "Give a branch, tag or commit of the model, or leave the revision empty.",
        ) from error
    except DisabledRepoError as error:
        raise UnknownModelError(
            f"The hub has taken '{source.id}' down.", "Choose another model."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise unknown_model(source.id) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError, TimeoutError) as error:
        raise _no_network(source) from error
    except HfHubHTTPError as error:
        raise NoNetworkError(
            f"The hub did not give '{source.id}': {_first_line(error)}", "Try again later."
        ) from error
    except HTTPError as error:
        # The base of what the library's HTTP client raises, whichever client that is.
        raise _no_network(source) from error
    except OSError as error:
        raise MissingFileError(
            f"'{source.id}' could not be stored: {error.strerror or _first_line(error)}.",
            "Free some space, or set HF_HOME to a folder that can be written.",
        ) from error


def _snapshot(source: Source, patterns: list[str]) -> Path:
    return Path(
        snapshot_download(
            source.id,
            revision=source.revision,
            allow_patterns=patterns,
            ignore_patterns=_SUBFOLDERS,
        )
    )


def _weight_names(folder: Path) -> list[str]:
    index = folder / INDEX_FILE
    if not index.is_file():
        return [SINGLE_FILE]
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CorruptFileError(f"{INDEX_FILE} has no weight_map.", "Choose another revision.")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        # Names double as patterns, so they must be plain in both senses.
        if not is_plain_name(name) or any(c in name for c in "*?["):
            raise UnsafeFilesError(
                f"{INDEX_FILE} points outside its folder: '{name}'.", "Choose another model."
            )
    return names


def _raise_no_safetensors(source: Source) -> None:
    files = HfApi().list_repo_files(source.id, revision=source.revision)
    if any(name.endswith(PICKLE_SUFFIXES) for name in files):
        raise UnsafeFilesError(
            f"'{source.id}' has its weights only in files that can run code when opened.",
            "Choose a revision or a copy with safetensors files.",
        )
    raise MissingFileError(f"'{source.id}' has no weights.", "Choose another model.")


def _no_network(source: Source) -> NoNetworkError:
    return NoNetworkError(
        f"'{source.id}' is not on this machine and the hub cannot be reached.",
        f"Check the network, name a local folder, or choose an embedded model: "
        f"{', '.join(CATALOGUE)}.",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
