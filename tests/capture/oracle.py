"""The metrics a second time, written from their definitions alone, slow and in float64.

Nothing here knows how the project computes anything: loops over rows, one formula a line. What the
product reports is held against this. Undefined is NaN.

Arrays: `log_weights` [head, query, key] is the log-softmax of the scores (-inf where hidden),
`visible` [query, key], `valid_rows` [query] (False on padding).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

BLOCK_WIDTHS = (5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 41, 51, 63, 78, 97)
HIDDEN_SCORE = -1e29
"""Scores below this were masked: the mildest mask value in use is -1e30."""


@dataclass(frozen=True)
class HeadValues:
    """Single-head metrics of one layer.

    Attributes:
        metrics: name -> [head].
        position_bias: [head, key].
        special_mass: key -> [head].
        sink_rate: of the layer.
    """

    metrics: dict[str, Floats]
    position_bias: Floats
    special_mass: dict[int, Floats]
    sink_rate: float


@dataclass(frozen=True)
class PairValues:
    """Pair metrics of one layer: name -> [head, head], and the rows behind js_bits."""

    metrics: dict[str, Floats]
    js_rows: int


@dataclass(frozen=True)
class Scores:
    """What one attention layer computed.

    Attributes:
        log_weights: [batch, head, query, key], float64, -inf where hidden.
        visible: [batch, query, key].
    """

    log_weights: Floats
    visible: Bools


def log_softmax(scores: Floats, visible: Bools) -> Floats:
    """Returns log-softmax over the visible keys of scores [head, query, key]."""
    masked = np.where(visible, scores, -np.inf)
    peak = masked.max(-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    exponentials = np.where(visible, np.exp(masked - peak), 0.0)
    total = exponentials.sum(-1, keepdims=True)
    log_total = np.log(np.where(total > 0, total, 1.0))
    return np.where(visible, np.where(visible, scores, 0.0) - peak - log_total, -np.inf)


def head_values(
    log_weights: Floats,
    visible: Bools,
    valid_rows: Bools,
    *,
    is_cross: bool = False,
    special_keys: Sequence[int] = (),
    head_outputs: Floats | None = None,
    output_weights: Floats | None = None,
) -> HeadValues:
    """Returns all single-head metrics of one layer.

    Args:
        is_cross: queries and keys are different tokens, so that distances mean nothing.
        special_keys: positions of special tokens.
        head_outputs: [head, query, d_v], weights times values as the model uses them.
        output_weights: [head, d_v, d_model], the head's slice of the output projection.
    """
    n_heads, _, n_keys = log_weights.shape
    n_seen = visible.sum(1)
    rows = [int(q) for q in np.flatnonzero(valid_rows & (n_seen >= 2))]
    keys = np.flatnonzero(visible[valid_rows].any(0))
    weights = np.exp(log_weights)
    metrics: dict[str, Floats] = {}
    bias = np.full((n_heads, n_keys), np.nan)
    special = {int(k): np.full(n_heads, np.nan) for k in special_keys}

    def per_head(name: str, function: Any) -> None:
        metrics[name] = np.array([function(h) for h in range(n_heads)], dtype=np.float64)

    def entropy(h: int, q: int) -> float:
        return -math.fsum(
            weights[h, q, k] * log_weights[h, q, k] for k in keys if weights[h, q, k] > 0
        )

    entropies = {(h, q): entropy(h, q) for h in range(n_heads) for q in rows}
    long_rows = [q for q in rows if n_seen[q] >= 8]
    per_head(
        "normalized_entropy",
        lambda h: _mean([entropies[h, q] / math.log(n_seen[q]) for q in rows]),
    )
    per_head(
        "entropy_over_ln_n", lambda h: _mean([entropies[h, q] / math.log(len(keys)) for q in rows])
    )
    per_head(
        "uniform_rows",
        lambda h: _mean([float(entropies[h, q] / math.log(n_seen[q]) > 0.98) for q in long_rows]),
    )
    per_head("max_weight", lambda h: _mean([weights[h, q].max() for q in rows]))
    for name, offset in (("diagonal_mass", 0), ("previous_mass", -1), ("next_mass", 1)):
        pairs = [
            (q, q + offset)
            for q in rows
            if not is_cross and 0 <= q + offset < n_keys and visible[q, q + offset]
        ]
        per_head(name, lambda h, pairs=pairs: _mean([weights[h, q, k] for q, k in pairs]))
    per_head(
        "mean_distance",
        lambda h: (
            math.nan
            if is_cross
            else _mean([math.fsum(weights[h, q, k] * abs(q - k) for k in keys) for q in rows])
        ),
    )

    for k in range(n_keys):
        seers = [q for q in rows if visible[q, k]]
        share = np.array([_mean([weights[h, q, k] for q in seers]) for h in range(n_heads)])
        if k in special:
            special[k] = share
        if len(seers) >= 4 and len(seers) >= 0.1 * len(rows):
            bias[:, k] = share
    per_head("position_bias_max", lambda h: _largest(bias[h]))
    per_head(
        "first_token_mass",
        lambda h: _mean([weights[h, q, keys[0]] for q in rows]) if len(keys) else math.nan,
    )
    per_head(
        "block_coverage",
        lambda h: (
            math.nan if is_cross else _block_coverage(weights[h], visible, rows, keys, bias[h])
        ),
    )
    ratio = np.full(n_heads, np.nan)
    if head_outputs is not None and output_weights is not None:
        norms = [
            float(np.linalg.norm(head_outputs[h][valid_rows] @ output_weights[h]))
            for h in range(n_heads)
        ]
        if _mean(norms) > 0:
            ratio = np.array(norms) / _mean(norms)
    metrics["output_norm_ratio"] = ratio
    sink_rate = math.nan
    if len(rows) >= 32:
        sink_rate = _mean([float(bool((bias[h] > 0.3).any())) for h in range(n_heads)])
    return HeadValues(metrics, bias, special, sink_rate)


def _block_coverage(
    weights: Floats, visible: Bools, rows: Sequence[int], keys: NDArray[Any], bias: Floats
) -> float:
    """Returns the share of the rows that test some block of neighbours that keep to themselves."""
    n_tokens = len(keys)
    widths = [w for w in BLOCK_WIDTHS if w < n_tokens / 2]
    if not widths or not rows:
        return math.nan
    sinks = {
        int(k)
        for k in keys
        if bias[k] > 0.3 and sum(bool(visible[q, k]) for q in rows) >= len(rows) / 4
    }
    row_set = set(rows)
    covered: set[int] = set()
    for width in widths:
        for start in range(n_tokens - width + 1):
            window = [int(k) for k in keys[start : start + width]]
            outside = [int(k) for k in keys if k not in window]
            inside = [k for k in window if k not in sinks]
            testers = [
                q
                for q in window
                if q in row_set and visible[q, outside].any() and weights[q, q] < 0.8
            ]
            if len(testers) >= width / 2 and all(weights[q, inside].sum() >= 0.8 for q in testers):
                covered.update(testers)
    return len(covered) / len(rows)


def pair_values(log_weights: Floats, visible: Bools, valid_rows: Bools) -> PairValues:
    """Returns all pair metrics of one layer."""
    n_heads = log_weights.shape[0]
    weights = np.exp(log_weights)
    valid = [int(q) for q in np.flatnonzero(valid_rows)]
    n_seen = visible.sum(1)
    rows = [q for q in valid if n_seen[q] >= 2]
    sampled = valid
    if len(valid) > 512:
        sampled = [valid[math.floor((i + 0.5) * len(valid) / 256)] for i in range(256)]
    js_rows = [q for q in sampled if n_seen[q] >= 2]

    flat = weights[:, valid].reshape(n_heads, -1)
    centred = flat - flat.mean(0)
    names = ("cosine", "cosine_centred", "kl_nats", "js_bits")
    out = {name: np.full((n_heads, n_heads), np.nan) for name in names}
    for i in range(n_heads):
        for j in range(n_heads):
            lengths = np.linalg.norm(flat[i]), np.linalg.norm(flat[j])
            if min(lengths) > 0:
                out["cosine"][i, j] = flat[i] @ flat[j] / (lengths[0] * lengths[1])
            rest = np.linalg.norm(centred[i]), np.linalg.norm(centred[j])
            if n_heads >= 3 and all(
                r >= 1e-4 * n and n > 0 for r, n in zip(rest, lengths, strict=True)
            ):
                out["cosine_centred"][i, j] = centred[i] @ centred[j] / (rest[0] * rest[1])
            out["kl_nats"][i, j] = _mean(
                [_kl(log_weights[i, q], log_weights[j, q], visible[q]) for q in rows]
            )
            out["js_bits"][i, j] = _mean(
                [_js(log_weights[i, q], log_weights[j, q], visible[q]) for q in js_rows]
            )
    return PairValues(out, len(js_rows))


def _kl(first: Floats, second: Floats, seen: Bools) -> float:
    return float((np.exp(first[seen]) * (first[seen] - second[seen])).sum())


def _js(first: Floats, second: Floats, seen: Bools) -> float:
    a, b = first[seen], second[seen]
    middle = np.logaddexp(a, b) - math.log(2)
    nats = 0.5 * (np.exp(a) * (a - middle)).sum() + 0.5 * (np.exp(b) * (b - middle)).sum()
    return float(nats / math.log(2))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _largest(values: Floats) -> float:
    return float(np.nanmax(values)) if not np.isnan(values).all() else math.nan


def eager_scores(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], kinds: Sequence[str]
) -> dict[str, tuple[Scores, ...]]:
    """Returns what every attention layer of a float64 module computes, by kind, in layer order.

    The module runs as it came, in eager mode; only its softmax is watched. Places where a module
    asks for float32 (norms, rotary angles, the softmax itself) get float64 instead. Sink columns
    are dropped and the rest renormalised.

    Args:
        model: the module after `.double()`, attention implementation "eager".
        kinds: the family's kinds, in the order encoder, decoder, cross.
    """
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    if model._can_set_experts_implementation():
        # The fused kernel for experts knows no float64.
        cast(Any, model).set_experts_implementation("eager")
    has_sinks = any(name.endswith("sinks") for name, _ in model.named_parameters())
    with torch.no_grad(), _watched_softmax() as seen:
        model(**wide, **({"use_cache": False} if "decoder" in kinds else {}))
    layers = [_to_scores(scores[..., :-1] if has_sinks else scores) for scores in seen]
    if "cross" not in kinds:
        return {kinds[0]: tuple(layers)}
    n_encoder = cast(Any, model.config).num_hidden_layers
    rest = layers[n_encoder:]
    return {
        "encoder": tuple(layers[:n_encoder]),
        "decoder": tuple(rest[0::2]),
        "cross": tuple(rest[1::2]),
    }


def _to_scores(scores: Tensor) -> Scores:
    """Returns log-weights and visibility of scores [batch, head, query, key]."""
    values = scores.numpy()
    shown = values > HIDDEN_SCORE
    if not (shown == shown[:, :1]).all():
        raise AssertionError("the heads of a layer do not see the same keys")
    log_weights = np.stack([log_softmax(v, s) for v, s in zip(values, shown, strict=True)])
    return Scores(log_weights, shown[:, 0])


class _FloatsAreDouble(TorchFunctionMode):
    """Keeps a float64 module in float64 and collects what enters its attention softmaxes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.softmax, Tensor.softmax, torch.nn.functional.softmax):
            scores = args[0] if args else kwargs["input"]
            # Routers of mixtures of experts use softmax, too, on [token, expert].
            if scores.ndim == 4:
                self.seen.append(scores.detach().double().clone())
                return torch.softmax(scores.double(), dim=-1)
        if func is Tensor.float:
            return args[0].double()
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
        return func(*args, **kwargs)


@contextmanager
def _watched_softmax() -> Iterator[list[Tensor]]:
    with _FloatsAreDouble() as mode:
        yield mode.seen
