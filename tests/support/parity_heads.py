"""Largest differences between our fine-tuned models and transformers' with the same weights, encoder by encoder."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from support.exported_models import write_huggingface
from support.parity_models import SIZES, make_tokenizer, randomize
from torch import Tensor

from megabert.downstream.export.huggingface import TaskHead
from megabert.downstream.export.model_card import ModelCard
from megabert.downstream.finetuning.model import NO_CLASS, TaskModel, architecture_of, take_head
from megabert.downstream.finetuning.saved_model import read_saved_model
from megabert.downstream.finetuning.task_kinds import TASK_KINDS, Head
from megabert.downstream.finetuning.tasks import Task, find_task
from megabert.settings.config.model import ModelConfig

ENCODERS = {
    "bert": {},
    "roberta": {"type_vocab_size": 1},
    "albert": {"embedding_size": 16, "num_hidden_groups": 1},
    "electra": {"embedding_size": 16},
    "deberta": {"type_vocab_size": 0, "position_biased_input": False, "pos_att_type": ("c2p", "p2c")},
    "deberta-v2": {"pos_att_type": ("c2p", "p2c"), "position_buckets": 8, "norm_rel_ebd": "layer_norm"},
    "deberta-v3": {"position_buckets": 8, "embedding_size": 24},
    "modernbert": {"local_attention": 6},
    "modernbert, mean": {"local_attention": 6, "classifier_pooling": "mean"},
}
OUTPUTS = {"classification": 3, "regression": 1, "squad": 2, "swag": 1, "tagging": 5}
"""A task of each kind, and how wide its head is."""
GROUP = 4
"""Sequences of a batch, and endings of a SWAG question."""
LENGTH = 9


@dataclass(frozen=True)
class Case:
    """An encoder with a task's head."""

    encoder: str
    task_name: str
    positions: int = 64

    @property
    def family(self) -> str:
        return self.encoder.partition(",")[0]

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(
            **{"family": self.family, "max_position_embeddings": self.positions, **SIZES, **ENCODERS[self.encoder]}
        )

    @property
    def task(self) -> Task:
        return find_task(self.task_name)

    @property
    def head(self) -> Head:
        return TASK_KINDS[self.task.kind].head

    @property
    def outputs(self) -> int:
        return OUTPUTS[self.task_name]

    @property
    def their_class(self) -> type[torch.nn.Module]:
        return getattr(transformers, architecture_of(self.family, self.head.architecture))


CASES = [
    case
    for case in itertools.starmap(Case, itertools.product(ENCODERS, OUTPUTS))
    if (case.family, case.head.architecture) not in NO_CLASS
]


def export_difference(case: Case, folder: Path) -> float:
    """Random weights of ours, written here and loaded there."""
    model = write_random_model(case, folder)
    auto = getattr(transformers, f"AutoModelFor{case.head.architecture}")
    theirs, info = auto.from_pretrained(folder / "ours", output_loading_info=True)
    assert type(theirs) is case.their_class
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return _difference(case, model, theirs)


def import_difference(case: Case, folder: Path) -> float:
    """Random weights of transformers, saved there and read here."""
    _write(case, _random_model(case), folder / "config", make_tokenizer(folder / "tokenizer", pad_id=1))
    theirs = case.their_class(transformers.AutoConfig.from_pretrained(folder / "config"))
    randomize(theirs)
    theirs.save_pretrained(folder / "theirs")
    return _difference(case, read_saved_model(folder / "theirs").build_model(case.task, case.outputs), theirs)


def write_random_model(case: Case, folder: Path) -> TaskModel:
    """Write a fine-tuned model with random weights to the folder ``ours``, and return it."""
    model = _random_model(case)
    _write(case, model, folder / "ours", make_tokenizer(folder / "tokenizer", pad_id=1))
    return model


def _random_model(case: Case) -> TaskModel:
    model = TaskModel(case.config, head=case.head, num_outputs=case.outputs)
    randomize(model)
    return model


def _write(case: Case, model: TaskModel, folder: Path, tokenizer: Path) -> None:
    state = {name: value.detach() for name, value in model.named_parameters()}
    encoder, head = take_head(state, case.family, case.head.architecture)
    names = {"id2label": {str(index): f"label {index}" for index in range(case.outputs)}}
    write_huggingface(
        folder,
        state=encoder,
        config=case.config,
        tokenizer_dir=tokenizer,
        card=ModelCard(name="parity", pipeline=case.head.pipeline, usage="pass"),
        task=TaskHead(architecture_of(case.family, case.head.architecture), names, head),
    )


@torch.no_grad()
def _difference(case: Case, ours: torch.nn.Module, theirs: torch.nn.Module) -> float:
    ids = torch.randint(5, case.config.vocab_size, (GROUP, LENGTH), generator=torch.Generator().manual_seed(0))
    segments = ((torch.arange(LENGTH) >= 5) & (case.config.type_vocab_size > 1)).long().expand(GROUP, LENGTH)
    is_choice = case.head.architecture == "MultipleChoice"
    inputs = [values[None] if is_choice else values for values in (ids, segments)]
    found = theirs.eval()(input_ids=inputs[0], token_type_ids=inputs[1], attention_mask=torch.ones_like(inputs[0]))
    logits = torch.stack([found.start_logits, found.end_logits], -1) if "start_logits" in found else found.logits
    expected = logits.reshape(-1, 1 if is_choice else logits.shape[-1])
    own = ours.eval()(_packed(ids, segments), torch.arange(ids.numel()))
    assert own.shape == expected.shape
    assert expected.std() > 0.01
    return float((own - expected).abs().max())


def _packed(ids: Tensor, segments: Tensor) -> SimpleNamespace:
    count, length = ids.shape
    return SimpleNamespace(
        input_ids_T=ids.reshape(-1),
        position_ids_T=torch.arange(length).repeat(count),
        segment_ids_T=segments.reshape(-1),
        cu_seqlens=torch.arange(0, count * length + 1, length, dtype=torch.int32),
        instance_seeds_B=torch.zeros(count, dtype=torch.int32),
        max_seqlen=length,
    )
