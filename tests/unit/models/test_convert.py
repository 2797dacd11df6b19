"""Our model against transformers' for the same weights."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import transformers
from support.parity_models import SIZES
from support.soak import in_soak
from support.tiny_models import tiny_config
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForPreTraining
from unit.models.test_bert import gradients, loss_of

from megabert.downstream.export.config_json import config_json
from megabert.foundation.errors import CheckpointError
from megabert.models.bert import BertForPreTraining
from megabert.models.build import build_model
from megabert.models.convert import from_huggingface, load_parameters, to_huggingface
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import SpecialIds

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def configs(**sizes):
    options = {**SIZES, "max_position_embeddings": 64, **NO_DROPOUT, **sizes}
    return ModelConfig(**options), transformers.BertConfig(**options, initializer_range=0.1)


def random_transformers_model(config):
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def ours_from(theirs, config, *, objective):
    state, missing, unexpected = from_huggingface(theirs.state_dict(), config, objective=objective)
    assert (missing, unexpected) == ([], [])
    model = build_model(config, objective=objective)
    load_parameters(model, state)
    return model


def their_loss(model, batch):
    """The sum of a packed batch's losses, each sequence by itself."""
    labels = torch.full_like(batch.input_ids_T, -100).index_copy(0, batch.masked_positions_M, batch.masked_ids_M)
    loss, kinds = torch.zeros(()), getattr(model.config, "type_vocab_size", 0)
    for number, (start, stop) in enumerate(pairwise(batch.cu_seqlens.tolist())):
        segments = {"token_type_ids": batch.segment_ids_T[None, start:stop]} if kinds else {}
        output = model(input_ids=batch.input_ids_T[None, start:stop], **segments)
        logits_SV = output.get("prediction_logits", output.get("logits"))[0]
        loss = loss + cross_entropy(logits_SV, labels[start:stop], reduction="sum")
        if "seq_relationship_logits" in output:
            loss = loss + cross_entropy(output.seq_relationship_logits[0], batch.next_sentence_label_B[number])
    return loss


BERT = tiny_config(**NO_DROPOUT, type_vocab_size=3, max_position_embeddings=64)
DEBERTA = tiny_config("deberta-v2", **NO_DROPOUT, position_buckets=8)
MODERN = tiny_config("modernbert", num_hidden_layers=5, intermediate_size=44, local_attention=8)
LONG = {"local_attention": 128, "max_position_embeddings": 8192, "num_hidden_layers": 2, "num_attention_heads": 1}


@pytest.mark.parametrize(
    ("config", "options", "lengths"),
    [
        (BERT, {}, [40, 1, 17, 23]),
        (BERT, {"vocab_size": 1000, "hidden_size": 128, "intermediate_size": 512}, [40, 1, 17, 23]),
        (DEBERTA, {}, [23]),
        (MODERN, {}, [39]),
        (MODERN, {}, [39, 1, 17, 30]),
        (MODERN, {"local_attention": 76, "global_attn_every_n_layers": 2}, [39, 20]),
        (MODERN, {"local_attention": 2, "num_attention_heads": 1, "local_rope_theta": 30.0}, [39, 20]),
        *in_soak((MODERN, LONG, [8192, 300])),
    ],
)
def test_loss_and_gradients_equal_transformers(config, options, lengths, make_batch):
    """Those of the table of relative positions, too, which all layers share, through softmax and projections."""
    config, objective = replace(config, **options), "nsp" if config is BERT else "none"
    fields = config_json(config, architecture="", special_ids=SpecialIds(0, 1, 2, 3, 4), is_tied=True)
    torch.manual_seed(0)
    fields = json.loads(json.dumps(fields)) | {"initializer_range": 0.2}
    heads = AutoModelForPreTraining if objective == "nsp" else AutoModelForMaskedLM
    theirs = heads.from_config(AutoConfig.for_model(**fields)).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    ours = ours_from(theirs, config, objective=objective)
    batch = make_batch(lengths, vocab_size=config.vocab_size, seed=6)
    batch.input_ids_T.clamp_(min=1)  # their embedding of the padding piece has no gradient
    expected = their_loss(theirs, batch)
    expected.backward()
    torch.testing.assert_close(loss_of(ours, batch), expected, rtol=1e-5, atol=0)
    renamed = to_huggingface(gradients(ours, batch), config)
    assert renamed.keys() >= {name for name, _ in theirs.named_parameters()}
    for name, parameter in theirs.named_parameters():
        error = (renamed[name] - parameter.grad).norm() / parameter.grad.norm()
        # A key's bias has no gradient but rounding.
        assert error < (1e-5 if config.family == "modernbert" else 1e-4) or parameter.grad.norm() < 1e-4, name


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
