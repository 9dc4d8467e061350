"""Exact attention in tiles of query rows: output, log-sum-exp and statistics, never an N x N map.

For each tile of R rows all heads are worked together: scores [head, R, key], softmax, product with
the values; whoever listens (`TileListener`) sees the weights of the tile before they are dropped.
Statistics are taken in float32 whatever the model's dtype.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from core.capture.visibility import Block, TextVisibility

HIDDEN_SCORE = -1e30
"""Finite, so that 0 * score is 0 where -inf would give NaN; exp() of it is exactly 0."""

TILE_ROWS = 128
"""Query rows of a tile at N = 2048. More rows leave the cache, fewer read the keys again."""

TILE_BYTES = 32 * 1024**2
"""Most bytes of one tile; a pass works on two of them."""


@dataclass(frozen=True)
class ScoreRule:
    """How raw products become scores, beyond the mask.

    Attributes:
        scaling: factor on q.k.
        softcap: c in c * tanh(score / c), before the mask (Gemma 2).
        bias: added to the scores, [head or 1, query, key] of the whole text (T5, float masks).
        sink: one extra logit a head that takes weight and gives nothing (gpt-oss), [head].
    """

    scaling: float
    softcap: float | None = None
    bias: Tensor | None = None
    sink: Tensor | None = None

    def scores(
        self, query: Tensor, key: Tensor, rows: slice, keys: slice, out: Tensor | None = None
    ) -> Tensor:
        """Returns scores [head, row, key], float32, before the mask.

        Args:
            query: [head, row, head_dim], already cut to the rows.
            key: [kv head, key, head_dim], already cut to the keys.
            rows, keys: the same windows, to cut the bias.
            out: buffer of the right size.
        """
        n_heads, n_rows, head_dim = query.shape
        n_kv = key.shape[0]
        # Queries of the heads that share a key head are stacked, so the keys are never repeated.
        stacked = (query.float() * self.scaling).reshape(n_kv, -1, head_dim)
        flat = None if out is None else out.view(n_kv, -1, key.shape[1])
        product = torch.bmm(stacked, key.float().transpose(1, 2), out=flat)
        result = product.view(n_heads, n_rows, key.shape[1])
        if self.softcap is not None:
            result.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.bias is not None:
            result += self.bias[:, rows, keys]
        return result


@dataclass(frozen=True)
class Tile:
    """All heads of some query rows, seen once and then overwritten.

    Attributes:
        rows: [start, stop) of the queries.
        block: their visibility; the tile's keys are block.keys.
        weights: [head, row, key], rows sum to 1 (0 where a query sees nothing).
        scores: [head, row, key].
        log_sum_exp: [head, row]; log weights are scores - log_sum_exp, in nats. Scores of hidden
            keys are about -1e30, finite; rows that see nothing have 0.
        highest: [head, row], the largest weight.
    """

    rows: tuple[int, int]
    block: Block
    weights: Tensor
    scores: Tensor
    log_sum_exp: Tensor
    highest: Tensor


class TileListener(Protocol):
    """Sees the weights of each tile once."""

    def add_tile(self, tile: Tile) -> None:
        """Takes one tile."""


@dataclass(frozen=True)
class Streamed:
    """Result of `stream_attention` for one text.

    Attributes:
        output: [query, head, value_dim], the values' dtype.
        log_sum_exp: [head, query], float32, over the visible keys (a sink logit left out).
        sink_mass: [head, query] weight taken by the sink logit, None without one.
    """

    output: Tensor
    log_sum_exp: Tensor
    sink_mass: Tensor | None


def rows_per_tile(n_heads: int, n_keys: int) -> int:
    """Returns how many query rows one tile holds."""
    most = TILE_BYTES // (4 * n_heads * n_keys)
    # A short text goes in one tile as large as those of a long one.
    return max(16, min(most, max(TILE_ROWS, TILE_ROWS * 2048 // n_keys)))


def _peaks(scores: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the largest weight and the log-sum-exp [head, row] of softmax(scores) = weights.

    The fused softmax is twice as fast as its five steps, but does not tell the log-sum-exp; any
    score less the log of its weight gives it back, best that of the largest.
    """
    # numpy finds where the largest is in a tenth of torch's time.
    on_cpu = weights.device.type == "cpu"
    where = torch.from_numpy(weights.numpy().argmax(-1)) if on_cpu else weights.argmax(-1)
    highest = weights.gather(-1, where[..., None])[..., 0]
    return highest, scores.gather(-1, where[..., None])[..., 0] - highest.log()


