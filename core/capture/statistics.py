"""Running sums over tiles, and the metrics that come out of them.

`HeadStatistics` listens to the tiles of one layer and one text. It sees every weight once and
keeps per-row figures [head, query], column sums, a pooled picture and products of pairs of heads;
sums over rows are closed in float64. Definitions: docs/metrics.md.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from core.capture.visibility import Block, TextVisibility
from core.limits import OVERVIEW_SIZE

JS_EXACT_TOKENS = 512
JS_SAMPLED_ROWS = 256
UNIFORM_MIN_KEYS = 8
UNIFORM_ENTROPY = 0.98
SINK_WEIGHT = 0.3
SINK_RATE_MIN_QUERIES = 32
CENTRED_MIN_SHARE = 1e-4
TINY = 1.2e-38


Array = np.ndarray


@dataclass(frozen=True)
class StatisticsOptions:
    """What to compute beside the single-head figures.

    Attributes:
        pairs: cosine, centred cosine and KL of all pairs of heads of a layer.
        js: Jensen-Shannon divergence of the pairs (needs pairs).
        overview: largest side of the pooled picture; 0 for none.
    """

    pairs: bool = True
    js: bool = True
    overview: int = OVERVIEW_SIZE


@dataclass(frozen=True)
class LayerStatistics:
    """Figures of one layer and one text, NaN where undefined.

    Attributes:
        metrics: name -> [head].
        pairs: name -> [head, head].
        position_bias: [head, key].
        key_sums: [head, key], weight on each key per query that sees it, also where
            position_bias is NaN because too few queries do.
        overview: [head, query cell, key cell], float16; exact where the text is short.
        sink_rate: share of the heads with a sink, NaN below 32 queries.
    """

    metrics: dict[str, Array]
    pairs: dict[str, Array]
    js_rows: int
    position_bias: Array
    key_sums: Array
    sink_rate: float
    overview: Array | None


class HeadStatistics:
    """Sums over the tiles of one layer and one text; `close` turns them into figures."""

    def __init__(
        self,
        n_heads: int,
        visibility: TextVisibility,
        options: StatisticsOptions,
        *,
        is_self_attention: bool,
        tile_rows: int,
    ) -> None:
        self.n_heads = n_heads
        self.visibility = visibility
        self.options = options
        self.is_self_attention = is_self_attention
        self.n_queries, self.n_keys = visibility.n_queries, visibility.n_keys
        # With a cache the queries are the last positions of the keys.
        self.offset = self.n_keys - self.n_queries if is_self_attention else 0
        device = visibility.device
        self.n_visible, self.n_seeing = visibility.counts(tile_rows)
        self.several = self.n_visible >= 2
        per_row = (n_heads, self.n_queries)
        self.entropy = torch.zeros(per_row, device=device)
        self.highest = torch.zeros(per_row, device=device)
        self.distance = torch.zeros(per_row, device=device)
        self.near = {o: torch.zeros(per_row, device=device) for o in (-1, 0, 1)}
        self.column_sums = torch.zeros(n_heads, self.n_keys, dtype=torch.float64, device=device)
        self.products = torch.zeros(n_heads + 1, n_heads + 1, dtype=torch.float64, device=device)
        self.cross = torch.zeros(n_heads, n_heads, dtype=torch.float64, device=device)
        self.mixtures = torch.zeros(n_heads, n_heads, dtype=torch.float64, device=device)
        self.js_entropy = torch.zeros(n_heads, dtype=torch.float64, device=device)
        self.non_finite = torch.zeros(n_heads, dtype=torch.long, device=device)
        self.sampled = self._sample_rows()
        self.overview: Tensor | None = None
        if options.overview:
            cells_q = min(options.overview, self.n_queries)
            cells_k = min(options.overview, self.n_keys)
            self.overview = torch.zeros(n_heads, cells_q, cells_k, device=device)

    def _sample_rows(self) -> Tensor:
        """Returns the rows behind js_bits: all up to 512 queries, else 256 spread evenly."""
        rows = self.several.nonzero()[:, 0]
        if self.n_queries <= JS_EXACT_TOKENS or not len(rows):
            return rows
        # floor((i + 0.5) * n / 256), in whole numbers.
        picked = (2 * torch.arange(JS_SAMPLED_ROWS) + 1) * len(rows) // (2 * JS_SAMPLED_ROWS)
        return rows[picked.to(rows.device)]

    def add_tile(
        self,
        rows: tuple[int, int],
        block: Block,
        weights: Tensor,
        log_weights: Tensor,
        scratch: Tensor,
    ) -> None:
        """Takes one tile (see `streaming.TileListener`)."""
        r0, r1 = rows
        # Whole passes over a tile in the cache cost a twentieth of a thin matrix product here.
        self.entropy[:, r0:r1] = -torch.mul(weights, log_weights, out=scratch[:-1]).sum(-1)
        self.highest[:, r0:r1] = weights.amax(-1)
        if block.all_see_several:
            sums = weights.sum(1)
        else:
            sums = torch.matmul(self.several[r0:r1].float(), weights)
        self.column_sums[:, slice(*block.keys)] += sums
        if self.is_self_attention:
            self._add_distances(rows, block, weights, scratch)
        if self.overview is not None:
            self._add_overview(self.overview, rows, block, weights)
        if self.options.pairs:
            self._add_pairs(rows, weights, log_weights, scratch)

    def _add_distances(
        self, rows: tuple[int, int], block: Block, weights: Tensor, scratch: Tensor
    ) -> None:
        (r0, r1), (k0, k1) = rows, block.keys
        query = torch.arange(r0, r1, device=weights.device) + self.offset
        key = torch.arange(k0, k1, device=weights.device)
        apart = (query[:, None] - key).abs().float()
        self.distance[:, r0:r1] = torch.mul(weights, apart, out=scratch[:-1]).sum(-1)
        for offset, store in self.near.items():
            shift = r0 + self.offset + offset - k0
            diagonal = weights.diagonal(shift, 1, 2)
            first = r0 + max(0, -shift)
            store[:, first : first + diagonal.shape[-1]] = diagonal

    def _add_overview(
        self, overview: Tensor, rows: tuple[int, int], block: Block, weights: Tensor
    ) -> None:
        """Adds sums over the cells of `cell_edges`; `close` divides by their size."""
        (r0, r1), (k0, k1) = rows, block.keys
        _, cells_q, cells_k = overview.shape
        if (cells_q, cells_k) == (self.n_queries, self.n_keys):
            overview[:, r0:r1, k0:k1] = weights
            return
        first, stop = cell_of(r0, self.n_queries, cells_q), cell_of(r1 - 1, self.n_queries, cells_q)
        edges = cell_edges(self.n_queries, cells_q)[first : stop + 2].to(weights.device)
        row = torch.arange(r0, r1, device=weights.device)
        member = (row >= edges[:-1, None]) & (row < edges[1:, None])
        sums = torch.nn.functional.pad(torch.matmul(member.float(), weights).cumsum(2), (1, 0))
        inside = cell_edges(self.n_keys, cells_k).clamp(k0, k1).to(weights.device) - k0
        overview[:, first : stop + 1] += sums.index_select(2, inside).diff(dim=2)

    def _add_pairs(
        self, rows: tuple[int, int], weights: Tensor, log_weights: Tensor, scratch: Tensor
    ) -> None:
        r0, r1 = rows
        n_heads = len(weights)
        # Products of the maps less their mean, with the mean as one more row: heads of a layer
        # are alike, and the small difference of two large products would be lost in float32.
        torch.mean(weights, 0, out=scratch[-1])
        torch.sub(weights, scratch[-1], out=scratch[:-1])
        centred = scratch.view(n_heads + 1, -1)
        self.products += centred @ centred.T
        self.cross += weights.view(n_heads, -1) @ log_weights.view(n_heads, -1).T
        if not self.options.js:
            return
        wanted = self.sampled[(self.sampled >= r0) & (self.sampled < r1)]
        if not len(wanted):
            return
        self.js_entropy += self.entropy[:, wanted].double().sum(1)
        if len(wanted) < r1 - r0:
            weights = weights.index_select(1, wanted - r0)
        picked = weights.reshape(n_heads, -1) + TINY
        for i in range(n_heads - 1):
            total = picked[i] + picked[i + 1 :]
            self.mixtures[i, i + 1 :] += log2(total).mul_(total).sum(1)

    def close(self) -> LayerStatistics:
        """Returns the figures of the layer."""
        device_metrics = {k: v.double().cpu().numpy() for k, v in self._metrics().items()}
        bias, sums = self._position_bias()
        nan = np.full(self.n_heads, np.nan)
        device_metrics["position_bias_max"] = (
            np.nanmax(np.where(np.isnan(bias), -1, bias), 1) if (~np.isnan(bias)).any() else nan
        )
        n_rows = int(self.several.sum())
        first = self.column_sums[:, 0].cpu().numpy()
        device_metrics["first_token_mass"] = first / n_rows if n_rows else nan
        rate = math.nan
        if self.n_queries >= SINK_RATE_MIN_QUERIES:
            rate = float((device_metrics["position_bias_max"] > SINK_WEIGHT).mean())
        overview = None
        if self.overview is not None:
            sides = zip((self.n_queries, self.n_keys), self.overview.shape[1:], strict=True)
            cells = [cell_edges(n, count).diff().numpy() for n, count in sides]
            overview = (self.overview.cpu().numpy() / np.outer(*cells)).astype(np.float16)
        return LayerStatistics(
            metrics=device_metrics,
            pairs=self._pairs() if self.options.pairs else {},
            js_rows=len(self.sampled) if self.options.js and self.options.pairs else 0,
            position_bias=bias,
            key_sums=sums,
            sink_rate=rate,
            overview=overview,
        )

    def _metrics(self) -> dict[str, Tensor]:
        rows = self.several
        visible = self.n_visible[rows].double()
        entropy = self.entropy[:, rows].double()
        share = entropy / visible.log()
        out = {
            "normalized_entropy": _mean(share),
            "entropy_over_ln_n": _mean(entropy) / math.log(max(self.n_keys, 2)),
            "max_weight": _mean(self.highest[:, rows].double()),
        }
        wide = visible >= UNIFORM_MIN_KEYS
        out["uniform_rows"] = _mean((share[:, wide] > UNIFORM_ENTROPY).double())
        names = {0: "diagonal_mass", -1: "previous_mass", 1: "next_mass"}
        for offset, name in names.items():
            out[name] = _mean(self.near[offset][:, self._rows_with(offset)].double())
        if self.is_self_attention:
            out["mean_distance"] = _mean(self.distance[:, rows].double())
        else:
            out["mean_distance"] = torch.full_like(out["max_weight"], math.nan)
        bad = ~torch.isfinite(self.entropy)
        out["non_finite"] = bad.sum(1).double()
        return out

    def _rows_with(self, offset: int) -> Tensor:
        """Returns bool [query]: rows whose key at this offset exists and is visible."""
        if not self.is_self_attention:
            return torch.zeros_like(self.several)
        position = torch.arange(self.n_queries, device=self.several.device)
        key = position + self.offset + offset
        rows = self.several & (key >= 0) & (key < self.n_keys)
        return rows if self.visibility.mask is None else rows & self._offset_visible(offset)

    def _offset_visible(self, offset: int) -> Tensor:
        visible = torch.ones_like(self.several)
        for (r0, r1), block in self.visibility.blocks():
            k0, k1 = block.keys
            key = torch.arange(r0, r1, device=visible.device) + self.offset + offset
            inside = (key >= k0) & (key < k1)
            if block.hidden is not None:
                c0, c1 = block.masked
                column = key - k0 - c0
                within = (column >= 0) & (column < c1 - c0)
                row = torch.arange(r1 - r0, device=visible.device)
                hidden = block.hidden[row, column.clamp(0, c1 - c0 - 1)]
                inside &= ~(within & hidden)
            visible[r0:r1] = inside
        return visible

    def _position_bias(self) -> tuple[Array, Array]:
        seeing = self.n_seeing.cpu().numpy()
        sums = self.column_sums.cpu().numpy()
        n_rows = int(self.several.sum())
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(seeing > 0, sums / seeing, np.nan)
        few = (seeing < 4) | (seeing < 0.1 * n_rows)
        return np.where(few, np.nan, mean), mean

    def _pairs(self) -> dict[str, Array]:
        n_heads = self.n_heads
        products = self.products.cpu().numpy()
        products = (products + products.T) / 2
        centred, with_mean, mean = products[:-1, :-1], products[:-1, -1], products[-1, -1]
        gram = centred + with_mean[:, None] + with_mean[None, :] + mean
        cross = self.cross.cpu().numpy()
        n_rows = int(self.several.sum())
        kl = (np.diag(cross)[:, None] - cross) / n_rows if n_rows else np.full_like(gram, np.nan)
        out = {"cosine": _cosine(gram, np.diag(gram)), "cosine_centred": _centred(centred, gram)}
        # Rounding leaves 1e-9 below zero for equal heads; a divergence is never negative.
        out["kl_nats"] = np.maximum(kl, 0)
        out["js_bits"] = self._js(n_heads)
        return out

    def _js(self, n_heads: int) -> Array:
        if not self.options.js or not len(self.sampled):
            return np.full((n_heads, n_heads), np.nan)
        rows = len(self.sampled)
        upper = self.mixtures.cpu().numpy()
        own = self.js_entropy.cpu().numpy() / rows
        # With s = P_i + P_j a row's mixture has entropy 1 - sum(s log2 s) / 2 bits.
        mixed = 1 - (upper + upper.T) / (2 * rows)
        js = mixed - (own[:, None] + own[None, :]) / (2 * math.log(2))
        js = np.clip(js, 0, 1)
        np.fill_diagonal(js, 0)
        return np.asarray(js)


def cell_edges(n: int, cells: int) -> Tensor:
    """Returns [cells + 1] borders: cell i holds positions i*n//cells to (i+1)*n//cells."""
    return torch.arange(cells + 1) * n // cells


def cell_of(position: int, n: int, cells: int) -> int:
    """Returns the cell of `cell_edges` that holds a position."""
    return ((position + 1) * cells - 1) // n


def log2(values: Tensor) -> Tensor:
    """Returns log2 of a float32 tensor; on the CPU through numpy, four times faster there."""
    if values.device.type != "cpu":
        return values.log2()
    return torch.from_numpy(np.log2(values.numpy()))


def _mean(values: Tensor) -> Tensor:
    """Returns the mean over rows [head]; NaN where there is no row."""
    if values.shape[1] == 0:
        return torch.full((values.shape[0],), math.nan, device=values.device)
    return values.mean(1)


def _cosine(gram: Array, squares: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(gram / np.sqrt(np.outer(squares, squares)), -1, 1)


def _centred(centred: Array, gram: Array) -> Array:
    """Returns cosines after removing the mean map of the layer; NaN below 3 heads."""
    if len(gram) < 3:
        return np.full_like(gram, np.nan)
    squares = np.diag(centred).copy()
    squares[squares < CENTRED_MIN_SHARE**2 * np.diag(gram)] = np.nan
    return _cosine(centred, squares)
