"""Minimal pairs during pre-training: alike on one rank, on two and by command, and without effect on the run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.runs import Run
from support.soak import in_soak

from megabert.cli import main
from megabert.downstream.export.sources import open_source
from megabert.downstream.inspection.pseudo_likelihood import SentenceScorer, score_pairs
from megabert.foundation.errors import ConfigError
from megabert.tokens.shards.shard_set import ShardSet
from megabert.tokens.tokenization import load_tokenizer
from megabert.tooling.reports.report import held_out_samples
from megabert.training.probes.minimal_pairs import read_pairs, score_groups
from megabert.training.probes.run_probes import open_probes


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory):
    """Two pairs of each phenomenon, and one that is longer than the first phase's sequences."""
    rows = [vars(pair) for pair in read_pairs(Path("english"))[::10]]
    long = "the old captain was standing on the deck of the ship " * 8
    rows.append({**rows[0], "sentence_good": f"{long} .", "sentence_bad": f". {long}"})
    path = tmp_path_factory.mktemp("pairs") / "few.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def probes_of(rows):
    return [{name: value for name, value in row.items() if name.startswith(("probe/", "step"))} for row in rows]


@pytest.mark.parametrize("engine", ["zero1", *in_soak("zero3")])
def test_probes_are_alike_in_every_world_and_change_nothing(shards, uninterrupted_run, pairs_file, tmp_path, engine):
    flags = {"validation.probes": pairs_file}
    one = Run(tmp_path / "one", shards, flags=flags)
    two = Run(tmp_path / "two", shards, ranks=2, flags={**flags, "engine": engine})
    for run in (one, two):
        run.finish_well()
    assert probes_of(one.held_out_rows()) == probes_of(two.held_out_rows())
    if engine == "zero1":  # the uninterrupted run's
        assert two.losses() == uninterrupted_run.losses()
    last = one.held_out_rows()[-1]
    assert [row["step"] for row in one.held_out_rows()] == [4, 8, 12, 13]
    assert f"few {100 * last['probe/few']:.1f}%" in one.output
    # The same pairs by the command; the last phase's positions are the model's.
    source = open_source(str(one.run_dir))
    (result,) = score_pairs(SentenceScorer(source), {"few": read_pairs(pairs_file)})
    assert source.model.max_position_embeddings > result.scores.counts_S.max() + 2
    groups = {f"probe/few/{row.group}": row.accuracy for row in score_groups(result.pairs, result.scores.scores_S)}
    assert groups.pop("probe/few/all") == last["probe/few"]
    assert groups == {name: value for name, value in last.items() if name.startswith("probe/few/")}


def test_two_sets_of_one_name_are_refused_with_both_paths(shards):
    with pytest.raises(ConfigError, match=r"english and more/english\.jsonl would both be logged as probe/english"):
        open_probes(["english", "more/english.jsonl"], load_tokenizer(shards / "tokenizer"))


def test_page_shows_guesses_at_words_of_the_held_out_text(shards, uninterrupted_run, tmp_path, capsys):
    run_dir = uninterrupted_run.run_dir
    samples = held_out_samples(run_dir, 1)
    held_out = ShardSet.open(shards / "instances" / "128", "validation")
    tokenizer = load_tokenizer(held_out.tokenizer_dir)
    columns = held_out.columns(((0, held_out.num_rows),))
    originals = columns.input_ids.copy()
    instance_M = np.repeat(np.arange(held_out.num_rows), np.diff(columns.masked_starts))
    originals[columns.token_starts[instance_M] + columns.masked_positions] = columns.masked_ids
    everything = f" {' '.join(map(str, originals))} "
    assert len(samples) == 5
    for number, (text, word) in enumerate(samples):
        assert text.count("[MASK]") == 1
        ids = f" {' '.join(map(str, tokenizer.encode(text.replace('[MASK]', word))))} "
        assert ids in everything
        token = everything[: everything.index(ids)].count(" ")
        share = np.searchsorted(columns.token_starts, token, side="right") / held_out.num_rows
        assert number / 5 - 0.1 < share < (number + 1) / 5 + 0.1, "one from each fifth of the split"
    assert main(["report", str(run_dir), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert re.findall(r"\(the text: (\w+)\)", page) == [word for _, word in samples]
    assert "untrained" in capsys.readouterr().out
