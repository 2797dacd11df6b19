"""The recipe of `make demo`: shards built for it, a few steps of each phase on two ranks, report, export, task."""

import json

import pytest
import torch
import transformers
from forked.client import run_command
from support.runs import TINY, Run, finished

from examples import demo_task
from megabert.data.batch import pack_sequences
from megabert.downstream.export.sources import open_source
from megabert.settings.config.loading import load_run_config
from megabert.tokens.shards.shard_set import ShardSet

PHASES = load_run_config("demo").phases


@pytest.fixture(scope="module")
def demo_run(corpus, tmp_path_factory) -> Run:
    """The recipe as it is, but for its steps and its batches, on shards of a small corpus."""
    folder = tmp_path_factory.mktemp("demo")
    words = ["build", "--for", "demo", "--input", str(corpus), "--format", "jsonl", "--output", str(folder / "data")]
    words += ["--vocab-size", "600", "--uncased", "--dupe-factor", "1", "--validation-share", "0.2", "--workers", "1"]
    assert run_command("data_prep", words, folder / "build.out") == 0, (folder / "build.out").read_text()
    flags: dict[str, object] = {**dict.fromkeys(TINY), "shards.dupe_factor": 1}
    for index in range(len(PHASES)):
        flags |= {f"phases.{index}.steps": 2, f"phases.{index}.global_batch_size": 6}
    return finished(folder / "run", folder / "data", ranks=2, recipe="demo", flags=flags)


def test_report_of_the_demo_shows_chance_and_the_unigram_in_every_phase(demo_run, megabert):
    shown = megabert("report", demo_run.run_dir, "--text", "the [MASK] of the people").out
    rows = {line[:34].strip(): line[34:].split() for line in shown.splitlines()}
    for name in ("held-out next-sentence accuracy", "chance (the larger class)", "nats below the baseline"):
        assert len(rows[name]) == len(PHASES), shown


def test_export_of_the_demo_is_a_bert_for_pre_training_with_equal_logits(demo_run, tmp_path, megabert):
    megabert("export", demo_run.run_dir, "--to", tmp_path / "out")
    theirs, info = transformers.BertForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    # Held-out pairs of the last phase, as they are in the shards: both segments, several [MASK], different lengths.
    shards = ShardSet.open(demo_run.data / "instances" / str(PHASES[-1].max_seq_length), "validation")
    ours = open_source(str(demo_run.run_dir), "last").build_model().eval()
    mask_id = shards.metadata.special_ids["mask"]
    for row in range(3):
        columns = shards.columns(((row, row + 1),))
        ids, b_start = columns.input_ids, int(columns.segment_b_starts[0])
        with torch.no_grad():
            expected = ours(pack_sequences([ids], segment_b_starts=[b_start], mask_id=mask_id), with_logits=True)
            ids_1S = torch.from_numpy(ids.astype("int64"))[None]
            segments_1S = (torch.arange(ids_1S.shape[1]) >= b_start).long()[None]
            output = theirs.eval()(ids_1S, token_type_ids=segments_1S)
        logits_MV = output.prediction_logits[ids_1S == mask_id]
        torch.testing.assert_close(logits_MV, expected.mlm_logits_MV, atol=1e-5, rtol=0)
        torch.testing.assert_close(output.seq_relationship_logits, expected.nsp_logits_B2, atol=1e-5, rtol=0)


@pytest.mark.parametrize("corpus", demo_task.TASKS)
def test_passages_of_the_task_are_of_other_documents_than_those_it_is_scored_on(corpus, tmp_path):
    demo_task.write_task(corpus, tmp_path)
    file, _, labels, _ = demo_task.TASKS[corpus]
    home = {}
    for line in (demo_task.CORPUS / file).read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        home |= dict.fromkeys(document["text"].split("\n\n"), document["id"])
    texts = {part: (tmp_path / f"{part}.jsonl").read_text(encoding="utf-8") for part in ("train", "dev")}
    rows = {part: [json.loads(line) for line in text.splitlines()] for part, text in texts.items()}
    for part in rows.values():
        assert [row["label"] for row in part] == [label for label in labels for _ in range(demo_task.PASSAGES)]
        assert len({row["text"] for row in part}) == len(part)
    assert not {home[row["text"]] for row in rows["train"]} & {home[row["text"]] for row in rows["dev"]}


def test_task_of_the_demo_shows_pre_trained_random_and_constant(demo_run, megabert, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo_task, "PASSAGES", 4)
    monkeypatch.setattr(demo_task, "EPOCHS", 1)
    megabert("export", demo_run.run_dir, "--to", tmp_path / "out")
    demo_task.main("english", str(tmp_path / "out"), str(tmp_path / "task"))
    names = [line.rsplit(maxsplit=1)[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == ["pre-trained", "random", "a constant answer"]
    for name, is_random in (("pre-trained", False), ("random", True)):
        written = json.loads((tmp_path / "task" / name / "finetune.json").read_text())
        assert written["settings"]["random_weights"] is is_random
