import errno
import json
import os
import threading

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer import event_file_writer

from megabert.foundation.errors import CheckpointError
from megabert.observability import metrics
from megabert.observability.flops import local_pairs, peak_flops, training_flops
from megabert.observability.metrics import MetricWriter, read_metrics
from megabert.settings.config.loading import load_run_config
from megabert.settings.config.model import ModelConfig


def write(folder, resumed_step, steps):
    writer = MetricWriter(folder, resumed_step=resumed_step)
    for step in steps:
        writer.write(step, {"train/loss": float(step), "train/trust_ratio/all": [1.0, 3.0]})
    writer.close()


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_scores_before_the_first_step_are_there_once_after_another_start(tmp_path):
    for resumed_step, steps in ((0, [0, 1]), (0, [0, 1, 2]), (1, [2])):
        write(tmp_path, resumed_step, steps)
    assert [row["step"] for row in read_metrics(tmp_path)] == [0, 1, 2]


def test_rows_are_written_and_read(tmp_path):
    write(tmp_path, 0, [1, 2])
    assert read_metrics(tmp_path)[1] == {
        "step": 2,
        "train/loss": 2.0,
        "train/trust_ratio/all": {"min": 1.0, "mean": 2.0, "max": 3.0},
    }


def test_resume_drops_rows_behind_the_checkpoint(tmp_path):
    write(tmp_path, 0, [1, 2, 3])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "tra')  # cut by a kill
    write(tmp_path, 2, [3, 4])
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3, 4]
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_row_that_was_cut_off_is_dropped_even_where_no_step_is(tmp_path):
    write(tmp_path, 0, [1, 2])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])  # only the end of the line: the row is whole
    write(tmp_path, 2, [3])
    path.write_bytes(path.read_bytes() + b'{"step": 4, "tra')
    write(tmp_path, 3, [4])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_damaged_rows_are_left_out_with_a_warning(tmp_path, caplog):
    write(tmp_path, 0, [1, 2])
    path = tmp_path / "metrics.jsonl"
    damaged = [b'{"step": 3, "tra{"step": 3}', b"[]", b"null", b'{"step": "3"}', b"{}", b"[" * 100_000, b"9" * 5000]
    damaged += [b'{"step": 3, "train/loss": "low"}', b'{"step": 3, "phase": 1.5}', b'{"step": 3, "train/loss": null}']
    path.write_bytes(b"\n".join(damaged) + b"\n" + path.read_bytes() + b'{"step": 3, "tr')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
    assert "10 damaged lines are left out, the first is line 1" in caplog.text


@pytest.mark.parametrize("content", [b"There is no JSON here.\n", b"\xff\xfe\x00\n", b"{}\n[]\n"])
def test_file_without_any_row_is_refused(tmp_path, content):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: line 1 is no row of metrics.*Copy it again"):
        read_metrics(tmp_path)


def test_tensorboard_shows_each_step_once(tmp_path, monkeypatch):
    # Files of one process and second are read in the order of this number as text, and "10" comes before "9".
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    write(tmp_path, 0, [1, 2, 3])
    write(tmp_path, 2, [3, 4])
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4]


def test_tensorboard_shows_the_scores_of_step_0_once(tmp_path):
    for _ in range(2):  # a start that was killed before its first checkpoint, and the next one
        write(tmp_path, 0, [0, 1])
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [0, 1]


def test_flops_of_position_scores_are_one_product_a_pair_each():
    counts = {"tokens": 1000, "squared_lengths": 128_000, "masked": 150}
    bert, first = (ModelConfig(family=family, vocab_size=30522) for family in ("bert", "deberta"))
    more = training_flops(first, **counts) - training_flops(bert, **counts)
    assert more == 2 * 6 * 12 * 768 * 128_000


