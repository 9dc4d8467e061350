"""Tiny random model folders and tokenizers, and the embedded models for the tests marked so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers import models as tokenizer_models
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from core.models.loading import LoadedModel, load_model
from core.models.sources import SourcePolicy
from core.results import ModelRequest

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "apple", "bank", "the", "苹果"]


def word_tokenizer(words: list[str] = WORDS, **settings: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(
        tokenizer_models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    roles = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    roles |= {"sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **(roles | settings))


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is a token of its own: each Chinese character is three pieces."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(
        tokenizer_models.BPE({letter: i for i, letter in enumerate(letters)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """A SentencePiece-like vocabulary: what it lacks is written as pieces like <0xE8>."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {"▁": 256, "a": 257, "▁a": 258, "<unk>": 259}
    backend = Tokenizer(
        tokenizer_models.BPE(vocabulary, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete BERT folder with random weights; never changed."""
    folder = tmp_path_factory.mktemp("tiny") / "bert"
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def tiny(tiny_source: Path, tmp_path: Path) -> Path:
    """A copy of the tiny folder that a test may damage."""
    folder = tmp_path / "bert"
    folder.mkdir()
    for path in tiny_source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture
def edit_config(tiny: Path) -> Callable[..., Path]:
    """Changes entries of the tiny folder's config.json and returns the folder."""

    def edit(**entries: Any) -> Path:
        path = tiny / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | entries))
        return tiny

    return edit


@pytest.fixture(scope="session")
def embedded() -> Callable[[str], LoadedModel]:
    """Loads embedded models, each once; fetched and converted where that was not done yet."""
    loaded: dict[str, LoadedModel] = {}

    def get(model_id: str) -> LoadedModel:
        if model_id not in loaded:
            loaded[model_id] = load_model(ModelRequest(model_id), SourcePolicy())
        return loaded[model_id]

    return get
