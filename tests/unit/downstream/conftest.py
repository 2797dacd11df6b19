import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.exported_models import model_of, write
from support.run_folders import write_run
from support.tiny_models import tiny_config, write_tokenizer

from megabert.checkpoints import format as formats
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import load_tokenizer
from megabert.training.run.folder import read_config
from megabert.training.state import TrainerState

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", "sea", "ship", "sailed", "over", "##ing", ".", ",", "[unused0]"]


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of 69 pieces: not a multiple of 64."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters[1:], *(f"##{c}" for c in letters[:24])]
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), pieces, model_max_length=32)


@pytest.fixture(scope="session")
def config(tokenizer_dir: Path) -> ModelConfig:
    return tiny_config(
        vocab_size=load_tokenizer(tokenizer_dir).vocab_size,
        **{"max_position_embeddings": 32, "hidden_act": "gelu_new", "layer_norm_eps": 1e-7},
    )


@pytest.fixture
def exported(config, tokenizer_dir, tmp_path) -> Path:
    """The folder of an exported BERT of random weights."""
    write(tmp_path / "exported", model_of(config), tokenizer_dir)
    return tmp_path / "exported"


@pytest.fixture
def write_step(tokenizer_dir, tmp_path) -> Callable[[int], Path]:
    """Writes a checkpoint of random weights, seeded by its step, into one run folder, and returns that folder."""
    run_dir = write_run(tmp_path / "run", [], model={"vocab_size": 69}, data={"path": "nowhere"})
    shutil.copytree(tokenizer_dir, run_dir / "tokenizer")

    def write(step: int) -> Path:
        folder = run_dir / "checkpoints" / formats.folder_name(step)
        folder.mkdir(parents=True)
        model = model_of(read_config(run_dir).model, seed=step)
        values = {name: parameter.detach().flatten() for name, parameter in model.named_parameters()}
        file = "rank_00000.safetensors"
        stored = formats.write_tensors(
            folder / file,
            [(formats.key_of(formats.MASTER, name, 0), value) for name, value in values.items()],
        )
        parameters = {
            name: formats.StoredParameter(list(parameter.shape), [(file, 0, parameter.numel())])
            for name, parameter in model.named_parameters()
        }
        manifest = formats.CheckpointManifest(
            step=step,
            world_size=1,
            zero_stage=0,
            files={file: stored},
            parameters=parameters,
            engine_state={},
            trainer_state=TrainerState(step=step, phase_step=step, data_sha256=(("a",), ("b",))).to_dict(),
            versions={"megabert": "0.9", "torch": "2.11"},
        )
        formats.write_checkpoint_manifest(folder, manifest)
        return run_dir

    return write
