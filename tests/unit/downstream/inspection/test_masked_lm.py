"""Masked-LM scores of any text: those of transformers on the same masks, whatever the batch size; what is refused."""

import json
import math
import random
from collections import Counter

import pytest
import torch
import transformers
from support.made_shards import make_instances, write_shards
from unit.downstream.inspection.conftest import PIECES

from megabert.cli import main
from megabert.downstream.export.sources import open_source
from megabert.downstream.inspection.encode_text import read_parts, sequences_of
from megabert.downstream.inspection.masked_lm import ScoringOptions, score_masked_lm, text_batches
from megabert.foundation.errors import DataError
from megabert.tokens.shards.folder import read_manifest

WORDS = ("the", "cat", "dog", "sat", ".")
OPTIONS = ScoringOptions(max_seq_length=12, masked_lm_prob=0.4, batch_tokens=30)


@pytest.fixture
def text(tmp_path):
    """Thirty documents of one to forty words, wrapped, with blank lines between them."""
    rng = random.Random(0)
    documents = [rng.choices(WORDS, k=rng.randint(1, 40)) for _ in range(30)]
    wrapped = ["\n".join(" ".join(words[at : at + 7]) for at in range(0, len(words), 7)) for words in documents]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(wrapped) + "\n")
    return path


@pytest.mark.parametrize("rows", [len(PIECES), len(PIECES) + 2])
def test_scores_are_those_of_transformers_on_the_same_masks(rows, model_folder, text):
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(model_folder).eval()
    theirs.resize_token_embeddings(rows)
    theirs.save_pretrained(model_folder)
    source = open_source(str(model_folder))
    losses, right = [], []
    for batch in text_batches(text, source.load_tokenizer(), OPTIONS):
        labels_T = torch.full_like(batch.input_ids_T, -100).index_copy(0, batch.masked_positions_M, batch.masked_ids_M)
        for first, stop in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False):
            labels = labels_T[first:stop][None]
            with torch.no_grad():
                output = theirs(input_ids=batch.input_ids_T[first:stop][None], labels=labels)
            losses += [output.loss.item()] * int((labels != -100).sum())
            right += (output.logits.argmax(-1) == labels)[labels != -100].tolist()
    score = score_masked_lm(source, text, OPTIONS).total
    assert score.predicted == len(losses) > 100
    assert score.loss == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert score.accuracy == pytest.approx(sum(right) / len(right))
    assert score.perplexity == pytest.approx(math.exp(score.loss))


def test_scores_do_not_depend_on_the_batch_size(model_folder, text):
    source = open_source(str(model_folder))
    small, large = (
        score_masked_lm(source, text, ScoringOptions(max_seq_length=12, batch_tokens=tokens)).to_dict()
        for tokens in (12, 4096)
    )
    assert small["loss"] == pytest.approx(large["loss"], abs=1e-6)
    for name in ("predicted", "accuracy", "unigram_loss", "sequences", "tokens"):
        assert small[name] == large[name]


def test_unigram_guesses_by_the_frequencies_of_the_text(model_folder, text):
    source = open_source(str(model_folder))
    tokenizer = source.load_tokenizer()
    counts = Counter(text.read_text().split())
    frequent = counts.most_common(1)[0][0]
    total = sum(counts.values()) + len(PIECES)
    targets = [i for batch in text_batches(text, tokenizer, OPTIONS) for i in batch.masked_ids_M.tolist()]
    expected = -sum(math.log((counts[PIECES[i]] + 1) / total) for i in targets) / len(targets)
    score = score_masked_lm(source, text, OPTIONS).total
    assert score.unigram_loss == pytest.approx(expected)
    assert score.unigram_accuracy == pytest.approx(targets.count(PIECES.index(frequent)) / len(targets))


def test_rows_by_length_add_up(tmp_path, model_folder):
    (tmp_path / "t.txt").write_text("\n\n".join("the cat sat . " * n for n in (1, 2, 9)))
    score = score_masked_lm(open_source(str(model_folder)), tmp_path / "t.txt", OPTIONS)
    assert [row.lengths for row in score.by_length] == ["1 to 32"]
    assert (score.total.sequences, score.tokens) == (6, 4 + 8 + 36 + 6 * 2)


