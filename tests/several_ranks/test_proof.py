"""``doctor --prove`` on one rank and on two: what it reports, and faults that it has to name."""

import errno
import os
import re
import time
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from integration.programs.quick_proof import FAST, NO_JUDGEMENT
from support.processes import free_port
from torch.nn import functional

from megabert.cli import main
from megabert.foundation.errors import KernelError
from megabert.ops.backend import BACKENDS, Backend, choose, no_obstacle
from megabert.ops.proof.table import Shapes
from megabert.settings.config.loading import load_run_config
from megabert.tooling.doctor import engine_steps, machine, probe, proof, rates
from megabert.tooling.doctor.engine_steps import check_engines
from megabert.tooling.doctor.finding import Finding, judge_rates, merge_findings, named_ranks
from megabert.tooling.doctor.links import check_collectives, judge_links
from megabert.tooling.doctor.machine import check_disk
from megabert.tooling.doctor.probe import probe_world
from megabert.tooling.doctor.proof import check_problems, prove_in
from megabert.tooling.measurements.measured import MeasuredRates
from megabert.tooling.planning.estimate import estimate
from megabert.tooling.planning.step_time import measured_cluster

CPU = torch.device("cpu")
HOSTS = ["node1", "node1", "node2", "node2"]


def narrow(**changes):
    """A recipe of two narrow layers, with dropout: what is checked is the same, what is measured is quick."""
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 300}
    model = {"preset": "tiny", **sizes, "hidden_dropout_prob": 0.1}
    return load_run_config("debug", flags={"model": model, "precision": "fp32", **changes})


def failures(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "failed"]


def test_two_ranks_prove_each_part_and_their_rates_give_an_estimate(workers, tmp_path):
    config = narrow()
    both = workers(2).run(whole_proof, config, tmp_path)
    (findings, measured), (others, _) = both
    assert findings == others, "every rank has the verdict"
    assert not failures(findings)
    assert {finding.area for finding in findings} == {
        *("versions", "ops", "collectives", "links", "engines", "checkpoint", "rates"),
    }
    texts = "\n".join(finding.text for finding in findings)
    for case in ("zero1", "zero1 without overlap", "zero2", "zero2 without overlap", "zero3"):
        assert f"{case}: losses of 5 steps within" in texts
    assert not list(tmp_path.iterdir()), "no file is left"
    # The rates predict a run of this configuration on more ranks of one node.
    assert (measured.nodes, measured.ranks_per_node) == (1, 2)
    plan = estimate(config, measured_cluster(measured, gpus_per_node=4), measured=measured)
    assert plan.phases[0].step.communication_s > 0
    assert plan.phases[0].step.compute_s > 0


def whole_proof(world, config, run_dir, stopped_rank=None) -> tuple[list[Finding], MeasuredRates | None]:
    # No rank is slow here, whatever else runs on this machine: rates that are made up show the judgement below.
    with mock.patch.multiple(rates, **FAST), mock.patch.multiple(proof, DISK_BYTES=2**20), NO_JUDGEMENT:
        done = prove_in(world, config, run_dir, is_stopped=lambda: world.rank == stopped_rank)
    return done.findings, done.measured


@pytest.mark.soak
def test_two_ranks_prove_products_in_8_bits(workers, tmp_path):
    config = narrow(precision="fp8")
    for findings in workers(2).run(some_engines, config, tmp_path):
        assert not failures(findings), findings
        assert any(finding.text.startswith("zero3: losses of 5 steps within") for finding in findings)
    texts = "".join(finding.text for finding in check_problems(config, CPU))
    assert "fp8 by torch: 1 problem(s) within" in texts
    assert "fp8_casts by torch: 1 problem(s) within" in texts


def some_engines(world, config, run_dir) -> list[Finding]:
    with some_cases("zero2"):
        return list(check_engines(config, world, run_dir))


def test_signal_that_one_rank_has_seen_keeps_all_from_the_checks(workers, tmp_path):
    assert workers(2).run(whole_proof, narrow(), tmp_path, 1) == [([], None)] * 2


