"""Pre-train small.yaml with transformers' own Trainer: the same instances, batch, schedule and optimizer.

python -m benchmarks.gpu.peer RECIPE.yaml SHARDS FOLDER     FOLDER gets the model
"""

# B sequences, S tokens of the longest

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForPreTraining, Trainer, TrainingArguments, set_seed

from megabert.data.batch import IGNORED
from megabert.settings.config.loading import merge_layers, read_yaml
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import RunConfig
from megabert.tokens.shards.shard_set import ShardSet

SEED = 42


class Instances(Dataset):
    """The training split of a phase, decoded."""

    def __init__(self, shards: ShardSet) -> None:
        self.columns = shards.columns(((0, shards.num_rows),))

    def __len__(self) -> int:
        return len(self.columns.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        columns = self.columns
        start, stop = columns.token_starts[index : index + 2]
        first, last = columns.masked_starts[index : index + 2]
        return {
            "ids": torch.as_tensor(columns.input_ids[start:stop].astype("int64")),
            "segment_b": int(columns.segment_b_starts[index]),
            "places": torch.as_tensor(columns.masked_positions[first:last].astype("int64")),
            "originals": torch.as_tensor(columns.masked_ids[first:last].astype("int64")),
            "label": int(columns.next_sentence_labels[index]),
        }


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad to the longest row of the batch."""
    ids_BS = torch.nn.utils.rnn.pad_sequence([row["ids"] for row in rows], batch_first=True)
    lengths_B1 = torch.tensor([[len(row["ids"])] for row in rows])
    place_S = torch.arange(ids_BS.shape[1])
    labels_BS = torch.full_like(ids_BS, IGNORED)
    for labels_S, row in zip(labels_BS, rows, strict=True):
        labels_S[row["places"]] = row["originals"]
    mask_BS = place_S < lengths_B1
    return {
        "input_ids": ids_BS,
        "attention_mask": mask_BS.long(),
        "token_type_ids": ((place_S >= torch.tensor([[row["segment_b"]] for row in rows])) & mask_BS).long(),
        "labels": labels_BS,
        "next_sentence_label": torch.tensor([row["label"] for row in rows]),
    }


def arguments(config: RunConfig, phase: PhaseConfig, folder: Path) -> TrainingArguments:
    """Return a phase's hyper-parameters under the Trainer's names."""
    on_gpu = torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=phase.num_steps,
        per_device_train_batch_size=phase.global_batch_size,
        learning_rate=phase.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=round(phase.warmup_ratio * phase.num_steps),
        weight_decay=config.optimizer.weight_decay,
        adam_beta1=config.optimizer.betas[0],
        adam_beta2=config.optimizer.betas[1],
        adam_epsilon=config.optimizer.eps,
        max_grad_norm=config.optimizer.max_grad_norm,
        optim="adamw_torch_fused" if on_gpu else "adamw_torch",
        bf16=on_gpu,
        use_cpu=not on_gpu,
        dataloader_num_workers=8 if on_gpu else 0,
        dataloader_pin_memory=on_gpu,
        remove_unused_columns=False,
        save_strategy="no",
        report_to=[],
        logging_steps=50,
        disable_tqdm=True,
        seed=SEED,
    )


def main(recipe: Path, shards_folder: Path, folder: Path, overrides: dict[str, Any]) -> None:
    """Train the phases one after the other."""
    config = merge_layers(RunConfig, read_yaml(recipe), overrides)
    splits = [ShardSet.open(shards_folder / "instances" / str(phase.max_seq_length)) for phase in config.phases]
    set_seed(SEED)
    model = BertForPreTraining(
        BertConfig(
            vocab_size=splits[0].metadata.vocab_size,
            hidden_size=config.model.hidden_size,
            num_hidden_layers=config.model.num_hidden_layers,
            num_attention_heads=config.model.num_attention_heads,
            intermediate_size=config.model.intermediate_size,
            max_position_embeddings=config.model.max_position_embeddings,
            attn_implementation="sdpa",
        )
    )
    for phase, shards in zip(config.phases, splits, strict=True):
        trainer = Trainer(
            model=model,
            args=arguments(config, phase, folder),
            train_dataset=Instances(shards),
            data_collator=collate,
        )
        trainer.train()
    model.save_pretrained(folder)


if __name__ == "__main__":
    import json

    main(*map(Path, sys.argv[1:4]), json.loads(sys.argv[4]) if len(sys.argv) > 4 else {})
