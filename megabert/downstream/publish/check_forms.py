"""The forms of an exported model compared: megabert's own forward pass, transformers, ONNX and float16."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.data.batch import pack_sequences
from megabert.downstream.export.export_folder import ONNX_FILE
from megabert.downstream.export.sources import open_source
from megabert.downstream.publish.forms import VectorKind
from megabert.downstream.publish.onnx_graph import Graph, library, load_graph
from megabert.foundation.errors import CheckpointError

BATCHES = (1, 2, 8)
LENGTHS = (1, 2, 17, 128, 512)
TOLERANCE = 1e-4
"""Largest difference of the ONNX form: float32, absolute, or relative to the largest result if that is above 1."""
Run = Callable[[dict[str, Tensor]], Sequence[NDArray]]
"""Computes the results of padded texts."""


def check_forms(
    folder: Path, kind: VectorKind | None, *, lengths: Sequence[int] = LENGTHS
) -> list[tuple[str, str, float]]:
    """Compare the forms of an exported model with transformers' class in float32, on texts of many lengths.

    Args:
        folder: The exported folder.
        kind: Vectors that it gives, if any.
        lengths: Tokens of the longest text of a batch; larger numbers are cut to the longest text of the model.

    Returns:
        For each form its name, the results that were compared, and their largest absolute difference; infinite or NaN
        if a result is not finite.

    Raises:
        ConfigError: A package of the extra ``onnx`` is not installed, or transformers lacks the class of the model.
        CheckpointError: The folder lacks weights of that class, or onnxruntime cannot compute its ONNX form.
    """
    graph, limit = _opened(folder, kind, "--check")
    sizes = [(batch, length) for batch in BATCHES for length in sorted({min(length, limit) for length in lengths})]
    rows = [("megabert", "last_hidden_state", _encoder_difference(folder, graph, sizes))]
    half = torch_run(load_graph(folder, kind, flag="--check").half())
    others = {"ONNX": onnx_run(folder)} if (folder / ONNX_FILE).is_file() else {}
    for name, run in {**others, "float16": half}.items():
        rows.append((name, ", ".join(graph.output_names), largest_difference(torch_run(graph), run, graph, sizes)))
    return rows


def _opened(folder: Path, kind: VectorKind | None, flag: str) -> tuple[Graph, int]:
    """Return transformers' class of a folder, and the number of positions of the model."""
    return load_graph(folder, kind, flag=flag), open_source(str(folder)).model.max_position_embeddings


def require_equal_onnx(folder: Path, kind: VectorKind | None) -> None:
    """Compare the ONNX form of a folder with transformers' class on two small batches.

    Raises:
        CheckpointError: They differ, or onnxruntime cannot compute the ONNX form.
    """
    graph, limit = _opened(folder, kind, "--onnx")
    sizes = [(1, 1), (3, min(limit, 12))]
    reference = torch_run(graph)
    difference = largest_difference(reference, onnx_run(folder), graph, sizes)
    largest = max(float(np.abs(value).max()) for size in sizes for value in reference(graph.sample(*size)))
    if not difference <= TOLERANCE * max(1.0, largest):
        raise CheckpointError(
            f"{ONNX_FILE}: its results differ from transformers' by {difference:.1e}, above {TOLERANCE:g}, so nothing "
            "was written. Export without --onnx, and report the model and the versions of torch, onnx and onnxruntime."
        )


def torch_run(graph: Graph) -> Run:
    """Return the results of a graph as torch computes them, in float32."""

    def run(inputs: dict[str, Tensor]) -> Sequence[NDArray]:
        with torch.inference_mode():
            return [value.float().numpy() for value in graph(**inputs)]

    return run


def onnx_run(folder: Path) -> Run:
    """Return the results of a folder's ONNX form as onnxruntime computes them, on as many threads as torch has."""
    onnxruntime = library("onnxruntime", "--onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    with _onnxruntime_errors(onnxruntime.__version__):
        session = onnxruntime.InferenceSession(str(folder / ONNX_FILE), options, providers=["CPUExecutionProvider"])

    def run(inputs: dict[str, Tensor]) -> Sequence[NDArray]:
        with _onnxruntime_errors(onnxruntime.__version__):
            return session.run(None, {name: value.numpy() for name, value in inputs.items()})

    return run


@contextmanager
def _onnxruntime_errors(version: str) -> Iterator[None]:
    """Turn an error of onnxruntime into ours; its classes have no base of their own, only a module.

    Raises:
        CheckpointError: There was one.
    """
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise CheckpointError(
            f"{ONNX_FILE}: onnxruntime {version} cannot compute it ({' '.join(str(error).split())}). Install another "
            "version of onnxruntime, or export without --onnx."
        ) from error


def largest_difference(reference: Run, other: Run, graph: Graph, sizes: Sequence[tuple[int, int]]) -> float:
    """Return the largest absolute difference of two ways to compute a graph; padding is left out."""
    largest = [0.0]
    for size in sizes:
        inputs = graph.sample(*size)
        is_real = inputs["attention_mask"].bool().numpy()
        for of_tokens, ours, theirs in zip(graph.are_of_tokens, reference(inputs), other(inputs), strict=True):
            gaps = np.abs(ours - theirs)
            largest.append(float((gaps[is_real] if of_tokens else gaps).max()))
    return float(np.max(largest))


def _encoder_difference(folder: Path, graph: Graph, sizes: Sequence[tuple[int, int]]) -> float:
    """Return the largest difference of the last hidden states between megabert's encoder and transformers'."""
    ours, theirs = open_source(str(folder)).build_model().eval(), graph.model.base_model
    gaps = [0.0]
    with torch.inference_mode():
        for size in sizes:
            # The choices of a question are texts of their own.
            inputs = {name: value.flatten(0, -2) for name, value in graph.sample(*size).items()}
            is_real = inputs["attention_mask"].bool()
            texts = [ids[kept].numpy() for ids, kept in zip(inputs["input_ids"], is_real, strict=True)]
            has_segments = "token_type_ids" in inputs
            starts = [min(size[1] // 2, len(text)) if has_segments else len(text) for text in texts]
            hidden_TD, _ = ours.bert(pack_sequences(texts, segment_b_starts=starts))
            hidden_BSD = theirs(**inputs).last_hidden_state
            gaps.append(float((hidden_TD - hidden_BSD[is_real]).abs().max()))
    return float(np.max(gaps))
