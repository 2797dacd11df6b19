"""A whole model on the kernels against the same model on torch: losses, counts and every gradient, dropout on."""

from types import SimpleNamespace

import pytest
import torch

from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize
from megabert.ops.proof.inputs import boundaries
from megabert.ops.proof.problem import relative_error
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig

LENGTHS, TOKENS = [40, 7, 0], 56
OPS = ("layer_norm", "attention", "bias_gelu", "cross_entropy")
CONFIG = ModelConfig(
    vocab_size=70, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
    max_position_embeddings=40,
)  # fmt: skip
MODERN = ModelConfig(
    family="modernbert", vocab_size=70, hidden_size=32, num_hidden_layers=2, num_attention_heads=1,
    intermediate_size=48, max_position_embeddings=40, local_attention=16, global_attn_every_n_layers=2,
    attention_probs_dropout_prob=0.1,
)  # fmt: skip
DEBERTA = ModelConfig(
    family="deberta-v2", vocab_size=70, hidden_size=32, num_hidden_layers=2, num_attention_heads=1,
    intermediate_size=48, max_position_embeddings=40, position_buckets=16, attention_probs_dropout_prob=0.1,
)  # fmt: skip


def run(config, batch, ops, objective):
    model = BertForPreTraining(config, ops=OpsConfig(**ops), objective=objective)
    initialize(model, 3)
    output = model(batch)
    (output.mlm_loss_sum + output.nsp_loss_sum).backward()
    return output, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("config", "ops", "objective"),
    [(CONFIG, OPS, "nsp"), (MODERN, OPS, "none"), (DEBERTA, OPS, "none")],
    ids=["bert", "modernbert", "deberta"],
)
def test_model_on_kernels_equals_model_on_torch(config, ops, objective, generator):
    positions = torch.zeros(TOKENS, dtype=torch.int64)
    positions[:47] = torch.cat([torch.arange(length) for length in LENGTHS])
    batch = SimpleNamespace(
        input_ids_T=torch.randint(0, 70, (TOKENS,), generator=generator),
        position_ids_T=positions,
        segment_ids_T=torch.randint(0, 2, (TOKENS,), generator=generator),
        cu_seqlens=boundaries(LENGTHS, torch.device("cpu")),
        masked_positions_M=torch.tensor([3, 20, 41, 0]),
        masked_ids_M=torch.tensor([5, 69, 0, -100]),
        next_sentence_label_B=torch.tensor([1, 0, -100]),
        instance_seeds_B=torch.tensor([11, -12, 0], dtype=torch.int32),
        max_seqlen=40,
    )
    (ours, our_gradients), (theirs, their_gradients) = (
        run(config, batch, dict.fromkeys(OPS, "torch") | dict.fromkeys(ops, backend), objective)
        for backend in ("triton", "torch")
    )
    assert ours.mlm_correct == theirs.mlm_correct
    assert relative_error(ours.mlm_loss_sum.detach(), theirs.mlm_loss_sum.detach()) < 1e-5
    for name, gradient in our_gradients.items():
        assert relative_error(gradient, their_gradients[name]) < 1e-4, name  # both sides are float32
