"""How well a model guesses the masked tokens of any text, beside what word frequencies alone would score.

Masks are keyed by (seed, number of the sequence), so all models with one tokenizer are asked the same, in batches of
whatever size. The baseline guesses by the frequencies of the text that is scored. It needs no training data, and is
harder to beat than one that had to learn them elsewhere.
"""

# T packed tokens, B sequences, M masked positions, V vocabulary, L buckets of length

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from megabert.data.batch import IGNORED, BatchFormat, MicroBatch, assemble_batch, columns_of
from megabert.data.packing import RankShare, runs_within, shape_for
from megabert.data.step_packer import validation_batches
from megabert.downstream.export.sources import Source, find_device
from megabert.downstream.inspection.encode_text import check_outputs, read_parts, sequences_of
from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.randomness.keyed import mix, string_key
from megabert.foundation.text_tables import render_table
from megabert.models.bert import PretrainingModel
from megabert.observability.logs import logger
from megabert.settings.command_line.arguments import Device
from megabert.settings.config.finetune import FinetuneConfig
from megabert.tokens.masking import MaskingOptions, PieceTable, mask_instances
from megabert.tokens.shards.folder import MANIFEST_NAME
from megabert.tokens.shards.shard_set import ShardSet
from megabert.tokens.tokenization import SpecialIds, Tokenizer

USUAL_LENGTH = 512
"""Longest sequence of a text file, unless another is asked for or the model has fewer positions."""
_MASKS_KEY = string_key("inspection/masked_lm")
_SHORTEST = 5
"""The first bucket has lengths up to 2 to this power."""
_BUCKETS = 12
_GROUP = 1024
"""Sequences that are masked, sorted by length and packed at once."""


class ScoringOptions(NamedTuple):
    """The part of a text that is scored, its masks, and the size of a batch."""

    max_seq_length: int
    """Longest sequence of a text file in tokens."""
    masked_lm_prob: float = 0.15
    """Share of the tokens that is predicted; shards that hold masks keep theirs."""
    seed: int = 42
    """Keys the masks of a text file."""
    batch_tokens: int = 8192
    """Most packed tokens of a forward pass."""
    max_instances: int | None = None
    """How many sequences are scored, the first ones; None scores all."""
    text_column: str = "text"
    """Field of a JSON object that holds the text."""
    split: str = "validation"
    """Split of shards."""


class LengthScore(NamedTuple):
    """Scores of the sequences of some lengths; losses in nats, accuracies as fractions."""

    lengths: str
    sequences: int
    predicted: int
    """Masked positions."""
    loss: float
    accuracy: float
    unigram_loss: float
    unigram_accuracy: float

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return math.exp(min(self.loss, 700.0))  # e to the 710 is no number


