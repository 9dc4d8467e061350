"""The only door: pages, the command line and notebooks ask here, and only here.

It joins models, the capture engine and the cache: equal requests are computed once, one piece of
work is on the device at a time, and memory is forecast before a model runs.
"""

import logging
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import torch
from torch import nn

from core.cache import ByteCache, FairQueue
from core.capture.assemble import assemble
from core.capture.engine import ForwardCapture, capture_forward
from core.capture.record import CaptureOptions, StackRecord
from core.capture.statistics import cell_edges
from core.capture.store import mean_map
from core.errors import BadInputError, HeadscopeError, InternalError, OutOfMemoryError
from core.limits import (
    CAPTURE_CACHE_BYTES,
    GIB,
    MAX_GENERATED_TOKENS,
    MAX_TEXTS,
    MIN_FREE_BYTES,
    MODEL_CACHE_BYTES,
)
from core.models.catalogue import CATALOGUE
from core.models.loading import LoadedModel, embedded_info, explain, load_model, wrap_module
from core.models.prepare import prepare_model
from core.models.sources import SourcePolicy
from core.models.tokens import EncodedText, encode, encode_target, tokens_of
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

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Held:
    """A capture in the cache: its result and the records behind it."""

    result: CaptureResult
    records: Mapping[tuple[Kind, int], StackRecord]

    @property
    def nbytes(self) -> int:
        total = self.result.held_bytes
        for record in self.records.values():
            total += sum(0 if a.overview is None else a.overview.nbytes for a in record.layers)
        return total


