"""The sums of `sums.Sums` on a CPU: every weight of a tile is read as few times as can be.

Written as a chain of tensor operations these sums cost several times the attention itself: each
operation reads the tile from memory again, and memory is what the machine runs out of. The loops
below are compiled (numba, LLVM) and take a row whole while it is in the cache. They run without
the interpreter's lock, in as many parts as torch has threads.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numba
import numpy as np
import torch
from numba.core import config

from core.capture.streaming import Tile
from core.capture.sums import TINY, Sums, cell_edges, cell_of
from core.capture.visibility import Block
from core.home import compiled_folder

KEYS_AT_ONCE = 2048
"""Keys of all heads that one product of pairs works on; they stay in the nearest cache."""

SHARED_WEIGHTS = 100_000
"""Below so many weights in a tile, handing out parts takes longer than the work."""

Array = np.ndarray

# Beside the code, which numba would choose, there may be no room to write.
config.CACHE_DIR = config.CACHE_DIR or str(compiled_folder())  # type: ignore[attr-defined]

# Sums may be taken in any order, so in lanes; NaN and infinity keep their meaning.
_compiled = numba.njit(
    nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"}
)


def add_tile(sums: Sums, tile: Tile) -> None:
    """Adds one tile in the memory of the CPU; the same figures as `sums.add_tile`."""
    (r0, r1), (k0, _) = tile.rows, tile.block.keys
    weights, scores = tile.weights.numpy(), tile.scores.numpy()
    n_heads, n_rows, _ = weights.shape
    log_sum_exp, several = tile.log_sum_exp.numpy(), sums.several[r0:r1].numpy()
    sums.highest[:, r0:r1] = tile.highest
    # Whole arrays and where to start, not slices: a slice that happens to be whole would have
    # another type, and the loops would be compiled again for it.
    take_heads = partial(
        _head_sums,
        weights,
        scores,
        log_sum_exp,
        several,
        (sums.entropy.numpy(), sums.distance.numpy(), sums.near.numpy()),
        (sums.column_sums.numpy(), *_cells(sums, tile)),
        (r0, sums.offset, k0),
    )
    _in_parts(take_heads, n_heads, weights.size)
    if sums.pairs:
        take_pairs = partial(_pair_sums, weights, scores, log_sum_exp, several)
        for products, cross in _in_parts(take_pairs, n_rows, weights.size):
            sums.products.add_(torch.from_numpy(products))
            sums.cross.add_(torch.from_numpy(cross))
    rows = sums.sampled_in(tile.rows).numpy()
    if sums.js and len(rows):
        take_mixtures = partial(_mixture_sums, weights, rows)
        for found in _in_parts(take_mixtures, len(rows), weights.size):
            sums.mixtures.add_(torch.from_numpy(found))


def compile_loops() -> None:
    """Compiles the loops, or loads them, so that the first capture need not wait seconds."""
    one = torch.ones(1, 1)
    block = Block((0, 1), (0, 0), None, torch.ones(1, dtype=torch.long))
    tile = Tile((0, 1), block, torch.ones(1, 1, 1), torch.zeros(1, 1, 1), 0 * one, one)
    several, sampled = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.long)
    add_tile(Sums.start(1, 1, several, sampled, offset=0, cells=(1, 1), pairs=True, js=True), tile)


def _cells(sums: Sums, tile: Tile) -> tuple[Array, Array, Array]:
    """Returns the overview, [row] its cell of each row, and its borders among the tile's keys."""
    (r0, r1), (k0, k1) = tile.rows, tile.block.keys
    n_queries, n_keys = len(sums.several), sums.column_sums.shape[1]
    if sums.overview is None:
        none = np.zeros((len(tile.weights), 1, 1), dtype=np.float32)
        return none, np.zeros(r1 - r0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    _, cells_q, cells_k = sums.overview.shape
    return (
        sums.overview.numpy(),
        cell_of(n_queries, cells_q, sums.several.device)[r0:r1].numpy(),
        (cell_edges(n_keys, cells_k).clamp_(k0, k1) - k0).numpy(),
    )


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="row-sums")


