"""Other readings of a map of weights: by the norm of what moves, and rolled out over layers."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.capture.store import AttentionStore, MapStore, QueryKeyStore, mean_map
from core.errors import BadInputError, UnsupportedModelError
from core.limits import ROLLOUT_TOKENS
from core.results import AttentionResult, FloatArray


def value_norms(store: AttentionStore, layer: int) -> Tensor:
    """Returns ||f(x)|| [head, key], float64: the norm of what a head adds for a key at weight 1.

    f(x) = (x W_v + b_v) W_o, with the head's own rows of W_o (Kobayashi et al. 2020, equation 5).
    The bias of the output projection belongs to no key and is left out.

    Raises:
        BadInputError: the capture holds no values.
        UnsupportedModelError: the output projection was not recognised.
    """
    if not isinstance(store, QueryKeyStore):
        raise UnsupportedModelError(
            "The values of this family do not pass through the seam where attention is taken.",
            "Look at the raw weights, or pick a family of the first list in the README.",
        )
    kept = store.layers[layer]
    if kept.value is None:
        raise BadInputError(
            "This capture holds no values.", "Ask for them: CaptureRequest(hold_values=True)."
        )
    if kept.projection is None:
        raise UnsupportedModelError(
            f"The output projection of layer {layer} was not recognised, so the norm of what moves "
            "is not known.",
            "Look at the raw weights.",
        )
    gram = kept.projection.double()
    values = kept.value.double().repeat_interleave(len(gram) // len(kept.value), 0)
    return ((values @ gram) * values).sum(-1).clamp_min(0).sqrt()


def rollout(
    store: AttentionStore, result: AttentionResult, last: int, report: Callable[[float], None]
) -> MapStore:
    """Returns attention rolled out from the input to a layer, as a store of one map.

    R_l = A_l R_(l-1), where A_l is half the mean over heads and half the identity (the residual
    stream), with rows that sum to 1 (Abnar and Zuidema 2020).

    Raises:
        BadInputError: cross attention, or a text above the limit.
    """
    n = len(result.query_tokens)
    if result.kind == "cross":
        raise BadInputError(
            "Rollout follows one stack of layers; cross attention joins two.",
            "Choose the encoder or the decoder.",
        )
    if n > ROLLOUT_TOKENS:
        raise BadInputError(
            f"The text has {n:,} tokens; rollout is worked out up to {ROLLOUT_TOKENS:,}.",
            "Shorten the text, or look at the raw weights.",
        )
    rolled = np.eye(n)
    heads = slice(0, result.n_heads)
    for layer in range(last + 1):
        report(layer / (last + 1))
        mean = mean_map(store, range(layer, layer + 1), heads, (0, n), (0, n))
        mixed = (mean.astype(np.float64) + np.eye(n)) / 2
        rolled = (mixed / mixed.sum(1, keepdims=True)) @ rolled
    return MapStore([torch.from_numpy(rolled.astype(np.float32))[None]])


def overlap(one: FloatArray, other: FloatArray) -> float:
    """Returns how much of two maps lies in the same places, 0..1: rows scaled to 1, the smaller of
    both weights summed, the mean over rows (1 less the total variation distance).

    Rows that are nothing in either map are left out; NaN when none is left.
    """
    rows = [np.asarray(m, dtype=np.float64) for m in (one, other)]
    sums = [m.sum(1, keepdims=True) for m in rows]
    shown: NDArray[np.bool_] = ((sums[0] > 0) & (sums[1] > 0))[:, 0]
    if not shown.any():
        return float("nan")
    scaled = [m[shown] / s[shown] for m, s in zip(rows, sums, strict=True)]
    return float(np.minimum(*scaled).sum(1).mean())
