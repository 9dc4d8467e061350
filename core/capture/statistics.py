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

from core.capture import row_sums, sums
from core.capture.streaming import Tile
from core.capture.sums import Sums, cell_edges, jensen_shannon
from core.capture.visibility import TextVisibility
from core.limits import OVERVIEW_SIZE

JS_EXACT_TOKENS = 512
JS_SAMPLED_ROWS = 256
UNIFORM_MIN_KEYS = 8
UNIFORM_ENTROPY = 0.98
SINK_WEIGHT = 0.3
SINK_RATE_MIN_QUERIES = 32
CENTRED_MIN_SHARE = 1e-4


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
        self.n_visible, self.n_seeing = visibility.counts(tile_rows)
        self.several = self.n_visible >= 2
        self.sampled = self._sample_rows()
        cells = (min(options.overview, self.n_queries), min(options.overview, self.n_keys))
        self.sums = Sums.start(
            n_heads,
            self.n_keys,
            self.several,
            self.sampled,
            # With a cache the queries are the last positions of the keys.
            offset=self.n_keys - self.n_queries if is_self_attention else 0,
            cells=cells if options.overview else None,
            pairs=options.pairs,
            js=options.pairs and options.js,
        )
        self.unknown_logs = torch.zeros(n_heads, dtype=torch.bool, device=visibility.device)

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
        on_cpu = tile.weights.device.type == "cpu"
        add = row_sums.add_tile if on_cpu else sums.add_tile
        add(self.sums, tile)

    def close(self) -> LayerStatistics:
        """Returns the figures of the layer."""
        device_metrics = {k: v.double().cpu().numpy() for k, v in self._metrics().items()}
        bias, sums = self._position_bias()
        nan = np.full(self.n_heads, np.nan)
        device_metrics["position_bias_max"] = (
            np.nanmax(np.where(np.isnan(bias), -1, bias), 1) if (~np.isnan(bias)).any() else nan
        )
        n_rows = int(self.several.sum())
        first = self.sums.column_sums[:, 0].cpu().numpy()
        device_metrics["first_token_mass"] = first / n_rows if n_rows else nan
        rate = math.nan
        if self.n_queries >= SINK_RATE_MIN_QUERIES:
            rate = float((device_metrics["position_bias_max"] > SINK_WEIGHT).mean())
        overview = None
        if self.sums.overview is not None:
            sides = zip((self.n_queries, self.n_keys), self.sums.overview.shape[1:], strict=True)
            cells = [cell_edges(n, count).diff().numpy() for n, count in sides]
            overview = (self.sums.overview.cpu().numpy() / np.outer(*cells)).astype(np.float16)
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
        entropy = self.sums.entropy[:, rows].double()
        share = entropy / visible.log()
        out = {
            "normalized_entropy": _mean(share),
            "entropy_over_ln_n": _mean(entropy) / math.log(max(self.n_keys, 2)),
            "max_weight": _mean(self.sums.highest[:, rows].double()),
        }
        wide = visible >= UNIFORM_MIN_KEYS
        out["uniform_rows"] = _mean((share[:, wide] > UNIFORM_ENTROPY).double())
        names = ("previous_mass", "diagonal_mass", "next_mass")
        for offset, name, near in zip((-1, 0, 1), names, self.sums.near, strict=True):
            out[name] = _mean(near[:, self._rows_with(offset)].double())
        if self.is_self_attention:
            out["mean_distance"] = _mean(self.sums.distance[:, rows].double())
        else:
            out["mean_distance"] = torch.full_like(out["max_weight"], math.nan)
        bad = ~torch.isfinite(self.sums.entropy)
        out["non_finite"] = bad.sum(1).double()
        return out

    def _rows_with(self, offset: int) -> Tensor:
        """Returns bool [query]: rows whose key at this offset exists and is visible."""
        if not self.is_self_attention:
            return torch.zeros_like(self.several)
        position = torch.arange(self.n_queries, device=self.several.device)
        key = position + self.sums.offset + offset
        rows = self.several & (key >= 0) & (key < self.n_keys)
        return rows if self.visibility.mask is None else rows & self._offset_visible(offset)

    def _offset_visible(self, offset: int) -> Tensor:
        visible = torch.ones_like(self.several)
        for (r0, r1), block in self.visibility.blocks():
            k0, k1 = block.keys
            key = torch.arange(r0, r1, device=visible.device) + self.sums.offset + offset
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
        sums = self.sums.column_sums.cpu().numpy()
        n_rows = int(self.several.sum())
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(seeing > 0, sums / seeing, np.nan)
        few = (seeing < 4) | (seeing < 0.1 * n_rows)
        return np.where(few, np.nan, mean), mean

    def _pairs(self) -> dict[str, Array]:
        products = self.sums.products.cpu().numpy()
        centred, with_mean = products[:-1, :-1], products[:-1, -1]
        gram = centred + with_mean[:, None] + with_mean + products[-1, -1]
        cross = self.sums.cross.cpu().numpy()
        cross = cross[:-1] + cross[-1]
        n_rows = int(self.several.sum())
        kl = (np.diag(cross)[:, None] - cross) / n_rows if n_rows else np.full_like(gram, np.nan)
        out = {"cosine": _cosine(gram, np.diag(gram)), "cosine_centred": _centred(centred, gram)}
        # Rounding leaves 1e-9 below zero for equal heads; a divergence is never negative.
        out["kl_nats"] = np.maximum(kl, 0)
        out["kl_nats"][:, self.unknown_logs.cpu().numpy()] = np.nan
        np.fill_diagonal(out["kl_nats"], 0 if n_rows else np.nan)
        out["js_bits"] = np.full_like(gram, np.nan)
        if self.sums.js and len(self.sampled):
            out["js_bits"] = jensen_shannon(self.sums).cpu().numpy()
        return out


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
