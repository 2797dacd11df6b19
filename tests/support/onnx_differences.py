"""The forms of a model with random weights, compared with transformers' class."""

from collections.abc import Sequence
from pathlib import Path

import onnxruntime

from megabert.downstream.publish.forms import Forms, VectorKind
from megabert.downstream.publish.onnx_graph import LENGTHS, ONNX_FILE, check_forms, load_graph, torch_run
from megabert.downstream.publish.run_folder import export_again


def form_differences(
    source: Path, folder: Path, kind: VectorKind | None, lengths: Sequence[int] = LENGTHS
) -> dict[str, float]:
    """Export a folder once more with its ONNX form; return the largest difference of each form over many batches."""
    export_again(source, folder, Forms(vectors=kind, has_onnx=True))
    graph = load_graph(folder, kind, flag="--check")
    results = torch_run(graph)(graph.sample(3, 9))
    assert all(value.std() > 0.01 for value in results if value.shape[-1] > 1)
    session = onnxruntime.InferenceSession(str(folder / ONNX_FILE), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == list(graph.output_names)
    for given in session.get_inputs():
        assert (given.shape[0], given.shape[-1]) == ("batch", "length")
    return {form: difference for form, _, difference in check_forms(folder, kind, lengths=lengths)}
