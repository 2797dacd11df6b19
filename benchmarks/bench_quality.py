"""The rules on quality against datatrove's filters on real documents: which documents each of the two drops.

    python benchmarks/bench_quality.py FILE.jsonl ... [--documents 5000] [--characters 3000]

Takes equally many documents of each file, cut to equally many characters. Each rule runs alone, with the same number
on both sides; the last column has the first document on which they differ. datatrove and spaCy have to be installed.
"""

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from data_prep.clean.cleaner import Cleaner
from data_prep.config.cleaning import CleanConfig
from data_prep.execution.records import Problems

FILTERS = "datatrove.pipeline.filters"
OFF = {
    "gopher_quality_filter.GopherQualityFilter": dict.fromkeys(
        (
            *("min_doc_words", "max_doc_words", "min_avg_word_length", "max_avg_word_length", "max_symbol_word_ratio"),
            *("max_bullet_lines_ratio", "max_ellipsis_lines_ratio", "max_non_alpha_words_ratio", "min_stop_words"),
        )
    ),
    "gopher_repetition_filter.GopherRepetitionFilter": {
        **dict.fromkeys(("dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac")),
        **dict.fromkeys(("top_n_grams", "dup_n_grams"), ()),
    },
    "c4_filters.C4QualityFilter": {
        **dict.fromkeys(("min_num_sentences", "min_words_per_line", "max_word_length"), -1),
        **dict.fromkeys(
            (
                *("remove_citations", "filter_no_terminal_punct", "filter_lorem_ipsum", "filter_javascript"),
                *("filter_curly_bracket", "filter_policy"),
            ),
            False,
        ),
    },
    "fineweb_quality_filter.FineWebQualityFilter": {
        "line_punct_thr": -1.0, "short_line_thr": 2.0, "char_duplicates_ratio": 2.0, "new_line_ratio": 1e9,
    },
}  # fmt: skip
"""Arguments of each filter that leave nothing to do."""
QUALITY, REPETITION, C4, FINEWEB = OFF
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "gopher_words": (QUALITY, {"min_doc_words": 50, "max_doc_words": 100_000}),
    "gopher_word_length": (QUALITY, {"min_avg_word_length": 3, "max_avg_word_length": 10}),
    "gopher_symbols": (QUALITY, {"max_symbol_word_ratio": 0.1}),
    "gopher_bullets": (QUALITY, {"max_bullet_lines_ratio": 0.9}),
    "gopher_ellipses": (QUALITY, {"max_ellipsis_lines_ratio": 0.3}),
    "gopher_letters": (QUALITY, {"max_non_alpha_words_ratio": 0.8}),
    "gopher_stop_words": (QUALITY, {"min_stop_words": 2}),
    "gopher_repeated_lines": (REPETITION, {"dup_line_frac": 0.3, "dup_line_char_frac": 0.2}),
    "gopher_top_ngrams": (REPETITION, {"top_n_grams": ((2, 0.2), (3, 0.18), (4, 0.16))}),
    "gopher_repeated_ngrams": (
        REPETITION,
        {"dup_n_grams": ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))},
    ),
    "c4_lines": (C4, {"filter_no_terminal_punct": True, "min_words_per_line": 3, "max_word_length": 1000}),
    "c4_javascript": (C4, {"filter_javascript": True}),
    "c4_policies": (C4, {"filter_policy": True}),
    "c4_lorem_ipsum": (C4, {"filter_lorem_ipsum": True}),
    "c4_brackets": (C4, {"filter_curly_bracket": True}),
    "c4_sentences": (C4, {"min_num_sentences": 5}),
    "fineweb_line_ends": (FINEWEB, {"line_punct_thr": 0.12}),
    "fineweb_short_lines": (FINEWEB, {"short_line_thr": 0.67}),
    "fineweb_repeated_lines": (FINEWEB, {"char_duplicates_ratio": 0.1}),
}


def documents_of(paths: list[Path], count: int, characters: int) -> Iterator[str]:
    """Yield documents as our cleaner sees them: lines that hold something, stripped."""
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in islice(lines, -(-count // len(paths))):
                text = json.loads(line)["text"][:characters]
                yield "\n".join(filter(None, map(str.strip, text.splitlines())))


def filter_of(name: str, arguments: dict[str, Any]) -> Callable[[str], str]:
    """Return a function that gives a document's text after a filter of datatrove; "" if it is dropped."""
    from datatrove.data import Document

    module, cls = name.split(".")
    step = getattr(importlib.import_module(f"{FILTERS}.{module}"), cls)(**{**OFF[name], **arguments})

    def filtered(text: str) -> str:
        document = Document(text=text, id="")
        outcome = step.filter(document)
        return document.text if outcome is True else ""

    return filtered


def cache_words() -> None:
    """Let all filters share the words of a document, which spaCy takes most of the time for."""
    fineweb = importlib.import_module(f"{FILTERS}.fineweb_quality_filter")
    fineweb.split_into_words = lambda text, _: text.split()  # for its limit of line breaks per word, which is off
    for module in ("gopher_quality_filter", "gopher_repetition_filter"):
        filters = importlib.import_module(f"{FILTERS}.{module}")
        filters.split_into_words = lru_cache(maxsize=1 << 16)(filters.split_into_words)
    c4 = importlib.import_module(f"{FILTERS}.c4_filters")
    # Its sentences need a model of nltk that is not in the package: ends of sentences, each before a capital letter.
    c4.split_into_sentences = lambda text, _: re.split(r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z\"'(])", text)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--characters", type=int, default=3000)
    options = parser.parse_args()
    texts = [text for text in documents_of(options.files, options.documents, options.characters) if text]
    cache_words()
    print(f"{len(texts):,} documents of {len(options.files)} files\n")
    headers = ("rule", "both drop", "only ours", "only datatrove's", "lines differ", "first difference")
    print(f"| {' | '.join(headers)} |\n{'|---' * len(headers)}|")
    for rule, (name, arguments) in RULES.items():
        cleaner, theirs = Cleaner(CleanConfig(rules=(rule,)), Problems()), filter_of(name, arguments)  # type: ignore[arg-type]
        counts, first = [0, 0, 0, 0], ""
        for text in texts:
            own, other = "\n".join(cleaner.clean(text, "") or []), theirs(text)
            counts[0] += not own and not other
            counts[1] += not own and bool(other)
            counts[2] += bool(own) and not other
            counts[3] += bool(own and other) and own != other and rule.startswith("c4")
            if bool(own) != bool(other) and not first:
                first = text[:60].replace("\n", " / ").replace("|", " ")
        print(f"| {rule} | {' | '.join(f'{count:,}' for count in counts)} | {first} |", flush=True)


if __name__ == "__main__":
    main()
