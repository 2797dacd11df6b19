"""``megabert compare RUN reference``: runs made by hand against curves made by hand."""

import json
import math
import re

import numpy as np
import pytest
from support.run_folders import write_run

from megabert.foundation.json_files import adapter_of
from megabert.settings.config.loading import load_run_config
from megabert.tokens.shards.folder import read_manifest
from megabert.tooling.measurements import reference as references
from megabert.tooling.measurements.reference import Reference, ReferencePhase, Series, science_fields
from megabert.tooling.reports.on_track import bands, compare_with_curves

VOCAB = {"vocab_size": 4096}
STEPS = list(range(20, 401, 20))
HELD_OUT_STEPS = list(range(100, 401, 100))


def loss(step: int) -> float:
    return 5 + 3 * math.exp(-step / 100)


def curves(**changed) -> Reference:
    draw = np.random.default_rng(7)
    noisy = [[round(loss(step) + draw.normal(0, 0.05), 4) for step in STEPS] for _ in range(3)]
    held_out = [[round(loss(step) + offset, 4) for step in HELD_OUT_STEPS] for offset in (-0.02, 0.0, 0.02)]
    series = {
        "train/mlm_loss": Series(steps=STEPS, values=noisy),
        "eval/mlm_loss": Series(steps=HELD_OUT_STEPS, values=held_out),
    }
    fields = {
        "recipe": "debug",
        "text": "a text",
        "commands": ["megabert-data build --for debug", "megabert pretrain"],
        "commit": "0123456789",
        "device": "cpu",
        "seeds": [42, 1, 2],
        "vocab_size": 4096,
        "data_sha256": ["a", "b"],
        "config": science_fields(load_run_config("debug", flags={"model": VOCAB})),
        "phases": [ReferencePhase(max_seq_length=128, tokens_per_step=4000.0, series=series)],
    }
    return Reference(**{**fields, **changed})


def write_curves(path, **changed):
    path.write_bytes(adapter_of(Reference).dump_json(curves(**changed)))
    return path


def train(step: int, value: float) -> dict:
    return {"step": step, "phase": 1, "phase_step": step, "train/mlm_loss": value}


def held_out(step: int, value: float) -> dict:
    return {"step": step, "phase": 1, "eval/mlm_loss": value}


def rows(until: int = 400, *, worse: float = 0.0, since: int = 0, every: int = 20) -> list[dict]:
    draw = np.random.default_rng(1)
    steps = range(every, until + 1, every)
    train_rows = [train(step, loss(step) + draw.normal(0, 0.05) + worse * (step > since)) for step in steps]
    held_out_rows = [held_out(step, loss(step) + worse * (step > since)) for step in HELD_OUT_STEPS if step <= until]
    return sorted(train_rows + held_out_rows, key=lambda row: row["step"])


@pytest.fixture
def compare(tmp_path, megabert):
    """Return a function that compares a run of some metrics with curves and returns what was printed."""

    def call(metrics, *flags, code=0, changed=None, model=VOCAB, **fields):
        run = write_run(tmp_path / "run", metrics, model=model, **fields)
        path = write_curves(tmp_path / "curves.json", **(changed or {}))
        return megabert("compare", run, path, *flags, code=code)

    return call


def test_a_run_like_the_others_is_on_track_with_any_logging(compare, tmp_path):
    assert compare(rows()).out.endswith("on track at step 400\n")
    for every in (5, 60):
        run = write_run(tmp_path / f"every{every}", rows(every=every), model=VOCAB)
        assert compare_with_curves(run, tmp_path / "curves.json").is_on_track


@pytest.mark.parametrize(("instances", "half"), [(0, 0.005), (400, 0.05)])
def test_seeds_that_call_all_pairs_the_same_leave_the_noise_of_so_many_instances(instances, half):
    series = {"eval/nsp_accuracy": Series(steps=[100, 200], values=[[0.5, 0.5]] * 3)}
    phase = ReferencePhase(max_seq_length=128, tokens_per_step=1.0, held_out_instances=instances, series=series)
    (points,) = bands(curves(phases=[phase]), "eval/nsp_accuracy")
    assert [point.half for point in points] == pytest.approx([half, half])


def test_a_run_that_gets_worse_is_named_with_series_and_step(compare):
    shown = compare(rows(worse=0.5, since=200), code=6).out
    assert "not on track at step 400; outside of the band first at step 220: train/mlm_loss is" in shown


def test_a_run_that_came_back_is_on_track_and_its_excursion_is_named(compare):
    metrics = [
        {**row, "eval/mlm_loss": 9.0} if row.get("eval/mlm_loss") and row["step"] == 200 else row for row in rows()
    ]
    shown = "on track at step 400; outside of the band first at step 200: eval/mlm_loss is 9.0000"
    assert shown in compare(metrics).out


def test_held_out_scores_between_those_of_the_curves_are_compared_with_a_line(tmp_path):
    path = write_curves(tmp_path / "curves.json")
    run = write_run(tmp_path / "run", [train(20, loss(20)), held_out(150, loss(150)), held_out(50, 9.0)], model=VOCAB)
    (point,) = compare_with_curves(run, path).series["eval/mlm_loss"]
    assert point.step == 150, "nothing is known before the first held-out score"
    assert (point.low + point.high) / 2 == pytest.approx((loss(100) + loss(200)) / 2, abs=0.01)


