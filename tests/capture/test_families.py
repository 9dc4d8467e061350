"""The zoo itself: every model builds, runs eager in every padding, and shows maps worth testing."""

import pytest
import torch

from tests.capture.families import FAMILIES, N_HEADS, Family, valid_positions

ATTRIBUTE = {
    "encoder": ("encoder_attentions", "attentions"),
    "decoder": ("decoder_attentions", "attentions"),
    "cross": ("cross_attentions",),
}


def eager_maps(outputs: object, kind: str) -> tuple[torch.Tensor, ...]:
    for name in ATTRIBUTE[kind]:
        if maps := getattr(outputs, name, None):
            return tuple(maps)
    return ()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_family_runs_eager_with_maps_in_every_padding(family: Family) -> None:
    model = family.build()
    for padding in family.paddings:
        inputs = family.inputs(model, padding)
        with torch.no_grad():
            outputs = model(**inputs, output_attentions=True)
        for kind in family.kinds:
            maps = eager_maps(outputs, kind)
            assert maps, (family.name, padding, kind)
            if family.backend == "refused":
                continue
            queries, keys = valid_positions(model, inputs, kind)
            for weights in maps:
                assert weights.shape == (2, N_HEADS, queries.shape[1], keys.shape[1])
                # Far from uniform in a fully visible row, else a lost mask would not show.
                last_row = weights[0, :, -1]
                assert last_row.max() > 2 / keys.shape[1], (family.name, kind)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_family_is_seeded_and_in_eval_mode(family: Family) -> None:
    first, second = family.build(), family.build()
    assert not first.training
    for (name, one), two in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two), name


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.backend != "refused"], ids=lambda family: family.name
)
def test_backend_of_family_matches_what_the_library_says(family: Family) -> None:
    model = family.build()
    assert model._can_set_attn_implementation() == (family.backend == "interface")


def test_padded_inputs_differ_in_length() -> None:
    for family in FAMILIES:
        model = family.build()
        for padding in family.paddings:
            if padding == "none":
                continue
            inputs = family.inputs(model, padding)
            pads = [
                valid_positions(model, inputs, kind)[side]
                for kind in family.kinds
                for side in (0, 1)
            ]
            assert any(int(valid[0].sum()) > int(valid[1].sum()) for valid in pads), family.name
