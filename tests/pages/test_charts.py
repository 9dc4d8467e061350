import numpy as np
import pytest

from core.results import Token
from pages.ui import charts
from pages.ui.labels import axis_labels, plain_label

WORDS = charts.MapWords(
    title="Layer 0, head 0",
    legend="attention weight, 0–1",
    query="query",
    key="key",
    weight="weight",
    query_axis="query: the token that looks",
    key_axis="key: the token looked at",
)
MARKUP = ("<s>", "<b>bold</b>", "</script><script>alert(1)</script>", "&lt;", '"quoted"', "$x^2$")


def tokens(*texts: str) -> tuple[Token, ...]:
    return tuple(Token(i, text, None) for i, text in enumerate(texts))


def causal(n: int) -> np.ndarray:
    below = np.tril(np.ones((n, n)))
    return below / below.sum(1, keepdims=True)


def test_axis_labels_of_repeated_tokens_stay_apart() -> None:
    repeated = tokens("苹果", "苹果", "苹果", "apple", "apple", "apple")
    labels = axis_labels(repeated, range(6))
    figure = charts.head_figure(causal(6), labels, labels, WORDS)
    assert len(set(figure.data[0].x)) == 6
    assert len(set(figure.data[0].y)) == 6
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "category"


def test_axis_labels_escape_tags_but_not_quotes() -> None:
    labels = axis_labels(tokens(*MARKUP), range(len(MARKUP)))
    assert labels[1] == "1 &lt;b&gt;bold&lt;/b&gt;"
    assert labels[3] == "3 &amp;lt;"
    assert labels[4] == '4 "quoted"'
    assert not any("<" in label for label in labels)
    assert plain_label(tokens(*MARKUP), 1) == "1 <b>bold</b>"


def test_head_figure_refuses_equal_labels() -> None:
    with pytest.raises(ValueError, match="must differ"):
        charts.head_figure(causal(2), ["a", "a"], ["a", "b"], WORDS)


def test_head_figure_is_one_heatmap_of_float32() -> None:
    labels = [str(i) for i in range(4)]
    figure = charts.head_figure(causal(4), labels, labels, WORDS)
    (heatmap,) = figure.data
    assert heatmap.type == "heatmap"
    assert heatmap.z.dtype == np.float32
    assert (heatmap.zmin, heatmap.zmax) == (0, 1)
    assert heatmap.colorbar.title.text == "attention weight, 0–1"
    assert figure.layout.title.text == "Layer 0, head 0"
    for part in ("query %{y}", "key %{x}", "weight %{z"):
        assert part in heatmap.hovertemplate


def test_square_root_scale_moves_colours_and_keeps_weights() -> None:
    labels = [str(i) for i in range(4)]
    linear = charts.head_figure(causal(4), labels, labels, WORDS)
    root = charts.head_figure(causal(4), labels, labels, WORDS, scale="sqrt")
    np.testing.assert_array_equal(root.data[0].z, linear.data[0].z)
    scale = dict(charts.colour_scale("sqrt", dark=False))
    # A quarter of the weight has half of the colour.
    assert scale[0.25] == charts.LIGHT_STOPS[2][1]


def test_row_scale_brings_each_row_to_one_and_hovers_the_true_weight() -> None:
    labels = [str(i) for i in range(4)]
    figure = charts.head_figure(causal(4), labels, labels, WORDS, scale="row")
    np.testing.assert_allclose(figure.data[0].z.max(axis=1), 1)
    np.testing.assert_allclose(figure.data[0].customdata, causal(4), rtol=1e-6)
    assert "%{customdata" in figure.data[0].hovertemplate


def test_row_scale_of_a_row_that_sees_nothing_is_zero() -> None:
    weights = np.array([[0.0, 0.0], [0.5, 0.5]])
    figure = charts.head_figure(weights, ["a", "b"], ["a", "b"], WORDS, scale="row")
    np.testing.assert_array_equal(figure.data[0].z[0], 0)


@pytest.mark.parametrize("dark", [False, True])
def test_colours_change_lightness_in_one_direction(dark: bool) -> None:
    lightness = [sum(int(c[i : i + 2], 16) for i in (1, 3, 5)) for _, c in charts.stops(dark)]
    assert lightness == sorted(lightness, reverse=not dark)