def _in_parts(work: Callable[[int, int], Any], count: int, n_weights: int) -> list[Any]:
    """Returns work(start, stop) of equal parts of `count`, done at the same time."""
    n_parts = min(count, torch.get_num_threads() if n_weights >= SHARED_WEIGHTS else 1)
    if n_parts <= 1:
        return [work(0, count)]
    edges = [count * i // n_parts for i in range(n_parts + 1)]
    return list(_pool(n_parts).map(work, edges[:-1], edges[1:]))


@_compiled
def _head_sums(
    weights: Array,
    scores: Array,
    log_sum_exp: Array,
    several: Array,
    per_row: tuple[Array, Array, Array],
    per_key: tuple[Array, Array, Array, Array],
    place: tuple[int, int, int],
    start: int,
    stop: int,
) -> None:
    """Takes all rows of the heads start..stop.

    Args:
        per_row: `Sums.entropy`, `distance`, `near`.
        per_key: `Sums.column_sums`, then what `_cells` returns.
        place: first query of the tile, offset of query 0 among the keys, first key of the tile.
    """
    entropy, distance, near = per_row
    column_sums, overview, row_cell, key_edges = per_key
    r0, offset, k0 = place
    _, n_rows, n_keys = weights.shape
    position = np.arange(k0, k0 + n_keys).astype(np.float32)
    gathered = np.zeros(n_keys, dtype=np.float32)  # rows of one cell of the overview
    for h in range(start, stop):
        for r in range(n_rows):
            p, s, lse = weights[h, r], scores[h, r], log_sum_exp[h, r]
            query = np.float32(r0 + r + offset)
            with_log, far = np.float32(0), np.float32(0)
            for k in range(n_keys):
                with_log += p[k] * (s[k] - lse)
                far += p[k] * abs(position[k] - query)
                gathered[k] += p[k]
            entropy[h, r0 + r] = -with_log
            distance[h, r0 + r] = far
            for shift in range(3):
                column = r0 + r + offset + shift - 1 - k0
                if 0 <= column < n_keys:
                    near[shift, h, r0 + r] = p[column]
            is_last = r + 1 == n_rows
            if is_last or row_cell[r + 1] != row_cell[r] or several[r + 1] != several[r]:
                if several[r]:
                    for k in range(n_keys):
                        column_sums[h, k0 + k] += gathered[k]
                cells = overview[h, row_cell[r]]
                for c in range(len(key_edges) - 1):
                    for k in range(key_edges[c], key_edges[c + 1]):
                        cells[c] += gathered[k]
                gathered[:] = 0


@_compiled
def _pair_sums(
    weights: Array,
    scores: Array,
    log_sum_exp: Array,
    several: Array,
    start: int,
    stop: int,
) -> tuple[Array, Array]:
    """Returns `Sums.products` and `Sums.cross` of the rows start..stop."""
    n_heads, _, n_keys = weights.shape
    # Rows of zeros make whole blocks for `_add_dots`.
    n_less, n_logs = (n_heads + 4) // 4 * 4, (n_heads + 3) // 4 * 4
    products = np.zeros((n_less, n_less))
    cross = np.zeros((n_less, n_logs))
    less = np.zeros((n_less, KEYS_AT_ONCE), dtype=np.float32)
    logs = np.zeros((n_logs, KEYS_AT_ONCE), dtype=np.float32)
    mean = less[n_heads]
    for r in range(start, stop):
        for k0 in range(0, n_keys, KEYS_AT_ONCE):
            n = min(KEYS_AT_ONCE, n_keys - k0)
            mean[:] = 0
            for h in range(n_heads):
                p = weights[h, r, k0 : k0 + n]
                for k in range(n):
                    mean[k] += p[k]
            for k in range(n):
                mean[k] /= np.float32(n_heads)
            for h in range(n_heads):
                p, s = weights[h, r, k0 : k0 + n], scores[h, r, k0 : k0 + n]
                for k in range(n):
                    less[h, k] = p[k] - mean[k]
                    logs[h, k] = s[k] - log_sum_exp[h, r]
            _add_dots(less, less, n, products, True)
            if several[r]:
                _add_dots(less, logs, n, cross, False)
    for i in range(n_heads + 1):
        for j in range(i):
            products[i, j] = products[j, i]
    return products[: n_heads + 1, : n_heads + 1], cross[: n_heads + 1, :n_heads]


@_compiled
def _add_dots(left: Array, right: Array, n: int, out: Array, upper: bool) -> None:
    """Adds to out[i, j] the dot products of left[i] and right[j], at least of j >= i.

    Two by four, so that eight products share the reading of six rows.

    Args:
        left: [2 x any, key].
        right: [4 x any, key].
        upper: leave out blocks below the diagonal.
    """
    for i in range(0, len(left), 2):
        a, b = left[i], left[i + 1]
        for j in range(i // 4 * 4 if upper else 0, len(right), 4):
            c, d, e, f = right[j], right[j + 1], right[j + 2], right[j + 3]
            ac, ad, ae, af = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            bc, bd, be, bf = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for k in range(n):
                ac += a[k] * c[k]
                ad += a[k] * d[k]
                ae += a[k] * e[k]
                af += a[k] * f[k]
                bc += b[k] * c[k]
                bd += b[k] * d[k]
                be += b[k] * e[k]
                bf += b[k] * f[k]
            out[i, j] += ac
            out[i, j + 1] += ad
            out[i, j + 2] += ae
            out[i, j + 3] += af
            out[i + 1, j] += bc
            out[i + 1, j + 1] += bd
            out[i + 1, j + 2] += be
            out[i + 1, j + 3] += bf


@_compiled
def _mixture_sums(weights: Array, rows: Array, start: int, stop: int) -> Array:
    """Returns `Sums.mixtures` of rows[start:stop].

    The logarithm is taken in the loop: s = m * 2^e with m in [0.75, 1.5), and log2 m from
    the series of the inverse hyperbolic tangent at (m - 1) / (m + 1), whose first term left out
    is below 1e-8.
    """
    n_heads, _, n_keys = weights.shape
    sums = np.zeros((n_heads, n_heads))
    mixed = np.empty(n_keys, dtype=np.float32)
    mantissa = np.empty(n_keys, dtype=np.float32)
    exponent = np.empty(n_keys, dtype=np.int32)
    mixed_bits, mantissa_bits = mixed.view(np.int32), mantissa.view(np.int32)
    three_quarters = np.int32(0x3F400000)
    for r in rows[start:stop]:
        for i in range(n_heads - 1):
            for j in range(i + 1, n_heads):
                a, b = weights[i, r], weights[j, r]
                for k in range(n_keys):
                    mixed[k] = a[k] + b[k] + np.float32(TINY)
                for k in range(n_keys):
                    exponent[k] = (mixed_bits[k] - three_quarters) >> np.int32(23)
                    mantissa_bits[k] = mixed_bits[k] - (exponent[k] << np.int32(23))
                total = np.float32(0)
                for k in range(n_keys):
                    t = (mantissa[k] - np.float32(1)) / (mantissa[k] + np.float32(1))
                    u = t * t
                    series = np.float32(0.41219858) + u * np.float32(0.32059890)
                    series = np.float32(0.96179669) + u * (np.float32(0.57707802) + u * series)
                    log2 = exponent[k] + t * (np.float32(2.8853901) + u * series)
                    total += mixed[k] * np.float32(log2)
                sums[i, j] += total
    return sums
