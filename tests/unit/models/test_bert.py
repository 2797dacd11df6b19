"""BERT on packed tokens: sizes, losses, gradients, padding, packing, dropout, recomputation, initial values."""

import dataclasses
import math

import pytest
import torch
from fake_cuda.memory import Memory
from support.parity_models import count_encoder_parameters
from support.tiny_models import tiny_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megabert.foundation.errors import KernelError
from megabert.models.bert import BertForPreTraining
from megabert.models.build import initial_value, initialize
from megabert.settings.config.model import PRESETS, ModelConfig
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import OpsConfig
from megabert.training.step import weighted_loss

CONFIG = tiny_config()


def model_of(config=CONFIG, seed=0, **options):
    model = BertForPreTraining(config, **options)
    initialize(model, seed)
    return model


WEIGHTED = PhaseConfig(
    steps=1, global_batch_size=1, learning_rate=1.0, masked_lm_range=(0.1, 0.9), masked_lm_weight="inverse_share"
)


def loss_of(model, batch):
    output = model(batch)
    return output.mlm_loss_sum + output.nsp_loss_sum


def counts_of(*batches):
    return {name: sum(getattr(batch, f"num_{name}") for batch in batches) for name in ("masked", "instances", "tokens")}


def gradients(model, *batches):
    """Gradients of the sums of losses, which tests of other families compare with sums of their own."""
    for batch in batches:
        loss_of(model, batch).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def gradients_of_means(model, *batches):
    """Gradients of the loss of a step, as the trainer weighs its terms."""
    counts = counts_of(*batches)
    for batch in batches:
        weighted_loss(model(batch), model.terms, counts=counts, world_size=1).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("preset", "millions"), [("base", 109_482_240), ("large", 335_141_888)])
def test_presets_have_the_papers_size(preset, millions):
    assert count_encoder_parameters(ModelConfig(vocab_size=30_522, **PRESETS[preset])) == millions


def test_untrained_losses_are_those_of_guessing(make_batch):
    batch = make_batch([30, 25, 12], vocab_size=70)
    output = model_of().eval()(batch)
    assert output.mlm_loss_sum.dtype == torch.float32
    assert abs(output.mlm_loss_sum.item() / batch.num_masked - math.log(70)) < 0.3
    assert abs(output.nsp_loss_sum.item() / 3 - math.log(2)) < 0.1


def test_padding_of_the_vocabulary_stays_zero(make_batch):
    model = model_of()
    by_name = gradients(model, make_batch([30], vocab_size=70))
    assert model.bert.embeddings.word_embeddings.weight.shape[0] == 128
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.bias"):
        assert dict(model.named_parameters())[name][70:].abs().sum() == 0
        assert by_name[name][70:].abs().sum() == 0


@pytest.mark.parametrize("masked", [0, 1])
def test_empty_micro_batch_gives_exactly_zero(masked, make_batch):
    model, batch = model_of(z_loss=1e-4), make_batch([], vocab_size=70, padding=5)
    model.begin_phase(WEIGHTED)
    batch.masked_positions_M, batch.masked_ids_M = batch.masked_positions_M[:masked], batch.masked_ids_M[:masked]
    output = model(batch)
    losses = [output.mlm_loss_sum, output.nsp_loss_sum, output.weighted_mlm_loss_sum, output.z_loss_sum]
    assert all(value.item() == 0 for value in (*losses, output.mlm_correct, output.nsp_correct))
    sum(losses).backward()
    assert all(parameter.grad.abs().sum() == 0 for parameter in model.parameters())


def whole_and_parts(make_batch):
    """Return a micro-batch, and two with the same instances, of which the second is padded."""
    whole, parts = make_batch([20, 7, 13], vocab_size=70), []
    for first, last, start, stop, padding in ((0, 1, 0, 20, 0), (1, 3, 20, 40, 4)):
        part = make_batch([20, 7, 13][first:last], vocab_size=70, padding=padding)
        is_here = (whole.masked_positions_M >= start) & (whole.masked_positions_M < stop)
        part.num_masked = int(is_here.sum())
        part.input_ids_T[: stop - start] = whole.input_ids_T[start:stop]
        part.masked_positions_M = whole.masked_positions_M[is_here] - start
        part.masked_ids_M = whole.masked_ids_M[is_here]
        part.next_sentence_label_B[: last - first] = whole.next_sentence_label_B[first:last]
        part.instance_seeds_B[: last - first] = whole.instance_seeds_B[first:last]
        parts.append(part)
    return whole, parts


