"""DeBERTa's attention in the model: what it lacks, distances, decoder (test_parity.py, test_convert.py: numbers)."""

from dataclasses import replace

import pytest
import torch
import transformers
from support.tiny_models import tiny_config
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
from unit.models.test_bert import model_of

from megabert.downstream.export.config_json import config_json
from megabert.models.convert import to_huggingface
from megabert.models.deberta import positions_of
from megabert.tokens.tokenization import SpecialIds

CONFIGS = {
    "first": tiny_config("deberta"),
    "second": tiny_config("deberta-v2", position_buckets=8),
    "second, own weights": tiny_config("deberta-v2", position_buckets=8, share_att_key=False, norm_rel_ebd="none"),
    "second, convolution": tiny_config("deberta-v2", position_buckets=8, conv_kernel_size=3),
}
OPTIONS = {"objective": "none"}
DECODING = replace(
    CONFIGS["second"],
    family="deberta-v3",
    embedding_sharing="disentangled",
    enhanced_mask_decoder=True,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


@pytest.mark.parametrize(("span", "farthest"), [(256, 512), (8, 64), (8, 20), (6, 512), (9, 40), (32, 33)])
def test_distances_fall_into_the_buckets_of_transformers(span, farthest):
    length = 600
    first, last, position_E = positions_of(length, span, farthest, is_bucketed=True, device=torch.device("cpu"))
    bucket_SS = build_relative_position(torch.empty(length, 1), torch.empty(length, 1), span, farthest)[0]
    expected = (bucket_SS + span).clamp(0, 2 * span - 1)
    assert (first, last) == (int(expected.min()), int(expected.max()))
    assert position_E.dtype == torch.int32
    row_E = position_E.long() + first
    assert torch.equal(row_E[length - 1 :], expected[:, 0])
    assert torch.equal(row_E[:length].flip(0), expected[0])


@pytest.mark.parametrize("layers", [1, 2])
def test_enhanced_mask_decoder_is_that_of_transformers_layers(layers, make_batch):
    """Keys and values are the state before the last layer; queries begin with it plus absolute positions."""
    config = replace(DECODING, num_hidden_layers=layers)
    model, batch = model_of(config, **OPTIONS).eval(), make_batch([23], vocab_size=70)
    torch.nn.init.normal_(model.cls.position_embeddings.weight)
    state = {name: value.detach() for name, value in model.named_parameters()}
    fields = config_json(config, architecture="", special_ids=SpecialIds(0, 1, 2, 3, 4), is_tied=True)
    theirs = transformers.DebertaV2ForMaskedLM(
        transformers.DebertaV2Config(**fields | {"pos_att_type": ["c2p", "p2c"]})
    ).eval()
    theirs.load_state_dict(to_huggingface(state, config), strict=False)
    encoder = theirs.deberta.encoder
    with torch.no_grad():
        ids, mask = batch.input_ids_T[None], torch.ones(1, 23)
        before = encoder(theirs.deberta.embeddings(ids, mask=mask), mask).hidden_states[-2]
        queries = before + model.cls.position_embeddings.weight[:23]
        relative = {"relative_pos": encoder.get_rel_pos(before), "rel_embeddings": encoder.get_rel_embedding()}
        for _ in range(2):
            queries, _ = encoder.layer[-1](before, encoder.get_attention_mask(mask), query_states=queries, **relative)
        expected = theirs.cls(queries)[0, batch.masked_positions_M]
        output = model(batch, with_logits=True, with_hidden=True)
    torch.testing.assert_close(output.mlm_logits_MV, expected, rtol=1e-4, atol=1e-5)
    plain = theirs(ids, output_hidden_states=True)
    torch.testing.assert_close(output.hidden_TD, plain.hidden_states[-1][0], rtol=1e-4, atol=1e-5)
    assert (plain.logits[0, batch.masked_positions_M] - expected).abs().max() > 0.1