def test_peaks_are_matched_by_name():
    assert peak_flops("NVIDIA H200", "bf16") == 989e12
    assert peak_flops("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak_flops("cpu", "fp32") is None


def test_full_disk_keeps_rows_until_there_is_space(tmp_path, monkeypatch):
    writer = MetricWriter(tmp_path, resumed_step=0)
    writer.write(1, {"train/loss": 1.0})

    def nearly_full(file, content):
        return original(file, content[:10]) if len(content) > 10 else full()  # a part is taken before the disk is full

    original = os.write
    with monkeypatch.context() as patch:
        patch.setattr(metrics.os, "write", nearly_full)
        writer.write(2, {"train/loss": 2.0})
        writer.flush()
        writer.write(3, {"train/loss": 3.0})
    assert read_metrics(tmp_path)[-1]["step"] <= 2
    writer.write(4, {"train/loss": 4.0})
    writer.close()
    assert [(row["step"], row["train/loss"]) for row in read_metrics(tmp_path)] == [(n, float(n)) for n in (1, 2, 3, 4)]


def test_rows_are_dropped_on_a_full_disk(tmp_path, monkeypatch):
    writer = MetricWriter(tmp_path, resumed_step=0)
    for step in (1, 2, 3):
        writer.write(step, {"train/loss": 1.0})
    writer.close()
    monkeypatch.setattr(metrics, "atomic_write", None)  # needs space
    MetricWriter(tmp_path, resumed_step=2).close()
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]


def test_full_disk_under_tensorboards_thread_is_one_warning_and_other_errors_are_the_callers(
    tmp_path, monkeypatch, caplog, capsys
):
    others: list[type] = []
    monkeypatch.setattr("threading.excepthook", lambda failure: others.append(failure.exc_type))
    writer = MetricWriter(tmp_path, resumed_step=0)

    with monkeypatch.context() as patch:
        patch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", full)
        for step in range(1, 4):
            writer.write(step, {"train/loss": 1.0})
            writer.flush()
    writer.close()
    other = threading.Thread(target=int, args=["no number"])
    other.start()
    other.join()
    assert others == [ValueError]
    assert "Traceback" not in capsys.readouterr().err
    assert caplog.text.count("cannot be written") == 1
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]


def test_tensorboard_that_cannot_be_written_ends_no_run(tmp_path, monkeypatch):
    writer = MetricWriter(tmp_path, resumed_step=0)

    with monkeypatch.context() as patch:
        patch.setattr(writer._tensorboard._writer, "add_scalar", full)
        writer.write(1, {"train/loss": 1.0})
    writer.write(2, {"train/loss": 2.0})
    writer.close()
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2]
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]


def test_flops_of_local_attention_count_pairs_in_the_window():
    model = ModelConfig(family="modernbert", preset="base", vocab_size=50368)
    lengths = [300, 0, 65, 20]
    by_hand = sum(min(i, 64) + 1 + min(n - 1 - i, 64) for n in lengths for i in range(n))
    assert local_pairs(model, lengths) == by_hand
    squared = sum(n * n for n in lengths)
    flops = training_flops(model, tokens=385, squared_lengths=squared, masked=0, local_pairs=by_hand)
    layer = 4 * 768 * 768 + 3 * 768 * 1152
    assert flops == 6 * 22 * layer * 385 + 12 * 768 * (8 * squared + 14 * by_hand)
    assert local_pairs(ModelConfig(vocab_size=30522), lengths) == 0


def test_tensorboard_has_configuration_hyperparameters_and_grouped_counters(tmp_path):
    config = load_run_config("debug")
    writer = MetricWriter(tmp_path, resumed_step=0, config=config, scores=["eval/mlm_loss"])
    writer.write(1, {"phase": 2, "phase_step": 1, "eval/mlm_loss": 3.0})
    writer.close()
    MetricWriter(tmp_path, resumed_step=1, config=config, scores=["eval/mlm_loss"]).close()
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert {tag.partition("/")[0] for tag in events.Tags()["scalars"]} == {"progress", "eval"}
    assert events.Scalars("progress/phase")[0].value == 2
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "    model:\n" in text
    plugin = events.SummaryMetadata("_hparams_/session_start_info").plugin_data
    start = HParamsPluginData.FromString(plugin.content).session_start_info
    assert start.hparams["phases.0.max_seq_length"].number_value == config.phases[0].max_seq_length
    assert start.hparams["seed"].number_value == 42
    experiment = HParamsPluginData.FromString(events.SummaryMetadata("_hparams_/experiment").plugin_data.content)
    assert [info.name.tag for info in experiment.experiment.metric_infos] == ["eval/mlm_loss"]
