"""Part `pretraining`: a small BERT in both phases under DeepSpeed, next to transformers' Trainer; what it is worth.

The same instances, steps, batch, schedule and AdamW for both; both models are scored by the same code on the same
held-out instances. The export is fine-tuned on SNLI, and so is the same shape from random weights.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.runs import LENGTHS, ROOT, data_of, metrics, run, words
from benchmarks.gpu.sizes import TINY, Sizes

RECIPE = ROOT / "benchmarks" / "gpu" / "small.yaml"
HELD_OUT, TINY_HELD_OUT = 2048, 32
"""Instances of each length that are scored."""
TINY_MODEL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TINY_PHASES = ({"steps": 4, "global_batch_size": 8}, {"steps": 2, "global_batch_size": 2})
FINETUNE = {"epochs": 2, "learning_rate": 1e-4, "global_batch_size": 32, "evaluate_every_steps": 10**9}
LABELS = ("entailment", "neutral", "contradiction")


def tiny_flags(is_tiny: bool) -> dict[str, Any]:
    """Return what makes the recipe small enough for a rehearsal, as flags."""
    if not is_tiny:
        return {}
    flags: dict[str, Any] = {f"model__{name}": value for name, value in TINY_MODEL.items()}
    for number, phase in enumerate(TINY_PHASES):
        flags |= {f"phases__{number}__{name}": value for name, value in phase.items()}
    return flags | {"validation__max_instances": 16}


def tiny_overrides(is_tiny: bool) -> str:
    """Return the same as JSON over the recipe, for the peer."""
    if not is_tiny:
        return "{}"
    return json.dumps({"model": TINY_MODEL, "phases": dict(enumerate(TINY_PHASES))})


def train_ours(folder: Path, rows: Rows, is_tiny: bool) -> Row:
    """Pre-train and export."""
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    command = words("pretrain", config=RECIPE, data__path=data_of(), run_dir=run_dir, **tiny_flags(is_tiny))
    seconds = run(command, folder / "pretrain.log", rows.remaining_s())
    run(words("export", str(run_dir), to=folder / "export"), folder / "export.log", rows.remaining_s())
    logged = metrics(run_dir)
    losses = [row["train/mlm_loss"] for row in logged if "train/mlm_loss" in row]
    evaluations = [row["eval/mlm_loss"] for row in logged if "eval/mlm_loss" in row]
    rates = [row["perf/tokens_per_s"] for row in logged if "perf/tokens_per_s" in row]
    return {
        "seconds": round(seconds, 1),
        "first_mlm_loss": losses[0],
        "last_mlm_loss": losses[-1],
        "eval_mlm_losses": evaluations,
        "tokens_per_s": round(max(rates)),
    }


def train_theirs(folder: Path, rows: Rows, is_tiny: bool) -> Row:
    """Pre-train with the Trainer, in a process of its own as well."""
    shutil.rmtree(folder / "peer", ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.gpu.peer", str(RECIPE), str(data_of()), str(folder / "peer")]
    seconds = run([*command, tiny_overrides(is_tiny)], folder / "peer.log", rows.remaining_s())
    return {"seconds": round(seconds, 1)}


@torch.no_grad()
def held_out(model_folder: Path, device: torch.device, instances: int) -> Row:
    """Return the masked-LM loss in nats and accuracy of a Hugging Face folder, in float32, by length."""
    from transformers import BertForPreTraining

    from megabert.data.batch import IGNORED
    from megabert.data.packing import RankShare, shape_for
    from megabert.data.step_packer import validation_batches
    from megabert.tokens.shards.shard_set import ShardSet

    model = BertForPreTraining.from_pretrained(model_folder, attn_implementation="sdpa").to(device).float().eval()
    found: Row = {}
    for length in LENGTHS:
        shards = ShardSet.open(data_of() / "instances" / str(length), "validation")
        shape = shape_for(shards.statistics, global_batch_size=256, world_size=1, micro_batch_tokens=16_384)
        loss = right = count = 0.0
        for packed in validation_batches(shards, RankShare(shape=shape), max_instances=instances):
            batch = packed.to(device)
            sequence_T = torch.repeat_interleave(
                torch.arange(batch.num_instances, device=device), batch.cu_seqlens.diff()[: batch.num_instances]
            )
            labels_T = torch.full_like(batch.input_ids_T, IGNORED)
            labels_T[batch.masked_positions_M] = batch.masked_ids_M
            columns = (batch.input_ids_T, batch.segment_ids_T, torch.ones_like(labels_T), labels_T)
            ids, segments, mask, labels = (
                torch.full((batch.num_instances, batch.max_seqlen), filling, device=device).index_put(
                    (sequence_T, batch.position_ids_T), column_T
                )
                for column_T, filling in zip(columns, (0, 0, 0, IGNORED), strict=True)
            )
            logits = model(input_ids=ids, token_type_ids=segments, attention_mask=mask).prediction_logits
            chosen = labels != IGNORED
            logits, wanted = logits[chosen].float(), labels[chosen]
            loss += float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
            right += int((logits.argmax(1) == wanted).sum())
            count += len(wanted)
        found |= {f"mlm_loss_{length}": round(loss / count, 4), f"accuracy_{length}": round(right / count, 4)}
    return found


def finetune(folder: Path, start: str, rows: Rows, is_tiny: bool) -> Row:
    """Fine-tune the export, or its shape from random weights, on SNLI; the official test set scores it."""
    data, out = data_of() / "snli", folder / f"snli_{start.replace(' ', '_')}"
    if is_tiny:
        data = folder / "pairs"
        data.mkdir(exist_ok=True)
        texts = {"sentence1": "a dog runs", "sentence2": "it moves"}
        pairs = [{**texts, "gold_label": LABELS[number % 3]} for number in range(48)]
        for name in ("train", "test"):
            (data / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    shutil.rmtree(out, ignore_errors=True)
    flags = FINETUNE | {"model": folder / "export", "data": data, "output_dir": out}
    if start == "random weights":
        flags["random_weights"] = "true"
    seconds = run(words("finetune", "snli", **flags), out.with_suffix(".log"), rows.remaining_s())
    name, scores = next(iter(json.loads((out / "results.json").read_text())["mean"].items()))
    return {"seconds": round(seconds, 1), "set": name, "accuracy_pct": round(100 * scores["accuracy"], 2)}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part."""
    is_tiny = sizes is TINY
    instances = TINY_HELD_OUT if is_tiny else HELD_OUT
    folder = rows.path.parents[1] / "runs" / "small"
    folder.mkdir(parents=True, exist_ok=True)
    ours = rows.measure("megabert: trained", lambda: train_ours(folder, rows, is_tiny))
    if ours is not None and "seconds" in ours:
        rows.measure("megabert: held out", lambda: held_out(folder / "export", device, instances))
    theirs = rows.measure("transformers: trained", lambda: train_theirs(folder, rows, is_tiny), is_peer=True)
    if theirs is not None and "seconds" in theirs:
        rows.measure("transformers: held out", lambda: held_out(folder / "peer", device, instances))
    if ours is not None and "seconds" in ours:
        for start in ("megabert", "random weights"):
            rows.measure(f"SNLI from {start}", lambda start=start: finetune(folder, start, rows, is_tiny))
