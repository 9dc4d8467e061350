"""The oracle against numbers worked out by hand, and its float64 scores against eager maps."""

import math

import numpy as np
import pytest
import torch

from tests.capture.families import FAMILIES, Family, valid_positions
from tests.capture.oracle import (
    Bools,
    Floats,
    eager_scores,
    head_values,
    log_softmax,
    pair_values,
)
from tests.capture.test_families import eager_maps

LN2, LN3 = math.log(2), math.log(3)


def logs(weights: list[list[list[float]]]) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(np.array(weights))


def all_visible(n_queries: int, n_keys: int | None = None) -> Bools:
    return np.ones((n_queries, n_keys or n_queries), dtype=bool)


def rows(n: int) -> Bools:
    return np.ones(n, dtype=bool)


def test_head_values_of_a_2x2_map() -> None:
    weights = logs([[[0.5, 0.5], [0.25, 0.75]]])
    out = head_values(weights, all_visible(2), rows(2), special_keys=[1])
    second_row = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75)) / LN2
    expected = {
        "normalized_entropy": (1 + second_row) / 2,
        "entropy_over_ln_n": (1 + second_row) / 2,
        "max_weight": 0.625,
        "diagonal_mass": 0.625,
        "previous_mass": 0.25,
        "next_mass": 0.5,
        "mean_distance": 0.375,
        "first_token_mass": 0.375,
    }
    for name, value in expected.items():
        assert out.metrics[name] == pytest.approx([value]), name
    for name in ("uniform_rows", "position_bias_max", "block_coverage", "output_norm_ratio"):
        assert np.isnan(out.metrics[name]).all(), name
    assert np.isnan(out.position_bias).all()  # two queries are fewer than four
    assert out.special_mass[1] == pytest.approx([0.625])
    assert math.isnan(out.sink_rate)


def test_causal_3x3_leaves_out_the_one_key_row_and_divides_by_visible_keys() -> None:
    weights = logs([[[1, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]]])
    visible = np.tril(all_visible(3))
    out = head_values(weights, visible, rows(3))
    assert out.metrics["normalized_entropy"] == pytest.approx([(1 + LN2 / LN3) / 2])
    assert out.metrics["entropy_over_ln_n"] == pytest.approx([LN2 / LN3])
    assert out.metrics["diagonal_mass"] == pytest.approx([0.5])
    assert out.metrics["previous_mass"] == pytest.approx([0.5])
    assert out.metrics["mean_distance"] == pytest.approx([0.5])
    assert out.metrics["first_token_mass"] == pytest.approx([0.25])
    assert np.isnan(out.metrics["next_mass"]).all()


