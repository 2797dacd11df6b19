"""transformers' own Trainer on the sequences that `megabert finetune` trains on: same ids, settings, metrics.

Run by compare.py: `python -m benchmarks.finetuning.trainer SETTINGS.json OUT.json`.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

from megabert.downstream.finetuning.batches import Features
from megabert.downstream.finetuning.setup import prepare
from megabert.downstream.finetuning.tasks import find_task
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import merge_layers

CLASSES = {
    "sequence": AutoModelForSequenceClassification,
    "regression": AutoModelForSequenceClassification,
    "span": AutoModelForQuestionAnswering,
}


class Rows(torch.utils.data.Dataset):
    """Our encoded sequences, one a row."""

    def __init__(self, features: Features, kind: str) -> None:
        self.features, self.kind = features, kind

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> dict[str, Any]:
        columns = self.features.columns
        start, stop = columns.token_starts[index : index + 2]
        length = int(stop - start)
        row: dict[str, Any] = {
            "input_ids": columns.input_ids[start:stop].tolist(),
            "token_type_ids": (np.arange(length) >= columns.segment_b_starts[index]).astype(int).tolist(),
        }
        if self.kind == "span":
            first, last = self.features.labels[index].tolist()
            return row | {"start_positions": first, "end_positions": last}
        return row | {"labels": self.features.labels[index].item()}


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad to the longest row of the batch, as DataCollatorWithPadding does."""
    longest = max(len(row["input_ids"]) for row in rows)
    batch = {
        name: torch.tensor([row[name] + [0] * (longest - len(row[name])) for row in rows])
        for name in ("input_ids", "token_type_ids")
    }
    mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
    labels = {name: torch.tensor([row[name] for row in rows]) for name in rows[0] if name not in batch}
    return {**batch, "attention_mask": torch.tensor(mask), **labels}


def arguments(config: FinetuneConfig, steps: int, folder: Path) -> TrainingArguments:
    """Return the same hyper-parameters under the Trainer's names."""
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=config.epochs,
        per_device_train_batch_size=config.global_batch_size,
        per_device_eval_batch_size=64,
        learning_rate=config.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=int(np.ceil(config.warmup_ratio * steps)),
        weight_decay=config.weight_decay,
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        adam_epsilon=config.eps,
        max_grad_norm=config.max_grad_norm,
        seed=config.seed,
        bf16=config.precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        eval_strategy="no",
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Train, predict, score."""
    config = merge_layers(FinetuneConfig, settings["config"])
    task = find_task(settings["task"])
    prepared = prepare(task, config)
    set_seed(config.seed)
    options = {}
    if task.kind != "span":
        options = {"num_labels": prepared.kind.num_outputs}
    if task.kind == "regression":
        options["problem_type"] = "regression"
    model = CLASSES[task.kind].from_pretrained(
        config.model,
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        **options,
    )
    steps = int(np.ceil(config.epochs * -(-len(prepared.train) // config.global_batch_size)))
    trainer = Trainer(
        model=model,
        args=arguments(config, steps, Path(settings["folder"])),
        train_dataset=Rows(prepared.train, task.kind),
        data_collator=collate,
    )
    cpu, wall = time.process_time(), time.perf_counter()
    trainer.train()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    metrics = {}
    for name, examples, features in prepared.evaluation:
        rows = Rows(features, task.kind)
        order = np.argsort(features.columns.lengths, kind="stable")  # not timed: less padding, the same logits
        found = trainer.predict(torch.utils.data.Subset(rows, order.tolist())).predictions
        logits: list[Any] = [None] * len(rows)
        for place, index in enumerate(order):
            if task.kind == "span":
                n = features.columns.lengths[index]
                logits[index] = np.stack([found[0][place, :n], found[1][place, :n]], 1)
            else:
                logits[index] = found[place].reshape(1, -1)
        metrics[name] = prepared.kind.score(prepared.kind.predict(logits, examples, features), examples)
    examples_seen = config.epochs * len(prepared.train)
    return {"metrics": metrics, "examples_per_s": examples_seen / wall, "examples_per_cpu_s": examples_seen / cpu}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=Path, help="JSON with task, config and folder")
    parser.add_argument("out", type=Path, help="JSON of scores and rates")
    options = parser.parse_args()
    result = main(json.loads(options.settings.read_text()))
    options.out.write_text(json.dumps(result, indent=2) + "\n")
