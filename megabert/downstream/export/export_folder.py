"""The folder that an export writes: it appears whole or not at all, and never replaces anything but an export."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megabert.downstream.export.config_json import GENERATOR_FOLDER, is_ours
from megabert.foundation.errors import ConfigError
from megabert.foundation.whole_folders import publish_folder
from megabert.tokens.tokenization.huggingface import TOKENIZER_FILES

MODULE_FILES = {
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    *(
        f"{place}_{name}/{file}"
        for place in range(1, 10)
        for name in ("Pooling", "MultiVectorMask", "Normalize", "Dense", "Dropout")
        for file in ("config.json", "model.safetensors")
    ),
}
ONNX_FILE = "onnx/model.onnx"
ONNX_FILES = {ONNX_FILE, f"{ONNX_FILE}.data"}
"""The graph, and next to it the weights of a model above 1.5 GiB: one file of ONNX cannot hold 2 GiB."""
EVAL_RESULTS = ".eval_results/megabert.yaml"
MODEL_FILES = {"config.json", "model.safetensors", "README.md", *TOKENIZER_FILES}
EXPORTED = {
    *MODEL_FILES,
    *(f"{GENERATOR_FOLDER}/{name}" for name in MODEL_FILES),
    *MODULE_FILES,
    *ONNX_FILES,
    EVAL_RESULTS,
}
"""The files that an export may have, as paths within its folder."""


@contextmanager
def open_export(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``folder`` when the block ends without an error.

    A reader of an earlier export sees it until the new one is complete.

    Raises:
        ConfigError: The folder holds something that no export writes.
        DataError: The disk is full.
    """
    refuse_foreign_folder(folder)
    with publish_folder(folder) as new:
        yield new


def refuse_foreign_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier export.

    Raises:
        ConfigError: The folder is a file, or holds something that no export writes.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is a file. Choose another folder.")
    foreign = sorted(_foreign_names(folder))
    if foreign or (any(folder.iterdir()) and not is_ours(folder)):
        what = f"holds {foreign[0]}" if foreign else "was not exported by megabert"
        raise ConfigError(f"{folder}: {what}, so it is left alone. Choose a new folder, or an earlier export.")


def _foreign_names(folder: Path, above: str = "") -> Iterator[str]:
    """Yield the names that an export does not write, and folders under the names of its files."""
    for path in folder.iterdir():
        name = above + path.name
        if path.is_dir() and not path.is_symlink() and any(known.startswith(f"{name}/") for known in EXPORTED):
            yield from _foreign_names(path, f"{name}/")
        elif name not in EXPORTED or not path.is_file():
            yield name
