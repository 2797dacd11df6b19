"""How much of a GPU's memory a step takes: bytes per token, counted from the tensors that are alive at once."""

import pytest
from fake_cuda.fake_step import peak_bytes
from support.soak import in_soak

from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import PhaseConfig, RunConfig
from megabert.tooling.planning.memory import activation_bytes_per_layer, estimate_memory

BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
MODERNBERT_LARGE = BERT_LARGE | {
    "family": "modernbert", "num_hidden_layers": 28, "intermediate_size": 2624, "vocab_size": 50_368,
    "max_position_embeddings": 8192,
}  # fmt: skip
LARGE = [(BERT_LARGE | {"vocab_size": 30_522}, 512, 796_000), *in_soak((MODERNBERT_LARGE, 1024, 919_000))]
"""Models, lengths, and the most bytes per token: what they are today."""
SMALL = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "vocab_size": 1000}
TOKENS = 8192


def bytes_per_token(sizes, *, layers: int, length: int) -> float:
    """Return the bytes that one more token takes; weights and the optimizer's states are left out by that."""
    sizes = sizes | {"num_hidden_layers": layers}
    few, many = (peak_bytes(sizes, tokens=tokens, length=length) for tokens in (TOKENS, 2 * TOKENS))
    return (many - few) / TOKENS


def of_all_layers(sizes, *, length: int) -> float:
    """Return bytes per token of the whole model, by what a third layer adds: each further one adds the same."""
    two, three = (bytes_per_token(sizes, layers=layers, length=length) for layers in (2, 3))
    return two + (sizes["num_hidden_layers"] - 2) * (three - two)


@pytest.mark.parametrize(("sizes", "length", "bound"), LARGE, ids=["BERT-Large at 512", "ModernBERT-large at 1,024"])
def test_large_models_need_no_more_bytes_per_token_than_today(sizes, length, bound):
    counted = of_all_layers(sizes, length=length)
    assert 0.98 * bound < counted < bound
    phase = PhaseConfig(max_seq_length=length, steps=1, global_batch_size=1, learning_rate=1e-4)
    config = RunConfig(model=ModelConfig(**sizes), precision="bf16", phases=(phase,))
    estimate = estimate_memory(config, parameters=1, zero_stage=1, world_size=2, micro_batch_tokens=1).activations
    assert counted < estimate < 1.08 * counted


@pytest.mark.parametrize("family", ["modernbert", *in_soak("bert", "deberta")])
def test_a_layer_keeps_what_the_estimate_counts(family):
    sizes = SMALL | {"family": family}
    two, three = (bytes_per_token(sizes, layers=layers, length=512) for layers in (2, 3))
    counted = activation_bytes_per_layer(ModelConfig(**sizes, num_hidden_layers=3), 2)
    assert counted <= three - two < 1.01 * counted
