"""Where all ways of watching attention write to: one record for each text and stack of layers.

The backends differ in how they get at the weights; naming of layers, spans of the texts inside a
padded batch, statistics, stores and progress are the same for all and live here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from core.capture.statistics import HeadStatistics, LayerStatistics, StatisticsOptions
from core.capture.store import MapStore, QueryKeyStore
from core.capture.streaming import Tile
from core.capture.visibility import Mask, TextVisibility
from core.errors import UnsupportedModelError
from core.results import Kind

Span = tuple[int, int]
CROSS_NAMES = ("encoder_attn", "EncDecAttention", "crossattention", "cross_attn", "cross_attention")


@dataclass(frozen=True)
class CaptureOptions:
    """What a capture computes and keeps.

    Attributes:
        statistics: which figures.
        keep_maps: keep q, k and log-sum-exp (or whole maps, when watching) for later drawing.
        hold_values: keep v too.
        hold_hidden: keep hidden states too.
        tile_rows: query rows of a tile; None chooses.
        map_budget_bytes: most bytes of whole maps a watching backend may keep.
    """

    statistics: StatisticsOptions = field(default_factory=StatisticsOptions)
    keep_maps: bool = True
    hold_values: bool = False
    hold_hidden: bool = False
    tile_rows: int | None = None
    map_budget_bytes: int = 2**30


@dataclass
class StackRecord:
    """One text in one stack of layers.

    Attributes:
        query_span, key_span: where the text lies in the padded batch.
        layers: figures of each layer.
        output_norms: [layer] of [head] Frobenius norms of each head's share of the output
            projection, None where the projection was not recognised.
        sink_masses: [layer] of [head] mean weight on a sink logit, None without one.
        visibilities: [layer], one object where layers share a mask.
        hidden: hidden states [layer + 1, token, d_model] when asked for.
    """

    kind: Kind
    query_span: Span
    key_span: Span
    n_heads: int = 0
    n_kv_heads: int = 0
    layers: list[LayerStatistics] = field(default_factory=list)
    output_norms: list[Tensor | None] = field(default_factory=list)
    sink_masses: list[Tensor | None] = field(default_factory=list)
    integrity: list[dict[str, Tensor]] = field(default_factory=list)
    store: QueryKeyStore | MapStore | None = None
    visibilities: list[TextVisibility] = field(default_factory=list)
    hidden: Tensor | None = None


class Reporting:
    """A listener that passes tiles on and says how far the capture is."""

    def __init__(
        self, statistics: HeadStatistics, recorder: "Recorder", text: int, n_texts: int
    ) -> None:
        self.statistics = statistics
        self.recorder = recorder
        self.text = text
        self.n_texts = n_texts

    def add_tile(self, tile: Tile) -> None:
        """Takes one tile (see `streaming.TileListener`)."""
        self.statistics.add_tile(tile)
        part = tile.rows[1] / self.statistics.n_queries
        self.recorder.report((self.text + part) / self.n_texts)


class Recorder:
    """Numbers the attention calls of one forward pass and keeps a record of each text."""

    def __init__(
        self,
        model: nn.Module,
        spans: Mapping[Kind, list[tuple[Span, Span]]],
        options: CaptureOptions,
        report: Callable[[float], None],
    ) -> None:
        """Args:
        spans: for each kind, (query span, key span) of every text of the batch.
        report: called with the number of layers done, fractions included.
        """
        self.model = model
        self.spans = spans
        self.options = options
        self.report_layers = report
        self.calls = 0
        self.records: dict[tuple[Kind, int], StackRecord] = {}
        self._layer: dict[Kind, int] = {}
        self._visibilities: dict[tuple[object, ...], tuple[Mask | None, TextVisibility]] = {}
        self._names = {id(m): name for name, m in model.named_modules()}
        encoder = None
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            encoder = cast(Any, model).get_encoder()
        self._encoder = {id(m) for m in encoder.modules()} if encoder is not None else set()

    @property
    def main_kind(self) -> Kind:
        """Kind of a model that is not an encoder-decoder."""
        return "decoder" if "decoder" in self.spans else "encoder"

    def kind_of(self, module: nn.Module | None) -> Kind:
        """Returns which stack an attention module belongs to."""
        if module is None or "cross" not in self.spans:
            return self.main_kind
        if id(module) in self._encoder:
            return "encoder"
        name = self._names.get(id(module), "")
        return "cross" if any(word in name for word in CROSS_NAMES) else "decoder"

    def next_layer(self, kind: Kind) -> int:
        """Returns the number of the next attention call of a kind; layers are counted by calls.

        `layer_idx` is None in encoders, and ALBERT calls one module for all layers.
        """
        layer = self._layer.get(kind, -1) + 1
        self._layer[kind] = layer
        self.calls += 1
        return layer

    def check_shape(self, module: nn.Module | None, kind: Kind, batch: int, q: int, k: int) -> None:
        """Raises UnsupportedModelError when the maps are not one N x N map a text."""
        spans = self.spans[kind]
        longest_q = max(s[0][1] for s in spans)
        longest_k = max(s[1][1] for s in spans)
        if batch != len(spans) or q < longest_q or k < longest_k:
            family = type(self.model).__name__
            raise UnsupportedModelError(
                f"{family} does not make an N x N map of each text: its attention came as "
                f"{batch} maps of {q} x {k} for {len(spans)} texts of up to {longest_q} tokens "
                "(windows folded into the batch, or a band).",
                "Pick a model with full attention maps; windowed vision and banded models are "
                "not supported.",
            )

    def record(self, kind: Kind, text: int, n_heads: int, n_kv_heads: int) -> StackRecord:
        """Returns the record of a text in a stack, made at its first layer.

        Raises:
            UnsupportedModelError: the number of heads is not that of the layers before.
        """
        found = self.records.get((kind, text))
        if found is None:
            query_span, key_span = self.spans[kind][text]
            found = StackRecord(kind, query_span, key_span, n_heads, n_kv_heads)
            self.records[kind, text] = found
        if found.n_heads != n_heads:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has layers of {found.n_heads} and of {n_heads} "
                "heads.",
                "Pick a model whose layers all have the same number of heads.",
            )
        return found

    def visibility(
        self, mask: Mask | None, kind: Kind, text: int, device: torch.device
    ) -> TextVisibility:
        """Returns the visibility of a text under a mask, shared by the layers that share it."""
        key = (id(mask), kind, text)
        if key not in self._visibilities:
            (q0, q1), (k0, k1) = self.spans[kind][text]
            made = TextVisibility(mask, text, q0, q1 - q0, k0, k1 - k0, device)
            # The mask is kept beside it: its id must not be given to another object.
            self._visibilities[key] = (mask, made)
        return self._visibilities[key][1]

    def report(self, done: float) -> None:
        """Says how many layers are done; may raise to stop the capture."""
        self.report_layers(self.calls - 1 + done)
