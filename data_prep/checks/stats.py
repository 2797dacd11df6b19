"""Counts of instances, and the content of a build as text and as pictures, from the counts in its manifests."""

# M predictions, R rows, T tokens

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.extract.sentences import splitter_code
from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_write
from megabert.foundation.text_tables import render_table
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.folder import Manifest
from megabert.tokens.shards.format import ShardMetadata

LENGTH_BINS = 16
"""Even ranges of lengths that instances are counted in."""
BAR_WIDTH = 40
"""Characters of the longest bar."""
SHOWN_CLUSTERS = 10
"""Clusters of near duplicates that are named, the largest first."""
SHOWN_LANGUAGES = 10
"""Languages of a source that are named, the most frequent first."""
AMOUNTS = ("documents", "paragraphs", "characters", "matches")


def count_instances(columns: FlatInstances, metadata: ShardMetadata) -> dict[str, Any]:
    """Return the counts of sound instances, under their names in the manifest."""
    ids_T, length_R, is_random_R = columns.input_ids, np.diff(columns.token_starts), columns.next_sentence_labels == 1
    shown_M = ids_T[columns.masked_tokens]
    is_mask_M = shown_M == metadata.special_ids["mask"]
    bin_R = (length_R - 1) * LENGTH_BINS // metadata.max_seq_length
    return {
        "rows": len(length_R),
        "tokens": len(ids_T),
        "masked_tokens": len(columns.masked_positions),
        "random_next": int(np.count_nonzero(is_random_R)),  # in sentence order: swapped
        "random_next_tokens": int(length_R[is_random_R].sum()),
        "full_length": int(np.count_nonzero(length_R == metadata.max_seq_length)),
        "shown_as_mask": int(np.count_nonzero(is_mask_M)),
        # [MASK] itself may be a word of the text; it counts as masked.
        "shown_as_original": int(np.count_nonzero((shown_M == columns.masked_ids) & ~is_mask_M)),
        "unknown_tokens": int(np.count_nonzero(ids_T == metadata.special_ids["unk"])),
        "length_histogram": np.bincount(bin_R, minlength=LENGTH_BINS).tolist(),
    }


def describe_split(manifest: Manifest, split: str) -> list[str]:
    """Return lines on the instances of one split: the text that is in them, lengths, labels, masks."""
    metadata, counts = manifest.metadata, manifest.statistics["instances"][split]
    rows, tokens, masked = counts["rows"], counts["tokens"], counts["masked_tokens"]
    length = metadata.max_seq_length
    padding = share(rows * length - tokens, rows * length)
    lines = [
        f"{rows:,} instances, {tokens:,} tokens, mean length {tokens / rows:.1f}",
        f"full length {share(counts['full_length'], rows)}, padding if padded to {length}: {padding}",
    ]
    if text := manifest.statistics.get("text", {}).get(split):  # another program need not count
        lines.append(f"in a pass: {share(text['used'], text['tokens'])} of the text's tokens")
    if metadata.objective != "none":
        ones = counts["random_next"]
        name = "random next" if metadata.objective == "nsp" else "swapped"
        # Where these differ, a model can tell the label by the length.
        mean = counts["random_next_tokens"] / max(ones, 1)
        other_mean = (tokens - counts["random_next_tokens"]) / max(rows - ones, 1)
        lines.append(f"{name} {share(ones, rows)}, mean length {mean:.2f} against {other_mean:.2f} of the others")
    if masked:
        mask, same = counts["shown_as_mask"], counts["shown_as_original"]
        lines.append(
            f"masked {masked:,} ({share(masked, tokens)} of tokens): [MASK] {share(mask, masked)}, "
            f"unchanged {share(same, masked)}, other piece {share(masked - mask - same, masked)}"
        )
    return lines


