"""Our model against transformers' for the same weights."""

from itertools import pairwise

import pytest
import torch
import transformers
from support.parity_models import SIZES

from megabert.foundation.errors import CheckpointError
from megabert.models.bert import BertForPreTraining
from megabert.models.convert import from_huggingface, load_parameters, to_huggingface
from megabert.settings.config.model import ModelConfig

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def configs(**sizes):
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    options = {**SIZES, "max_position_embeddings": 64, **dropout, **sizes}
    return ModelConfig(**options), transformers.BertConfig(**options, initializer_range=0.1)


def random_transformers_model(config):
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def ours_from(theirs, config):
    state, missing, unexpected = from_huggingface(theirs.state_dict(), config)
    assert (missing, unexpected) == ([], [])
    model = BertForPreTraining(config)
    load_parameters(model, state)
    return model


def run_theirs(model, batch, **labels):
    """The padded batch with the sequences of a packed one."""
    bounds = batch.cu_seqlens.tolist()
    rows = [slice(a, b) for a, b in pairwise(bounds)]

    def pad(values, filling=0):
        return torch.nn.utils.rnn.pad_sequence([values[r] for r in rows], batch_first=True, padding_value=filling)

    return model(
        input_ids=pad(batch.input_ids_T),
        token_type_ids=pad(batch.segment_ids_T),
        attention_mask=pad(torch.ones_like(batch.input_ids_T)),
        **{
            name: pad(value, -100) if value.dim() and len(value) == bounds[-1] else value
            for name, value in labels.items()
        },
    )


def test_gradients_equal_transformers(make_batch):
    config, their_config = configs(vocab_size=1000, hidden_size=128, intermediate_size=512, type_vocab_size=3)
    theirs = random_transformers_model(their_config)
    ours = ours_from(theirs, config)
    batch = make_batch([40, 1, 17, 23], vocab_size=1000, seed=6)
    labels = torch.full_like(batch.input_ids_T, -100).index_copy(0, batch.masked_positions_M, batch.masked_ids_M)
    expected = run_theirs(theirs, batch, labels=labels, next_sentence_label=batch.next_sentence_label_B)
    expected.loss.backward()
    output = ours(batch)
    loss = output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_instances
    loss.backward()
    torch.testing.assert_close(loss, expected.loss, **TOLERANCE)
    ours_renamed = to_huggingface({name: p.grad for name, p in ours.named_parameters()}, config)
    for name, parameter in theirs.named_parameters():
        error = (ours_renamed[name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 1e-4 or parameter.grad.norm() < 1e-5, name  # a key's bias has no gradient but rounding


@pytest.mark.parametrize("objective", ["nsp", "none"])
def test_bare_encoder_lacks_its_heads(objective):
    config, their_config = configs()
    bare = transformers.BertModel(their_config)
    state, missing, unexpected = from_huggingface(bare.state_dict(), config, objective=objective)
    assert all(name.startswith("cls.") for name in missing)
    assert unexpected == ([] if objective == "nsp" else ["pooler.dense.bias", "pooler.dense.weight"])
    model = BertForPreTraining(config, objective=objective)
    load_parameters(model, state, may_lack=missing)
    with pytest.raises(CheckpointError, match=r"missing \['cls\.predictions"):
        load_parameters(model, state)


def test_names_of_old_files_and_derived_entries_are_understood():
    config, their_config = configs()
    state = random_transformers_model(their_config).state_dict()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in state.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    expected, *_ = from_huggingface(state, config)
    converted, missing, unexpected = from_huggingface(old, config)
    assert (missing, unexpected) == ([], [])
    assert all(torch.equal(converted[name], value) for name, value in expected.items())


def test_weights_of_another_shape_or_without_a_part_are_refused():
    config, their_config = configs()
    state = transformers.BertForPreTraining(their_config).state_dict()
    wrong = configs(vocab_size=71)[0]
    with pytest.raises(CheckpointError, match=r"word_embeddings\.weight.*\(70, 32\).*\(128, 32\)"):
        from_huggingface(state, wrong)
    del state["bert.encoder.layer.1.attention.self.key.bias"]
    with pytest.raises(CheckpointError, match=r"layer\.1\.attention\.self\.qkv\.bias: the weights lack key"):
        from_huggingface(state, config)
