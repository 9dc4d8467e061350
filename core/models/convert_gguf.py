"""Turns a GGUF file into a folder of safetensors, so that later loads take seconds.

transformers reads GGUF itself, with the gguf package, and unpacks the weights as it goes.
"""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from core.errors import CorruptFileError


def convert_gguf(source: Path, target: Path) -> None:
    """Writes config, float32 weights and tokenizer of the GGUF file into `target`.

    Raises:
        CorruptFileError: a weight is missing or stayed packed.
    """
    options = {"gguf_file": source.name, "local_files_only": True, "trust_remote_code": False}
    packed = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **options)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **options)
    # The model read from GGUF counts as quantised and refuses to be saved although its weights
    # are plain numbers by then, so they move into a model that never was.
    config = packed.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(packed)(config)
    weights = packed.state_dict()
    if any(not weight.is_floating_point() for weight in weights.values()):
        raise CorruptFileError(f"{source.name} holds weights that could not be unpacked.")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CorruptFileError(f"{source.name} does not fit its own config: {error}") from error
    model.generation_config = packed.generation_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
