"""One forward pass in, figures and a store of every text out.

`capture_forward` is the only function other packages call. It picks a backend, runs the module once
and makes sure that attention was really seen.
"""

import inspect
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from core.capture.interface import InterfaceCollector
from core.capture.record import CaptureOptions, Recorder, Span, StackRecord
from core.capture.seam import collecting, uses_interface
from core.capture.watch import has_eager_attention, hooked, tapped
from core.errors import UnsupportedModelError
from core.results import Backend, Kind

Report = Callable[[float], None]


@dataclass(frozen=True)
class ForwardCapture:
    """What one forward pass gave.

    Attributes:
        records: (kind, text) -> record, in the order encoder, decoder, cross, then text.
        outputs: the module's own output.
        seconds: wall seconds of the pass.
    """

    backend: Backend
    records: Mapping[tuple[Kind, int], StackRecord]
    outputs: Any
    seconds: float
    calls: int = field(default=0)


def text_spans(mask: Tensor | None, n_texts: int, length: int) -> list[Span]:
    """Returns [start, stop) of each text in a padded batch.

    Raises:
        UnsupportedModelError: a mask with holes.
    """
    if mask is None:
        return [(0, length)] * n_texts
    spans = []
    for row in mask.bool().cpu():
        where = row.nonzero()[:, 0]
        start, stop = int(where[0]), int(where[-1]) + 1
        if stop - start != len(where):
            raise UnsupportedModelError(
                "An attention mask with holes inside a text cannot be captured.",
                "Pad on one side only.",
            )
        spans.append((start, stop))
    return spans


