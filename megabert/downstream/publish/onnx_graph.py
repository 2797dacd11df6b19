"""The ONNX form of an exported model: transformers' class of it, traced by torch, heads and pooling included.

The graph takes padded batches of any size and length. Its inputs and outputs have the names that
text-embeddings-inference looks for, and it lies where that server finds it, in ``onnx/model.onnx`` next to the
tokenizer. `check_forms` compares the forms of an export: megabert's own forward pass, transformers, ONNX and float16.
"""

# B texts, C choices of each (only for multiple choice), S tokens of the longest, D hidden

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from megabert.data.batch import pack_sequences
from megabert.downstream.export.config_json import read_config_json, read_object
from megabert.downstream.export.export_folder import ONNX_FILE
from megabert.downstream.export.sources import open_source
from megabert.downstream.publish.forms import VectorKind
from megabert.foundation.errors import CheckpointError, ConfigError

OPSET = 18
SAMPLE = (2, 7)
"""Batch and length that are traced. Sizes of 0 and 1 would be taken for constants."""
_LOADING: dict[str, Any] = {"local_files_only": True, "dtype": torch.float32}


def library(name: str, flag: str) -> Any:
    """Import a package of the extra ``onnx``.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{flag} needs {name} ({error}). Install it: pip install 'megabert[onnx]'") from None


class Graph(nn.Module):
    """A model of transformers whose results are a tuple of tensors, and are pooled if it gives vectors."""

    def __init__(self, model: nn.Module, kind: VectorKind | None) -> None:
        super().__init__()
        self.model: Any = model
        self.kind = kind
        with torch.inference_mode():
            results, shorter = (self._results(self.sample(length=length)) for length in (SAMPLE[1], SAMPLE[1] - 1))
        self.output_names = tuple(results)
        """Names of the results, in their order."""
        self.are_of_tokens = [value.shape != shorter[name].shape for name, value in results.items()]
        """For each result, whether it has a value for every token, padding included."""

    def sample(self, batch: int = SAMPLE[0], length: int = SAMPLE[1]) -> dict[str, Tensor]:
        """Return inputs in which every text but the first one is padded, the last one most.

        Returns:
            ``input_ids``, ``attention_mask`` and, if the model has segments, ``token_type_ids``, int64 of shape
            (B, S), or (B, C, S) for multiple choice.
        """
        config: Any = self.model.config
        shape = (batch, 2, length) if type(self.model).__name__.endswith("MultipleChoice") else (batch, length)
        steps = torch.arange(torch.Size(shape).numel()).reshape(shape)
        # Multiples of a prime beyond any vocabulary: neighbours differ, and every run has the same ids.
        ids = (steps * 16_777_259 + 5) % config.vocab_size
        pad_id = config.pad_token_id or 0
        # No text has padding within it, and RoBERTa would not count its position.
        ids = torch.where(ids == pad_id, (pad_id + 1) % config.vocab_size, ids)
        kept = length - torch.arange(batch) * (length - 1) // max(1, batch)
        mask = (torch.arange(length) < kept.reshape(-1, *[1] * (len(shape) - 1))).expand(shape).long()
        ids = torch.where(mask.bool(), ids, pad_id)
        inputs = {"input_ids": ids, "attention_mask": mask}
        if (getattr(config, "type_vocab_size", 0) or 0) > 1:
            inputs["token_type_ids"] = (torch.arange(length) >= length // 2).expand(shape).long() * mask
        return inputs

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the results that ``output_names`` names."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        return tuple(self._results(inputs).values())

    def _results(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        output = self.model(**inputs, return_dict=True)
        if self.kind is None:
            return {name: value for name, value in output.items() if isinstance(value, Tensor)}
        hidden_BSD = output.last_hidden_state
        if self.kind == "colbert":
            return {"token_embeddings": nn.functional.normalize(hidden_BSD, dim=-1)}
        if self.kind == "cls":
            return {"last_hidden_state": hidden_BSD, "sentence_embedding": hidden_BSD[:, 0]}
        mask_BS1 = inputs["attention_mask"].unsqueeze(-1).to(hidden_BSD.dtype)
        return {
            "last_hidden_state": hidden_BSD,
            # A row of padding alone, which fills up a batch, gives zeros.
            "sentence_embedding": (hidden_BSD * mask_BS1).sum(1) / mask_BS1.sum(1).clamp(min=1),
        }


def load_graph(folder: Path, kind: VectorKind | None, *, flag: str) -> Graph:
    """Load an exported folder as transformers does, in float32 on the CPU.

    Args:
        folder: The folder.
        kind: Vectors that the bare encoder gives; None takes the class of config.json, with its heads.
        flag: The flag that needs it, for the message.

    Raises:
        ConfigError: transformers is not installed, or has no such class of that family.
        CheckpointError: The folder lacks weights of that class.
    """
    transformers = library("transformers", flag)
    with _quiet():
        if kind:  # no vector is of the pooler, so its weights may be missing
            return Graph(transformers.AutoModel.from_pretrained(folder, **_LOADING).eval(), kind)
        model_class = _class_of(transformers, read_object(folder / "config.json"))
        model, info = model_class.from_pretrained(
            folder, **_LOADING, output_loading_info=True, ignore_mismatched_sizes=True
        )
    lost = sorted({*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])})
    if lost:
        raise CheckpointError(
            f"config.json: architectures names {model_class.__name__}, but the weights lack {lost[0]} or have it in "
            f"another size ({len(lost)} such weights). Name the class of the weights there."
        )
    return Graph(model.eval(), kind)


def _class_of(transformers: Any, config: dict[str, Any]) -> Any:
    """Return the class of transformers that a config.json names."""
    name, family = config["architectures"][0], config["model_type"]
    model_class = getattr(transformers, name, None)
    if model_class is None:
        raise ConfigError(
            f"config.json: architectures names {name}, which transformers {transformers.__version__} does not have. "
            "Install a version that has it, or correct the name."
        )
    is_model = isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)
    if not is_model or model_class.config_class is None or model_class.config_class.model_type != family:
        raise ConfigError(
            f"config.json: architectures names {name}, which is no {family} model of transformers. "
            "Name the class of the weights there."
        )
    return model_class


def write_onnx(folder: Path, kind: VectorKind | None) -> None:
    """Add the ONNX form to a folder with an exported model; for ``kind`` see `load_graph`.

    Raises:
        ConfigError: A package of the extra ``onnx`` is not installed, or transformers lacks the class of the model.
        CheckpointError: The folder lacks weights of that class, or torch cannot export it.
    """
    for name in ("onnx", "onnxscript", "onnxruntime"):
        library(name, "--onnx")
    graph = load_graph(folder, kind, flag="--onnx")
    inputs = graph.sample()
    axes = ("batch", "choices", "length") if inputs["input_ids"].dim() == 3 else ("batch", "length")
    try:
        with _quiet(), torch.inference_mode():
            program = torch.onnx.export(
                graph,
                kwargs=inputs,
                dynamo=True,
                dynamic_shapes={name: dict(enumerate(axes)) for name in inputs},
                input_names=list(inputs),
                output_names=list(graph.output_names),
                opset_version=OPSET,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise CheckpointError(
            f"torch {torch.__version__} cannot export {type(graph.model).__name__} to ONNX "
            f"({' '.join(str(error).split())[:200]}), so nothing was written. Export without --onnx, or install other "
            "versions of torch and transformers."
        ) from None
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces, with the paths of this machine
    (folder / ONNX_FILE).parent.mkdir()
    program.save(str(folder / ONNX_FILE))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the progress bars, warnings and advice of the libraries off the terminal."""
    transformers_logging = import_module("transformers").logging
    has_bars, level = transformers_logging.is_progress_bar_enabled(), logging.root.manager.disable
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if has_bars:
            transformers_logging.enable_progress_bar()


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
    graph, limit = load_graph(folder, kind, flag="--check"), read_config_json(folder).max_position_embeddings
    sizes = [(batch, length) for batch in BATCHES for length in sorted({min(length, limit) for length in lengths})]
    rows = [("megabert", "last_hidden_state", _encoder_difference(folder, graph, sizes))]
    half = torch_run(load_graph(folder, kind, flag="--check").half())
    others = {"ONNX": onnx_run(folder)} if (folder / ONNX_FILE).is_file() else {}
    for name, run in {**others, "float16": half}.items():
        rows.append((name, ", ".join(graph.output_names), largest_difference(torch_run(graph), run, graph, sizes)))
    return rows


def require_equal_onnx(folder: Path, kind: VectorKind | None) -> None:
    """Compare the ONNX form of a folder with transformers' class on two small batches.

    Raises:
        CheckpointError: They differ, or onnxruntime cannot compute the ONNX form.
    """
    graph, limit = load_graph(folder, kind, flag="--onnx"), read_config_json(folder).max_position_embeddings
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
