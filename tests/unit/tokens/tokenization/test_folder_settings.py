"""Folders of tokenizers as they were saved from 2018 on, read as transformers reads them, or refused by name."""

import dataclasses
import inspect
import json
import re
import shutil

import pytest
import transformers
from support.soak import in_soak
from unit.tokens.tokenization.conftest import assert_read_as_by_transformers, edit_json
from unit.tokens.tokenization.test_huggingface import SENTENCES

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import folder_settings as table
from megabert.tokens.tokenization import load_tokenizer, save_huggingface
from megabert.tokens.tokenization.training import train_byte_bpe


def write_files(folder, tokenizer, *, removed=(), model_type="bert", **settings):
    """Save a tokenizer next to a config.json, with other settings in tokenizer_config.json; None removes one."""
    save_huggingface(tokenizer, folder)
    edit_json(folder / "tokenizer_config.json", **settings)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    for name in removed:
        (folder / name).unlink()


def test_the_table_of_classes_is_that_of_transformers():
    auto = transformers.models.auto.tokenization_auto
    for name in table.BERT_CLASSES:
        assert issubclass(auto.tokenizer_class_from_name(name), transformers.BertTokenizer)
    assert {auto.TOKENIZER_MAPPING_NAMES[name] for name in table.BERT_TYPES} <= table.BERT_CLASSES


CLASSES, TYPES = sorted(table.BERT_CLASSES), sorted(table.BERT_TYPES)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize(
    ("stated", "model_type"),
    [
        (CLASSES[0], "bert"),
        (None, TYPES[0]),
        *in_soak(*((name, "bert") for name in CLASSES[1:]), *((None, name) for name in TYPES[1:])),
    ],
)
def test_files_that_disagree_on_case_are_read_as_transformers_does(stated, model_type, file, lower, cased, tmp_path):
    """tokenizer.json keeps case and accents."""
    removed = ["tokenizer.json"] if file == "vocab.txt" else []
    settings = {"do_lower_case": lower, "strip_accents": None, "tokenizer_class": stated}
    write_files(tmp_path, cased, removed=removed, model_type=model_type, **settings)
    assert_read_as_by_transformers(tmp_path, SENTENCES)


@pytest.mark.parametrize(
    ("stated", "model_type"),
    [
        *((name, "bert") for name in ("PreTrainedTokenizerFast", "TokenizersBackend")),
        *((name, "modernbert") for name in ("PreTrainedTokenizerFast", "BertTokenizer", "RobertaTokenizer", None)),
    ],
)
def test_the_general_class_takes_tokenizer_json_as_it_is(stated, model_type, cased, tmp_path):
    write_files(tmp_path, cased, do_lower_case=True, tokenizer_class=stated, model_type=model_type)
    assert_read_as_by_transformers(tmp_path, SENTENCES)


