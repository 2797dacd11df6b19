"""Which kind of folder a model is in, told before the seconds that torch takes to import."""

from pathlib import Path
from typing import Literal

import megabert
from megabert.foundation.errors import ConfigError
from megabert.settings.config.loading import split_checkpoint
from megabert.settings.config.names import closest
from megabert.tokens.tokenization.huggingface import download_remedy
from megabert.training.run.folder import CONFIG_NAME, refuse_lost_config

GOOGLE_CONFIG = "bert_config.json"
ADAPTER_NAME = "adapter_config.json"
SHIPPED_MODELS = Path(megabert.__file__).parents[1] / "models"
"""Folder of the models that lie beside the package in its repository. A wheel does not hold them."""
SHIPPED_NAMES = ("english", "korean")


def config_path(folder: Path) -> Path:
    """Return where a model's shape is stated: ``config.json``, or ``bert_config.json`` in the archives of 2018."""
    own, google = folder / "config.json", folder / GOOGLE_CONFIG
    return google if google.is_file() and not own.is_file() else own


def find_model(name: str) -> Path:
    """Return the folder that a name of a model means: the shipped model of that name, if there is no such folder here.

    Raises:
        ConfigError: It names a shipped model, which is not beside the package.
    """
    folder = Path(name)
    if name not in SHIPPED_NAMES or folder.exists():
        return folder
    if not config_path(SHIPPED_MODELS / name).is_file():
        raise ConfigError(
            f"{name}: there is no such folder here, and the shipped model of this name is not installed. It lies in "
            f"the project's repository, in a folder that a wheel leaves out. Copy models/{name} from there, and give "
            "its path."
        )
    return SHIPPED_MODELS / name


def kind_of_folder(name: str) -> Literal["run", "hugging face"]:
    """Return which of the two kinds the folder is that `find_model` returns for a name.

    Raises:
        ConfigError: It is neither, or there is none, or it holds an adapter (LoRA) as well.
        CheckpointError: It is a run whose configuration is lost.
    """
    folder = find_model(name)
    if (folder / ADAPTER_NAME).is_file():
        raise ConfigError(
            f"{folder / ADAPTER_NAME}: an adapter of peft, which megabert does not read. Add it to the model's "
            "weights: merge_and_unload() of peft, and save_pretrained."
        )
    if (folder / CONFIG_NAME).is_file():
        return "run"
    if config_path(folder).is_file():
        return "hugging face"
    refuse_lost_config(folder)
    meant = None if folder.exists() else closest(name, SHIPPED_NAMES)
    remedy = f"Did you mean the shipped model {meant}?" if meant else download_remedy(name) or "Name one of the two."
    raise ConfigError(
        f"{folder}: neither a run folder (no {CONFIG_NAME}) nor a Hugging Face folder (no config.json). {remedy}"
    )


def folder_and_checkpoint(name: str) -> tuple[str, str]:
    """Return folder and checkpoint of ``RUN@STEP``; a folder whose own name has an ``@`` is taken as it is."""
    return (name, "last") if Path(name).exists() else split_checkpoint(name)
