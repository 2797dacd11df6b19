"""The corpus of a build: its units of reading, and what is counted and demanded of it before instances are made."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.clean.paragraphs import RangeTask, count_ranges, find_duplicates, write_hashes
from data_prep.config import BuildConfig
from data_prep.execution.progress import Progress
from data_prep.execution.work_units import Counts, Unit, add_counts, run_stage
from data_prep.extract import InputChunk
from data_prep.extract.problems import EXAMPLES
from data_prep.steps.step1_extract import DocumentReader, ExtractTask, extract
from megabert.errors import DataError

if TYPE_CHECKING:
    from data_prep.pipeline import Build

MAX_ONE_SENTENCE_SHARE = 0.2
UNREADABLE = ("undecodable_documents", "bad_lines", "unparsable_pages")
"""Problems that ``max_bad_share`` bounds; cut ends and documents above the size limit are counted only."""


def extract_units(build: "Build", chunks: Sequence[InputChunk]) -> list[Unit]:
    """Return the units of the first stage, after the pass that finds duplicate paragraphs, where it is asked for."""
    config = build.config
    known = None
    if "duplicate_paragraphs" in config.clean.rules:
        known = _find_duplicate_paragraphs(build, chunks)
    return [_unit(build, "extract", extract, chunk, number, known) for number, chunk in enumerate(chunks)]


def _unit(
    build: "Build",
    stage: str,
    function: Callable[[Any], Any],
    chunk: InputChunk,
    number: int,
    known: Path | None = None,
) -> Unit:
    config = build.config
    is_strict = config.max_bad_share == 0
    path = build.path("work", stage, f"{number:06d}")
    task = ExtractTask(chunk, number, config.language, config.clean, is_strict, path, known)
    return build.unit(stage, path.name, function, task)


def hash_paragraphs(task: ExtractTask) -> tuple[list[Path], Counts]:
    """Write the hashes of a chunk's paragraphs, as they are before the rule on duplicates."""
    documents = DocumentReader(task).documents()
    paths, counts = write_hashes(documents, task.clean.min_paragraph_characters, task.path.with_suffix(".npy"))
    return paths, {**counts, "bytes": task.chunk.bytes}


def _find_duplicate_paragraphs(build: "Build", chunks: Sequence[InputChunk]) -> Path:
    units = [_unit(build, "paragraphs", hash_paragraphs, chunk, number) for number, chunk in enumerate(chunks)]
    progress = Progress("paragraphs", len(units), measure="bytes", scale=1e6, label="MB/s")
    outcomes = run_stage(units, build.executor, progress)
    paths = tuple(build.folder / name for outcome in outcomes for name in outcome.files)
    folder = build.path("work", "paragraphs", "known")
    ranges = count_ranges(add_counts(outcomes)["paragraphs"])
    tasks = [RangeTask(paths, n, ranges, folder / f"known-{n:05d}.npy") for n in range(ranges)]
    known = [build.unit("paragraphs", task.path.stem, find_duplicates, task) for task in tasks]
    run_stage(known, build.executor, Progress("duplicate paragraphs", len(known)))
    return folder


def corpus_counts(
    config: BuildConfig, found: dict[str, Any], tokens: dict[str, Any], kept: dict[str, Any]
) -> dict[str, Any]:
    """Return what the statistics of every manifest say about the corpus.

    Args:
        config: The build's.
        found: Counts of the extraction.
        tokens: Counts of the tokenization.
        kept: Counts of the documents after duplicates and weights.
    """

    def by_source(counts: dict[str, int]) -> dict[str, int]:
        return {source.title: counts.get(str(index), 0) for index, source in enumerate(config.sources)}

    splits = kept["documents"]
    return {
        "documents_by_source": by_source(found["documents"]),
        "kept_documents_by_source": by_source(kept["documents_by_source"]),
        "tokens_by_source": by_source(kept["tokens_by_source"]),
        "documents": sum(splits.values()),
        "validation_documents": splits.get("validation", 0),
        "one_sentence_documents": kept["one_sentence_documents"],
        "sentences": kept["sentences"],
        "characters": found["characters"],
        "bytes": found["bytes"],
        "tokens": kept["tokens"],
        "tokens_read": tokens["tokens"],
        "unknown_tokens": tokens["unknown_tokens"],
        "dropped": _dropped(config, found, tokens, kept),
        "rules": found["rules"],
        "read": {name: n for name, n in found["problems"].items() if name not in found["examples"]},
        "examples": {rule: _first(named) for rule, named in found["examples"].items()},
    }


