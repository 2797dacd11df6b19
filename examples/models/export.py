"""The checkpoint as the folder that is shipped: float16 weights, which transformers turns into float32 again."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from examples.models.texts import LANGUAGES
from examples.models.tools import Folders, call

MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
LICENSES = {"english": "cc-by-sa-4.0", "korean": "cc-by-4.0"}
"""Licences of the weights, as hubs spell them: the terms of the texts that ask for most."""
CODES = {"english": "en", "korean": "ko"}


def export(language: str, folders: Folders) -> None:
    """Export the last checkpoint, and copy it with half as many bytes into the model's folder."""
    words = ("--language", CODES[language], "--license", LICENSES[language])
    call("megabert", "export", folders.run, "--to", folders.exported, *words)
    folders.model.mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        shutil.copy(folders.exported / name, folders.model)
    halve(folders.model / "model.safetensors")


def halve(path: Path) -> None:
    """Round the weights of a file to float16. ``config.json`` still says float32, to which transformers turns them.

    Raises:
        SystemExit: A weight is too large for float16.
    """
    weights = {name: tensor.half() for name, tensor in load_file(path).items()}
    too_large = [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if too_large:
        raise SystemExit(f"{path}: {too_large[0]} has a weight above {torch.finfo(torch.float16).max:g}.")
    save_file(weights, path, {"format": "pt"})


def parameters(folder: Path) -> int:
    """Return the number of parameters in the folder of a model, tied ones counted once."""
    return sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())


def sources_table(language: str) -> str:
    """Return the texts as a table in Markdown: what, whose, licence, package."""
    rows = ["| text | authors | licence | package |", "|---|---|---|---|"]
    for text in LANGUAGES[language].values():
        rows.append(f"| {text.about} | {text.author} | {text.license} | `{text.package}` |")
    return "\n".join(rows)


def read_config(folder: Path) -> dict[str, object]:
    """Return the model's sizes."""
    return json.loads((folder / "config.json").read_text())  # type: ignore[no-any-return]
