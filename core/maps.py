"""One map as it was asked for: of a head or a mean, a window or pooled, of tokens or of units."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.attribution.weighting import rollout, value_norms
from core.capture.store import AttentionStore, mean_map
from core.capture.sums import cell_edges
from core.errors import BadInputError
from core.joining import join_tokens, join_weights, unit_ranges
from core.limits import MIB
from core.results import AttentionResult, FloatArray, Joining, MapRequest, MapResult, Token

TILE_BYTES = 32 * MIB
"""Weights of all heads in hand at once while a map is put together."""


@dataclass(frozen=True)
class Axis:
    """One axis of a map: what stands at each place, and the tokens behind it (None: each one)."""

    tokens: tuple[Token, ...]
    ranges: tuple[range, ...] | None = None

    def span(self, window: tuple[int, int]) -> tuple[int, int]:
        """Returns [start, stop) of the tokens behind places [start, stop)."""
        if self.ranges is None:
            return window
        return self.ranges[window[0]].start, self.ranges[window[1] - 1].stop

    def units(self, window: tuple[int, int]) -> list[range]:
        """Returns the tokens behind each place of a window, counted from its first token."""
        if self.ranges is None:
            return [range(i, i + 1) for i in range(window[1] - window[0])]
        first = self.ranges[window[0]].start
        return [range(u.start - first, u.stop - first) for u in self.ranges[slice(*window)]]


def axis_of(text: str, tokens: tuple[Token, ...], joining: Joining | None) -> Axis:
    """Returns an axis of tokens, or of the units they are joined to."""
    if joining is None:
        return Axis(tokens)
    ranges = unit_ranges(text, tokens, joining)
    return Axis(join_tokens(text, tokens, ranges), ranges)


def chosen(name: str, index: int | None, count: int) -> range:
    """Returns the layers or heads of an index, all for None.

    Raises:
        BadInputError: there is no such one.
    """
    if index is None:
        return range(count)
    if not 0 <= index < count:
        raise BadInputError(f"There is no {name} {index}.", f"{name}s are 0 to {count - 1}.")
    return range(index, index + 1)


def build_map(
    store: AttentionStore,
    result: AttentionResult,
    request: MapRequest,
    axes: tuple[Axis, Axis],
    report: Callable[[float], None],
) -> MapResult:
    """Returns the map a request asks for.

    Units are joined first, special ones hidden then: what is left of a row is scaled to 1, but
    for norms, which are no shares.

    Args:
        axes: queries and keys.
        report: called with the share that is done, before each tile.

    Raises:
        BadInputError: no such layer, head or window; see `weighting` for the rest.
    """
    queries, keys = axes
    layers = chosen("layer", request.layer, result.n_layers)
    heads = chosen("head", request.head, result.n_heads)
    scales = None
    if request.weighting == "norm":
        scales = {layer: value_norms(store, layer) for layer in layers}
    elif request.weighting == "rollout":
        store, layers, heads = rollout(store, result, layers[-1], report), range(1), range(1)
    rows = _window("rows", request.rows, len(queries.tokens))
    columns = _window("keys", request.keys, len(keys.tokens))
    # Rows are scaled over all keys that are shown, inside the window or not.
    taken = (0, len(keys.tokens)) if request.hide_special else columns
    is_row = _shown(queries, rows, request.hide_special)
    is_key = _shown(keys, taken, request.hide_special)
    window = slice(columns[0] - taken[0], columns[1] - taken[0])

    def tiles() -> Iterator[FloatArray]:
        """Yields rows of the window, zero where a place is hidden."""
        first, last = keys.span(taken)
        high = max(1, TILE_BYTES // (4 * len(heads) * (last - first)))
        for start, stop in _parts(queries, rows, high):
            report((start - rows[0]) / (rows[1] - rows[0]))
            cut = slice(heads.start, heads.stop)
            tokens = queries.span((start, stop))
            weights = mean_map(store, layers, cut, tokens, (first, last), scales)
            if queries.ranges or keys.ranges:
                weights = join_weights(weights, queries.units((start, stop)), keys.units(taken))
            if request.hide_special:
                weights = weights * is_row[start - rows[0] : stop - rows[0], None] * is_key
                if scales is None:
                    total = weights.sum(1, keepdims=True)
                    weights = np.divide(weights, total, out=weights, where=total > 0)
            yield weights[:, window]

    if request.cells is not None:
        shown = is_row, is_key[window]
        weights, starts = _pooled(tiles(), shown, request.cells)
        query_index, key_index = [
            s + offset for s, offset in zip(starts, (rows[0], columns[0]), strict=True)
        ]
    else:
        query_index = rows[0] + np.flatnonzero(is_row)
        key_index = columns[0] + np.flatnonzero(is_key[window])
        weights = np.concatenate(list(tiles()))
        if request.hide_special:
            weights = weights[np.ix_(is_row, is_key[window])]
    return MapResult(weights, tuple(query_index.tolist()), tuple(key_index.tolist()))


def _shown(axis: Axis, window: tuple[int, int], hide_special: bool) -> NDArray[np.bool_]:
    return np.array([not (hide_special and t.is_special) for t in axis.tokens[slice(*window)]])


def _pooled(
    tiles: Iterable[FloatArray], shown: tuple[NDArray[np.bool_], NDArray[np.bool_]], cells: int
) -> tuple[FloatArray, list[NDArray[np.intp]]]:
    """Returns means of what is shown over at most `cells` rows and columns, NaN where nothing is,
    and where each of these begins."""
    edges = [cell_edges(len(s), min(len(s), cells)).numpy() for s in shown]
    starts = [e[:-1] for e in edges]
    sums = np.zeros((len(starts[0]), len(starts[1])))
    done = 0
    for weights in tiles:
        across = np.add.reduceat(weights, starts[1], axis=1, dtype=np.float64)
        places = np.arange(done, done + len(weights))
        np.add.at(sums, np.searchsorted(edges[0], places, side="right") - 1, across)
        done += len(weights)
    counts = np.outer(
        *(np.add.reduceat(s.astype(int), e) for s, e in zip(shown, starts, strict=True))
    )
    mean = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return mean.astype(np.float32), starts


def _parts(queries: Axis, rows: tuple[int, int], high: int) -> Iterator[tuple[int, int]]:
    """Yields windows of a window, each of at most `high` tokens where its places allow it."""
    start = rows[0]
    for stop in range(start + 1, rows[1] + 1):
        first, last = queries.span((start, min(stop + 1, rows[1])))
        if stop == rows[1] or last - first > high:
            yield start, stop
            start = stop


def _window(name: str, window: tuple[int, int] | None, count: int) -> tuple[int, int]:
    if window is None:
        return (0, count)
    start, stop = window
    if not 0 <= start < stop <= count:
        raise BadInputError(
            f"The window {start} to {stop} of {name} does not fit.", f"It must lie in 0 to {count}."
        )
    return window
