"""A whole model on the kernels against the same model on torch: losses, counts and every gradient, dropout on."""

import pytest
from support.tiny_models import tiny_config
from unit.models.conftest import packed

from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize
from megabert.ops.proof.problem import relative_error
from megabert.settings.config.run import OpsConfig

OPS = ("layer_norm", "attention", "bias_gelu", "cross_entropy")
DROPPING = {"num_attention_heads": 1, "attention_probs_dropout_prob": 0.1}
MODELS = {
    "bert": tiny_config(hidden_size=64, intermediate_size=96),
    "modernbert": tiny_config("modernbert", **DROPPING, local_attention=16, global_attn_every_n_layers=2),
    "deberta": tiny_config("deberta-v2", **DROPPING, position_buckets=16),
}


@pytest.mark.parametrize("family", MODELS)
def test_model_on_kernels_equals_model_on_torch(family):
    batch, outputs, gradients = packed([40, 7], vocab_size=70, padding=9), [], []
    for backend in ("triton", "torch"):
        ops = OpsConfig(**dict.fromkeys(OPS, backend))
        model = BertForPreTraining(MODELS[family], ops=ops, objective="nsp" if family == "bert" else "none")
        initialize(model, 3)
        outputs.append(model(batch))
        (outputs[-1].mlm_loss_sum + outputs[-1].nsp_loss_sum).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    ours, theirs = outputs
    assert ours.mlm_correct == theirs.mlm_correct
    assert relative_error(ours.mlm_loss_sum.detach(), theirs.mlm_loss_sum.detach()) < 1e-5
    for name, gradient in gradients[0].items():
        assert relative_error(gradient, gradients[1][name]) < 1e-4, name  # both sides are float32
