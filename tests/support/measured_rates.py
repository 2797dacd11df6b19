"""Rates as ``megabert doctor --prove`` writes them, with round numbers."""

from dataclasses import replace

from megabert.foundation.json_files import to_json
from megabert.settings.config.loading import load_run_config
from megabert.tooling.measurements.measured import CollectiveSpeed, MeasuredRates, PhaseSpeed


def speeds(**message_and_byte_s: tuple[float, float]) -> tuple[CollectiveSpeed, ...]:
    return tuple(
        CollectiveSpeed(name=name, scope=scope, message_s=message_s, byte_s=byte_s)
        for scope, (message_s, byte_s) in message_and_byte_s.items()
        for name in ("all_reduce", "reduce_scatter", "all_gather")
    )


def rates(**changes) -> MeasuredRates:
    values = {
        "device": "cpu",
        "memory_gib": 24.0,
        "nodes": 2,
        "ranks_per_node": 2,
        "precision": "fp32",
        "model": {"hidden_size": 128, "num_hidden_layers": 4},
        "copy_gb_s": 10.0,
        "product_tflops": 0.05,
        "host_to_device_gb_s": None,
        "disk_write_mib_s": 500.0,
        "disk_read_mib_s": 900.0,
        "phases": (PhaseSpeed(max_seq_length=128, tokens=4096, layer_s=0.5, ends_s=0.25),),
        "optimizer_s_per_parameter": 1e-8,
        "collectives": speeds(job=(0.4, 4e-9), node=(0.1, 1e-9), network=(0.2, 6e-9)),
        "loader_tokens_per_s": 1e6,
    }
    return MeasuredRates(**{**values, **changes})


def measured_debug(**changes) -> MeasuredRates:
    """Rates of two ranks of one node, of the model and the lengths of recipe ``debug``."""
    config = load_run_config("debug")
    model = to_json(replace(config.model, vocab_size=config.shards.planned_vocab_size))
    phases = tuple(PhaseSpeed(max_seq_length=length, tokens=4096, layer_s=0.1, ends_s=0.05) for length in (128, 512))
    own = {"model": model, "phases": phases, "nodes": 1, "collectives": speeds(node=(0.001, 1e-9))}
    return rates(**{**own, **changes})
