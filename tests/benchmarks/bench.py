"""Speed and memory of a capture beside a plain forward pass: `make bench`.

CPU seconds as ratios inside one run (medians), peak memory of fresh processes. The shapes are
those of BERT-base and GPT-2-small with random weights: time does not depend on what they are.

    python -m tests.benchmarks.bench [--lengths 512 2048] [--repeats 5]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch is imported: idle threads must not burn the CPU seconds that are counted.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import transformers as hf

from core.capture.blocks import block_coverage
from core.capture.engine import capture_forward
from core.capture.record import CaptureOptions
from core.capture.statistics import StatisticsOptions

MIB = 1024**2
EAGER_LIMIT = 2048


def build(shape: str, length: int) -> Any:
    """Returns a base model without a head."""
    torch.manual_seed(0)
    if shape == "bert-base":
        bert = hf.BertConfig(max_position_embeddings=length)
        return hf.BertModel(bert, add_pooling_layer=False).eval()
    config = hf.GPT2Config(n_positions=length)
    return hf.GPT2Model(config).eval()


def ways(model: Any, inputs: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Returns what is compared, by name."""

    def plain() -> None:
        with torch.inference_mode():
            model(**inputs, use_cache=False) if "gpt2" in model.config.model_type else model(
                **inputs
            )

    def take(pairs: bool, js: bool, backend: Any = "interface") -> Callable[[], Any]:
        options = CaptureOptions(StatisticsOptions(pairs=pairs, js=js), keep_maps=False)
        if backend == "interface":
            options = CaptureOptions(StatisticsOptions(pairs=pairs, js=js))
        return lambda: capture_forward(model, inputs, options=options, backend=backend)

    found = {
        "sdpa forward": plain,
        "capture": take(True, True),
        "capture without js": take(True, False),
        "capture without pairs": take(False, False),
    }
    if inputs["input_ids"].shape[1] <= EAGER_LIMIT:
        found["eager + same statistics"] = take(True, True, "hook")
    return found


def measure(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Returns CPU seconds of each run after one warm-up; the ways take turns.

    Other work on the machine slows all of them alike then, and the ratios stay true.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for i in range(repeats + 1):
        for name, work in works.items():
            start = time.process_time()
            work()
            if i or repeats == 1:
                seconds[name].append(time.process_time() - start)
        if repeats == 1:
            break
    return seconds


def rebuild_ms(model: Any, inputs: dict[str, Any]) -> tuple[float, float]:
    """Returns best-of-5 wall milliseconds of a 256 x 256 window and of one head's whole map."""
    taken = capture_forward(
        model, inputs, options=CaptureOptions(StatisticsOptions(pairs=False, js=False, overview=0))
    )
    store = next(iter(taken.records.values())).store
    assert store is not None
    length = inputs["input_ids"].shape[1]
    side = min(256, length)
    best = []
    for window in ((length - side, length), (0, length)):
        seconds = []
        for _ in range(6):
            start = time.perf_counter()
            store.weights(5, slice(3, 4), window, window)
            seconds.append(time.perf_counter() - start)
        best.append(min(seconds) * 1000)
    return best[0], best[1]


def block_seconds(model: Any, inputs: dict[str, Any]) -> float:
    """Returns CPU seconds of the second pass, which finds blocks, over all layers."""
    taken = capture_forward(
        model, inputs, options=CaptureOptions(StatisticsOptions(pairs=False, js=False))
    )
    start = time.process_time()
    for record in taken.records.values():
        assert record.store is not None
        for layer, figures in enumerate(record.layers):
            block_coverage(record.store, layer, figures, record.visibilities[layer])
    return time.process_time() - start


def peak_growth(shape: str, length: int, way: str) -> tuple[int, int]:
    """Returns how much a fresh process grows over the loaded model, and the kept q, k and lse."""
    command = [sys.executable, "-m", "tests.benchmarks.bench", "--one", shape, str(length), way]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    last = json.loads(done.stdout.splitlines()[-1])
    return int(last["growth"]), int(last["store"])


def resident(name: str) -> int:
    """Returns VmRSS (now) or VmHWM (peak) of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def run_one(shape: str, length: int, way: str) -> None:
    """Runs one way in this process and prints its growth."""
    model = build(shape, length)
    inputs = {"input_ids": torch.randint(1000, 20000, (1, length))}
    # Building the model took more than it holds: start the peak afresh.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    kept = ways(model, inputs)[way]()
    growth = resident("VmHWM") - before
    store = 0
    if kept is not None:
        store = sum(r.store.nbytes for r in kept.records.values() if r.store is not None)
    print(json.dumps({"growth": growth, "store": store}))


def main() -> None:
    """Prints a table for each shape and length."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", default=["bert-base", "gpt2-small"])
    parser.add_argument("--ways", nargs="+", help="names as in the table; the first is the base")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("SHAPE", "LENGTH", "WAY"))
    options = parser.parse_args()
    if options.one:
        shape, length, way = options.one
        run_one(shape, int(length), way)
        return
    print(
        f"torch {torch.__version__}, transformers {hf.__version__}, "
        f"{torch.get_num_threads()} threads, CPU seconds, median of {options.repeats}"
    )
    for shape in options.shapes:
        for length in options.lengths:
            model = build(shape, length)
            inputs = {"input_ids": torch.randint(1000, 20000, (1, length))}
            base = 0.0
            found = ways(model, inputs)
            chosen = {name: found[name] for name in options.ways or found}
            for name, runs in measure(chosen, options.repeats).items():
                middle = statistics.median(runs)
                base = base or middle
                line = f"{shape:11} N={length:5} {name:24} {middle:7.2f} s  {middle / base:5.2f}x"
                line += f"  ({min(runs):.2f}-{max(runs):.2f})"
                if not options.no_memory:
                    growth, store = peak_growth(shape, length, name)
                    line += f"  peak +{growth / MIB:.0f} MiB, of it kept {store / MIB:.0f}"
                print(line, flush=True)
            took = block_seconds(model, inputs)
            line = f"{shape:11} N={length:5} {'block pass apart':24} {took:7.2f} s"
            print(f"{line}  {took / base:5.2f}x")
            window, whole = rebuild_ms(model, inputs)
            print(
                f"{shape:11} N={length:5} 256 x 256 window {window:.2f} ms, one map {whole:.2f} ms"
            )


if __name__ == "__main__":
    main()
