"""block_coverage: the share of queries inside a window of neighbours that keep to themselves.

A second pass over the kept q and k, on request: it needs the position bias of the first pass, and
of each row only the keys nearer than the widest window.
"""

import numpy as np
import torch

from core.capture.statistics import SINK_WEIGHT, LayerStatistics
from core.capture.store import AttentionStore
from core.capture.visibility import TextVisibility

WIDTHS = (5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 41, 51, 63, 78, 97)
INSIDE_SHARE = 0.8
SINK_SEEN_SHARE = 0.25
ROWS_AT_ONCE = 256


def block_coverage(
    store: AttentionStore, layer: int, figures: LayerStatistics, visibility: TextVisibility
) -> np.ndarray:
    """Returns block_coverage [head] of one layer; NaN where no window fits the text.

    A window of w neighbours (w below half the text) is a block when at least w/2 of its queries
    can look outside and do not just look at themselves, and each of them puts 80 % of its weight
    on the window's keys. Weight on a sink key never counts as inside.
    """
    n = visibility.n_queries
    n_heads = figures.position_bias.shape[0]
    widths = [w for w in WIDTHS if w < n / 2]
    n_visible, n_seeing = (t.cpu() for t in visibility.counts(n))
    rows = (n_visible >= 2).numpy()
    if not widths or not rows.any():
        return np.full(n_heads, np.nan)
    reach = max(widths)
    sink = torch.from_numpy(
        (np.nan_to_num(figures.key_sums) > SINK_WEIGHT)
        & (n_seeing.numpy() >= SINK_SEEN_SHARE * rows.sum())[None]
    )
    band, own = _band(store, layer, sink, n, reach)
    first, stop = _visible_range(visibility, n)
    covered = np.zeros((n_heads, n), dtype=bool)
    for width in widths:
        starts = np.arange(n - width + 1)
        inside_rows = starts[:, None] + np.arange(width)[None]  # [window, query of the window]
        offset = starts[:, None] - inside_rows + reach
        query = np.broadcast_to(inside_rows, offset.shape)
        inside = band[:, query, offset + width] - band[:, query, offset]
        outside = (first[query] < starts[:, None]) | (stop[query] > starts[:, None] + width)
        tester = rows[query] & outside & (own[:, query] < INSIDE_SHARE)
        enough = tester.sum(2) >= width / 2
        block = enough & ((inside >= INSIDE_SHARE) | ~tester).all(2)
        head, window, member = np.nonzero(block[:, :, None] & tester)
        covered[head, inside_rows[window, member]] = True
    return np.asarray(covered[:, rows].mean(1))


def _band(
    store: AttentionStore, layer: int, sink: torch.Tensor, n: int, reach: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns running sums of non-sink weight along the band, and the weight on oneself.

    The first is [head, query, 2 reach + 1]: entry j sums the keys from query - reach up to, but
    not with, query - reach + j.
    """
    n_heads = sink.shape[0]
    sums = np.zeros((n_heads, n, 2 * reach + 1), dtype=np.float32)
    own = np.zeros((n_heads, n), dtype=np.float32)
    for r0 in range(0, n, ROWS_AT_ONCE):
        r1 = min(r0 + ROWS_AT_ONCE, n)
        k0, k1 = max(0, r0 - reach), min(n, r1 + reach)
        weights = store.weights(layer, slice(None), (r0, r1), (k0, k1)).cpu()
        own[:, r0:r1] = weights.diagonal(r0 - k0, 1, 2).numpy()
        weights = weights.masked_fill(sink[:, None, k0:k1], 0)
        key = torch.arange(r0, r1)[:, None] - reach + torch.arange(2 * reach)[None]
        there = (key >= k0) & (key < k1)
        picked = weights.gather(
            2, (key.clamp(k0, k1 - 1) - k0).expand(n_heads, -1, -1)
        ).masked_fill(~there, 0)
        sums[:, r0:r1, 1:] = picked.double().cumsum(2).float().numpy()
    return sums, own


def _visible_range(visibility: TextVisibility, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns [first, stop) of the keys each query sees."""
    first, stop = np.zeros(n, dtype=int), np.full(n, n)
    for r0 in range(0, n, ROWS_AT_ONCE):
        r1 = min(r0 + ROWS_AT_ONCE, n)
        allowed = visibility.visible((r0, r1), (0, n))
        if allowed is not None:
            shown = allowed.cpu().numpy()
            first[r0:r1] = shown.argmax(1)
            stop[r0:r1] = n - shown[:, ::-1].argmax(1)
    return first, stop
