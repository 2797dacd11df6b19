"""Tokens per second of a whole training step on a CPU: megabert, and transformers' BertForPreTraining on torch.

    python benchmarks/cpu/bench_step.py [--cases medium:128,medium:512] [--threads 1] [--repetitions 6] [--profile]

Both sides: the same weights, the same instances of shards that ``megabert-data build`` makes of the bundled corpus,
dropout 0.1, gradients clipped at 1, torch's fused AdamW, float32, the same threads; labels at masked positions only.
They differ in what is compared: megabert packs sequences end to end and projects masked positions only, and takes its
step as ``megabert pretrain`` does, under DeepSpeed; transformers (SDPA) pads a batch to its longest instance, or to the
phase's length, and projects every position, as its code does. A repetition times one step of each side on the same
batch, and a ratio is of those two, in seconds and in seconds of CPU time.
"""

# B sequences, S tokens of a sequence, T packed tokens, M masked positions

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from megabert.data.batch import IGNORED, MicroBatch
from megabert.data.loader import PackedLoader
from megabert.data.mixture import Mixture
from megabert.data.packing import RankShare, shape_for
from megabert.data.step_packer import StepBatch, StepPacker
from megabert.distributed.process_group import World, distributed_world
from megabert.engine.engine import build_engine
from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize
from megabert.models.convert import to_huggingface
from megabert.optim import StepSettings, build_optimizer
from megabert.settings.config.deepspeed import derive_deepspeed
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OptimizerConfig
from megabert.tokens.shards.shard_set import ShardSet
from megabert.training.step import accumulate, update

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 30_522
"""BERT's; the bundled corpus fills 22,173 of it."""
OPTIMIZER = OptimizerConfig(name="adamw", weight_decay=0.01)
LEARNING_RATE = 1e-4

TO_LONGEST, TO_LIMIT = "transformers padded to the longest", "transformers padded to the limit"

Step = Callable[[StepBatch], Any]


class Times(NamedTuple):
    """Numbers of one step."""

    second: float
    cpu_second: float
    """Over all threads; it hardly counts what other programs take of a shared machine."""


def build_shards(folder: Path) -> None:
    """Build shards of the bundled corpus, unless they are there."""
    corpus = ROOT / "examples" / "corpus" / "public_domain.jsonl"
    command = [sys.executable, "-m", "data_prep", "build", "--input", str(corpus), "--format", "jsonl"]
    command += ["--language", "en", "--uncased", "--vocab-size", str(VOCABULARY), "--lengths", "128", "512"]
    command += ["--dupe-factor", "1", "--validation-share", "0.06", "--output", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)


def step_batches(shards: ShardSet, count: int, instances: int) -> list[StepBatch]:
    """Return the first global batches of a run, each one micro-batch."""
    tokens = 2 * instances * shards.metadata.max_seq_length  # room to spare: never a second micro-batch
    shape = shape_for(shards.statistics, global_batch_size=instances, world_size=1, micro_batch_tokens=tokens)
    packer = StepPacker(Mixture((shards,)), seed=1, global_batch_size=instances, share=RankShare(shape=shape))
    with PackedLoader(packer, num_steps=count) as loader:
        batches = list(loader)
    assert all(len(batch.micro_batches) == 1 for batch in batches)
    return batches


def padded(batch: MicroBatch, length: int | None) -> dict[str, Tensor]:
    """Return the same instances as transformers reads them.

    Args:
        batch: Packed.
        length: Pad to this length; None: to the longest.
    """
    lengths = batch.cu_seqlens.diff().tolist()
    labels_T = torch.full((batch.num_tokens,), IGNORED).index_copy(0, batch.masked_positions_M, batch.masked_ids_M)

    def pad(packed_T: Tensor, value: int) -> Tensor:
        rows = list(packed_T.split(lengths))
        if length is not None:  # a first row of the length asked for, cut off again
            rows = [packed_T.new_zeros(length), *rows]
        return pad_sequence(rows, batch_first=True, padding_value=value)[0 if length is None else 1 :]

    return {
        "input_ids": pad(batch.input_ids_T, 0),
        "token_type_ids": pad(batch.segment_ids_T, 0),
        "attention_mask": pad(torch.ones_like(batch.input_ids_T), 0),
        "labels": pad(labels_T, IGNORED),
        "next_sentence_label": batch.next_sentence_label_B,
    }


def their_model(ours: BertForPreTraining) -> transformers.BertForPreTraining:
    """Return transformers' model with the same weights."""
    config = ours.config
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    shape = {name: getattr(config, name) for name in names}
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(vocab_size=VOCABULARY, attn_implementation="sdpa", **shape)
    )
    weights = to_huggingface({name: p.detach() for name, p in ours.named_parameters()}, config)
    missing = theirs.load_state_dict(weights, strict=False).missing_keys
    assert all("decoder" in name for name in missing), missing  # tied to others that were loaded
    return theirs


