"""Further forms of an exported model, next to the weights for ``transformers``: vectors, ONNX.

sentence-transformers builds a model around an exported encoder by the files that are written here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from safetensors.torch import save_file
from torch import Tensor

from megabert.downstream.export.export_folder import ONNX_FILE
from megabert.downstream.export.huggingface import read_weights
from megabert.downstream.export.model_card import ModelCard
from megabert.downstream.export.vector_form import (
    MODULES_FILE,
    PROMPTS_FILE,
    TRANSFORMER_FILE,
    VectorForm,
    find_transformer_file,
    read_vector_form,
)
from megabert.foundation.errors import ConfigError
from megabert.foundation.json_files import read_json, write_json
from megabert.settings.config.model import ModelConfig

VectorKind = Literal["mean", "cls", "colbert"]
"""One vector per text, the mean over its tokens or the one of [CLS], or a vector of length 1 for each token."""
_PACKAGE = "sentence_transformers"
_MODULES = {
    "Transformer": f"{_PACKAGE}.models.Transformer",
    "Pooling": f"{_PACKAGE}.models.Pooling",
    "MultiVectorMask": f"{_PACKAGE}.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "Normalize": f"{_PACKAGE}.base.modules.normalize.Normalize",
}
"""Classes by name. The first two have the paths that all versions read; the others exist since version 6."""
_TEI_POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": None, "mean_sqrt_len_tokens": None}
"""All poolings that text-embeddings-inference asks for, and ours of the same meaning, if there is one."""
_USAGE = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")  # where this file lies
vectors = model.encode(["The ship sailed over the sea.", "A boat crossed the water."])
print(model.similarity(vectors, vectors))"""
"""Lines of a model card that compare two sentences."""
KIND_POOLINGS: Mapping[VectorKind, tuple[str, ...]] = {"mean": ("mean",), "cls": ("cls",), "colbert": ("tokens",)}
"""The poolings of each kind."""


class Forms(NamedTuple):
    """Further forms of a model."""

    vectors: VectorKind | None = None
    """The vectors that sentence-transformers makes of the folder; None adds no files for it."""
    has_onnx: bool = False
    """Whether there is an ONNX form, of the vectors or else of the class with the heads."""

    def on_card(self, card: ModelCard) -> ModelCard:
        """Return the card of a model that has these forms."""
        model = "MultiVectorEncoder" if self.vectors == "colbert" else "SentenceTransformer"
        usage = _USAGE.replace("SentenceTransformer", model)
        return replace(card, gives_vectors=True, usage=usage) if self.vectors else card


def refuse_lost_forms(source: Path, forms: Forms) -> None:
    """Refuse to write a folder once more without a form that it has, which a push would delete on the hub as well.

    Raises:
        ConfigError: Naming the flags of the forms that would be lost.
    """
    lost = {}
    if (source / "modules.json").is_file() and not forms.vectors:
        lost["--sentence-transformers KIND"] = "modules.json"
    if (source / ONNX_FILE).is_file() and not forms.has_onnx:
        lost["--onnx"] = ONNX_FILE
    if lost:
        raise ConfigError(
            f"{source}: has {' and '.join(lost.values())}, which the new export would lack. Give {' and '.join(lost)} "
            "again, or remove the form's files first."
        )


def add_forms(folder: Path, config: ModelConfig, forms: Forms, *, longest: int, source: Path | None) -> None:
    """Add the files of each form to a folder with an exported model. Modules that its source has are kept.

    Args:
        folder: The folder.
        config: The model's sizes.
        forms: The forms.
        longest: Length at which longer texts are cut.
        source: The folder that the model is from, whose modules are kept; None for a run.

    Raises:
        ConfigError: A package that a form needs is not installed, or the source's modules give other vectors.
        CheckpointError: The ONNX form gives other results than transformers.
    """
    form = read_vector_form(source) if source else None
    if forms.vectors and source and form:
        _refuse_other_vectors(source, form, forms.vectors, has_onnx=forms.has_onnx)
        _keep_modules(source, folder, form, positions=longest)
    elif forms.vectors:
        _new_modules(folder, forms.vectors, width=config.hidden_size, max_length=longest)
    if forms.has_onnx:
        # transformers, and onnxruntime for the comparison: extras that few need.
        from megabert.downstream.publish.onnx_graph import require_equal_onnx, write_onnx

        write_onnx(folder, forms.vectors)
        require_equal_onnx(folder, forms.vectors)


