"""The cost of a build, before it begins: units, files, opens, disk, memory, and time for each step.

Counts come from the functions that plan a build. How many tokens and documents the text has is estimated from a look
at some of it (`data_prep.planning.text_sample`), or the same as in English web text. Rates are from
``bench_data.log`` and ``bench_rank0.log`` in ``benchmarks/results``; `data_prep.commands.estimate` can measure them.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from data_prep.clean.grouped_hashes import HashPlan
from data_prep.config.build import BuildConfig
from data_prep.documents.document_set import tokenizer_of
from data_prep.documents.token_files import TokenFiles
from data_prep.extract.inputs import chunk_size
from data_prep.extract.opening import InputFile
from data_prep.identification.identifier import FASTTEXT, PY3LANGID, package_of
from data_prep.instances.pairs import ONE_SEGMENT_SPECIALS, PAIR_SPECIALS
from data_prep.planning.text_sample import TextSample, english
from data_prep.steps.step1_extract import PART_CHARACTERS
from data_prep.steps.step2_vocabulary import counting_units
from data_prep.steps.step5_documents import MAX_FILES, count_buckets, plan_levels
from data_prep.steps.step6_instances import bytes_per_token, count_buckets_per_shard
from megabert.foundation.errors import DataError
from megabert.foundation.full_disk import existing_folder
from megabert.tokens.shards.format import token_type

EXTRACTED, TOKENIZED = 1.05, 0.45
"""Bytes of extracted and of tokenized documents for each byte of text; of tokenized ones with ids of two bytes."""
EXPANSION = {"gz": 3.0, "bz2": 4.0, "zst": 3.5, "xz": 4.5}
"""Bytes of text for each byte of a compressed file, about."""
HASHED = 1300.0
"""Megabytes of stored input that a core hashes in a second."""
RATES = {"extract": 47.0, "tokens": 98.0, "chunks": 312.0, "documents": 312.0, "instances": 181.0}
"""Megabytes of text a second and core: for ``chunks`` each level (taken to be the rate of ``documents``, which does the
same), for ``instances`` each pass of a length."""
KEYS_RATE = 60.0
"""Megabytes of text per second and core for the sorted keys of near duplicates."""
IDENTIFY_S = {PY3LANGID: 0.2e-3, FASTTEXT: 0.5e-3}
"""Time in which a core identifies the language of a document, by package."""
KEY_BYTES, HASH_BYTES = 16, 8
"""Bytes of a key of a document with the document, written by chunks and merged; and of the hashes that stay of both."""
INPUT_FILE_BYTES = 10**9
"""Size of the files that text is taken to be in if it is not there yet."""
VOCABULARY_S, VOCABULARY_BYTES = 120.0, 200e6
"""Seconds of training a vocabulary in one process, and its bytes of text. Less text takes less in proportion; of more
text a sample is used."""
WORKER_MIB, RANK0_MIB, RANK0_BYTES_PER_UNIT = 425, 400, 820
"""Memory of a worker and of rank 0, and more there at a restart for each finished unit of any step."""
RANK0_S_PER_UNIT = 150e-6
"""Time in which rank 0 makes, hands out and records a unit."""


class Stage(NamedTuple):
    """One step of a build."""

    title: str
    units: int
    opened: int
    """Files of earlier steps that are opened for it, over all units."""
    files: int
    """Files that it writes."""
    bytes: int
    """Bytes that it writes."""
    seconds: float


@dataclass(frozen=True)
class BuildEstimate:
    """The cost of a build."""

    text_bytes: int
    sample: TextSample
    ranks: int
    stages: list[Stage]
    work_bytes: int
    """Disk while the documents are made: all of the input as text, as tokens, merged, and as documents."""
    end_bytes: int
    """Disk of the finished build."""
    shards: int
    """Training shards of a length."""
    instances: dict[int, int]
    """Training instances of each length, if all were full and no pair was cut."""
    rank0_mib: int
    most_opened: int
    """Files that one unit opens at most."""

    @property
    def peak_bytes(self) -> int:
        """Disk at the peak; files of the first steps are deleted before instances are made."""
        return max(self.work_bytes, self.end_bytes)

    @property
    def seconds(self) -> float:
        """Time of all steps."""
        return sum(stage.seconds for stage in self.stages)


def text_bytes_of(files: Sequence[InputFile], weighted: BuildConfig | None = None) -> int:
    """Return how much text is in some files, about, from their sizes as stored.

    Args:
        files: The input.
        weighted: The build, if each file is to count as often as its source's weight says.
    """
    weights = [source.weight for source in weighted.sources] if weighted else []
    sizes = (file.bytes * EXPANSION.get(file.compression, 1.0) for file in files)
    return round(sum(size * (weights[file.source] if weights else 1) for size, file in zip(sizes, files, strict=True)))


def estimate(
    config: BuildConfig,
    files: Sequence[InputFile] | int,
    ranks: int,
    *,
    rates: dict[str, float] | None = None,
    sample: TextSample | None = None,
) -> BuildEstimate:
    """Estimate the cost of a build.

    Args:
        config: Configuration of the build.
        files: The input; or bytes of text, uncompressed, that are not there yet.
        ranks: Processes or MPI ranks, each with a core of its own.
        rates: Rates in place of `RATES`.
        sample: Result of a look at the text; English web text by default.

    Raises:
        ConfigError: The build cannot work.
    """
    sample = sample or english(config)
    text_bytes = files if isinstance(files, int) else text_bytes_of(files)
    used = text_bytes if isinstance(files, int) else text_bytes_of(files, config)
    chunks = -(-text_bytes // chunk_size(text_bytes, config.chunk_bytes))
    texts = max(chunks, -(-text_bytes // PART_CHARACTERS))
    tokens = round(text_bytes / sample.bytes_per_token)
    documents = max(1, round(text_bytes / float(sample.document_bytes.mean())))
    validation = round(documents * config.validation_share)
    used_tokens = round(used / sample.bytes_per_token)
    buckets = count_buckets(config, {"documents": [documents - validation, validation], "tokens": tokens}, used_tokens)
    levels = plan_levels(TokenFiles(Path(), "", texts), Path(), buckets["train"])
    pieces = tokenizer_of(Path(config.tokenizer)).vocab_size if config.tokenizer else config.vocab_size
    tokenized = TOKENIZED * token_type(pieces).bit_width / 16
    per_shard = count_buckets_per_shard(config, buckets["train"], used_tokens, pieces)
    shards = config.dupe_factor * -(-buckets["train"] // per_shard)
    validation_shards = -(-buckets.get("validation", 0) // per_shard)
    copies = used / max(text_bytes, 1)  # documents and instances are made after weights
    passes = len(config.lengths) * (config.dupe_factor + config.validation_share) * copies
    speeds = {**RATES, **(rates or {})}

    def stage(title: str, step: str, units: int, opened: int, files: int, size: float, times: float = 1) -> Stage:
        busy = times * text_bytes / 1e6 / speeds[step] / min(ranks, units)
        return Stage(title, units, opened, files, round(size * text_bytes), max(busy, units * RANK0_S_PER_UNIT))

    identified_s = documents * IDENTIFY_S.get(package_of(config) or "", 0.0) / min(ranks, chunks)
    extracted = stage("extract", "extract", chunks, chunks, texts, EXTRACTED)
    stages = [
        _hash_stage(files, ranks),
        *_near_duplicates_stage(config, text_bytes, chunks, documents, ranks, speeds["extract"]),
        extracted._replace(seconds=extracted.seconds + identified_s),
        _vocabulary_stage(config, texts, text_bytes),
        stage("tokens", "tokens", texts, texts, texts, tokenized),
    ]
    for before, after in pairwise(levels):
        merged = after.blocks * after.files
        opened = before.files * max(before.blocks, after.blocks)
        stages.append(stage("chunks", "chunks", merged, opened, merged, tokenized))
    last = levels[-1]
    all_buckets = sum(buckets.values())
    opened = all_buckets * last.files + last.blocks * last.files
    compared = config.clean.near_duplicate_bands if "near_duplicates" in config.clean.rules else 0
    hashed = HASH_BYTES * (1 + compared) * documents / text_bytes
    stages.append(stage("documents", "documents", all_buckets, opened, all_buckets, tokenized * copies + hashed))
    units = len(config.lengths) * (shards + validation_shards)
    size = passes * fmean(bytes_per_token(config, n, pieces) for n in config.lengths) / sample.bytes_per_token
    stages.append(stage("instances", "instances", units, 4 * units * per_shard, 2 * units, size, passes))
    work = sum(stage.bytes for stage in stages[:-1])
    memory = RANK0_MIB + (sum(stage.units for stage in stages) * RANK0_BYTES_PER_UNIT >> 20)
    # A bucket's range of hashes may begin in one block and end in another.
    most = min(last.blocks, 2 + last.blocks // min(buckets.values())) * last.files
    most = max(most, *(min(before.files, MAX_FILES) for before in levels[:-1]), 1)
    end = stages[-1].bytes + stages[-2].bytes
    trained = used_tokens * (1 - config.validation_share) * config.dupe_factor
    special = ONE_SEGMENT_SPECIALS if config.objective == "none" else PAIR_SPECIALS
    instances = {length: round(trained / (length - special)) for length in config.lengths}
    return BuildEstimate(text_bytes, sample, ranks, stages, work, end, shards, instances, memory, most)


def _hash_stage(files: Sequence[InputFile] | int, ranks: int) -> Stage:
    """Return the hashing of the input, with which every start begins; a file is hashed by one rank."""
    number = len(files) if not isinstance(files, int) else max(1, files // INPUT_FILE_BYTES)
    size = files if isinstance(files, int) else sum(file.bytes for file in files)
    return Stage("hash input", number, number, 0, 0, size / 1e6 / HASHED / min(ranks, max(number, 1)))


def _near_duplicates_stage(
    config: BuildConfig, text_bytes: int, chunks: int, documents: int, ranks: int, extract_rate: float
) -> list[Stage]:
    """Return the reading that makes the keys of documents, and their merging; nothing without the rule.

    Rounds are left out: nobody knows in advance how many documents have near copies, and their files are much smaller
    than the keys.
    """
    if "near_duplicates" not in config.clean.rules:
        return []
    keys = documents * config.clean.near_duplicate_bands
    plan = HashPlan.of(chunks, keys)
    merged = plan.groups * plan.blocks
    units = chunks + merged + plan.ranges + plan.groups
    opened = chunks + 2 * chunks * plan.blocks + plan.ranges * plan.groups + 2 * chunks
    busy = text_bytes / 1e6 * (1 / extract_rate + 1 / KEYS_RATE) / min(ranks, chunks)
    seconds = max(busy, units * RANK0_S_PER_UNIT)
    return [Stage("near duplicates", units, opened, units + chunks + merged, 2 * keys * KEY_BYTES, seconds)]


def _vocabulary_stage(config: BuildConfig, texts: int, text_bytes: int) -> Stage:
    """Return the step that counts words and trains, if no tokenizer is given."""
    if config.tokenizer or config.holds_ids:
        return Stage("vocabulary", 1, 1, 1, 0, 0)
    # Each unit that counts writes the words and the documents that it held out; the training unit reads both.
    counting, seconds = counting_units(texts), VOCABULARY_S * min(1.0, text_bytes / VOCABULARY_BYTES)
    return Stage("vocabulary", counting + 1, texts + 2 * counting, 2 * counting + 1, 0, seconds)


def require_space(plan: BuildEstimate, folder: Path) -> str:
    """Return a sentence on the disk that a build will take.

    Raises:
        DataError: The disk has less; the message says what helps.
    """
    total, _, free = shutil.disk_usage(existing_folder(folder))
    needs = f"about {shown(plan.peak_bytes)} at the peak, {shown(plan.end_bytes)} at the end"
    if not total:  # a file system that does not report its size, as some network ones
        return f"disk: {needs}"
    if free < plan.peak_bytes:
        raise DataError(
            f"{folder}: the build will take {needs}, and {shown(free)} are free. Give --output a larger disk, build "
            "fewer passes (--dupe-factor) or lengths, or continue all the same with --ignore-disk-space."
        )
    return f"disk: {needs}; {shown(free)} are free"


def shown(size: float) -> str:
    """Return a number of bytes as text, in decimal units as disks are sold."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} PB"
