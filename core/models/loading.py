"""Finds a model by id, folder or hub id, and loads it: safetensors only, no remote code.

Folders are looked at before anything is read from them, so that a person hears what is wrong with
the files rather than what a library stumbled over.
"""

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from core.errors import (
    AdapterOnlyError,
    BadInputError,
    CorruptFileError,
    GatedModelError,
    HeadscopeError,
    MissingFileError,
    NoNetworkError,
    RemoteCodeError,
    UnknownModelError,
    UnsafeFilesError,
    UnsupportedModelError,
)
from core.errors import OutOfMemoryError as NoMemoryError
from core.models.catalogue import CATALOGUE, EmbeddedModel
from core.models.prepare import is_ready, prepare_model
from core.results import ModelInfo, ModelRequest, Progress, ProgressCallback

log = logging.getLogger(__name__)
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
LARGE_PARAMETERS = 1_000_000_000
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True)
class LoadedModel:
    """A module in evaluation mode with what belongs to it.

    Attributes:
        nbytes: of its weights.
        n_embeddings: rows of the input embedding; ids beyond them cannot be fed.
    """

    module: nn.Module
    tokenizer: Any
    feature_extractor: Any
    info: ModelInfo
    nbytes: int
    n_embeddings: int


def embedded_info(model: EmbeddedModel) -> ModelInfo:
    """Returns what is known of an embedded model without loading it."""
    return ModelInfo(
        id=model.id,
        family=model.family,
        kind=model.kind,
        n_layers=model.n_layers,
        n_decoder_layers=model.n_decoder_layers,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        head_dim=model.head_dim,
        d_model=model.d_model,
        vocab_size=model.vocab_size,
        parameters=model.parameters,
        licence=model.licence,
        languages=model.languages,
        ready=is_ready(model.id),
        norm=model.norm,
        position=model.position,
        max_tokens=model.max_tokens,
        max_tokens_source=model.max_tokens_source,
        prefix=model.prefix,
        note=model.note,
        input=model.input,
    )


def find(
    request: ModelRequest, roots: tuple[Path, ...] | None, progress: ProgressCallback | None
) -> str:
    """Returns what `from_pretrained` should be given: a folder, or a hub id.

    Args:
        roots: folders people may name; None for any.

    Raises:
        UnknownModelError, UnsafeFilesError and the errors of `inspect_folder`.
    """
    name = request.model.strip()
    if not name:
        raise BadInputError("No model was named.", f"Try one of {', '.join(CATALOGUE)}.")
    if name in CATALOGUE:
        return str(prepare_model(name, progress))
    path = Path(name).expanduser()
    if path.is_dir():
        folder = path.resolve()
        if roots is not None and not any(folder.is_relative_to(r.resolve()) for r in roots):
            raise UnsafeFilesError(
                f"The folder {name} is outside the folders that may be opened here.",
                "Whoever runs the app can allow it with HEADSCOPE_MODEL_ROOTS.",
            )
        inspect_folder(folder)
        return str(folder)
    parts = name.split("/")
    if path.is_absolute() or name.startswith((".", "~")) or len(parts) > 2 or not all(parts):
        raise UnknownModelError(
            f"There is no folder {name}.", "Check the path; a hub id looks like owner/name."
        )
    if len(parts) == 1:
        raise UnknownModelError(
            f"There is no model '{name}'.",
            f"Embedded models are {', '.join(CATALOGUE)}; a hub id looks like owner/name.",
        )
    return name


