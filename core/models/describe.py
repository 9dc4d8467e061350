"""Reads a model's facts from its config and its modules: sizes, positions, norms, limits.

Families name the same thing in many ways, so facts are looked up under all the names in use, and
what a module shows counts more than what a config claims.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from torch import nn
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED,
)

from core.errors import UnsupportedModelError

Kind = Literal["encoder", "decoder", "encoder-decoder"]

MAX_SANE_TOKENS = 100_000_000
"""Tokenizers without a limit of their own claim 10^30; anything above this is no limit."""

_LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers")
_ENCODER_LAYERS = ("encoder_layers", "num_encoder_layers", "num_layers", "num_hidden_layers")
_DECODER_LAYERS = ("decoder_layers", "num_decoder_layers", "num_layers", "num_hidden_layers")
_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads", "encoder_attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HIDDEN = ("hidden_size", "d_model", "n_embd", "dim")
_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_target_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)
_POSITION_TABLES = ("position_embeddings", "wpe", "embed_positions", "position_embedding", "wp")

# XLNet's language model permutes the order; run plainly, every token sees every other.
_BIDIRECTIONAL = {"xlnet"}
_CAUSAL_TEXT_TOWERS = {"clip_text_model"}

# A module of a layer -> where the normalisation stands. First match counts.
_NORM_PATTERNS: tuple[tuple[str, Literal["pre", "post"]], ...] = (
    (r"(^|\.)(input_layernorm|ln_1|norm_1|attn_norm|layernorm_before|layer_norm1|norm1)$", "pre"),
    (r"(^|\.)layer\.0\.layer_norm$", "pre"),
    (r"(^|\.)attention\.output\.LayerNorm$", "post"),
    (r"(^|\.)(attention\.LayerNorm|sa_layer_norm|rel_attn\.layer_norm)$", "post"),
    (r"(^|\.)post_feedforward_layernorm$", "post"),
)
# Families whose layers look the same whether the norm comes before or after.
_NORM_BY_FAMILY: Mapping[str, Literal["pre", "post"]] = MappingProxyType(
    {
        **dict.fromkeys(("bart", "marian", "blenderbot-small", "led", "plbart", "mvp"), "post"),
        **dict.fromkeys(("whisper", "mbart", "pegasus", "m2m_100", "speech_to_text"), "pre"),
        **dict.fromkeys(("nllb-moe", "blenderbot", "xglm", "moonshine"), "pre"),
    }
)


@dataclass(frozen=True)
class Facts:
    """Facts about a model; see core.results.ModelInfo for each."""

    family: str
    kind: Kind
    n_layers: int
    n_decoder_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_model: int
    vocab_size: int
    parameters: int
    attention: str
    norm: str
    position: str
    max_tokens: int | None
    max_tokens_source: str


def kind_of(config: Any) -> Kind:
    """Returns whether the model encodes, decodes or does both, from its config alone."""
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder"
    family = str(config.model_type)
    if getattr(config, "is_decoder", False) or family in _CAUSAL_TEXT_TOWERS:
        return "decoder"
    if family in CAUSAL and family not in MASKED and family not in _BIDIRECTIONAL:
        return "decoder"
    return "encoder"


def describe(config: Any, module: nn.Module | None, tokenizer: Any = None) -> Facts:
    """Returns a model's facts.

    Args:
        config: a transformers config; multimodal ones are read one level down.
        module: the model, on any device (meta too); None knows less.

    Raises:
        UnsupportedModelError: the model has no attention heads or no layers.
    """
    family = str(config.model_type)
    inner = _text_config(config)
    kind = kind_of(config)
    both = kind == "encoder-decoder"
    n_layers = _first(inner, _ENCODER_LAYERS if both else _LAYERS)
    n_heads = _first(inner, _HEADS)
    d_model = _first(inner, _HIDDEN)
    if not n_layers or not n_heads or not d_model:
        raise UnsupportedModelError(
            f"The family '{family}' has no attention heads that its config speaks of "
            f"(layers: {n_layers}, heads: {n_heads}).",
            "Models without softmax attention (state space, convolution) cannot be shown.",
        )
    limit, source = max_tokens_of(config, module, tokenizer)
    return Facts(
        family=family,
        kind=kind,
        n_layers=n_layers,
        n_decoder_layers=_first(inner, _DECODER_LAYERS) if both else 0,
        n_heads=n_heads,
        n_kv_heads=_kv_heads(inner, n_heads),
        head_dim=_head_dim(inner, d_model, n_heads),
        d_model=d_model,
        vocab_size=_vocabulary(inner, module),
        parameters=0 if module is None else sum(p.numel() for p in module.parameters()),
        attention=_attention_words(inner, n_layers),
        norm="" if module is None else _norm(config, inner, module),
        position=_position(inner, module),
        max_tokens=limit,
        max_tokens_source=source,
    )


def max_tokens_of(
    config: Any, module: nn.Module | None, tokenizer: Any = None
) -> tuple[int | None, str]:
    """Returns the longest text the model takes, and where that number stands.

    The config counts before the tokenizer, whose number may be advice or 10^30. A table of
    positions that starts after its padding row (RoBERTa and its kin) has fewer usable rows than
    the config says.
    """
    inner = _text_config(config)
    for table in _position_tables(module):
        if table.padding_idx is not None:
            usable = table.num_embeddings - table.padding_idx - 1
            return usable, (
                f"position table of {table.num_embeddings} rows, of which the first "
                f"{table.padding_idx + 1} are reserved"
            )
    scheme = _position(inner, module)
    if scheme not in ("relative bias", "ALiBi"):
        for name in _POSITIONS:
            value = _number(inner, name)
            if 0 < value <= MAX_SANE_TOKENS:
                return value, f"{name} in config.json"
    claimed = getattr(tokenizer, "model_max_length", None)
    # A relative scheme has no table that ends; what its tokenizer names is advice, not a limit.
    if scheme == "" and isinstance(claimed, int) and 0 < claimed <= MAX_SANE_TOKENS:
        return claimed, "model_max_length of the tokenizer"
    return None, ""


def _text_config(config: Any) -> Any:
    if any(_number(config, name) for name in _HEADS):
        return config
    reader = getattr(config, "get_text_config", None)
    found = reader() if callable(reader) else None
    if found is not None and any(_number(found, name) for name in _HEADS):
        return found
    for name in ("text_config", "vision_config", "decoder"):
        part = getattr(config, name, None)
        if part is not None and any(_number(part, heads) for heads in _HEADS):
            return part
    return config


def _number(config: Any, name: str) -> int:
    """Returns a whole number of the config, 0 when it is absent; lists give their largest."""
    try:
        value = getattr(config, name, None)
    except (AttributeError, NotImplementedError, ValueError):
        return 0
    if isinstance(value, list | tuple) and value and all(isinstance(v, int) for v in value):
        value = max(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _first(config: Any, names: Iterable[str]) -> int:
    return next((value for name in names if (value := _number(config, name))), 0)


def _kv_heads(config: Any, n_heads: int) -> int:
    if config.model_type == "falcon":
        if getattr(config, "new_decoder_architecture", False):
            return _number(config, "num_kv_heads") or n_heads
        return 1 if getattr(config, "multi_query", False) else n_heads
    if getattr(config, "multi_query", None) is True:
        return 1
    nested = getattr(config, "attn_config", None)
    return _first(config, _KV_HEADS) or _number(nested, "kv_n_heads") or n_heads


def _head_dim(config: Any, d_model: int, n_heads: int) -> int:
    # Latent attention: queries and keys have a rotary and a plain part.
    latent = _number(config, "qk_nope_head_dim") + _number(config, "qk_rope_head_dim")
    return latent or _first(config, ("head_dim", "d_kv", "d_head", "d_kq")) or d_model // n_heads


def _vocabulary(config: Any, module: nn.Module | None) -> int:
    table = embedding_table(module)
    return table if table else _number(config, "vocab_size")


def embedding_table(module: nn.Module | None) -> int:
    """Returns how many token ids the model has rows for; 0 when it embeds no tokens."""
    getter = getattr(module, "get_input_embeddings", None)
    if getter is None:
        return 0
    try:
        weight = getattr(getter(), "weight", None)
    except NotImplementedError:
        return 0
    return int(weight.shape[0]) if weight is not None and weight.dim() == 2 else 0


def _attention_words(config: Any, n_layers: int) -> str:
    types = getattr(config, "layer_types", None)
    window = _first(config, ("sliding_window", "local_attention", "attention_window"))
    latent = "multi-head latent, " if _number(config, "kv_lora_rank") else ""
    if isinstance(types, list) and types:
        names = {
            "full_attention": "full",
            "sliding_attention": f"sliding {window}" if window else "sliding",
            "chunked_attention": f"chunked {_number(config, 'attention_chunk_size') or ''}".strip(),
            "linear_attention": "linear (no map)",
        }
        counts = Counter(names.get(str(t), str(t).replace("_", " ")) for t in types)
        if len(counts) == 1:
            return latent + next(iter(counts))
        words = [f"{name} on {n} of {len(types)} layers" for name, n in counts.items()]
        return latent + ", ".join(words)
    if window and getattr(config, "use_sliding_window", True):
        return f"{latent}sliding {window} on all {n_layers} layers"
    return latent + "full"


def _position_tables(module: nn.Module | None) -> list[nn.Embedding]:
    if module is None:
        return []
    return [
        part
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding) and name.rsplit(".", 1)[-1] in _POSITION_TABLES
    ]


def _position(config: Any, module: nn.Module | None) -> str:
    family = str(config.model_type)
    if getattr(config, "alibi", False) or family in ("bloom", "mpt"):
        return "ALiBi"
    if module is not None:
        classes = {type(part).__name__ for part in module.modules()}
        names = {name.rsplit(".", 1)[-1] for name, _ in module.named_modules()}
        parameters = {name.rsplit(".", 1)[-1] for name, _ in module.named_parameters()}
        if {"relative_attention_bias", "rel_embeddings"} & names or "r_w_bias" in parameters:
            return "relative bias"
        if any("Rotary" in name for name in classes):
            return "rotary"
        tables = _position_tables(module)
        sinusoidal = any("Sinusoidal" in name for name in classes)
        if family == "whisper":
            return "sinusoidal (encoder), learned (decoder)"
        if sinusoidal or getattr(config, "sinusoidal_pos_embds", False):
            return "sinusoidal"
        if tables or "position_embeddings" in parameters:
            return "learned"
    if getattr(config, "rope_parameters", None) or getattr(config, "rotary_dim", None):
        return "rotary"
    if _number(config, "relative_attention_num_buckets"):
        return "relative bias"
    if module is not None and not any(_number(config, name) for name in _POSITIONS):
        return ""
    return "learned" if _number(config, "max_position_embeddings") > 0 and not module else ""


def _norm(config: Any, inner: Any, module: nn.Module) -> str:
    family = str(config.model_type)
    if family in _NORM_BY_FAMILY:
        return _NORM_BY_FAMILY[family]
    if hasattr(inner, "do_layer_norm_before"):
        return "pre" if inner.do_layer_norm_before else "post"
    if hasattr(inner, "do_stable_layer_norm"):
        return "pre" if inner.do_stable_layer_norm else "post"
    names = [name for name, _ in module.named_modules()]
    for pattern, where in _NORM_PATTERNS:
        if any(re.search(pattern, name) for name in names):
            return where
    return ""