def test_a_loss_that_is_no_number_is_not_on_track(compare):
    metrics = [*rows(200), train(220, math.nan)]
    assert "first at step 220: train/mlm_loss is nan" in compare(metrics, code=6).out


def test_fields_that_make_it_another_experiment_are_shown_and_the_seed_is_not(compare):
    shown = compare(rows(), seed=3, phases={"0": {"learning_rate": 0.2}}).out
    assert "phases.0.learning_rate: 0.02 in the reference, 0.2 in the run" in shown
    assert "seed:" not in shown


def test_a_run_on_other_shards_is_not_on_track_whatever_its_losses(tmp_path, shard_folder, megabert):
    phases = {number: {"data": str(shard_folder)} for number in ("0", "1")}
    run = write_run(tmp_path / "run", rows(), model=VOCAB, phases=phases)
    path = write_curves(tmp_path / "curves.json")
    shown = megabert("compare", run, path, code=6).out
    assert "the reference's are built by: megabert-data build --for debug\n" in shown
    assert shown.splitlines()[-1].startswith("not on track at step 400; other ones than the reference's (another text")
    own = read_manifest(shard_folder).data_sha256
    # Only phases of the curves count.
    for second in (own, "another"):
        write_curves(path, data_sha256=[own, second])
        megabert("compare", run, path)


def one_phase(length, series):
    return {"phases": [ReferencePhase(max_seq_length=length, tokens_per_step=1.0, series=series)]}


WITHOUT_STEPS = Series(steps=[], values=[[], [], []])


def test_json_and_the_picture(compare, tmp_path):
    picture = tmp_path / "track.png"
    report = json.loads(compare(rows(worse=0.5, since=200), "--json", "--png", picture, code=6).out)
    assert (report["on_track"], report["first_outside"]["step"]) == (False, 220)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"recipe": "demo"}, "recipe is debug, the curves in .* are of demo"),
        ({"vocab_size": 2048}, "model.vocab_size is 4096, the curves in .* are of 2048"),
        (one_phase(64, curves().phases[0].series), r"phases.0.max_seq_length is 128, the curves in .* are of 64"),
        (one_phase(128, {}), r"phases.0.series"),
        (one_phase(128, {"eval/mlm_loss": WITHOUT_STEPS}), r"phases.0.series.eval/mlm_loss.steps"),
        ({"seeds": [42, 1]}, r"phase 1, train/mlm_loss: 3 lists of \[20\] values at 20 steps, of 2 seeds"),
    ],
)
def test_curves_of_something_else_are_refused(changed, says, compare):
    assert re.search(says, compare(rows(), changed=changed, code=3).err)


def test_a_run_without_anything_to_compare_is_refused(compare):
    assert "nothing was logged that the curves have, whose first step is 20" in compare([], code=4).err


@pytest.mark.parametrize("damage", ['{"recipe": "debug"}', "[1, 2", "NaN", None])
def test_damaged_curves_are_refused(damage, tmp_path, megabert):
    run = write_run(tmp_path / "run", rows(), model=VOCAB)
    path = tmp_path / "curves.json"
    if damage is not None:
        path.write_text(damage)
    assert str(path) in megabert("compare", run, path, code=3).err


def test_a_curve_with_what_is_no_number_is_refused(tmp_path, megabert):
    run, path = write_run(tmp_path / "run", rows(), model=VOCAB), write_curves(tmp_path / "curves.json")
    path.write_text(path.read_text().replace(str(curves().phases[0].series["eval/mlm_loss"].values[0][0]), "NaN"))
    assert "damaged or edited (phases.0.series.eval/mlm_loss.values.0.0" in megabert("compare", run, path, code=3).err


def test_flags_of_other_comparisons_are_refused(compare, tmp_path, megabert):
    compare(rows(), "--tolerance", "0.1", code=2)
    run = str(tmp_path / "run")
    said = megabert("compare", run, run, "--png", "x.png", code=2).err
    assert "--png has no effect on a comparison without reference curves" in said


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder of shipped curves with debug's, and the published results."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    (folder / "published.yaml").write_bytes((references.FOLDER / "published.yaml").read_bytes())
    write_curves(folder / "debug-text.json")
    monkeypatch.setattr(references, "FOLDER", folder)
    monkeypatch.setattr("megabert.tooling.reports.on_track.FOLDER", folder)


def test_the_word_reference_takes_the_shipped_curves(shipped, tmp_path, megabert):
    run = write_run(tmp_path / "run", rows(), model=VOCAB)
    printed = megabert("compare", run, "reference").out
    assert "reference: debug on a text, seeds 42, 1, 2, commit 0123456789, cpu" in printed


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "mine"}, "there are no curves of recipe mine; there are of debug."),
        ({"name": "bert_large"}, "published: SQuAD 1.1 F1 90.6"),
        ({"model": {"vocab_size": 2048}}, "its vocabulary has 2048 pieces, the curves of debug are of 4096"),
    ],
)
def test_a_run_without_curves_is_told_what_there_is(fields, says, shipped, tmp_path, megabert):
    run = write_run(tmp_path / "run", rows(), **{"model": VOCAB, **fields})
    assert says in megabert("compare", run, "reference", code=3).err