def inspect_folder(folder: Path) -> None:
    """Raises what is wrong with a model folder; reads only small JSON files.

    Raises:
        MissingFileError, CorruptFileError, AdapterOnlyError, UnsafeFilesError, RemoteCodeError.
    """
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        adapter = _read_json(folder / "adapter_config.json")
        modules = ", ".join(map(str, adapter.get("target_modules") or ["unnamed modules"]))
        raise AdapterOnlyError(
            f"This is a {adapter.get('peft_type', 'fine-tuning')} adapter (rank "
            f"{adapter.get('r', 'unknown')}, on {modules}) for "
            f"{adapter.get('base_model_name_or_path', 'an unnamed model')}, not a model.",
            "Merge it into its base model and open the result.",
        )
    if not (folder / "config.json").exists():
        raise MissingFileError(
            f"{folder.name} has no config.json.", "A model folder needs it beside its weights."
        )
    config = _read_json(folder / "config.json")
    from transformers import CONFIG_MAPPING

    family = config.get("model_type")
    if family not in CONFIG_MAPPING:
        if "auto_map" in config:
            raise RemoteCodeError(
                f"{folder.name} ({family}) wants its own Python code to run.",
                "Code from a checkpoint is never run here; use a model with library support.",
            )
        raise UnsupportedModelError(
            f"config.json names the unknown model type {family!r}.",
            "Supported are the families of the transformers library.",
        )
    if not any((folder / name).exists() for name in WEIGHT_FILES):
        pickles = [p.name for p in folder.glob("*.bin")] + [p.name for p in folder.glob("*.pt")]
        if pickles:
            raise UnsafeFilesError(
                f"{folder.name} holds its weights as pickle only ({pickles[0]}).",
                "Pickle files can run code. Save the model as safetensors and open that.",
            )
        raise MissingFileError(
            f"{folder.name} has no weights (model.safetensors).", "Copy them beside config.json."
        )
    index = folder / WEIGHT_FILES[1]
    if not (folder / WEIGHT_FILES[0]).exists() and index.exists():
        _check_shards(folder, _read_json(index))


def _check_shards(folder: Path, index: dict[str, Any]) -> None:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise CorruptFileError(
            f"{WEIGHT_FILES[1]} of {folder.name} names no weights.", "Download it again."
        )
    shards = sorted({str(shard) for shard in weight_map.values()})
    for shard in shards:
        if not (folder / shard).resolve().is_relative_to(folder.resolve()):
            raise UnsafeFilesError(
                f"{WEIGHT_FILES[1]} points outside its folder ({shard}).",
                "Only files beside the index are read.",
            )
    absent = [shard for shard in shards if not (folder / shard).exists()]
    if absent:
        raise MissingFileError(
            f"{absent[0]} is missing: {len(shards) - len(absent)} of {len(shards)} weight files "
            f"of {folder.name} are there.",
            "Download the missing file again.",
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CorruptFileError(
            f"{path.name} is not readable JSON ({error}).", "Download it again."
        ) from error
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path.name} is not a JSON object.", "Download it again.")
    return content


