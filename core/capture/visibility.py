"""Which keys a query may see, asked tile by tile instead of as an N x N mask.

transformers hands the attention function whatever object its mask builder returned. Ours returns
a `LazyMask`, which keeps the predicate and evaluates it only for the rows and keys of a tile, so
that no mask of size N x N ever exists. Masks that arrive as tensors (cross attention of some
families, masks prepared by the caller) are wrapped in `TensorMask` and answer the same questions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

MaskFunction = Callable[[Any, Any, Tensor, Tensor], Tensor]
"""(batch, head, query positions [R, 1], key positions [1, K]) -> bool, True = may attend."""


class Mask(Protocol):
    """Answers which keys the queries of one batch element may see."""

    def visible(self, batch: int, rows: tuple[int, int], keys: tuple[int, int]) -> Tensor | None:
        """Returns bool [row, key], True = may attend; None when everything is visible."""


@dataclass(frozen=True)
class LazyMask:
    """The predicate of a transformers mask builder, not yet evaluated."""

    mask_function: MaskFunction
    q_length: int
    kv_length: int
    q_offset: int
    kv_offset: int
    device: torch.device

    def visible(self, batch: int, rows: tuple[int, int], keys: tuple[int, int]) -> Tensor | None:
        q = torch.arange(*rows, device=self.device)[:, None] + self.q_offset
        k = torch.arange(*keys, device=self.device)[None, :] + self.kv_offset
        zero = torch.zeros((), dtype=torch.long, device=self.device)
        allowed = self.mask_function(zero + batch, zero, q, k)
        if allowed.ndim == 0 and bool(allowed):
            return None
        return allowed.broadcast_to(q.shape[0], k.shape[1])


@dataclass(frozen=True)
class TensorMask:
    """A ready mask [batch or 1, 1, query, key]: bool (True = may attend) or additive float."""

    mask: Tensor

    def visible(self, batch: int, rows: tuple[int, int], keys: tuple[int, int]) -> Tensor | None:
        part = self.mask[batch if self.mask.shape[0] > 1 else 0, 0]
        part = part[slice(*rows), slice(*keys)]
        if part.dtype == torch.bool:
            return part
        # Builders write the dtype's lowest value; adding two of them gives -inf. A position bias
        # that rides on a float mask is far above half the lowest value.
        return part > torch.finfo(part.dtype).min / 2


@dataclass(frozen=True)
class CausalMask:
    """Query i sees keys up to i + offset: what `is_causal` without a mask object means.

    Attributes:
        window: sees no more than this many keys, itself among them; None sees all.
    """

    offset: int
    device: torch.device
    window: int | None = None

    def visible(self, batch: int, rows: tuple[int, int], keys: tuple[int, int]) -> Tensor | None:
        q = torch.arange(*rows, device=self.device)[:, None]
        back = q + self.offset - torch.arange(*keys, device=self.device)[None, :]
        return back >= 0 if self.window is None else (back >= 0) & (back < self.window)


@dataclass(frozen=True)
class Block:
    """Visibility of the rows of one tile.

    Attributes:
        keys: [start, stop) of keys that some row sees.
        masked: [start, stop) of keys that some, but not all, rows see; relative to keys[0].
        hidden: bool [row, masked key], True = hidden; None when nothing is.
        n_visible: [row], keys each row sees.
        has_blind_rows, all_see_several: whether some row sees no key; whether each sees two.
    """

    keys: tuple[int, int]
    masked: tuple[int, int]
    hidden: Tensor | None
    n_visible: Tensor
    has_blind_rows: bool = False
    all_see_several: bool = True


@dataclass
class TextVisibility:
    """Visibility inside the span of one text of a batch, without its padding.

    Blocks are kept: they are small (only the partly visible keys) and the same for all layers
    that share a mask.

    Attributes:
        query_start, n_queries, key_start, n_keys: where the text lies in the padded batch.
    """

    mask: Mask | None
    batch: int
    query_start: int
    n_queries: int
    key_start: int
    n_keys: int
    device: torch.device
    _blocks: dict[tuple[int, int], Block] = field(default_factory=dict)
    _seen: tuple[Tensor, Tensor] | None = None
    _cover: list[tuple[int, int]] = field(default_factory=list)

    def visible(self, rows: tuple[int, int], keys: tuple[int, int]) -> Tensor | None:
        """Returns bool [row, key] for windows counted from the text's own start, or None."""
        if self.mask is None:
            return None
        shift_q, shift_k = self.query_start, self.key_start
        return self.mask.visible(
            self.batch,
            (rows[0] + shift_q, rows[1] + shift_q),
            (keys[0] + shift_k, keys[1] + shift_k),
        )

    def block(self, r0: int, r1: int) -> Block:
        """Returns what the rows r0..r1 of the text see."""
        if (found := self._blocks.get((r0, r1))) is None:
            found = self._blocks[r0, r1] = self._make_block(r0, r1)
        return found

    def blocks(self) -> list[tuple[tuple[int, int], Block]]:
        """Returns the blocks made by `counts`, which cover each row once."""
        return [(rows, self._blocks[rows]) for rows in self._cover]

    def _make_block(self, r0: int, r1: int) -> Block:
        allowed = self.visible((r0, r1), (0, self.n_keys))
        if allowed is None or bool(allowed.all()):
            count = torch.full((r1 - r0,), self.n_keys, device=self.device)
            return Block((0, self.n_keys), (0, 0), None, count, False, self.n_keys >= 2)
        count = allowed.sum(1)
        fewest = int(count.min())
        flags = (fewest == 0, fewest >= 2)
        some = allowed.any(0).nonzero()
        if not len(some):
            return Block((0, 1), (0, 1), ~allowed[:, :1], count, *flags)
        k0, k1 = int(some[0]), int(some[-1]) + 1
        allowed = allowed[:, k0:k1]
        partly = (~allowed.all(0)).nonzero()
        if not len(partly):
            return Block((k0, k1), (0, 0), None, count, *flags)
        c0, c1 = int(partly[0]), int(partly[-1]) + 1
        return Block((k0, k1), (c0, c1), ~allowed[:, c0:c1], count, *flags)

    def counts(self, tile_rows: int) -> tuple[Tensor, Tensor]:
        """Returns (keys each query sees [query], queries with >= 2 visible keys per key [key])."""
        if self._seen is None:
            n_visible = torch.zeros(self.n_queries, dtype=torch.long, device=self.device)
            seeing = torch.zeros(self.n_keys, dtype=torch.long, device=self.device)
            for r0 in range(0, self.n_queries, tile_rows):
                r1 = min(r0 + tile_rows, self.n_queries)
                block = self.block(r0, r1)
                self._cover.append((r0, r1))
                n_visible[r0:r1] = block.n_visible
                several = block.n_visible >= 2
                k0, k1 = block.keys
                seeing[k0:k1] += several.sum()
                if block.hidden is not None:
                    c0, c1 = block.masked
                    seeing[k0 + c0 : k0 + c1] -= (block.hidden & several[:, None]).sum(0)
            self._seen = (n_visible, seeing)
        return self._seen
