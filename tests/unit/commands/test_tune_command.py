"""``megabert tune``: the table that it prints, and machines on which it cannot run."""

import pytest
import torch

from megabert.cli import main
from megabert.ops import backend
from megabert.ops.proof import tuning
from megabert.ops.proof.tuning import TunedLaunch


@pytest.fixture
def without_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture
def run(without_a_gpu, tmp_path, monkeypatch):
    """Return what runs the command where kernels can run, with its own function in the place of the search."""
    monkeypatch.setattr(backend, "triton_obstacle", lambda device: None)

    def run(tune, recipe, *words):
        monkeypatch.setattr(tuning, "tune", tune)
        return main(["tune", "--recipe", recipe, "--save", str(tmp_path / "tiles.json"), *words])

    return run


def test_without_a_gpu_it_says_so(without_a_gpu, tmp_path, megabert):
    assert "GPU" in megabert("tune", "--save", tmp_path / "tiles.json", code=5).err
    assert not list(tmp_path.iterdir())


def test_it_prints_a_row_for_each_launch(run, tmp_path, capsys):
    seen = []

    def tune(cases, device, path, *, tokens, minutes):
        lengths = sorted(shapes.length for op, shapes in cases if op == "attention")
        seen.extend((lengths, cases[0][1].classes, device.type, tokens, minutes))
        path.write_text("{}")
        yield TunedLaunch("bias_gelu 512", (8, 256, 4, 1), (8, 256, 8, 1), 2.0, 1.5, {(8, 256, 8, 1): 1.5})

    assert run(tune, "debug", "--minutes", "0.5", "--tokens", "64") == 0
    assert seen == [[128, 512], 30_522, "cpu", 64, 0.5]
    header, row, last = capsys.readouterr().out.splitlines()
    assert header.split() == ["launch", "committed", "best", "ms", "best", "ms", "gain", "%", "tried"]
    assert row.split() == ["bias_gelu", "512", "8x256x4x1", "8x256x8x1", "2.000", "1.500", "25.0", "1"]
    path = tmp_path / "tiles.json"
    assert last == f"{path}: 1 launches measured now. Use it: --ops.tile_sizes {path}"


@pytest.mark.parametrize(("recipe", "widths"), [("electra_small", {256, 128, 64}), ("albert_base", {768, 128})])
def test_every_width_of_a_model_is_tuned(run, recipe, widths):
    seen = set()

    def tune(cases, device, path, **_):
        seen.update(shapes.hidden for op, shapes in cases if op == "layer_norm")
        path.write_text("{}")
        return iter(())

    assert run(tune, recipe) == 0
    assert seen == widths


def test_the_tiles_of_casts_are_tuned_in_8_bits_alone(run, tmp_path):
    seen = []

    def tune(cases, device, path, **_):
        seen.append([op for op, _ in cases].count("fp8_casts"))
        path.write_text("{}")
        return iter(())

    (tmp_path / "fp8.yaml").write_text("precision: fp8\n")
    assert run(tune, "debug") == 0
    assert run(tune, "debug", "--config", str(tmp_path / "fp8.yaml")) == 0
    assert seen == [0, 1]


def test_minutes_that_end_before_the_first_launch_name_no_file(run, capsys):
    assert run(lambda *_, **__: iter(()), "debug", "--minutes", "0.5") == 2
    printed = capsys.readouterr()
    assert "--minutes 0.5: over before the first launch was measured" in printed.err
    assert not printed.out


def test_tokens_that_do_not_fit_into_memory_are_named(run, capsys):
    def tune(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")
        yield

    assert run(tune, "debug", "--tokens", "64") == 5
    assert "--tokens 64: a timed call does not fit into the memory of cpu" in capsys.readouterr().err
