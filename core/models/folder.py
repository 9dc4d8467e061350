"""Inspects a model folder before anything in it is loaded.

Everything in the folder may come from a stranger: what is missing, damaged or unsafe is said here,
in words, before any library opens a file. Only JSON and safetensors headers are read.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from transformers import __version__ as TRANSFORMERS_VERSION
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from core.errors import (
    AdapterOnlyError,
    CorruptFileError,
    HeadscopeError,
    MissingFileError,
    RemoteCodeError,
    UnsafeFilesError,
    UnsupportedModelError,
)
from core.models.header import TensorEntry, read_header

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".msgpack", ".h5")
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
    "source.spm",
    "tekken.json",
    "tiktoken.model",
    "vocab.model",
)
_MAX_JSON_BYTES = 50_000_000

# Far above anything that exists; what asks for more is a slip or an attack, and would be built
# before the weights are looked at.
_CONFIG_CAPS = (
    (re.compile(r"(?:^|_)(?:n_)?layers?$|^num_\w*layers$|^n_layers?$"), 2_000),
    (re.compile(r"heads?$"), 65_536),
    (re.compile(r"experts$"), 65_536),
    (re.compile(r"^(?:vocab_size|\w+_vocab_size)$"), 100_000_000),
    (re.compile(r"^(?:hidden_size|d_model|n_embd|d_ff|n_inner|\w*intermediate_size)$"), 10_000_000),
    (re.compile(r"(?:max_\w*positions?|max_position_embeddings|n_positions)$"), 1_000_000_000),
)


@dataclass(frozen=True)
class FolderReport:
    """What a folder holds, as far as its config and headers say.

    Attributes:
        config: config.json.
        tensors: name -> entry, over all files of weights; empty for pickles.
        weight_files: the files that will be read.
        n_elements, n_bytes: of all tensors; for pickles n_elements is 0.
        dtype: data type of most numbers, as safetensors names it; "" when not known.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    weight_files: tuple[Path, ...]
    n_elements: int
    n_bytes: int
    dtype: str
    is_pickle: bool
    has_tokenizer: bool


