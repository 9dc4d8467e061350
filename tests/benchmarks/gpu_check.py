"""One short check on a GPU: parity in three dtypes, then the ratios of the benchmark.

    python -m tests.benchmarks.gpu_check [--device cuda] [--lengths 512 2048 8192]

Tiny random families in float32, bfloat16 and float16 against their own eager attention, then
BERT-base and GPT-2-small shapes timed by the device's clock. On another device than a GPU it runs
too and says so. Takes about two minutes on a GPU.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from core.capture.engine import capture_forward
from tests.benchmarks.bench import build, ways
from tests.capture.families import FAMILIES

NAMES = ("bert", "modernbert", "gpt2", "llama", "mistral", "gemma2", "gpt-oss")
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
"""The 16-bit maps of eager attention are themselves rounded to 8 and 11 bits."""


def moved(inputs: dict[str, Any], device: str) -> dict[str, Any]:
    return {name: value.to(device) for name, value in inputs.items()}


def worst_difference(name: str, dtype: torch.dtype, device: str) -> float:
    """Returns the largest difference of a rebuilt weight from the eager map's, valid rows only."""
    family = next(f for f in FAMILIES if f.name == name)
    model = family.build().to(device=device, dtype=dtype)
    worst = 0.0
    for padding in family.paddings:
        inputs = moved(family.inputs(model, padding), device)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            maps = model(**inputs, output_attentions=True).attentions
        taken = capture_forward(model, inputs)
        for (_, text), record in taken.records.items():
            (q0, q1), (k0, k1) = record.query_span, record.key_span
            assert record.store is not None
            for layer, weights in enumerate(maps):
                want = weights[text, :, q0:q1, k0:k1].float()
                if record.sink_masses[layer] is not None:
                    want = want / want.sum(-1, keepdim=True)
                got = record.store.weights(layer, slice(None), (0, q1 - q0), (0, k1 - k0))
                worst = max(worst, float((got.to(device) - want).abs().max()))
    return worst


def seconds(work: Callable[[], Any], device: str, repeats: int = 3) -> float:
    """Returns the median wall seconds after one warm-up, the device's queue emptied."""
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def main() -> None:
    """Prints parity and ratios; exits with 1 when a map is off."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 2048, 8192])
    options = parser.parse_args()
    device = options.device
    where = torch.cuda.get_device_name() if device == "cuda" else "NOT a GPU"
    print(f"torch {torch.__version__}, transformers {hf.__version__}, {device} ({where})")
    torch.backends.cuda.matmul.allow_tf32 = False
    failed = False
    for dtype, tolerance in TOLERANCES.items():
        for name in NAMES:
            worst = worst_difference(name, dtype, device)
            failed |= worst > tolerance
            verdict = "ok" if worst <= tolerance else "OFF"
            print(f"{dtype!s:15} {name:11} largest difference {worst:.1e}  {verdict}")
    for shape in ("bert-base", "gpt2-small"):
        for length in options.lengths:
            model = build(shape, length).to(device)
            inputs = moved({"input_ids": torch.randint(1000, 20000, (1, length))}, device)
            base = 0.0
            for name, work in ways(model, inputs).items():
                took = seconds(work, device)
                base = base or took
                line = f"{shape:11} N={length:5} {name:24} {took:8.3f} s  {took / base:5.2f}x"
                if device == "cuda":
                    line += f"  peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
                    torch.cuda.reset_peak_memory_stats()
                print(line, flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
