"""What is kept of a capture so that any map can be drawn again without the model.

`QueryKeyStore` keeps q, k and the log-sum-exp of each row: 2d + 1 numbers a token and head instead
of N. `MapStore` keeps whole maps, for attention that was watched rather than computed. Both answer
`weights(layer, heads, rows, keys)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from core.capture.streaming import ScoreRule, rebuild_weights
from core.capture.visibility import TextVisibility


class AttentionStore(Protocol):
    """Gives back weights of one text and one stack of layers."""

    @property
    def nbytes(self) -> int:
        """Bytes kept in memory or on disk."""

    def weights(
        self, layer: int, heads: slice, rows: tuple[int, int], keys: tuple[int, int]
    ) -> Tensor:
        """Returns [head, row, key], float32, on the CPU or the device of the capture."""


def own(tensor: Tensor) -> Tensor:
    """Returns a tensor that keeps no larger storage alive (a view of fused q, k, v is copied)."""
    alone = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if alone else tensor.contiguous().clone()


@dataclass
class QueryKeyLayer:
    """One layer: query [head, query, d], key [kv head, key, d], lse [head, query].

    Attributes:
        value: [kv head, key, value_dim] when asked for, else None.
        projection: [head, value_dim, value_dim], W_o W_o^T of each head's rows of the output
            projection: all that norms of projected values need. Kept with values, where known.
    """

    query: Tensor
    key: Tensor
    log_sum_exp: Tensor
    rule: ScoreRule
    visibility: TextVisibility
    value: Tensor | None = None
    projection: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Returns what can be written to disk."""
        names = ("query", "key", "log_sum_exp", "value", "projection")
        found = {name: getattr(self, name) for name in names}
        return {name: tensor for name, tensor in found.items() if tensor is not None}


@dataclass
class QueryKeyStore:
    """q, k and log-sum-exp of all layers of one text."""

    layers: list[QueryKeyLayer] = field(default_factory=list)
    spilled: Path | None = None

    @property
    def nbytes(self) -> int:
        seen: dict[int, int] = {}
        for layer in self.layers:
            # A bias is often one tensor shared by all layers: counted once.
            for tensor in (*layer.tensors().values(), layer.rule.bias):
                if tensor is not None:
                    seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return sum(seen.values())

    def weights(
        self, layer: int, heads: slice, rows: tuple[int, int], keys: tuple[int, int]
    ) -> Tensor:
        kept = self.layers[layer]
        n_heads, n_kv = kept.query.shape[0], kept.key.shape[0]
        first, stop, _ = heads.indices(n_heads)
        repeat = n_heads // n_kv
        rule = kept.rule
        if rule.bias is not None and rule.bias.shape[0] > 1:
            rule = ScoreRule(rule.scaling, rule.softcap, rule.bias[first:stop], rule.sink)
        if stop - first == n_heads:
            key = kept.key
        else:
            key = kept.key[[h // repeat for h in range(first, stop)]]
        return rebuild_weights(
            kept.query[first:stop],
            key,
            kept.log_sum_exp[first:stop],
            rule,
            kept.visibility,
            rows,
            keys,
        )

    def spill(self, path: Path) -> None:
        """Moves q, k, lse (and v) to a file that is read back lazily, page by page."""
        names = {
            f"{i}.{name}": tensor.contiguous().cpu()
            for i, layer in enumerate(self.layers)
            for name, tensor in layer.tensors().items()
        }
        save_file(names, path)
        mapped = load_file(path)
        for i, layer in enumerate(self.layers):
            for name in layer.tensors():
                setattr(layer, name, mapped[f"{i}.{name}"])
        self.spilled = path


@dataclass
class MapStore:
    """Whole maps [head, query, key] of each layer, float32 on the CPU."""

    maps: list[Tensor] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(m.numel() * m.element_size() for m in self.maps)

    def weights(
        self, layer: int, heads: slice, rows: tuple[int, int], keys: tuple[int, int]
    ) -> Tensor:
        return self.maps[layer][heads, slice(*rows), slice(*keys)]


def mean_map(
    store: AttentionStore,
    layers: range,
    heads: slice,
    rows: tuple[int, int],
    keys: tuple[int, int],
    scales: Mapping[int, Tensor] | None = None,
) -> np.ndarray:
    """Returns the mean weights [row, key] over layers and heads, float32.

    Args:
        scales: [head, key] of each layer, which every weight is multiplied with.
    """
    total = torch.zeros(rows[1] - rows[0], keys[1] - keys[0], dtype=torch.float64)
    for layer in layers:
        weights = store.weights(layer, heads, rows, keys).double()
        if scales is not None:
            weights = weights * scales[layer][heads, None, slice(*keys)]
        total += weights.mean(0).cpu()
    return (total / len(layers)).float().numpy()
