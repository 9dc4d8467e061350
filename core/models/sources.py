"""Decides where a model comes from: an embedded id, a folder, or a hub id; and what is allowed."""

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core.errors import BadInputError, UnknownModelError, UnsafeFilesError
from core.models.catalogue import CATALOGUE

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_MAX_NAME_CHARS = 4096


@dataclass(frozen=True)
class SourcePolicy:
    """What may be opened.

    Attributes:
        roots: folders below which model folders may lie; None: any (a local user's own machine).
        allow_pickle: also open weights in pickle files, which can run code; never for uploads.
        allow_hub: hub ids may be looked up.
    """

    roots: tuple[Path, ...] | None = None
    allow_pickle: bool = False
    allow_hub: bool = True


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        id: what to call it: embedded id, hub id, or the folder as it was named.
        folder: for kind "folder", with all links resolved.
    """

    kind: Literal["embedded", "folder", "hub"]
    id: str
    folder: Path | None = None
    revision: str | None = None


def resolve(model: str, revision: str | None, policy: SourcePolicy) -> Source:
    """Returns where the named model comes from; opens and fetches nothing.

    Raises:
        BadInputError: the name is empty, or a revision was given for something without any.
        UnknownModelError: no such folder or id.
        UnsafeFilesError: the folder is not below an allowed one.
    """
    name = model.strip()
    if not name or "\0" in name or len(name) > _MAX_NAME_CHARS:
        raise BadInputError(
            "No model is named." if not name else "The model's name is not a readable name.",
            f"Give an embedded id ({', '.join(CATALOGUE)}), a folder, or a hub id 'org/name'.",
        )
    if name in CATALOGUE:
        if revision:
            raise BadInputError(
                f"The embedded model {name} has no revisions; '{revision}' was asked for.",
                "Leave the revision empty.",
            )
        return Source("embedded", name)
    folder = _as_folder(name, policy)
    if folder is not None:
        return Source("folder", name, folder)
    if _HUB_ID.fullmatch(name) and ("/" in name or not _close_ids(name)) and policy.allow_hub:
        return Source("hub", name, revision=revision or None)
    raise unknown_model(name)


def unknown_model(name: str) -> UnknownModelError:
    """Returns the error for a name that is nobody's, with near embedded names."""
    close = _close_ids(name)
    near = f"Did you mean {' or '.join(close)}? " if close else ""
    return UnknownModelError(
        f"There is no model '{name}'.",
        f"{near}Embedded are {', '.join(CATALOGUE)}; a folder or a hub id 'org/name' works too.",
    )


def _close_ids(name: str) -> list[str]:
    return difflib.get_close_matches(name.lower().rsplit("/")[-1], CATALOGUE, n=2, cutoff=0.6)


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "~", "/", "\\")) or Path(name).is_absolute() or "\\" in name


def _as_folder(name: str, policy: SourcePolicy) -> Path | None:
    """Returns the resolved folder, or None when the name means a hub id."""
    explicit = _looks_like_path(name)
    if policy.roots is None:
        try:
            path = Path(name).expanduser()
            if path.is_dir():
                return path.resolve()
            exists = path.exists()
        except (OSError, RuntimeError) as error:
            raise UnknownModelError(f"There is no folder '{name}': {error}.") from error
        if exists:
            raise UnknownModelError(
                f"'{name}' is a file, not a folder.",
                "Name the folder that holds config.json and the weights.",
            )
        if explicit:
            raise UnknownModelError(
                f"There is no folder '{name}'.",
                f"Check the path, or choose an embedded model: {', '.join(CATALOGUE)}.",
            )
        return None
    return _below_roots(name, explicit, policy.roots)


def _below_roots(name: str, explicit: bool, roots: tuple[Path, ...]) -> Path | None:
    """As `_as_folder`, for people who may see only what lies below the roots.

    Whether something exists outside is not said: the answer is the same either way.
    """
    resolved_roots = [root.resolve() for root in roots]
    try:
        given = Path(name).expanduser() if name.startswith("~") else Path(name)
        tried = [given] if given.is_absolute() else [root / given for root in resolved_roots]
        inside = [
            path.resolve()
            for path in tried
            if any(path.resolve().is_relative_to(root) for root in resolved_roots)
        ]
    except (OSError, RuntimeError):
        inside = []
    for path in inside:
        if path.is_dir():
            return path
    if not explicit:
        return None
    if inside:
        raise UnknownModelError(
            f"There is no folder '{name}' below the allowed ones.", "Check the path."
        )
    shown = os.pathsep.join(str(root) for root in roots)
    raise UnsafeFilesError(
        f"The folder '{name}' is not below a folder that may be opened here.",
        f"Allowed: {shown}. HEADSCOPE_MODEL_ROOTS names the folders."
        if roots
        else "No folder may be opened: set HEADSCOPE_MODEL_ROOTS where the program is started.",
    )
