"""Requests and results: what crosses the service's door.

All are frozen and picklable, made of plain values and read-only numpy arrays, so that a later
backend can send them over a network. Undefined numbers are NaN here and null in JSON. Axis order
everywhere: layer, head, query, key. Indices are 0-based.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
Kind = Literal["encoder", "decoder", "cross"]
Backend = Literal["interface", "hook", "tap"]
Feed = Literal["typed", "chat", "prefix"]
Dtype = Literal["auto", "fp32", "fp16", "bf16"]
Device = Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class Progress:
    """Where a piece of long work stands.

    Attributes:
        stage: what is being done.
        done: steps finished, 0..total; 0 of 0 when not known.
        total: steps in all (layers for a capture).
        place: place in the queue for the device, 1 = next; 0 when not waiting.
    """

    stage: Literal["fetch", "load", "wait", "capture", "maps"]
    done: float = 0
    total: float = 0
    place: int = 0


ProgressCallback = Callable[[Progress], None]
"""Called often from the thread that asked. It may raise CancelledError to stop the work."""


@dataclass(frozen=True)
class ModelRequest:
    """Which model, and how to run it.

    Attributes:
        model: embedded id, hub id, or folder.
        revision: hub revision; None for the default branch.
        dtype: "auto" is fp32 for small models and on the CPU, the checkpoint's own 16-bit dtype
            for large ones on a GPU.
        device: "auto" is CUDA, then MPS, then the CPU.
    """

    model: str
    revision: str | None = None
    dtype: Dtype = "auto"
    device: Device = "auto"


@dataclass(frozen=True)
class ModelInfo:
    """Facts about a model, read from its config and, once loaded, from its weights.

    Attributes:
        kind: encoder, decoder or encoder-decoder.
        n_layers: of the encoder, or of the decoder where there is no encoder.
        n_decoder_layers: of the decoder of an encoder-decoder, else 0.
        attention: in words, per kind of layer ("full", "sliding 4096 on 13 of 26 layers").
        norm: "pre" or "post" or "" when not known.
        position: position scheme ("learned", "rotary", "relative bias", "ALiBi", "sinusoidal",
            "none", "" when not known).
        max_tokens: longest text, None when there is no limit; max_tokens_source says whose limit.
        prefix: text the model's makers put in front of every input ("query: "), "" when none.
        note: one sentence for the model card, e.g. that the weights were quantised at the source.
        random_weights: True when (nearly) no weight came from a file.
        dtype, device: as loaded; "" when not loaded.
        ready: False when the files must be fetched first.
        has_offsets: the tokenizer can point back into the text (fast tokenizer).
        input: "text" or "audio".
    """

    id: str
    family: str
    kind: Literal["encoder", "decoder", "encoder-decoder"]
    n_layers: int
    n_decoder_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_model: int
    vocab_size: int
    parameters: int
    licence: str
    languages: str
    ready: bool
    attention: str = ""
    norm: str = ""
    position: str = ""
    max_tokens: int | None = None
    max_tokens_source: str = ""
    prefix: str = ""
    has_chat_template: bool = False
    has_offsets: bool = True
    note: str = ""
    revision: str = ""
    random_weights: bool = False
    dtype: str = ""
    device: str = ""
    input: Literal["text", "audio"] = "text"

    @property
    def reads_beyond(self) -> bool:
        """Whether it can read past its limit: rotary positions have no table that ends."""
        return self.kind == "decoder" and self.position == "rotary"

    def to_dict(self) -> dict[str, Any]:
        """Returns the entry of `python -m core models --json`."""
        keys = ("id", "family", "n_layers", "n_heads", "n_kv_heads", "head_dim", "parameters")
        return {k: getattr(self, k) for k in (*keys, "licence", "languages", "ready")}


@dataclass(frozen=True)
class Token:
    """One token as people read it.

    Attributes:
        text: display string: specials as text, blanks and newlines visible, byte pieces readable.
        offset: [start, end) in code points of the text as typed; None for specials and
            generated tokens and where the tokenizer has no offsets.
    """

    id: int
    text: str
    offset: tuple[int, int] | None
    is_special: bool = False


@dataclass(frozen=True)
class CaptureRequest:
    """What to run through a model and what to keep. Equal requests are computed once.

    Attributes:
        texts: one or more texts; each keeps its own length (padding is never counted).
        target: what the decoder of an encoder-decoder reads; None lets it generate.
        audio: path of a WAV file for models that listen.
        feed: as typed, through the chat template, or with the model's own prefix.
        truncate: cut to the model's limit instead of refusing.
        beyond: read past the limit instead of refusing, where a decoder's positions are rotary and
            so go on; the model was not trained there.
        hold_values: keep v too (norm-weighted views need it).
        hold_hidden: keep hidden states too (polysemy needs them).
        blocks: also run the second pass for block_coverage.
        top_tokens: how many next tokens of a decoder to name (0: no vocabulary logits at all).
    """

    model: ModelRequest
    texts: tuple[str, ...]
    target: str | None = None
    audio: str | None = None
    feed: Feed = "typed"
    truncate: bool = False
    beyond: bool = False
    hold_values: bool = False
    hold_hidden: bool = False
    blocks: bool = False
    top_tokens: int = 0


@dataclass(frozen=True)
class AttentionResult:
    """Attention of one text in one stack of layers: everything but the maps themselves.

    Attributes:
        text_index: which text of the request.
        query_tokens, key_tokens: the two axes of every map (equal but for cross attention).
        metrics: name -> [layer, head]; NaN where undefined.
        pairs: "cosine", "cosine_centred", "kl_nats", "js_bits" -> [layer, head, head].
        js_rows: rows behind js_bits.
        position_bias: [layer, head, key]; NaN for keys that too few queries see.
        special_mass: key index -> [layer, head].
        sink_rate: [layer]; NaN below 32 queries.
        patterns: [layer][head], one word or phrase a head.
        top_tokens: next tokens of a decoder with their probability, best first.
    """

    text_index: int
    kind: Kind
    n_layers: int
    n_heads: int
    n_kv_heads: int
    query_tokens: tuple[Token, ...]
    key_tokens: tuple[Token, ...]
    metrics: Mapping[str, FloatArray]
    pairs: Mapping[str, FloatArray]
    js_rows: int
    position_bias: FloatArray
    special_mass: Mapping[int, FloatArray]
    sink_rate: FloatArray
    patterns: tuple[tuple[str, ...], ...]
    top_tokens: tuple[tuple[str, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the entry of `texts` in the capture contract (without `map`)."""
        return {
            "text_index": self.text_index,
            "kind": self.kind,
            "n_layers": self.n_layers,
            "n_heads": self.n_heads,
            "query_tokens": [t.text for t in self.query_tokens],
            "key_tokens": [t.text for t in self.key_tokens],
            "query_offsets": [_pair(t.offset) for t in self.query_tokens],
            "key_offsets": [_pair(t.offset) for t in self.key_tokens],
            "metrics": {k: to_json(v) for k, v in self.metrics.items()},
            "pairs": {k: to_json(v) for k, v in self.pairs.items()},
            "js_rows": self.js_rows,
            "position_bias": to_json(self.position_bias),
            "special_mass": {str(k): to_json(v) for k, v in self.special_mass.items()},
            "sink_rate": to_json(self.sink_rate),
            "patterns": [list(row) for row in self.patterns],
        }