def check_same_loss(ours: BertForPreTraining, theirs: Any, batch: StepBatch) -> None:
    """Hold both sides to one loss, without dropout: they train the same model on the same instances."""
    ours.eval()
    theirs.eval()
    (micro_batch,) = batch.micro_batches
    with torch.no_grad():
        output = ours(micro_batch)
        loss = output.mlm_loss_sum / batch.num_masked + output.nsp_loss_sum / batch.num_instances
        torch.testing.assert_close(theirs(**padded(micro_batch, None)).loss, loss, rtol=1e-5, atol=0)
    ours.train()
    theirs.train()


def our_step(model: BertForPreTraining, world: World) -> Step:
    """Return the step of ``megabert pretrain``: DeepSpeed with the default engine around the model."""
    optimizer = build_optimizer(model.named_parameters(), OPTIMIZER)
    ds_config = derive_deepspeed("zero1", precision="fp32", max_grad_norm=1.0)
    engine = build_engine(model, optimizer, ds_config, world)
    settings = StepSettings(lr=LEARNING_RATE)
    return lambda batch: update(engine, batch, accumulate(engine, batch, world), settings, world)


def their_step(model: Any, batches: list[StepBatch], length: int | None) -> Step:
    """Return the usual loop: forward, backward, clip, AdamW; batches are padded beforehand."""
    inputs = {batch.number: padded(batch.micro_batches[0], length) for batch in batches}
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": OPTIMIZER.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=OPTIMIZER.eps, fused=True)

    def step(batch: StepBatch) -> None:
        optimizer.zero_grad(set_to_none=True)
        model(**inputs[batch.number]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def profile(steps: dict[str, Step], batch: StepBatch) -> None:
    """Print where each side's time goes."""
    for who, step in steps.items():
        with torch.profiler.profile() as recorded:
            for _ in range(2):
                step(batch)
        print(f"\n{who}\n{recorded.key_averages().table(sort_by='self_cpu_time_total', row_limit=16)}")


def measure(preset: str, length: int, arguments: argparse.Namespace, world: World) -> dict[str, Any]:
    """Time the steps in turn."""
    config = ModelConfig(preset=preset, vocab_size=VOCABULARY)  # type: ignore[arg-type]
    shards = ShardSet.open(arguments.data / "instances" / str(length))
    batches = step_batches(shards, arguments.repetitions + 1, arguments.batch_tokens // length)
    ours = BertForPreTraining(config)
    initialize(ours, 0)
    theirs = their_model(ours)
    check_same_loss(ours, theirs, batches[0])
    steps = {"megabert": our_step(ours, world), TO_LONGEST: their_step(theirs, batches, None)}
    longest = [batch.micro_batches[0].max_seqlen for batch in batches]
    if min(longest) < length:  # else it is the same
        steps[TO_LIMIT] = their_step(theirs, batches, length)
    if arguments.profile:
        profile(steps, batches[0])
    times: dict[str, list[Times]] = {who: [] for who in steps}
    for batch in batches:
        for who, step in steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            step(batch)
            times[who].append(Times(time.perf_counter() - wall, time.process_time() - cpu))
    row: dict[str, Any] = {
        "model": f"{preset}, {config.num_hidden_layers} x {config.hidden_size}",
        "length": length,
        "mean_length": round(shards.statistics.tokens / shards.statistics.rows, 1),
        "instances": batches[0].num_instances,
        "longest": round(statistics.mean(longest), 1),
        "threads": torch.get_num_threads(),
        "repetitions": arguments.repetitions,
    }
    tokens = [batch.num_tokens for batch in batches]
    return row | compare({who: values[1:] for who, values in times.items()}, tokens[1:])  # the first warms up


def compare(times: dict[str, list[Times]], tokens: list[int]) -> dict[str, Any]:
    """Return median rates, and median, least and greatest ratio of the pairs, by each clock."""
    row: dict[str, Any] = {}
    for clock in Times._fields:
        seconds = {who: [getattr(value, clock) for value in values] for who, values in times.items()}
        for who, values in seconds.items():
            row[f"tokens per {clock} {who}"] = round(
                statistics.median(n / s for n, s in zip(tokens, values, strict=True))
            )
            if who != "megabert":
                ratios = sorted(theirs / ours for theirs, ours in zip(values, seconds["megabert"], strict=True))
                row[f"ratio by {clock} {who}"] = [
                    round(r, 2) for r in (statistics.median(ratios), ratios[0], ratios[-1])
                ]
    return row


def main() -> None:
    """Measure every case; one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="mini:128,medium:128,medium:512,base:128", help="PRESET:LENGTH, ...")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: torch's own choice")
    parser.add_argument("--repetitions", type=int, default=6, help="timed steps a side (default 6)")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="of a step, at full length (default 2048)")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench-cpu" / "data", help="made if absent")
    parser.add_argument("--profile", action="store_true", help="print where each side's time goes")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    build_shards(arguments.data)
    with distributed_world("cpu") as world:
        for case in arguments.cases.split(","):
            preset, length = case.split(":")
            print(json.dumps(measure(preset, int(length), arguments, world)), flush=True)


if __name__ == "__main__":
    main()
