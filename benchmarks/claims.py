"""What BERT's paper says of its objectives and of attention's cost, measured on a small model and the bundled corpus.

    python benchmarks/claims.py [--part masking|nsp|length] [--steps 1500] [--seeds 3] [--data FOLDER]

masking and nsp: three models of two layers, 128 wide, see the same instances in the same order, masked at the same
places; they differ in what is put there (80% [MASK], 10% the piece itself, 10% a random one, or [MASK] always) and in
whether the next sentence is predicted as well. All are scored on the same held-out instances, masked 80/10/10.
length: CPU seconds for 4,096 tokens in sequences of 128, 256 and 512, attention and the rest of a layer apart.
"""

# T packed tokens, B sequences, M masked positions, D hidden

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from megabert.data.batch import MicroBatch
from megabert.data.loader import PackedLoader
from megabert.data.packing import shape_for
from megabert.data.step_packer import RankShare, StepPacker, validation_batches
from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize
from megabert.models.encoder import EncoderLayer
from megabert.models.layers import LayerContext
from megabert.ops.attention.dense.api import attention, plan_attention
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig
from megabert.tokens.shards.shard_set import ShardSet

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "examples" / "corpus" / "public_domain.jsonl"
BATCH, LEARNING_RATE, LENGTH = 32, 2e-3, 64
KINDS = ("[MASK]", "its own piece", "a random piece")
LENGTHS, TOKENS = (128, 256, 512), 4096
REPETITIONS = 9
PROBE_INSTANCES = 8192


@dataclass(frozen=True)
class Variant:
    """One way to pre-train."""

    name: str
    always_mask: bool = False
    objective: str = "nsp"


PLAIN = Variant("80/10/10, NSP")
ALL_MASK = Variant("all [MASK], NSP", always_mask=True)
NO_NSP = Variant("80/10/10, no NSP", objective="none")
PARTS = {"masking": (PLAIN, ALL_MASK), "nsp": (PLAIN, NO_NSP)}


