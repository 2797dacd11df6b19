"""The page's commands make pairs, train an exported folder on them and save it; vectors are better than before."""

import json
import math
import random
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from support.parity_models import CASES, make_tokenizer, random_model, write
from support.soak import in_soak

from examples.sentence_vectors import pairs as make_pairs
from examples.sentence_vectors import train
from examples.sentence_vectors.pairs import MOST, TEST, TRAIN, Pair, ndcg_of_words, pairs_of, read_pairs
from megabert.cli import main

PAGE = (Path(__file__).parents[3] / "docs" / "using_a_model.md").read_text(encoding="utf-8")
LETTERS = "abcdefghijklm"
PARAGRAPH = (
    "The whale swam under the ship for an hour. Nobody on board said a word about it. It was not seen again that day."
)


def words_of(program):
    """The words of a command of the page after the program's name."""
    return shlex.split(re.search(rf"^    {re.escape(program)} (.*)$", PAGE, re.MULTILINE)[1])


def test_a_query_is_a_sentence_that_its_document_lacks():
    pairs = list(pairs_of(f"One sentence alone.\n\n{PARAGRAPH}", "en", random.Random(0), MOST[TRAIN]))
    assert len(pairs) == 3
    for pair in pairs:
        assert pair.query not in pair.document
        assert sorted(f"{pair.document} {pair.query}".split()) == sorted(PARAGRAPH.split())


def test_pairs_of_the_page_hold_out_whole_documents(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    texts = [PARAGRAPH.replace("whale", f"whale{index}").replace("It was", f"Whale{index} was") for index in range(20)]
    Path("examples/corpus").mkdir(parents=True)
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    Path("examples/corpus/public_domain.jsonl").write_text("".join(lines))
    made = []
    for _ in range(2):
        make_pairs.main(words_of("python -m examples.sentence_vectors.pairs"))
        made.append([read_pairs(Path("runs/pairs") / name) for name in (TRAIN, TEST)])
    assert made[0] == made[1]
    assert [len(pairs) for pairs in made[0]] == [18 * 3, 2]
    assert all(re.search(r"hale(0|10)\b", " ".join(pair)) for pair in made[0][1])
    assert not any(re.search(r"hale(0|10)\b", " ".join(pair)) for pair in made[0][0])
    assert "nDCG@10 of the words alone: " in capsys.readouterr().out


def test_ndcg_of_words_counts_ranks():
    """The first query shares a word with its own document alone; the second shares two with the other one."""
    pairs = [Pair("sea", "sea ship boat"), Pair("ship boat", "ship tree bird")]
    assert ndcg_of_words(pairs) == pytest.approx((1 + 1 / math.log2(3)) / 2)


def shifted_pairs(count, seed):
    """Four letters, and the letters thirteen further on, in the same order: random weights do not know of it."""
    draw = random.Random(seed)
    for _ in range(count):
        query = " ".join(draw.sample(LETTERS, 4))
        yield Pair(query, "".join(chr(ord(letter) + 13) if letter != " " else letter for letter in query))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a tiny model at runs/demo and pairs at runs/pairs, as on the page."""
    monkeypatch.chdir(tmp_path)
    case = CASES[0]
    torch.manual_seed(0)
    tokenizer = make_tokenizer(tmp_path / "tokenizer", pad_id=1)
    write(random_model(case.config, case.objective), tmp_path / "runs" / "demo", tokenizer)
    Path("runs/pairs").mkdir()
    for name, count in ((TRAIN, 256), (TEST, 64)):
        lines = [json.dumps(pair._asdict()) + "\n" for pair in shifted_pairs(count, name)]
        Path("runs/pairs", name).write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize("kind", ["mean", *in_soak("colbert")])
def test_two_epochs_make_vectors_better_and_are_saved(kind, folder, capsys, megabert):
    words = [word.replace("mean", kind) for word in words_of("megabert export runs/demo --to models/demo-mean")]
    assert main(["export", "runs/demo", "--to", f"models/demo-{kind}", *words]) == 0
    words = words_of("python -m examples.sentence_vectors.train")
    given = [word.replace("mean", kind) for word in words]
    train.main([*given, "--learning-rate", "3e-3", "--batch-size", "32"])

    printed = capsys.readouterr().out
    assert "'epoch': '2'" in printed
    assert float(re.search(r"at most (\S+) apart", printed)[1]) < 1e-6
    before, after = map(float, re.search(r"([\d.]+) before training, ([\d.]+) after", printed).groups())
    assert before < 0.3
    assert after > 0.7

    trained = train.load(Path("models/demo-search"))
    assert type(trained).__name__ == ("MultiVectorEncoder" if kind == "colbert" else "SentenceTransformer")
    assert trained.max_seq_length == 64
    if kind == "mean":  # megabert reads what sentence-transformers saved
        Path("lines.txt").write_text("a b c d\nn o p q\n")
        megabert("embed", "lines.txt", "--model", "models/demo-search", "--output", "vectors.parquet")
        vectors = np.array(pq.read_table("vectors.parquet")["embedding"].to_pylist())
        assert np.abs(vectors - trained.encode(["a b c d", "n o p q"])).max() < 1e-5
