"""Turns a WAV file into what a model that listens takes, and names its positions by their time."""

import math
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import WhisperFeatureExtractor

from core.errors import (
    BadInputError,
    CorruptFileError,
    MissingFileError,
    TooLargeError,
    UnsupportedModelError,
)
from core.limits import MAX_AUDIO_BYTES, MAX_AUDIO_RATE, MAX_AUDIO_S, MIB, MIN_AUDIO_RATE
from core.models.loading import LoadedModel
from core.results import Token

Samples = NDArray[np.float32]

_INTEGERS, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE
# Programs that write into a pipe cannot know the length and put this in its place.
_UNKNOWN_SIZE = 0xFFFFFFFF
# Floats may be scaled like 32-bit integers; anything beyond that is no sound.
_LOUDEST = 2.0**31
# Two feature frames become one position of Whisper's encoder.
_WHISPER_STRIDE = 2
_HOW_TO_CONVERT = "Convert it to WAV, for example: ffmpeg -i FILE -ac 1 -ar 16000 FILE.wav"


@dataclass(frozen=True)
class EncodedSound:
    """A sound as the model hears it.

    Attributes:
        inputs: keyword arguments of the module's forward, one sound.
        tokens: one a position of the encoder, named by the time at which it starts.
        note: what people should know (padded, cut).
    """

    inputs: Mapping[str, Tensor]
    tokens: tuple[Token, ...]
    note: str


@dataclass(frozen=True)
class _Layout:
    """How the samples of a WAV file are written."""

    is_float: bool
    n_channels: int
    rate: int
    bits: int

    @property
    def frame_bytes(self) -> int:
        return self.n_channels * self.bits // 8


def encode_sound(loaded: LoadedModel, path: Path, *, truncate: bool = False) -> EncodedSound:
    """Returns the inputs and positions of a sound, all limits checked before any model runs.

    Args:
        path: a WAV file of at most 30 s.
        truncate: read the first 30 s of a longer one instead of refusing it.

    Raises:
        BadInputError: not a file, not a WAV file, or nothing in it.
        CorruptFileError: the file ends too early, or its samples are no numbers.
        TooLargeError: longer than 30 s, or a file above the limit.
        MissingFileError, UnsupportedModelError: nothing says how this model hears.
    """
    samples, rate = read_wav(path)
    duration = len(samples) / rate
    note = ""
    if duration > MAX_AUDIO_S:
        if not truncate:
            raise TooLargeError(
                f"The sound lasts {duration:.1f} s; at most {MAX_AUDIO_S} s are read.",
                "Cut it, or have it cut to the limit (--truncate on the command line).",
            )
        samples = samples[: MAX_AUDIO_S * rate]
        note = f"The sound lasts {duration:.1f} s; only the first {MAX_AUDIO_S} s were read. "
    extractor = _extractor_of(loaded)
    wanted = int(extractor.sampling_rate)
    samples = resample(samples, rate, wanted)
    module: Any = loaded.module
    name = str(module.main_input_name)
    features = extractor(samples, sampling_rate=wanted, return_tensors="pt")[name]
    if name == "input_features":
        _check_features(loaded, features)
        step_s = _WHISPER_STRIDE * extractor.hop_length / wanted
    else:
        step_s = module.config.inputs_to_logits_ratio / wanted
    n_positions = int(module._get_feat_extract_output_lengths(torch.tensor(features.shape[-1])))
    if n_positions < 1:
        raise BadInputError(
            f"The sound is too short for {loaded.info.id}: {len(samples)} samples at {wanted} Hz.",
            f"Give at least {step_s:.2f} s of sound.",
        )
    heard_s = n_positions * step_s
    if name == "input_features" and duration < heard_s:
        note += (
            f"The sound lasts {duration:.2f} s. {loaded.info.id} pads every sound with silence to "
            f"{heard_s:.0f} s and looks at all {n_positions:,} positions, one every {step_s:.2f} s."
        )
    weight = next(module.parameters())
    n_decimals = max(2, math.ceil(-math.log10(step_s)))
    tokens = tuple(Token(i, f"{i * step_s:.{n_decimals}f} s", None) for i in range(n_positions))
    return EncodedSound({name: features.to(weight.device, weight.dtype)}, tokens, note.strip())


def read_wav(path: Path) -> tuple[Samples, int]:
    """Returns samples [sample], -1..1, all channels mixed into one, and their rate in Hz.

    Integers of 8, 16, 24 and 32 bits and floats of 32 and 64 are read.

    Raises:
        BadInputError, CorruptFileError, TooLargeError: as for `encode_sound`.
    """
    layout, data = _chunks(_read(path), path.name)
    samples = _numbers(data, layout)
    if not len(samples):
        raise BadInputError(f"'{path.name}' holds no sound (0 samples).", "Record it again.")
    # NaN is not below the limit either.
    if not np.abs(samples).max() <= _LOUDEST:
        raise CorruptFileError(
            f"'{path.name}' holds samples that are no sound (NaN, infinity or above 2^31).",
            "Write it again, as 16-bit integers for example.",
        )
    return samples.reshape(-1, layout.n_channels).mean(1, dtype=np.float32), layout.rate


