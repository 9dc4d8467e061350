"""Where we plug into transformers: an attention function and a mask builder under one name.

The name must be registered with both interfaces. With the attention function alone, masks arrive
as None without any error and padding, windows and causality are lost. The function finds its
collector in a context variable, so that two threads that share a model never mix; without a
collector it computes attention and keeps nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import and_masks, padding_mask_function, prepare_padding_mask

from core.capture.streaming import ScoreRule, stream_attention
from core.capture.visibility import CausalMask, LazyMask, Mask, TensorMask, TextVisibility

# Must not contain "sdpa", "flash" or "flex_attention": transformers looks for these words.
IMPLEMENTATION = "headscope"


class Collector(Protocol):
    """Receives each call of the attention function."""

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rule: ScoreRule,
        mask: Mask | None,
    ) -> Tensor:
        """Returns the output [batch, query, head, value_dim]."""


_collector: ContextVar[Collector | None] = ContextVar("headscope_collector", default=None)


def build_lazy_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor],
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **_: Any,
) -> LazyMask:
    """Returns the mask as a predicate; called by transformers' mask builders."""
    padding = prepare_padding_mask(attention_mask, kv_length, int(kv_offset))
    if padding is not None:
        mask_function = and_masks(mask_function, padding_mask_function(padding))
    return LazyMask(
        mask_function, q_length, kv_length, int(q_offset), int(kv_offset), torch.device(device)
    )


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes attention exactly; transformers calls it once per attention layer.

    Args:
        query: [batch, head, query, head_dim].
        key, value: [batch, kv head, key, head_dim or value_dim].
        attention_mask: our LazyMask, a ready tensor, or None.
        kwargs: softcap, position_bias, s_aux (sink logits) are used, others belong to kernels.
    """
    if dropout and module.training:
        raise ValueError("a model is captured in evaluation mode: call .eval() first")
    bias = kwargs.get("position_bias")
    mask: Mask | None
    if attention_mask is None:
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", False)
        mask = None
        if causal and query.shape[2] > 1:
            mask = CausalMask(0, query.device)
    elif isinstance(attention_mask, Tensor):
        mask = TensorMask(attention_mask)
        if attention_mask.dtype != torch.bool:
            # Additive masks may carry a bias of their own; what is hidden is hidden anyway.
            low = torch.finfo(attention_mask.dtype).min / 2
            extra = attention_mask.masked_fill(attention_mask <= low, 0)
            if bool(extra.any()):
                bias = extra if bias is None else bias + extra
    else:
        mask = attention_mask
    rule = ScoreRule(
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        softcap=kwargs.get("softcap"),
        bias=bias,
        sink=kwargs.get("s_aux"),
    )
    collector = _collector.get()
    if collector is not None:
        return collector.attend(module, query, key, value, rule, mask), None
    outputs = [
        stream_attention(
            query[b],
            key[b],
            value[b],
            rule_of_text(rule, b, slice(None), slice(None)),
            TextVisibility(mask, b, 0, query.shape[2], 0, key.shape[2], query.device),
        ).output
        for b in range(query.shape[0])
    ]
    return torch.stack(outputs), None


def rule_of_text(rule: ScoreRule, batch: int, queries: slice, keys: slice) -> ScoreRule:
    """Returns the rule with the bias [batch or 1, head, query, key] cut to one text."""
    bias = rule.bias
    if bias is not None:
        bias = bias[batch if bias.shape[0] > 1 else 0][:, queries, keys].float()
    return ScoreRule(rule.scaling, rule.softcap, bias, rule.sink)


def register() -> None:
    """Registers function and mask builder; twice does no harm."""
    AttentionInterface.register(IMPLEMENTATION, attend)
    AttentionMaskInterface.register(IMPLEMENTATION, build_lazy_mask)


@contextmanager
def collecting(model: PreTrainedModel, collector: Collector | None) -> Iterator[None]:
    """Routes a model's attention through `collector` inside the block, and back afterwards."""
    register()
    before = {id(c): (c, c._attn_implementation) for c in _configs(model)}
    token = _collector.set(collector)
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        yield
    finally:
        _collector.reset(token)
        for config, implementation in before.values():
            config._attn_implementation_internal = implementation


def _configs(model: PreTrainedModel) -> list[Any]:
    """Returns the configs that modules of the model read their implementation from."""
    found = [m.config for m in model.modules() if hasattr(m, "config")]
    return [c for c in found if hasattr(c, "_attn_implementation")]


def uses_interface(model: nn.Module) -> bool:
    """Tells whether a model's attention can be substituted; a dry run must still confirm it."""
    return isinstance(model, PreTrainedModel) and bool(model._can_set_attn_implementation())
