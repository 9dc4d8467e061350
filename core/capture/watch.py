"""Backends "hook" and "tap": watch a module's attention exactly as it came, whole rows.

`hooked` asks a transformers model for its own eager maps and drops each one after its figures are
taken, so that one layer's maps are in memory at a time. `tapped` watches the softmax and fused
attention calls of any module. Nothing is substituted; masks, dropout and a softmax over the wrong
axis stay as they are, which is what a judgement must look at. Both need memory for whole maps.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from core.capture.record import Recorder, Reporting
from core.capture.statistics import HeadStatistics
from core.capture.store import MapStore
from core.capture.streaming import HIDDEN_SCORE, Tile, rows_per_tile
from core.capture.sums import TINY
from core.capture.visibility import Block, CausalMask, Mask
from core.errors import TooLargeError


def has_eager_attention(model: nn.Module) -> bool:
    """Tells whether a model may return its own maps (a run must still confirm it)."""
    return isinstance(model, PreTrainedModel)


def expected_mask(
    model: nn.Module, kind: str, layer: int, n_queries: int, n_keys: int
) -> Mask | None:
    """Returns the visibility a layer should have by its kind, whatever mask the module built."""
    if kind != "decoder":
        return None
    device = next(model.parameters()).device
    return CausalMask(n_keys - n_queries, device, _window(getattr(model, "config", None), layer))


def _window(config: Any, layer: int) -> int | None:
    """Returns how many keys a layer of a windowed decoder sees, None for all."""
    names = getattr(config, "layer_types", None)
    if names is not None:
        return config.sliding_window if names[layer] == "sliding_attention" else None
    names = getattr(config, "attention_layers", None)  # GPT-Neo
    if names is not None:
        return config.window_size if names[layer] == "local" else None
    used = getattr(config, "use_sliding_window", True)
    return getattr(config, "sliding_window", None) if used else None


def record_maps(
    recorder: Recorder, module: nn.Module | None, maps: Tensor, mask: Mask | None = None
) -> None:
    """Records the weights of one attention call.

    Args:
        maps: [batch, head, query, key], rows sum to 1.
        mask: visibility; None takes what the stack's kind should have.

    Raises:
        TooLargeError: the kept maps would pass the budget.
    """
    n_batch, n_heads, n_queries, n_keys = maps.shape
    kind = recorder.kind_of(module)
    recorder.check_shape(module, kind, n_batch, n_queries, n_keys)
    layer = recorder.next_layer(kind)
    options = recorder.options
    mask = mask or expected_mask(recorder.model, kind, layer, n_queries, n_keys)
    for text, ((q0, q1), (k0, k1)) in enumerate(recorder.spans[kind]):
        record = recorder.record(kind, text, n_heads, n_heads)
        visibility = recorder.visibility(mask, kind, text, maps.device)
        weights = maps[text, :, q0:q1, k0:k1].float()
        step = min(options.tile_rows or rows_per_tile(n_heads, k1 - k0), q1 - q0)
        statistics = HeadStatistics(
            n_heads,
            visibility,
            options.statistics,
            is_self_attention=kind != "cross",
            tile_rows=step,
        )
        listener = Reporting(statistics, recorder, text, n_batch)
        for r0 in range(0, q1 - q0, step):
            r1 = min(r0 + step, q1 - q0)
            block = visibility.block(r0, r1)
            tile = _tile((r0, r1), block, weights[:, r0:r1, slice(*block.keys)].contiguous())
            # The log of a weight below the smallest normal number is not known.
            too_small = (tile.weights < TINY) & (tile.scores > HIDDEN_SCORE)
            statistics.unknown_logs |= too_small.flatten(1).any(1)
            listener.add_tile(tile)
        record.layers.append(statistics.close())
        record.integrity.append(_integrity(maps[text], (q0, q1), (k0, k1), visibility.mask))
        record.visibilities.append(visibility)
        record.sink_masses.append(None)
        record.output_norms.append(None)
        if options.keep_maps:
            if record.store is None:
                record.store = MapStore()
            assert isinstance(record.store, MapStore)
            record.store.maps.append(weights.cpu().clone())
            if record.store.nbytes > options.map_budget_bytes:
                raise TooLargeError(
                    f"Whole maps of {q1 - q0} tokens take more than "
                    f"{options.map_budget_bytes / 2**30:.1f} GiB in this model, whose attention "
                    "can only be watched.",
                    "Use a shorter text.",
                )


def _tile(rows: tuple[int, int], block: Block, weights: Tensor) -> Tile:
    """Returns a tile of weights whose scores are their logs.

    A weight of 0 on a visible key counts as the smallest normal number.
    """
    logs = weights.clamp_min(TINY).log_()
    if block.hidden is not None:
        c0, c1 = block.masked
        logs[:, :, c0:c1].masked_fill_(block.hidden & (weights[:, :, c0:c1] == 0), HIDDEN_SCORE)
    none = weights.new_zeros(weights.shape[:2])
    return Tile(rows, block, weights, logs, none, weights.amax(-1))


def _integrity(
    maps: Tensor, queries: tuple[int, int], keys: tuple[int, int], mask: Mask | None
) -> dict[str, Tensor]:
    """Returns integrity figures [head] from the whole rows of one text, padding keys included."""
    rows = maps[:, slice(*queries)].double()
    sums = rows.sum(-1)
    inside = rows[:, :, slice(*keys)]
    padding = (sums - inside.sum(-1)).clamp_min(0).amax(1)
    future = torch.zeros_like(padding)
    if isinstance(mask, CausalMask):
        allowed = CausalMask(mask.offset, mask.device).visible(0, queries, keys)
        assert allowed is not None
        future = inside.masked_fill(allowed, 0).sum(-1).amax(1)
    return {
        "row_sum_error": (sums - 1).abs().amax(1).cpu(),
        "column_sum_error": (inside.sum(1) - 1).abs().amax(1).cpu(),
        "future_leak": future.cpu(),
        "padding_leak": padding.cpu(),
    }


@contextmanager
def hooked(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Records the eager maps that modules named "...Attention" return, and frees them."""
    before = None
    handles = []
    seen: set[int] = set()

    def take(module: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, tuple):
            return None
        for i, item in enumerate(output):
            if not isinstance(item, Tensor) or item.ndim != 4 or item.numel() == 0:
                continue
            if id(item) in seen or not _is_map(item):
                continue
            record_maps(recorder, module, item)
            empty = item.new_zeros(1)
            seen.add(id(empty))
            return (*output[:i], empty, *output[i + 1 :])
        return None

    for module in model.modules():
        if "Attention" in type(module).__name__:
            handles.append(module.register_forward_hook(take))
    if isinstance(model, PreTrainedModel):
        before = model.config._attn_implementation
        model.set_attn_implementation("eager")
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        if before is not None and isinstance(model, PreTrainedModel):
            model.set_attn_implementation(before)


