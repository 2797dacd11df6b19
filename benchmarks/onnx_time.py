"""Time of an encoder's forward pass with mean pooling: transformers in torch, and its ONNX form in onnxruntime.

    python -m benchmarks.onnx_time MODEL [--shapes 2x128 12x768] [--threads 1]

MODEL is a Hugging Face folder; each shape, layers x width, is a model of its family with random weights and its
tokenizer. Both run the same unpadded batches in turn in one run; the medians of the rounds are printed in milliseconds,
with their ratio and the largest difference of the vectors.
"""

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import transformers

from megabert.downstream.export.export_folder import open_export
from megabert.downstream.export.huggingface import write_model_files
from megabert.downstream.export.model_card import ModelCard
from megabert.downstream.export.sources import Source, open_source
from megabert.downstream.publish.forms import Forms
from megabert.downstream.publish.onnx_graph import load_graph, onnx_run, torch_run
from megabert.downstream.publish.run_folder import export_again

BATCHES, LENGTHS = (1, 8), (16, 64, 128, 512)
ROUNDS = 5
LEAST_S = 0.1
"""Shorter passes are repeated until a round takes so long."""


def write_random(source: Source, shape: str, folder: Path) -> None:
    """Write a model of another shape, with heads of width 64, in both forms."""
    layers, width = map(int, shape.split("x"))
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
    config = replace(source.model, **sizes, num_attention_heads=width // 64, max_position_embeddings=max(LENGTHS))
    model = replace(source, model=config).build_untrained_model()
    state = {name: value.detach() for name, value in model.named_parameters()}
    plain = folder / "plain"
    with open_export(plain) as new:
        card, tokenizer_dir = ModelCard(name=shape), source.tokenizer_dir
        write_model_files(new, state=state, config=config, tokenizer_dir=tokenizer_dir, card=card)
    export_again(plain, folder / "onnx", Forms(vectors="mean", has_onnx=True))


def measure(folder: Path, shape: str) -> None:
    """Print a line for each batch."""
    graph = load_graph(folder, "mean", flag="--onnx")
    runs = {"torch": torch_run(graph), "onnxruntime": onnx_run(folder)}
    for batch in BATCHES:
        for length in LENGTHS:
            inputs = graph.sample(batch, length)
            inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
            begin = time.perf_counter()
            results = {name: run(inputs) for name, run in runs.items()}
            count = max(1, round(LEAST_S / (time.perf_counter() - begin)))
            apart = max(np.abs(ours - theirs).max() for ours, theirs in zip(*results.values(), strict=True))
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(ROUNDS):
                for name, run in runs.items():
                    begin = time.perf_counter()
                    for _ in range(count):
                        run(inputs)
                    times[name].append((time.perf_counter() - begin) / count * 1000)
            torch_ms, onnx_ms = map(statistics.median, times.values())
            print(
                f"{shape:<7} {batch:>5} {length:>6} {torch_ms:9.2f} {onnx_ms:11.2f} {torch_ms / onnx_ms:6.2f} "
                f"{apart:8.1e}",
                flush=True,
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--shapes", nargs="+", default=["2x128", "12x768"])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    source = open_source(options.model)
    print(
        f"{source.model.family}, {options.threads} thread(s) of {os.cpu_count()} cores, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, onnxruntime {onnxruntime.__version__}"
    )
    print(f"{'shape':<7} {'batch':>5} {'length':>6} {'torch ms':>9} {'ort ms':>11} {'ratio':>6} {'apart':>8}")
    for shape in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            write_random(source, shape, Path(folder))
            measure(Path(folder) / "onnx", shape)


if __name__ == "__main__":
    main()