@dataclass(frozen=True)
class CaptureResult:
    """One capture: who ran, how, and one AttentionResult per text and kind.

    Attributes:
        backend: how attention was taken: "interface" (substituted and streamed), or watched as it
            came by "hook" or "tap".
        notes: sentences people should read (cut text, empty source, ...).
        seconds: wall seconds of the run itself.
        peak_bytes: growth of the process's peak memory in the run (host), or the device's peak.
        held_bytes: q, k, log-sum-exp and whatever else the cache keeps for this capture.
    """

    model: ModelInfo
    backend: Backend
    texts: tuple[AttentionResult, ...]
    seconds: float
    peak_bytes: int
    held_bytes: int
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON of the capture contract."""
        entries = [t.to_dict() for t in self.texts]
        out: dict[str, Any] = {
            "model": self.model.id,
            "revision": self.model.revision,
            "backend": self.backend,
            "dtype": self.model.dtype,
            "device": self.model.device,
            "n_layers": self.texts[0].n_layers,
            "n_heads": self.texts[0].n_heads,
            "n_kv_heads": self.texts[0].n_kv_heads,
            "texts": entries,
            "seconds": self.seconds,
            "peak_bytes": self.peak_bytes,
            "notes": list(self.notes),
        }
        if len(entries) == 1:
            out |= {k: v for k, v in entries[0].items() if k not in out}
            out["tokens"] = entries[0]["query_tokens"]
        if len({t.text_index for t in self.texts}) > 1:
            out["over_texts"] = self.over_texts()
        return out

    def over_texts(self) -> dict[str, dict[str, Any]]:
        """Returns mean and standard deviation of each metric over the texts, [layer][head].

        Texts where the metric is undefined are left out; the sd is that of the texts themselves
        (divided by their number). Encoder-decoders: over the entries of the first entry's kind.
        """
        same = [t for t in self.texts if t.kind == self.texts[0].kind]
        mean: dict[str, Any] = {}
        sd: dict[str, Any] = {}
        for name in same[0].metrics:
            stack = np.stack([np.asarray(t.metrics[name], dtype=np.float64) for t in same])
            defined = ~np.isnan(stack)
            count = np.where(defined.any(0), defined.sum(0), np.nan)
            average = np.where(defined, stack, 0).sum(0) / count
            spread = np.where(defined, (stack - average) ** 2, 0).sum(0) / count
            mean[name], sd[name] = to_json(average), to_json(np.sqrt(spread))
        return {"mean": mean, "sd": sd}


Weighting = Literal["raw", "norm", "rollout"]


@dataclass(frozen=True)
class Joining:
    """How tokens are joined to the units of a map's axes: sum over keys, mean over queries.

    Attributes:
        unit: words of the text (Chinese by a dictionary), or spans that were chosen.
        phrases: the spans, as typed; each is joined wherever it stands. For unit "spans" only.
    """

    unit: Literal["words", "spans"] = "words"
    phrases: tuple[str, ...] = ()


@dataclass(frozen=True)
class MapRequest:
    """Which part of which map; the capture is made first if it is not in the cache.

    Attributes:
        layer, head: index, or None for the mean over that axis.
        rows, keys: [start, stop) windows of queries and keys; None for all.
        hide_special: leave special tokens out of both axes and renormalise the rows.
        weighting: "raw" weights, "norm" (each times the norm of what its key would add to the
            output: ||a f(x)||, Kobayashi et al. 2020), or "rollout" through the layer (Abnar and
            Zuidema 2020; the mean of all heads and the residual stream in equal parts).
        joining: show words or spans instead of tokens; windows and indices then count these.
        cells: pool the map to means over at most so many rows and columns, NaN where all is hidden.
    """

    capture: CaptureRequest
    kind: Kind | None = None
    text_index: int = 0
    layer: int | None = 0
    head: int | None = 0
    rows: tuple[int, int] | None = None
    keys: tuple[int, int] | None = None
    hide_special: bool = False
    weighting: Weighting = "raw"
    joining: Joining | None = None
    cells: int | None = None


@dataclass(frozen=True)
class MapResult:
    """Attention weights [query, key], float32, with the positions (tokens or units) of both axes;
    of a pooled map those where its cells begin.

    Rows of queries that see no key at all are zero.
    """

    weights: NDArray[np.float32]
    query_index: tuple[int, ...]
    key_index: tuple[int, ...]


@dataclass(frozen=True)
class OverviewRequest:
    """All heads of one kind as small pictures.

    Attributes:
        size: largest side in cells; the strongest weight in a cell is kept, so that a thin line
            stays visible.
    """

    capture: CaptureRequest
    kind: Kind | None = None
    text_index: int = 0
    size: int = 48
    hide_special: bool = False
    joining: Joining | None = None


@dataclass(frozen=True)
class OverviewResult:
    """Pooled weights [layer, head, query cell, key cell], float16, 0..1."""

    weights: NDArray[np.float16]


def _pair(offset: tuple[int, int] | None) -> list[int] | None:
    return None if offset is None else list(offset)


def to_json(value: Any) -> Any:
    """Returns arrays as nested lists of Python numbers, with null for NaN and infinity."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f":
            return value.tolist()
        wide = value.astype(np.float64)
        if np.isfinite(wide).all():
            return wide.tolist()
        return to_json(wide.tolist())
    if isinstance(value, list):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