def _is_map(item: Tensor) -> bool:
    sums = item.float().sum(-1)
    return bool(((sums - 1).abs() < 0.02).float().mean() > 0.5)


_attention_body = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
"""torch's attention of nn.MultiheadAttention, less the question whether a mode wants to see it:
asked again inside the mode, it would call itself without end."""


class _Tap(TorchFunctionMode):
    """Sees softmax and fused attention calls of a module's forward."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.modules: list[nn.Module] = []
        self.inside_fused = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        arguments = dict(kwargs or {})
        if func is F.multi_head_attention_forward:
            # The mode is off inside its own handler: switch it on again to see what is nested.
            with self:
                return _attention_body(*args, **arguments)
        output = func(*args, **arguments)
        if func in (F.softmax, torch.softmax, Tensor.softmax):
            self._record(output)
        elif func is F.scaled_dot_product_attention:
            self._record(fused_weights(*args, **arguments))
        return output

    def _record(self, weights: Tensor) -> None:
        n_texts = len(next(iter(self.recorder.spans.values())))
        if weights.ndim == 3 and weights.shape[0] % n_texts == 0:
            weights = weights.view(n_texts, -1, *weights.shape[1:])
        if weights.ndim != 4:
            return
        module = self.modules[-1] if self.modules else None
        kind = self.recorder.kind_of(module)
        (_, q1), (_, k1) = max(self.recorder.spans[kind])
        if weights.shape[-2] < q1 or weights.shape[-1] < k1:
            return
        record_maps(self.recorder, module, weights)


def fused_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Returns the weights [batch, head, query, key] of a fused attention call, float32.

    Arguments are those of torch's scaled_dot_product_attention.
    """
    query, key = query.float(), key.float()
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.transpose(-1, -2)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    n_queries, n_keys = scores.shape[-2:]
    if is_causal:
        future = torch.ones(n_queries, n_keys, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    # A row that sees nothing is 0, as in the fused kernels, not NaN.
    return torch.softmax(scores, -1).nan_to_num(0.0)


@contextmanager
def tapped(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Records softmax and fused attention calls made while the block runs."""
    tap = _Tap(recorder)

    def enter(module: nn.Module, args: Any) -> None:
        tap.modules.append(module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        tap.modules.pop()

    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, always_call=True))
    # The fused encoder layer shows none of its attention to Python.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with tap:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()
