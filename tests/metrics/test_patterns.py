"""Every rule of patterns.toml at its edge: on the limit it does not hold, just beyond it does."""

import math

import numpy as np
import pytest

from core.metrics.patterns import DUPLICATE_COSINE, FALLBACK, name_patterns, rules


def named(cosine: np.ndarray | None = None, **metrics: float) -> tuple[str, ...]:
    n_heads = 1 if cosine is None else cosine.shape[-1]
    values = {"max_weight": 0.5, **metrics}
    arrays = {name: np.full((1, n_heads), value) for name, value in values.items()}
    return name_patterns(arrays, cosine)[0]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["name"]))
def test_a_rule_holds_only_beyond_its_limit(rule: dict[str, object]) -> None:
    metric, is_above = str(rule["metric"]), "above" in rule
    limit = float(str(rule["above" if is_above else "below"]))
    beyond = math.nextafter(limit, math.inf if is_above else -math.inf)
    assert named(**{metric: limit}) == (FALLBACK,)
    assert named(**{metric: beyond}) == (rule["name"],)
    assert named(**{metric: math.nan}) == (FALLBACK,)


def test_the_first_rule_that_holds_names_the_head() -> None:
    assert named(previous_mass=0.9, normalized_entropy=0.1) == ("previous",)


def test_a_copy_is_named_after_the_first_of_its_layer() -> None:
    cosine = np.eye(3)[None]
    cosine[0, 2, 0] = cosine[0, 0, 2] = DUPLICATE_COSINE
    assert named(cosine, previous_mass=0.9) == ("previous", "previous", "duplicate of (0,0)")
    cosine[0, 2, 0] = math.nextafter(DUPLICATE_COSINE, 0)
    assert named(cosine, previous_mass=0.9)[2] == "previous"
