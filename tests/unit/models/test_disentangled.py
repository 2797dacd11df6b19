"""DeBERTa's attention is_here the model: packing, padding, recomputation, distances; the numbers are test_parity's."""

from dataclasses import replace

import pytest
import torch
import transformers
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
from unit.models.test_bert import CONFIG, gradients, loss_of, model_of

from megabert.config.model import ModelConfig
from megabert.models.convert import from_huggingface, load_parameters, to_huggingface
from megabert.models.deberta import positions_of

SIZES = {
    name: getattr(CONFIG, name)
    for name in (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    )
}
CONFIGS = {
    "first": ModelConfig(family="deberta", **SIZES),
    "second": ModelConfig(family="deberta-v2", position_buckets=8, **SIZES),
    "second, weights of its own": ModelConfig(
        family="deberta-v2", position_buckets=8, share_att_key=False, norm_rel_ebd="none", **SIZES
    ),
    "second, convolution": ModelConfig(family="deberta-v2", position_buckets=8, conv_kernel_size=3, **SIZES),
}
OPTIONS = {"objective": "none"}


@pytest.fixture(params=CONFIGS)
def config(request) -> ModelConfig:
    return CONFIGS[request.param]


@pytest.mark.parametrize("lengths", [[20, 7], []])
def test_every_parameter_gets_a_gradient(config, lengths, make_batch):
    parameter_gradients = gradients(model_of(config, **OPTIONS), make_batch(lengths, vocab_size=70, padding=3))
    for name, gradient in parameter_gradients.items():
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        assert lengths or gradient.abs().sum() == 0, name


def test_absolute_positions_and_segments_are_absent(config):
    names = {name for name, _ in model_of(config, **OPTIONS).named_parameters()}
    assert not any("position_embeddings" in name or "token_type" in name for name in names)
    assert "bert.encoder.relative.weight" in names


def test_tokens_attend_within_their_sequence_and_its_order_matters(config, make_batch):
    model = model_of(config, **OPTIONS).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    batch = make_batch([20, 7], vocab_size=70)
    before, _ = model.bert(batch)
    batch.input_ids_T[20:] = batch.input_ids_T[20:].flip(0)
    after, _ = model.bert(batch)
    torch.testing.assert_close(after[:20], before[:20], rtol=0, atol=0)
    assert (after[20:].flip(0) - before[20:]).abs().max() > 0.1


def test_padding_and_packing_change_neither_losses_nor_gradients(config, make_batch):
    """Two micro-batches, one of them padded, equal one, dropout on: masks are keyed by instance."""
    whole, parts = make_batch([20, 7, 13], vocab_size=70), []
    for first, last, start, stop, padding in ((0, 1, 0, 20, 0), (1, 3, 20, 40, 4)):
        part = make_batch([20, 7, 13][first:last], vocab_size=70, padding=padding)
        is_here = (whole.masked_positions_M >= start) & (whole.masked_positions_M < stop)
        part.input_ids_T[: stop - start] = whole.input_ids_T[start:stop]
        part.masked_positions_M = whole.masked_positions_M[is_here] - start
        part.masked_ids_M = whole.masked_ids_M[is_here]
        part.instance_seeds_B[: last - first] = whole.instance_seeds_B[first:last]
        parts.append(part)
    together = gradients(model_of(config, **OPTIONS), whole)
    apart = gradients(model_of(config, **OPTIONS), *parts)
    for name, gradient in together.items():
        torch.testing.assert_close(apart[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_activation_checkpointing_gives_equal_losses_and_gradients(config, make_batch):
    batch = make_batch([20, 7], vocab_size=70)
    plain, recomputing = model_of(config, **OPTIONS), model_of(config, activation_checkpointing=True, **OPTIONS)
    assert torch.equal(loss_of(plain, batch), loss_of(recomputing, batch))
    expected = gradients(plain, batch)
    for name, gradient in gradients(recomputing, batch).items():
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_losses_are_near(dtype, config, make_batch):
    batch = make_batch([20, 7, 13], vocab_size=70)
    expected = loss_of(model_of(config, **OPTIONS), batch)
    loss = loss_of(model_of(config, **OPTIONS).to(dtype), batch)
    torch.testing.assert_close(loss, expected, rtol=2e-2, atol=0)


@pytest.mark.parametrize(("span", "farthest"), [(256, 512), (8, 64), (8, 20), (6, 512), (9, 40), (32, 33)])
def test_distances_fall_into_the_buckets_of_transformers(span, farthest):
    length = 600
    first, last, position_E = positions_of(length, span, farthest, is_bucketed=True)
    bucket_SS = build_relative_position(torch.empty(length, 1), torch.empty(length, 1), span, farthest)[0]
    expected = (bucket_SS + span).clamp(0, 2 * span - 1)
    assert (first, last) == (int(expected.min()), int(expected.max()))
    assert torch.equal(position_E[length - 1 :] + first, expected[:, 0])
    assert torch.equal(position_E[:length].flip(0) + first, expected[0])


def test_gradients_are_those_of_transformers(make_batch):
    """The table of relative positions, which all layers share, gets its own through softmax and projections."""
    config = replace(CONFIGS["second"], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    theirs = transformers.DebertaV2ForMaskedLM(
        transformers.DebertaV2Config(
            **SIZES,
            relative_attention=True,
            pos_att_type=["c2p", "p2c"],
            position_buckets=8,
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            position_biased_input=False,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.2,
        )
    )
    state, missing, unexpected = from_huggingface(theirs.state_dict(), config)
    assert (missing, unexpected) == ([], [])
    ours = model_of(config, **OPTIONS)
    load_parameters(ours, state)
    batch = make_batch([23], vocab_size=70)
    batch.input_ids_T.clamp_(min=1)  # their embedding of the padding piece has no gradient
    labels = torch.full_like(batch.input_ids_T, -100).index_copy(0, batch.masked_positions_M, batch.masked_ids_M)
    (theirs(input_ids=batch.input_ids_T[None], labels=labels[None]).loss * batch.num_masked).backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    ours_renamed = to_huggingface(gradients(ours, batch), config)
    assert ours_renamed.keys() >= {"deberta.encoder.rel_embeddings.weight", "deberta.encoder.LayerNorm.weight"}
    for name, gradient in ours_renamed.items():
        error = (gradient - expected[name]).norm() / expected[name].norm()
        assert error < 1e-4 or expected[name].norm() < 1e-4, name
