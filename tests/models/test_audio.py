"""Reading sound: files as other programs write them, rates, and files that are no sound."""

import dataclasses
import struct
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import HeadscopeError
from core.models.audio import encode_sound, read_wav, resample
from core.models.loading import LoadedModel
from core.models.tokens import generate_target

SAMPLE = Path(__file__).parents[1] / "data" / "ask_not.wav"
EXTENSIBLE_TAIL = struct.pack("<HHI", 22, 32, 0)


def riff(code: int, bits: int, data: bytes, *, channels: int = 1, rate: int = 16000) -> bytes:
    """A WAV file written by hand; code 0xFFFE puts the encoding "float" into the longer header."""
    frame = channels * bits // 8
    header = struct.pack("<HHIIHH", code, channels, rate, rate * frame % 2**32, frame, bits)
    if code == 0xFFFE:
        header += EXTENSIBLE_TAIL + struct.pack("<H", 3) + bytes(14)
    body = b"fmt " + struct.pack("<I", len(header)) + header
    body += b"LIST" + struct.pack("<I", 3) + b"odd\0"
    body += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@pytest.fixture
def save(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "sound.wav"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (1, bytes([128, 192, 0, 129])),
        (2, struct.pack("<4h", 0, 16384, -32768, 256)),
        (3, b"".join(v.to_bytes(3, "little", signed=True) for v in (0, 2**22, -(2**23), 2**16))),
        (4, struct.pack("<4i", 0, 2**30, -(2**31), 2**24)),
    ],
)
def test_integers_of_all_widths_are_read(tmp_path: Path, width: int, data: bytes) -> None:
    path = tmp_path / "sound.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(width)
        file.setframerate(22050)
        file.writeframes(data)
    samples, rate = read_wav(path)
    assert rate == 22050
    np.testing.assert_array_equal(samples, np.float32([0, 0.5, -1, 2**-7]))


@pytest.mark.parametrize("code", [3, 0xFFFE])
def test_floats_are_read(save: Callable[[bytes], Path], code: int) -> None:
    samples, _ = read_wav(save(riff(code, 32, floats(0, 0.25, -1.5))))
    np.testing.assert_array_equal(samples, np.float32([0, 0.25, -1.5]))
    doubles, _ = read_wav(save(riff(3, 64, struct.pack("<2d", 0.5, -0.125))))
    np.testing.assert_array_equal(doubles, np.float32([0.5, -0.125]))


def test_two_channels_are_mixed(save: Callable[[bytes], Path]) -> None:
    samples, _ = read_wav(save(riff(3, 32, floats(1, 0, -0.5, 0.25), channels=2)))
    np.testing.assert_array_equal(samples, np.float32([0.5, -0.125]))


def test_a_stream_of_unknown_length_is_read_to_its_end(save: Callable[[bytes], Path]) -> None:
    data = riff(3, 32, floats(0.5, 0.25)).replace(b"data\x08\0\0\0", b"data" + b"\xff\xff\xff\xff")
    np.testing.assert_array_equal(read_wav(save(data))[0], np.float32([0.5, 0.25]))


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000])
def test_a_tone_stays_the_same_tone_at_another_rate(rate: int) -> None:
    seconds, tone_hz = 1.3, 440
    at = np.arange(int(seconds * rate)) / rate
    made = resample(np.sin(2 * np.pi * tone_hz * at).astype(np.float32), rate, 16000)
    exact = np.sin(2 * np.pi * tone_hz * np.arange(len(made)) / 16000)
    assert abs(len(made) - seconds * 16000) <= 2
    # The tone starts and ends abruptly, which rings within a few hundred samples of both ends.
    np.testing.assert_allclose(made[800:-800], exact[800:-800], atol=2e-3)


def test_what_the_lower_rate_cannot_hold_does_not_come_back_as_another_tone() -> None:
    at = np.arange(44100) / 44100
    # Every third sample taken alone would turn 10 kHz into a loud 6 kHz.
    made = resample(np.sin(2 * np.pi * 10_000 * at).astype(np.float32), 44100, 16000)
    assert np.abs(made[800:-800]).max() < 5e-3


