"""Who trains which word embeddings, for each way of sharing them, and whole tables in and out of a run."""

import dataclasses

import pytest
import torch
from unit.models.test_electra import DEBERTA, model_of

from megabert.foundation.errors import CheckpointError
from megabert.models.build import InitialWeights, load_initial_weights
from megabert.models.embedding_sharing import DIFFERENCE, GENERATOR_WORDS, WORDS, table_of, trained_tables, whole_tables


def sharing(way):
    return dataclasses.replace(DEBERTA, embedding_sharing=way)


def gradients_of(way, term, make_batch):
    """Return the parameters to which a loss gives gradients other than zero, their names as if nothing was shared."""
    model = model_of(sharing(way))
    getattr(model(make_batch([30, 25], vocab_size=70)), f"{term}_loss_sum").backward()
    trained = {name for name, value in model.named_parameters() if value.grad is not None and value.grad.any()}
    generators = model.generator.bert.embeddings.word_embeddings.weight
    return trained, generators.grad is not None and bool(generators.grad.any())


WAYS = {"disentangled": DIFFERENCE, "shared": WORDS, "separate": WORDS}
"""Ways to share, and the table that the discriminator trains."""


@pytest.mark.parametrize("way", WAYS)
def test_which_embeddings_each_of_the_two_models_trains(way, make_batch):
    trained, reaches_generator = gradients_of(way, "rtd", make_batch)
    assert reaches_generator == (way == "shared")
    assert WAYS[way] in trained
    assert not any(name.startswith("generator.") for name in trained)
    trained, reaches_generator = gradients_of(way, "mlm", make_batch)
    assert reaches_generator
    assert DIFFERENCE not in trained
    assert (WORDS in trained) == (way != "separate")


def test_difference_begins_at_zero_and_is_added(make_batch):
    model, batch = model_of(sharing("disentangled")).eval(), make_batch([30, 25], vocab_size=70)
    words = model.bert.embeddings.word_embeddings
    assert not words.difference.any()
    assert words.weight is model.generator.bert.embeddings.word_embeddings.weight
    assert words(batch.input_ids_T).equal(words.weight[batch.input_ids_T])
    torch.nn.init.normal_(words.difference)
    torch.testing.assert_close(words(batch.input_ids_T), (words.weight + words.difference)[batch.input_ids_T])
    torch.testing.assert_close(table_of(words)[batch.input_ids_T], words(batch.input_ids_T))


def test_whole_tables_and_back():
    trained = {WORDS: torch.randn(6, 4), DIFFERENCE: torch.randn(6, 4), "other": torch.ones(1)}
    whole = whole_tables(trained)
    assert whole.keys() == {WORDS, GENERATOR_WORDS, "other"}
    assert whole[WORDS].equal(trained[WORDS] + trained[DIFFERENCE])
    back = trained_tables(whole, {WORDS, DIFFERENCE})
    assert back[WORDS].equal(trained[WORDS])
    torch.testing.assert_close(back[DIFFERENCE], trained[DIFFERENCE])
    for wanted in ({WORDS, GENERATOR_WORDS}, {WORDS, "classifier.weight"}):  # a task has no generator
        assert trained_tables(whole, wanted) == whole
    del whole[GENERATOR_WORDS]  # a discriminator alone: the new generator begins with its embeddings
    assert not trained_tables(whole, {WORDS, DIFFERENCE})[DIFFERENCE].any()


@pytest.mark.parametrize("old", WAYS)
@pytest.mark.parametrize("new", WAYS)
def test_weights_start_a_model_that_shares_in_another_way(old, new, make_batch):
    source, model = model_of(sharing(old)), model_of(sharing(new))
    for parameter in source.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    state = whole_tables({name: value.detach() for name, value in source.named_parameters()})
    weights = InitialWeights(source="run", tokenizer_sha256="", read=lambda: state)
    if new == "shared" != old:
        with pytest.raises(CheckpointError, match=r"^run: generator and discriminator have a table.*separate\.$"):
            load_initial_weights(model, weights)
        return
    assert load_initial_weights(model, weights) == []
    batch = make_batch([30, 25], vocab_size=70)
    for model_, source_ in ((model, source), (model.generator, source.generator)):
        torch.testing.assert_close(
            model_.bert.embeddings.word_embeddings(batch.input_ids_T),
            source_.bert.embeddings.word_embeddings(batch.input_ids_T),
        )


def test_shared_layers_norms_and_positions_belong_to_one_model_each():
    names = {name for name, _ in model_of(sharing("shared")).named_parameters()}
    assert {"bert.embeddings.LayerNorm.weight", "generator.bert.embeddings.LayerNorm.weight"} <= names
    assert {name for name in names if "word_embeddings" in name} == {WORDS}
    assert {name for name in names if "position" in name} == {"generator.cls.position_embeddings.weight"}
