"""Real text whose paragraphs repeat, cut into files and chunks in many ways: the same bytes, and one row of a table."""

import hashlib
import json
import random
from pathlib import Path

import pytest
from unit.data_prep.builds import hashes
from unit.data_prep.conftest import write_jsonl

from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.config.cleaning import CleanConfig
from data_prep.execution.executors import Executor
from data_prep.pipeline import build_shards

CORPUS = Path(__file__).parents[2] / "examples" / "corpus" / "public_domain.jsonl"
RULES = ("mojibake", "control_characters", "length", "duplicate_paragraphs", "duplicate_documents")
WAYS = (
    # name, files, chunk_mib, seed of the order (0: as it is, -1: backwards)
    ("one file", 1, 8.0, 0),
    ("two files", 2, 8.0, 0),
    ("forty files", 40, 8.0, 0),
    ("chunks of 64 KiB", 1, 1 / 16, 0),
    ("chunks of 300 KB, three files", 3, 0.3, 0),
    ("backwards", 1, 8.0, -1),
    ("shuffled, seven files", 7, 1.0, 1),
    ("shuffled, chunks of 100 KB", 1, 0.1, 2),
)

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def documents():
    """The bundled corpus; quotations of its paragraphs in other documents, short ones among them; and copies."""
    chance = random.Random(3)
    texts = [json.loads(line)["text"] for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    paragraphs = [line for text in texts for line in text.splitlines() if len(line) >= 100]
    quoting = ["\n".join(chance.sample(paragraphs, chance.randint(1, 6))) for _ in range(3 * len(texts))]
    mixed = texts + quoting + texts[::9] + quoting[::7]
    return chance.sample(mixed, len(mixed))


@pytest.fixture(scope="module")
def table():
    rows = []
    yield rows
    print("\n| input | documents | paragraphs dropped | too short | tokens | SHA-256 of all shards and documents |")
    print("|---|---|---|---|---|---|\n" + "\n".join(rows))


@pytest.mark.parametrize(("name", "files", "chunk_mib", "order"), WAYS, ids=[way[0] for way in WAYS])
def test_paragraphs_of_real_text_give_the_same_bytes(documents, table, tmp_path, name, files, chunk_mib, order):
    mixed = documents[:: order or 1] if order < 1 else random.Random(order).sample(documents, len(documents))
    for number in range(files):
        write_jsonl(tmp_path / f"{number:02d}.jsonl", mixed[number::files])
    config = BuildConfig(
        sources=(SourceConfig(input=str(tmp_path / "*.jsonl"), name="all"),), vocab_size=4000, lengths=(128,),
        dupe_factor=1, chunk_mib=chunk_mib, clean=CleanConfig(rules=RULES, min_characters=300),
    )  # fmt: skip
    built = build_shards(config, tmp_path / "out", Executor())
    corpus = built.manifests[128].statistics["corpus"]
    rows = {path: value for path, value in hashes(built.folder).items() if not path.endswith("manifest.json")}
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:32]
    counts = corpus["documents"], corpus["rules"]["duplicate_paragraphs"]["paragraphs"]
    counts += corpus["rules"]["length"]["documents"], corpus["tokens"]
    row = " | ".join((*(f"{count:,}" for count in counts), digest))
    table.append(f"| {name} | {row} |")
    assert table[0].split(" | ", 1)[1] == row + " |"
