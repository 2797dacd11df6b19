"""The files by which sentence-transformers builds a model around an exported encoder."""

import json
from pathlib import Path
from typing import Any, Literal

from megabert.foundation.files import atomic_write

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
    _write(folder / "modules.json", modules)
    # text-embeddings-inference reads max_seq_length here, and stops if the file lacks it.
    _write(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    settings = {
        "model_type": "MultiVectorEncoder" if kind == "colbert" else "SentenceTransformer",
        "similarity_fn_name": "maxsim" if kind == "colbert" else "cosine",
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
    }
    _write(folder / "config_sentence_transformers.json", settings)


def _pooling(kind: VectorKind, width: int) -> dict[str, Any]:
    """Return the settings of the pooling, in the form that all versions and text-embeddings-inference read."""
    chosen = {f"pooling_mode_{mode}": owner == kind for mode, owner in _POOLING_MODES.items()}
    return {"word_embedding_dimension": width, **chosen, "include_prompt": True}


def _write(path: Path, content: Any) -> None:
    atomic_write(path, json.dumps(content, indent=2) + "\n")
