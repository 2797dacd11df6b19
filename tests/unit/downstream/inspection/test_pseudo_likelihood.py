"""Pseudo-log-likelihoods equal transformers' with one mask at a time; what the command prints and writes."""

import json
import math
import random
from dataclasses import replace

import pytest
import torch
import transformers
from support.parity_models import CASES, make_tokenizer, random_model, write

from megabert.cli import main
from megabert.downstream.export.sources import open_source
from megabert.downstream.inspection.pseudo_likelihood import SentenceScorer
from megabert.foundation.errors import CheckpointError

HEADS = {
    "BertForPreTraining": "BertForMaskedLM",
    "AlbertForPreTraining": "AlbertForMaskedLM",
    "ElectraForPreTraining": "ElectraForMaskedLM",
    "DebertaV2Model": "DebertaV2ForMaskedLM",  # the class of a discriminator
}
FAMILIES = {case.family: case for case in reversed(CASES)}
"""The first case of each family; ELECTRA and DeBERTa 3 with a generator of their own."""


def make_sentences(seed=0):
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 5))) for _ in range(12)]
    return [" ".join(rng.choices(words, k=rng.randint(1, 6))) + rng.choice((".", "", "?")) for _ in range(5)]


@pytest.fixture(params=FAMILIES)
def exported(request, tmp_path):
    """Return the folder of a random model, and transformers' model and tokenizer for it."""
    case = FAMILIES[request.param]
    tokenizer = make_tokenizer(tmp_path / "tokenizer", pad_id=1 if case.family == "roberta" else 0)
    folder = tmp_path / "model"
    config = replace(case.config, enhanced_mask_decoder=False)  # transformers' classes fill masks without it
    write(random_model(config, case.objective), folder, tokenizer)
    has_generator = "generator_size" in case.options
    head = getattr(transformers, HEADS.get(case.head, case.head))
    theirs = head.from_pretrained(folder / "generator" if has_generator else folder).eval()
    return folder, theirs, transformers.AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def score_one_mask_at_a_time(model, tokenizer, text, mask):
    encoding = tokenizer(text, return_tensors="pt")
    ids, words = encoding["input_ids"][0], encoding.word_ids()
    score = 0.0
    for index, word in enumerate(words):
        if word is None:
            continue
        hidden = [later for later in range(index, len(words)) if words[later] == word]
        masked = ids.clone()
        masked[hidden if mask == "within-word" else index] = tokenizer.mask_token_id
        logits = model(input_ids=masked[None]).logits[0, index]
        score += torch.log_softmax(logits.double(), -1)[ids[index]].item()
    return score


@pytest.mark.parametrize("mask", ["within-word", "token"])
def test_scores_are_those_of_transformers_one_mask_at_a_time(exported, mask):
    folder, model, tokenizer = exported
    texts = make_sentences()
    ours = SentenceScorer(open_source(str(folder)), mask=mask, batch_tokens=100).score(texts)
    theirs = [score_one_mask_at_a_time(model, tokenizer, text, mask) for text in texts]
    assert ours.scores_S.tolist() == pytest.approx(theirs, abs=1e-5, rel=1e-5)
    assert ours.counts_S.tolist() == [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


def test_command_writes_a_row_per_sentence_and_the_means(model_folder, tmp_path, capsys):
    (tmp_path / "t.txt").write_text("the cat sat.\n\nthe dogs  \n")
    words = ["pll", str(tmp_path / "t.txt"), "--model", str(model_folder), "--device", "cpu"]
    assert main([*words, "--output", str(tmp_path / "o.jsonl"), "--json", str(tmp_path / "s.json")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    total = json.loads((tmp_path / "s.json").read_text())
    assert [(row["line"], row["text"], row["pieces"]) for row in rows] == [(1, "the cat sat.", 4), (3, "the dogs", 3)]
    assert total["score"] == pytest.approx(sum(row["score"] for row in rows))
    assert total["pseudo_perplexity"] == pytest.approx(math.exp(-total["score"] / 7))
    assert total["bits_per_character"] == pytest.approx(-total["score"] / math.log(2) / 20)
    assert f"{total['pseudo_perplexity']:.2f}" in capsys.readouterr().out


def test_json_lines_have_the_same_scores_as_plain_text(model_folder, tmp_path, megabert):
    (tmp_path / "t.txt").write_text("the cat sat.\nthe dogs\n")
    (tmp_path / "t.jsonl").write_text('{"body": "the cat sat."}\n{"body": "the dogs"}\n')
    words = ["--model", str(model_folder), "--device", "cpu", "--output"]
    megabert("pll", tmp_path / "t.txt", *words, tmp_path / "1")
    megabert("pll", tmp_path / "t.jsonl", "--text-column", "body", *words, tmp_path / "2")
    assert (tmp_path / "1").read_text() == (tmp_path / "2").read_text()


def test_sentences_that_are_too_long_are_counted_and_the_first_is_named(model_folder, tmp_path, megabert):
    (tmp_path / "t.txt").write_text("the cat\n" + "the cat sat on . " * 3 + "\n")
    words = ["pll", str(tmp_path / "t.txt"), "--model", str(model_folder), "--device", "cpu"]
    told = megabert(*words, "--output", tmp_path / "o.jsonl").err
    assert "1 of 2 sentences are longer than the 12 tokens that the model reads" in told
    assert f"{tmp_path}/t.txt:2" in told
    assert [json.loads(line)["windowed"] for line in (tmp_path / "o.jsonl").read_text().splitlines()] == [False, True]


def test_scores_do_not_depend_on_the_batch_or_on_the_other_sentences(model_folder):
    source, texts = open_source(str(model_folder)), ["the cat sat.", "the dogs", "", "the", "cats"]
    alone = SentenceScorer(source, batch_tokens=1)
    together = SentenceScorer(source).score(texts).scores_S
    assert together.tolist() == pytest.approx([float(alone.score([text]).scores_S[0]) for text in texts], abs=1e-6)
    assert together[2] == 0


def test_electra_without_its_generator_is_refused(tmp_path):
    case = FAMILIES["electra"]
    folder = tmp_path / "model"
    write(random_model(case.config, case.objective), folder, make_tokenizer(tmp_path / "tokenizer", pad_id=0))
    for path in (folder / "generator").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match="an ELECTRA with its generator"):
        SentenceScorer(open_source(str(folder)))


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--text-column", "body"], 2, "--text-column has no effect on plain text"),
        (["--output", "t.txt"], 2, "t.txt"),
        (["--batch-tokens", "0"], 2, "0 is not at least 1"),
    ],
)
def test_flags_without_sense_are_refused(flags, code, message, model_folder, tmp_path, monkeypatch, megabert):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("the cat\n")
    assert message in megabert("pll", "t.txt", "--model", model_folder, *flags, code=code).err