NAN, INFINITY = float("nan"), float("inf")
GOOD = riff(1, 16, bytes(3200))


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"", "bad-input", "is empty"),
        (b"ID3\x04 an mp3 file, really", "bad-input", "not a WAV file"),
        (b"RIFF", "bad-input", "not a WAV file"),
        (GOOD[:12], "corrupt-file", "ends before"),
        (GOOD[:30], "corrupt-file", "ends before"),
        (GOOD[:-1], "corrupt-file", "ends before"),
        (GOOD[:-1600], "corrupt-file", "ends before"),
        (riff(3, 32, floats(0.5)[:-1]), "corrupt-file", "ends before"),
        (riff(1, 16, b""), "bad-input", "0 samples"),
        (riff(2, 4, bytes(64)), "bad-input", "encoding 2, 4 bits"),
        (riff(7, 8, bytes(64)), "bad-input", "encoding 7, 8 bits"),
        (riff(1, 16, bytes(64), channels=0), "corrupt-file", "damaged header"),
        (riff(1, 16, bytes(64), rate=0), "bad-input", "1,000 to 192,000"),
        (riff(1, 16, bytes(64), rate=2**32 - 100), "bad-input", "1,000 to 192,000"),
        (riff(3, 32, floats(0, NAN)), "corrupt-file", "NaN"),
        (riff(3, 32, floats(0, -INFINITY)), "corrupt-file", "NaN"),
        (riff(3, 32, floats(0, 1e38)), "corrupt-file", "2^31"),
        (riff(3, 64, struct.pack("<d", 1e300)), "corrupt-file", "NaN"),
    ],
)
def test_files_that_are_no_sound_are_refused_in_words(
    save: Callable[[bytes], Path], data: bytes, kind: str, words: str
) -> None:
    with pytest.raises(HeadscopeError) as caught:
        read_wav(save(data))
    assert caught.value.kind == kind
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/no/such/file.wav", "no file"),
        ("/", "no ordinary file"),
        ("/dev/zero", "no ordinary file"),
        ("a\0b.wav", "cannot be read"),
    ],
)
def test_paths_that_are_no_files_are_refused(path: str, words: str) -> None:
    with pytest.raises(HeadscopeError, match=words) as caught:
        read_wav(Path(path))
    assert caught.value.kind == "bad-input"


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.wav"
    with path.open("wb") as file:
        file.truncate(40 * 2**30)
    with pytest.raises(HeadscopeError, match="40960 MiB; at most 64 MiB") as caught:
        read_wav(path)
    assert caught.value.kind == "too-large"


Embedded = Callable[[str], LoadedModel]


@pytest.mark.models
def test_features_are_those_of_the_same_sound_at_its_own_rate(
    embedded: Embedded, save: Callable[[bytes], Path]
) -> None:
    whisper = embedded("whisper-tiny-en")
    direct = encode_sound(whisper, SAMPLE).inputs["input_features"]
    with wave.open(str(SAMPLE)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    # Three times the rate, by filling up the spectrum of the padded whole.
    wide = np.fft.rfft(samples, 10 * 16000)
    tripled = np.fft.irfft(wide, 10 * 48000)[: 3 * len(samples)] * 3
    stereo = np.stack([tripled * 1.5, tripled * 0.5], 1).astype("<f4").tobytes()
    heard = encode_sound(whisper, save(riff(3, 32, stereo, channels=2, rate=48000)))
    assert heard.inputs["input_features"].shape == (1, 80, 3000)
    assert float((heard.inputs["input_features"] - direct).abs().max()) < 0.02


@pytest.mark.models
@pytest.mark.parametrize("knows_timestamps", [False, True])
def test_generated_target_begins_with_all_that_the_decoder_was_started_with(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch, knows_timestamps: bool
) -> None:
    whisper = embedded("whisper-tiny-en")
    settings: Any = whisper.module.generation_config
    # Given the id, the library starts with both tokens and answers with neither.
    if knows_timestamps:
        monkeypatch.setattr(settings, "no_timestamps_token_id", 50362, raising=False)
    features = encode_sound(whisper, SAMPLE).inputs["input_features"]
    made = generate_target(whisper, features)
    assert [t.text for t in made.tokens[:3]] == [
        "<|startoftranscript|>", "<|notimestamps|>", "▁Ask",
    ]  # fmt: skip
    assert not whisper.module.get_decoder()._forward_pre_hooks  # type: ignore[operator]


@pytest.mark.models
def test_positions_are_named_by_their_time(embedded: Embedded) -> None:
    heard = encode_sound(embedded("whisper-tiny-en"), SAMPLE)
    labels = [token.text for token in heard.tokens]
    assert (len(labels), labels[:3], labels[-1]) == (
        1500,
        ["0.00 s", "0.02 s", "0.04 s"],
        "29.98 s",
    )
    assert len(set(labels)) == 1500
    assert "4.90 s" in heard.note
    assert "30 s" in heard.note


@pytest.mark.models
def test_a_long_sound_is_refused_or_cut(embedded: Embedded, save: Callable[[bytes], Path]) -> None:
    whisper = embedded("whisper-tiny-en")
    tone = (8000 * np.sin(np.arange(31 * 8000) / 5)).astype("<i2")
    path = save(riff(1, 16, tone.tobytes(), rate=8000))
    with pytest.raises(HeadscopeError, match=r"lasts 31.0 s; at most 30 s") as caught:
        encode_sound(whisper, path)
    assert caught.value.kind == "too-large"
    cut = encode_sound(whisper, path, truncate=True)
    assert "only the first 30 s" in cut.note
    assert "pads" not in cut.note
    whole = encode_sound(whisper, save(riff(1, 16, tone[: 30 * 8000].tobytes(), rate=8000)))
    assert whole.note == ""
    assert (cut.inputs["input_features"] == whole.inputs["input_features"]).all()


@pytest.mark.models
def test_without_an_extractor_whisper_hears_the_same(embedded: Embedded) -> None:
    whisper = embedded("whisper-tiny-en")
    bare: Any = dataclasses.replace(whisper, feature_extractor=None)
    one, other = (encode_sound(m, SAMPLE).inputs["input_features"] for m in (whisper, bare))
    assert (one == other).all()
