"""Small models with weights far from a uniform guess, and their export."""

import torch

from megabert.export.huggingface import write_huggingface
from megabert.export.model_card import ModelCard
from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize

CARD = ModelCard(
    name="Little BERT",
    description="A test.",
    data={"corpus": "three sentences", "tokens": "1,000"},
    recipe={"optimizer": "lamb", "steps": 10},
    checkpoint={"step": 10},
    metrics={"eval/mlm_loss": 4.25, "eval/mlm_accuracy": 0.125},
    languages=("en",),
    license="apache-2.0",
)


def model_of(config, objective="nsp", seed=0):
    model = BertForPreTraining(config, objective=objective)
    initialize(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # far from a uniform guess
    return model.eval()


def write(folder, model, tokenizer_dir, card=CARD):
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    write_huggingface(folder, state=state, config=model.config, tokenizer_dir=tokenizer_dir, card=card)
    return state
