"""The files by which sentence-transformers builds a model around an exported encoder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save_file

from megabert.downstream.export.huggingface import read_weights
from megabert.downstream.export.vector_form import MODULES_FILE, PROMPTS_FILE, TRANSFORMER_FILE, VectorForm
from megabert.foundation.errors import ConfigError
from megabert.foundation.files import atomic_write
from megabert.foundation.json_files import read_json

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
_POOLING_MODES = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": None, "mean_sqrt_len_tokens": None}
"""All modes that text-embeddings-inference asks for, and the kind of vector that each gives, if it is offered here."""
_ONE = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")  # where this file lies
vectors = model.encode(["The ship sailed over the sea.", "A boat crossed the water."])
print(model.similarity(vectors, vectors))"""
USAGES: dict[VectorKind, str] = {
    "mean": _ONE,
    "cls": _ONE,
    "colbert": _ONE.replace("SentenceTransformer", "MultiVectorEncoder"),
}
"""Lines of a model card that compare two sentences."""


def write_modules(folder: Path, kind: VectorKind, *, width: int, max_length: int) -> None:
    """Add the modules to a folder with an encoder, from which sentence-transformers then gives vectors.

    ``mean`` and ``cls`` make a SentenceTransformer, with the vectors of ``megabert embed``. ``colbert`` makes a
    MultiVectorEncoder of sentence-transformers 6: a vector for each token, scaled to length 1 as ColBERT's are
    (Khattab and Zaharia 2020, section 3.2), without the projection to fewer dimensions, which only training gives.

    Args:
        folder: The folder.
        kind: The kind of vector.
        width: Size of a vector.
        max_length: Tokens of the longest text, special pieces included; longer texts are cut.
    """
    if kind == "colbert":
        inner: dict[str, dict[str, Any]] = {
            "MultiVectorMask": {"skiplist_words": [], "skiplist_tasks": ["document"], "keep_only_token_ids": None},
            "Normalize": dict.fromkeys(("module_input_name", "module_output_name"), "token_embeddings"),
        }
    else:
        inner = {"Pooling": _pooling(kind, width)}
    modules = []
    for index, name in enumerate(["Transformer", *inner]):
        path = f"{index}_{name}" if index else ""
        modules.append({"idx": index, "name": str(index), "path": path, "type": _MODULES[name]})
        if index:
            (folder / path).mkdir()
            _write(folder / path / "config.json", inner[name])
    _write(folder / MODULES_FILE, modules)
    # text-embeddings-inference reads max_seq_length here, and stops if the file lacks it.
    _write(folder / TRANSFORMER_FILE, {"max_seq_length": max_length, "do_lower_case": False})
    settings = {
        "model_type": "MultiVectorEncoder" if kind == "colbert" else "SentenceTransformer",
        "similarity_fn_name": "maxsim" if kind == "colbert" else "cosine",
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
    }
    _write(folder / PROMPTS_FILE, settings)


KIND_MODES: Mapping[VectorKind, tuple[str, ...]] = {"mean": ("mean",), "cls": ("cls",), "colbert": ("tokens",)}
"""The poolings of each kind."""


def refuse_other_vectors(source: Path, form: VectorForm, kind: VectorKind, *, has_onnx: bool) -> None:
    """Refuse forms whose vectors a folder's own modules do not give.

    Raises:
        ConfigError: The modules pool in another way, or the ONNX form lacks one of them.
    """
    if form.modes != KIND_MODES[kind]:
        kinds = [known for known, modes in KIND_MODES.items() if modes == form.modes]
        remedy = f"Give --sentence-transformers {kinds[0]}" if kinds else "Export without --sentence-transformers"
        raise ConfigError(
            f"{source}: its modules give {' + '.join(form.modes)}, not {kind}. {remedy}, or remove modules.json first."
        )
    # Vectors of tokens are scaled to length 1 in the ONNX form as well.
    lacking = ("Dense",) if kind == "colbert" else ("Dense", "Normalize")
    extra = [module.name for module in form.modules if module.name in lacking]
    if has_onnx and extra:
        raise ConfigError(f"{source}: the ONNX form would lack the module {extra[0]}. Export without --onnx.")


def keep_modules(source: Path, folder: Path, form: VectorForm, *, positions: int) -> None:
    """Write the modules of a folder once more.

    Args:
        source: The folder.
        folder: An exported folder without modules.
        form: What `read_vector_form` returns for ``source``.
        positions: Number of the model's positions.
    """
    modules = []
    for index, module in enumerate(form.modules):
        path, own = f"{index}_{module.name}" if index else "", source / module.path
        modules.append({"idx": index, "name": str(index), "path": path, "type": module.type})
        if index:
            (folder / path).mkdir()
            _write(folder / path / "config.json", _read(own / "config.json"))
        if module.name == "Dense":
            save_file(read_weights(own), folder / path / "model.safetensors", metadata={"format": "pt"})
    _write(folder / MODULES_FILE, modules)
    _write(folder / TRANSFORMER_FILE, {**_read(source / TRANSFORMER_FILE), "max_seq_length": form.limit(positions)})
    _write(folder / PROMPTS_FILE, _read(source / PROMPTS_FILE))


def _read(path: Path) -> Any:
    """Return the content of a JSON file; a file that is not there is empty, as sentence-transformers has it."""
    return read_json(path, dict[str, Any], remedy="Fetch the folder again.") if path.is_file() else {}


def _pooling(kind: VectorKind, width: int) -> dict[str, Any]:
    """Return the settings of the pooling, in the form that all versions and text-embeddings-inference read."""
    chosen = {f"pooling_mode_{mode}": owner == kind for mode, owner in _POOLING_MODES.items()}
    return {"word_embedding_dimension": width, **chosen, "include_prompt": True}


def _write(path: Path, content: Any) -> None:
    atomic_write(path, json.dumps(content, indent=2) + "\n")