def _refuse_other_vectors(source: Path, form: VectorForm, kind: VectorKind, *, has_onnx: bool) -> None:
    """Refuse forms whose vectors a folder's own modules do not give.

    Raises:
        ConfigError: The modules pool in another way, or the ONNX form lacks one of them.
    """
    if form.poolings != KIND_POOLINGS[kind]:
        kinds = [known for known, poolings in KIND_POOLINGS.items() if poolings == form.poolings]
        remedy = f"Give --sentence-transformers {kinds[0]}" if kinds else "Export without --sentence-transformers"
        given = " + ".join(form.poolings)
        raise ConfigError(f"{source}: its modules give {given}, not {kind}. {remedy}, or remove modules.json first.")
    # Vectors of tokens are scaled to length 1 in the ONNX form as well.
    lacking = ("Dense",) if kind == "colbert" else ("Dense", "Normalize")
    extra = [f"the module {module.name}" for module in form.modules if module.name in lacking]
    extra += ["truncate_dim"] * (form.truncate_dim is not None)
    if has_onnx and extra:
        raise ConfigError(f"{source}: the ONNX form would lack {extra[0]}. Export without --onnx.")


class _Module(NamedTuple):
    """A module that sentence-transformers builds a model of, in the order of ``modules.json``."""

    name: str
    type: str
    """The class with its package."""
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor] = MappingProxyType({})


def _write_modules(folder: Path, modules: Sequence[_Module], transformer: Any, prompts: Any) -> None:
    """Add modules to a folder with an encoder, which is the first one; its settings lie in the folder itself."""
    rows = []
    for index, module in enumerate(modules):
        path = f"{index}_{module.name}" if index else ""
        rows.append({"idx": index, "name": str(index), "path": path, "type": module.type})
        if index:
            (folder / path).mkdir()
            write_json(folder / path / "config.json", module.config)
        if module.weights:
            save_file(dict(module.weights), folder / path / "model.safetensors", metadata={"format": "pt"})
    for name, content in ((MODULES_FILE, rows), (TRANSFORMER_FILE, transformer), (PROMPTS_FILE, prompts)):
        write_json(folder / name, content)


def _new_modules(folder: Path, kind: VectorKind, *, width: int, max_length: int) -> None:
    """Add the modules to a folder with an encoder, from which sentence-transformers then gives vectors.

    ``mean`` and ``cls`` make a SentenceTransformer, with the vectors of ``megabert embed``. ``colbert`` makes a
    MultiVectorEncoder of sentence-transformers 6: a vector for each token, scaled to length 1 as ColBERT's are
    (Khattab and Zaharia 2020, section 3.2), without the projection to fewer dimensions, which only training gives.
    """
    # In the form that all versions and text-embeddings-inference read.
    switches = {f"pooling_mode_{name}": pooling == kind for name, pooling in _TEI_POOLINGS.items()}
    pooling = {"word_embedding_dimension": width, **switches, "include_prompt": True}
    inner: dict[str, dict[str, Any]] = {"Pooling": pooling}
    model_type, similarity = "SentenceTransformer", "cosine"
    if kind == "colbert":
        inner = {
            "MultiVectorMask": {"skiplist_words": [], "skiplist_tasks": ["document"], "keep_only_token_ids": None},
            "Normalize": dict.fromkeys(("module_input_name", "module_output_name"), "token_embeddings"),
        }
        model_type, similarity = "MultiVectorEncoder", "maxsim"
    modules = [_Module(name, _MODULES[name], config) for name, config in {"Transformer": {}, **inner}.items()]
    names = {"model_type": model_type, "similarity_fn_name": similarity}
    prompts = {**names, "prompts": {"query": "", "document": ""}, "default_prompt_name": None}
    # text-embeddings-inference reads max_seq_length here, and stops if the file lacks it.
    transformer = {"max_seq_length": max_length, "do_lower_case": False}
    _write_modules(folder, modules, transformer, prompts)


def _keep_modules(source: Path, folder: Path, form: VectorForm, *, positions: int) -> None:
    """Write the modules of a folder, whose form this is, once more."""
    modules = []
    for module in form.modules:
        weights = read_weights(source / module.path) if module.name == "Dense" else {}
        modules.append(_Module(module.name, module.type, _read(source / module.path / "config.json"), weights))
    transformer = {**_read(find_transformer_file(source)), "max_seq_length": form.limit(positions)}
    _write_modules(folder, modules, transformer, _read(source / PROMPTS_FILE))


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; a file that is not there is empty, as sentence-transformers has it."""
    return read_json(path, dict[str, Any], remedy="Fetch the folder again.") if path.is_file() else {}
