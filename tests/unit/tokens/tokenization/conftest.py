import json
from pathlib import Path

import pytest
import tokenizers
import transformers

from megabert.tokens.tokenization import load_tokenizer
from megabert.tokens.tokenization.training import train_wordpiece

CORPORA = Path(__file__).resolve().parents[4] / "examples" / "corpus"


def read_texts(name, share=8):
    """Every eighth document of a bundled corpus."""
    with open(CORPORA / name, encoding="utf-8") as lines:
        return [json.loads(line)["text"] for number, line in enumerate(lines) if number % share == 0]


def library_ids(tokenizer, texts):
    """Ids of the library itself, which takes special pieces in a text for text."""
    plain = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    plain.encode_special_tokens = True
    return [encoding.ids for encoding in plain.encode_batch_fast(texts, add_special_tokens=False)]


def encoded(tokenizer, texts):
    return [ids.tolist() for ids in tokenizer.encode_batch(texts)]


def assert_read_as_by_transformers(folder, texts, **options):
    """Load the folder with both, and return both."""
    ours, theirs = load_tokenizer(folder, **options), transformers.AutoTokenizer.from_pretrained(folder)
    assert encoded(ours, texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    return ours, theirs


def edit_json(path, **changes):
    """Change values of a JSON file; None removes one."""
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), encoding="utf-8")


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
def minilm(minilm_folder):
    return load_tokenizer(minilm_folder)
