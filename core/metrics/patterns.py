"""Names what each head does, from rules kept as data (patterns.toml)."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

DUPLICATE_COSINE = 0.9999
FALLBACK = "mixed"


@cache
def rules() -> tuple[dict[str, Any], ...]:
    """Returns the rules in the order in which they are tried."""
    text = (Path(__file__).parent / "patterns.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["pattern"])


def name_patterns(
    metrics: Mapping[str, np.ndarray], cosine: np.ndarray | None
) -> tuple[tuple[str, ...], ...]:
    """Returns one word or phrase a head, [layer][head].

    Args:
        metrics: name -> [layer, head], NaN where undefined (a rule on it then does not hold).
        cosine: raw cosine of the maps [layer, head, head], or None.

    A head whose map equals that of an earlier head of its layer is "duplicate of (l,h)".
    """
    n_layers, n_heads = metrics["max_weight"].shape
    return tuple(
        tuple(_name(metrics, cosine, layer, head) for head in range(n_heads))
        for layer in range(n_layers)
    )


def _name(
    metrics: Mapping[str, np.ndarray], cosine: np.ndarray | None, layer: int, head: int
) -> str:
    if cosine is not None and head:
        earlier = np.flatnonzero(cosine[layer, head, :head] >= DUPLICATE_COSINE)
        if len(earlier):
            return f"duplicate of ({layer},{earlier[0]})"
    for rule in rules():
        value = metrics.get(rule["metric"])
        if value is None:
            continue
        number = value[layer, head]
        if number > rule.get("above", np.inf) or number < rule.get("below", -np.inf):
            return str(rule["name"])
    return FALLBACK
