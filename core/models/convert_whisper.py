"""Turns a CTranslate2 Whisper file into a folder that transformers reads.

The file is a list of named arrays. Query, key and value of self attention are stacked in one
matrix (key and value in cross attention); Whisper's key projection has no bias, so the stacked
bias is zero there, which is checked. The output projection is the embedding itself.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from core.errors import CorruptFileError
from core.models.binary import BinaryReader

_DTYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
_MULTILINGUAL_VOCABULARY = 51_865
_END_OF_TEXT = "<|endoftext|>"
_MAX_TARGET_TOKENS = 448

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class _Special:
    """Token ids that differ between the English and the multilingual vocabulary."""

    end_of_text: int
    start: int
    no_timestamps: int


_ENGLISH = _Special(end_of_text=50_256, start=50_257, no_timestamps=50_362)
_MULTILINGUAL = _Special(end_of_text=50_257, start=50_258, no_timestamps=50_363)


def convert_whisper(source: Path, target: Path) -> None:
    """Writes config, float32 weights, tokenizer and feature extractor into `target`.

    Args:
        source: folder with model.bin, config.json and tokenizer.json.

    Raises:
        CorruptFileError: model.bin is not what it says it is, or tensors are missing.
    """
    arrays = read_arrays((source / "model.bin").read_bytes(), "model.bin")
    try:
        config = _config(arrays)
        model = WhisperForConditionalGeneration(config)
        report = model.load_state_dict(_state(arrays, config), strict=False)
    except (KeyError, ValueError, RuntimeError) as error:
        raise CorruptFileError(f"model.bin does not hold a Whisper model: {error}.") from error
    # The output projection is the embedding, which is there.
    missing = set(report.missing_keys) - {"proj_out.weight"}
    if missing or report.unexpected_keys:
        raise CorruptFileError(
            f"model.bin lacks {sorted(missing)[:3]} and has unknown {report.unexpected_keys[:3]}."
        )
    model.tie_weights()
    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    model.generation_config = _generation_config(config, settings)
    model.save_pretrained(target)
    WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(target)
    roles = dict.fromkeys(("eos_token", "bos_token", "pad_token", "unk_token"), _END_OF_TEXT)
    PreTrainedTokenizerFast(tokenizer_file=str(source / "tokenizer.json"), **roles).save_pretrained(
        target
    )


def read_arrays(data: bytes, name: str) -> dict[str, NDArray[Any]]:
    """Returns the named arrays of a CTranslate2 file.

    Raises:
        CorruptFileError: it holds another kind of model, or ends too early.
    """
    reader = BinaryReader(memoryview(data), name)

    def text() -> str:
        return bytes(reader.take(reader.number("H"))).rstrip(b"\0").decode()

    reader.number("I")  # version of the container
    specification = text()
    if specification != "WhisperSpec":
        raise CorruptFileError(f"{name} holds a '{specification}'; a WhisperSpec is known.")
    reader.number("I")  # revision of the specification
    arrays: dict[str, NDArray[Any]] = {}
    for _ in range(reader.number("I")):
        key = text()
        shape = reader.numbers(f"{reader.number('B')}I")
        kind = reader.number("B")
        if kind not in _DTYPES:
            raise CorruptFileError(f"{name}: '{key}' has data type {kind}; known: 0 to 4.")
        array = np.frombuffer(reader.take(reader.number("I")), _DTYPES[kind])
        if array.size != int(np.prod(shape)):
            raise CorruptFileError(f"{name}: '{key}' has {array.size} numbers for shape {shape}.")
        arrays[key] = array.reshape(shape)
    return arrays


def _config(arrays: Arrays) -> WhisperConfig:
    vocabulary, d_model = arrays["decoder/embeddings/weight"].shape
    special = _special(vocabulary)
    heads = int(arrays["encoder/num_heads"])
    return WhisperConfig(
        vocab_size=vocabulary,
        d_model=d_model,
        encoder_layers=_n_layers(arrays, "encoder"),
        decoder_layers=_n_layers(arrays, "decoder"),
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * d_model,
        decoder_ffn_dim=4 * d_model,
        num_mel_bins=arrays["encoder/conv1/weight"].shape[1],
        max_target_positions=arrays["decoder/position_encodings/encodings"].shape[0],
        bos_token_id=special.end_of_text,
        eos_token_id=special.end_of_text,
        pad_token_id=special.end_of_text,
        decoder_start_token_id=special.start,
    )


def _special(vocabulary: int) -> _Special:
    return _MULTILINGUAL if vocabulary >= _MULTILINGUAL_VOCABULARY else _ENGLISH


def _n_layers(arrays: Arrays, side: str) -> int:
    found = (re.match(rf"{side}/layer_(\d+)/", key) for key in arrays)
    return 1 + max(int(match[1]) for match in found if match)


def _state(arrays: Arrays, config: WhisperConfig) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}

    def read(key: str) -> Tensor:
        return torch.from_numpy(arrays[key].astype(np.float32))

    def copy(target: str, source: str, names: Mapping[str, str]) -> None:
        for ours, theirs in names.items():
            state[f"{target}.{ours}"] = read(f"{source}/{theirs}")

    plain = {"weight": "weight", "bias": "bias"}
    norm = {"weight": "gamma", "bias": "beta"}

    def stacked(target: str, source: str, parts: tuple[str, ...]) -> None:
        weights = read(f"{source}/weight").chunk(len(parts))
        biases = read(f"{source}/bias").chunk(len(parts))
        for part, weight, bias in zip(parts, weights, biases, strict=True):
            state[f"{target}.{part}.weight"] = weight.contiguous()
            if part != "k_proj":
                state[f"{target}.{part}.bias"] = bias.contiguous()
            elif bias.abs().max() != 0:
                raise CorruptFileError(f"model.bin: the key bias in '{source}' is not zero.")

    for name in ("conv1", "conv2"):
        copy(f"model.encoder.{name}", f"encoder/{name}", plain)
    for side in ("encoder", "decoder"):
        positions = read(f"{side}/position_encodings/encodings")
        state[f"model.{side}.embed_positions.weight"] = positions
        copy(f"model.{side}.layer_norm", f"{side}/layer_norm", norm)
        n_layers = config.encoder_layers if side == "encoder" else config.decoder_layers
        for layer in range(n_layers):
            ours, theirs = f"model.{side}.layers.{layer}", f"{side}/layer_{layer}"
            attention = f"{theirs}/self_attention"
            copy(f"{ours}.self_attn_layer_norm", f"{attention}/layer_norm", norm)
            stacked(f"{ours}.self_attn", f"{attention}/linear_0", ("q_proj", "k_proj", "v_proj"))
            copy(f"{ours}.self_attn.out_proj", f"{attention}/linear_1", plain)
            if side == "decoder":
                cross, attention = f"{ours}.encoder_attn", f"{theirs}/attention"
                copy(f"{cross}_layer_norm", f"{attention}/layer_norm", norm)
                copy(f"{cross}.q_proj", f"{attention}/linear_0", plain)
                stacked(cross, f"{attention}/linear_1", ("k_proj", "v_proj"))
                copy(f"{cross}.out_proj", f"{attention}/linear_2", plain)
            copy(f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm", norm)
            copy(f"{ours}.fc1", f"{theirs}/ffn/linear_0", plain)
            copy(f"{ours}.fc2", f"{theirs}/ffn/linear_1", plain)
    state["model.decoder.embed_tokens.weight"] = read("decoder/embeddings/weight")
    return state


def _generation_config(config: WhisperConfig, settings: Mapping[str, Any]) -> GenerationConfig:
    made = GenerationConfig.from_model_config(config)
    made.update(
        suppress_tokens=[t for t in settings.get("suppress_ids", []) if t >= 0],
        begin_suppress_tokens=settings.get("suppress_ids_begin"),
        max_length=_MAX_TARGET_TOKENS,
    )
    # Whisper's own settings, which the class does not declare.
    own = {
        "alignment_heads": settings.get("alignment_heads"),
        "no_timestamps_token_id": _special(config.vocab_size).no_timestamps,
        "is_multilingual": config.vocab_size >= _MULTILINGUAL_VOCABULARY,
    }
    for name, value in own.items():
        setattr(made, name, value)
    return made