@pytest.mark.parametrize("lower", [True, None])
@pytest.mark.parametrize(
    ("stated", "model_type"),
    [*((name, "bert") for name in sorted(table.OWN_CLASSES)), (None, "mpnet"), (None, "funnel")],
)
def test_files_that_disagree_under_another_class_are_refused(stated, model_type, lower, cased, tmp_path):
    """Lower case is these classes' default."""
    write_files(tmp_path, cased, do_lower_case=lower, tokenizer_class=stated, model_type=model_type)
    with pytest.raises(DataError, match=r"do_lower_case is False, but True in tokenizer_config\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("removed", [[], *in_soak(["tokenizer.json"])])
@pytest.mark.parametrize("name", table.OTHER_WORDS)
def test_classes_with_words_of_their_own_are_refused_by_name(name, removed, cased, tmp_path):
    write_files(tmp_path, cased, removed=removed, tokenizer_class=name)
    with pytest.raises(DataError, match=f"tokenizer_class={name}, which {table.OTHER_WORDS[name]}"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_of_another_class_is_refused(cased, tmp_path):
    write_files(tmp_path, cased, removed=["tokenizer.json"], tokenizer_class="RobertaTokenizer")
    with pytest.raises(DataError, match=r"vocab.txt: tokenizer_class=RobertaTokenizer; of this file, BertTokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("twice", [(), ("Ishmael",), ("Qahab", "Ishmael", "Qahab"), ("saw ", "saw\t")])
def test_blanks_at_the_ends_of_lines_are_no_part_of_a_piece(twice, cased, tmp_path):
    """A piece that is there twice has its last id."""
    write_files(tmp_path, cased, removed=["tokenizer.json"])
    lines = [*cased.pieces, "Ishmael", "Qahab", "\u3000", *twice]
    ends = ["\t", " ", "\u00a0", " \t", "\r", ""]
    content = "".join(f"{line}{ends[index % 6]}\n" for index, line in enumerate(lines))
    (tmp_path / "vocab.txt").write_bytes(content.encode())
    text = "Ishmael Qahab \u3000 saw Caf\u00e9."
    ours, _ = assert_read_as_by_transformers(tmp_path, [text])
    assert ours.vocab_size == len(lines)
    save_huggingface(ours, tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").encode(text).tolist() == ours.encode(text).tolist()


TEXTS = [
    "[E1] Ishmael [E2] saw covid",
    "theCOVID ship's [e1]",
    "Call me\u3000Ishmael [unused1] naïve",
    "x covidx [E1][E2]",
]
MARKS = {"additional_special_tokens": ["[E1]", "[E2]"]}
ADDED = {"covid": 2000, "[E1]": 2001, "[E2]": 2002}
DECODER = {
    str(index): {"content": content, "special": content != "covid", "lstrip": content == "[E2]", "normalized": True}
    for content, index in ADDED.items()
}
OLDER_FORMS = {
    "added_tokens.json": {"added_tokens.json": ADDED},
    "added_tokens.json, some special": {"added_tokens.json": ADDED, "special_tokens_map.json": MARKS},
    "additional_special_tokens without ids": {"tokenizer_config.json": MARKS},
    "extra_special_tokens by name": {"tokenizer_config.json": {"extra_special_tokens": {"mark_token": "[E1]"}}},
    "added_tokens_decoder": {"tokenizer_config.json": {"added_tokens_decoder": DECODER}},
    "a map that is superseded": {
        "tokenizer_config.json": {"added_tokens_decoder": DECODER},
        "special_tokens_map.json": {"mask_token": "[SEP]"},
        "added_tokens.json": {"other": 2000},
    },
    "a map that prevails": {
        "tokenizer_config.json": {"mask_token": "Ishmael", "do_lower_case": True, "max_len": 512},
        "special_tokens_map.json": {"mask_token": {"content": "[MASK]", "lstrip": True}, **MARKS},
    },
    "settings that change nothing": {
        "tokenizer_config.json": {
            "do_lower_case": True, "never_split": None, "do_basic_tokenize": True, "padding_side": "left",
            "model_max_length": 7, "strip_accents": False, "tokenize_chinese_chars": False, "an_old_field": [1],
        }
    },
}  # fmt: skip
"""Files of a folder and their content, in the forms that were saved from 2018 on."""


@pytest.mark.parametrize("general", [False, *in_soak(True)])
@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize("form", OLDER_FORMS)
def test_older_forms_are_read_as_transformers_does(form, file, general, cased, tmp_path):
    save_huggingface(cased, tmp_path)
    for name in ("special_tokens_map.json", "tokenizer_config.json", "tokenizer.json"):
        if name != file:
            (tmp_path / name).unlink()
    files = {"tokenizer_config.json": {}, **OLDER_FORMS[form]}
    if general and file == "tokenizer.json":
        files["tokenizer_config.json"] = files["tokenizer_config.json"] | {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, content in {**files, "config.json": {"model_type": "bert"}}.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    ours, theirs = assert_read_as_by_transformers(tmp_path, [*SENTENCES, *TEXTS], reads_spare=True)
    assert ours.vocab_size == len(theirs)
    save_huggingface(ours, tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").sha256 == ours.sha256


@pytest.fixture(scope="module")
def byte_bpe(english_texts):
    return train_byte_bpe(english_texts, vocab_size=500)


@pytest.mark.parametrize("stated", ["RobertaTokenizer", None, *in_soak("PreTrainedTokenizerFast")])
@pytest.mark.parametrize("setting", [True, False, None])
@pytest.mark.parametrize("written", [True, False])
def test_a_space_before_the_first_word_is_read_as_transformers_does(written, setting, stated, byte_bpe, tmp_path):
    save_huggingface(byte_bpe, tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    state["pre_tokenizer"]["add_prefix_space"] = written
    config = {"tokenizer_class": stated, "add_prefix_space": setting}
    config = {name: value for name, value in config.items() if value is not None}
    for name, content in (("tokenizer", state), ("tokenizer_config", config), ("config", {"model_type": "roberta"})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    assert_read_as_by_transformers(tmp_path, SENTENCES)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("never_split", ["[X]"], "only transformers 4's Python class"),
        ("do_basic_tokenize", False, "words are cut as"),
        ("word_tokenizer_type", "mecab", "words are cut as"),
        ("truncation_side", "left", "a long text loses its end"),
        ("split_special_tokens", True, "added pieces are found"),
        ("auto_map", {"AutoTokenizer": ["x.py", None]}, "no code of a folder"),
        ("fast_tokenizer_files", ["tokenizer.4.0.0.json"], "only tokenizer.json"),
        ("model_input_names", ["input_ids"], "has no token_type_ids"),
        ("do_lowercase", False, "did you mean do_lower_case"),
        ("additional_special_tokens", [7], "damaged or edited"),
    ],
)
def test_settings_that_read_text_in_another_way_are_refused_by_name(setting, value, words, cased, tmp_path):
    write_files(tmp_path, cased, **{setting: value})
    with pytest.raises(DataError, match=rf"tokenizer_config\.json.*{words}") as caught:
        load_tokenizer(tmp_path)
    assert setting in str(caught.value)


def test_no_setting_that_transformers_saves_is_unknown(cased, tmp_path):
    """All names that its classes read from tokenizer_config.json are in one of the tables."""
    read = {field.name for field in dataclasses.fields(table.FolderSettings)} | {
        *table.ALLOWED,
        *" ".join(table.UNUSED.values()).split(),
    }
    for name in ("Bert", "Roberta", "Deberta", "DebertaV2", "Albert"):
        cls = getattr(transformers, f"{name}Tokenizer")
        taken = set(inspect.signature(cls.__init__).parameters) - {"self", "kwargs", "vocab", "merges"}
        assert {one for one in taken if not one.startswith("_")} <= read
    source = inspect.getsource(transformers.PreTrainedTokenizerBase.__init__)
    assert (
        set(re.findall(r'kwargs\.pop\(\s*"([a-z_]+)"', source)) - {"model_specific_special_tokens", "files_loaded"}
        <= read
    )


@pytest.mark.parametrize("name", ["spiece.model", "tokenizer_78b3253a26.model", "bpe_encoder.bin"])
@pytest.mark.parametrize("keeps", [[], ["vocab.txt"]])
def test_other_vocabularies_are_refused_by_name(keeps, name, cased, tmp_path):
    write_files(tmp_path / "made", cased)
    for kept in keeps:
        shutil.copy(tmp_path / "made" / kept, tmp_path)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=f"{name} has no tokenizer.json next to it"):
        load_tokenizer(tmp_path)
