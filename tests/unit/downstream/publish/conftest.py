import shutil
import time

import pytest
from huggingface_hub import constants
from support import exported_models
from support.hub_server import TOKEN, running


@pytest.fixture
def server(monkeypatch, tmp_path):
    with running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        # huggingface_hub has read its variables already.
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        yield server


@pytest.fixture(scope="session")
def pristine(tmp_path_factory, config, tokenizer_dir):
    return exported(tmp_path_factory.mktemp("export") / "model", config, tokenizer_dir)


@pytest.fixture
def folder(tmp_path, pristine):
    return shutil.copytree(pristine, tmp_path / "model")


def exported(folder, config, tokenizer_dir, seed=0):
    """An export with two large files."""
    exported_models.write(folder, exported_models.model_of(config, seed=seed), tokenizer_dir)
    (folder / "onnx").mkdir()
    (folder / "onnx/model.onnx").write_bytes(bytes([seed]) * 20_000)
    return folder