class HeadscopeService:
    """Answers requests; safe to share between threads.

    All methods raise only `HeadscopeError` and `CancelledError`, besides whatever the caller's own
    progress callback raises.
    """

    def __init__(
        self,
        model_roots: tuple[Path, ...] | None = None,
        *,
        capture_budget_bytes: int = CAPTURE_CACHE_BYTES,
        model_budget_bytes: int = MODEL_CACHE_BYTES,
    ) -> None:
        self._policy = SourcePolicy(roots=model_roots)
        self._models: ByteCache[LoadedModel] = ByteCache(model_budget_bytes, lambda m: m.nbytes)
        self._captures: ByteCache[_Held] = ByteCache(capture_budget_bytes, lambda h: h.nbytes)
        self._queue = FairQueue()

    def models(self) -> tuple[ModelInfo, ...]:
        """Returns the embedded models; loads nothing."""
        return tuple(embedded_info(model) for model in CATALOGUE.values())

    def prepare(
        self, ids: tuple[str, ...] = (), *, progress: ProgressCallback | None = None
    ) -> tuple[ModelInfo, ...]:
        """Fetches and converts embedded models (all when none is named) and lists them."""
        for model_id in ids or tuple(CATALOGUE):
            prepare_model(model_id, progress)
        return tuple(m for m in self.models() if not ids or m.id in ids)

    def model_info(
        self, request: ModelRequest, *, progress: ProgressCallback | None = None
    ) -> ModelInfo:
        """Returns the facts of a model, loading it if need be."""
        return self._model(request, progress).info

    def is_cached(self, request: CaptureRequest) -> bool:
        """Tells whether a capture can be answered without running the model."""
        return self._captures.get(request) is not None

    def capture(
        self,
        request: CaptureRequest | None = None,
        *,
        model: nn.Module | None = None,
        tokenizer: Any = None,
        texts: Sequence[str] = (),
        progress: ProgressCallback | None = None,
    ) -> CaptureResult:
        """Returns the capture of a request, from the cache where it is there.

        Args:
            model, tokenizer, texts: instead of a request, a module in memory whose forward takes
                `input_ids`. It is run in evaluation mode, left as it came, and nothing is cached.

        Raises:
            HeadscopeError: whatever stands in the way, in words.
        """
        if request is not None:
            return self._held(request, progress).result
        if model is None or tokenizer is None:
            raise BadInputError(
                "Nothing to capture was named.", "Give a request, or model, tokenizer and texts."
            )
        loaded = wrap_module(model, tokenizer)
        asked = CaptureRequest(ModelRequest(loaded.info.id), tuple(texts))
        _check(asked)
        encoded = [encode(loaded, text) for text in asked.texts]
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            return self._queue.run(
                lambda: self._run(asked, loaded, encoded, progress), _place(progress)
            ).result
        finally:
            for module, training in modes:
                module.training = training

    def head_map(
        self, request: MapRequest, *, progress: ProgressCallback | None = None
    ) -> MapResult:
        """Returns weights of one head, or the mean over heads or layers, exact.

        Raises:
            BadInputError: no such kind, text, layer, head or window.
        """
        held = self._held(request.capture, progress)
        record, result = self._entry(held, request.kind, request.text_index)
        if record.store is None:
            raise InternalError("This capture kept no maps.")
        n_queries, n_keys = len(result.query_tokens), len(result.key_tokens)
        layers = _chosen("layer", request.layer, result.n_layers)
        heads = _chosen("head", request.head, result.n_heads)
        rows = _window("rows", request.rows, n_queries)
        keys = _window("keys", request.keys, n_keys)
        cut = slice(heads.start, heads.stop)
        if len(layers) == 1 and len(heads) == 1:
            weights = record.store.weights(layers.start, cut, rows, keys)[0].cpu().numpy()
        else:
            weights = mean_map(record.store, layers, cut, rows, keys)
        row_index, key_index = range(*rows), range(*keys)
        if request.hide_special:
            shown_q = [q for q in row_index if not result.query_tokens[q].is_special]
            shown_k = [k for k in key_index if not result.key_tokens[k].is_special]
            weights = weights[
                np.ix_([q - rows[0] for q in shown_q], [k - keys[0] for k in shown_k])
            ]
            total = weights.sum(1, keepdims=True)
            weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
            return MapResult(weights, tuple(shown_q), tuple(shown_k))
        return MapResult(weights, tuple(row_index), tuple(key_index))

    def overview(
        self, request: OverviewRequest, *, progress: ProgressCallback | None = None
    ) -> OverviewResult:
        """Returns small pictures of all heads; a cell shows its strongest part.

        Raises:
            BadInputError: no such kind or text.
        """
        held = self._held(request.capture, progress)
        record, result = self._entry(held, request.kind, request.text_index)
        pictures = [layer.overview for layer in record.layers]
        if any(picture is None for picture in pictures):
            raise InternalError("This capture kept no overview.")
        stack = np.stack(cast(list[np.ndarray], pictures))
        exact = stack.shape[2:] == (len(result.query_tokens), len(result.key_tokens))
        if request.hide_special and exact:
            shown_q = [i for i, t in enumerate(result.query_tokens) if not t.is_special]
            shown_k = [i for i, t in enumerate(result.key_tokens) if not t.is_special]
            if shown_q and shown_k:
                stack = stack[:, :, shown_q][:, :, :, shown_k]
                total = stack.astype(np.float32).sum(3, keepdims=True)
                stack = np.divide(
                    stack, total, out=np.zeros(stack.shape, np.float32), where=total > 0
                )
        for axis in (2, 3):
            if stack.shape[axis] > request.size:
                edges = cell_edges(stack.shape[axis], request.size)[:-1].numpy()
                stack = np.maximum.reduceat(stack, edges, axis=axis)
        return OverviewResult(stack.astype(np.float16))

    # --- inside ------------------------------------------------------------------------------

    def _model(self, request: ModelRequest, progress: ProgressCallback | None) -> LoadedModel:
        def waiting() -> None:
            if progress:
                progress(Progress("load"))

        return self._models.compute_once(
            request, lambda: load_model(request, self._policy, progress), waiting
        )

    def _held(self, request: CaptureRequest, progress: ProgressCallback | None) -> _Held:
        place = _place(progress)
        found = self._captures.get(request)
        if found is not None:
            return found
        _check(request)
        loaded = self._model(request.model, progress)
        if loaded.info.input == "audio":
            raise BadInputError(
                f"{loaded.info.id} listens to sound; sound is not read yet.",
                "Pick a model that reads text.",
            )
        encoded = [
            encode(loaded, text, feed=request.feed, truncate=request.truncate)
            for text in request.texts
        ]
        return self._captures.compute_once(
            request,
            lambda: self._queue.run(lambda: self._run(request, loaded, encoded, progress), place),
            lambda: place(0),
        )

    def _run(
        self,
        request: CaptureRequest,
        loaded: LoadedModel,
        encoded: list[EncodedText],
        progress: ProgressCallback | None,
    ) -> _Held:
        info = loaded.info
        n_layers = info.n_layers + 2 * info.n_decoder_layers
        options = CaptureOptions(hold_values=request.hold_values, hold_hidden=request.hold_hidden)
        results: list[AttentionResult] = []
        records: dict[tuple[Kind, int], StackRecord] = {}
        seconds, backend, notes = 0.0, None, [e.note for e in encoded if e.note]
        peak = _peak_bytes(loaded)
        for index, text in enumerate(encoded):
            forecast_or_refuse(loaded, len(text.ids))

            def report(done: float, index: int = index) -> None:
                if progress:
                    total = n_layers * len(encoded)
                    progress(Progress("capture", index * n_layers + done, total))

            try:
                taken, target = self._forward(request, loaded, text, options, report)
            except (MemoryError, torch.OutOfMemoryError) as error:
                raise OutOfMemoryError(
                    f"The memory ran out while {info.id} read {len(text.ids)} tokens.",
                    "Use a shorter text or a smaller model.",
                ) from error
            except RuntimeError as error:
                raise explain(error, info.id) from error
            seconds += taken.seconds
            backend = taken.backend
            for (kind, _), record in taken.records.items():
                queries = text.tokens if kind == "encoder" or target is None else target
                keys = text.tokens if kind != "decoder" or target is None else target
                results.append(
                    assemble(
                        record,
                        index,
                        queries,
                        keys,
                        blocks=request.blocks,
                        top_tokens=_top_tokens(request, loaded, taken),
                    )
                )
                records[kind, index] = record
        assert backend is not None
        result = CaptureResult(
            model=info,
            backend=backend,
            texts=tuple(results),
            seconds=seconds,
            peak_bytes=max(0, _peak_bytes(loaded) - peak),
            held_bytes=sum(r.store.nbytes for r in records.values() if r.store is not None),
            notes=tuple(notes),
        )
        return _Held(result, records)

    def _forward(
        self,
        request: CaptureRequest,
        loaded: LoadedModel,
        text: EncodedText,
        options: CaptureOptions,
        report: Any,
    ) -> tuple[ForwardCapture, tuple[Token, ...] | None]:
        module: Any = loaded.module
        device = next(module.parameters()).device
        inputs = {"input_ids": torch.tensor([text.ids], device=device)}
        target: tuple[Token, ...] | None = None
        if loaded.info.kind == "encoder-decoder":
            target, ids = self._target(request, loaded, inputs["input_ids"])
            inputs["decoder_input_ids"] = torch.tensor([ids], device=device)
        elif loaded.info.kind == "decoder" and not request.top_tokens:
            # The head would make length x vocabulary logits that nobody asked for.
            module = module.base_model
        elif loaded.info.kind == "decoder":
            inputs["logits_to_keep"] = torch.tensor([-1], device=device)
        return capture_forward(module, inputs, options=options, report=report), target

    def _target(
        self, request: CaptureRequest, loaded: LoadedModel, source: torch.Tensor
    ) -> tuple[tuple[Token, ...], list[int]]:
        module: Any = loaded.module
        if request.target is None:
            with torch.inference_mode():
                made = module.generate(
                    source, max_new_tokens=MAX_GENERATED_TOKENS, do_sample=False, num_beams=1
                )
            ids = made[0].tolist()
            return tokens_of(loaded, ids), ids
        read = encode_target(loaded, request.target)
        return read.tokens, list(read.ids)

    def _entry(
        self, held: _Held, kind: Kind | None, text_index: int
    ) -> tuple[StackRecord, AttentionResult]:
        kinds = list(dict.fromkeys(t.kind for t in held.result.texts))
        wanted = kind or kinds[0]
        for result in held.result.texts:
            if (result.kind, result.text_index) == (wanted, text_index):
                return held.records[wanted, text_index], result
        n_texts = 1 + max(t.text_index for t in held.result.texts)
        raise BadInputError(
            f"There is no {wanted} attention of text {text_index} here.",
            f"Kinds: {', '.join(kinds)}; texts: 0 to {n_texts - 1}.",
        )


