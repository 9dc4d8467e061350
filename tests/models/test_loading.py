"""Loading folders: tiny models with random weights of several families, healthy and damaged."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModel,
    BartConfig,
    DebertaV2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    RobertaConfig,
    T5Config,
    ViTConfig,
    ViTModel,
)

from core.errors import (
    BadInputError,
    CorruptFileError,
    HeadscopeError,
    InternalError,
    MissingFileError,
    OutOfMemoryError,
    UnsafeFilesError,
)
from core.models import loading, placement
from core.models.failures import explain, loading_errors
from core.models.folder import SINGLE_FILE, FolderReport
from core.models.loading import LoadedModel, common_prefix, load_model, wrap_module
from core.models.sources import SourcePolicy
from core.results import ModelRequest, Progress
from tests.models.conftest import WORDS, word_tokenizer

ANY = SourcePolicy()
SMALL: dict[str, Any] = {"vocab_size": len(WORDS), "pad_token_id": 0}
DECODER = SMALL | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER |= {"intermediate_size": 32, "bos_token_id": 2, "eos_token_id": 3}


def load(folder: Path, **request: Any) -> LoadedModel:
    return load_model(ModelRequest(str(folder), **request), ANY)


def saved(config: PreTrainedConfig, folder: Path, auto: Any = AutoModel) -> Path:
    auto.from_config(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def test_loads_an_encoder_without_its_pooler(tiny: Path) -> None:
    seen: list[Progress] = []
    loaded = load_model(ModelRequest(str(tiny)), ANY, seen.append)
    assert not loaded.module.training
    assert not any("pooler" in name for name, _ in loaded.module.named_parameters())
    assert (loaded.missing_keys, loaded.info.note) == ((), "")
    info = loaded.info
    assert (info.kind, info.n_layers, info.n_heads, info.head_dim) == ("encoder", 2, 4, 4)
    assert (info.norm, info.position, info.max_tokens) == ("post", "learned", 32)
    assert (info.dtype, info.device, info.ready) == ("fp32", "cpu", True)
    assert loaded.nbytes >= info.parameters * 4
    assert {p.stage for p in seen} == {"load"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            LlamaConfig(**DECODER, num_key_value_heads=2, max_position_embeddings=64, head_dim=16),
            {"kind": "decoder", "n_kv_heads": 2, "head_dim": 16, "norm": "pre"}
            | {"position": "rotary", "max_tokens": 64, "attention": "full"},
        ),
        (
            MistralConfig(**DECODER, num_key_value_heads=4, sliding_window=16),
            {"kind": "decoder", "attention": "sliding 16 on all 2 layers"},
        ),
        (
            GPT2Config(**SMALL, n_embd=32, n_layer=3, n_head=4, n_positions=48),
            {"kind": "decoder", "n_layers": 3, "max_tokens": 48, "position": "learned"}
            | {"norm": "pre", "head_dim": 8},
        ),
        (
            RobertaConfig(
                **(SMALL | {"pad_token_id": 1}),
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=32,
                max_position_embeddings=514,
            ),
            {"kind": "encoder", "max_tokens": 512, "norm": "post", "position": "learned"},
        ),
        (
            T5Config(
                **SMALL, d_model=32, d_kv=16, d_ff=32, num_layers=2, num_decoder_layers=3,
                num_heads=4, decoder_start_token_id=0,
            ),
            {"kind": "encoder-decoder", "n_layers": 2, "n_decoder_layers": 3, "head_dim": 16}
            | {"max_tokens": None, "position": "relative bias", "norm": "pre"},
        ),
        (
            BartConfig(
                **SMALL, d_model=32, encoder_layers=2, decoder_layers=1, encoder_ffn_dim=32,
                decoder_ffn_dim=32, encoder_attention_heads=4, decoder_attention_heads=4,
                max_position_embeddings=40,
            ),
            {"kind": "encoder-decoder", "n_decoder_layers": 1, "max_tokens": 40, "norm": "post"},
        ),
        (
            DebertaV2Config(
                **SMALL, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=32, relative_attention=True, pos_att_type=["c2p", "p2c"],
            ),
            {"kind": "encoder", "position": "relative bias", "norm": "post"},
        ),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)  # fmt: skip
def test_facts_of_families_with_random_weights(
    config: PreTrainedConfig, expected: dict[str, Any], tmp_path: Path
) -> None:
    folder = saved(config, tmp_path / "m", loading._auto_class(config))
    loaded = load(folder)
    found = {name: getattr(loaded.info, name) for name in expected}
    assert found == expected
    assert loaded.missing_keys == ()
    heads = {"decoder": "CausalLM|LMHead", "encoder-decoder": "ConditionalGeneration"}
    name = type(loaded.module).__name__
    assert any(part in name for part in heads.get(loaded.info.kind, "Model").split("|"))


def test_picture_model_loads_without_tokenizer(tmp_path: Path) -> None:
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        image_size=16, patch_size=8,
    )  # fmt: skip
    ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "vit")
    loaded = load(tmp_path / "vit")
    assert loaded.tokenizer is None
    assert loaded.info.norm == "pre"


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_dtype_that_was_asked_for(tiny: Path, name: Any, dtype: torch.dtype) -> None:
    loaded = load(tiny, dtype=name)
    assert {p.dtype for p in loaded.module.parameters()} == {dtype}
    assert loaded.info.dtype == name


def test_auto_dtype_widens_on_the_cpu(tiny: Path) -> None:
    tensors = load_file(tiny / SINGLE_FILE)
    halves = {name: t.to(torch.bfloat16) for name, t in tensors.items()}
    save_file(halves, tiny / SINGLE_FILE, metadata={"format": "pt"})
    assert load(tiny).info.dtype == "fp32"


@pytest.mark.parametrize(
    ("device", "n_elements", "stored", "expected"),
    [
        ("cpu", 7_000_000_000, "BF16", torch.float32),
        ("cuda", 7_000_000_000, "BF16", torch.bfloat16),
        ("cuda", 7_000_000_000, "F16", torch.float16),
        ("cuda", 7_000_000_000, "F32", torch.float32),
        ("cuda", 100_000_000, "BF16", torch.float32),
    ],
)
def test_auto_dtype(device: str, n_elements: int, stored: str, expected: torch.dtype) -> None:
    report = FolderReport(Path(), {}, {}, (), n_elements, 0, stored, False, True)
    assert placement.pick_dtype("auto", torch.device(device), report) == expected


def test_device_that_is_not_there() -> None:
    absent = next(n for n in ("mps", "cuda") if placement.pick_device("auto").type != n)
    with pytest.raises(BadInputError, match=f"no device '{absent}'"):
        placement.pick_device(absent)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / SINGLE_FILE)
    save_file(change(tensors) or tensors, folder / SINGLE_FILE, metadata={"format": "pt"})


def test_wrapper_prefix_is_named_and_weights_are_called_random(tiny: Path) -> None:
    rewrite(tiny, lambda tensors: {f"module.{name}": t for name, t in tensors.items()})
    loaded = load(tiny)
    assert loaded.info.random_weights
    assert "begin with 'module.'" in loaded.info.note


def test_few_missing_tensors_are_named(tiny: Path) -> None:
    rewrite(tiny, lambda t: {k: v for k, v in t.items() if k != "embeddings.LayerNorm.bias"})
    loaded = load(tiny)
    assert not loaded.info.random_weights
    assert loaded.missing_keys == ("embeddings.LayerNorm.bias",)
    assert "1 of" in loaded.info.note


def test_nan_in_weights_is_a_note(tiny: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["encoder.layer.1.output.dense.weight"][0, 0] = float("nan")
        tensors["encoder.layer.0.output.dense.bias"][0] = float("inf")

    rewrite(tiny, spoil)
    assert "NaN or infinity in 2 tensors" in load(tiny).info.note


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')


def other_sizes(folder: Path) -> None:
    edit(folder, hidden_size=24)


def heads_do_not_divide(folder: Path) -> None:
    edit(folder, num_attention_heads=5)


def wide_vocabulary(folder: Path) -> None:
    edit(folder, vocab_size=90_000_000)


def words_for_sizes(folder: Path) -> None:
    edit(folder, hidden_size="sixteen")


def edit(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (no_tokenizer, MissingFileError, "has no tokenizer"),
        (broken_tokenizer, CorruptFileError, "tokenizer cannot be read"),
        (
            other_sizes,
            CorruptFileError,
            r"\d+ tensors have other sizes.*\[16\] in the files",
        ),
        (heads_do_not_divide, CorruptFileError, "multiple of the number of attention"),
        (wide_vocabulary, CorruptFileError, r"asks for 1,440,\d+,\d+ weights"),
        (words_for_sizes, CorruptFileError, "config.json"),
    ],
)
def test_damaged_folders(
    tiny: Path, damage: Callable[[Path], None], error: type[HeadscopeError], words: str
) -> None:
    damage(tiny)
    with pytest.raises(error, match=words):
        load(tiny)


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
def test_kernel_named_by_a_config_is_never_looked_for(tiny: Path, key: str) -> None:
    edit(tiny, **{key: "somebody/kernel"})
    assert load(tiny).missing_keys == ()


def test_tokenizer_code_in_the_folder_never_runs(tiny: Path, tmp_path: Path) -> None:
    path = tiny / "tokenizer_config.json"
    settings = {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    (tiny / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tiny / "tokenizer.json").unlink()
    (tiny / "vocab.txt").write_text("\n".join(WORDS))
    # Refused, or read by a class of the library: both are fine.
    with contextlib.suppress(HeadscopeError):
        load(tiny)
    assert not (tmp_path / "ran").exists()


def test_roots_hold_for_loading(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "roots").mkdir()
    policy = SourcePolicy(roots=(tmp_path / "roots",))
    with pytest.raises(UnsafeFilesError, match="not below"):
        load_model(ModelRequest(str(tiny)), policy)


def test_model_that_does_not_fit_is_refused_before_it_is_read(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoMemory:
        available = 0

    monkeypatch.setattr(psutil, "virtual_memory", NoMemory)
    with pytest.raises(OutOfMemoryError, match=r"GiB in fp32; this machine has 0\.0 GiB"):
        load(tiny)


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (MemoryError(), OutOfMemoryError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), OutOfMemoryError),
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemoryError),
        (RuntimeError("copying failed"), CorruptFileError),
    ],
)
def test_what_loading_raises_becomes_a_sentence(
    raised: Exception, error: type[HeadscopeError]
) -> None:
    with pytest.raises(error), loading_errors("m", "bert"):
        raise raised


def test_explain_keeps_what_is_already_explained() -> None:
    known = BadInputError("x")
    assert explain(known, "m") is known
    assert isinstance(explain(RuntimeError("out of memory"), "m"), OutOfMemoryError)
    assert isinstance(explain(RuntimeError("strange"), "m"), InternalError)


def test_pickle_only_when_the_policy_says_so(tiny: Path) -> None:
    torch.save(load_file(tiny / SINGLE_FILE), tiny / "pytorch_model.bin")
    (tiny / SINGLE_FILE).unlink()
    with pytest.raises(UnsafeFilesError, match=r"pytorch_model\.bin"):
        load(tiny)
    loaded = load_model(ModelRequest(str(tiny)), SourcePolicy(allow_pickle=True))
    assert loaded.missing_keys == ()


@pytest.mark.parametrize(
    ("found", "expected", "prefix"),
    [
        (["module.a.w", "module.b.w"], ["a.w", "b.w"], "module."),
        (["_orig_mod.x.a.w", "_orig_mod.x.b.w"], ["x.a.w", "x.b.w"], "_orig_mod."),
        (["net.model.a"], ["a", "b"], "net.model."),
        (["c.w"], ["a.w"], ""),
        ([], ["a"], ""),
    ],
)
def test_common_prefix(found: list[str], expected: list[str], prefix: str) -> None:
    assert common_prefix(found, expected) == prefix


def test_own_module_is_wrapped_as_it_is() -> None:
    module = nn.TransformerEncoderLayer(16, 4, batch_first=True)
    loaded = wrap_module(module, None)
    assert loaded.module is module
    assert module.training
    assert loaded.info.family == "TransformerEncoderLayer"
    assert loaded.info.parameters == sum(p.numel() for p in module.parameters())
