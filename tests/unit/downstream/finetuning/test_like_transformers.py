"""The same weights, batches and rates give the losses that transformers' model and torch's AdamW give, step by step."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
import transformers
from unit.downstream.finetuning.conftest import batcher_of, sentence
from unit.downstream.finetuning.test_span import question
from unit.downstream.finetuning.test_task_kinds import labelled, rated

from megabert.downstream.finetuning.model import TaskModel, architecture_of, take_head
from megabert.models.build import initialize
from megabert.models.convert import to_huggingface
from megabert.optim import StepSettings, build_optimizer, linear_warmup_decay
from megabert.settings.config.run import OptimizerConfig

STEPS, RATE, DECAY = 20, 3e-3, 0.1


def answered(rng, count=48):
    """Make questions of one length: transformers' softmax over places takes in the padding, ours the sequence alone."""
    return [question(sentence(rng, "ship", length=8), "ship", str(i)) for i in range(count)]


def class_labels(batch, index):
    return {"labels": int(batch.labels[index])}


def score_labels(batch, index):
    return {"labels": float(batch.labels[index])}


def span_labels(batch, index):
    first, last = batch.labels[index].tolist()
    return {"start_positions": first, "end_positions": last}


CASES = {
    "classification": (labelled, ("no", "yes"), class_labels, {"num_labels": 2}),
    "regression": (rated, ("score",), score_labels, {"num_labels": 1, "problem_type": "regression"}),
    "squad": (answered, ("start", "end"), span_labels, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_transformers(name, make_kind, model_config):
    make, labels, label_row, options = CASES[name]
    kind = make_kind(name, labels)
    without_dropout = replace(model_config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ours = TaskModel(without_dropout, head=kind.head, num_outputs=kind.num_outputs)
    initialize(ours, 1)
    features = kind.encode(make(random.Random(1)), is_training=True)
    batcher = batcher_of(features, tokens=64)
    config = transformers.BertConfig(
        vocab_size=ours.config.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **options,
    )
    theirs = getattr(transformers, architecture_of("bert", kind.head.architecture))(config)
    encoder, head = take_head(
        {n: p.detach().clone() for n, p in ours.named_parameters()}, "bert", kind.head.architecture
    )
    theirs.load_state_dict({**to_huggingface(encoder, ours.config), **head})
    named = list(theirs.named_parameters())
    plain = [p for n, p in named if n.endswith("bias") or "LayerNorm" in n]
    decayed = [p for n, p in named if not (n.endswith("bias") or "LayerNorm" in n)]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
    their_optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(their_optimizer, 0, STEPS)
    our_optimizer = build_optimizer(ours.named_parameters(), OptimizerConfig(name="adamw", weight_decay=DECAY))
    for step in range(1, STEPS + 1):
        batches, terms = batcher.step(step, seed=1, global_batch_size=16)
        our_loss = sum(kind.loss(ours(batch.inputs), batch) for batch in batches) / terms
        our_optimizer.zero_grad()
        our_loss.backward()
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        rate = linear_warmup_decay(step, steps=STEPS, warmup_ratio=0.0, peak=RATE)
        our_optimizer.step(StepSettings(lr=rate, bias_step=step))
        their_loss = theirs(**padded(batches, label_row)).loss
        their_optimizer.zero_grad()
        their_loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        their_optimizer.step()
        schedule.step()
        assert our_loss.item() == pytest.approx(their_loss.item(), abs=2e-4), step


def padded(batches, label_row) -> dict[str, torch.Tensor]:
    """The sequences of packed micro-batches as one padded batch."""
    rows, labels = [], []
    for batch in batches:
        bounds = batch.inputs.cu_seqlens.tolist()
        for index, (start, stop) in enumerate(itertools.pairwise(bounds)):
            rows.append((batch.inputs.input_ids_T[start:stop], batch.inputs.segment_ids_T[start:stop]))
            labels.append(label_row(batch, index))
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad([ids for ids, _ in rows], batch_first=True),
        "token_type_ids": pad([segments for _, segments in rows], batch_first=True),
        "attention_mask": pad([torch.ones_like(ids) for ids, _ in rows], batch_first=True),
        **{name: torch.tensor([row[name] for row in labels]) for name in labels[0]},
    }
