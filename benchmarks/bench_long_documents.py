"""Time per character and peak memory of one long document in ten scripts, with full stops and without, step by step.

    python benchmarks/bench_long_documents.py [--megabytes 30] [--sizes 10000 100000 1000000 3000000]

A document is one line. Times are CPU microseconds per character of cleaning with all built-in rules but `language`, of
sentences, and of WordPiece, on documents of growing length: linear time is a row of equal numbers. Memory is the peak
of a process that runs one step of a build on a document of N megabytes, the largest of which is 32 MiB; the last
row is a document of full stops alone.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
LANGUAGES = ROOT / "tests" / "assets" / "languages.tsv"
OWN = {
    "my": "1019 103c 1014 103a 1019 102c 1018 102c 101e 102c 101e 100a 103a 1019 103c 1014 103a 1019 102c 102d 104b",
    "km": "1797 17b6 179f 17b6 1781 17d2 1798 17c2 179a 1782 17ba 1787 17b6 1797 17b6 179f 17b6 1795 17d2 179b 17d4",
    "bo": "f56 f7c f51 f0b f61 f72 f42 f0b f53 f72 f0b f56 f7c f51 f0b f40 fb1 f72 f0b f66 f90 f51 f0b f61 f72 f53 f0d",
    "lo": "e9e eb2 eaa eb2 ea5 eb2 ea7 ec0 e9b eb1 e99 e9e eb2 eaa eb2 e97 eb2 e87 e81 eb2 e99 2e",
}
"""A sentence in scripts that the assets lack, as code points."""
SCRIPTS = ("en", "ru", "ar", "hi", "zh", "ja", "ko", "th", "my", "km", "bo", "lo")
SPACELESS = ("zh", "ja", "th", "my", "km", "bo", "lo")
STOPS = str.maketrans("", "", ".!?\u3002\uff01\uff1f\u0964\u061f\u104b\u17d4\u0f0d")
STEPS = ("extract", "words", "wordpiece", "byte-bpe", "unigram")
"""Cleaning and sentences, words of a vocabulary, and tokens by three kinds of tokenizer."""


def unit_of(language: str, has_stops: bool) -> str:
    """Return some sentences of a language."""
    rows = dict(line.split("\t", 1) for line in LANGUAGES.read_text(encoding="utf-8").splitlines())
    own = "".join(chr(int(code, 16)) for code in OWN.get(language, "").split())
    text = own or rows[language].replace("\t", "" if language in SPACELESS else " ")
    text = text if language in SPACELESS else text + " "
    return text if has_stops else text.translate(STOPS)


def short_words(unit: str) -> str:
    """Return some text whose words a vocabulary can be trained on, also without white space."""
    return " ".join(unit[start : start + 6] for start in range(0, len(unit), 6)) * 20


def times(language: str, text: str, tokenizer: object) -> tuple[float, float, float]:
    """Return CPU seconds of cleaning, sentences and tokens of a text."""
    from data_prep.clean.cleaner import Cleaner
    from data_prep.config.cleaning import CleanConfig
    from data_prep.execution.records import Problems
    from data_prep.extract.sentences import split_sentences

    rules = ("mojibake", "control_characters", "boilerplate", "repeated_lines")
    marks = [time.process_time()]
    paragraphs = Cleaner(CleanConfig(rules=rules), Problems()).clean(text, "benchmark")
    marks.append(time.process_time())
    sentences = split_sentences(paragraphs, language)
    marks.append(time.process_time())
    tokenizer.forget_spans()
    tokenizer._spans.encode_flat(sentences)
    marks.append(time.process_time())
    return tuple(after - before for before, after in pairwise(marks))


def print_times(sizes: list[int]) -> None:
    """Print microseconds per character for all scripts."""
    from megabert.tokens.tokenization.training import train_wordpiece

    units = {(language, stops): unit_of(language, stops) for language in SCRIPTS for stops in (True, False)}
    tokenizer = train_wordpiece([short_words(unit) for unit in units.values()], vocab_size=4000)
    for text in ("warm up. " * 10, "\u597d\u3002" * 5000):  # compiled loops, tables
        times("en", text, tokenizer)
    head = "".join(f"{f'{size:,}':>24s}" for size in sizes)
    print(f"{'':14s}{head} characters; us per character to clean, for sentences, for tokens")
    for (language, stops), unit in units.items():
        cells = []
        for size in sizes:
            text = (unit * (size // len(unit) + 1))[:size]
            cells.append(" ".join(f"{seconds / size * 1e6:.3f}" for seconds in times(language, text, tokenizer)))
        name = f"{language}, {'with' if stops else 'no'} stops"
        print(f"{name:14s}" + "".join(f"{cell:>24s}" for cell in cells), flush=True)


def print_memory(megabytes: float) -> None:
    """Print the peak of each step, each in a process of its own, in MiB."""
    print(f"\nA document of {megabytes:g} MB in one line; peak MiB of a process that runs the step")
    print(f"{'':14s}" + "".join(f"{step:>10s}" for step in STEPS))
    units = {(language, stops): unit_of(language, stops) for language in SCRIPTS for stops in (True, False)}
    for (language, stops), unit in [*units.items(), (("zh", "only"), "\u3002")]:
        with tempfile.TemporaryDirectory(prefix="megabert-bench-") as name:
            folder = Path(name)
            text = unit * int(megabytes * 1e6 / len(unit.encode()))
            (folder / "a.jsonl").write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n", encoding="utf-8")
            peaks = []
            for step in STEPS:
                command = [sys.executable, __file__, "--step", step, "--folder", name, "--language", language]
                peaks.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        name = f"{language}, {stops if stops == 'only' else 'with' if stops else 'no'} stops"
        print(f"{name:14s}" + "".join(f"{peak:10.0f}" for peak in peaks), flush=True)


def run_step(step: str, folder: Path, language: str) -> None:
    """Run a step on the document of a folder; print the peak of this process."""
    from data_prep.config.build import BuildConfig, SourceConfig
    from data_prep.config.cleaning import CleanConfig
    from data_prep.extract.inputs import find_files, plan_chunks
    from data_prep.steps import step1_extract, step3_tokens
    from data_prep.steps.document_reader import ExtractTask
    from data_prep.steps.step2_vocabulary import CountTask, count_words
    from data_prep.vocabulary.training import VocabularyOptions

    source, text = SourceConfig(input=str(folder / "a.jsonl")), folder / "text-000.arrow"
    config = BuildConfig(sources=(source,), language=language, clean=CleanConfig(max_characters=10**9))
    if step == "extract":
        chunk = next(iter(plan_chunks(find_files((source,)), 1 << 30)))
        step1_extract.extract(ExtractTask(chunk, 0, config, folder / "text"))
        save_tokenizers(short_words(unit_of(language, True)), folder)
    elif step == "words":
        count_words(CountTask((text,), 1.0, VocabularyOptions(), folder / "words"))
    else:
        step3_tokens.tokenize(step3_tokens.TokenizeTask(text, folder / step, 0.0, folder / "tokens.arrow"))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


def save_tokenizers(text: str, folder: Path) -> None:
    """Train a tokenizer of each kind on a text, and save it in a folder of its name."""
    import tokenizers

    from megabert.tokens.tokenization import save_huggingface
    from megabert.tokens.tokenization.training import train_byte_bpe, train_wordpiece

    save_huggingface(train_wordpiece([text], vocab_size=4000), folder / "wordpiece")
    save_huggingface(train_byte_bpe([text, text], vocab_size=400), folder / "byte-bpe")
    special = {
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram())
    backend.pre_tokenizer, backend.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=300, special_tokens=[*special.values()], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator([text], trainer)
    (folder / "unigram").mkdir()
    backend.save(str(folder / "unigram" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "unigram" / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def main() -> None:
    """Print both tables, or run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000, 3_000_000])
    parser.add_argument("--megabytes", type=float, default=30.0, help="of the document; 0 leaves memory out")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--language", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1")
    if arguments.step:
        run_step(arguments.step, arguments.folder, arguments.language)
        return
    if arguments.sizes:
        print_times(arguments.sizes)
    if arguments.megabytes:
        print_memory(arguments.megabytes)


if __name__ == "__main__":
    main()
