"""ELECTRA and DeBERTa 3: embeddings, replaced tokens, both losses, the same draws however tokens are packed."""

import dataclasses
import math

import pytest
import torch
from support.tiny_models import tiny_config
from unit.models.test_bert import whole_and_parts

from megabert.models.build import build_model, initialize
from megabert.models.electra import DISCRIMINATOR_WEIGHT, replace_tokens
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.phase import PhaseConfig

CONFIG = tiny_config("electra", embedding_size=24, generator_size=0.5)
DEBERTAS = ("pos_att_type", "share_att_key", "norm_rel_ebd")
DEBERTA = dataclasses.replace(
    CONFIG,
    family="deberta-v3",
    **{name: getattr(ModelConfig(family="deberta-v3"), name) for name in DEBERTAS},
    position_buckets=8,
    position_biased_input=False,
    type_vocab_size=0,
    generator_layers=1,
    embedding_sharing="disentangled",
    enhanced_mask_decoder=True,
)
BOTH = pytest.mark.parametrize("config", [CONFIG, DEBERTA], ids=["electra", "deberta-v3"])


def model_of(config=CONFIG):
    model = build_model(config)
    initialize(model, 0)
    return model


def loss_of(output):
    return output.mlm_loss_sum + DISCRIMINATOR_WEIGHT * output.rtd_loss_sum


def test_generator_is_a_share_as_wide_and_as_deep():
    generator = dataclasses.replace(CONFIG, hidden_size=96, num_attention_heads=6, generator_size=1 / 3).generator()
    assert (generator.hidden_size, generator.num_attention_heads, generator.intermediate_size) == (32, 2, 16)
    assert (generator.num_hidden_layers, generator.embedding_size) == (2, 24)
    assert DEBERTA.generator().num_hidden_layers == 1
    with pytest.raises(ValueError, match="embedding_sharing is none, but family=deberta-v3"):
        dataclasses.replace(DEBERTA, embedding_sharing=None)
    with pytest.raises(ValueError, match="goes with family=electra"):
        dataclasses.replace(CONFIG, family="bert")
    with pytest.raises(ValueError, match="choose 1/2, 1/3 or 1/4"):
        dataclasses.replace(CONFIG, hidden_size=36, num_attention_heads=12, generator_size=0.7)


def test_embeddings_are_one_set_of_parameters():
    names = [name for name, _ in model_of().named_parameters()]
    assert sum("word_embeddings" in name for name in names) == 1
    assert not any(name.startswith("generator.bert.embeddings.") for name in names)


@BOTH
def test_losses_begin_at_those_of_guessing(config, make_batch):
    batch = make_batch([30, 25, 12], vocab_size=70)
    output = model_of(config).eval()(batch, with_logits=True)
    assert abs(output.mlm_loss_sum.item() / batch.num_masked - math.log(70)) < 0.3
    assert abs(output.rtd_loss_sum.item() / batch.num_tokens - math.log(2)) < 0.1
    assert output.rtd_histogram.sum() == batch.num_tokens
    assert output.mlm_logits_MV.shape == (batch.num_masked, 70)
    assert output.rtd_logits_T.shape == (67,)


def test_only_masked_positions_change_and_hits_are_no_replacements(make_batch):
    batch = make_batch([30, 25, 12], vocab_size=70, padding=5)
    positions = batch.masked_positions_M[: batch.num_masked]
    logits_MV = torch.full((len(batch.masked_positions_M), 70), -torch.inf)
    right = torch.arange(batch.num_masked) % 2 == 0
    masked = batch.masked_ids_M[: batch.num_masked]
    drawn = torch.where(right, masked, (masked + 1) % 70)
    logits_MV[torch.arange(batch.num_masked), drawn] = 0.0
    logits_MV[batch.num_masked :] = 0.0
    ids_T, is_replaced_T = replace_tokens(batch, logits_MV)
    assert ids_T[positions].equal(drawn)
    assert is_replaced_T[positions].equal(~right)
    others = torch.ones(72, dtype=torch.bool).index_fill(0, positions, False)
    assert ids_T[others].equal(batch.input_ids_T[others])
    assert not is_replaced_T[others].any()


@BOTH
def test_draws_depend_neither_on_packing_nor_on_neighbours(config, make_batch):
    batch, parts = whole_and_parts(make_batch)
    model, total = model_of(config), 0.0
    whole = model(batch, with_logits=True)
    for part, first, stop in zip(parts, (0, 20), (20, 40), strict=True):
        output = model(part, with_logits=True)
        logits_T = output.rtd_logits_T[: stop - first]
        torch.testing.assert_close(logits_T, whole.rtd_logits_T[first:stop], rtol=1e-4, atol=1e-5)
        total += loss_of(output).item()
    assert total == pytest.approx(loss_of(whole).item(), rel=1e-5)


@BOTH
def test_empty_micro_batch_has_no_loss_and_reaches_every_parameter(config, make_batch):
    model = model_of(config)
    output = model(make_batch([], vocab_size=70, padding=4))
    assert loss_of(output).item() == 0
    assert output.rtd_correct.item() == output.rtd_histogram.sum().item() == 0
    loss_of(output).backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


def test_the_discriminator_does_not_train_the_generator(make_batch):
    model = model_of()
    model(make_batch([30, 25], vocab_size=70)).rtd_loss_sum.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("generator."), name


@BOTH
def test_without_replaced_tokens_the_discriminator_is_a_masked_lm_by_the_generators_head(config, make_batch):
    config = dataclasses.replace(config, generator_size=1.0)
    phase = PhaseConfig(steps=1, global_batch_size=1, learning_rate=1e-3, replaced_tokens=False)
    model, batch = model_of(config), make_batch([30, 25], vocab_size=70, padding=3)
    model.begin_phase(phase)
    output = model(batch)
    assert [term.name for term in model.terms] == ["mlm", "discriminator_mlm"]
    loss_sum, correct = output.loss_and_correct(model.terms[-1])
    assert abs(loss_sum.item() / batch.num_masked - math.log(70)) < 0.3
    assert 0 <= correct.item() <= batch.num_masked
    loss_sum.backward()
    learns = {name for name, value in model.named_parameters() if value.grad is not None and value.grad.any()}
    assert {"bert.encoder.layer.1.output.dense.weight", "generator.cls.predictions.transform.dense.weight"} <= learns
    assert not any("discriminator_predictions" in name for name in learns)
    assert all(value.grad is not None for name, value in model.named_parameters() if not name.startswith("generator."))
    assert output.mlm_logits_MV is output.hidden_TD is None
    whole = model(batch, with_logits=True, with_hidden=True)  # probes of a run read the generator's logits
    assert whole.mlm_logits_MV.shape == (len(batch.masked_positions_M), 70)
    assert whole.hidden_TD.shape == (len(batch.input_ids_T), config.hidden_size)
    model.begin_phase(dataclasses.replace(phase, replaced_tokens=True))
    assert model(batch).rtd_loss_sum is not None


def test_dropout_of_the_two_models_differs(make_batch):
    """Equal shapes and weights: the hidden states of one dropout would be equal."""
    model = model_of(dataclasses.replace(CONFIG, generator_size=1.0))
    model.generator.bert.load_state_dict(model.bert.state_dict())
    batch = make_batch([30, 25], vocab_size=70)
    assert not model.bert(batch)[0].allclose(model.generator.bert(batch)[0])
    model.eval()
    assert model.bert(batch)[0].equal(model.generator.bert(batch)[0])