def _first(named: dict[str, str]) -> list[str]:
    return [named[name] for name in sorted(named)][:EXAMPLES]


def _dropped(
    config: BuildConfig, found: dict[str, Any], tokens: dict[str, Any], kept: dict[str, Any]
) -> dict[str, int]:
    dropped = {
        "documents_without_text": found["empty_documents"],
        "documents_without_tokens": tokens["documents_without_tokens"],
        "sentences_without_tokens": tokens["empty_sentences"],
    }
    if config.objective != "none":
        dropped["documents_of_one_sentence"] = kept["one_sentence_documents"]
    if "duplicate_documents" in config.clean.rules:
        dropped["duplicate_documents"] = sum(kept.get("duplicate_documents", {}).values())
    if "documents_without_weight" in kept:
        dropped["documents_without_weight"] = kept["documents_without_weight"]
    problems = {name: number for name, number in found["problems"].items() if name in found["examples"]}
    return dropped | problems


def require_documents(config: BuildConfig, found: dict[str, Any]) -> None:
    """Refuse a corpus without text, or with more unreadable documents than allowed.

    Raises:
        DataError: One of these.
    """
    read = sum(found["documents"].values())
    bad = {name: found["problems"][name] for name in UNREADABLE if name in found["problems"]}
    lost = sum(bad.values())
    if lost > config.max_bad_share * (read + lost):
        what = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in bad.items())
        places = "\n".join(f"  {text}" for name in bad for text in _first(found["examples"][name]))
        raise DataError(
            f"{what} of {read + lost:,} documents cannot be read; max_bad_share={config.max_bad_share} allows fewer. "
            f"Mend or leave out the files, or allow more in a new --output. First places:\n{places}"
        )
    if read == found["empty_documents"] or not found["sentences"]:
        names = ", ".join(source.title for source in config.sources)
        raise DataError(f"The corpus is empty: no text in {names}{_lost_to(found)}. Give --input files that hold text.")


def _lost_to(found: dict[str, Any]) -> str:
    lost = {name: counts["documents"] for name, counts in found["rules"].items() if "documents" in counts}
    lost |= {name: number for name, number in found["problems"].items() if name in found["examples"]}
    return f" (dropped: {', '.join(f'{number:,} {name}' for name, number in lost.items())})" if lost else ""


def require_pairs(config: BuildConfig, corpus: dict[str, Any]) -> None:
    """Refuse a corpus that cannot give pairs.

    Raises:
        DataError: Too many documents of one sentence, or fewer than two documents.
    """
    if config.objective == "none":
        return
    single, documents = corpus["one_sentence_documents"], corpus["documents"]
    objective = config.objective
    if single > MAX_ONE_SENTENCE_SHARE * documents:
        raise DataError(
            f"{single:,} of {documents:,} documents have one sentence, which gives no pair; objective={objective} "
            f"allows {MAX_ONE_SENTENCE_SHARE:.0%}. Use objective: none (--objective none with a new --output), or "
            "mend the document borders: plain text parts documents by blank lines, and --language decides sentences."
        )
    validation = corpus["validation_documents"]
    for split, number in (("training", documents - validation), ("validation", validation)):
        if objective == "nsp" and number < 2 and (split == "training" or number):
            raise DataError(
                f"{number} {split} document(s) of {documents}: a random next sentence comes from another document, so "
                f"objective=nsp needs two. Give more documents, change --validation-share "
                f"(now {config.validation_share}; 0 holds out none), or use objective: none."
            )
