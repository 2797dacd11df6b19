"""Bounds of tokenizer.json, its model against the class of the folder, and panics of the library."""

import json

import pytest
from unit.tokens.tokenization.conftest import edit_json
from unit.tokens.tokenization.test_folder_settings import write_files

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import load_tokenizer, save_huggingface
from megabert.tokens.tokenization.tokenizer_kinds import panics_as_errors

REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 12}
ENDLESS = {
    "a long piece": ("model", {"unk_id": 0, "vocab": [["a" * 300_000, -1.0]]}, "vocab.scores.0.0.*4096"),
    "a long name of an id": ("model", {"type": "WordPiece", "vocab": {"a" * 300_000: 0}}, "ids.a{60}.\\[key\\].*4096"),
    "no numbers": ("model", {"type": "Unigram", "unk_id": 0, "vocab": [["a", "b"]]}, "vocab"),
    "no pre_tokenizer": ("pre_tokenizer", None, "and a pre_tokenizer"),
    "no object": ("normalizer", ["Lowercase"], "normalizer"),
    "growing text": ("normalizer", {"type": "Sequence", "normalizers": [REPLACE] * 9}, "144 times longer"),
    "growing output": ("decoder", {"type": "Sequence", "decoders": [REPLACE] * 9}, "144 times longer"),
    "a growing sequence in one": (
        "normalizer", {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [REPLACE] * 9}]}, "144"
    ),
    "steps without end": (
        "normalizer", {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 65}, "has 65 steps"
    ),
    "ids by chance": ("model", {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.1}, "model.dropout is 0.1"),
    "an added piece far off": ("added_tokens", [{"id": 10**9, "content": "x"}], "'x' has the id 1,000,000,000"),
    "an added piece that is there": ("added_tokens", [{"id": 2000, "content": "the"}], "the vocabulary has it as"),
    "an added piece of nothing": ("added_tokens", [{"id": 2000, "content": ""}], "added_tokens.0.content"),
}  # fmt: skip


@pytest.mark.parametrize("field", ENDLESS)
def test_tokenizer_json_has_bounds(field, cased, tmp_path):
    name, value, words = ENDLESS[field]
    write_files(tmp_path, cased, tokenizer_class="PreTrainedTokenizerFast")
    state = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(state | {name: value}), encoding="utf-8")
    with pytest.raises(DataError, match=rf"tokenizer\.json: .*{words}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", ["Unigram", "BPE"])
def test_a_model_of_another_class_is_refused(kind, cased, tmp_path):
    write_files(tmp_path, cased)
    models = {
        "Unigram": {"unk_id": 1, "vocab": [[piece, -1.0] for piece in cased.vocab]},
        "BPE": {"vocab": cased.vocab, "merges": []},
    }
    edit_json(tmp_path / "tokenizer.json", model={"type": kind, **models[kind]}, pre_tokenizer=None)
    with pytest.raises(DataError, match=f"model.type is {kind}, but tokenizer_class=BertTokenizer is of WordPiece"):
        load_tokenizer(tmp_path)


def test_id_far_out_of_range_is_refused(tmp_path, cased):
    save_huggingface(cased, tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    model["vocab"][cased.pieces[-1]] = 2**32 - 1
    edit_json(tmp_path / "tokenizer.json", model=model)
    with pytest.raises(DataError, match="Input should be less than"):
        load_tokenizer(tmp_path)


Panic = type("PanicException", (BaseException,), {})
"""Stands for pyo3's, which is made anew by each library."""


def test_panic_of_a_library_is_an_error_with_its_place():
    with (
        pytest.raises(
            DataError, match=r"a/tokenizer\.json: `tokenizers` broke down on it \(index out of bounds\)\. Fetch"
        ),
        panics_as_errors("a/tokenizer.json"),
    ):
        raise Panic("index out of bounds")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_everything_else_passes(error):
    with pytest.raises(error), panics_as_errors("a"):
        raise error
