"""Builds of several languages: one for each source, or one for each document."""

import json
import random

import pytest
from support.fasttext_models import WORDS, model_bytes
from unit.data_prep.builds import Stopping, hashes

from data_prep.checks.stats import describe_corpus
from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.documents.arrow_files import checked_table
from data_prep.documents.document_set import EXTRACTED
from data_prep.execution.executors import Executor, ProcessExecutor
from data_prep.extract.inputs import find_files, plan_chunks
from data_prep.pipeline import build_shards
from data_prep.steps import step1_extract
from data_prep.steps.document_reader import ExtractTask
from data_prep.steps.step1_extract import extract
from megabert.foundation.errors import DataError
from megabert.tokens.shards.folder import read_manifest

SENTENCES = {  # each with a mark or an abbreviation that only the rules of its language know, if it has some
    "en": ["Mr. Hale left the old harbour at dawn.", "Nobody on the quay had slept that night.", "The sea was calm."],
    "de": [
        "Das Schiff verlie\u00df den Hafen bzw. Kai am fr\u00fchen Morgen.",
        "Niemand hatte in dieser Nacht geschlafen.",
        "Das Meer war ruhig.",
    ],
    "ko": [
        "\ubc30\ub294 \uc0c8\ubcbd\uc5d0 \ud56d\uad6c\ub97c \ub5a0\ub0ac\ub2e4.",
        "\ubd80\ub450\uc5d0\uc11c\ub294 \uc544\ubb34\ub3c4 \uc790\uc9c0 \ubabb\ud588\ub2e4.",
        "\ubc14\ub2e4\ub294 \uc794\uc794\ud588\ub2e4.",
    ],
    "zh": [
        "\u8fd9\u8258\u8239\u5728\u9ece\u660e\u65f6\u5206\u79bb\u5f00\u4e86\u6e2f\u53e3\u3002",
        "\u7801\u5934\u4e0a\u6ca1\u6709\u4eba\u7761\u89c9\u3002",
        "\u5927\u6d77\u5f88\u5e73\u9759\uff0c\u8239\u957f\u7b11\u4e86\u3002",
    ],
    "ja": [
        "\u8239\u306f\u591c\u660e\u3051\u306b\u6e2f\u3092\u51fa\u305f\u3002",
        "\u57e0\u982d\u3067\u306f\u8ab0\u3082\u7720\u3063\u3066\u3044\u306a\u304b\u3063\u305f\u3002",
        "\u6d77\u306f\u7a4f\u3084\u304b\u3060\u3063\u305f\u3002",
    ],
}
DOCUMENTS = 12
"""Documents of each language."""