def histogram_lines(counts: dict[str, Any], metadata: ShardMetadata) -> list[str]:
    """Return a bar for each range of lengths."""
    histogram, rows, length = counts["length_histogram"], counts["rows"], metadata.max_seq_length
    bars = []
    for index, number in enumerate(histogram):
        # Counted were ``(length - 1) * bins // longest``: these are the first and the last length of such a range.
        low, high = -(-index * length // LENGTH_BINS) + 1, -(-(index + 1) * length // LENGTH_BINS)
        bar = "#" * round(BAR_WIDTH * number / max(histogram))
        bars.append((f"{low}-{high}", f"{number:,}", share(number, rows), bar))
    return render_table(bars, align="rrrl").splitlines()


def share(part: float, whole: float) -> str:
    """Return a percentage as text."""
    return f"{100 * part / whole:.2f}%" if whole else "-"


@contextmanager
def reporting_damage(where: Path, remedy: str) -> Iterator[None]:
    """Name the file whose statistics cannot be shown: they have no types, since versions count different things.

    Raises:
        DataError: Something is missing in them, or of another type.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{where}: its statistics are damaged or edited ({type(error).__name__}: {error}). {remedy}"
        ) from error


def describe_corpus(corpus: dict[str, Any]) -> list[str]:
    """Return lines on documents, sentences, tokens, per source, and on dropped text."""
    lines = [
        f"documents {corpus['documents']:,} ({corpus['validation_documents']:,} held out), "
        f"sentences {corpus['sentences']:,}, tokens {corpus['tokens']:,}, "
        f"[UNK] {share(corpus['unknown_tokens'], corpus['tokens_read'])}"
    ]
    # A row for each source.
    tokens, kept = corpus["tokens_by_source"], corpus["kept_documents_by_source"]
    sources = [
        (name, f"{number:,}", f"{kept[name]:,}", f"{tokens[name]:,}", share(tokens[name], corpus["tokens"]))
        for name, number in corpus["documents_by_source"].items()
    ]
    headers = ("source", "documents", "kept", "tokens", "share")
    lines += render_table(sources, headers=headers, align="lrrrr").splitlines()
    lines += _language_lines(corpus.get("languages_by_source", {}))
    # Everything that was left out, by its reason.
    if corpus.get("read"):
        lines.append("read: " + ", ".join(f"{what.replace('_', ' ')} {n:,}" for what, n in corpus["read"].items()))
    dropped = [f"{reason.replace('_', ' ')} {number:,}" for reason, number in corpus["dropped"].items() if number]
    lines.append("dropped, not counting the rules below: " + (", ".join(dropped) if dropped else "nothing"))
    short_tokens = corpus.get("short_tokens", {})
    for length, short in corpus.get("short_documents", {}).items():
        if short:
            tokens_share = share(short_tokens[length], corpus["tokens"])
            lines.append(f"too short for length {length}: {short:,} documents, {tokens_share} of the tokens")
    for rule, counts in corpus.get("rules", {}).items():
        amounts = ", ".join(f"{counts[what]:,} {what}" for what in AMOUNTS if what in counts)
        lines.append(f"cleaned by {rule.replace('_', ' ')}: {amounts}")
    if clusters := corpus.get("near_duplicates"):
        lines += _cluster_lines(**clusters)
    return lines


def _language_lines(by_source: dict[str, dict[str, int]]) -> list[str]:
    """Return lines on the documents of each language that were cut into sentences; copies count."""
    lines, unknown = [], Counter[str]()
    for name, counts in by_source.items():
        lines.append(f"languages of {name}: {_most_frequent(counts)}")
        unknown.update({code: number for code, number in counts.items() if splitter_code(code) != code})
    if unknown:
        why = "as the code is neither of two letters (ISO 639-1) nor of a Wikipedia"
        lines.append(f"cut by English rules, {why}: {_most_frequent(unknown)}")
    return lines


def _most_frequent(counts: dict[str, int]) -> str:
    """Return the most frequent languages with their documents, and the sum of the others."""
    descending = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{code} {number:,}" for code, number in descending[:SHOWN_LANGUAGES]]
    others = descending[SHOWN_LANGUAGES:]
    if others:
        shown.append(f"{len(others)} others {sum(number for _, number in others):,}")
    return ", ".join(shown) or "none"


def _cluster_lines(
    *, clusters: int, documents: int, sizes: dict[str, int], huge: dict[str, int], rounds: int
) -> list[str]:
    """Return lines on clusters of near duplicates: how many there are of each size, and the largest by their hashes."""
    ascending = sorted(sizes, key=lambda size: int(re.split("[- ]", size)[0].replace(",", "")))
    of_sizes = ", ".join(f"{sizes[size]:,} of {size}" for size in ascending)
    lines = [f"near duplicates: {clusters:,} clusters of {documents:,} documents (rounds: {rounds})"]
    if of_sizes:
        lines[0] += f"; clusters by their documents: {of_sizes}"
    largest = sorted(huge.items(), key=lambda item: (-item[1], item[0]))
    if largest:
        named = ", ".join(f"{size:,} (hash of the kept text {root})" for root, size in largest[:SHOWN_CLUSTERS])
        lines.append(f"very large clusters of near duplicates: {len(largest):,}; documents of the largest: {named}")
    return lines


def example_lines(corpus: dict[str, Any]) -> list[str]:
    """Return lines that name the first places at which each rule or problem dropped text."""
    examples = corpus.get("examples", {})
    return [f"  {rule.replace('_', ' ')}: {text}" for rule, texts in examples.items() for text in texts]


def show_stats(folders: list[Path], manifests: list[Manifest]) -> list[str]:
    """Return the whole report on folders of shards of one build."""
    lines = []
    if manifests[0].statistics:
        corpus = manifests[0].statistics["corpus"]
        examples = example_lines(corpus)
        lines = [*describe_corpus(corpus), *(["examples:", *examples] if examples else [])]
    for folder, manifest in zip(folders, manifests, strict=True):
        metadata = manifest.metadata
        lines += [
            "",
            f"{folder}: {metadata.objective}, {metadata.pairing}, {metadata.masking} masks, "
            f"length {metadata.max_seq_length}, at most {metadata.max_predictions_per_seq} predictions",
        ]
        for split, counts in manifest.statistics.get("instances", {}).items():
            shards = len(manifest.of_split(split))
            lines += [f"  {split} ({shards} shards): {line}" for line in describe_split(manifest, split)]
            if split == "train":
                lines += [f"    {line}" for line in histogram_lines(counts, metadata)]
    return lines


def write_plots(folder: Path, names: list[str], manifests: list[Manifest]) -> list[Path]:
    """Draw length histograms, and tokens by source.

    Args:
        folder: Where the pictures go; made if missing.
        names: Names of the folders of shards.
        manifests: Their manifests.

    Returns:
        The files written.
    """
    paths = [folder / f"lengths-{name}.png" for name in names]
    for path, name, manifest in zip(paths, names, manifests, strict=True):
        counts = manifest.statistics["instances"]["train"]
        step = manifest.metadata.max_seq_length / LENGTH_BINS
        middles = [(index + 0.5) * step for index in range(LENGTH_BINS)]
        with _picture(path, height=4) as axes:
            axes.bar(middles, counts["length_histogram"], width=0.9 * step)
            axes.set(xlabel="tokens", ylabel="training instances")
            axes.set_title(f"{name}: {counts['rows']:,} instances", parse_math=False)
            axes.set_yscale("log")
    tokens = manifests[0].statistics["corpus"]["tokens_by_source"]
    labels = [name[-40:].replace("$", r"\$") for name in tokens]  # two dollars would make a formula of it
    with _picture(folder / "sources.png", height=1 + 0.4 * len(tokens)) as axes:
        axes.barh(range(len(labels)), list(tokens.values()), tick_label=labels)
        axes.set(xlabel="tokens", title="tokens by source")
    return [*paths, folder / "sources.png"]


def write_rule_plot(folder: Path, shares: dict[str, tuple[float, float]]) -> Path:
    """Draw the shares of documents and of characters that each rule drops; return the file."""
    path, rows = folder / "rules.png", range(len(shares))
    documents, characters = ([pair[place] for pair in reversed(shares.values())] for place in (0, 1))
    with _picture(path, height=1 + 0.3 * len(shares)) as axes:
        axes.barh([row + 0.2 for row in rows], documents, height=0.4, label="documents")
        axes.barh([row - 0.2 for row in rows], characters, height=0.4, label="characters")
        axes.set_yticks(rows, list(reversed(shares)))
        axes.set(xlabel="% dropped, each rule alone", title="cleaning rules")
        axes.legend()
    return path


@contextmanager
def _picture(path: Path, *, height: float) -> Iterator[Any]:
    """Yield the axes of a picture that is written to a file, whole or not at all."""
    from megabert.foundation.figures import Figure, png_of  # not at import: it is slow to load

    figure = Figure(figsize=(8, height), layout="constrained")
    yield figure.add_subplot()
    atomic_write(path, png_of(figure))