def resample(samples: Samples, rate: int, wanted: int) -> Samples:
    """Returns the same sound at another rate, with everything above half of it left out.

    The spectrum is cut or extended. Silence up to a whole second more makes the number of samples
    exact, and takes up what would come round from the end to the start.
    """
    if rate == wanted:
        return samples
    n_seconds = -(-len(samples) // rate) + 1
    spectrum = np.fft.rfft(samples, n_seconds * rate)
    made = np.fft.irfft(spectrum[: n_seconds * wanted // 2 + 1], n_seconds * wanted)
    n_wanted = -(-len(samples) * wanted // rate)
    return (made[:n_wanted] * (wanted / rate)).astype(np.float32)


def _read(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise BadInputError(f"'{path}' is no ordinary file.", "Name a WAV file.")
        if found.st_size > MAX_AUDIO_BYTES:
            raise TooLargeError(
                f"'{path.name}' has {found.st_size / MIB:.0f} MiB; at most "
                f"{MAX_AUDIO_BYTES / MIB:.0f} MiB are read.",
                f"Cut it to {MAX_AUDIO_S} s.",
            )
        with path.open("rb") as file:
            return file.read(MAX_AUDIO_BYTES)
    except FileNotFoundError as error:
        raise BadInputError(f"There is no file '{path}'.", "Check the path.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"'{path}' cannot be read: {reason}.", "Check the path.") from error


def _chunks(data: bytes, name: str) -> tuple[_Layout, bytes]:
    """Returns how the samples are written, and their bytes."""
    if not data:
        raise BadInputError(f"'{name}' is empty.", "Name a WAV file with sound in it.")
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise BadInputError(f"'{name}' is not a WAV file.", _HOW_TO_CONVERT)
    layout: _Layout | None = None
    place = 12
    while place + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, place)
        body = data[place + 8 : place + 8 + size]
        if len(body) < size and not (kind == b"data" and size == _UNKNOWN_SIZE):
            break
        if kind == b"fmt ":
            layout = _layout(body, name)
        elif kind == b"data" and layout is not None:
            if len(body) % layout.frame_bytes:
                break
            return layout, body
        place += 8 + size + size % 2
    raise CorruptFileError(
        f"'{name}' ends before its sound does (it has {len(data):,} bytes).",
        "Copy or record it again.",
    )


def _layout(body: bytes, name: str) -> _Layout:
    if len(body) < 16:
        raise CorruptFileError(f"'{name}' has a damaged header.", "Copy or record it again.")
    code, n_channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", body)
    if code == _EXTENSIBLE and len(body) >= 26:
        # The first two bytes of the long name of the encoding are its old number.
        code = int.from_bytes(body[24:26], "little")
    known = {_INTEGERS: (8, 16, 24, 32), _FLOATS: (32, 64)}
    if code not in known or bits not in known[code]:
        raise BadInputError(
            f"The sound in '{name}' is written in a way that is not read (encoding {code}, "
            f"{bits} bits); plain integers and floats are.",
            _HOW_TO_CONVERT,
        )
    layout = _Layout(code == _FLOATS, n_channels, rate, bits)
    if n_channels == 0 or layout.frame_bytes != frame_bytes:
        raise CorruptFileError(f"'{name}' has a damaged header.", "Copy or record it again.")
    if not MIN_AUDIO_RATE <= rate <= MAX_AUDIO_RATE:
        raise BadInputError(
            f"'{name}' has {rate:,} samples a second; {MIN_AUDIO_RATE:,} to {MAX_AUDIO_RATE:,} "
            "are read.",
            _HOW_TO_CONVERT,
        )
    return layout


def _numbers(data: bytes, layout: _Layout) -> Samples:
    if layout.is_float:
        # Doubles beyond the range of floats become infinite, which is refused.
        with np.errstate(over="ignore"):
            read: Samples = np.frombuffer(data, f"<f{layout.bits // 8}").astype(np.float32)
        return read
    if layout.bits == 8:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(128)
    # Put at the upper end of 32 bits, whatever their own size.
    size = layout.bits // 8
    wide = np.zeros((len(data) // size, 4), np.uint8)
    wide[:, 4 - size :] = np.frombuffer(data, np.uint8).reshape(-1, size)
    return (wide.view("<i4")[:, 0] / 2.0**31).astype(np.float32)


def _extractor_of(loaded: LoadedModel) -> Any:
    """Returns what turns samples into features: the checkpoint's own, or Whisper's usual one."""
    if loaded.feature_extractor is not None:
        return loaded.feature_extractor
    n_mels = getattr(getattr(loaded.module, "config", None), "num_mel_bins", None)
    if loaded.info.family == "whisper" and n_mels:
        return WhisperFeatureExtractor(feature_size=n_mels)
    raise MissingFileError(
        f"{loaded.info.id} has no preprocessor_config.json, which says how it hears.",
        "Save the feature extractor into the same folder (feature_extractor.save_pretrained).",
    )


def _check_features(loaded: LoadedModel, features: Tensor) -> None:
    config: Any = loaded.module.config
    wanted = None
    if loaded.info.family == "whisper":
        wanted = (1, config.num_mel_bins, _WHISPER_STRIDE * config.max_source_positions)
    if wanted != tuple(features.shape):
        raise UnsupportedModelError(
            f"The feature extractor of {loaded.info.id} ({loaded.info.family}) makes "
            f"{tuple(features.shape)}; {wanted or 'no such shape'} is known for this family.",
            "Pick a Whisper or Wav2Vec2 model.",
        )
