"""Counts of the corpus over steps 1 to 5, and the refusals of a corpus that cannot give instances."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from data_prep.config.build import BuildConfig
from data_prep.execution.records import EXAMPLES, Counts
from megabert.foundation.errors import DataError

MAX_ONE_SENTENCE_SHARE = 0.2
UNREADABLE = ("undecodable_documents", "bad_lines", "bad_ids", "unparsable_pages", "cut_files", "damaged_files")
"""Problems that ``max_bad_share`` bounds; documents above the size limit are counted only."""
LOST_ENDS = ("cut_files", "damaged_files", "cut_pages")
"""Problems that hide how much was lost. A page that is cut in a file which is whole otherwise is warned of: extracts of
dumps, such as enwik8, end like that."""


def corpus_counts(config: BuildConfig, extracted: Counts, tokenized: Counts, kept: Counts) -> dict[str, Any]:
    """Return the part on the corpus of every manifest's statistics.

    Args:
        config: Configuration of the build.
        extracted: Counts of step 1.
        tokenized: Counts of step 3.
        kept: Counts of step 5, after duplicates and weights.
    """

    def by_source(counts: dict[str, int]) -> dict[str, int]:
        named: Counter[str] = Counter()  # several sources may have one name
        for index, source in enumerate(config.sources):
            named[source.title] += counts.get(str(index), 0)
        return dict(named)

    def languages_by_source() -> dict[str, dict[str, int]]:
        named: dict[str, Counter[str]] = {}
        for index, source in enumerate(config.sources):
            named.setdefault(source.title, Counter()).update(extracted["languages"].get(str(index), {}))
        return {title: dict(sorted(counts.items())) for title, counts in named.items()}

    splits = kept["documents"]
    return {
        "documents_by_source": by_source(extracted["documents"]),
        "kept_documents_by_source": by_source(kept["documents_by_source"]),
        "tokens_by_source": by_source(kept["tokens_by_source"]),
        "documents": sum(splits.values()),
        "validation_documents": splits.get("validation", 0),
        **{name: kept[name] for name in ("one_sentence_documents", "sentences", "tokens")},
        **{name: extracted[name] for name in ("characters", "bytes", "rules")},
        "tokens_read": tokenized["tokens"],
        "unknown_tokens": tokenized["unknown_tokens"],
        "dropped": _dropped(config, extracted, tokenized, kept),
        "read": {name: n for name, n in extracted["problems"].items() if name not in extracted["examples"]},
        "examples": {rule: _first(named) for rule, named in extracted["examples"].items()},
        **({"documents_without_pairs": kept["one_sentence_documents"]} if config.objective != "none" else {}),
        **{name: kept[name] for name in ("short_documents", "short_tokens") if name in kept},
        **{name: extracted[name] for name in ("near_duplicates",) if name in extracted},
        **({"languages_by_source": languages_by_source()} if "languages" in extracted else {}),
    }


def _first(named: dict[str, str]) -> list[str]:
    """Return the first examples in the order of the input, whichever unit was finished first."""
    return [named[name] for name in sorted(named)][:EXAMPLES]


def _dropped(config: BuildConfig, extracted: Counts, tokenized: Counts, kept: Counts) -> dict[str, int]:
    """Return the losses by reason; documents that a rule of step 1 dropped are counted in ``rules``."""
    dropped = {
        "documents_without_text": extracted["empty_documents"],
        "documents_without_tokens": tokenized["documents_without_tokens"],
        "sentences_without_tokens": tokenized["empty_sentences"],
    }
    if "duplicate_documents" in config.clean.rules:
        dropped["duplicate_documents"] = sum(kept.get("duplicate_documents", {}).values())
    dropped |= {name: kept[name] for name in ("documents_without_weight", "copies_left_out") if name in kept}
    problems = {name: number for name, number in extracted["problems"].items() if name in extracted["examples"]}
    return dropped | problems


def require_readable(config: BuildConfig, extracted: Counts) -> None:
    """Refuse a corpus with more unreadable documents than allowed.

    Args:
        config: Configuration of the build, or of a vocabulary's training.
        extracted: Counts of step 1, at least of documents and problems.

    Raises:
        DataError: Too many documents, or bytes, were lost; the message has the first places.
    """
    read = sum(extracted["documents"].values())
    bad = {name: extracted["problems"][name] for name in UNREADABLE if name in extracted["problems"]}
    lost, lost_bytes = sum(bad.values()), extracted.get("lost_bytes", 0)
    if lost > config.max_bad_share * (read + lost) or lost_bytes > config.max_bad_share * extracted["bytes"]:
        what = ", ".join(counted(number, name) for name, number in bad.items())
        places = "\n".join(f"  {text}" for name in bad for text in _first(extracted["examples"][name]))
        after = f" (and with them {lost_bytes:,} of {extracted['bytes']:,} bytes)" if lost_bytes else ""
        raise DataError(
            f"{what}{after} of {read + lost:,} documents cannot be read; max_bad_share={config.max_bad_share} allows "
            f"fewer. Fix or leave out the files, or allow more with --max-bad-share. First places:\n{places}"
        )


def require_documents(config: BuildConfig, extracted: Counts) -> None:
    """Refuse a corpus without text, or with more unreadable documents than allowed.

    Args:
        config: Configuration of the build.
        extracted: Counts of step 1.

    Raises:
        DataError: The corpus is one of these.
    """
    require_readable(config, extracted)
    if sum(extracted["documents"].values()) == extracted["empty_documents"] or not extracted["sentences"]:
        names = ", ".join(source.title for source in config.sources)
        rules = {name: counts["documents"] for name, counts in extracted["rules"].items() if "documents" in counts}
        problems = {name: n for name, n in extracted["problems"].items() if name in extracted["examples"]}
        lost = ", ".join(f"{number:,} {name}" for name, number in {**rules, **problems}.items())
        remedies = ["Give --input other files, or fewer rules" if rules else "Give --input files that hold text"]
        if "oversized_documents" in problems:
            remedies.append("Part long documents: blank lines do in --format text, line ends in --format jsonl")
        places = [f"\n  {_first(extracted['examples'][name])[0]}" for name in problems]
        raise DataError(
            f"The corpus is empty: no text in {names}{f' (dropped: {lost})' if lost else ''}. {'. '.join(remedies)}."
            f"{' First places:' if places else ''}{''.join(places)}"
        )


def counted(number: int, name: str) -> str:
    """Return a number and the counted thing, named by a key in the plural such as ``bad_lines``."""
    words = name.replace("_", " ")
    return f"{number:,} {words.removesuffix('s') if number == 1 else words}"


def require_pairs(config: BuildConfig, corpus: Counts) -> None:
    """Refuse a corpus that cannot give pairs.

    Args:
        config: Configuration of the build.
        corpus: What `corpus_counts` returned.

    Raises:
        DataError: All documents are too short for a length, or too many have one sentence.
    """
    single, documents = corpus["one_sentence_documents"], corpus["documents"]
    for length, short in corpus.get("short_documents", {}).items():
        if short == documents:
            raise DataError(
                f"All {documents:,} documents have fewer than {config.least_tokens(int(length)):,} tokens, and none is "
                f"left for length {length}. Give longer documents, lower --min-tokens, or leave the length out."
            )
    require_several_sentences(config, single, documents)


def needed(config: BuildConfig) -> int:
    """Return how many documents each split needs: a random next sentence comes from another one."""
    return 2 if config.objective == "nsp" else 1


def require_enough(config: BuildConfig, different: int, several: int) -> None:
    """Refuse a corpus that is too small for both splits.

    Args:
        config: Names the share and the objective.
        different: Number of documents; of different texts, if some are to be held out.
        several: How many of these have two sentences or more.

    Raises:
        DataError: It is; the message has a remedy that works.
    """
    is_paired, least = config.objective != "none", needed(config)
    usable = several if is_paired else different
    splits = 2 if config.validation_share else 1
    if usable >= splits * least:
        return
    enough = " of two sentences or more" if is_paired else ""
    different_ones, held_out = ("different ", f" and {least} held out") if splits == 2 else ("", "")
    raise DataError(
        f"{usable} {different_ones}document(s){enough}: objective={config.objective} needs {least} to train on"
        f"{held_out}. {' '.join(_remedies(config, different, several, splits))}"
    )


def require_several_sentences(config: BuildConfig, single: int, documents: int) -> None:
    """Refuse to make pairs of a corpus in which too many documents have one sentence.

    Args:
        config: Names the objective.
        single: Number of these documents.
        documents: Number of all.

    Raises:
        DataError: They are too many.
    """
    if config.objective != "none" and single > MAX_ONE_SENTENCE_SHARE * documents:
        raise DataError(
            f"{single:,} of {documents:,} documents have one sentence, which gives no pair; objective="
            f"{config.objective} allows {MAX_ONE_SENTENCE_SHARE:.0%}. Use objective: none (--objective none), or "
            "fix the document borders: blank lines part documents, where --format book takes a file as one; and "
            "--language decides sentences."
        )


def _remedies(config: BuildConfig, different: int, several: int, splits: int) -> Iterable[str]:
    """Yield what helps, first what costs least."""
    yield "Give more documents; where one file holds many, check that blank lines part them (--format)."
    others = [name for name, number in (("sop", several), ("none", different)) if number >= splits]
    if others and config.objective == "nsp":
        yield f"Or use --objective {' or '.join(others)}, for which {splits} document(s) are enough."
    if splits == 2 and (several if config.objective != "none" else different) >= needed(config):
        yield "Or hold out none (--validation-share 0), to validate on other text or not at all."
