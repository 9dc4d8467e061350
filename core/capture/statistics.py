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

from core.capture.streaming import Tile, row_dots
from core.capture.visibility import TextVisibility
from core.limits import OVERVIEW_SIZE

JS_EXACT_TOKENS = 512
JS_SAMPLED_ROWS = 256
JS_BLOCK = 16384
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
        self.basis = _basis(n_heads).float().to(device)
        self.products = torch.zeros(n_heads, n_heads, dtype=torch.float64, device=device)
        self.lse_sum = torch.zeros(n_heads, dtype=torch.float64, device=device)
        self.cross = torch.zeros(n_heads, n_heads, dtype=torch.float64, device=device)
        self.mixtures = torch.zeros(n_heads, n_heads, dtype=torch.float64, device=device)
        self.js_entropy = torch.zeros(n_heads, dtype=torch.float64, device=device)
        self.non_finite = torch.zeros(n_heads, dtype=torch.long, device=device)
        self.unknown_logs = torch.zeros(n_heads, dtype=torch.bool, device=device)
        self.sampled = self._sample_rows()
        rows_at_once = max(1, min(tile_rows, JS_BLOCK // self.n_keys))
        self.rooms = torch.empty(3, n_heads, rows_at_once, self.n_keys)
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

    def add_tile(self, tile: Tile) -> None:
        """Takes one tile (see `streaming.TileListener`)."""
        (r0, r1), weights = tile.rows, tile.weights
        # -sum P log P, where log P = score - lse and the weights of a row sum to 1.
        self.entropy[:, r0:r1] = tile.log_sum_exp - row_dots(weights, tile.scores)
        self.highest[:, r0:r1] = tile.highest
        pooled = None
        if self.overview is not None:
            pooled = self._add_overview(self.overview, tile)
        if not tile.block.all_see_several:
            sums = torch.matmul(self.several[r0:r1].float(), weights)
        else:
            sums = (weights if pooled is None else pooled).sum(1)
        self.column_sums[:, slice(*tile.block.keys)] += sums
        if self.is_self_attention:
            self._add_distances(tile)
        if self.options.pairs:
            self._add_pairs(tile)
            if self.options.js:
                self._add_mixtures(tile)

    def _add_distances(self, tile: Tile) -> None:
        (r0, r1), (k0, k1), weights = tile.rows, tile.block.keys, tile.weights
        query = torch.arange(r0, r1, device=weights.device).float() + self.offset
        key = torch.arange(k0, k1, device=weights.device).float()
        self.distance[:, r0:r1] = row_dots(weights, (query[:, None] - key).abs_())
        for offset, store in self.near.items():
            shift = r0 + self.offset + offset - k0
            diagonal = weights.diagonal(shift, 1, 2)
            first = r0 + max(0, -shift)
            store[:, first : first + diagonal.shape[-1]] = diagonal

    def _add_overview(self, overview: Tensor, tile: Tile) -> Tensor | None:
        """Adds sums over the cells of `cell_edges`; `close` divides by their size.

        Returns:
            [head, cell, key] sums over the rows of each cell, None where a cell is a token.
        """
        (r0, r1), (k0, k1), weights = tile.rows, tile.block.keys, tile.weights
        _, cells_q, cells_k = overview.shape
        if (cells_q, cells_k) == (self.n_queries, self.n_keys):
            overview[:, r0:r1, k0:k1] = weights
            return None
        first, stop = cell_of(r0, self.n_queries, cells_q), cell_of(r1 - 1, self.n_queries, cells_q)
        edges = cell_edges(self.n_queries, cells_q)[first : stop + 2].to(weights.device)
        row = torch.arange(r0, r1, device=weights.device)
        member = (row >= edges[:-1, None]) & (row < edges[1:, None])
        pooled = torch.matmul(member.float(), weights)
        first_k, stop_k = cell_of(k0, self.n_keys, cells_k), cell_of(k1 - 1, self.n_keys, cells_k)
        starts = cell_edges(self.n_keys, cells_k)[first_k : stop_k + 1].clamp_min(k0) - k0
        overview[:, first : stop + 1, first_k : stop_k + 1] += cell_sums(pooled, starts)
        return pooled

    def _add_pairs(self, tile: Tile) -> None:
        """Adds products of all pairs of maps, and of maps with scores.

        Heads of a layer are alike, and the small difference of two large products would be lost in
        float32: the maps are first turned into their mean and the contrasts to it (`_basis`).
        """
        (r0, r1), n_heads = tile.rows, self.n_heads
        turned = tile.scratch.view(n_heads, -1)
        torch.mm(self.basis, tile.weights.view(n_heads, -1), out=turned)
        # A product for each row: short sums keep float32 exact enough; rows are added in float64.
        products = torch.bmm(tile.scratch.transpose(0, 1), tile.joint.permute(1, 2, 0))
        self.products += products[:, :, :n_heads].sum(0, dtype=torch.float64)
        with_scores, log_sum_exp = products[:, :, n_heads:], tile.log_sum_exp
        if not tile.block.all_see_several:
            rows = self.several[r0:r1]
            with_scores, log_sum_exp = with_scores[rows], log_sum_exp[:, rows]
        self.cross += with_scores.sum(0, dtype=torch.float64)
        self.lse_sum += log_sum_exp.sum(1, dtype=torch.float64)

    def _add_mixtures(self, tile: Tile) -> None:
        """Adds s log2 s of the sums s = P_i + P_j of all pairs of heads, on the sampled rows."""
        r0, r1 = tile.rows
        wanted = self.sampled[(self.sampled >= r0) & (self.sampled < r1)]
        if not len(wanted):
            return
        self.js_entropy += self.entropy[:, wanted].double().sum(1)
        weights = tile.weights
        if len(wanted) < r1 - r0:
            weights = weights.index_select(1, wanted - r0)
        # A few rows at a time, so that the sums of a head with all others stay in the cache.
        for some in torch.split(weights, self.rooms.shape[2], dim=1):
            self.mixtures += mixture_sums(some, self.rooms)

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
        # Back from the basis, as it was rounded to float32, to heads and to heads less their mean.
        back = np.linalg.inv(self.basis.double().cpu().numpy())
        less_mean = back - back.mean(0)
        products = self.products.cpu().numpy()
        products = (products + products.T) / 2
        gram, centred = (m @ products @ m.T for m in (back, less_mean))
        cross = back @ self.cross.cpu().numpy() - self.lse_sum.cpu().numpy()
        n_rows = int(self.several.sum())
        kl = (np.diag(cross)[:, None] - cross) / n_rows if n_rows else np.full_like(gram, np.nan)
        out = {"cosine": _cosine(gram, np.diag(gram)), "cosine_centred": _centred(centred, gram)}
        # Rounding leaves 1e-9 below zero for equal heads; a divergence is never negative.
        out["kl_nats"] = np.maximum(kl, 0)
        out["kl_nats"][:, self.unknown_logs.cpu().numpy()] = np.nan
        np.fill_diagonal(out["kl_nats"], 0 if n_rows else np.nan)
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


def mixture_sums(weights: Tensor, rooms: Tensor) -> Tensor:
    """Returns [head, head], float64: sums of s log2 s, s = P_i + P_j, above the diagonal.

    On the CPU through numpy, whose log2 takes a quarter of the time of torch's.

    Args:
        weights: [head, row, key].
        rooms: [3, head, row or more, key or more] on the CPU, free to use.
    """
    n_heads, n_rows, n_keys = weights.shape
    sums = torch.zeros(n_heads, n_heads, dtype=torch.float64, device=weights.device)
    if weights.device.type != "cpu":
        for i in range(n_heads - 1):
            mixed = weights[i] + weights[i + 1 :] + TINY
            sums[i, i + 1 :] = (mixed * mixed.log2()).sum((1, 2), dtype=torch.float64)
        return sums
    heads, mixtures, logs = rooms[:, :, :n_rows, :n_keys].numpy()
    with np.errstate(all="ignore"):
        np.add(weights.numpy(), np.float32(TINY), out=heads)
        for i in range(n_heads - 1):
            mixed = np.add(heads[i], heads[i + 1 :], out=mixtures[i + 1 :])
            log = np.log2(mixed, out=logs[i + 1 :])
            sums[i, i + 1 :] = torch.from_numpy(np.vecdot(mixed, log).sum(1, dtype=np.float64))
    return sums


def cell_sums(values: Tensor, starts: Tensor) -> Tensor:
    """Returns sums over cells of the last axis.

    Args:
        values: [..., key].
        starts: [cell] first key of each cell, ascending from 0.
    """
    if values.device.type == "cpu":
        return torch.from_numpy(np.add.reduceat(values.numpy(), starts.numpy(), axis=-1))
    sizes = starts.diff(append=torch.tensor([values.shape[-1]])).to(values.device)
    cell = torch.arange(len(starts), device=values.device).repeat_interleave(sizes)
    return values.new_zeros(*values.shape[:-1], len(starts)).index_add_(-1, cell, values)


def _basis(n_heads: int) -> Tensor:
    """Returns [head, head], float64, orthonormal rows: the mean of the heads, then contrasts."""
    start = torch.eye(n_heads, dtype=torch.float64)
    start[:, 0] = 1
    basis: Tensor = torch.linalg.qr(start)[0].T
    return basis


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