def build_shards(folder: Path) -> None:
    """Build shards of length 64 as a user would; a finished build is left as it is."""
    command = [sys.executable, "-m", "data_prep", "build", "--input", str(CORPUS), "--format", "jsonl", "--uncased"]
    command += ["--output", str(folder), "--vocab-size", "4096", "--lengths", str(LENGTH), "--dupe-factor", "5"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    subprocess.run([*command, "--validation-share", "0.06"], check=True, stdout=subprocess.DEVNULL, env=environment)


def train(variant: Variant, shards: ShardSet, steps: int, seed: int) -> BertForPreTraining:
    """Train with AdamW, linear warm-up over a tenth of the steps, linear decay."""
    config = ModelConfig(
        preset="tiny", vocab_size=shards.metadata.vocab_size, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = BertForPreTraining(config, objective=variant.objective)
    initialize(model, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    shape = shape_for(shards.statistics, global_batch_size=BATCH, world_size=1, micro_batch_tokens=8192)
    packer = StepPacker(shards, seed=seed, global_batch_size=BATCH, share=RankShare(shape=shape))
    with PackedLoader(packer, num_steps=steps) as loader:
        for step in loader:
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min(step.number / (0.1 * steps), (steps - step.number) / (0.9 * steps))
            for batch in step.micro_batches:
                out = model(masked_always(batch, shards) if variant.always_mask else batch)
                (out.mlm_loss_sum / step.num_masked + out.nsp_loss_sum / step.num_instances).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return model.eval()


def masked_always(batch: MicroBatch, shards: ShardSet) -> MicroBatch:
    """Return the batch with [MASK] at every position to predict."""
    ids_T = batch.input_ids_T.clone()
    ids_T[batch.masked_positions_M[: batch.num_masked]] = shards.metadata.special_ids["mask"]
    return replace(batch, input_ids_T=ids_T)


@torch.no_grad()
def score(model: BertForPreTraining, shards: ShardSet, train_shards: ShardSet) -> dict[str, float]:
    """Return held-out losses in nats by what the position shows, and accuracies in percent."""
    losses, kinds, nsp, labels, first = [], [], [], [], []
    for batch in batches_of(shards, shards.num_rows):
        out = model(batch, with_logits=True, with_hidden=True)
        losses.append(torch.nn.functional.cross_entropy(out.mlm_logits_MV, batch.masked_ids_M, reduction="none"))
        seen_M = batch.input_ids_T[batch.masked_positions_M]
        is_mask_M = seen_M == shards.metadata.special_ids["mask"]
        kinds.append(torch.where(is_mask_M, 0, (seen_M != batch.masked_ids_M).long() + 1))
        labels.append(batch.next_sentence_label_B)
        first.append(out.hidden_TD[batch.cu_seqlens[:-1].long()])
        if out.nsp_logits_B2 is not None:
            nsp.append(out.nsp_logits_B2.argmax(-1) == batch.next_sentence_label_B)
    loss_M, kind_M = torch.cat(losses), torch.cat(kinds)
    rows = {f"loss at {kind}": float(loss_M[kind_M == index].mean()) for index, kind in enumerate(KINDS)}
    rows["loss, all positions"] = float(loss_M.mean())
    if nsp:
        rows["next sentence, %"] = 100 * float(torch.cat(nsp).float().mean())
    probe = fit_probe(model, train_shards)
    hits_B = (probe(torch.cat(first)).argmax(-1) == torch.cat(labels)).float()
    rows["probe of frozen [CLS], %"] = 100 * float(hits_B.mean())
    return rows


def fit_probe(model: BertForPreTraining, shards: ShardSet) -> torch.nn.Linear:
    """Fit a logistic regression from the last hidden state of [CLS] to the next-sentence label."""
    batches = batches_of(shards, PROBE_INSTANCES)
    x_BD = torch.cat([model.bert(batch)[0][batch.cu_seqlens[:-1].long()] for batch in batches])
    label_B = torch.cat([batch.next_sentence_label_B for batch in batches])
    probe = torch.nn.Linear(x_BD.shape[1], 2)
    optimizer = torch.optim.LBFGS(probe.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(probe(x_BD), label_B) + 1e-4 * probe.weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return probe


def batches_of(shards: ShardSet, instances: int) -> list[MicroBatch]:
    """Return the first instances of a split in micro-batches."""
    shape = shape_for(shards.statistics, global_batch_size=instances, world_size=1, micro_batch_tokens=8192)
    return list(validation_batches(shards, RankShare(shape=shape), max_instances=instances))


def compare(parts: list[str], data: Path, steps: int, seeds: int) -> None:
    """Train every variant that the parts ask for, with each seed; print means and ranges."""
    shards, held_out = (ShardSet.open(data / "instances" / str(LENGTH), split) for split in ("train", "validation"))
    variants = list(dict.fromkeys(variant for part in parts for variant in PARTS[part]))
    rows: dict[str, list[dict[str, float]]] = {}
    for seed in range(seeds):
        for variant in variants:
            started = time.process_time()
            rows.setdefault(variant.name, []).append(score(train(variant, shards, steps, seed), held_out, shards))
            spent = time.process_time() - started
            print(f"{variant.name}, seed {seed}: {rows[variant.name][-1]} ({spent:.0f} CPU s)", file=sys.stderr)
    print(f"\n{steps} steps of {BATCH} instances of at most {LENGTH} tokens; mean (least to greatest) of {seeds} seeds")
    names = list(rows[variants[0].name][0])
    print(f"{'':<26}" + "".join(f"{variant.name:>26}" for variant in variants))
    for name in names:
        print(f"{name:<26}" + "".join(f"{spread(rows[variant.name], name):>26}" for variant in variants))


def spread(rows: list[dict[str, float]], name: str) -> str:
    """Return mean and range of one number."""
    values = [row[name] for row in rows if name in row]
    if not values:
        return "-"
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


@torch.no_grad()
def measure_lengths() -> None:
    """Time attention and a whole layer of BERT-Base's width for the same number of tokens, one thread, CPU seconds."""
    torch.set_num_threads(1)
    config = ModelConfig(vocab_size=64)
    heads = config.num_attention_heads
    layer = EncoderLayer(config, OpsConfig()).eval()
    x_TD = torch.randn(TOKENS, config.hidden_size)
    qkv_TC, _ = layer.attention.self.qkv(x_TD)
    alone, whole = ({length: float("inf") for length in LENGTHS} for _ in range(2))
    for _ in range(REPETITIONS):  # all lengths in turn, so that other work on the machine hits them equally
        for length in LENGTHS:
            cu_seqlens = torch.arange(0, TOKENS + 1, length, dtype=torch.int32)
            packing = plan_attention(cu_seqlens, tokens=TOKENS, max_seqlen=length, num_heads=heads)
            started = time.process_time()
            attention(qkv_TC, packing, num_heads=heads)
            between = time.process_time()
            layer((x_TD, x_TD), packing, LayerContext(None, 0))
            alone[length] = min(alone[length], between - started)
            whole[length] = min(whole[length], time.process_time() - between)
    print(f"\n{TOKENS:,} tokens in one layer of BERT-Base, forward, one thread, CPU ms, least of {REPETITIONS}")
    print(f"{'length':>8}{'probabilities':>16}{'attention':>12}{'rest of layer':>16}{'attention, share':>18}")
    for length in LENGTHS:
        ours, all_of_it = 1000 * alone[length], 1000 * whole[length]
        row = f"{length:>8}{heads * TOKENS * length:>16,}{ours:>12.0f}{all_of_it - ours:>16.0f}"
        print(f"{row}{100 * ours / all_of_it:>17.0f}%")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=(*PARTS, "length"), action="append", help="repeatable (default: all)")
    parser.add_argument("--steps", type=int, default=1500, help="optimizer updates (default 1500)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each variant (default 3)")
    parser.add_argument("--data", type=Path, help="folder to build shards in, kept (default: a temporary one)")
    arguments = parser.parse_args()
    parts = arguments.part or [*PARTS, "length"]
    if trained := [part for part in parts if part in PARTS]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = arguments.data or Path(temporary)
            build_shards(folder)
            compare(trained, folder, arguments.steps, arguments.seeds)
    if "length" in parts:
        measure_lengths()


if __name__ == "__main__":
    main()