def _place(progress: ProgressCallback | None) -> Callable[[int], None]:
    """Returns what tells a waiting person their place in the queue."""

    def tell(number: int) -> None:
        if progress:
            progress(Progress("wait", place=number))

    return tell


def _check(request: CaptureRequest) -> None:
    if not request.texts and request.audio is None:
        raise BadInputError("No text was given.", "Type a sentence, or pick an example.")
    if len(request.texts) > MAX_TEXTS:
        raise BadInputError(
            f"{len(request.texts)} texts were given; at most {MAX_TEXTS} are taken at once.",
            "Split them.",
        )


def _chosen(name: str, index: int | None, count: int) -> range:
    if index is None:
        return range(count)
    if not 0 <= index < count:
        raise BadInputError(f"There is no {name} {index}.", f"{name}s are 0 to {count - 1}.")
    return range(index, index + 1)


def _window(name: str, window: tuple[int, int] | None, count: int) -> tuple[int, int]:
    if window is None:
        return (0, count)
    start, stop = window
    if not 0 <= start < stop <= count:
        raise BadInputError(
            f"The window {start} to {stop} of {name} does not fit.", f"It must lie in 0 to {count}."
        )
    return window


def _top_tokens(
    request: CaptureRequest, loaded: LoadedModel, taken: ForwardCapture
) -> tuple[tuple[str, float], ...]:
    logits = getattr(taken.outputs, "logits", None)
    if not request.top_tokens or loaded.info.kind != "decoder" or logits is None:
        return ()
    best = logits[0, -1].float().softmax(-1).topk(min(request.top_tokens, logits.shape[-1]))
    names = [tokens_of(loaded, [int(i)])[0].text for i in best.indices]
    return tuple(zip(names, best.values.tolist(), strict=True))


