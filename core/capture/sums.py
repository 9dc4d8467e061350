"""What is summed over the tiles of one layer and one text, and the sums in plain tensor operations.

`add_tile` here is the short form, used on a GPU; `row_sums.add_tile` gives the same figures on a
CPU in one pass over each row. Definitions: docs/metrics.md.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from core.capture.streaming import Tile

TINY = 1.2e-38
"""The smallest normal float32: added where a logarithm of 0 would be taken."""


@dataclass(frozen=True)
class Sums:
    """Running sums; D_h is the map of head h less the mean map of the layer.

    Heads of a layer are alike, and the small difference of two large products would be lost in
    float32: pairs of heads are summed as products of D and of the mean.

    Attributes:
        offset: position of query 0 among the keys (with a cache the queries come last).
        several: bool [query], sees two keys or more.
        sampled: [row] queries behind the mixtures.
        entropy, highest, distance: [head, query]; nats, weight, tokens.
        near: [3, head, query] weight on the key before, on the query's own, on the next.
        column_sums: [head, key] weight on each key over the queries that see several, float64.
        overview: [head, query cell, key cell] sums of weights; None when not wanted.
        products: [head + 1, head + 1] of D and (last) the mean, float64.
        cross: [head + 1, head] of D and the mean with log weights (nats), float64; over the
            queries that see several.
        mixtures: [head, head] above the diagonal: sums of s log2 s, s = P_i + P_j, float64.
        pairs, js: whether the last three, and whether the mixtures, are wanted.
    """

    offset: int
    several: Tensor
    sampled: Tensor
    entropy: Tensor
    highest: Tensor
    distance: Tensor
    near: Tensor
    column_sums: Tensor
    overview: Tensor | None
    products: Tensor
    cross: Tensor
    mixtures: Tensor
    pairs: bool
    js: bool

    @classmethod
    def start(
        cls,
        n_heads: int,
        n_keys: int,
        several: Tensor,
        sampled: Tensor,
        *,
        offset: int,
        cells: tuple[int, int] | None,
        pairs: bool,
        js: bool,
    ) -> "Sums":
        """Returns sums at zero.

        Args:
            cells: sides of the overview.
        """
        device = several.device
        n_queries = len(several)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        return cls(
            offset=offset,
            several=several,
            sampled=sampled,
            entropy=zeros(n_heads, n_queries),
            highest=zeros(n_heads, n_queries),
            distance=zeros(n_heads, n_queries),
            near=zeros(3, n_heads, n_queries),
            column_sums=zeros(n_heads, n_keys, dtype=torch.float64),
            overview=None if cells is None else zeros(n_heads, *cells),
            products=zeros(n_heads + 1, n_heads + 1, dtype=torch.float64),
            cross=zeros(n_heads + 1, n_heads, dtype=torch.float64),
            mixtures=zeros(n_heads, n_heads, dtype=torch.float64),
            pairs=pairs,
            js=js,
        )

    def sampled_in(self, rows: tuple[int, int]) -> Tensor:
        """Returns the sampled queries of some rows, counted from the first of these."""
        r0, r1 = rows
        return self.sampled[(self.sampled >= r0) & (self.sampled < r1)] - r0


def cell_edges(n: int, cells: int) -> Tensor:
    """Returns [cells + 1] borders: cell i holds positions i*n//cells to (i+1)*n//cells."""
    return torch.arange(cells + 1) * n // cells


def cell_of(n: int, cells: int, device: torch.device) -> Tensor:
    """Returns [position] the cell of `cell_edges` that holds it."""
    return ((torch.arange(n, device=device) + 1) * cells - 1) // n


def add_tile(sums: Sums, tile: Tile) -> None:
    """Adds one tile, in operations any device has."""
    (r0, r1), (k0, k1), weights = tile.rows, tile.block.keys, tile.weights
    device, n_heads = weights.device, len(weights)
    several = sums.several[r0:r1]
    logs = tile.scores - tile.log_sum_exp[..., None]
    sums.entropy[:, r0:r1] = -(weights * logs).sum(-1)
    sums.highest[:, r0:r1] = tile.highest
    query = torch.arange(r0, r1, device=device).float() + sums.offset
    key = torch.arange(k0, k1, device=device).float()
    sums.distance[:, r0:r1] = (weights * (query[:, None] - key).abs_()).sum(-1)
    for shift, near in zip((-1, 0, 1), sums.near, strict=True):
        column = r0 + sums.offset + shift - k0
        diagonal = weights.diagonal(column, 1, 2)
        first = r0 + max(0, -column)
        near[:, first : first + diagonal.shape[-1]] = diagonal
    sums.column_sums[:, k0:k1] += torch.matmul(several.float(), weights)
    if sums.overview is not None:
        _, cells_q, cells_k = sums.overview.shape
        row_cell = cell_of(len(sums.several), cells_q, device)[r0:r1]
        key_cell = cell_of(sums.column_sums.shape[1], cells_k, device)[k0:k1]
        pooled = weights.new_zeros(n_heads, cells_q, k1 - k0).index_add_(1, row_cell, weights)
        sums.overview.index_add_(2, key_cell, pooled)
    if sums.pairs:
        _add_pairs(sums, weights, logs, several)
    if sums.js:
        chosen = weights[:, sums.sampled_in(tile.rows)]
        for i in range(n_heads - 1):
            mixed = chosen[i] + chosen[i + 1 :] + TINY
            found = (mixed * mixed.log2()).sum((1, 2), dtype=torch.float64)
            sums.mixtures[i, i + 1 :] += found


def _add_pairs(sums: Sums, weights: Tensor, logs: Tensor, several: Tensor) -> None:
    mean = weights.mean(0, keepdim=True)
    # A product for each row: short sums keep float32 exact enough; rows are added in float64.
    less = torch.cat([weights - mean, mean]).transpose(0, 1)  # [row, head + 1, key]
    sums.products.add_(torch.bmm(less, less.transpose(1, 2)).sum(0, dtype=torch.float64))
    with_logs = torch.bmm(less, logs.permute(1, 2, 0))[several]
    sums.cross.add_(with_logs.sum(0, dtype=torch.float64))


def jensen_shannon(sums: Sums) -> Tensor:
    """Returns Jensen-Shannon divergences [head, head] in bits, float64, 0 to 1."""
    rows = len(sums.sampled)
    own = sums.entropy[:, sums.sampled].double().sum(1) / rows
    # With s = P_i + P_j a row's mixture has entropy 1 - sum(s log2 s) / 2 bits.
    mixed = 1 - (sums.mixtures + sums.mixtures.T) / (2 * rows)
    divergence = mixed - (own[:, None] + own[None, :]) / (2 * math.log(2))
    return divergence.clamp_(0, 1).fill_diagonal_(0)