def inspect_folder(
    folder: Path, *, allow_pickle: bool = False, allowed_roots: Iterable[Path] | None = None
) -> FolderReport:
    """Returns what the folder holds.

    Args:
        allowed_roots: files that are links may lead only below these (or the folder itself);
            None allows any.

    Raises:
        AdapterOnlyError: an adapter without its base model.
        MissingFileError: config, weights or a shard is not there.
        CorruptFileError: a file cannot be what it says it is.
        UnsafeFilesError: pickle only, or a file outside the folder.
        RemoteCodeError: the model needs Python code of its own.
        UnsupportedModelError: the family is not known.
    """
    config_path = folder / "config.json"
    if not config_path.is_file():
        _raise_adapter(folder)
        raise MissingFileError(
            f"The folder '{folder.name}' has no config.json, so it is not known what model it is.",
            "Point at the folder that holds config.json, the weights and the tokenizer files.",
        )
    if allowed_roots is not None:
        _check_links(folder, [folder, *allowed_roots])
    config = read_json_object(config_path)
    check_config(config)
    weight_files, is_pickle = _find_weights(folder, allow_pickle)
    tensors: dict[str, TensorEntry] = {}
    if not is_pickle:
        for path in weight_files:
            tensors |= read_header(path)
        _check_index_names(folder, tensors)
    counts: Counter[str] = Counter()
    for entry in tensors.values():
        counts[entry.dtype] += entry.n_elements
    return FolderReport(
        folder=folder,
        config=config,
        tensors=tensors,
        weight_files=weight_files,
        n_elements=counts.total(),
        n_bytes=sum(path.stat().st_size for path in weight_files),
        dtype=counts.most_common(1)[0][0] if counts else "",
        is_pickle=is_pickle,
        has_tokenizer=any((folder / name).is_file() for name in TOKENIZER_FILES),
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
        CorruptFileError: it is not JSON, not an object, or far too long.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_JSON_BYTES:
            raise CorruptFileError(
                f"{path.name} has {size} bytes; at most {_MAX_JSON_BYTES} are read.",
                "Check that it is the file it is named after.",
            )
        read = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MissingFileError(
            f"{path.name} cannot be read: {error.strerror or error}.",
            "Check the file and its permissions.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(
            f"{path.name} is not valid JSON: {error}.", "Save or download the model again."
        ) from error
    if not isinstance(read, dict):
        raise CorruptFileError(
            f"{path.name} holds a {type(read).__name__}, not an object.",
            "Save or download the model again.",
        )
    return read


def check_config(config: Mapping[str, Any]) -> None:
    """Refuses a config that asks for foreign code, an unknown family or absurd sizes."""
    family = config.get("model_type")
    if not isinstance(family, str) or not family:
        architectures = config.get("architectures")
        named = f" (architectures: {architectures})" if architectures else ""
        raise UnsupportedModelError(
            f"config.json has no model_type, so the family is not known{named}.",
            'Add the family\'s name, for example "model_type": "bert".',
        )
    if family not in CONFIG_MAPPING:
        if config.get("auto_map"):
            raise RemoteCodeError(
                f"The model ('{family}') brings its own Python code, which is never run here.",
                "Use a version of the model that transformers itself knows.",
            )
        raise UnsupportedModelError(
            f"The family '{family}' is not known to transformers {TRANSFORMERS_VERSION}.",
            "Known are bert, roberta, gpt2, llama, qwen3, gemma3, t5, bart, whisper and "
            f"{len(CONFIG_MAPPING.keys()) - 8} more.",
        )
    _check_sizes(config, "")


def _check_sizes(config: Mapping[str, Any], where: str) -> None:
    for key, value in config.items():
        if isinstance(value, dict) and where.count(".") < 4:
            _check_sizes(value, f"{where}{key}.")
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        for pattern, cap in _CONFIG_CAPS:
            if pattern.search(key) and not -1 <= value <= cap:
                raise CorruptFileError(
                    f"config.json asks for {where}{key} = {value:,}; "
                    f"between 0 and {cap:,} is believed.",
                    "Correct config.json, or save the model again.",
                )


def _find_weights(folder: Path, allow_pickle: bool) -> tuple[tuple[Path, ...], bool]:
    index = folder / INDEX_FILE
    if (folder / SINGLE_FILE).is_file():
        return (folder / SINGLE_FILE,), False
    if index.is_file():
        return shards_of(folder, read_json_object(index)), False
    pickles = sorted(
        path
        for path in folder.iterdir()
        if path.suffix in PICKLE_SUFFIXES and not path.name.startswith("training_args")
    )
    if pickles and allow_pickle:
        return tuple(pickles), True
    if pickles:
        names = ", ".join(path.name for path in pickles[:3])
        raise UnsafeFilesError(
            f"The weights are only there as {names}: files of this kind can run code when opened.",
            "Save the model as safetensors (model.save_pretrained does) and try again.",
        )
    _raise_adapter(folder)
    others = sorted(folder.glob("*.safetensors"))
    seen = f" There is {others[0].name}, which is not its name." if others else ""
    raise MissingFileError(
        f"The folder '{folder.name}' has no weights: neither {SINGLE_FILE} nor {INDEX_FILE}.{seen}",
        "Add the file of weights, or point at another folder.",
    )


def shards_of(folder: Path, index: Mapping[str, Any]) -> tuple[Path, ...]:
    """Returns the files an index of weights names, all of which are there and in the folder."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptFileError(
            f"{INDEX_FILE} has no weight_map that names the files.", "Save the model again."
        )
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if not is_plain_name(name):
            raise UnsafeFilesError(
                f"{INDEX_FILE} points outside its folder: '{name}'.",
                "Names of shards must be plain file names, such as "
                "model-00001-of-00002.safetensors.",
            )
        if not name.endswith(".safetensors"):
            raise UnsafeFilesError(
                f"{INDEX_FILE} names '{name}', which is not a safetensors file.",
                "Save the model as safetensors.",
            )
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        shown = ", ".join(missing[:3]) + (" and more" if len(missing) > 3 else "")
        raise MissingFileError(
            f"{len(missing)} of {len(names)} files of weights are missing: {shown}.",
            f"Put the missing files beside {INDEX_FILE} (is the download or upload complete?).",
        )
    return tuple(folder / name for name in names)


def is_plain_name(name: str) -> bool:
    """Tells whether a name is a file's own name, on any system, and no path."""
    return (
        name not in ("", ".", "..")
        and "\0" not in name
        and PurePosixPath(name).name == name
        and PureWindowsPath(name).name == name
    )


def _check_index_names(folder: Path, tensors: Mapping[str, TensorEntry]) -> None:
    """Refuses an index that promises tensors its files do not hold."""
    if (folder / SINGLE_FILE).is_file() or not (folder / INDEX_FILE).is_file():
        return
    promised = read_json_object(folder / INDEX_FILE)["weight_map"]
    absent = sorted(set(promised) - set(tensors))
    if absent:
        raise MissingFileError(
            f"{INDEX_FILE} promises {len(promised)} tensors; {len(absent)} are in no file, "
            f"for example '{absent[0]}'.",
            "Save or download the model again.",
        )


def _check_links(folder: Path, allowed: Iterable[Path]) -> None:
    """Refuses files that are links to somewhere outside the allowed folders."""
    roots = [root.resolve() for root in allowed]
    for path in folder.iterdir():
        target = path.resolve()
        if not any(target.is_relative_to(root) for root in roots):
            raise UnsafeFilesError(
                f"'{path.name}' in the folder '{folder.name}' is a link that leads outside it.",
                "Copy the file itself into the folder.",
            )


def _raise_adapter(folder: Path) -> None:
    path = folder / "adapter_config.json"
    if not path.is_file():
        return
    raise adapter_error(read_json_object(path))


def adapter_error(adapter: Mapping[str, Any]) -> HeadscopeError:
    """Returns the error that says what an adapter is and what it belongs to."""
    kind = str(adapter.get("peft_type") or "fine-tuning")
    kind = "LoRA" if kind.upper() == "LORA" else kind
    details = [f"rank {adapter['r']}"] if "r" in adapter else []
    modules = adapter.get("target_modules")
    if isinstance(modules, list) and modules:
        names = [str(name) for name in modules]
        joined = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
        details.append(f"on {joined}")
    elif isinstance(modules, str):
        details.append(f"on {modules}")
    base = adapter.get("base_model_name_or_path") or "a base model that it does not name"
    inside = f" ({', '.join(details)})" if details else ""
    return AdapterOnlyError(
        f"This is a {kind} adapter{inside} for {base}, not a model.",
        "Merge it into its base model (merge_and_unload of the peft package), save the result "
        "and open that.",
    )
