"""What must not change with tiles, masks, caches and second passes. Random weights throughout."""

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, DynamicCache

from core.capture import seam
from core.capture.blocks import block_coverage
from core.capture.engine import capture_forward
from core.capture.record import CaptureOptions
from tests.capture.families import FAMILIES, Family
from tests.capture.oracle import eager_scores, head_values

BY_NAME = {family.name: family for family in FAMILIES}


def family(name: str) -> Family:
    return BY_NAME[name]


@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral", "t5", "gpt-oss"])
def test_figures_do_not_depend_on_the_tile_size(name: str) -> None:
    model = family(name).build()
    inputs = family(name).inputs(model, "right")
    # T5 does not scale its scores: they reach 100, where float32 itself steps by 7.6e-6.
    step = 2e-6 if name == "t5" else 1e-6
    taken = [
        capture_forward(model, inputs, options=CaptureOptions(tile_rows=rows))
        for rows in (None, 3, 7)
    ]
    for key, record in taken[0].records.items():
        for other in taken[1:]:
            for layer, figures in enumerate(record.layers):
                again = other.records[key].layers[layer]
                for group in ("metrics", "pairs"):
                    for metric, value in getattr(figures, group).items():
                        np.testing.assert_allclose(
                            getattr(again, group)[metric], value, atol=step, rtol=step
                        )


def test_without_our_mask_the_window_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parity of windowed families rests on the mask: taken away, the outputs differ."""
    model = family("mistral").build()
    inputs = family("mistral").inputs(model, "none")
    right = capture_forward(model, inputs).outputs
    name = "headscope_maskless"
    monkeypatch.setattr(seam, "IMPLEMENTATION", name)
    monkeypatch.setattr(seam, "register", lambda: AttentionInterface.register(name, seam.attend))
    wrong = capture_forward(model, inputs).outputs
    first = next(iter(right.keys()))
    assert float((right[first] - wrong[first]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma2", "t5", "bart"])
def test_cached_generation_gives_the_same_tokens(name: str) -> None:
    model = family(name).build()
    inputs = family(name).inputs(model, "left")
    fed = {k: v for k, v in inputs.items() if k in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 8, "do_sample": False, "num_beams": 1, "pad_token_id": 0}
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model.generate(**fed, **options)
        with seam.collecting(model, None):
            got = model.generate(**fed, **options)
    assert torch.equal(got, expected)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt-oss", "bloom"])
def test_maps_of_cached_decoding_are_the_last_rows_of_the_whole(name: str, padding: str) -> None:
    model = family(name).build()
    inputs = family(name).inputs(model, padding)
    whole = capture_forward(model, inputs)
    n_new = 3
    first = {k: v[:, :-n_new] for k, v in inputs.items()}
    # Without the config it keeps keys that have left a window, as the whole pass does.
    cache = DynamicCache()
    with torch.no_grad():
        model(**first, cache=cache, use_cache=True)
    fed = {**inputs, "input_ids": inputs["input_ids"][:, -n_new:], "cache": cache}
    taken = capture_forward(model, fed)
    for key, record in taken.records.items():
        full = whole.records[key]
        n_keys = full.key_span[1] - full.key_span[0]
        for layer in range(len(full.layers)):
            got = record.store.weights(layer, slice(None), (0, n_new), (0, n_keys))  # type: ignore[union-attr]
            want = full.store.weights(  # type: ignore[union-attr]
                layer, slice(None), (n_keys - n_new, n_keys), (0, n_keys)
            )
            np.testing.assert_allclose(got.numpy(), want.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral", "modernbert"])
def test_block_coverage_equals_the_oracle(name: str) -> None:
    model = family(name).build()
    inputs = family(name).inputs(model, "none")
    taken = capture_forward(model, inputs)
    scores = eager_scores(family(name).build().double(), inputs, family(name).kinds)
    for (kind, text), record in taken.records.items():
        assert record.store is not None
        for layer, figures in enumerate(record.layers):
            log_weights = scores[kind][layer].log_weights[text]
            visible = scores[kind][layer].visible[text]
            rows = np.ones(log_weights.shape[1], dtype=bool)
            want = head_values(log_weights, visible, rows).metrics["block_coverage"]
            got = block_coverage(record.store, layer, figures, record.visibilities[layer])
            np.testing.assert_allclose(got, want, atol=1e-9)
