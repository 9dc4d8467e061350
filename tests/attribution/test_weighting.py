"""Norm-weighted maps and rollout against float64 computations that share none of their code."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    PreTrainedModel,
)

from core.attribution.weighting import overlap, rollout, value_norms
from core.capture.assemble import assemble
from core.capture.engine import capture_forward
from core.capture.record import CaptureOptions, StackRecord
from core.capture.store import MapStore
from core.errors import BadInputError, UnsupportedModelError
from core.maps import axis_of, build_map
from core.results import AttentionResult, CaptureRequest, MapRequest, ModelRequest, Token
from core.service import HeadscopeService


def bert() -> BertModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    return BertModel(BertConfig(vocab_size=20, intermediate_size=32, **sizes)).eval()


def gpt2() -> GPT2Model:
    torch.manual_seed(1)
    return GPT2Model(GPT2Config(vocab_size=20, n_embd=24, n_layer=3, n_head=4)).eval()


def llama() -> LlamaModel:
    torch.manual_seed(2)
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    return LlamaModel(
        LlamaConfig(vocab_size=20, intermediate_size=32, num_key_value_heads=2, **sizes)
    ).eval()


def bert_transformed(model: BertModel, layer: int, x: torch.Tensor) -> torch.Tensor:
    """f(x) [head, token, d_model] written out with the weights themselves."""
    attention = model.encoder.layer[layer].attention
    value, out = attention.self.value, attention.output.dense
    d = 24 // 4
    parts = []
    for head in range(4):
        rows = slice(head * d, (head + 1) * d)
        v = x @ value.weight[rows].T + value.bias[rows]
        parts.append(v @ out.weight[:, rows].T)
    return torch.stack(parts)


def gpt2_transformed(model: GPT2Model, layer: int, x: torch.Tensor) -> torch.Tensor:
    block = model.h[layer]
    x = block.ln_1(x)
    d = 24 // 4
    parts = []
    for head in range(4):
        columns = slice(48 + head * d, 48 + (head + 1) * d)
        v = x @ block.attn.c_attn.weight[:, columns] + block.attn.c_attn.bias[columns]
        parts.append(v @ block.attn.c_proj.weight[head * d : (head + 1) * d])
    return torch.stack(parts)


def llama_transformed(model: LlamaModel, layer: int, x: torch.Tensor) -> torch.Tensor:
    block = model.layers[layer]
    x = block.input_layernorm(x)
    d = 24 // 4
    parts = []
    for head in range(4):
        shared = head // 2
        v = x @ block.self_attn.v_proj.weight[shared * d : (shared + 1) * d].T
        parts.append(v @ block.self_attn.o_proj.weight[:, head * d : (head + 1) * d].T)
    return torch.stack(parts)


CASES = [(bert, bert_transformed), (gpt2, gpt2_transformed), (llama, llama_transformed)]


IDS = torch.tensor([[2, 5, 6, 7, 5, 8, 9, 3]])


def taken(model: PreTrainedModel, **options: bool) -> StackRecord:
    inputs = {"input_ids": IDS}
    with torch.no_grad():
        found = capture_forward(model, inputs, options=CaptureOptions(**options))
    (record,) = found.records.values()
    return record


def eager64(model: PreTrainedModel) -> tuple[list[np.ndarray], list[torch.Tensor]]:
    """Attention [head, query, key] and inputs [token, d_model] of each layer, in float64."""
    model.double().set_attn_implementation("eager")
    with torch.no_grad():
        out = model(input_ids=IDS, output_attentions=True, output_hidden_states=True)
    return [a[0].numpy() for a in out.attentions], [h[0] for h in out.hidden_states]


def result_of(record: StackRecord) -> AttentionResult:
    tokens = tuple(Token(i, str(i), None) for i in range(IDS.shape[1]))
    return assemble(record, 0, tokens, tokens)


def shown(record: StackRecord, **asked: Any) -> np.ndarray:
    result = result_of(record)
    request = MapRequest(CaptureRequest(ModelRequest("x"), ("",)), **asked)
    axes = axis_of("", result.query_tokens, None), axis_of("", result.key_tokens, None)
    return build_map(record.store, result, request, axes, lambda _: None).weights


@pytest.mark.parametrize(("build", "transformed"), CASES, ids=["bert", "gpt2", "llama-gqa"])
def test_norm_weighted_maps_equal_float64(build: Any, transformed: Any) -> None:
    record = taken(build(), hold_values=True)
    model = build()
    weights, inputs = eager64(model)
    for layer in range(3):
        with torch.no_grad():
            norms = transformed(model, layer, inputs[layer]).norm(dim=-1).numpy()
        expected = weights[layer] * norms[:, None, :]
        for head in range(4):
            got = shown(record, layer=layer, head=head, weighting="norm")
            assert np.abs(got - expected[head]).max() <= 1e-5 * max(1, expected.max())
        mean = shown(record, layer=layer, head=None, weighting="norm")
        assert np.abs(mean - expected.mean(0)).max() <= 1e-5 * max(1, expected.max())
        part = shown(record, layer=layer, head=1, weighting="norm", rows=(2, 5), keys=(1, 3))
        assert np.abs(part - expected[1, 2:5, 1:3]).max() <= 1e-5 * max(1, expected.max())


@pytest.mark.parametrize(("build", "_"), CASES, ids=["bert", "gpt2", "llama-gqa"])
def test_rollout_equals_float64(build: Any, _: Any) -> None:
    record = taken(build())
    weights, _ = eager64(build())
    n = IDS.shape[1]
    rolled = np.eye(n)
    for layer in range(3):
        # Abnar and Zuidema: rows of 0.5 A + 0.5 I, layer by layer from the input up.
        rolled = (0.5 * weights[layer].mean(0) + 0.5 * np.eye(n)) @ rolled
        got = shown(record, layer=layer, head=2, weighting="rollout")
        assert np.abs(got - rolled).max() <= 1e-5
        assert np.abs(got.sum(1) - 1).max() <= 1e-6
    assert np.abs(shown(record, layer=None, weighting="rollout") - rolled).max() <= 1e-5


def test_without_values_the_norms_are_refused_in_words() -> None:
    record = taken(bert())
    with pytest.raises(BadInputError, match="holds no values"):
        shown(record, weighting="norm")
    record = taken(bert(), hold_values=True)
    record.store.layers[0].projection = None
    with pytest.raises(UnsupportedModelError, match="projection of layer 0"):
        shown(record, weighting="norm")
    with pytest.raises(UnsupportedModelError, match="seam"):
        value_norms(MapStore([]), 0)


def test_rollout_of_a_long_text_or_of_cross_attention_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = taken(bert())
    result = result_of(record)
    with pytest.raises(BadInputError, match="joins two"):
        rollout(record.store, replace(result, kind="cross"), 0, lambda _: None)
    monkeypatch.setattr("core.attribution.weighting.ROLLOUT_TOKENS", 7)
    with pytest.raises(BadInputError, match="8 tokens; rollout is worked out up to 7"):
        rollout(record.store, result, 0, lambda _: None)


def test_overlap_is_one_less_the_distance_of_rows() -> None:
    one = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]])
    other = np.array([[2.0, 0.0], [3.0, 1.0], [1.0, 0.0]])
    assert overlap(one, one) == 1
    # Rows (0.5 0.5) and (1 0) share 0.5, rows (1 0) and (0.75 0.25) share 0.75.
    assert overlap(one, other) == pytest.approx(0.625)
    assert np.isnan(overlap(np.zeros((2, 2)), one[:2]))


@pytest.mark.models
def test_values_survive_a_move_to_disk() -> None:
    request = CaptureRequest(ModelRequest("minilm-en"), ("an apple",), hold_values=True)
    service = HeadscopeService()
    asked = MapRequest(request, layer=2, head=3, weighting="norm")
    before = service.head_map(asked).weights
    held = service._captures.get(request)
    assert held.spill()
    np.testing.assert_array_equal(service.head_map(asked).weights, before)
    raw = service.head_map(MapRequest(request, layer=2, head=3)).weights
    ratio = before / raw
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:1], ratio.shape), rtol=1e-4)
