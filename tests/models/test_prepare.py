"""Fetching and converting: pinned, atomic, once, and clear when it cannot be done."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from core.errors import CancelledError, CorruptFileError, NoNetworkError, UnknownModelError
from core.home import home_folder
from core.models import prepare
from core.models.catalogue import CATALOGUE, DEFAULT_MODEL_ID, EmbeddedModel, Wheel
from core.models.fetch import REQUIREMENTS, check_sha256, pip_error, unpack
from core.models.prepare import MARKER_NAME, is_ready, prepare_model
from core.results import Progress

ROOT = Path(__file__).parents[2]
TINY_ID = "tiny-copied"


def make_wheel(folder: Path) -> Wheel:
    """Writes a small wheel into the folder and returns its pin."""
    path = folder / "headscope_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("headscope_tiny/config.json", "{}")
        archive.writestr("headscope_tiny/unwanted.py", "raise SystemExit")
        archive.writestr(
            "headscope_tiny-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: headscope-tiny\nVersion: 1.0\n",
        )
        archive.writestr(
            "headscope_tiny-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("headscope_tiny-1.0.dist-info/RECORD", "")
    return Wheel(
        "headscope-tiny",
        "1.0",
        hashlib.sha256(path.read_bytes()).hexdigest(),
        path.stat().st_size,
        MappingProxyType({"headscope_tiny/config.json": "config.json"}),
    )


def tiny_model(wheel: Wheel) -> EmbeddedModel:
    model = CATALOGUE["minilm-en"]
    return replace(model, info=replace(model.info, id=TINY_ID), wheel=wheel)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip looks into, and a data folder of the test's own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("HEADSCOPE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        prepare, "CATALOGUE", MappingProxyType({TINY_ID: tiny_model(make_wheel(folder))})
    )
    return folder


def test_requirements_file_equals_catalogue() -> None:
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins == [model.wheel.requirement for model in CATALOGUE.values()]


def test_default_is_the_multilingual_encoder() -> None:
    assert DEFAULT_MODEL_ID == "e5-small-multilingual"


def test_home_is_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADSCOPE_HOME", str(tmp_path))
    assert home_folder() == tmp_path
    monkeypatch.delenv("HEADSCOPE_HOME")
    assert home_folder().name == "headscope"


def test_prepare_keeps_only_the_named_files_and_no_wheel(wheels: Path) -> None:
    seen: list[Progress] = []
    folder = prepare_model(TINY_ID, seen.append)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", MARKER_NAME]
    beside = {path.name for path in folder.parent.iterdir()}
    assert beside == {TINY_ID, f".{TINY_ID}.lock"}
    assert {p.stage for p in seen} == {"fetch"}
    assert seen[-1].done == seen[-1].total


def test_prepare_does_nothing_the_second_time(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare_model(TINY_ID)
    monkeypatch.setattr(prepare, "fetch_wheel", lambda *_: pytest.fail("fetched again"))
    assert prepare_model(TINY_ID) == first


def test_prepare_replaces_what_another_source_made(wheels: Path) -> None:
    folder = prepare_model(TINY_ID)
    (folder / MARKER_NAME).write_text('{"source_sha256": "old"}')
    (folder / "stale.txt").write_text("from an older converter")
    assert not (prepare_model(TINY_ID) / "stale.txt").exists()


def test_prepare_leaves_nothing_when_the_conversion_fails(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CorruptFileError("broken on purpose")

    monkeypatch.setattr(prepare, "_convert", fail)
    with pytest.raises(CorruptFileError, match="on purpose"):
        prepare_model(TINY_ID)
    assert [p.name for p in (wheels.parent / "home/models").iterdir()] == [f".{TINY_ID}.lock"]


def test_prepare_can_be_cancelled(wheels: Path) -> None:
    def cancel(progress: Progress) -> None:
        if progress.done == 1:
            raise CancelledError

    with pytest.raises(CancelledError):
        prepare_model(TINY_ID, cancel)
    assert not (wheels.parent / "home/models" / TINY_ID).exists()


def test_prepare_without_network_says_what_to_do(wheels: Path) -> None:
    for path in wheels.iterdir():
        path.unlink()
    with pytest.raises(NoNetworkError, match=r"headscope-tiny==1\.0.*PIP_FIND_LINKS"):
        prepare_model(TINY_ID)


def test_prepare_refuses_a_wheel_that_is_not_the_pinned_one(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = replace(make_wheel(wheels), sha256="0" * 64)
    monkeypatch.setattr(prepare, "CATALOGUE", {TINY_ID: tiny_model(wheel)})
    with pytest.raises(CorruptFileError, match="not the one that was pinned"):
        prepare_model(TINY_ID)


def test_prepare_of_an_unknown_id_names_the_choices() -> None:
    with pytest.raises(UnknownModelError, match="minilm-en"):
        prepare_model("minilm")


_CHILD = """
import sys, time
from pathlib import Path
from core.models import prepare
from core.models.catalogue import Wheel
from tests.models.test_prepare import TINY_ID, tiny_model
sha256, touched = sys.argv[1:]
wheel = Wheel(
    "headscope-tiny", "1.0", sha256, 1, {"headscope_tiny/config.json": "config.json"}
)
prepare.CATALOGUE = {TINY_ID: tiny_model(wheel)}
convert = prepare._convert
def slow(*parts):
    Path(touched).touch(exist_ok=False)
    time.sleep(1)
    convert(*parts)
prepare._convert = slow
assert prepare.prepare_model(TINY_ID).is_dir()
"""


def test_two_processes_convert_once(wheels: Path, tmp_path: Path) -> None:
    pin = hashlib.sha256(next(wheels.iterdir()).read_bytes()).hexdigest()
    # The second to convert would find the file and fail.
    command = [sys.executable, "-c", _CHILD, pin, str(tmp_path / "converted")]
    running = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    assert (tmp_path / "converted").exists()


def test_is_ready_follows_the_folder(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_ready(TINY_ID)
    prepare_model(TINY_ID)
    assert is_ready(TINY_ID)


def test_check_sha256_names_both_sums(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    check_sha256(path, hashlib.sha256(b"abc").hexdigest())
    with pytest.raises(CorruptFileError, match="f" * 64):
        check_sha256(path, "f" * 64)


def test_unpack_says_which_file_is_missing(tmp_path: Path) -> None:
    wheel = replace(make_wheel(tmp_path), members={"headscope_tiny/model.bin": "model.bin"})
    with pytest.raises(CorruptFileError, match=r"model\.bin"):
        unpack(next(tmp_path.glob("*.whl")), wheel, tmp_path)


@pytest.mark.parametrize(
    ("output", "error", "words"),
    [
        ("/usr/bin/python: No module named pip", Exception, "has no pip"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM", CorruptFileError, "pinned"),
        ("ERROR: [Errno 28] No space left on device", Exception, "disk is full"),
        ("ERROR: No matching distribution found", NoNetworkError, "No matching distribution"),
        ("", NoNetworkError, "no output"),
    ],
)
def test_pip_error_reads_the_output(output: str, error: type[Exception], words: str) -> None:
    made = pip_error(CATALOGUE["minilm-en"].wheel, output)
    assert isinstance(made, error)
    assert words in str(made)
