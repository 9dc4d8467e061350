"""Loads a model for watching: from wherever it comes, checked first, never running its code."""

import contextlib
import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    MODEL_MAPPING,
)
from transformers.utils import logging as transformers_logging

from core.errors import (
    CorruptFileError,
    HeadscopeError,
    MissingFileError,
    RemoteCodeError,
    UnsupportedModelError,
)
from core.models.catalogue import CATALOGUE, EmbeddedModel
from core.models.describe import Facts, describe, embedding_table, kind_of
from core.models.failures import explain, first_line, loading_errors
from core.models.folder import FolderReport, inspect_folder
from core.models.hub import fetch_from_hub
from core.models.placement import check_memory, dtype_name, module_bytes, pick_device, pick_dtype
from core.models.prepare import is_ready, prepare_model
from core.models.sources import Source, SourcePolicy, resolve
from core.results import ModelInfo, ModelRequest, Progress, ProgressCallback

_MOST_MISSING = 0.9
# A checkpoint may lack a head or a pooler, but a config that asks for many times what the files
# hold would fill the memory with random numbers.
_MAX_GROWTH = 4
_GROWTH_FLOOR_PARAMETERS = 50_000_000


__all__ = ["LoadedModel", "embedded_info", "explain", "load_model", "quiet", "wrap_module"]


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, with what reads its inputs.

    Attributes:
        module: in eval mode, on its device, parameters frozen or not as they came.
        tokenizer: None for models that read no text.
        feature_extractor: for models that listen, else None.
        nbytes: of parameters and buffers.
        missing_keys, unexpected_keys: the load report.
        notes: sentences people should read.
    """

    module: nn.Module
    tokenizer: Any
    feature_extractor: Any
    info: ModelInfo
    nbytes: int
    missing_keys: tuple[str, ...] = ()
    unexpected_keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def embedded_info(model: EmbeddedModel) -> ModelInfo:
    """Returns what is known of an embedded model without loading it."""
    return replace(model.info, ready=is_ready(model.id))


def load_model(
    request: ModelRequest, policy: SourcePolicy, progress: ProgressCallback | None = None
) -> LoadedModel:
    """Returns the requested model, ready to run.

    Raises:
        HeadscopeError: one of the subclasses, with what was wrong and what to do.
    """
    source = resolve(request.model, request.revision, policy)
    device = pick_device(request.device)

    def step(done: int) -> None:
        if progress is not None:
            progress(Progress("load", done, 3))

    revision = ""
    if source.kind == "embedded":
        folder = prepare_model(source.id, progress)
    elif source.kind == "hub":
        folder, revision = fetch_from_hub(source, progress)
    else:
        assert source.folder is not None
        folder = source.folder
    step(0)
    allow_pickle = policy.allow_pickle and source.kind == "folder"
    # Folders of the hub's cache are full of links into it; only people's own folders are held
    # to their roots.
    roots = policy.roots if source.kind == "folder" else None
    report = inspect_folder(folder, allow_pickle=allow_pickle, allowed_roots=roots)
    config = _read_config(folder)
    _check_promises(config, report)
    reads_text = _reads_text(config)
    if reads_text and not report.has_tokenizer:
        raise MissingFileError(
            f"The folder '{folder.name}' has no tokenizer: none of tokenizer.json, vocab.txt, "
            "vocab.json or a SentencePiece file is there.",
            "Save the tokenizer into the same folder (tokenizer.save_pretrained).",
        )
    dtype = pick_dtype(request.dtype, device, report)
    check_memory(report, dtype, device, source.id)
    tokenizer = _load_tokenizer(folder) if report.has_tokenizer else None
    extractor = _load_extractor(folder)
    step(1)
    with loading_errors(source.id, str(config.model_type)):
        module, loaded = _load_module(config, report, dtype, device)
    step(2)
    made = _finish(source, revision, config, module, tokenizer, extractor, loaded, dtype, device)
    step(3)
    return made


def wrap_module(module: nn.Module, tokenizer: Any, name: str = "") -> LoadedModel:
    """Returns somebody's own module in memory as a loaded model; nothing in it is changed.

    Its mode is left alone too: whoever asks may want to see a model in training.
    """
    config = getattr(module, "config", None)
    parameters = list(module.parameters())
    first = parameters[0] if parameters else None
    shared: dict[str, Any] = {
        "id": name or type(module).__name__,
        "licence": "",
        "languages": "",
        "ready": True,
        "dtype": dtype_name(first.dtype) if first is not None else "",
        "device": first.device.type if first is not None else "cpu",
        "has_offsets": bool(getattr(tokenizer, "is_fast", False)),
        "has_chat_template": bool(getattr(tokenizer, "chat_template", None)),
    }
    facts: Facts | None = None
    if config is not None and hasattr(config, "model_type"):
        # A module of one's own may carry a config that says little; it can be watched all the same.
        with contextlib.suppress(UnsupportedModelError):
            facts = describe(config, module, tokenizer)
    if facts is not None:
        info = ModelInfo(**vars(facts), **shared)
    else:
        info = ModelInfo(
            **shared,
            family=type(module).__name__,
            kind="encoder",
            n_layers=0,
            n_decoder_layers=0,
            n_heads=0,
            n_kv_heads=0,
            head_dim=0,
            d_model=0,
            vocab_size=embedding_table(module),
            parameters=sum(p.numel() for p in parameters),
        )
    return LoadedModel(module, tokenizer, None, info, module_bytes(module))


def _read_config(folder: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (HeadscopeError, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        # Each family checks its config in its own way and raises whatever it likes.
        raise CorruptFileError(
            f"config.json is not accepted: {first_line(error)}",
            "Correct config.json, or save the model again.",
        ) from error


def _check_promises(config: Any, report: FolderReport) -> None:
    """Refuses a config that asks for far more weights than the files hold.

    The model is built without memory for it, and counted.
    """
    if report.is_pickle or getattr(config, "quantization_config", None):
        return
    try:
        with torch.device("meta"), quiet():
            # A config may name an attention kernel of its own to be fetched and run; ours wins.
            model = _auto_class(config).from_config(config, attn_implementation="eager")
        asked = sum(p.numel() for p in model.parameters())
    except (HeadscopeError, KeyboardInterrupt, MemoryError):
        raise
    except ImportError as error:
        raise UnsupportedModelError(
            f"The family '{config.model_type}' needs a package that is not here: "
            f"{first_line(error)}",
            "Choose another model.",
        ) from error
    except Exception as error:
        raise CorruptFileError(
            f"No model can be built from config.json: {first_line(error)}",
            "Correct its sizes, or save the model again.",
        ) from error
    if asked > max(_GROWTH_FLOOR_PARAMETERS, _MAX_GROWTH * report.n_elements):
        raise CorruptFileError(
            f"config.json asks for {asked:,} weights, but the files hold {report.n_elements:,}.",
            "Correct its sizes, or put the right config.json beside the weights.",
        )


def _reads_text(config: Any) -> bool:
    """Tells whether the model takes token ids; those that take sound or pictures may not."""
    name = str(getattr(_base_class(config), "main_input_name", "input_ids"))
    return name in ("input_ids", "input_features")


def _auto_class(config: Any) -> Any:
    family, kind = str(config.model_type), kind_of(config)
    if kind == "encoder-decoder":
        if family in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
            return AutoModelForSeq2SeqLM
        if family in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES:
            return AutoModelForSpeechSeq2Seq
        return AutoModel
    if kind == "decoder" and family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return AutoModelForCausalLM
    return AutoModel


def _load_module(
    config: Any, report: FolderReport, dtype: torch.dtype, device: torch.device
) -> tuple[nn.Module, Mapping[str, Any]]:
    auto = _auto_class(config)
    options: dict[str, Any] = {
        "config": config,
        "dtype": dtype,
        "local_files_only": True,
        "trust_remote_code": False,
        "use_safetensors": not report.is_pickle,
        "output_loading_info": True,
        # Reported below, by name and shape; the library only logs them.
        "ignore_mismatched_sizes": True,
    }
    if report.is_pickle:
        options["weights_only"] = True
    if device.type != "cpu":
        options["device_map"] = {"": device}
    if auto is AutoModel and _takes_pooling_flag(config):
        options["add_pooling_layer"] = False
    try:
        with quiet():
            module, loaded = auto.from_pretrained(
                report.folder, attn_implementation="sdpa", **options
            )
    except (ValueError, ImportError) as error:
        if "attention" not in str(error):
            raise
        with quiet():
            module, loaded = auto.from_pretrained(
                report.folder, attn_implementation="eager", **options
            )
    mismatched = sorted(loaded.get("mismatched_keys", ()), key=str)
    if mismatched:
        name, stored, wanted = mismatched[0]
        raise CorruptFileError(
            f"The weights do not fit config.json: {len(mismatched)} tensors have other sizes, for "
            f"example '{name}' is {list(stored)} in the files and {list(wanted)} by config.json.",
            "Put the config.json beside the weights that was saved with them.",
        )
    return module.eval(), loaded


def _takes_pooling_flag(config: Any) -> bool:
    found = _base_class(config)
    return found is not None and "add_pooling_layer" in inspect.signature(found).parameters


def _base_class(config: Any) -> type[Any] | None:
    """Returns the class AutoModel takes for a config; None when there is none."""
    try:
        mapped: Any = MODEL_MAPPING[type(config)]
    except KeyError:
        return None
    found = mapped[0] if isinstance(mapped, tuple | list) else mapped
    return found if isinstance(found, type) else None


def _load_tokenizer(folder: Path) -> Any:
    try:
        with quiet():
            return AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        # Tokenizers are read by Rust and by Python code of each family; both raise at will.
        if "trust_remote_code" in str(error):
            raise RemoteCodeError(
                "The tokenizer brings its own Python code, which is never run here.",
                "Use a tokenizer that transformers itself knows.",
            ) from error
        raise CorruptFileError(
            f"The tokenizer cannot be read: {first_line(error)}",
            "Save it again (tokenizer.save_pretrained), beside the model.",
        ) from error


def _load_extractor(folder: Path) -> Any:
    if not (folder / "preprocessor_config.json").is_file():
        return None
    try:
        with quiet():
            return AutoFeatureExtractor.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        # Picture processors live in the same file; no extractor of sound is in it then.
        return None


def _finish(
    source: Source,
    revision: str,
    config: Any,
    module: nn.Module,
    tokenizer: Any,
    extractor: Any,
    loaded: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
) -> LoadedModel:
    missing = tuple(sorted(map(str, loaded.get("missing_keys", ()))))
    unexpected = tuple(sorted(map(str, loaded.get("unexpected_keys", ()))))
    n_tensors = len(module.state_dict())
    is_random = len(missing) >= _MOST_MISSING * max(1, n_tensors)
    notes = [
        *_missing_note(missing, unexpected, module, is_random),
        *_number_note(module),
    ]
    facts = describe(config, module, tokenizer)
    embedded = CATALOGUE[source.id].info if source.kind == "embedded" else None
    if embedded is not None and embedded.note:
        notes.insert(0, embedded.note)
    info = ModelInfo(
        **vars(facts),
        id=source.id,
        licence=embedded.licence if embedded else "",
        languages=embedded.languages if embedded else "",
        ready=True,
        prefix=embedded.prefix if embedded else "",
        has_chat_template=bool(getattr(tokenizer, "chat_template", None)),
        has_offsets=bool(getattr(tokenizer, "is_fast", False)),
        note=" ".join(notes),
        revision=revision,
        random_weights=is_random,
        dtype=dtype_name(dtype),
        device=device.type,
        input="audio" if _listens(module) else "text",
    )
    return LoadedModel(
        module,
        tokenizer,
        extractor,
        info,
        module_bytes(module),
        missing,
        unexpected,
        tuple(notes),
    )


def _listens(module: nn.Module) -> bool:
    return getattr(module, "main_input_name", "") in ("input_features", "input_values")


def _missing_note(
    missing: Sequence[str], unexpected: Sequence[str], module: nn.Module, is_random: bool
) -> list[str]:
    names = list(module.state_dict())
    if not missing:
        return []
    if is_random:
        note = (
            f"Random weights: {len(missing)} of {len(names)} tensors were not in the files, so "
            "what is shown says nothing about the model."
        )
        prefix = common_prefix(unexpected, names, getattr(module, "base_model_prefix", ""))
        if prefix:
            note += (
                f" All names in the files begin with '{prefix}', which this family's do not: save "
                "the model without that wrapper."
            )
        return [note]
    shown = ", ".join(missing[:3]) + (" and more" if len(missing) > 3 else "")
    return [
        f"{len(missing)} of {len(names)} tensors were not in the files and are random: {shown}."
    ]


def common_prefix(found: Sequence[str], expected: Sequence[str], base: str = "") -> str:
    """Returns what stands before the names of the files but not of the model; "" if nothing.

    Args:
        base: the family's own name for the model below its head, which files may leave out or add.
    """
    if not found:
        return ""
    own = f"{base}." if base else ""
    known = {variant for name in expected for variant in (name, name.removeprefix(own), own + name)}
    # What all share, the first and the last in order share.
    pairs = zip(min(found), max(found), strict=False)
    shared = "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    for end in (place + 1 for place, letter in enumerate(shared) if letter == "."):
        if sum(name[end:] in known for name in found) > len(found) / 2:
            return shared[:end]
    return ""


def _number_note(module: nn.Module) -> list[str]:
    bad = []
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.numel():
            low, high = parameter.detach().aminmax()
            # NaN comes through as NaN, infinity as itself: no copy of the weights is made.
            if not (math.isfinite(low.item()) and math.isfinite(high.item())):
                bad.append(name)
    if not bad:
        return []
    shown = ", ".join(bad[:3]) + (" and more" if len(bad) > 3 else "")
    return [f"NaN or infinity in {len(bad)} tensors: {shown}."]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers from drawing bars and load reports; what matters becomes a note."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