def stream_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rule: ScoreRule,
    visibility: TextVisibility,
    listener: TileListener | None = None,
    tile_rows: int | None = None,
) -> Streamed:
    """Returns attention of one text, exact, in memory proportional to a tile.

    Args:
        query: [head, query, head_dim].
        key, value: [kv head, key, head_dim or value_dim]; kv heads divide heads.
        tile_rows: rows of a tile; None chooses.
    """
    n_heads, n_queries, _ = query.shape
    n_kv, n_keys, value_dim = value.shape
    step = min(tile_rows or rows_per_tile(n_heads, n_keys), n_queries)
    key32, value32 = key.float(), value.float()
    output = torch.empty(n_queries, n_heads, value_dim, dtype=query.dtype, device=query.device)
    log_sum_exp = torch.empty(n_heads, n_queries, device=query.device)
    sink_mass = None if rule.sink is None else torch.empty_like(log_sum_exp)
    most = step * n_keys
    weights_buffer = torch.empty(n_heads * most, device=query.device)
    scores_buffer = torch.empty(n_heads * most, device=query.device)
    for r0 in range(0, n_queries, step):
        r1 = min(r0 + step, n_queries)
        block = visibility.block(r0, r1)
        k0, k1 = block.keys
        shape = (n_heads, r1 - r0, k1 - k0)
        size = math.prod(shape)
        weights = weights_buffer[:size].view(shape)
        scores = scores_buffer[:size].view(shape)
        rule.scores(query[:, r0:r1], key32[:, k0:k1], slice(r0, r1), slice(k0, k1), out=scores)
        if block.hidden is not None:
            c0, c1 = block.masked
            scores[:, :, c0:c1].masked_fill_(block.hidden, HIDDEN_SCORE)
        torch.softmax(scores, -1, out=weights)
        highest, row_lse = _peaks(scores, weights)
        if block.has_blind_rows:
            blind = block.n_visible == 0
            weights[:, blind] = 0
            row_lse[:, blind] = 0
        log_sum_exp[:, r0:r1] = row_lse
        tile_out = torch.bmm(weights.view(n_kv, -1, k1 - k0), value32[:, k0:k1])
        tile_out = tile_out.view(n_heads, r1 - r0, value_dim)
        if rule.sink is not None and sink_mass is not None:
            # exp(lse) / (exp(lse) + exp(sink)) of the row's weight is left for real keys.
            kept = torch.sigmoid(log_sum_exp[:, r0:r1] - rule.sink.float()[:, None])
            sink_mass[:, r0:r1] = 1 - kept
            tile_out = tile_out * kept[..., None]
        output[r0:r1] = tile_out.transpose(0, 1)
        if listener is not None:
            listener.add_tile(Tile((r0, r1), block, weights, scores, row_lse, highest))
    return Streamed(output, log_sum_exp, sink_mass)


def rebuild_weights(
    query: Tensor,
    key: Tensor,
    log_sum_exp: Tensor,
    rule: ScoreRule,
    visibility: TextVisibility,
    rows: tuple[int, int],
    keys: tuple[int, int],
) -> Tensor:
    """Returns exact weights [head, row, key] of a window from kept q, k and log-sum-exp.

    Args:
        query: [head, query, head_dim] of the wanted heads, whole text.
        key: [kv head, key, head_dim], one kv head for all wanted heads, or as many as heads.
        log_sum_exp: [head, query].
    """
    cut_q, cut_k = slice(*rows), slice(*keys)
    scores = rule.scores(query[:, cut_q], key[:, cut_k], cut_q, cut_k)
    weights = scores.sub_(log_sum_exp[:, cut_q, None]).exp_()
    allowed = visibility.visible(rows, keys)
    if allowed is not None:
        weights.masked_fill_(~allowed, 0)
    return weights
