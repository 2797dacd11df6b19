import json
import shutil

import pytest
import tokenizers
import transformers
from unit.tokens.tokenization.conftest import assert_read_as_by_transformers, edit_json

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


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_another_longest_word_is_kept_and_a_bert_tokenizer_has_its_own(name, cased, tmp_path):
    given, saved = tmp_path / "given", tmp_path / "saved"
    save_huggingface(cased, given)
    model = json.loads((given / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    edit_json(given / "tokenizer.json", model={**model, "max_input_chars_per_word": 200})
    edit_json(given / "tokenizer_config.json", tokenizer_class=name)
    save_huggingface(load_tokenizer(given), saved)
    hashes = {assert_read_as_by_transformers(folder, ["a" * 150])[0].sha256 for folder in (given, saved)}
    assert len(hashes) == 1


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
    model = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    model["vocab"]["renamed"] = model["vocab"].pop(piece)
    edit_json(tmp_path / "tokenizer.json", model=model, added_tokens=[])
    (tmp_path / "vocab.txt").write_text("\n".join(p for p in cased.pieces if p != piece) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").unlink()  # it names all five
    if file == "vocab.txt":
        (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=rf"{tmp_path / file}.*has no \{piece[:-1]}\]\."):
        load_tokenizer(tmp_path)


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


@pytest.mark.parametrize(
    ("name", "setting", "says"),
    [
        *(("cls_token", setting, "cls_token.*") for setting in ({"x": 1}, {"content": None}, ["[CLS]"], 3)),
        *(("do_lower_case", value, "do_lower_case: Input should be a valid bool") for value in ("no", 0, [])),
        *(
            (name, "no", f"{name}: Input should be a valid bool")
            for name in ("strip_accents", "tokenize_chinese_chars")
        ),
    ],
    ids=str,
)
def test_setting_of_another_type_is_refused(name, setting, says, tmp_path, cased):
    save_huggingface(cased, tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", **{name: setting})
    with pytest.raises(DataError, match=rf"tokenizer_config\.json: damaged or edited \(.*{says}"):
        load_tokenizer(tmp_path)


@pytest.fixture
def byte_bpe_files(tmp_path):
    """A folder of vocab.json and merges.txt alone."""
    save_huggingface(train_byte_bpe(["hello world, hello cat "] * 9, vocab_size=270), tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    return tmp_path


@pytest.mark.parametrize("value", ["7", [7], -7, True, 10**30, 7.5], ids=str)
def test_byte_bpe_ids_that_are_no_numbers_are_refused(value, byte_bpe_files):
    edit_json(byte_bpe_files / "vocab.json", a=value)
    with pytest.raises(DataError, match=r"vocab\.json: damaged or edited \(a: Input should be"):
        load_tokenizer(byte_bpe_files)


@pytest.mark.parametrize("merge", ["zzz qqq", "zzz", "h h"])
def test_merge_of_unknown_pieces_is_refused(merge, byte_bpe_files):
    with (byte_bpe_files / "merges.txt").open("a") as file:
        file.write(f"{merge}\n")
    with pytest.raises(DataError, match="out of vocabulary"):
        load_tokenizer(byte_bpe_files)
