"""The only door: pages, the command line and notebooks ask here, and only here.

It joins models, the capture engine and the cache: equal requests are computed once, one piece of
work is on the device at a time, and memory is forecast before a model runs.
"""

import dataclasses
import inspect
import logging
import resource
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from core.attribution.weighting import overlap
from core.cache import ByteCache, FairQueue
from core.capture.assemble import assemble
from core.capture.engine import ForwardCapture, capture_forward
from core.capture.record import CaptureOptions, StackRecord
from core.capture.row_sums import compile_loops
from core.capture.store import MapStore, QueryKeyStore
from core.capture.sums import cell_edges
from core.errors import BadInputError, HeadscopeError, InternalError, OutOfMemoryError
from core.home import spill_folder
from core.joining import join_weights
from core.limits import (
    CAPTURE_CACHE_BYTES,
    GIB,
    MAX_BATCH_TOKENS,
    MAX_TEXTS,
    MIN_FREE_BYTES,
    MODEL_CACHE_BYTES,
    PICTURE_CACHE_BYTES,
    SPILL_BYTES,
)
from core.maps import Axis, axis_of, build_map
from core.models.audio import EncodedSound, encode_sound
from core.models.catalogue import CATALOGUE
from core.models.loading import LoadedModel, embedded_info, explain, load_model, wrap_module
from core.models.prepare import prepare_model
from core.models.sources import SourcePolicy
from core.models.tokens import (
    EncodedText,
    encode,
    encode_target,
    generate_target,
    padded,
    tokens_of,
)
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
)

log = logging.getLogger(__name__)


Source = EncodedText | EncodedSound


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
            total += 0 if record.hidden is None else record.hidden.nbytes
        return total

    def spill(self) -> bool:
        """Moves q, k, maps, pictures and hidden states to disk; returns whether it could.

        The files are deleted as soon as they are mapped: they stay readable until the capture is
        let go or the process ends, however it ends, and then their room is free.
        """
        # What is on a GPU must meet its masks there.
        if self.result.model.device != "cpu":
            return False
        folder = spill_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for record in self.records.values():
                if isinstance(record.store, QueryKeyStore):
                    with tempfile.NamedTemporaryFile(dir=folder) as file:
                        record.store.spill(Path(file.name))
                _map_rest(record, folder)
        except (OSError, SafetensorError) as error:
            log.warning("A capture could not be moved to %s and is let go: %s", folder, error)
            return False
        return True


