"""One small real build, shared by the tests of this folder, which must not change it."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from support.made_shards import make_metadata

from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.documents.arrow_files import offsets_of
from data_prep.documents.document_set import DocumentSet, TokenizedDocuments, bucket_path, document_schema, index_path
from data_prep.execution.build_state import BuildState
from data_prep.execution.executors import Executor
from data_prep.execution.records import Problems
from data_prep.execution.work_units import RunningBuild
from data_prep.extract.inputs import find_files, plan_chunks
from data_prep.instances.pairs import PairOptions
from data_prep.pipeline import BuildResult, build_shards
from data_prep.steps.document_reader import READERS
from megabert.settings.config.loading import to_dict
from megabert.tokens.tokenization.tokenizer_kinds import WORDPIECE

CORPUS = Path(__file__).parents[3] / "examples" / "corpus" / "public_domain.jsonl"
NUM_DOCUMENTS = 60
SENTENCES = "The first sentence is here. The second one follows it. A third one ends the text."
FLAGS = ["--vocab-size", "200", "--lengths", "32", "--dupe-factor", "1", "--workers", "1", "--validation-share", "0"]


@pytest.fixture
def small_build(megabert_data, tmp_path):
    """Return a function that runs ``megabert-data build`` with the smallest settings and returns what it printed.

    Its texts are written into a file of JSON lines, unless flags name an input.
    """

    def run(*flags, texts=(), output="out", code=0):
        own = FLAGS[2:] if "--tokenizer" in flags else FLAGS  # there is no vocabulary to train then
        given = ["--input", write_jsonl(tmp_path / "a.jsonl", texts)] if texts else []
        return megabert_data("build", "--output", tmp_path / output, *given, *own, *flags, code=code)

    return run


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def bundled(name, **changes):
    """Return the settings of a build of a whole bundled corpus, ``public_domain`` or ``korean``."""
    source, language = SourceConfig(input=str(CORPUS.with_name(f"{name}.jsonl"))), "ko" if name == "korean" else "en"
    sizes = {"vocab_size": 8192, "validation_share": 0.05, "lengths": (128, 512)}
    return {"sources": (source,), "language": language, **sizes, **changes}


def read_chunks(path, problems=None, chunk_bytes=1 << 30, **options):
    """Return the texts of the documents of files, and the chunks that they were read in."""
    chunks = plan_chunks(find_files((SourceConfig(input=str(path), **options),)), chunk_bytes)
    problems = problems or Problems()
    return [text for chunk in chunks for _, text in READERS[chunk.file.format](chunk, problems)], chunks


def write_jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def pair_options(length, *, objective="nsp", pairing="balanced", seed=1, pass_number=0, min_tokens=0):
    """Options of a pass; pairs depend on nothing else in the metadata."""
    metadata = make_metadata(objective=objective, pairing=pairing, max_seq_length=length, seed=seed, vocab_size=2000)
    return PairOptions(metadata=metadata, short_seq_prob=0.1, pass_number=pass_number, min_tokens=min_tokens)


class WholeSplit(NamedTuple):
    """Where everything starts in a split, and where the last one ends, numbered over the split."""

    sentences_of_documents: np.ndarray
    tokens_of_sentences: np.ndarray
    tokens_of_documents: np.ndarray

    @classmethod
    def of(cls, documents):
        parts = [documents.sentences(number) for number in range(documents.num_buckets)]
        firsts = documents.bucket_starts[:, 1]
        sentences = [[0], *(part[0][1:] + first for part, first in zip(parts, firsts, strict=False))]
        tokens = np.concatenate([[0], *(part[1][1:] for part in parts)])
        return cls(np.concatenate(sentences), tokens, tokens[np.concatenate(sentences)])


def write_split(folder, buckets):
    """Write a split of documents without meaning: for each bucket the documents, each the lengths of its sentences."""
    schema = document_schema(2000).remove(1)
    sizes, seen = [(0, 0, 0)], 0
    for number, documents in enumerate(buckets):
        lengths = np.concatenate([np.zeros(0, np.int64), *documents]).astype(np.uint32)
        seen, count = seen + len(documents), len(documents)
        hashes = np.arange(seen - count, seen, dtype=np.uint64)
        same = [np.zeros(count, kind) for kind in (np.uint8, np.uint16)]
        ids = np.zeros(lengths.sum(), np.uint16)
        written = TokenizedDocuments(
            hashes, *same, ids, lengths, offsets_of(np.array([*map(len, documents)], np.int64))
        )
        written.write(bucket_path(folder, "train", number), schema)
        sizes.append((count, len(lengths), len(ids)))
    np.save(index_path(folder, "train"), np.cumsum(sizes, axis=0))
    return DocumentSet.open(folder, "train", 2000)


def whole_words():
    """What pairs ask of a tokenizer, of one whose pieces are words."""
    return SimpleNamespace(is_subword=np.zeros(2000, bool), kind=WORDPIECE)


def begun_build(folder, config, **more):
    """A build of no input, to do single units in."""
    return RunningBuild(folder, config, Executor(), BuildState(to_dict(config), [], {}), **more)


@pytest.fixture(scope="session")
def texts():
    """Every third document of the bundled corpus, so that all its works are there."""
    lines = CORPUS.read_text(encoding="utf-8").splitlines()[::3][:NUM_DOCUMENTS]
    return [json.loads(line)["text"] for line in lines]


@pytest.fixture(scope="session")
def corpus(texts, tmp_path_factory):
    return write_jsonl(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", texts)


@pytest.fixture(scope="session")
def make_config(corpus):
    def make(**changes):
        values = {
            "sources": (SourceConfig(input=str(corpus)),),
            "vocab_size": 2000,
            "lengths": (64, 128),
            "dupe_factor": 2,
            "validation_share": 0.1,
        }
        return BuildConfig(**{**values, **changes})

    return make


@pytest.fixture
def build(make_config, tmp_path):
    """Return a function that builds shards of the corpus, or of some texts, with settings of its own."""

    def run(folder="out", executor=None, *, texts=(), **settings):
        if texts:
            path = write_jsonl(tmp_path / f"{Path(folder).name}.jsonl", texts)
            settings["sources"] = (SourceConfig(input=str(path)),)
        return build_shards(make_config(**settings), tmp_path / folder, executor or Executor())

    return run


@pytest.fixture(scope="session")
def built(make_config, tmp_path_factory) -> BuildResult:
    """Balanced pairs, static masks, lengths 64 and 128, two passes."""
    return build_shards(make_config(), tmp_path_factory.mktemp("built") / "out", Executor())


@pytest.fixture(scope="session")
def tokenizer(built) -> str:
    """The vocabulary of that build, for builds that train none."""
    return str(built.folder / "tokenizer")


@pytest.fixture(scope="session")
def tokenizer_folder(built):
    return built.folder / "tokenizer"


@pytest.fixture
def own_copy(built, tmp_path):
    """A copy of the build that a test may damage."""
    shutil.copytree(built.folder, tmp_path / "copy")
    return tmp_path / "copy"
