"""Attention watched as it came: torch's own layers, home-made ones, none at all."""

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from core.capture.engine import capture_forward
from core.errors import UnsupportedModelError

D_MODEL, N_HEADS, LENGTH = 16, 4, 9


class Torch(nn.Module):
    """torch's encoder, twice the same layer: two stacks of weights that look alike."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D_MODEL, N_HEADS, 32, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(50, D_MODEL)
        self.encoder = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        out: Tensor = self.encoder(self.embed(input_ids))
        return out


class Shared(nn.Module):
    """One nn.MultiheadAttention called twice, then a softmax of the user's own."""

    def __init__(self, with_own: bool) -> None:
        super().__init__()
        self.with_own = with_own
        self.embed = nn.Embedding(50, D_MODEL)
        self.attention = nn.MultiheadAttention(D_MODEL, N_HEADS, batch_first=True)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for _ in range(2):
            x = x + self.attention(x, x, x, need_weights=False)[0]
        if self.with_own:
            x = torch.softmax(x @ x.transpose(1, 2) / D_MODEL**0.5, -1) @ x
        out: Tensor = x
        return out


def projected_weights(attention: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """Returns weights [batch, head, query, key], in float64, from the layer's own parameters."""
    n_batch, length, _ = x.shape
    projected = x.double() @ attention.in_proj_weight.double().T + attention.in_proj_bias.double()
    query, key, _ = (
        part.view(n_batch, length, N_HEADS, -1).transpose(1, 2) for part in projected.chunk(3, -1)
    )
    return torch.softmax(query @ key.transpose(2, 3) / (D_MODEL // N_HEADS) ** 0.5, -1)


def ids(n_texts: int) -> Tensor:
    return torch.randint(0, 50, (n_texts, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("n_texts", [1, 3])
def test_torch_encoder_layers_are_seen_as_they_are(n_texts: int) -> None:
    torch.manual_seed(0)
    model = Torch(2).eval()
    taken = capture_forward(model, {"input_ids": ids(n_texts)})
    assert taken.backend == "tap"
    x = model.embed(ids(n_texts))
    with torch.no_grad():
        for layer, module in enumerate(model.encoder.layers):
            want = projected_weights(module.self_attn, x)
            for text in range(n_texts):
                store = taken.records["encoder", text].store
                assert store is not None
                got = store.weights(layer, slice(None), (0, LENGTH), (0, LENGTH))
                np.testing.assert_allclose(got.numpy(), want[text].numpy(), atol=1e-6)
            x = module(x)
    assert len(taken.records["encoder", 0].layers) == 2


def test_one_attention_module_called_twice_makes_two_layers() -> None:
    torch.manual_seed(0)
    model = Shared(with_own=False).eval()
    before = model(ids(1))
    taken = capture_forward(model, {"input_ids": ids(1)})
    torch.testing.assert_close(taken.outputs, before)
    assert len(taken.records["encoder", 0].layers) == 2


def test_layers_of_different_numbers_of_heads_are_refused_in_words() -> None:
    model = Shared(with_own=True).eval()
    with pytest.raises(UnsupportedModelError, match="layers of 4 and of 1 heads"):
        capture_forward(model, {"input_ids": ids(1)})


def test_a_model_without_attention_is_refused_in_words() -> None:
    config = hf.MambaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4, pad_token_id=0
    )
    model = hf.MambaModel(config).eval()
    with pytest.raises(UnsupportedModelError, match="No attention was seen in MambaModel"):
        capture_forward(model, {"input_ids": ids(1)})


def test_watching_leaves_the_module_as_it_came() -> None:
    model = Torch(1).eval()
    names = ("_forward_hooks", "_forward_pre_hooks")
    capture_forward(model, {"input_ids": ids(1)})
    assert all(not getattr(module, name) for module in model.modules() for name in names)
    assert torch.backends.mha.get_fastpath_enabled()