def forecast_bytes(loaded: LoadedModel, n_tokens: int) -> int:
    """Returns how much memory a capture of a text will take beyond the loaded model, roughly.

    Kept q, k and log-sum-exp of all layers, the hidden states and widest activations of one layer
    in the model's dtype, the pooled pictures, and the tiles.
    """
    info = loaded.info
    width = 4 if info.dtype == "fp32" else 2
    n_layers = info.n_layers + 2 * info.n_decoder_layers
    kept = n_layers * n_tokens * (info.n_heads + info.n_kv_heads) * info.head_dim * width
    lse = n_layers * n_tokens * info.n_heads * 4
    activations = 16 * n_tokens * info.d_model * width
    pictures = n_layers * info.n_heads * min(n_tokens, 256) ** 2 * 2
    tiles = 3 * 4 * 1024**2 * max(1, n_tokens // 2048) + 8 * info.n_heads * n_tokens * 4 * 16
    return int(kept + lse + activations + pictures + tiles)


def forecast_or_refuse(loaded: LoadedModel, n_tokens: int) -> None:
    """Raises OutOfMemoryError when a capture would not fit into what is free now."""
    need = forecast_bytes(loaded, n_tokens)
    if loaded.info.device == "cuda":
        free = torch.cuda.mem_get_info()[0]
    else:
        free = psutil.virtual_memory().available - MIN_FREE_BYTES
    if need > free:
        raise OutOfMemoryError(
            f"{n_tokens:,} tokens in {loaded.info.id} need about {need / GIB:.1f} GiB; "
            f"{max(free, 0) / GIB:.1f} GiB are free.",
            "Use a shorter text, a smaller model or a 16-bit dtype.",
        )


def _peak_bytes(loaded: LoadedModel) -> int:
    if loaded.info.device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


__all__ = ["HeadscopeError", "HeadscopeService"]