def test_padding_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3, 12, 12))
    visible = np.tril(all_visible(12))
    plain_log = log_softmax(scores, visible)
    plain = head_values(plain_log, visible, rows(12), special_keys=[0])
    plain_pairs = pair_values(plain_log, visible, rows(12))
    for left, right in ((4, 0), (0, 3)):
        pads = ((left, right), (left, right))
        wide_visible = np.pad(visible, pads)
        wide_log = log_softmax(np.pad(scores, ((0, 0), *pads)), wide_visible)
        valid = np.pad(rows(12), (left, right))
        padded = head_values(wide_log, wide_visible, valid, special_keys=[left])
        for name, value in plain.metrics.items():
            np.testing.assert_allclose(padded.metrics[name], value, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(
            padded.position_bias[:, left : left + 12], plain.position_bias, rtol=1e-12
        )
        np.testing.assert_allclose(padded.special_mass[left], plain.special_mass[0], rtol=1e-12)
        for name, value in plain_pairs.metrics.items():
            got = pair_values(wide_log, wide_visible, valid).metrics[name]
            np.testing.assert_allclose(got, value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_cross_attention_has_no_distances() -> None:
    weights = logs([[[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]]])
    out = head_values(weights, all_visible(2, 3), rows(2), is_cross=True)
    for name in ("diagonal_mass", "previous_mass", "next_mass", "mean_distance"):
        assert np.isnan(out.metrics[name]).all(), name
    assert out.metrics["first_token_mass"] == pytest.approx([0.4])
    assert out.metrics["max_weight"] == pytest.approx([0.55])


def test_position_bias_counts_only_queries_that_see_the_key() -> None:
    n = 8
    visible = np.tril(all_visible(n))
    uniform = log_softmax(np.zeros((1, n, n)), visible)
    out = head_values(uniform, visible, rows(n))
    # Rows 1..7 count; key 0 is seen by all of them, key 4 by rows 4..7, key 5 by three only.
    assert out.position_bias[0, 0] == pytest.approx(sum(1 / i for i in range(2, 9)) / 7)
    assert out.position_bias[0, 4] == pytest.approx((1 / 5 + 1 / 6 + 1 / 7 + 1 / 8) / 4)
    assert np.isnan(out.position_bias[0, 5:]).all()
    assert out.metrics["position_bias_max"] == pytest.approx([out.position_bias[0, 0]])
    assert out.metrics["uniform_rows"] == pytest.approx([1.0])
    assert out.metrics["normalized_entropy"] == pytest.approx([1.0])


def test_keys_seen_by_under_a_tenth_of_the_queries_have_no_position_bias() -> None:
    n = 60  # 59 rows count: a tenth is 5.9
    visible = np.tril(all_visible(n))
    out = head_values(log_softmax(np.zeros((1, n, n)), visible), visible, rows(n))
    assert not np.isnan(out.position_bias[0, 54])  # seen by 6
    assert np.isnan(out.position_bias[0, 55])  # seen by 5


def test_sink_rate_needs_32_queries() -> None:
    for n, expected in ((32, math.nan), (33, 0.5)):
        visible = np.tril(all_visible(n))
        scores = np.zeros((2, n, n))
        scores[0, :, 0] = 10
        out = head_values(log_softmax(scores, visible), visible, rows(n))
        assert out.sink_rate == pytest.approx(expected, nan_ok=True)


def block_map(n: int, blocks: list[tuple[int, int]]) -> Floats:
    """Returns weights where each block keeps to itself and others spread over everything."""
    weights = np.full((n, n), 1 / n)
    for start, stop in blocks:
        weights[start:stop] = 0.1 / (n - (stop - start))
        weights[start:stop, start:stop] = 0.9 / (stop - start)
    return np.log(weights)[None]


def test_block_coverage_finds_two_planted_blocks() -> None:
    out = head_values(block_map(20, [(2, 7), (12, 18)]), all_visible(20), rows(20))
    assert out.metrics["block_coverage"] == pytest.approx([11 / 20])


def test_block_coverage_of_uniform_maps_is_zero() -> None:
    for visible in (all_visible(40), np.tril(all_visible(40))):
        out = head_values(log_softmax(np.zeros((1, 40, 40)), visible), visible, rows(40))
        assert out.metrics["block_coverage"] == pytest.approx([0.0])


def test_block_coverage_leaves_sinks_out() -> None:
    scores = np.zeros((1, 20, 20))
    scores[0, :, 3] = 6  # everybody looks at token 3, neighbours of it too
    out = head_values(log_softmax(scores, all_visible(20)), all_visible(20), rows(20))
    assert out.metrics["position_bias_max"][0] > 0.3
    assert out.metrics["block_coverage"] == pytest.approx([0.0])


def test_block_coverage_is_undefined_where_no_window_fits() -> None:
    for n, defined in ((10, False), (11, True)):
        out = head_values(log_softmax(np.zeros((1, n, n)), all_visible(n)), all_visible(n), rows(n))
        assert np.isfinite(out.metrics["block_coverage"][0]) == defined


def test_output_norm_ratio_compares_with_the_mean_of_the_heads() -> None:
    weights = logs([[[0.5, 0.5], [0.5, 0.5]]] * 2)
    outputs = np.array([[[3.0], [4.0]], [[3.0], [4.0]]])
    projection = np.array([[[1.0, 0.0]], [[0.0, 3.0]]])
    out = head_values(
        weights, all_visible(2), rows(2), head_outputs=outputs, output_weights=projection
    )
    assert out.metrics["output_norm_ratio"] == pytest.approx([0.5, 1.5])


def test_pair_values_of_2x2_maps() -> None:
    first, second = [[0.5, 0.5], [0.5, 0.5]], [[0.25, 0.75], [0.25, 0.75]]
    out = pair_values(logs([first, second, first]), all_visible(2), rows(2))
    assert out.metrics["kl_nats"][0, 1] == pytest.approx(
        0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    )
    assert out.metrics["kl_nats"][1, 0] == pytest.approx(
        0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    )
    assert out.metrics["cosine"][0, 1] == pytest.approx(1 / math.sqrt(2 * (0.25**2 + 0.75**2)))

    def entropy_bits(*weights: float) -> float:
        return -sum(w * math.log2(w) for w in weights)

    js = entropy_bits(0.375, 0.625) - (1 + entropy_bits(0.25, 0.75)) / 2
    assert out.metrics["js_bits"][0, 1] == pytest.approx(js)
    # Centred on the mean map the three are (1, -2, 1) times one direction.
    assert out.metrics["cosine_centred"][0, 1] == pytest.approx(-1)
    assert out.metrics["cosine_centred"][0, 2] == pytest.approx(1)
    assert out.js_rows == 2


def test_heads_on_different_keys_are_one_bit_apart_and_log_space_is_kept() -> None:
    scores = np.array([[[800.0, 0.0]] * 2, [[0.0, 800.0]] * 2])
    out = pair_values(log_softmax(scores, all_visible(2)), all_visible(2), rows(2))
    assert out.metrics["js_bits"][0, 1] == pytest.approx(1)
    assert out.metrics["kl_nats"][0, 1] == pytest.approx(800)
    assert np.isnan(out.metrics["cosine_centred"]).all()  # two heads only


def test_equal_heads_have_no_centred_cosine() -> None:
    one = [[0.5, 0.5], [0.25, 0.75]]
    out = pair_values(logs([one, one, one]), all_visible(2), rows(2))
    assert np.isnan(out.metrics["cosine_centred"]).all()
    assert out.metrics["cosine"] == pytest.approx(np.ones((3, 3)))


def test_js_above_512_rows_takes_the_middle_of_256_stretches() -> None:
    n = 1024
    visible = np.zeros((n, n), dtype=bool)
    visible[:, :2] = True
    scores = np.zeros((2, n, 2))
    taken = [math.floor((i + 0.5) * n / 256) for i in range(256)]
    assert taken[:2] == [2, 6]
    scores[1, taken] = [700.0, 0.0]
    weights = log_softmax(scores, visible[:, :2])
    out = pair_values(weights, visible[:, :2], rows(n))
    assert out.js_rows == 256
    # Uniform over two keys against all on one of them, on every row that is looked at.
    half = -0.75 * math.log2(0.75) - 0.25 * math.log2(0.25) - 0.5
    assert out.metrics["js_bits"][0, 1] == pytest.approx(half)


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.backend != "refused"], ids=lambda family: family.name
)
def test_eager_scores_agree_with_the_maps_of_the_float32_module(family: Family) -> None:
    model, wide = family.build(), family.build().double()
    for padding in family.paddings:
        inputs = family.inputs(model, padding)
        with torch.no_grad():
            outputs = model(**inputs, output_attentions=True)
        scores = eager_scores(wide, inputs, family.kinds)
        for kind in family.kinds:
            maps = eager_maps(outputs, kind)
            queries, keys = valid_positions(model, inputs, kind)
            for expected, layer in zip(maps, scores[kind], strict=True):
                for row in range(2):
                    valid = queries[row].numpy()
                    want = expected[row].double().numpy()[:, valid]
                    want /= want.sum(-1, keepdims=True)  # without the share of a sink
                    got = np.exp(layer.log_weights[row])[:, valid]
                    np.testing.assert_allclose(got, want, atol=2e-5, rtol=0)
                    assert not layer.visible[row][valid][:, ~keys[row].numpy()].any()