def documents_of(language):
    """Documents of six sentences, all different."""
    draws, separator = random.Random(language), "" if language in ("zh", "ja") else " "
    return [[draws.choice(SENTENCES[language]) for _ in range(6)] for _ in range(DOCUMENTS)], separator


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A file of each language, and one of all in turn."""
    folder = tmp_path_factory.mktemp("languages")
    lines = {}
    for language in SENTENCES:
        documents, separator = documents_of(language)
        lines[language] = [json.dumps({"text": separator.join(sentences)}) for sentences in documents]
        (folder / f"{language}.jsonl").write_text("\n".join(lines[language]))
    mixed = [line for group in zip(*lines.values(), strict=True) for line in group]
    (folder / "mixed.jsonl").write_text("\n".join(mixed))
    (folder / "reversed.jsonl").write_text("\n".join(mixed[::-1]))
    return folder


def config_of(*sources, **changes):
    values = {"vocab_size": 400, "lengths": (32,), "dupe_factor": 1, "validation_share": 0.1, **changes}
    return BuildConfig(sources=sources, **values)


def by_source(folder, order=1):
    languages = list(SENTENCES)[::order]
    return [SourceConfig(input=str(folder / f"{code}.jsonl"), name=code, language=code) for code in languages]


def extracted(config, tmp_path):
    """Return the documents of a configuration, each as its sentences without white space around them."""
    texts = []
    for number, chunk in enumerate(plan_chunks(find_files(config.sources), config.chunk_bytes)):
        paths, _ = extract(ExtractTask(chunk, number, config, tmp_path / f"{number}"))
        for path in paths:
            texts += checked_table(path, EXTRACTED)["sentences"].to_pylist()
    return [[sentence.strip() for sentence in sentences] for sentences in texts]


def corpus_of(folder):
    return read_manifest(folder / "instances" / "32").statistics["corpus"]


def test_sources_are_cut_by_the_rules_of_their_languages(folder, tmp_path):
    expected = [sentences for language in SENTENCES for sentences in documents_of(language)[0]]
    assert extracted(config_of(*by_source(folder)), tmp_path) == expected
    german = SourceConfig(input=str(folder / "de.jsonl"))
    assert extracted(config_of(german), tmp_path) != documents_of("de")[0]  # English ends a sentence at "bzw."
    assert extracted(config_of(german, language="de"), tmp_path) == documents_of("de")[0]
    assert extracted(config_of(SourceConfig(input=german.input, language="en"), language="de"), tmp_path) == extracted(
        config_of(german), tmp_path
    )


def test_order_and_workers_change_no_byte_of_a_mixed_build(folder, tmp_path):
    given = build_shards(config_of(*by_source(folder)), tmp_path / "given", Executor())
    assert corpus_of(given.folder)["languages_by_source"] == {code: {code: DOCUMENTS} for code in SENTENCES}
    tokenizer = str(given.folder / "tokenizer")
    arrows = []
    for name, executor in (("mixed", Executor()), ("reversed", ProcessExecutor(2))):
        mixed = SourceConfig(input=str(folder / f"{name}.jsonl"), language="auto")
        files = hashes(build_shards(config_of(mixed, tokenizer=tokenizer), tmp_path / name, executor).folder)
        arrows.append({path: digest for path, digest in files.items() if path.endswith(".arrow")})
        assert corpus_of(tmp_path / name)["languages_by_source"] == {mixed.input: dict.fromkeys(SENTENCES, DOCUMENTS)}
    expected, found = arrows
    assert found == expected
    # The same number of sources with a language each have the same sentences in the same instances.
    of_sources = hashes(
        build_shards(config_of(*by_source(folder, -1), tokenizer=tokenizer), tmp_path / "s", Executor()).folder
    )
    assert {path: of_sources[path] for path in expected if path.startswith("instances")} == {
        path: digest for path, digest in expected.items() if path.startswith("instances")
    }


def test_stopped_build_continues_with_the_same_model_alone(folder, tmp_path):
    pytest.importorskip("fasttext", reason="pip install fasttext-predict")
    model = tmp_path / "lid.bin"
    model.write_bytes(model_bytes())
    source = SourceConfig(input=str(folder / "*.jsonl"), language="auto")
    config = config_of(source, language_model=str(model), chunk_mib=0.001)
    whole = build_shards(config, tmp_path / "whole", Executor())
    with pytest.raises(KeyboardInterrupt):
        build_shards(config, tmp_path / "stopped", Stopping(12))
    model.write_bytes(model_bytes({**WORDS, "de": WORDS["en"], "en": WORDS["de"]}))
    with pytest.raises(DataError, match=r"was begun with other input \(.*lid\.bin changed, added or gone\)"):
        build_shards(config, tmp_path / "stopped", Executor())
    model.write_bytes(model_bytes())
    assert hashes(build_shards(config, tmp_path / "stopped", Executor()).folder) == hashes(whole.folder)


def test_model_that_changes_during_a_build_is_refused(folder, tmp_path, monkeypatch):
    pytest.importorskip("fasttext", reason="pip install fasttext-predict")
    model = tmp_path / "lid.bin"
    model.write_bytes(model_bytes())
    units = step1_extract._units

    def changed(*arguments):
        made = units(*arguments)
        model.write_bytes(model_bytes({**WORDS, "fr": ["le"]}))
        return made

    monkeypatch.setattr(step1_extract, "_units", changed)
    source = SourceConfig(input=str(folder / "en.jsonl"), language="auto")
    with pytest.raises(DataError, match=r"lid\.bin: changed since the build began"):
        build_shards(config_of(source, language_model=str(model)), tmp_path / "out", Executor())


def test_languages_of_unknown_codes_are_cut_as_english_and_counted(tmp_path, small_build, megabert_data):
    pytest.importorskip("fasttext", reason="pip install fasttext-predict")
    (tmp_path / "lid.bin").write_bytes(model_bytes())
    rows = ["Baara kilo jamana. Muso den baara.", "1 2 3. 4 5 6.", "The whale and the sea. It swam away."] * 20
    texts = [" ".join([row] * (2 + number // 3)) for number, row in enumerate(rows)]
    small_build("--language", "auto", "--language-model", tmp_path / "lid.bin", texts=[*texts, "  "])
    path = str(tmp_path / "a.jsonl")
    assert corpus_of(tmp_path / "out")["languages_by_source"] == {path: {"dyu": 20, "en": 20, "und": 20}}
    shown = megabert_data("stats", tmp_path / "out").out
    assert f"languages of {path}: dyu 20, en 20, und 20" in shown
    reason = "as the code is neither of two letters (ISO 639-1) nor of a Wikipedia"
    assert f"cut by English rules, {reason}: dyu 20, und 20" in shown


def test_build_of_one_language_counts_none_and_identifies_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.identification.identifier.identifier_of", None)  # a call would fail
    sources = tuple(SourceConfig(input=str(folder / f"{code}.jsonl")) for code in ("en", "de"))
    corpus = corpus_of(build_shards(config_of(*sources), tmp_path / "out", Executor()).folder)
    assert "languages_by_source" not in corpus
    assert not [line for line in describe_corpus(corpus) if line.startswith("languages of")]


def test_many_languages_are_shown_shortly():
    counts = {f"{a}{b}": 20 - number for number, (a, b) in enumerate(zip("abcdefghijklm", "z" * 13, strict=True))}
    corpus = {
        **dict.fromkeys(("documents", "validation_documents", "sentences", "tokens", "unknown_tokens"), 0),
        **{"tokens_read": 0, "documents_by_source": {}, "kept_documents_by_source": {}, "tokens_by_source": {}},
        **{"dropped": {}, "languages_by_source": {"web": {**counts, "az": 90}, "empty": {}}},
    }
    lines = [line for line in describe_corpus(corpus) if line.startswith("languages of")]
    assert lines[0].startswith("languages of web: az 90, bz 19, ")
    assert lines[0].endswith(", 3 others 27")
    assert lines[1] == "languages of empty: none"