def choose_device(wanted: str) -> torch.device:
    """Returns the device for a request: CUDA, then MPS, then the CPU when it says "auto".

    Raises:
        BadInputError: the device is not in this machine.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available()}
    there["mps"] = torch.backends.mps.is_available()
    if wanted == "auto":
        wanted = next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there.get(wanted, False):
        have = ", ".join(name for name, is_there in there.items() if is_there)
        raise BadInputError(f"This machine has no {wanted} device.", f"It has: {have}.")
    return torch.device(wanted)


def choose_dtype(wanted: str, config: Any, device: torch.device, parameters: int) -> torch.dtype:
    """Returns the dtype: fp32 unless a large model on a GPU has a 16-bit dtype of its own."""
    if wanted != "auto":
        return DTYPES[wanted]
    own = getattr(config, "dtype", None)
    large = parameters >= LARGE_PARAMETERS and device.type != "cpu"
    return own if large and own in DTYPE_NAMES else torch.float32


def load_model(
    request: ModelRequest,
    roots: tuple[Path, ...] | None = None,
    progress: ProgressCallback | None = None,
) -> LoadedModel:
    """Returns the model of a request, loaded.

    Raises:
        HeadscopeError: whatever stands in the way, in words.
    """
    source = find(request, roots, progress)
    device = choose_device(request.device)
    if progress:
        progress(Progress("load", 0, 1))
    try:
        loaded = _load(request, source, device)
    except HeadscopeError:
        raise
    except (OSError, ValueError, RuntimeError, MemoryError, KeyError, ImportError) as error:
        raise explain(error, request.model) from error
    if progress:
        progress(Progress("load", 1, 1))
    return loaded


def _load(request: ModelRequest, source: str, device: torch.device) -> LoadedModel:
    from transformers import AutoConfig, AutoFeatureExtractor, AutoTokenizer
    from transformers.utils import logging as library_logging

    # Its bars and load reports would end up among our own answers.
    library_logging.disable_progress_bar()
    library_logging.set_verbosity_error()
    common: dict[str, Any] = {"revision": request.revision, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(source, **common)
    module_class, extra = _module_class(config)
    # Counted without weights: the dtype must be known before they are read.
    with torch.device("meta"):
        parameters = sum(p.numel() for p in module_class.from_config(config).parameters())
    dtype = choose_dtype(request.dtype, config, device, parameters)
    module = module_class.from_pretrained(
        source, dtype=dtype, use_safetensors=True, config=config, **common, **extra
    )
    module.eval().to(device)
    tokenizer = AutoTokenizer.from_pretrained(source, **common)
    listens = module.main_input_name != "input_ids"
    extractor = None
    if listens:
        extractor = cast(Any, AutoFeatureExtractor).from_pretrained(source, **common)
    nbytes = sum(p.numel() * p.element_size() for p in module.parameters())
    info = _describe(request, config, module, tokenizer, device, dtype)
    embeddings = module.get_input_embeddings()
    rows = embeddings.weight.shape[0] if hasattr(embeddings, "weight") else info.vocab_size
    return LoadedModel(module, tokenizer, extractor, info, nbytes, int(rows))


def _module_class(config: Any) -> tuple[Any, dict[str, Any]]:
    from transformers import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
        AutoModelForSpeechSeq2Seq,
    )

    names = config.architectures or [""]
    if config.is_encoder_decoder:
        speech = config.model_type in ("whisper", "speech_to_text", "moonshine")
        return (AutoModelForSpeechSeq2Seq if speech else AutoModelForSeq2SeqLM), {}
    if names[0].endswith(("ForCausalLM", "LMHeadModel")):
        return AutoModelForCausalLM, {}
    # Poolers are no part of attention, and many checkpoints have none.
    pooled = config.model_type in ("bert", "roberta", "xlm-roberta", "albert")
    return AutoModel, {"add_pooling_layer": False} if pooled else {}


def _describe(
    request: ModelRequest,
    config: Any,
    module: Any,
    tokenizer: Any,
    device: torch.device,
    dtype: torch.dtype,
) -> ModelInfo:
    text = config.get_text_config(decoder=False)
    n_heads = int(getattr(text, "num_attention_heads", 0))
    d_model = int(getattr(text, "hidden_size", 0))
    kind: Any = "encoder"
    if config.is_encoder_decoder:
        kind = "encoder-decoder"
    elif "CausalLM" in type(module).__name__ or "LMHead" in type(module).__name__:
        kind = "decoder"
    limit, source = _max_tokens(text, tokenizer)
    info = ModelInfo(
        id=request.model,
        family=config.model_type,
        kind=kind,
        n_layers=int(getattr(text, "num_hidden_layers", 0)),
        n_decoder_layers=int(getattr(text, "decoder_layers", 0) or 0),
        n_heads=n_heads,
        n_kv_heads=int(getattr(text, "num_key_value_heads", None) or n_heads),
        head_dim=int(getattr(text, "head_dim", None) or d_model // max(n_heads, 1)),
        d_model=d_model,
        vocab_size=int(getattr(text, "vocab_size", 0)),
        parameters=sum(p.numel() for p in module.parameters()),
        licence="",
        languages="",
        ready=True,
        attention=_attention_words(text),
        position=_position_words(text),
        max_tokens=limit,
        max_tokens_source=source,
        has_chat_template=bool(getattr(tokenizer, "chat_template", None)),
        has_offsets=bool(tokenizer.is_fast),
        revision=getattr(config, "_commit_hash", None) or "",
        dtype=DTYPE_NAMES[dtype],
        device=device.type,
        input="text" if module.main_input_name == "input_ids" else "audio",
    )
    known = CATALOGUE.get(request.model)
    if known is None:
        return info
    return replace(
        info,
        licence=known.licence,
        languages=known.languages,
        prefix=known.prefix,
        note=known.note,
        norm=known.norm,
        position=known.position,
        revision=f"{known.wheel.project}=={known.wheel.version}",
    )


def _max_tokens(config: Any, tokenizer: Any) -> tuple[int | None, str]:
    """Returns the longest text and whose limit it is; absurd tokenizer limits do not count."""
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    limit = limit or getattr(config, "max_target_positions", None)
    if limit and config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        # Positions start behind the padding index, so two of them are never used.
        limit -= (config.pad_token_id or 0) + 1
    if limit:
        return int(limit), "position embeddings in config.json"
    own = getattr(tokenizer, "model_max_length", None)
    if own and own < 10**9:
        return int(own), "the tokenizer"
    return None, ""


def _attention_words(config: Any) -> str:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds:
        sliding = sum(kind == "sliding_attention" for kind in kinds)
        if sliding and window:
            return f"sliding {window} on {sliding} of {len(kinds)} layers"
        return "full"
    if window and getattr(config, "use_sliding_window", True):
        return f"sliding {window}"
    return "full"


def _position_words(config: Any) -> str:
    if getattr(config, "relative_attention_num_buckets", None):
        return "relative bias"
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        return "ALiBi"
    if getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None):
        return "rotary"
    learned = ("bert", "roberta", "xlm-roberta", "gpt2", "opt", "albert", "electra", "distilbert")
    return "learned" if config.model_type in learned else ""


def explain(error: BaseException, model: str) -> HeadscopeError:
    """Returns the error a person should see for what the libraries raised while loading."""
    text = str(error)
    low = text.lower()
    log.warning("loading %s failed: %s: %s", model, type(error).__name__, text)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in low:
        return NoMemoryError(
            f"There is not enough memory to load {model}.", "Close others or pick a smaller one."
        )
    if "gated" in low or "401" in low or "403" in low:
        return GatedModelError(
            f"{model} is gated: its owners want you to log in or accept a licence.",
            "Accept it on the hub, log in there, and try again.",
        )
    if "custom code" in low or "trust_remote_code" in low:
        return RemoteCodeError(
            f"{model} wants its own Python code to run.", "Code from a checkpoint is never run."
        )
    if "offline" in low or "couldn't connect" in low or "connection" in low:
        return NoNetworkError(
            f"{model} could not be looked up: the model hub cannot be reached.",
            f"Use an embedded model ({', '.join(CATALOGUE)}) or a local folder.",
        )
    if "safetensors" in low and ("does not appear" in low or "no file named" in low):
        return UnsafeFilesError(
            f"{model} has no safetensors weights.", "Pickle files can run code and are not read."
        )
    if "not a valid model identifier" in low or "404" in low:
        return UnknownModelError(
            f"There is no model '{model}' on the hub.", f"Embedded: {', '.join(CATALOGUE)}."
        )
    if "tokenizer" in low:
        return MissingFileError(f"{model} has no usable tokenizer.", "Add tokenizer.json.")
    if "header" in low or "incomplete" in low or "offset" in low:
        return CorruptFileError(
            f"The weights of {model} cannot be read: {text[:160]}", "Download the file again."
        )
    return UnsupportedModelError(f"{model} cannot be loaded: {text[:200]}", "Pick another model.")
