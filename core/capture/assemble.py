"""Turns the record of one text and stack into the result that crosses the service's door."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from core.capture.blocks import block_coverage
from core.capture.record import StackRecord
from core.capture.store import AttentionStore
from core.metrics.patterns import name_patterns
from core.results import AttentionResult, FloatArray, Token

INTEGRITY = ("row_sum_error", "column_sum_error", "future_leak", "padding_leak")


def assemble(
    record: StackRecord,
    text_index: int,
    query_tokens: tuple[Token, ...],
    key_tokens: tuple[Token, ...],
    *,
    blocks: bool = False,
    top_tokens: tuple[tuple[str, float], ...] = (),
) -> AttentionResult:
    """Returns the result of one text in one stack; arrays are read-only.

    Args:
        blocks: also run the second pass for block_coverage.
    """
    layers = record.layers
    metrics: dict[str, FloatArray] = {
        name: np.stack([layer.metrics[name] for layer in layers]) for name in layers[0].metrics
    }
    undefined = np.full_like(metrics["max_weight"], np.nan)
    metrics["block_coverage"] = undefined.copy()
    if blocks and record.kind != "cross" and record.store:
        store: AttentionStore = record.store
        metrics["block_coverage"] = np.stack(
            [
                block_coverage(store, i, layer, record.visibilities[i])
                for i, layer in enumerate(layers)
            ]
        )
    metrics["output_norm_ratio"] = _ratios(record, undefined)
    metrics["induction_score"] = undefined.copy()
    metrics["sink_logit_mass"] = _stack(record.sink_masses, undefined)
    for name in INTEGRITY:
        metrics[name] = undefined.copy()
        if record.integrity:
            metrics[name] = np.stack([figures[name].numpy() for figures in record.integrity])
    pairs = {name: np.stack([layer.pairs[name] for layer in layers]) for name in layers[0].pairs}
    sums = np.stack([layer.key_sums for layer in layers])
    special = {i: sums[:, :, i] for i, token in enumerate(key_tokens) if token.is_special}
    for array in (*metrics.values(), *pairs.values(), *special.values()):
        array.setflags(write=False)
    return AttentionResult(
        text_index=text_index,
        kind=record.kind,
        n_layers=len(layers),
        n_heads=record.n_heads,
        n_kv_heads=record.n_kv_heads,
        query_tokens=query_tokens,
        key_tokens=key_tokens,
        metrics=metrics,
        pairs=pairs,
        js_rows=layers[0].js_rows,
        position_bias=np.stack([layer.position_bias for layer in layers]),
        special_mass=special,
        sink_rate=np.array([layer.sink_rate for layer in layers]),
        patterns=name_patterns(metrics, pairs.get("cosine")),
        top_tokens=top_tokens,
    )


def _ratios(record: StackRecord, undefined: FloatArray) -> FloatArray:
    norms = _stack(record.output_norms, undefined)
    mean = norms.mean(1, keepdims=True)
    return np.asarray(np.divide(norms, mean, out=undefined.copy(), where=mean > 0))


def _stack(values: Sequence[Tensor | None], undefined: FloatArray) -> FloatArray:
    if not values or any(value is None for value in values):
        return undefined.copy()
    return np.stack([np.asarray(value, dtype=np.float64) for value in values])