def _input_length(inputs: Mapping[str, Tensor], names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in inputs:
            return int(inputs[name].shape[1])
    return None


def is_causal_model(model: nn.Module) -> bool:
    """Tells whether the model's own kind reads from left to right.

    Decided from the config, never from a mask: a mask may be the fault that is looked for.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL,
    )
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED,
    )

    config = getattr(model, "config", None)
    if config is None or getattr(config, "is_encoder_decoder", False):
        return False
    family = config.model_type
    if getattr(config, "is_decoder", False) or family == "clip_text_model":
        return True
    # XLNet's language model permutes the order; run plainly, every token sees every other.
    return family in CAUSAL and family not in MASKED and family != "xlnet"


def plan_spans(
    model: nn.Module, inputs: Mapping[str, Any], lengths: dict[str, int]
) -> dict[Kind, list[tuple[Span, Span]]]:
    """Returns, for each kind of attention, where each text's queries and keys lie.

    Args:
        lengths: "main" or "encoder" and "decoder" positions as the attention layers see them.
    """
    n_texts = next(v for v in inputs.values() if isinstance(v, Tensor)).shape[0]
    mask = inputs.get("attention_mask")
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        if mask is not None and mask.shape[1] != lengths["encoder"]:
            mask = None
        source = text_spans(mask, n_texts, lengths["encoder"])
        target = text_spans(inputs.get("decoder_attention_mask"), n_texts, lengths["decoder"])
        return {
            "encoder": list(zip(source, source, strict=True)),
            "decoder": list(zip(target, target, strict=True)),
            "cross": list(zip(target, source, strict=True)),
        }
    cache: Any = inputs.get("cache", inputs.get("past_key_values"))
    past = 0 if cache is None else int(cache.get_seq_length())
    lengths = {**lengths, "main": lengths["main"] + past}
    if mask is not None and mask.shape[1] != lengths["main"]:
        # Speech encoders shorten their input: the mask of the frames is theirs to say.
        shorten = getattr(model, "_get_feature_vector_attention_mask", None)
        mask = None if shorten is None else shorten(lengths["main"], mask)
    kind: Kind = "decoder" if is_causal_model(model) else "encoder"
    keys = text_spans(mask, n_texts, lengths["main"])
    # With a cache the queries are the last of the keys.
    queries = [(max(0, start - past), stop - past) for start, stop in keys]
    return {kind: list(zip(queries, keys, strict=True))}


def capture_forward(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    options: CaptureOptions | None = None,
    backend: Backend | None = None,
    report: Report | None = None,
    lengths: dict[str, int] | None = None,
) -> ForwardCapture:
    """Runs the module once on `inputs` and records its attention.

    Args:
        inputs: keyword arguments of the module's forward, a padded batch of texts; with
            a `cache` the maps are those of the new queries over all keys.
        backend: None takes the interface where the family uses it, else the hook, else the tap.
        report: called with layers done; may raise to stop.
        lengths: positions as the attention layers see them, where they are not the inputs' own
            (audio, images).

    Raises:
        UnsupportedModelError: no attention was seen, or it is not an N x N map.
    """
    options = options or CaptureOptions()
    chosen: list[Backend] = [backend] if backend else _candidates(model)
    lengths = lengths or _lengths(inputs)
    spans = plan_spans(model, inputs, lengths)
    for name in chosen:
        recorder = Recorder(model, spans, options, report or (lambda done: None))
        start = time.perf_counter()
        outputs = _run(model, inputs, name, recorder)
        seconds = time.perf_counter() - start
        if recorder.calls:
            order = {kind: i for i, kind in enumerate(spans)}
            records = dict(
                sorted(recorder.records.items(), key=lambda r: (order[r[0][0]], r[0][1]))
            )
            _attach_hidden(records, outputs, options)
            return ForwardCapture(name, records, outputs, seconds, recorder.calls)
    raise UnsupportedModelError(
        f"No attention was seen in {type(model).__name__}: it ran, but none of its layers "
        f"showed weights ({', '.join(chosen)} tried).",
        "Models without softmax attention (state space, linear attention) cannot be shown.",
    )


def _candidates(model: nn.Module) -> list[Backend]:
    if uses_interface(model):
        return ["interface", "hook", "tap"]
    return ["hook", "tap"] if has_eager_attention(model) else ["tap"]


def _lengths(inputs: Mapping[str, Tensor]) -> dict[str, int]:
    main = _input_length(inputs, ("input_ids", "inputs_embeds", "input_features")) or 0
    decoder = _input_length(inputs, ("decoder_input_ids",)) or 0
    return {"main": main, "encoder": main, "decoder": decoder}


def _run(model: nn.Module, inputs: Mapping[str, Any], backend: Backend, recorder: Recorder) -> Any:
    arguments: dict[str, Any] = dict(inputs)
    if recorder.options.hold_hidden:
        arguments["output_hidden_states"] = True
    if not {"cache", "past_key_values"} & arguments.keys():
        if "use_cache" in inspect.signature(model.forward).parameters:
            # Nobody continues from here, and a cache holds all keys and values to the end.
            arguments.setdefault("use_cache", False)
    with torch.inference_mode(), ExitStack() as stack:
        if backend == "interface":
            collector = InterfaceCollector(recorder)
            for module in model.modules():
                if isinstance(module, nn.Linear | Conv1D):
                    handle = module.register_forward_pre_hook(collector.watch_projection)
                    stack.callback(handle.remove)
            stack.enter_context(collecting(model, collector))  # type: ignore[arg-type]
        elif backend == "hook":
            stack.enter_context(hooked(model, recorder))
            arguments["output_attentions"] = True
        else:
            stack.enter_context(tapped(model, recorder))
        return model(**arguments)


def _attach_hidden(
    records: Mapping[tuple[Kind, int], StackRecord], outputs: Any, options: CaptureOptions
) -> None:
    if not options.hold_hidden:
        return
    names = {
        "encoder": ("encoder_hidden_states", "hidden_states"),
        "decoder": ("decoder_hidden_states", "hidden_states"),
        "cross": (),
    }
    for (kind, text), record in records.items():
        for name in names[kind]:
            states = getattr(outputs, name, None)
            if states is not None:
                q0, q1 = record.query_span
                record.hidden = torch.stack([h[text, q0:q1] for h in states])
                break
