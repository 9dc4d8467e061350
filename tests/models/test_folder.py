"""Folders from strangers: one line of the table for each way to be wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from core.errors import (
    AdapterOnlyError,
    CorruptFileError,
    HeadscopeError,
    MissingFileError,
    RemoteCodeError,
    UnsafeFilesError,
    UnsupportedModelError,
)
from core.models.folder import INDEX_FILE, SINGLE_FILE, inspect_folder

ADAPTER = {
    "base_model_name_or_path": "example-org/base-model-7b",
    "peft_type": "LORA",
    "r": 8,
    "target_modules": ["q_proj", "v_proj"],
}


def split_in_shards(folder: Path, n_shards: int = 3) -> list[str]:
    """Splits the weights of a folder; returns the names of the files."""
    tensors = load_file(folder / SINGLE_FILE)
    (folder / SINGLE_FILE).unlink()
    names = [f"model-{i + 1:05}-of-{n_shards:05}.safetensors" for i in range(n_shards)]
    weight_map = {key: names[i % n_shards] for i, key in enumerate(sorted(tensors))}
    for name in names:
        save_file({k: v for k, v in tensors.items() if weight_map[k] == name}, folder / name)
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    return names


def test_healthy_folder_is_described(tiny: Path) -> None:
    report = inspect_folder(tiny)
    assert report.config["model_type"] == "bert"
    assert report.dtype == "F32"
    assert report.n_elements * 4 < report.n_bytes
    assert report.has_tokenizer
    assert not report.is_pickle


def test_shards_count_together(tiny: Path) -> None:
    whole = inspect_folder(tiny).n_elements
    split_in_shards(tiny)
    assert inspect_folder(tiny).n_elements == whole


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def config_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def no_weights(folder: Path) -> None:
    (folder / SINGLE_FILE).unlink()


def other_name(folder: Path) -> None:
    (folder / SINGLE_FILE).rename(folder / "weights.safetensors")


def pickle_only(folder: Path) -> None:
    (folder / SINGLE_FILE).rename(folder / "pytorch_model.bin")


def adapter_only(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER))


def adapter_with_config(folder: Path) -> None:
    (folder / SINGLE_FILE).unlink()
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER))


def truncated(folder: Path) -> None:
    content = (folder / SINGLE_FILE).read_bytes()
    (folder / SINGLE_FILE).write_bytes(content[:-100])


def missing_shard(folder: Path) -> None:
    (folder / split_in_shards(folder)[1]).unlink()


def index_outside(folder: Path) -> None:
    split_in_shards(folder)
    index = json.loads((folder / INDEX_FILE).read_text())
    index["weight_map"]["embeddings.LayerNorm.bias"] = "../secret.safetensors"
    (folder / INDEX_FILE).write_text(json.dumps(index))


def index_windows_path(folder: Path) -> None:
    (folder / SINGLE_FILE).unlink()
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": r"..\x.safetensors"}}))


def index_to_pickle(folder: Path) -> None:
    (folder / SINGLE_FILE).unlink()
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))


def index_empty(folder: Path) -> None:
    (folder / SINGLE_FILE).unlink()
    (folder / INDEX_FILE).write_text("{}")


def index_promises(folder: Path) -> None:
    split_in_shards(folder)
    index = json.loads((folder / INDEX_FILE).read_text())
    index["weight_map"]["not.there"] = next(iter(index["weight_map"].values()))
    (folder / INDEX_FILE).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (no_config, MissingFileError, r"no config\.json"),
        (broken_config, CorruptFileError, r"config\.json is not valid JSON"),
        (config_list, CorruptFileError, "holds a list"),
        (no_weights, MissingFileError, "has no weights"),
        (other_name, MissingFileError, r"There is weights\.safetensors"),
        (pickle_only, UnsafeFilesError, r"pytorch_model\.bin.*safetensors"),
        (adapter_only, AdapterOnlyError, "rank 8, on q_proj and v_proj"),
        (adapter_with_config, AdapterOnlyError, "example-org/base-model-7b, not a model"),
        (truncated, CorruptFileError, r"bytes of weights are announced, but \d+ are there"),
        (missing_shard, MissingFileError, r"1 of 3 files.*model-00002-of-00003\.safetensors"),
        (index_outside, UnsafeFilesError, r"outside its folder: '\.\./secret"),
        (index_windows_path, UnsafeFilesError, "outside its folder"),
        (index_to_pickle, UnsafeFilesError, "not a safetensors file"),
        (index_empty, CorruptFileError, "no weight_map"),
        (index_promises, MissingFileError, r"1 are in no file, for example 'not\.there'"),
    ],
)
def test_hostile_folders(
    tiny: Path, damage: Callable[[Path], None], error: type[HeadscopeError], words: str
) -> None:
    damage(tiny)
    with pytest.raises(error, match=words):
        inspect_folder(tiny)


@pytest.mark.parametrize(
    ("entries", "error", "words"),
    [
        ({"model_type": "mystery"}, UnsupportedModelError, "'mystery' is not known"),
        ({"model_type": None}, UnsupportedModelError, "no model_type"),
        (
            {"model_type": "mystery", "auto_map": {"AutoModel": "modeling.Mine"}},
            RemoteCodeError,
            "'mystery'.*never run",
        ),
        ({"vocab_size": 2_000_000_000}, CorruptFileError, "vocab_size = 2,000,000,000"),
        ({"num_hidden_layers": 10**9}, CorruptFileError, "num_hidden_layers = 1,000,000,000"),
        ({"num_attention_heads": -7}, CorruptFileError, "num_attention_heads = -7"),
        ({"text_config": {"hidden_size": 10**12}}, CorruptFileError, r"text_config\.hidden_size"),
    ],
)
def test_hostile_configs(
    edit_config: Callable[..., Path], entries: Any, error: type[HeadscopeError], words: str
) -> None:
    with pytest.raises(error, match=words):
        inspect_folder(edit_config(**entries))


def test_known_family_with_code_of_its_own_is_taken(edit_config: Callable[..., Path]) -> None:
    folder = edit_config(auto_map={"AutoModel": "modeling.Mine"})
    assert inspect_folder(folder).config["model_type"] == "bert"


def test_pickle_is_taken_when_allowed(tiny: Path) -> None:
    pickle_only(tiny)
    assert inspect_folder(tiny, allow_pickle=True).is_pickle


def test_link_that_leads_outside_is_refused(tiny: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (tiny / "generation_config.json").symlink_to(secret)
    with pytest.raises(UnsafeFilesError, match=r"generation_config\.json.*leads outside"):
        inspect_folder(tiny, allowed_roots=[tiny])
    assert inspect_folder(tiny, allowed_roots=[tmp_path]).has_tokenizer
