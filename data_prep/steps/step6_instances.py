"""The fourth stage: one shard of instances from one bucket, one length, one pass."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from data_prep.arrow_files import write_batches
from data_prep.checks.stats import count_instances
from data_prep.execution.work_units import Counts
from data_prep.instances.assemble import assemble, mask, to_batch
from data_prep.instances.balanced import pair_balanced
from data_prep.instances.draws import ORDER
from data_prep.instances.full_sentences import full_sentences
from data_prep.instances.google import pair_google
from data_prep.instances.pairs import Bucket, PairOptions, Pairs
from data_prep.steps.step3_tokenize import tokenizer_of
from data_prep.steps.step5_bucket import DocumentSet
from megabert.randomness.keyed import mix
from megabert.schema import MAX_BATCH_ROWS, ShardMetadata, instance_schema


@dataclass(frozen=True)
class InstanceTask:
    """What one shard is made of."""

    documents: Path
    tokenizer: Path
    split: str
    bucket: int
    options: PairOptions
    metadata: ShardMetadata
    path: Path


@lru_cache(maxsize=4)
def documents_of(folder: Path, split: str) -> DocumentSet:
    """Open the documents of a split once a process."""
    return DocumentSet.open(folder, split)


def make_pairs(documents: DocumentSet, bucket: int, options: PairOptions, tokenizer: Path) -> Pairs:
    """Make the pairs of a bucket in the order of the shard: shuffled by key."""
    from data_prep.array_loops import order_of

    part = Bucket.of(documents, bucket)
    if options.objective == "none":
        pairs = full_sentences(part, options)
    elif options.pairing == "google":
        pairs = pair_google(part, options)
    else:
        pairs = pair_balanced(part, options, tokenizer_of(tokenizer).is_subword)
    return pairs.take(order_of(mix(pairs.key, ORDER)))


def make_instances(task: InstanceTask) -> tuple[list[Path], Counts]:
    """Write the shard of a task; a bucket without an instance gives none."""
    tokenizer_of(task.tokenizer).forget_chunks()
    documents = documents_of(task.documents, task.split)
    pairs = make_pairs(documents, task.bucket, task.options, task.tokenizer)
    if not len(pairs):
        return [], {"rows": 0}
    instances = assemble(documents, pairs, task.metadata)
    masked = mask(instances, pairs, task.metadata, tokenizer_of(task.tokenizer).is_subword)
    whole = to_batch(instances, masked, pairs.label, task.metadata)
    batches = (whole.slice(first, MAX_BATCH_ROWS) for first in range(0, len(pairs), MAX_BATCH_ROWS))
    write_batches(task.path, instance_schema(task.metadata), batches, compression="zstd")
    return [task.path], count_instances(whole, task.metadata)
