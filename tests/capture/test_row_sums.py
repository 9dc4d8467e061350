"""The compiled sums of a CPU beside the plain tensor operations, tile by tile. Random weights."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from core.capture import row_sums, streaming, sums
from core.capture.statistics import HeadStatistics, StatisticsOptions
from core.capture.streaming import ScoreRule, Tile, stream_attention
from core.capture.visibility import CausalMask, Mask, TensorMask, TextVisibility

CPU = torch.device("cpu")


def both(
    mask: Mask | None, n_queries: int, n_keys: int, n_heads: int = 5, tile_rows: int = 7
) -> tuple[sums.Sums, sums.Sums]:
    """Returns the compiled and the plain sums of one text."""
    torch.manual_seed(0)
    visibility = TextVisibility(mask, 0, 0, n_queries, 0, n_keys, CPU)
    options = StatisticsOptions(overview=16)
    found = [
        HeadStatistics(
            n_heads, visibility, options, is_self_attention=True, tile_rows=tile_rows
        ).sums
        for _ in range(2)
    ]

    class Both:
        def add_tile(self, tile: Tile) -> None:
            row_sums.add_tile(found[0], tile)
            sums.add_tile(found[1], tile)

    query, key = torch.randn(n_heads, n_queries, 8), torch.randn(n_heads, n_keys, 8)
    stream_attention(query, key, key, ScoreRule(2.0), visibility, Both(), tile_rows)
    return found[0], found[1]


def holes() -> Tensor:
    """Returns a mask [1, 1, 40, 40] with a row that sees nothing and one that sees one key."""
    mask = torch.rand(1, 1, 40, 40, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[0, 0, 3] = False
    mask[0, 0, 11] = torch.arange(40) == 5
    return mask


@pytest.mark.parametrize(
    ("mask", "n_queries", "n_keys"),
    [
        (None, 40, 40),
        (CausalMask(0, CPU), 40, 40),
        (CausalMask(0, CPU, window=6), 40, 40),
        (CausalMask(30, CPU), 10, 40),
        (TensorMask(holes()), 40, 40),
        (None, 9, 700),
        (None, 1, 1),
    ],
    ids=["all", "causal", "window", "cached", "holes", "longer-than-a-block", "one"],
)
def test_both_ways_give_the_same_sums(mask: Mask | None, n_queries: int, n_keys: int) -> None:
    compiled, plain = both(mask, n_queries, n_keys)
    for field in fields(compiled):
        left, right = getattr(compiled, field.name), getattr(plain, field.name)
        if isinstance(left, Tensor):
            torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5, msg=field.name)
        else:
            assert left == right
    assert n_keys == 1 or float(compiled.products.abs().max()) > 0


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 9])
def test_any_number_of_heads(n_heads: int) -> None:
    compiled, plain = both(None, 12, 12, n_heads)
    for name in ("products", "cross", "mixtures"):
        torch.testing.assert_close(
            getattr(compiled, name), getattr(plain, name), atol=1e-5, rtol=1e-5, msg=name
        )


def test_parts_side_by_side_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sums, "SHARED_WEIGHTS", 1)
    compiled, plain = both(CausalMask(0, CPU), 40, 40)
    for field in fields(compiled):
        if isinstance(getattr(compiled, field.name), Tensor):
            torch.testing.assert_close(
                getattr(compiled, field.name), getattr(plain, field.name), atol=1e-5, rtol=1e-5
            )


def test_a_broken_weight_is_not_lost() -> None:
    """NaN must reach the figures: fast sums that assume there is none would hide a fault."""
    visibility = TextVisibility(None, 0, 0, 4, 0, 4, CPU)
    statistics = HeadStatistics(
        2, visibility, StatisticsOptions(), is_self_attention=True, tile_rows=4
    )
    query = torch.ones(2, 4, 8)
    query[1, 2, 0] = torch.nan
    key = torch.ones(2, 4, 8)
    stream_attention(query, key, key, ScoreRule(1.0), visibility, statistics, 4)
    np.testing.assert_array_equal(statistics.close().metrics["non_finite"], [0, 1])
    assert bool(statistics.sums.products.isnan().any())
    assert bool(statistics.sums.mixtures.isnan().any())


def test_a_loop_is_compiled_for_one_kind_of_array() -> None:
    """Whole and cut arrays have different types to the compiler; each would cost seconds."""
    both(CausalMask(0, CPU), 40, 40)
    both(None, 6, 6)
    both(None, 300, 300, tile_rows=streaming.TILE_ROWS)
    for loop in (row_sums._head_sums, row_sums._pair_sums, row_sums._mixture_sums):
        assert len(loop.signatures) == 1