class MaskedLMScore(NamedTuple):
    """Scores of a model on a text."""

    total: LengthScore
    by_length: tuple[LengthScore, ...]
    tokens: int
    """Tokens that the model read, special ones included."""
    next_sentence: tuple[float, float] | None
    """Accuracy of the sentence head and the share of the larger class; None without pairs or without a head."""

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as a JSON file holds them."""
        rows = [{**row._asdict(), "perplexity": row.perplexity} for row in (self.total, *self.by_length)]
        names = ("next_sentence_accuracy", "next_sentence_majority")
        sentences = dict(zip(names, self.next_sentence, strict=True)) if self.next_sentence else {}
        return {**rows[0], "tokens": self.tokens, **sentences, "by_length": rows[1:]}


class _Totals:
    """Sums over all micro-batches, by bucket of length."""

    def __init__(self, vocab_size: int) -> None:
        self.sequences_L = np.zeros(_BUCKETS, np.int64)
        self.loss_L = np.zeros(_BUCKETS)
        self.correct_L = np.zeros(_BUCKETS, np.int64)
        self.targets_LV = np.zeros((_BUCKETS, vocab_size), np.int64)
        self.tokens_V = np.zeros(vocab_size, np.int64)
        self.tokens = 0
        self.sentences = np.zeros(3, np.int64)  # pairs, right guesses, labels that are 1

    def score(self, buckets: list[int], name: str) -> LengthScore:
        """Return the scores of some buckets."""
        targets_V = self.targets_LV[buckets].sum(0)
        # Add one, so that a piece that occurs nowhere but as a target of another tokenizer's has a probability.
        log_V = np.log((self.tokens_V + 1) / (self.tokens_V + 1).sum())
        count = int(targets_V.sum())
        return LengthScore(
            lengths=name,
            sequences=int(self.sequences_L[buckets].sum()),
            predicted=count,
            loss=float(self.loss_L[buckets].sum() / count),
            accuracy=float(self.correct_L[buckets].sum() / count),
            unigram_loss=float(-(targets_V * log_V).sum() / count),
            unigram_accuracy=float(targets_V[self.tokens_V.argmax()] / count),
        )


def scoring_options(source: Source, fields: FinetuneConfig, **given: Any) -> ScoringOptions:
    """Return the settings of a score: its own, and some that it shares with a fine-tuning."""
    length = min(USUAL_LENGTH, source.longest) if fields.max_seq_length == "auto" else fields.max_seq_length
    if length > source.longest:
        logger.warning("max_seq_length=%d: the model was trained on %d tokens, as it states", length, source.longest)
    return ScoringOptions(
        max_seq_length=length,
        seed=fields.seed,
        batch_tokens=fields.micro_batch_tokens,
        text_column=fields.text_column or "text",
        **given,
    )


@torch.inference_mode()
def score_masked_lm(source: Source, data: Path, options: ScoringOptions, *, device: Device = "cpu") -> MaskedLMScore:
    """Score a model on a text file or on shards.

    Args:
        source: The model, with its masked-LM head.
        data: A text file (`read_text`), or a folder of shards of one length.
        options: Masks, lengths and size of a batch.
        device: Where the model runs; ``auto`` takes a GPU if there is one.

    Raises:
        ConfigError: The text would be longer than the model's positions, or there is no GPU for ``cuda``.
        DataError: The data cannot be read, are empty, or of another tokenizer.
        CheckpointError: The weights have no masked-LM head, or give numbers that are not finite.
    """
    torch_device, tokenizer, state = find_device(device), source.load_tokenizer(), source.weights.read()
    limit = source.model.max_position_embeddings
    # A family that reads no segments takes any; of one that has a table of a single row, pairs ask for a second.
    segments = source.model.type_vocab_size or 2
    if options.max_seq_length > limit:
        raise ConfigError(f"max_seq_length={options.max_seq_length} is above the {limit} positions of the model.")
    if data.is_dir():
        batches = _shard_batches(data, tokenizer, options, limit, segments)
    else:
        batches = text_batches(data, tokenizer, options)
    # The weights are read once: their names tell which heads the model has.
    source = replace(source, weights=replace(source.weights, read=lambda: state))
    model = source.build_model(fills_masks=True).to(torch_device)
    totals = _Totals(tokenizer.vocab_size)
    for batch in batches:
        _add(totals, model, batch.to(torch_device), tokenizer.special_ids)
    used = [index for index in range(_BUCKETS) if totals.sequences_L[index]]
    if not used:
        raise DataError(f"{data}: has no text. Give a file with text, or shards.")
    # The first bucket begins at 1, any other one where the one before it ends.
    names = {
        index: f"{2 ** (index + _SHORTEST - 1) + 1 if index else 1} to {2 ** (index + _SHORTEST)}" for index in used
    }
    has_sentence_head = any(name.startswith("cls.seq_relationship.") for name in state)
    pairs, right, ones = totals.sentences.tolist()
    return MaskedLMScore(
        total=totals.score(used, "all"),
        by_length=tuple(totals.score([index], name) for index, name in names.items()),
        tokens=totals.tokens,
        next_sentence=(right / pairs, max(ones, pairs - ones) / pairs) if pairs and has_sentence_head else None,
    )


def text_batches(path: Path, tokenizer: Tokenizer, options: ScoringOptions) -> Iterator[MicroBatch]:
    """Yield a text file as masked micro-batches; the masks depend on the seed and the sequence's number alone."""
    special = tokenizer.special_ids
    pieces = PieceTable(special.cls, special.sep, special.mask, tokenizer.vocab_size)
    most = max(1, math.ceil(options.max_seq_length * options.masked_lm_prob))
    masking = MaskingOptions(masked_lm_prob=options.masked_lm_prob, max_predictions_per_seq=most)
    batch_format = BatchFormat(pad_id=special.pad, max_seq_length=options.max_seq_length, has_labels=False)
    parts = read_parts(path, options.text_column)
    sequences = islice(sequences_of(tokenizer, parts, options.max_seq_length), options.max_instances)
    number = 0
    while group := list(islice(sequences, _GROUP)):
        columns = columns_of(group)
        keys = mix(_MASKS_KEY, options.seed, np.arange(number, number + len(group)))
        number += len(group)
        masked = mask_instances(columns.input_ids, columns.token_starts, keys=keys, pieces=pieces, options=masking)
        columns = columns._replace(
            input_ids=masked.ids_T,
            masked_positions=masked.positions_M.astype(np.int64),
            masked_ids=masked.original_ids_M.astype(np.int64),
            masked_starts=masked.offsets,
        )
        by_length = np.argsort(columns.lengths, kind="stable").tolist()
        for run in runs_within(by_length, columns.lengths, options.batch_tokens):
            yield assemble_batch(columns, np.array(run), np.zeros(len(run), np.int32), batch_format)


