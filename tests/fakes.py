"""A service that needs no model: tokens by a simple rule, attention random but always the same.

It stands in for the real one where a test is about the pages. Everything it returns is labelled
random, so that no picture of it can pass for a model's.
"""

import hashlib
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.attribution.weighting import overlap
from core.errors import BadInputError, HeadscopeError, TooLargeError, UnknownModelError
from core.maps import Axis, axis_of, build_map
from core.results import (
    AttentionResult,
    CaptureRequest,
    CaptureResult,
    Kind,
    MapRequest,
    MapResult,
    ModelInfo,
    ModelRequest,
    OverviewRequest,
    OverviewResult,
    Progress,
    ProgressCallback,
    Token,
)

PIECE = re.compile(r"\s+|[\u4e00-\u9fff]{1,2}|[^\s\u4e00-\u9fff]+")


def _info(model: str, kind: Any, n_layers: int, n_heads: int, **more: Any) -> ModelInfo:
    values: dict[str, Any] = {
        "id": model,
        "family": "random",
        "kind": kind,
        "n_layers": n_layers,
        "n_decoder_layers": 0,
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "head_dim": 32,
        "d_model": 32 * n_heads,
        "vocab_size": 1000,
        "parameters": 117_653_760,
        "licence": "MIT",
        "languages": "random",
        "ready": True,
        "attention": "full",
        "norm": "post",
        "position": "learned",
        "max_tokens": 4096,
        "max_tokens_source": "the fake",
        "prefix": "query: ",
        "random_weights": True,
        "dtype": "fp32",
        "device": "cpu",
    }
    return ModelInfo(**(values | more))


MODELS = (
    _info("e5-small-multilingual", "encoder", 12, 12),
    _info("minilm-en", "encoder", 6, 12),
    _info("smollm2-135m", "decoder", 30, 9, n_kv_heads=3, norm="pre", position="rotary"),
    _info("both-ways", "encoder-decoder", 3, 4, n_decoder_layers=2),
)