def test_json_lines_are_documents_and_lines_of_text_go_on(tokenizer, tmp_path):
    (tmp_path / "t.txt").write_text("the cat\r\nsat .\n\n \nthe dog")
    (tmp_path / "t.jsonl").write_text('{"body": "the cat sat ."}\n\n{"body": "the dog"}\n')
    plain, rows = (
        [ids.tolist() for ids in sequences_of(tokenizer, read_parts(tmp_path / name, "body"), 12)]
        for name in ("t.txt", "t.jsonl")
    )
    assert plain == rows
    assert [len(ids) for ids in rows] == [6, 4]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", b"the\0cat", "t.txt:1: holds a NUL character"),
        ("t.txt", b"caf\xe9", "is not UTF-8 text"),
        ("t.txt", b" \n\n", "has no text"),
        ("t.jsonl", b'{"text": 1}', "no text under 'text'"),
        ("t.jsonl", b"the cat", "t.jsonl:1"),
    ],
)
def test_what_is_no_text_is_named(name, content, message, model_folder, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        score_masked_lm(open_source(str(model_folder)), tmp_path / name, OPTIONS)


def test_shards_are_scored_with_their_masks_and_pairs(model_folder, tokenizer, tmp_path):
    instances = make_instances(40, 12, len(PIECES), 0)
    shards = {"train": [instances], "validation": [instances]}
    sha256 = open_source(str(model_folder)).load_tokenizer().sha256
    sizes = {"vocab_size": len(PIECES), "length": 12}
    folder = write_shards(tmp_path / "shards", shards, **sizes, tokenizer_sha256=sha256)
    score = score_masked_lm(open_source(str(model_folder)), folder, OPTIONS)
    assert score.total.sequences == 40
    assert score.total.predicted == sum(len(row.masked_lm_ids) for row in instances)
    ones = sum(row.next_sentence_label for row in instances)
    assert score.next_sentence[1] == max(ones, 40 - ones) / 40
    theirs = transformers.BertForPreTraining.from_pretrained(model_folder).eval()
    right = 0
    for row in instances:
        ids = torch.tensor([list(row.input_ids)])
        segments = (torch.arange(ids.shape[1]) >= row.segment_b_start).long()[None]
        with torch.no_grad():
            guess = theirs(input_ids=ids, token_type_ids=segments).seq_relationship_logits.argmax(-1)
        right += int(guess) == row.next_sentence_label
    assert score.next_sentence[0] == right / 40


def test_command_prints_the_table_and_writes_the_settings_that_were_used(model_folder, text, tmp_path, megabert):
    sizes = {"vocab_size": len(PIECES), "length": 12}
    sha256 = open_source(str(model_folder)).load_tokenizer().sha256
    shards = {"validation": [make_instances(4, 12, len(PIECES), 0)]}
    folder = write_shards(tmp_path / "shards", shards, **sizes, tokenizer_sha256=sha256)
    used = {}
    for data, flags in ((folder, []), (text, ["--masked-lm-prob", "0.3", "--max-seq-length", "9"])):
        words = ["evaluate", "mlm", "--model", str(model_folder), "--data", str(data), "--device", "cpu"]
        printed = megabert(*words, "--json", tmp_path / "s.json", *flags).out
        content = json.loads((tmp_path / "s.json").read_text())
        assert f"{content['loss']:.4f}" in printed
        assert content["by_length"][0]["lengths"] == "1 to 32"
        names = ("max_seq_length", "masked_lm_prob", "seed", "text_column", "split")
        used[data] = {name: content[name] for name in names if name in content}
    share = read_manifest(folder).metadata.masked_lm_prob
    assert used[folder] == {"max_seq_length": 12, "masked_lm_prob": share, "split": "validation"}
    assert used[text] == {"max_seq_length": 9, "masked_lm_prob": 0.3, "seed": 42, "text_column": "text"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["mlm", "--task", "rte"], "--task has no effect with mlm"),
        (["mlm", "--epochs", "3"], "--epochs has no effect on the score of a text file"),
        (["mlm", "--ops.attention", "torch"], "--ops.attention has no effect on the score of a text file"),
        (["mlm", "--split", "train"], "--split has no effect"),
        (["--masked-lm-prob", "0.2"], "--masked-lm-prob has no effect without mlm"),
        (["mlm", "--max-seq-length", "13"], "max_seq_length=13 is above the 12 positions"),
    ],
)
def test_flags_without_effect_are_refused(flags, message, model_folder, text, megabert):
    assert message in megabert("evaluate", "--model", model_folder, "--data", text, *flags, code=2).err


@pytest.mark.parametrize("words", [["mlm"], []])
def test_name_of_the_hub_comes_with_the_line_that_downloads_it(words, text, capsys):
    assert main(["evaluate", *words, "--model", "google-bert/bert-base-cased", "--data", str(text)]) == 2
    line = "hf download google-bert/bert-base-cased --local-dir models/google-bert/bert-base-cased"
    assert line in capsys.readouterr().err