def test_second_meeting_finds_rank_0_even_if_it_is_late_to_leave_the_first(workers):
    assert workers(2).run(meet_twice, free_port(), timeout_s=30) == ["rank 1 of 2"] * 2


def meet_twice(world, port) -> str:
    launcher = {"RANK": world.rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    leave = probe._leave

    def leave_late(store, rank, size):
        leave(store, rank, size)
        time.sleep(1 if rank == 0 else 0)

    with (
        mock.patch.dict(os.environ, {name: str(value) for name, value in launcher.items()}),
        mock.patch.multiple(probe, _leave=leave_late, _reduce=lambda *group, **own: 0.0),
    ):
        probe_world([], device="cpu")
        store, rank, size = next(dist.rendezvous("env://", world.rank, 2, timeout=timedelta(seconds=10)))
        store.set(f"rank {rank}", f"rank {rank} of {size}")
        return store.get("rank 1").decode()


def test_wrong_kernel_is_named_with_its_error(monkeypatch):
    config, exact = narrow(), functional.gelu
    monkeypatch.setattr(
        functional, "gelu", lambda x, **form: exact(x, **form) * (1.001 if x.dtype == torch.float32 else 1)
    )
    findings = failures(check_problems(config, CPU))
    for finding, form in zip(findings, ("erf", "erf of negative numbers"), strict=True):
        assert f"bias_gelu ({form}, float32) by torch: relative error of out 0.001, allowed 1e-05" in finding.text
        assert "--ops.bias-gelu" in finding.remedy


def test_refused_problems_are_no_failure_unless_the_backend_was_asked_for(monkeypatch):
    def refuse(*given, **form):
        raise KernelError("it takes other shapes")

    monkeypatch.setitem(BACKENDS, "bias_gelu", (Backend("triton", refuse, no_obstacle), *BACKENDS["bias_gelu"][1:]))
    monkeypatch.setattr(Shapes, "ops", ("bias_gelu",))
    choose.cache_clear()
    first, _ = check_problems(narrow(), CPU)
    assert (first.level, first.text[:37]) == ("ok", "bias_gelu by torch: 2 problem(s) with")
    by_name = failures(check_problems(narrow(ops={"bias_gelu": "triton"}), CPU))
    choose.cache_clear()
    assert [one.text.partition(" failed: ")[2] for one in by_name] == ["KernelError: it takes other shapes"] * 2


def test_attention_is_proven_at_the_length_of_each_phase(monkeypatch):
    proven = []
    monkeypatch.setattr(proof, "compare", lambda op, backend, shapes, device: proven.append((op, shapes.length)) or [])
    list(check_problems(narrow(), CPU))
    assert [case for case in proven if case[0] in ("layer_norm", "attention")] == [
        *(("layer_norm", 512), ("attention", 128), ("attention", 512)),
    ]


class WrongRow(str):
    """An op's name, as a comparison that failed."""

    passes, bound, is_refused = False, 0.0, False


def test_a_remedy_names_a_flag_that_exists(monkeypatch, capsys):
    monkeypatch.setattr(proof, "compare", lambda op, *_: [WrongRow(op)])
    findings = failures(check_problems(narrow(precision="fp8"), CPU))
    flags = {finding.text: re.search(r"--\S+\w", finding.remedy)[0] for finding in findings}
    assert flags.pop("fp8") == flags.pop("fp8_casts") == "--precision"
    values = {flags.pop(op) for op in ("dense", "dropout", "dropout_keys", "embedding")}
    assert values == {"--exclude=NODE"}  # of sbatch
    assert flags.keys() == {"layer_norm", "attention", "bias_gelu", "cross_entropy", "lamb"}
    with pytest.raises(SystemExit):
        main(["pretrain", "--help-all"])
    assert {"--precision", *flags.values()} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"])
def test_rank_whose_sum_is_off_is_named(workers, name):
    for findings in workers(2).run(collectives_with_a_wrong_rank, name):
        (finding,) = failures(findings)
        assert finding.where == "there (rank 1)"
        assert finding.text.startswith(name.removesuffix("_tensor").removesuffix("_into"))
        assert "--exclude" in finding.remedy


def collectives_with_a_wrong_rank(world, name) -> list[Finding]:
    right = getattr(dist, name)

    def wrong(*tensors, **options):
        own = tensors[-1]  # what this rank contributes
        own[own.numel() // 2] *= 1.5
        return right(*tensors, **options)

    with mock.patch.object(dist, name, wrong if world.rank == 1 else right):
        return check_collectives(world, ["here", "there"], 1000)


def test_rank_with_wrong_weights_is_named(workers, tmp_path):
    by_rank = workers(2).run(engines_with_a_wrong_rank, narrow(), tmp_path)
    (finding,) = failures(merge_findings(["a", "b"], [list(map(vars, findings)) for findings in by_rank]))
    assert finding.where == "b (rank 1)"
    assert "zero2: weights differ from those with zero0 in fp32 by" in finding.text


def engines_with_a_wrong_rank(world, config, run_dir) -> list[Finding]:
    """Spoil the weights of one rank after training at stage 2."""
    train = engine_steps._train

    def spoiled(config, title, ds_config, world):
        outcome = train(config, title, ds_config, world)
        if world.rank == 1 and title == "zero2":
            return outcome._replace(weights={name: values + 0.01 for name, values in outcome.weights.items()})
        return outcome

    with some_cases("zero2"), mock.patch.object(engine_steps, "_train", spoiled):
        return list(check_engines(config, world, run_dir))


def some_cases(stage):
    """Leave out cases that a fault has nothing to do with."""
    wanted = ("zero0 in fp32", "zero1", stage, "zero3")
    every = engine_steps.run_cases
    return mock.patch.object(engine_steps, "run_cases", lambda config: [c for c in every(config) if c[0] in wanted])


def test_links_are_compared_with_links_of_their_kind():
    rates = {(0, 1): 100.0, (1, 2): 10.0, (2, 3): 90.0, (3, 0): 9.0}
    assert not failures(judge_links(rates, HOSTS))
    (finding,) = failures(judge_links({**rates, (3, 0): 1.0}, HOSTS))
    assert finding.where == "node2 (rank 3) - node1 (rank 0)"
    assert "between nodes: 1 GB/s each way; allowed are 2.5 or more (median 10)" in finding.text


def test_slow_rank_is_named():
    by_rank = dict(zip(named_ranks(HOSTS), (100.0, 99.0, 20.0, 98.0), strict=True))
    (finding,) = failures(judge_rates("rates", "copy", "GB/s", by_rank, "Leave it out."))
    assert finding.where == "node2 (rank 2)"
    assert finding.text == "copy: 20 GB/s; allowed are 24.75 or more (median 99)"


def losing(fsync):
    """An fsync after which a byte of the file is another one."""

    def lossy(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_file() and path.stat().st_size > 2**16:
            with path.open("r+b") as file:
                file.seek(path.stat().st_size - 100)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))

    return lossy


def test_disk_that_loses_a_byte_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "FULL_BYTES", 2**21)
    monkeypatch.setattr(machine.os, "fsync", losing(os.fsync))
    (finding,) = check_disk(tmp_path, is_quick=False)
    assert finding.level == "failed"
    assert finding.text == f"{tmp_path}: MiB 1 of a file of 2 MiB came back with other bytes"
    assert not list(tmp_path.iterdir())


def test_checkpoint_that_loses_a_byte_fails(workers, tmp_path):
    for findings in workers(1).run(engines_on_a_lossy_disk, narrow(), tmp_path):
        (finding,) = failures(findings)
        assert finding.area == "checkpoint"
        assert "checkpoint of zero1, read by zero3" in finding.text
        assert "SHA-256" in finding.text
        assert "--run-dir" in finding.remedy
    assert not list(tmp_path.iterdir())


def engines_on_a_lossy_disk(world, config, run_dir) -> list[Finding]:
    with some_cases("zero1"), mock.patch.object(os, "fsync", losing(os.fsync)):
        return list(check_engines(config, world, run_dir))


def test_disk_error_of_another_kind_is_no_damage():
    finding = machine.describe_disk_error(Path("x"), OSError(errno.ENOSPC, "No space left on device"))
    assert finding.text == "x: cannot be written (No space left on device)"
