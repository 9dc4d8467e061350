"""Captures against the module's own eager attention and against the float64 oracle.

Random weights: this says that the numbers are right, nothing about trained models.
"""

from typing import Any

import numpy as np
import pytest
import torch

from core.capture.engine import ForwardCapture, capture_forward
from core.capture.record import CaptureOptions
from core.errors import UnsupportedModelError
from tests.capture.families import FAMILIES, Family, valid_positions
from tests.capture.oracle import eager_scores, head_values, pair_values
from tests.capture.test_families import eager_maps

MAP_TOLERANCE = 1e-5
METRIC_TOLERANCE = 1e-5
SATURATED_TOLERANCE = 5e-5
SATURATED = ("t5", "mt5", "clip")
SHOWN = [f for f in FAMILIES if f.backend != "refused"]
REFUSED = [f for f in FAMILIES if f.backend == "refused"]


def lengths_of(family: Family, maps: dict[str, Any]) -> dict[str, int]:
    first = maps[family.kinds[0]][0]
    lengths = {"main": first.shape[-2], "encoder": first.shape[-2], "decoder": 0}
    if "decoder" in maps:
        lengths["decoder"] = maps["decoder"][0].shape[-2]
    return lengths


def run_eager(family: Family, model: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(**inputs, output_attentions=True)
    return outputs, {kind: eager_maps(outputs, kind) for kind in family.kinds}


def first_output(outputs: Any) -> torch.Tensor:
    for name in ("last_hidden_state", "logits"):
        if getattr(outputs, name, None) is not None:
            return outputs[name]
    raise AssertionError(f"no hidden states among {list(outputs)}")


def capture(family: Family, padding: str, **options: Any) -> tuple[Any, ...]:
    model = family.build()
    inputs = family.inputs(model, padding)
    eager, maps = run_eager(family, model, inputs)
    taken = capture_forward(
        model, inputs, options=CaptureOptions(**options), lengths=lengths_of(family, maps)
    )
    return model, inputs, eager, maps, taken


def own_kind(family: Family, kind: str, taken: ForwardCapture) -> str:
    """A plain stack is called by what it is; the zoo and the engine must agree on it."""
    assert (kind, 0) in taken.records, (family.name, kind, list(taken.records))
    return kind


CASES = [pytest.param(f, p, id=f"{f.name}-{p}") for f in SHOWN for p in f.paddings]


@pytest.mark.parametrize(("family", "padding"), CASES)
def test_capture_equals_eager(family: Family, padding: str) -> None:
    model, inputs, eager, maps, taken = capture(family, padding)
    assert taken.backend == family.backend
    queries, _ = valid_positions(model, inputs, family.kinds[-1])
    mine, theirs = first_output(taken.outputs), first_output(eager)
    if mine.shape[:2] == queries.shape:
        mine, theirs = mine[queries], theirs[queries]
    scale = max(1.0, float(theirs.abs().max()))
    assert float((mine - theirs).abs().max()) <= MAP_TOLERANCE * scale
    for kind in family.kinds:
        assert len(maps[kind]) == len(taken.records[own_kind(family, kind, taken), 0].layers)
        for (name, text), record in taken.records.items():
            if name != kind:
                continue
            (q0, q1), (k0, k1) = record.query_span, record.key_span
            for layer, weights in enumerate(maps[kind]):
                expected = weights[text, :, q0:q1, k0:k1]
                if record.sink_masses[layer] is not None:
                    expected = expected / expected.sum(-1, keepdim=True)
                got = record.store.weights(layer, slice(None), (0, q1 - q0), (0, k1 - k0))
                seen = expected.sum(-1) > 0.5
                assert float((got - expected).abs()[seen].max()) <= MAP_TOLERANCE, (kind, layer)


@pytest.mark.parametrize(("family", "padding"), CASES)
def test_metrics_equal_the_float64_oracle(family: Family, padding: str) -> None:
    _, inputs, _, _, taken = capture(family, padding)
    scores = eager_scores(family.build().double(), inputs, family.kinds)
    saturated = family.name.startswith(SATURATED)
    tolerance = SATURATED_TOLERANCE if saturated else METRIC_TOLERANCE
    worst: dict[str, float] = {}
    for (kind, text), record in taken.records.items():
        (q0, q1), (k0, k1) = record.query_span, record.key_span
        for layer, figures in enumerate(record.layers):
            log_weights = scores[kind][layer].log_weights[text, :, q0:q1, k0:k1]
            visible = scores[kind][layer].visible[text, q0:q1, k0:k1]
            rows = np.ones(q1 - q0, dtype=bool)
            heads = head_values(log_weights, visible, rows, is_cross=kind == "cross")
            pairs = pair_values(log_weights, visible, rows)
            expected = {
                **{k: v for k, v in heads.metrics.items() if k in figures.metrics},
                "position_bias": heads.position_bias,
                "sink_rate": heads.sink_rate,
                **pairs.metrics,
            }
            got = {
                **figures.metrics,
                "position_bias": figures.position_bias,
                "sink_rate": figures.sink_rate,
                **figures.pairs,
            }
            assert figures.js_rows == pairs.js_rows
            for name, value in expected.items():
                want, have = np.asarray(value, dtype=float), np.asarray(got[name], dtype=float)
                if name == "kl_nats" and taken.backend != "interface":
                    # Of weights alone the smallest logs are not known; what rests on them is null.
                    want = np.where(np.isnan(have), np.nan, want)
                assert np.array_equal(np.isnan(want), np.isnan(have)), (name, kind, layer)
                error = np.abs(want - have) / np.maximum(1, np.abs(want))
                worst[name] = max(worst.get(name, 0), float(np.nan_to_num(error).max(initial=0)))
    bad = {name: error for name, error in worst.items() if error > tolerance}
    assert not bad, f"{family.name}: {bad}"


@pytest.mark.parametrize("family", REFUSED, ids=lambda family: family.name)
def test_banded_and_windowed_models_are_refused_in_words(family: Family) -> None:
    model = family.build()
    inputs = family.inputs(model, family.paddings[0])
    with pytest.raises(UnsupportedModelError, match="not make an N x N map"):
        capture_forward(model, inputs)
