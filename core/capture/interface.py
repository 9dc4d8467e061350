"""Backend "interface": the model's attention is computed by us, tile by tile, and recorded.

Right for exploring, blind for judging: a mask or a softmax that the model got wrong is repaired by
the substitution. What judges a model uses `core.capture.watch`.
"""

from typing import cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from core.capture.record import Recorder, Reporting, StackRecord
from core.capture.seam import rule_of_text
from core.capture.statistics import HeadStatistics
from core.capture.store import QueryKeyLayer, QueryKeyStore, own
from core.capture.streaming import ScoreRule, rows_per_tile, stream_attention
from core.capture.visibility import Mask


class InterfaceCollector:
    """Computes and records every attention call of one forward pass (see `seam.Collector`)."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._pending: tuple[int, int, list[tuple[StackRecord, Tensor]]] | None = None

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rule: ScoreRule,
        mask: Mask | None,
    ) -> Tensor:
        """Returns the output [batch, query, head, value_dim]."""
        recorder, options = self.recorder, self.recorder.options
        n_batch, n_heads, n_queries, _ = query.shape
        n_kv, n_keys, value_dim = value.shape[1:]
        kind = recorder.kind_of(module)
        recorder.check_shape(module, kind, n_batch, n_queries, n_keys)
        recorder.next_layer(kind)
        output = None
        if n_batch > 1 or recorder.spans[kind][0] != ((0, n_queries), (0, n_keys)):
            output = query.new_zeros(n_batch, n_queries, n_heads, value_dim)
        gram: list[tuple[StackRecord, Tensor]] = []
        for text, ((q0, q1), (k0, k1)) in enumerate(recorder.spans[kind]):
            record = recorder.record(kind, text, n_heads, n_kv)
            visibility = recorder.visibility(mask, kind, text, query.device)
            q, k, v = query[text, :, q0:q1], key[text, :, k0:k1], value[text, :, k0:k1]
            text_rule = rule_of_text(rule, text, slice(q0, q1), slice(k0, k1))
            step = options.tile_rows or rows_per_tile(n_heads, k1 - k0)
            statistics = HeadStatistics(
                n_heads,
                visibility,
                options.statistics,
                is_self_attention=kind != "cross",
                tile_rows=min(step, q1 - q0),
            )
            listener = Reporting(statistics, recorder, text, n_batch)
            streamed = stream_attention(q, k, v, text_rule, visibility, listener, step)
            if output is None:
                output = streamed.output[None]
            else:
                output[text, q0:q1] = streamed.output
            record.layers.append(statistics.close())
            record.visibilities.append(visibility)
            mass = streamed.sink_mass
            record.sink_masses.append(None if mass is None else mass.mean(1).cpu())
            record.output_norms.append(None)
            by_head = streamed.output.float().transpose(0, 1)
            gram.append((record, torch.bmm(by_head.transpose(1, 2), by_head)))
            if options.keep_maps:
                if record.store is None:
                    record.store = QueryKeyStore()
                assert isinstance(record.store, QueryKeyStore)
                kept = own(v) if options.hold_values else None
                record.store.layers.append(
                    QueryKeyLayer(own(q), own(k), streamed.log_sum_exp, text_rule, visibility, kept)
                )
        assert output is not None
        self._pending = (output.data_ptr(), n_heads * value_dim, gram)
        return output

    def watch_projection(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        """Forward pre-hook of linear layers: the one fed with our very output is W_o.

        Found by identity of memory, not by name: names differ in every family.
        """
        if self._pending is None or not args or not isinstance(args[0], Tensor):
            return
        pointer, width, gram = self._pending
        if args[0].data_ptr() != pointer or args[0].shape[-1] != width:
            return
        self._pending = None
        weight = cast(Tensor, module.weight if isinstance(module, Conv1D) else module.weight.T)
        for record, products in gram:
            n_heads = products.shape[0]
            slices = weight.detach().float().reshape(n_heads, -1, weight.shape[1])
            squares = torch.bmm(slices, slices.transpose(1, 2))
            norms = (products.double() * squares.double()).sum((1, 2)).clamp_min(0).sqrt()
            record.output_norms[-1] = norms.cpu()
            if self.recorder.options.hold_values and isinstance(record.store, QueryKeyStore):
                record.store.layers[-1].projection = squares