def test_packing_changes_no_gradient_of_weighted_losses(make_batch):
    whole, parts = whole_and_parts(make_batch)
    models = [model_of() for _ in range(2)]
    for model in models:
        model.begin_phase(WEIGHTED)
    together, apart = gradients_of_means(models[0], whole), gradients_of_means(models[1], *parts)
    for name, gradient in together.items():
        torch.testing.assert_close(apart[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", [0, 5])
def test_weighted_loss_is_the_mean_over_tokens_of_the_means_of_instances(make_batch, padding):
    """The share of an instance cancels: each counts by its length, however many of its tokens are masked."""
    model, batch = model_of(), make_batch([30, 25, 12], vocab_size=70, padding=padding, seed=1)
    plain_terms = model.terms
    model.begin_phase(WEIGHTED)
    output = model.eval()(batch, with_logits=True)
    is_real_M = batch.masked_ids_M >= 0
    nats_M = torch.nn.functional.cross_entropy(output.mlm_logits_MV, batch.masked_ids_M.clamp(min=0), reduction="none")
    by_hand = 0.0
    for start, end in ((0, 30), (30, 55), (55, 67)):
        is_own_M = is_real_M & (batch.masked_positions_M >= start) & (batch.masked_positions_M < end)
        by_hand += (end - start) * nats_M[is_own_M].mean().item()
    assert output.weighted_mlm_loss_sum.item() == pytest.approx(by_hand)
    assert output.mlm_loss_sum.item() == pytest.approx(nats_M[is_real_M].sum().item())
    expected = by_hand / 67 + output.nsp_loss_sum.item() / 3
    assert weighted_loss(output, model.terms, counts=counts_of(batch), world_size=1).item() == pytest.approx(expected)
    # A validation knows no weights, and neither does the next phase without them.
    assert model.held_out_terms == plain_terms
    model.begin_phase(dataclasses.replace(WEIGHTED, masked_lm_weight="equal"))
    assert model.terms == plain_terms
    assert model(batch).weighted_mlm_loss_sum is model(batch).z_loss_sum is None


class AliveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that ops have made and that are alive."""

    def __init__(self):
        super().__init__()
        self.memory = Memory()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.memory.hold(leaf)
        return result


def test_activation_checkpointing_lowers_the_peak_of_memory(make_batch):
    config = dataclasses.replace(CONFIG, num_hidden_layers=8, intermediate_size=128)
    batch = make_batch([40] * 8, vocab_size=70)
    peaks = {}
    for is_recomputing in (False, True):
        model = model_of(config, activation_checkpointing=is_recomputing)
        with AliveBytes() as alive:
            loss_of(model, batch).backward()
        peaks[is_recomputing] = alive.memory.peak - sum(p.nbytes for p in model.parameters())  # less the gradients
    print("peak bytes without and with recomputation", peaks)
    hidden_state = 8 * 40 * 32 * 4
    assert peaks[True] < 0.4 * peaks[False]
    assert peaks[False] - peaks[True] > 7 * 10 * hidden_state  # of seven layers more than ten tensors of this size


def test_initial_values_depend_on_seed_and_name_alone():
    small = dict(model_of().named_parameters())
    deeper = dict(model_of(dataclasses.replace(CONFIG, num_hidden_layers=3)).named_parameters())
    assert all(torch.equal(parameter, deeper[name]) for name, parameter in small.items())
    other = dict(model_of(seed=1).named_parameters())
    name = "bert.encoder.layer.0.attention.self.qkv.weight"
    assert not torch.equal(small[name], other[name])
    assert not torch.equal(small[name], small[name.replace("0", "1")])


def test_initial_values_are_a_truncated_normal():
    value = initial_value("any.weight", torch.Size([500, 400]), seed=3, config=CONFIG)
    assert abs(value.mean().item()) < 2e-4
    assert abs(value.std().item() - 0.02 * 0.8796) < 2e-4  # of a normal cut at 2 deviations
    assert value.abs().max() <= 0.04


def test_initial_values_are_those_of_every_version_of_torch():
    value = initial_value("any.weight", torch.Size([4]), seed=3, config=CONFIG)
    torch.testing.assert_close(value, torch.tensor([-0.0259631928, 0.0064014513, -0.0075512999, 0.0065636556]))


def test_configured_backend_reaches_the_op(make_batch):
    model = model_of(ops=OpsConfig(attention="triton"))
    with pytest.raises(KernelError, match=r"ops\.attention=triton"):
        model(make_batch([5], vocab_size=70))


@pytest.mark.parametrize("padding", [0, 5])
def test_z_loss_is_the_squared_log_of_the_normaliser(make_batch, padding):
    batch = make_batch([12, 7, 20], vocab_size=CONFIG.vocab_size, padding=padding)
    model = model_of(objective="none", z_loss=0.25).double().eval()
    output = model(batch, with_logits=True)
    logits_MV = output.mlm_logits_MV[: batch.num_masked]
    log_normalizers_M = logits_MV.exp().sum(1).log()
    assert [(term.name, term.per, term.weight) for term in model.terms] == [("mlm", "masked", 1), ("z", "masked", 0.25)]
    torch.testing.assert_close(output.z_loss_sum, log_normalizers_M.square().sum())
    # d/dx of the squared log-sum-exp is 2 log-sum-exp times softmax; the decoder's bias is added to every row.
    (gradient_V,) = torch.autograd.grad(
        output.z_loss_sum, dict(model.named_parameters())["cls.predictions.decoder.bias"]
    )
    expected_MV = 2 * log_normalizers_M[:, None] * logits_MV.softmax(1)
    torch.testing.assert_close(gradient_V[: CONFIG.vocab_size], expected_MV.sum(0))
