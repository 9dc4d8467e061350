"""Where the program keeps its data: the folder in HEADSCOPE_HOME, or the user's cache folder."""

import os
import sys
from pathlib import Path


def home_folder() -> Path:
    """Returns the folder for converted models and other data; it may not exist yet."""
    named = os.environ.get("HEADSCOPE_HOME", "").strip()
    if named:
        return Path(named).expanduser().absolute()
    return _user_cache_folder() / "headscope"


def models_folder() -> Path:
    """Returns the folder that holds one folder per embedded model."""
    return home_folder() / "models"


def spill_folder() -> Path:
    """Returns the folder for captures that no longer fit into memory."""
    return home_folder() / "spill"


def compiled_folder() -> Path:
    """Returns the folder for machine code of compiled loops."""
    return home_folder() / "compiled"


def words_folder() -> Path:
    """Returns the folder for what finding words keeps between runs."""
    return home_folder() / "words"


def _user_cache_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
