"""Runs that read two builds: a resume on another world, a fork that takes up a new source, and their refusals."""

import json
import shutil

import pytest
from support.bundled_corpus import CORPUS, build_shards
from support.made_shards import make_instances, write_shards
from support.runs import Run, finished
from support.soak import in_soak

from megabert.checkpoints.format import read_checkpoint_manifest
from megabert.tokens.shards.shard_set import ShardSet


@pytest.fixture(scope="session")
def second_build(shards, made_once, tmp_path_factory):
    """A build of ten other documents, with the first one's tokenizer."""
    documents = CORPUS.read_text(encoding="utf-8").splitlines()[3::21]

    def build(folder):
        path = folder / "other.jsonl"
        path.write_text("\n".join(documents[:10]) + "\n", encoding="utf-8")
        build_shards(path, folder / "shards", "--tokenizer", str(shards / "instances" / "64" / "tokenizer"))

    return made_once("second", build) / "shards"


@pytest.fixture(scope="session")
def flags(shards, second_build):
    return {
        "data.path": None,
        "data.sources": json.dumps({"main": str(shards), "new": str(second_build)}),
        "phases.0.mixture": "{main: 0.3, new: 0.7}",
        "phases.1.temperature": 0.5,
        "phases.1.steps": 3,
        "checkpoint.keep_last": 9,
    }


@pytest.fixture(scope="session")
def unbroken(flags, shards, run_once):
    return run_once("two_sources", shards, ranks=2, flags=flags)


def cut_at(run, step, folder):
    """Return a copy of a run as if it had been killed after the checkpoint of a step."""
    shutil.copytree(run.run_dir, folder)
    for path in (folder / "checkpoints").glob("step_*"):
        if int(path.name.removeprefix("step_")) > step:
            shutil.rmtree(path)
    return folder


def test_scores_and_epochs_are_logged_by_source(unbroken):
    scores = unbroken.held_out_rows()[-1]
    assert {"eval/mlm_loss", "eval/main/mlm_loss", "eval/new/mlm_loss", "eval/new/mlm_accuracy"} <= scores.keys()
    low, high = sorted(scores[f"eval/{name}/mlm_loss"] for name in ("main", "new"))
    assert low < scores["eval/mlm_loss"] < high
    last = [row for row in unbroken.rows() if "progress/epochs/new" in row and row["phase"] == 1][-1]
    rows = {name: ShardSet.open(path).num_rows for name, path in sources_of(unbroken).items()}
    read = {name: last[f"progress/epochs/{name}"] * rows[name] for name in rows}
    assert sum(read.values()) == pytest.approx(8 * 12)
    assert read["new"] / 96 == pytest.approx(0.7, abs=0.08), "tokens, of which an instance has about as many in both"


def sources_of(run, length=64):
    return {name: f"{path}/instances/{length}" for name, path in json.loads(run.flags["data.sources"]).items()}


@pytest.mark.parametrize(("ranks", "engine"), [(2, "zero1"), (1, "zero3"), *in_soak((1, "zero1"), (2, "zero2"))])
def test_resumed_run_equals_the_unbroken_one(unbroken, flags, shards, tmp_path, ranks, engine):
    """From the middle of both epochs, on the same world bit for bit, on another one but for the order of sums."""
    run = finished(cut_at(unbroken, 6, tmp_path / "run"), shards, ranks=ranks, flags={**flags, "engine": engine})
    is_same = (ranks, engine) == (2, "zero1")
    assert run.losses() == pytest.approx(unbroken.losses(), rel=0 if is_same else 2e-4, abs=0)
    for own, other in zip(run.held_out_rows(), unbroken.held_out_rows(), strict=True):
        assert own == pytest.approx(other, rel=0 if is_same else 2e-4, abs=0 if is_same else 2e-3)
    assert "of main; epoch 0, instance" in run.output


def test_rollback_leaves_bad_data_out_of_each_source(flags, shards, tmp_path):
    """Instances 16 to 59 of both sources give NaN, and all of phase 2, which ends the run."""
    own = {"phases.0.mixture": "{main: 0.5, new: 0.5}", "phases.0.global_batch_size": 6}
    run = Run(tmp_path / "run", shards, flags={**flags, **own}, fault="poison")
    assert run.finish() == 2, run.output[-4000:]
    stored = read_checkpoint_manifest(run.run_dir / "checkpoints" / "step_00000008").trainer_state
    assert stored["rollbacks"] >= 1
    for key in stored["data_sha256"][0]:
        [[epoch, start, stop]] = stored["positions"][key]["skipped"]
        assert epoch == 0
        assert 12 <= start <= 16 < 40 <= stop <= stored["positions"][key]["offset"]
        assert f" of {key[:12]}" in run.output


def test_another_mixture_is_another_experiment(unbroken, flags, shards, tmp_path):
    other = {**flags, "phases.0.mixture": "{main: 0.5, new: 0.5}"}
    run = Run(cut_at(unbroken, 6, tmp_path / "run"), shards, flags=other)
    assert run.finish() == 4
    assert "phases.0.mixture.main" in run.output


def test_a_run_of_one_build_takes_up_a_new_source_by_a_fork(uninterrupted_run, flags, shards, tmp_path):
    name = f"{uninterrupted_run.run_dir}@9"
    fork = Run(
        tmp_path / "fork", shards, flags={"data.path": None, "data.sources": flags["data.sources"], "fork": name}
    )
    fork.finish_well()
    first = next(row for row in fork.rows() if "progress/epochs/main" in row)
    rows = {name: ShardSet.open(path).num_rows for name, path in sources_of(fork, 128).items()}
    read = {name: round(first[f"progress/epochs/{name}"] * rows[name]) for name in rows}
    assert first["step"] == 10
    assert 0 < read["new"] < 7, "from its first instance"
    assert read["main"] == 7 + 7 - read["new"], "after the seven that the forked run had read in this phase"


def test_dry_run_says_what_is_read_of_each_source(flags, shards, tmp_path, megabert):
    shown = megabert(*Run(tmp_path / "dry", shards, flags=flags).words(), "--dry-run").out
    assert "new: 70" in shown or "new: 69" in shown
    assert "passes over its" in shown


def test_unlike_sources_are_refused_with_the_command_that_builds_a_fitting_one(flags, shards, tmp_path):
    for length in (64, 128):
        rows = make_instances(50, length, 1000, seed=length)
        write_shards(
            tmp_path / "new" / "instances" / str(length), {"train": [rows], "validation": [rows]}, length=length
        )
    sources = json.dumps({"main": str(shards), "new": str(tmp_path / "new")})
    run = Run(tmp_path / "run", shards, flags={**flags, "data.sources": sources})
    assert run.finish() == 3
    assert "tokenizer_sha256: 000000" in run.output
    assert f"--tokenizer {shards}/instances/64/tokenizer" in run.output
    assert not (tmp_path / "run").exists()


def test_report_and_model_card_of_a_run_name_both_builds_and_count_their_instances(unbroken, tmp_path, megabert):
    report = megabert("report", unbroken.run_dir, "--html", tmp_path / "page.html").out
    assert "unigram baseline" in report
    assert "[MASK]" in report
    megabert("export", unbroken.run_dir, "--to", tmp_path / "card")
    card = (tmp_path / "card" / "README.md").read_text()
    opened = [ShardSet.open(path) for path in sources_of(unbroken).values()]
    assert f"{sum(shards.num_rows for shards in opened):,} of up to 64 tokens" in card
    assert all(shards.manifest.data_sha256 in card for shards in opened)
