import dataclasses
import inspect
import json
import re
import shutil

import pytest
import tokenizers
import transformers

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import Tokenizer, load_tokenizer, save_huggingface, train_byte_bpe
from megabert.tokens.tokenization.folder_settings import (
    ALLOWED,
    BERT_CLASSES,
    BERT_TYPES,
    OTHER_WORDS,
    UNUSED,
    FolderSettings,
)

SENTENCES = [
    "Call me Ishmael. Some years ago, never mind how long!",
    "Caf\u00e9 \u00c9COLE na\u00efve co\u00f6perate",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc744 \ucabc\uac1c\uc9c0 \uc54a\ub294\ub2e4.",
    "\u4e2d\u6587 and 123,456.78 (e.g. this)",
]


@pytest.mark.parametrize("name", ["cased", "uncased", "uncased_korean", "minilm"])
def test_transformers_gives_the_same_ids_for_a_saved_folder(name, tmp_path, request):
    transformers = pytest.importorskip("transformers")
    tokenizer = request.getfixturevalue(name)
    save_huggingface(tokenizer, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")  # as next to exported weights
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    if name != "uncased_korean":  # BertTokenizer cannot keep Hangul whole and strip accents at once
        assert type(theirs).__name__ in ("BertTokenizer", "BertTokenizerFast")
    ids = tokenizer.special_ids
    wanted = [[ids.cls, *part.tolist(), ids.sep] for part in tokenizer.encode_batch(SENTENCES)]
    assert theirs(SENTENCES)["input_ids"] == wanted
    assert [theirs.pad_token_id, theirs.unk_token_id, theirs.mask_token_id] == [ids.pad, ids.unk, ids.mask]
    assert len(theirs) == tokenizer.vocab_size


@pytest.mark.parametrize("name", ["cased", "uncased", "uncased_korean", "minilm"])
def test_saving_and_loading_keeps_the_identity(name, tmp_path, request):
    tokenizer = request.getfixturevalue(name)
    save_huggingface(tokenizer, tmp_path / "one")
    loaded = load_tokenizer(tmp_path / "one")
    assert loaded.sha256 == tokenizer.sha256
    save_huggingface(loaded, tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_special_pieces_that_were_added_are_kept(cased, tmp_path):
    backend = tokenizers.Tokenizer.from_str(cased.to_json())
    backend.add_special_tokens(["<e1>", "<e2>"])
    save_huggingface(Tokenizer(backend), tmp_path)
    assert load_tokenizer(tmp_path).pieces == [*cased.pieces, "<e1>", "<e2>"]


def test_identity_does_not_depend_on_the_form_of_the_files(minilm, minilm_folder, tmp_path):
    for file in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(minilm_folder / file, tmp_path)
    assert load_tokenizer(tmp_path).sha256 == minilm.sha256
    save_huggingface(minilm, tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(state, indent=7), encoding="utf-8")
    assert load_tokenizer(tmp_path).sha256 == minilm.sha256


def test_a_folder_that_truncates_and_pads_is_read_without_either(minilm, minilm_folder):
    state = json.loads((minilm_folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert state["truncation"]  # 128, set by sentence-transformers
    assert len(minilm.encode("word " * 1000)) == 1000
    assert len(minilm.encode("word")) == 1


def test_settings_of_a_bert_tokenizer_prevail_as_in_transformers(cased, tmp_path):
    save_huggingface(cased, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"do_lower_case": True}), encoding="utf-8")
    assert load_tokenizer(tmp_path).normalize("\u00c9COLE") == "\u00e9cole"


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_another_longest_word_is_kept_and_a_bert_tokenizer_has_its_own(name, cased, tmp_path):
    save_huggingface(cased, tmp_path / "given")
    path = tmp_path / "given" / "tokenizer.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    state["model"]["max_input_chars_per_word"] = 200
    path.write_text(json.dumps(state), encoding="utf-8")
    path = path.with_name("tokenizer_config.json")
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": name}), encoding="utf-8"
    )
    tokenizer = load_tokenizer(tmp_path / "given")
    save_huggingface(tokenizer, tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").sha256 == tokenizer.sha256
    for folder in ("given", "saved"):
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        assert theirs("a" * 150, add_special_tokens=False)["input_ids"] == tokenizer.encode("a" * 150).tolist()


def test_special_pieces_may_have_other_names(cased, tmp_path):
    save_huggingface(cased, tmp_path)
    for file in tmp_path.iterdir():
        file.write_text(file.read_text(encoding="utf-8").replace("[MASK]", "<mask>"), encoding="utf-8")
    (tmp_path / "tokenizer.json").unlink()
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.special_ids == cased.special_ids
    assert tokenizer.special_ids.mask not in tokenizer.encode("<mask>")


@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize("piece", ["[MASK]", "[PAD]"])
def test_missing_special_pieces_are_named_with_the_file(file, piece, cased, tmp_path):
    save_huggingface(cased, tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    index = state["model"]["vocab"].pop(piece)
    state["model"]["vocab"]["renamed"] = index
    state["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("\n".join(p for p in cased.pieces if p != piece) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").unlink()  # it names all five
    if file == "vocab.txt":
        (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError) as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path / file) in str(caught.value)
    assert f"has no {piece}." in str(caught.value)


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"looked for tokenizer\.json, vocab\.txt, vocab\.json"):
        load_tokenizer(tmp_path)


def test_damaged_files_are_named(cased, tmp_path):
    save_huggingface(cased, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer\.json: damaged or edited \(Invalid JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    model = {"type": "WordLevel", "vocab": {}, "unk_token": "?"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "normalizer": {"type": "Lowercase"}}))
    with pytest.raises(DataError, match=r"the model is WordLevel"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(DataError, match=r"vocab\.txt: not UTF-8 at byte 6"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_with_a_piece_twice_is_refused(cased, tmp_path):
    pieces = [*cased.pieces, cased.pieces[100]]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="id 100 is missing or used twice"):
        load_tokenizer(tmp_path)


def test_added_pieces_survive_saving(cased, tmp_path):
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(cased.to_json())
    backend.add_tokens(["white whale"])
    save_huggingface(Tokenizer(backend), tmp_path)
    assert load_tokenizer(tmp_path).encode("white whale").tolist() == [cased.vocab_size]


@pytest.mark.parametrize("setting", [{"x": 1}, {"content": None}, ["[CLS]"], 3], ids=str)
def test_special_piece_that_is_no_text_is_refused(setting, tmp_path, cased):
    save_huggingface(cased, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "cls_token": setting}))
    with pytest.raises(DataError, match=r"tokenizer_config\.json: damaged or edited \(cls_token.*: Input should be"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
@pytest.mark.parametrize("value", ["no", 0, []])
def test_switch_that_is_not_true_or_false_is_refused(name, value, tmp_path, minilm_folder):
    for file in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(minilm_folder / file, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(DataError, match=rf"tokenizer_config\.json: damaged .*{name}: Input should be a valid bool"):
        load_tokenizer(tmp_path)


def test_id_far_out_of_range_is_refused(tmp_path, cased):
    save_huggingface(cased, tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    state["model"]["vocab"][cased.pieces[-1]] = 2**32 - 1
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="Input should be less than"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("value", ["7", [7], -7, True, 10**30, 7.5], ids=str)
def test_byte_bpe_ids_that_are_no_numbers_are_refused(value, tmp_path):
    save_huggingface(train_byte_bpe(["hello world, hello cat "] * 9, vocab_size=270), tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps({**vocabulary, "a": value}))
    with pytest.raises(DataError, match=r"vocab\.json: damaged or edited \(a: Input should be"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("merge", ["zzz qqq", "zzz", "h h"])
def test_merge_of_unknown_pieces_is_refused(merge, tmp_path):
    save_huggingface(train_byte_bpe(["hello world, hello cat "] * 9, vocab_size=270), tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with (tmp_path / "merges.txt").open("a") as file:
        file.write(f"{merge}\n")
    with pytest.raises(DataError, match="out of vocabulary"):
        load_tokenizer(tmp_path)


def write_files(folder, tokenizer, *, removed=(), model_type="bert", **settings):
    """Save a tokenizer next to a config.json, with other settings in tokenizer_config.json; None removes one."""
    save_huggingface(tokenizer, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | settings
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    for name in removed:
        (folder / name).unlink()


def test_the_table_of_classes_is_that_of_transformers():
    auto = transformers.models.auto.tokenization_auto
    for name in BERT_CLASSES:
        assert issubclass(auto.tokenizer_class_from_name(name), transformers.BertTokenizer)
    assert {auto.TOKENIZER_MAPPING_NAMES[name] for name in BERT_TYPES} <= BERT_CLASSES


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize(
    ("stated", "model_type"),
    [*((name, "bert") for name in sorted(BERT_CLASSES)), (None, "bert"), (None, "electra"), (None, "distilbert")],
)
def test_files_that_disagree_on_case_are_read_as_transformers_does(stated, model_type, file, lower, cased, tmp_path):
    """tokenizer.json keeps case and accents."""
    removed = ["tokenizer.json"] if file == "vocab.txt" else []
    settings = {"do_lower_case": lower, "strip_accents": None, "tokenizer_class": stated}
    write_files(tmp_path, cased, removed=removed, model_type=model_type, **settings)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = [ids.tolist() for ids in load_tokenizer(tmp_path).encode_batch(SENTENCES)]
    assert ids == theirs(SENTENCES, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("stated", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_the_general_class_takes_tokenizer_json_as_it_is(stated, cased, tmp_path):
    write_files(tmp_path, cased, do_lower_case=True, tokenizer_class=stated)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = [ids.tolist() for ids in load_tokenizer(tmp_path).encode_batch(SENTENCES)]
    assert ids == theirs(SENTENCES, add_special_tokens=False)["input_ids"]


def test_files_that_disagree_under_another_class_are_refused(cased, tmp_path):
    write_files(tmp_path, cased, do_lower_case=True, tokenizer_class="FunnelTokenizer")
    with pytest.raises(DataError, match=r"do_lower_case is False, but True in tokenizer_config\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("removed", [[], ["tokenizer.json"]])
@pytest.mark.parametrize("name", OTHER_WORDS)
def test_classes_with_words_of_their_own_are_refused_by_name(name, removed, cased, tmp_path):
    write_files(tmp_path, cased, removed=removed, tokenizer_class=name)
    with pytest.raises(DataError, match=f"tokenizer_class={name}, which {OTHER_WORDS[name]}"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_of_another_class_is_refused(cased, tmp_path):
    write_files(tmp_path, cased, removed=["tokenizer.json"], tokenizer_class="RobertaTokenizer")
    with pytest.raises(DataError, match=r"vocab.txt: tokenizer_class=RobertaTokenizer; of this file, BertTokenizer"):
        load_tokenizer(tmp_path)


def test_blanks_at_the_ends_of_lines_are_no_part_of_a_piece(cased, tmp_path):
    write_files(tmp_path, cased, removed=["tokenizer.json"])
    lines = [*cased.pieces, "Ishmael", "Qahab", "\u3000"]
    ends = ["\t", " ", "\u00a0", " \t", "\r", ""]
    content = "".join(f"{line}{ends[index % 6]}\n" for index, line in enumerate(lines))
    (tmp_path / "vocab.txt").write_bytes(content.encode())
    ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Ishmael Qahab \u3000 saw Caf\u00e9."
    assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.pieces[len(cased.pieces) + 1] == "Qahab"


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


@pytest.mark.parametrize("general", [False, True])
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
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path, reads_spare=True)
    ids = [ids.tolist() for ids in ours.encode_batch([*SENTENCES, *TEXTS])]
    assert ids == theirs([*SENTENCES, *TEXTS], add_special_tokens=False)["input_ids"]
    assert ours.vocab_size == len(theirs)
    save_huggingface(ours, tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").sha256 == ours.sha256


@pytest.mark.parametrize("stated", ["RobertaTokenizer", "PreTrainedTokenizerFast", None])
@pytest.mark.parametrize("setting", [True, False, None])
@pytest.mark.parametrize("written", [True, False])
def test_a_space_before_the_first_word_is_read_as_transformers_does(written, setting, stated, english_texts, tmp_path):
    save_huggingface(train_byte_bpe(english_texts, vocab_size=500), tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    state["pre_tokenizer"]["add_prefix_space"] = written
    config = {"tokenizer_class": stated, "add_prefix_space": setting}
    config = {name: value for name, value in config.items() if value is not None}
    for name, content in (("tokenizer", state), ("tokenizer_config", config), ("config", {"model_type": "roberta"})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = [ids.tolist() for ids in load_tokenizer(tmp_path).encode_batch(SENTENCES)]
    assert ids == theirs(SENTENCES, add_special_tokens=False)["input_ids"]


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
    read = {field.name for field in dataclasses.fields(FolderSettings)} | {*ALLOWED, *" ".join(UNUSED.values()).split()}
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
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {name: value}), encoding="utf-8")
    with pytest.raises(DataError, match=rf"tokenizer\.json: .*{words}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", ["Unigram", "BPE"])
def test_a_model_of_another_class_is_refused(kind, cased, tmp_path):
    write_files(tmp_path, cased)
    path = tmp_path / "tokenizer.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    vocab = state["model"]["vocab"]
    models = {
        "Unigram": {"unk_id": 1, "vocab": [[piece, -1.0] for piece in vocab]},
        "BPE": {"vocab": vocab, "merges": []},
    }
    state |= {"model": {"type": kind, **models[kind]}, "pre_tokenizer": None}
    path.write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(DataError, match=f"model.type is {kind}, but tokenizer_class=BertTokenizer is of WordPiece"):
        load_tokenizer(tmp_path)