def _map_rest(record: StackRecord, folder: Path) -> None:
    """Replaces pictures, whole maps and hidden states of a record by mapped ones."""
    kept = {f"overview.{i}": layer.overview for i, layer in enumerate(record.layers)}
    tensors = {name: torch.from_numpy(a) for name, a in kept.items() if a is not None}
    maps = record.store.maps if isinstance(record.store, MapStore) else []
    tensors |= {f"map.{i}": weights.contiguous() for i, weights in enumerate(maps)}
    if record.hidden is not None:
        tensors["hidden"] = record.hidden.contiguous()
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        save_file(tensors, file.name)
        mapped = load_file(file.name)
    for i, layer in enumerate(record.layers):
        if layer.overview is not None:
            picture = mapped[f"overview.{i}"].numpy()
            record.layers[i] = dataclasses.replace(layer, overview=picture)
    maps[:] = [mapped[f"map.{i}"] for i in range(len(maps))]
    record.hidden = mapped.get("hidden")


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
        spill_budget_bytes: int = SPILL_BYTES,
    ) -> None:
        self._policy = SourcePolicy(roots=model_roots)
        self._models: ByteCache[LoadedModel] = ByteCache(model_budget_bytes, lambda m: m.nbytes)
        self._captures: ByteCache[_Held] = ByteCache(
            capture_budget_bytes,
            lambda held: held.nbytes,
            spill=_Held.spill,
            spill_budget_bytes=spill_budget_bytes,
        )
        self._pictures: ByteCache[MapResult] = ByteCache(
            PICTURE_CACHE_BYTES, lambda picture: picture.weights.nbytes
        )
        self._queue = FairQueue()

    def models(self) -> tuple[ModelInfo, ...]:
        """Returns the embedded models; loads nothing."""
        return tuple(embedded_info(model) for model in CATALOGUE.values())

    def prepare(
        self, ids: tuple[str, ...] = (), *, progress: ProgressCallback | None = None
    ) -> tuple[ModelInfo, ...]:
        """Fetches and converts embedded models (all when none is named) and lists them.

        Compiles what captures need compiled, too.
        """
        for model_id in ids or tuple(CATALOGUE):
            prepare_model(model_id, progress)
        compile_loops()
        return tuple(m for m in self.models() if not ids or m.id in ids)

    def model_info(
        self, request: ModelRequest, *, progress: ProgressCallback | None = None
    ) -> ModelInfo:
        """Returns the facts of a model, loading it if need be."""
        return self._model(request, progress).info

    def is_cached(self, request: CaptureRequest) -> bool:
        """Tells whether a capture can be answered without running the model."""
        return self._captures.get(_key(request)) is not None

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
        encoded = _encode(asked, loaded)
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            return self._queue.run(
                lambda: self._run(asked, loaded, encoded, progress), _waiting(progress)
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
        store = record.store
        if store is None:
            raise InternalError("This capture kept no maps.")

        def report(share: float) -> None:
            if progress is not None:
                progress(Progress("maps", share, 1.0))

        def build() -> MapResult:
            axes = _axes(request, held.result, result)
            return build_map(store, result, request, axes, report)

        if request.cells is None:
            return build()
        return self._pictures.compute_once(
            (_key(request.capture), request), build, _waiting(progress)
        )

    def overlap(self, request: MapRequest, *, progress: ProgressCallback | None = None) -> float:
        """Returns how much of a weighted map lies where the raw weights lie, 0..1.

        Raises:
            BadInputError: as for `head_map`.
        """
        raw = dataclasses.replace(request, weighting="raw")
        maps = [self.head_map(asked, progress=progress) for asked in (request, raw)]
        return overlap(maps[0].weights, maps[1].weights)

    def joined(self, request: MapRequest) -> AttentionResult:
        """Returns the attention of a map request with units in the place of its tokens.

        Raises:
            BadInputError: no such kind or text.
        """
        held = self._held(request.capture, None)
        _, result = self._entry(held, request.kind, request.text_index)
        queries, keys = _axes(request, held.result, result)
        return dataclasses.replace(result, query_tokens=queries.tokens, key_tokens=keys.tokens)

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
        queries, keys = _axes(request, held.result, result)
        if exact and queries.ranges and keys.ranges:
            stack = join_weights(stack, queries.ranges, keys.ranges)
        if request.hide_special and exact:
            shown_q = [i for i, t in enumerate(queries.tokens) if not t.is_special]
            shown_k = [i for i, t in enumerate(keys.tokens) if not t.is_special]
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
        return self._models.compute_once(
            request,
            lambda: load_model(request, self._policy, progress),
            _waiting(progress, "load"),
        )

    def _held(self, request: CaptureRequest, progress: ProgressCallback | None) -> _Held:
        key, waiting = _key(request), _waiting(progress)
        found = self._captures.get(key)
        if found is not None:
            return found
        _check(request)
        loaded = self._model(request.model, progress)
        sources = _encode(request, loaded)
        return self._captures.compute_once(
            key,
            lambda: self._queue.run(lambda: self._run(request, loaded, sources, progress), waiting),
            waiting,
        )

    def _run(
        self,
        request: CaptureRequest,
        loaded: LoadedModel,
        sources: Sequence[Source],
        progress: ProgressCallback | None,
    ) -> _Held:
        info = loaded.info
        n_layers = info.n_layers + 2 * info.n_decoder_layers
        results: list[AttentionResult] = []
        records: dict[tuple[Kind, int], StackRecord] = {}
        seconds, n_done, backend = 0.0, 0, None
        peak = _peak_bytes(loaded)
        from_caller: list[BaseException] = []
        for batch in _batches(request, loaded, [len(source.tokens) for source in sources]):

            def report(done: float, before: int = n_done, size: int = len(batch)) -> None:
                if progress is None:
                    return
                total = n_layers * len(sources)
                try:
                    progress(Progress("capture", before * n_layers + done * size, total))
                except BaseException as error:
                    from_caller.append(error)
                    raise

            read = [sources[index] for index in batch]
            try:
                taken, targets = _forward(request, loaded, read, report)
            except HeadscopeError:
                raise
            except Exception as error:
                # Only what the model raised is ours to put into words.
                if any(error is raised for raised in from_caller):
                    raise
                log.exception("The model failed")
                raise explain(error, info.id) from error
            seconds += taken.seconds
            n_done += len(batch)
            backend = taken.backend
            top_tokens = _top_tokens(request, loaded, taken)
            for (kind, place), record in taken.records.items():
                tokens = read[place].tokens
                target = targets[place].tokens if targets else tokens
                results.append(
                    assemble(
                        record,
                        batch[place],
                        tokens if kind == "encoder" else target,
                        target if kind == "decoder" else tokens,
                        blocks=request.blocks,
                        top_tokens=top_tokens,
                    )
                )
                records[kind, batch[place]] = record
        assert backend is not None
        results.sort(key=lambda result: result.text_index)
        result = CaptureResult(
            model=info,
            backend=backend,
            texts=tuple(results),
            seconds=seconds,
            peak_bytes=max(0, _peak_bytes(loaded) - peak),
            held_bytes=sum(r.store.nbytes for r in records.values() if r.store is not None),
            notes=tuple(source.note for source in sources if source.note),
        )
        return _Held(result, records)

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


def _waiting(
    progress: ProgressCallback | None, stage: Literal["load", "wait"] = "wait"
) -> Callable[[int], None]:
    """Returns what tells a waiting person their place in the line, 0 when there is none."""

    def tell(place: int) -> None:
        if progress:
            progress(Progress(stage, place=place))

    return tell


def _key(request: CaptureRequest) -> Hashable:
    """Returns what a capture is kept under: a sound file may change under its name."""
    try:
        found = Path(request.audio).stat() if request.audio is not None else None
    except (OSError, ValueError):
        found = None
    return request if found is None else (request, found.st_mtime_ns, found.st_size)


def _encode(request: CaptureRequest, loaded: LoadedModel) -> Sequence[Source]:
    """Returns what the model reads; every limit is checked here, before it runs."""
    info = loaded.info
    if info.input == "audio":
        if request.texts or request.audio is None:
            raise BadInputError(
                f"{info.id} listens to sound; it reads no text.",
                "Give a WAV file and no text (--audio on the command line); what its decoder "
                "reads is the target.",
            )
        return [encode_sound(loaded, Path(request.audio), truncate=request.truncate)]
    if request.audio is not None:
        raise BadInputError(
            f"{info.id} reads text; it does not listen to sound.",
            "Give a text, or pick a model that listens (whisper-tiny-en).",
        )
    return [
        encode(loaded, text, request.feed, truncate=request.truncate, beyond=request.beyond)
        for text in request.texts
    ]


def _batches(
    request: CaptureRequest, loaded: LoadedModel, lengths: Sequence[int]
) -> Iterator[list[int]]:
    """Yields which texts go through the model together, each batch when the last one is done.

    Texts of like length stand together, so that little padding is computed.

    Raises:
        OutOfMemoryError: a text does not fit into what is free by then.
    """
    taken = inspect.signature(loaded.module.forward).parameters
    # Modules of other makes may mean anything by a mask. Of next tokens only one text's are kept.
    can_batch = hasattr(loaded.module, "main_input_name") and "attention_mask" in taken
    if loaded.info.kind == "encoder-decoder":
        can_batch &= "decoder_attention_mask" in taken
    can_batch &= not request.top_tokens or loaded.info.kind != "decoder"
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        size, longest = len(batch) + 1, lengths[index]
        fits = forecast_bytes(loaded, longest, size) <= _free_bytes(loaded)
        if batch and not (can_batch and fits and size * longest <= MAX_BATCH_TOKENS):
            yield batch
            batch = []
        if not batch:
            forecast_or_refuse(loaded, longest)
        batch.append(index)
    yield batch


def _forward(
    request: CaptureRequest,
    loaded: LoadedModel,
    sources: Sequence[Source],
    report: Callable[[float], None],
) -> tuple[ForwardCapture, Sequence[EncodedText]]:
    """Runs the model once; also returns what an encoder-decoder's decoder read for each source."""
    module: Any = loaded.module
    info = loaded.info
    inputs: dict[str, Tensor] = {}
    lengths: dict[str, int] | None = None
    texts = [source for source in sources if isinstance(source, EncodedText)]
    if texts:
        inputs |= padded(loaded, texts)
        alone = [padded(loaded, [text])["input_ids"] for text in texts]
    else:
        (sound,) = cast(Sequence[EncodedSound], sources)
        inputs |= sound.inputs
        alone = list(sound.inputs.values())
        lengths = dict.fromkeys(("main", "encoder"), len(sound.tokens))
    targets: list[EncodedText] = []
    if info.kind == "encoder-decoder":
        if request.target is not None:
            targets = [encode_target(loaded, request.target)] * len(sources)
        else:
            targets = [generate_target(loaded, source) for source in alone]
        inputs |= padded(loaded, targets, "decoder_")
        if lengths is not None:
            lengths["decoder"] = len(targets[0].ids)
    elif info.kind == "decoder" and not request.top_tokens:
        # The head would make length x vocabulary logits that nobody asked for.
        module = module.base_model
    elif info.kind == "decoder":
        inputs["logits_to_keep"] = torch.tensor([-1], device=inputs["input_ids"].device)
    options = CaptureOptions(hold_values=request.hold_values, hold_hidden=request.hold_hidden)
    taken = capture_forward(module, inputs, options=options, report=report, lengths=lengths)
    return taken, targets


def _check(request: CaptureRequest) -> None:
    if not request.texts and request.audio is None:
        raise BadInputError("No text was given.", "Type a sentence, or pick an example.")
    if len(request.texts) > MAX_TEXTS:
        raise BadInputError(
            f"{len(request.texts)} texts were given; at most {MAX_TEXTS} are taken at once.",
            "Split them.",
        )


def _axes(
    request: MapRequest | OverviewRequest, held: CaptureResult, result: AttentionResult
) -> tuple[Axis, Axis]:
    """Returns both axes of a map, of tokens or of the units they are joined to."""
    capture = request.capture
    source = capture.texts[result.text_index] if capture.texts else ""
    target = capture.target or "" if held.model.kind == "encoder-decoder" else source
    queries = source if result.kind == "encoder" else target
    keys = target if result.kind == "decoder" else source
    return (
        axis_of(queries, result.query_tokens, request.joining),
        axis_of(keys, result.key_tokens, request.joining),
    )


def _top_tokens(
    request: CaptureRequest, loaded: LoadedModel, taken: ForwardCapture
) -> tuple[tuple[str, float], ...]:
    logits = getattr(taken.outputs, "logits", None)
    if not request.top_tokens or loaded.info.kind != "decoder" or logits is None:
        return ()
    best = logits[0, -1].float().softmax(-1).topk(min(request.top_tokens, logits.shape[-1]))
    names = [tokens_of(loaded, [int(i)])[0].text for i in best.indices]
    return tuple(zip(names, best.values.tolist(), strict=True))


def forecast_bytes(loaded: LoadedModel, n_tokens: int, n_texts: int = 1) -> int:
    """Returns how much memory a capture of texts will take beyond the loaded model, roughly.

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
    return int(n_texts * (kept + lse + activations + pictures) + tiles)


def forecast_or_refuse(loaded: LoadedModel, n_tokens: int) -> None:
    """Raises OutOfMemoryError when a capture would not fit into what is free now."""
    need, free = forecast_bytes(loaded, n_tokens), _free_bytes(loaded)
    if need > free:
        raise OutOfMemoryError(
            f"{n_tokens:,} tokens in {loaded.info.id} need about {need / GIB:.1f} GiB; "
            f"{max(free, 0) / GIB:.1f} GiB are free.",
            "Use a shorter text, a smaller model or a 16-bit dtype.",
        )


def _free_bytes(loaded: LoadedModel) -> int:
    if loaded.info.device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return int(psutil.virtual_memory().available - MIN_FREE_BYTES)


def _peak_bytes(loaded: LoadedModel) -> int:
    if loaded.info.device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


__all__ = ["HeadscopeError", "HeadscopeService"]
