"""Tokenizers of others, under each command that reads one: settings and pieces with which ids would differ."""

from collections.abc import Iterator

from bad_input.given import copy, remove, set_json, write
from bad_input.harness import Case, Step

DOORS = {
    "fill-mask": "megabert fill-mask --model hf 'the [MASK] ship'",
    "build": "megabert-data build --input text.jsonl --tokenizer hf --output out --lengths 32 --workers 1",
    "finetune": "megabert finetune classification --model hf --data labels.tsv --output-dir new --epochs 1",
}
SETTINGS = {  # tokenizer_config.json's, each with a value that reads text in another way
    "do_subword_tokenize": False,
    "subword_tokenizer_type": "character",
    "added_tokens_decoder": {"-1": {"content": "[X]"}},
    "additional_special_tokens": {"a": 7},
}
REPLACES = {"type": "Replace", "pattern": {"String": "e"}, "content": "eeeeeeee"}
PARTS = {  # parts of tokenizer.json that abort `tokenizers`, fill the memory, or are of another kind of model
    "model": [{"type": "Unigram", "vocab": [["[UNK]", -1.0]], "unk_id": 0}, {"type": "BPE", "vocab": {}, "merges": []}],
    "model.vocab": [{"x" * 300_000: 0}, {"[PAD]": -1}, {"[PAD]": 0.5}, [["[UNK]", "low"]]],
    "model.dropout": [0.1],
    "normalizer": [{"type": "Sequence", "normalizers": [REPLACES] * 9}, {"type": "Nobody"}],
    "pre_tokenizer": [{"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}],
    "added_tokens": [[{"id": 10**9, "content": "[X]"}], [{"id": 1, "content": ""}], [{"id": 1, "content": "the"}], 7],
}


def _forms() -> Iterator[tuple[str, tuple[Step, ...], str]]:
    """Yield name, what is done to the material, and what the message names."""
    for name, value in SETTINGS.items():
        yield f"with {name}", (set_json("hf/tokenizer_config.json", name, value),), name
    for part, values in PARTS.items():
        for number, value in enumerate(values, 1):
            yield f"with {part}, {number}", (set_json("hf/tokenizer.json", part, value),), "hf/tokenizer.json"
    yield "in dict.txt", (remove("hf/tokenizer.json"), write("hf/dict.txt", b"\0")), "dict.txt"


CASES = [
    Case(
        name=f"{door}: a tokenizer {name}",
        given=(copy("hf", "labels.tsv", "text.jsonl"), *steps),
        command=command,
        says=(says,),
        quick=(door, name) == ("build", "with added_tokens, 1"),
    )
    for door, command in DOORS.items()
    for name, steps, says in _forms()
]
