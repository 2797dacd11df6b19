"""What a recipe needs: counted, held against the model itself, and shown."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.measured_rates import measured_debug

from megabert.data.batch import probe_batch
from megabert.foundation.errors import ConfigError
from megabert.foundation.json_files import to_json
from megabert.models.build import build_model
from megabert.observability.flops import GPUS
from megabert.settings.config.loading import load_run_config
from megabert.settings.config.model import ModelConfig
from megabert.tooling.planning.estimate import communication_of, estimate, steps_that_fit
from megabert.tooling.planning.estimate_page import render_estimate
from megabert.tooling.planning.memory import activation_bytes_per_layer, describe_memory, estimate_memory
from megabert.tooling.planning.passes import name_by_build, sum_by_source, warn_of
from megabert.tooling.planning.step_time import Cluster, measured_cluster


def bert_large(nodes: int = 8, **options):
    cluster = Cluster(gpu=GPUS["h200"], nodes=nodes, gpus_per_node=8)
    return estimate(load_run_config("bert_large"), cluster, **options)


def test_flops_are_those_of_the_formula():
    first, second = bert_large().phases
    assert first.flops / first.tokens_per_step == pytest.approx(1.880e9, rel=1e-3)
    assert second.flops / second.tokens_per_step == pytest.approx(1.993e9, rel=1e-3)


@pytest.mark.parametrize(("recipe", "tokens_per_s"), [("modernbert_1gpu", 432_720), ("modernbert_large", 186_099)])
def test_steps_of_modernbert_take_what_one_h100_took(recipe, tokens_per_s):
    cluster = Cluster(gpu=GPUS["h100"], nodes=1, gpus_per_node=1)
    first = estimate(load_run_config(recipe), cluster).phases[0]
    assert first.tokens_per_step / first.step.total_s == pytest.approx(tokens_per_s, rel=0.03)


def test_time_flops_and_rate_agree():
    plan = bert_large()
    for phase in plan.phases:
        peak = 64 * 989e12
        assert phase.mfu_pct == pytest.approx(100 * phase.flops / phase.step.total_s / peak)
    assert plan.hours == pytest.approx(sum(p.steps * p.step.total_s for p in plan.phases) / 3600)


NARROW = {"hidden_size": 128, "num_attention_heads": 2}
SHAPES = {
    "bert": NARROW,
    # DeBERTa's and local attention keep as little only on Triton's kernels: tests/fake_cuda/steps_memory.py.
    "modernbert": {**NARROW, "family": "modernbert", "global_attn_every_n_layers": 1},
}


def saved_bytes(layers: int, shape: dict[str, object]) -> int:
    """Return the bytes that the torch backends keep for the backward pass of 256 tokens, parameters left out."""
    config = ModelConfig(**shape, num_hidden_layers=layers, vocab_size=1024)
    model = build_model(config)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor: its address must not be used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(probe_batch(tokens=256, length=64))
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("family", SHAPES)
def test_activations_are_what_a_layer_keeps(family):
    shape = SHAPES[family]
    per_token = (saved_bytes(4, shape) - saved_bytes(2, shape)) / 2 / 256
    model = ModelConfig(**shape, num_hidden_layers=2)
    counted = activation_bytes_per_layer(model, 4)
    if model.traits.is_pre_norm:
        counted += model.intermediate_size * 4  # the torch backend of ``gated_gelu`` keeps GELU's result as well
    # In float32 the torch backends keep dropout's factors, too, which Triton's regenerate.
    assert counted <= per_token <= 1.1 * counted


# Tokens/s by counts, bf16 and fp8: "Whole steps in fp8, before any run" of benchmarks/notes.md.
@pytest.mark.parametrize(
    ("gpu", "recipe", "index", "in_bf16", "in_fp8"),
    [
        ("h200", "bert_large", 0, 280_000, 323_000),
        ("h100", "bert_large", 0, 263_000, 294_000),
        ("h200", "bert_large", 1, 263_000, 300_000),
        ("h100", "bert_large", 1, 247_000, 275_000),
        ("h200", "modernbert_large", 0, 206_000, 232_000),
        ("h100", "modernbert_large", 0, 195_000, 215_000),
    ],
)
def test_fp8_saves_the_time_per_token_that_its_counts_predict(gpu, recipe, index, in_bf16, in_fp8):
    cluster = Cluster(gpu=GPUS[gpu], nodes=1, gpus_per_node=1)
    times = []
    for precision in ("bf16", "fp8"):
        phase = estimate(load_run_config(recipe, flags={"precision": precision}), cluster).phases[index]
        times.append(phase.step.compute_s / phase.tokens_per_step)
    assert times[0] - times[1] == pytest.approx(1 / in_bf16 - 1 / in_fp8, rel=0.1)


def test_the_page_says_that_nobody_has_timed_fp8(megabert):
    note = "products in 8 bits are taken to be 1.57 times as fast as in bf16"
    assert note in megabert("estimate", "--precision", "fp8").out
    assert note not in megabert("estimate", "--precision", "bf16").out
    narrow = [
        json.loads(megabert("estimate", "--recipe", "electra_small", "--precision", precision, "--json").out)["hours"]
        for precision in ("bf16", "fp8")
    ]
    assert narrow[1] > narrow[0], "casts of a model 256 wide take longer than they save"


@pytest.mark.parametrize(("stage", "mib"), [(1, 576), (2, 576), (3, 0)])
def test_fp8_keeps_a_byte_for_each_weight_of_the_layers_and_its_transpose(stage, mib):
    def weights(precision: str) -> float:
        config = load_run_config("bert_large", flags={"precision": precision, "model": {"vocab_size": 30522}})
        sizes = {"parameters": 336_000_000, "zero_stage": stage, "world_size": 8, "micro_batch_tokens": 8192}
        return estimate_memory(config, **sizes).weights

    assert weights("fp8") - weights("bf16") == mib * 2**20  # 24 layers of 12 * 1,024^2


def test_stages_share_out_what_they_say():
    config = load_run_config("bert_base", flags={"precision": "bf16", "model": {"vocab_size": 30522}})

    def memory(stage: int):
        return estimate_memory(config, parameters=110_000_000, zero_stage=stage, world_size=64, micro_batch_tokens=8192)

    one, two, three = (memory(stage) for stage in (1, 2, 3))
    assert one.optimizer == pytest.approx(12 * 110e6 / 64)
    assert one.gradients == 4 * 110e6  # 16-bit ones are freed as they come
    buckets = 3 * 30_000_000 + 30_528 * 768  # two under way, one being filled, and the vocabulary's
    assert two.gradients == pytest.approx(4 * min(110e6, buckets) + 4 * 110e6 / 64)
    assert three.weights == pytest.approx(2 * 110e6 / 64)
    assert memory(0).optimizer == 8 * 110e6
    assert one.activations == two.activations == three.activations


def test_recomputation_needs_less():
    config = load_run_config("bert_large", flags={"activation_checkpointing": True})
    cluster = Cluster(gpu=GPUS["h200"], nodes=1, gpus_per_node=8)
    lean = estimate(config, cluster).memory_gib[1][131_072]
    assert lean < 0.3 * bert_large(nodes=1).memory_gib[1][131_072]


def test_budget_is_the_one_that_the_run_takes():
    # The largest that fits, and no larger than a rank's share: 32,768 tokens of phase 1, 65,536 of phase 2.
    assert bert_large(nodes=32).micro_batch_tokens == 65_536
    plan = estimate(load_run_config("bert_large"), Cluster(gpu=GPUS["v100"], nodes=1, gpus_per_node=1))
    totals = plan.memory_gib[plan.zero_stage]
    assert plan.micro_batch_tokens == max(budget for budget, total in totals.items() if total < 31.7 * 0.95)


def test_steps_that_fit_take_the_hours():
    plan = bert_large()
    steps = steps_that_fit(plan, plan.hours / 3)
    assert sum(n * p.step.total_s for n, p in zip(steps, plan.phases, strict=True)) <= 3600 * plan.hours / 3 * (
        1 + 1e-9
    )
    assert steps == [7038 // 3, 1563 // 3]
    assert steps_that_fit(plan, 1e6) == [7038, 1563]


@pytest.mark.parametrize("section", ["shards", "phases.0", "phases.1"])
def test_masks_that_a_recipe_states_are_counted(section, megabert):
    flags = (f"--{section}.masked_lm_prob", "0.4")
    plain, more = (json.loads(megabert("estimate", "--json", *each).out) for each in ((), flags))
    assert more["memory_gib"]["1"]["8192"] > plain["memory_gib"]["1"]["8192"] + 0.3
    assert more["flops"] > 1.005 * plain["flops"]


@pytest.mark.parametrize(("instances", "warns"), [(100_000_000, False), (5_000_000, True)])
def test_many_passes_are_warned_of(instances, warns, megabert):
    shown = megabert("estimate", "--instances", instances).out
    passes = (7038 * 65_536 + 1563 * 32_768) * 5 / instances  # these rows hold the corpus dupe_factor times
    assert f"passes over the corpus: {passes:.1f}" in shown
    assert ("WARNING" in shown) == warns


@pytest.mark.parametrize(("second", "count"), [("a/instances/512", 1), ("b/instances/128", 0)])
def test_passes_over_different_texts_are_not_added_up(second, count):
    config = load_run_config("debug", flags={"phases": {"0": {"data": "a/instances/128"}, "1": {"data": second}}})
    texts = [SimpleNamespace(first=SimpleNamespace(place=phase.data)) for phase in config.phases]
    warnings = warn_of(sum_by_source([name_by_build(config, text, {"": 30.0}) for text in texts]))
    assert [" 60.0 passes over the text of " in warning for warning in warnings] == [True] * count


def test_json_has_the_same_figures(megabert):
    report = json.loads(megabert("estimate", "--nodes", "8", "--json", "--hours", "1").out)
    assert report["hours"] == pytest.approx(bert_large().hours)
    assert report["checkpoint_gib"] == pytest.approx(336_232_258 * 12 / 2**30)
    assert report["steps_that_fit"][0] < 7038


def test_z_loss_by_a_flag_takes_its_pass_over_the_logits(megabert):
    plain, more = (
        json.loads(megabert("estimate", "--json", *flags).out)["memory_gib"]["1"]["8192"]
        for flags in ((), ("--z_loss", "1e-4"))
    )
    assert more > plain + 0.1


def test_electra_counts_its_generator():
    config = load_run_config("electra_small")
    cluster = Cluster(gpu=GPUS["a100"], nodes=1, gpus_per_node=1)
    whole = estimate(config, cluster).memory_gib[1]
    alone = load_run_config("electra_small", flags={"model": {"generator_size": 0.01}})
    assert estimate(alone, cluster).memory_gib[1][131_072] < whole[131_072]


def test_short_steps_are_warned_of(megabert):
    page = megabert("estimate", "--recipe", "debug", "--gpu", "a100").out
    assert "NOTE: phase1, phase2: a micro-step computes for less than 20 ms" in page
    assert "NOTE: 6 million tokens in sequences of 128 from the start" in page
    assert "from the start" not in megabert("estimate", "--recipe", "demo", "--gpu", "a100").out
    assert re.search(r"altogether 0\.[0-9]+ s,", page)
    assert "NOTE" not in megabert("estimate").out


@pytest.mark.parametrize(
    ("flags", "phrases"),
    [
        (["--gpu", "h10"], ["did you mean h100?"]),
        (["--gpu", "v100", "--precision", "bf16"], ["figures of v100 are for fp16"]),
        (["--gpu", "a100", "--precision", "fp8"], ["figures of a100 are for bf16, fp16. Use bf16"]),
        (["--nodes", "0"], ["--nodes: 0 is not at least 1"]),
        (["--efficiency", "45"], ["45 is not above 0 and at most 1"]),
        (["--model.hidden_size", "65536", "--model.num_attention_heads", "1024"], ["512 tokens take", "zero3"]),
        (["--instances", "1000", "--data.path", "data"], ["--instances has no effect with --data.path"]),
        (["--optimizer.name", "adamw", "--optimizer.clip-both"], ["--optimizer.clip-both has no effect"]),
    ],
)
def test_impossible_wishes_are_refused(flags, phrases, megabert):
    error = megabert("estimate", *flags, code=2).err
    assert all(phrase in error for phrase in phrases), error


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_memory_shown_is_the_sum_of_its_named_parts(stage):
    plan = bert_large(1)
    memory = estimate_memory(
        plan.config, parameters=plan.parameters, zero_stage=stage, world_size=8, micro_batch_tokens=8192
    )
    total, *parts = map(float, re.findall(r"[\d.]*\d(?= GiB| \+|$)", describe_memory(memory.parts_gib)))
    assert total == pytest.approx(sum(parts))
    assert total == pytest.approx(memory.total_gib, abs=0.03)
    assert len(parts) == 5


def test_measured_rates_give_the_parts_of_a_step():
    measured = measured_debug()
    plan = estimate(load_run_config("debug"), measured_cluster(measured), measured=measured)
    first = plan.phases[0]
    # 32 x 128 tokens on two ranks: half of what was measured, in two layers; ZeRO-1 halves the optimizer.
    assert first.step.compute_s == pytest.approx((2 * 0.1 + 0.05) / 2)
    assert first.step.optimizer_s == pytest.approx(plan.parameters * 1e-8 / 2)
    assert first.step.passes_s == 0
    buckets = plan.communication.buckets
    assert first.step.communication_s == pytest.approx(2 * buckets * 0.001 + plan.parameters * (4 + 4) * 1e-9)
    assert first.step.loader_s == pytest.approx(32 * 128 / 2 / 1e6)


def test_estimate_from_a_file_shows_the_parts_and_refuses_what_it_would_ignore(tmp_path, megabert):
    path = tmp_path / "proof.json"
    path.write_text(json.dumps({"measured": to_json(measured_debug())}))
    page = megabert("estimate", "--recipe", "debug", "--measured", path).out
    assert "on 1 x 2 cpu, fp32, ZeRO-1" in page
    assert re.search(r"ms per step +compute +communication +hidden +passes +optimizer +loader", page)
    assert re.search(r"phase1 +125\.0 ", page)
    assert "rates measured on 1 node(s) x 2 rank(s) of cpu" in page
    megabert("estimate", "--recipe", "debug", "--measured", path, "--gpu", "h200", code=2)
    said = megabert("estimate", "--recipe", "bert_base", "--measured", path, code=2).err
    assert "hidden_size: 128 was measured, 768 is asked for" in said


def test_float32_weights_travel_whole_and_stage_0_has_its_own_memory():
    measured = measured_debug()
    plans = {
        engine: estimate(
            load_run_config("debug", flags={"engine": engine}), measured_cluster(measured), measured=measured
        )
        for engine in ("zero0", "zero1")
    }
    assert plans["zero0"].memory_gib.keys() == {0, 1, 2, 3}
    assert plans["zero1"].memory_gib.keys() == {1, 2, 3}
    assert "ZeRO-0" in render_estimate(plans["zero0"])
    assert plans["zero1"].communication.all_gather_bytes == 4
    large = load_run_config("bert_large", flags={"precision": "bf16", "model": {"vocab_size": 30522}})
    assert communication_of(large, 1, 10).all_gather_bytes == 2


def test_estimate_says_what_of_muon_it_does_not_count(megabert):
    for name, is_said in (("muon", True), ("lamb", False)):
        printed = megabert("estimate", "--recipe", "bert_base", "--gpu", "h200", "--optimizer.name", name).out
        assert ("Muon's Newton-Schulz" in printed) == is_said


def test_rates_that_come_to_no_time_are_refused():
    phases = tuple(replace(phase, ends_s=-0.5) for phase in measured_debug().phases)
    measured = measured_debug(phases=phases)
    with pytest.raises(ConfigError, match=r"--measured: 2 layers of length 128 come to -0\.3 s per micro-step"):
        estimate(load_run_config("debug"), measured_cluster(measured), measured=measured)