def _shard_batches(
    folder: Path, tokenizer: Tokenizer, options: ScoringOptions, limit: int, segments: int
) -> Iterator[MicroBatch]:
    """Return the micro-batches of a folder of shards, with their own masks if they have any."""
    if not (folder / MANIFEST_NAME).is_file():
        inside = sorted(path.parent for path in folder.glob(f"instances/*/{MANIFEST_NAME}"))
        hint = f"Name shards of one length, such as {inside[0]}." if inside else "Name a text file, or shards."
        raise DataError(f"{folder}: no {MANIFEST_NAME} there. {hint}")
    shards = ShardSet.open(folder, options.split)
    metadata = shards.metadata
    if metadata.tokenizer_sha256 != tokenizer.sha256:
        raise DataError(f"{folder}: these shards are of another tokenizer than the model's. Score the text itself.")
    if metadata.objective != "none" and segments < 2:
        raise DataError(
            f"{folder}: objective={metadata.objective} has two segments, and the model has one. Score the text itself, "
            "or shards that were built with --objective none."
        )
    if metadata.max_seq_length > limit:
        raise ConfigError(f"{folder}: has sequences of {metadata.max_seq_length} tokens, the model {limit} positions.")
    rows = min(options.max_instances or shards.num_rows, shards.num_rows)
    return first_batches(shards, rows, batch_tokens=options.batch_tokens)


def first_batches(shards: ShardSet, rows: int, *, batch_tokens: int) -> Iterator[MicroBatch]:
    """Return the first rows of shards in micro-batches, masked as in a validation if they have no masks."""
    tokens = max(batch_tokens, shards.metadata.max_seq_length)
    shape = shape_for(shards.statistics, global_batch_size=rows, world_size=1, micro_batch_tokens=tokens)
    return validation_batches(shards, RankShare(shape=shape), max_instances=rows)


def _add(totals: _Totals, model: PretrainingModel, batch: MicroBatch, special: SpecialIds) -> None:
    """Run a micro-batch and add up its losses, its right guesses and the counts of its pieces."""
    output = model(batch, with_logits=True)
    real = slice(batch.num_masked)
    targets_M, positions_M = batch.masked_ids_M[real], batch.masked_positions_M[real]
    logits_MV = check_outputs(output.mlm_logits_MV[real].float())
    loss_M = functional.cross_entropy(logits_MV, targets_M, reduction="none").double()
    correct_M = logits_MV.gather(1, targets_M[:, None])[:, 0] == logits_MV.amax(1)
    # The bucket of each sequence and of each of its positions.
    ends_B = batch.cu_seqlens[1 : batch.num_instances + 1].long()
    lengths_B = torch.diff(batch.cu_seqlens[: batch.num_instances + 1]).cpu().numpy()
    bucket_B = np.clip(np.ceil(np.log2(lengths_B)).astype(int), _SHORTEST, _SHORTEST + _BUCKETS - 1) - _SHORTEST
    bucket_M = bucket_B[torch.searchsorted(ends_B, positions_M, right=True).cpu().numpy()]
    np.add.at(totals.sequences_L, bucket_B, 1)
    np.add.at(totals.loss_L, bucket_M, loss_M.cpu().numpy())
    np.add.at(totals.correct_L, bucket_M, correct_M.cpu().numpy())
    np.add.at(totals.targets_LV, (bucket_M, targets_M.cpu().numpy()), 1)
    # The text as it was before it was masked, without special pieces.
    ids_T = batch.input_ids_T[: batch.num_tokens].index_copy(0, positions_M, targets_M).cpu().numpy()
    totals.tokens += batch.num_tokens
    is_text_T = ~np.isin(ids_T, [special.pad, special.cls, special.sep, special.mask])
    totals.tokens_V += np.bincount(ids_T[is_text_T], minlength=len(totals.tokens_V))
    labels_B = batch.next_sentence_label_B[: batch.num_instances]
    if output.nsp_logits_B2 is not None and bool((labels_B != IGNORED).all()):
        right = (output.nsp_logits_B2[: batch.num_instances].argmax(-1) == labels_B).sum()
        totals.sentences += np.array([len(labels_B), int(right), int(labels_B.sum())])


def render_score(score: MaskedLMScore) -> str:
    """Return the scores as a table: a row for each bucket of lengths, and one for all."""
    rows = [
        (
            *(row.lengths, f"{row.sequences:,}", f"{row.predicted:,}", f"{row.loss:.4f}", f"{row.perplexity:,.2f}"),
            *(f"{100 * row.accuracy:.2f}", f"{row.unigram_loss:.4f}", f"{100 * row.unigram_accuracy:.2f}"),
        )
        for row in (*score.by_length, score.total)
    ]
    headers = ("tokens", "sequences", "predicted", "loss", "perplexity", "accuracy %", "unigram loss", "unigram %")
    lines = [render_table(rows, headers=headers, align="lrrrrrrr")]
    if score.next_sentence:
        accuracy, majority = (100 * share for share in score.next_sentence)
        lines.append(f"next sentence: accuracy {accuracy:.2f}%, the larger class {majority:.2f}%")
    return "\n".join(lines)