class FakeService:
    """Implements the service's methods; `runs` lists the captures that were computed.

    Args:
        step_s: how long each layer of a new capture takes.
    """

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s
        self.runs: list[CaptureRequest] = []
        self.failures: dict[str, HeadscopeError] = {}
        self._done: dict[CaptureRequest, CaptureResult] = {}
        self._lock = threading.Lock()

    def models(self) -> tuple[ModelInfo, ...]:
        return MODELS

    def model_info(
        self, request: ModelRequest, *, progress: ProgressCallback | None = None
    ) -> ModelInfo:
        for info in MODELS:
            if info.id == request.model:
                return info
        raise UnknownModelError(
            f"There is no model '{request.model}'.", "Choose one of the list, or name a folder."
        )

    def is_cached(self, request: CaptureRequest) -> bool:
        return request in self._done

    def capture(
        self, request: CaptureRequest, *, progress: ProgressCallback | None = None
    ) -> CaptureResult:
        text = request.texts[0]
        if text in self.failures:
            raise self.failures[text]
        if not text.strip():
            raise BadInputError("The text is empty.", "Type a text.")
        if request in self._done:
            return self._done[request]
        info = self.model_info(request.model)
        tokens = tokenize(text)
        if len(tokens) > 4096:
            if not request.truncate and not (request.beyond and info.reads_beyond):
                raise TooLargeError(
                    f"The text has {len(tokens)} tokens; {info.id} reads at most 4096.",
                    "Shorten it, or cut it to the limit.",
                )
            if request.truncate:
                tokens = tokens[:4096]
        with self._lock:
            self.runs.append(request)
        for layer in range(info.n_layers if self.step_s else 0):
            time.sleep(self.step_s)
            if progress is not None:
                progress(Progress("capture", layer, info.n_layers))
        kinds: tuple[Kind, ...] = {
            "encoder": ("encoder",),
            "decoder": ("decoder",),
            "encoder-decoder": ("encoder", "decoder", "cross"),
        }[info.kind]
        results = tuple(self._attention(request, info, kind, tokens) for kind in kinds)
        result = CaptureResult(info, "interface", results, 0.21, 0, 0)
        self._done[request] = result
        return result

    def _attention(
        self, request: CaptureRequest, info: ModelInfo, kind: Kind, tokens: tuple[Token, ...]
    ) -> AttentionResult:
        n_layers = info.n_layers if kind == "encoder" or not info.n_decoder_layers else 2
        queries = tokens[: max(3, len(tokens) // 2)] if kind == "cross" else tokens
        shape = (n_layers, info.n_heads)
        metrics = {
            name: np.zeros(shape)
            for name in ("normalized_entropy", "max_weight", "first_token_mass", "previous_mass")
        }
        metrics["uniform_rows"] = np.full(shape, np.nan)
        small = min(len(tokens), 64)
        for layer in range(n_layers):
            for head in range(info.n_heads):
                a = weights(request, kind, layer, head, small, small).astype(np.float64)
                logs = np.where(a > 0, np.log(np.where(a > 0, a, 1)), 0)
                metrics["normalized_entropy"][layer, head] = -(a * logs).sum(1).mean() / np.log(
                    max(small, 2)
                )
                metrics["max_weight"][layer, head] = a.max(1).mean()
                metrics["first_token_mass"][layer, head] = a[:, 0].mean()
                metrics["previous_mass"][layer, head] = np.diagonal(a, -1).mean()
        names = ("sink", "previous", "mixed", "diagonal", "duplicate of (0,1)")
        patterns = tuple(
            tuple(names[(layer + head) % 5] for head in range(info.n_heads))
            for layer in range(n_layers)
        )
        writes = request.top_tokens and kind == "decoder"
        return AttentionResult(
            text_index=0,
            kind=kind,
            n_layers=n_layers,
            n_heads=info.n_heads,
            n_kv_heads=info.n_kv_heads,
            query_tokens=queries,
            key_tokens=tokens,
            metrics=metrics,
            pairs={},
            js_rows=0,
            position_bias=np.zeros((*shape, 1)),
            special_mass={},
            sink_rate=np.zeros(n_layers),
            patterns=patterns,
            top_tokens=tuple((f"next{i}", 0.3 / (i + 1)) for i in range(10)) if writes else (),
        )

    def head_map(
        self, request: MapRequest, *, progress: ProgressCallback | None = None
    ) -> MapResult:
        result = self.capture(request.capture, progress=progress)
        attention = _of_kind(result, request.kind)
        store = _Store(request.capture, attention)
        return build_map(store, attention, request, _axes(request, attention), lambda _: None)

    def overlap(self, request: MapRequest, *, progress: ProgressCallback | None = None) -> float:
        maps = [self.head_map(r).weights for r in (request, replace(request, weighting="raw"))]
        return overlap(maps[0], maps[1])

    def joined(self, request: MapRequest) -> AttentionResult:
        attention = _of_kind(self.capture(request.capture), request.kind)
        queries, keys = _axes(request, attention)
        return replace(attention, query_tokens=queries.tokens, key_tokens=keys.tokens)

    def overview(
        self, request: OverviewRequest, *, progress: ProgressCallback | None = None
    ) -> OverviewResult:
        result = self.capture(request.capture, progress=progress)
        attention = _of_kind(result, request.kind)
        rows = min(request.size, len(attention.query_tokens))
        columns = min(request.size, len(attention.key_tokens))
        out = np.zeros((attention.n_layers, attention.n_heads, rows, columns), dtype=np.float16)
        for layer in range(attention.n_layers):
            for head in range(attention.n_heads):
                out[layer, head] = weights(
                    request.capture, attention.kind, layer, head, rows, columns
                )
        return OverviewResult(out)


@dataclass
class _Store:
    """Random maps where a capture would keep queries and keys."""

    request: CaptureRequest
    attention: AttentionResult
    nbytes: int = 0

    def weights(
        self, layer: int, heads: slice, rows: tuple[int, int], keys: tuple[int, int]
    ) -> torch.Tensor:
        shape = len(self.attention.query_tokens), len(self.attention.key_tokens)
        maps = [
            weights(self.request, self.attention.kind, layer, head, *shape)
            for head in range(heads.start, heads.stop)
        ]
        return torch.from_numpy(np.stack(maps)[:, slice(*rows), slice(*keys)])


def _axes(request: MapRequest, attention: AttentionResult) -> tuple[Axis, Axis]:
    text = request.capture.texts[0]
    queries, keys = attention.query_tokens, attention.key_tokens
    return axis_of(text, queries, request.joining), axis_of(text, keys, request.joining)


def _of_kind(result: CaptureResult, kind: Kind | None) -> AttentionResult:
    return next((t for t in result.texts if kind in (None, t.kind)), result.texts[0])


def tokenize(text: str) -> tuple[Token, ...]:
    """Returns words and CJK pairs between two special tokens."""
    pieces = [
        Token(int(hashlib.sha256(m[0].encode()).hexdigest()[:4], 16) % 1000, m[0], m.span())
        for m in PIECE.finditer(text)
        if not m[0].isspace()
    ]
    return (Token(0, "<s>", None, True), *pieces, Token(2, "</s>", None, True))


def weights(
    request: CaptureRequest, kind: Kind, layer: int, head: int, n_query: int, n_key: int
) -> NDArray[np.float32]:
    """Returns a random map whose rows sum to 1; causal for decoders."""
    name = f"{request.model.model}|{request.texts[0]}|{kind}|{layer}|{head}"
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    random = np.random.default_rng(seed)
    scores = 1.5 * random.normal(size=(n_query, n_key))
    style = (layer + head) % 5
    rows, columns = np.mgrid[:n_query, :n_key]
    if style == 0:
        scores[:, 0] += 4
    elif style in (1, 3):
        scores += 4.0 * (columns == rows - (style == 1))
    if kind == "decoder":
        scores = np.where(columns <= rows, scores, -np.inf)
    grown = np.exp(scores - scores.max(1, keepdims=True))
    shares: NDArray[np.float32] = (grown / grown.sum(1, keepdims=True)).astype(np.float32)
    return shares


def open_fake(model_roots: Sequence[Path] | None = None) -> FakeService:
    """Stands in for `core.open_service`."""
    return FakeService()
