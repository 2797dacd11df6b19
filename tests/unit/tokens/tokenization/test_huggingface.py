import json
import shutil

import pytest
import tokenizers
import transformers

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import Tokenizer, load_tokenizer, save_huggingface
from megabert.tokens.tokenization.training import train_byte_bpe

SENTENCES = [
    "Call me Ishmael. Some years ago, never mind how long!",
    "Caf\u00e9 \u00c9COLE na\u00efve co\u00f6perate",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc744 \ucabc\uac1c\uc9c0 \uc54a\ub294\ub2e4.",
    "\u4e2d\u6587 and 123,456.78 (e.g. this)",
]


@pytest.mark.parametrize("name", ["cased", "uncased", "uncased_korean", "minilm"])
def test_transformers_gives_the_same_ids_for_a_saved_folder(name, tmp_path, request):
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


def test_pieces_that_were_added_are_kept(cased, tmp_path):
    backend = tokenizers.Tokenizer.from_str(cased.to_json())
    backend.add_special_tokens(["<e1>", "<e2>"])
    backend.add_tokens(["white whale"])
    save_huggingface(Tokenizer(backend), tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.pieces == [*cased.pieces, "<e1>", "<e2>", "white whale"]
    assert loaded.encode("white whale").tolist() == [cased.vocab_size + 2]


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
