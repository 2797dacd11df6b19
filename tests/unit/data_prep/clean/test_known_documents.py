"""Builds that leave out the documents of earlier ones: none is in both, whatever the rules, workers and ranges."""

import shutil

import numpy as np
import pytest
from unit.data_prep.builds import Stopping, hashes_of_data
from unit.data_prep.clean.test_near_duplicates import text_of
from unit.data_prep.conftest import write_jsonl

from data_prep.clean import grouped_hashes, known_documents
from data_prep.config.build import SourceConfig
from data_prep.config.cleaning import CleanConfig
from data_prep.documents.document_set import SPLITS, DocumentSet, tokenizer_of
from data_prep.execution.executors import Executor, ProcessExecutor
from data_prep.pipeline import build_shards
from megabert.foundation.errors import ConfigError, DataError
from megabert.tokens.shards.folder import read_manifest

NEAR, PARAGRAPHS = ("near_duplicates", "duplicate_documents"), ("duplicate_paragraphs", "duplicate_documents")
OLD = [text_of(number) for number in range(20)]
SHARED = (
    "This line is in two of the earlier documents, and one of them loses it, as it is longer than a hundred letters."
)
OLD_OF_ONE_LINE = [f"{text_of(20)}\n{SHARED}", f"{text_of(21)}\n{SHARED}"]
COPIES, NEAR_COPIES = OLD, [text_of(number, (3,)) for number in range(5, 12)]
NEW = [text_of(number) for number in range(30, 60)]


@pytest.fixture
def make(make_config, tokenizer, tmp_path):
    def make(name, texts, rules=("duplicate_documents",), executor=None, **more):
        path = write_jsonl(tmp_path / f"{name}.jsonl", texts)
        more = {"lengths": (64,), "dupe_factor": 1, "tokenizer": tokenizer, "validation_share": 0.2, **more}
        config = make_config(sources=(SourceConfig(input=str(path)),), clean=CleanConfig(rules=rules), **more)
        return build_shards(config, tmp_path / name, executor or Executor())

    return make


@pytest.fixture
def old(make):
    return make("old", OLD).folder


def documents_of(folder):
    """Hashes of all documents of a build, of both splits."""
    vocab_size = tokenizer_of(folder / "tokenizer").vocab_size
    sets = [DocumentSet.open(folder / "documents", split, vocab_size) for split in SPLITS]
    return {int(value) for own in sets for bucket in range(own.num_buckets) for value in own.read(bucket).hashes_D}


@pytest.mark.parametrize(
    ("rules", "old_texts", "copies", "others"),
    [
        (("duplicate_documents",), OLD, COPIES, NEAR_COPIES),  # without the rule near copies stay
        (NEAR, OLD, [*COPIES, *NEAR_COPIES], []),
        (PARAGRAPHS, [*OLD, *OLD_OF_ONE_LINE], [*COPIES, *OLD_OF_ONE_LINE], []),
        ((*PARAGRAPHS, "near_duplicates"), [*OLD, *OLD_OF_ONE_LINE], [*NEAR_COPIES, *OLD_OF_ONE_LINE], []),
    ],
    ids=["copies", "near", "paragraphs", "both"],
)
def test_no_document_is_in_both_builds(make, rules, old_texts, copies, others):
    old = make("old", old_texts, rules)
    new = make("new", [*copies, *others, *NEW], rules, exclude=(str(old.folder),))
    alone = make("alone", [*others, *NEW], rules)
    assert not documents_of(old.folder) & documents_of(new.folder)
    assert documents_of(new.folder) == documents_of(alone.folder)
    corpus = new.manifests[64].statistics["corpus"]
    assert corpus["rules"]["excluded_documents"]["documents"] == len(copies)
    identity = read_manifest(old.folder / "instances" / "64").statistics["corpus"]["documents_sha256"]
    assert corpus["excluded"] == {str(old.folder): identity}


def test_document_that_becomes_a_known_one_without_its_paragraphs_is_left_out(make):
    """One of two new documents loses the line that both have: what is left is a document of the earlier build."""
    old = make("old", [*OLD, text_of(22), text_of(23)])
    texts = [f"{text_of(22)}\n{SHARED}", f"{text_of(23)}\n{SHARED}", *NEW]
    new = make("new", texts, PARAGRAPHS, exclude=(str(old.folder),))
    assert new.manifests[64].statistics["corpus"]["rules"]["excluded_documents"]["documents"] == 1
    assert not documents_of(old.folder) & documents_of(new.folder)


def test_bytes_depend_on_neither_workers_nor_ranges_nor_a_stop(make, monkeypatch):
    texts = [*COPIES, *NEAR_COPIES, *NEW]
    exclude = (str(make("old", OLD, NEAR).folder),)
    expected = hashes_of_data(make("new", texts, NEAR, exclude=exclude).folder)
    workers = make("two", texts, NEAR, ProcessExecutor(2), exclude=exclude).folder
    assert hashes_of_data(workers) == expected
    for tasks in (1, 4, 9, 14, 19):
        with pytest.raises(KeyboardInterrupt):
            make("stopped", texts, NEAR, Stopping(tasks), exclude=exclude)
    assert hashes_of_data(make("stopped", texts, NEAR, exclude=exclude).folder) == expected
    for module in (grouped_hashes, known_documents):
        monkeypatch.setattr(module, "HASHES_PER_RANGE", 7)
    shutil.rmtree(exclude[0])
    ranges = make("old", OLD, NEAR, chunk_mib=0.005).folder / "work" / "hashes"
    assert len(list(ranges.iterdir())) > 10
    assert hashes_of_data(make("new2", texts, NEAR, exclude=exclude).folder) == expected


def test_hashes_outlive_another_split_and_leave_the_identity(make, old):
    before = {path.name: path.read_bytes() for path in (old / "work" / "hashes").iterdir()}
    identity = read_manifest(old / "instances" / "64").statistics["corpus"]["documents_sha256"]
    make("old", OLD, validation_share=0.1, lengths=(64, 128))
    assert {path.name: path.read_bytes() for path in (old / "work" / "hashes").iterdir()} == before
    assert read_manifest(old / "instances" / "64").statistics["corpus"]["documents_sha256"] == identity
    make("new", [*COPIES, *NEW], exclude=(str(old),))
    (old / "work" / "records" / "hashes.jsonl").unlink()  # as a build before there were hashes
    make("old", OLD, validation_share=0.1, lengths=(64, 128, 256))
    assert "documents_sha256" not in read_manifest(old / "instances" / "256").statistics["corpus"]


def test_excluded_build_that_changes_is_other_input(make, old):
    make("new", [*COPIES, *NEW], exclude=(str(old),))
    shutil.rmtree(old)
    make("old", OLD[:10])
    with pytest.raises(DataError, match=r"was begun with other input \(\S*00000-of-00001.npy changed"):
        make("new", [*COPIES, *NEW], exclude=(str(old),))


def damage(old):
    path = next((old / "work" / "hashes").iterdir())
    content = np.load(path)
    np.save(path, content + np.uint64(1))


def edit_records(old):
    path = old / "work" / "records" / "hashes.jsonl"
    path.write_bytes(path.read_bytes().replace(b"work/hashes/0", b"work/hashes/1"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (shutil.rmtree, DataError, "holds no build (build.json is missing). Name the --output"),
        (lambda old: (old / "instances" / "64" / "manifest.json").unlink(), DataError, "is not finished ("),
        (lambda old: (old / "work" / "records" / "hashes.jsonl").unlink(), DataError, "lacks hashes of its"),
        (edit_records, DataError, "hashes.jsonl: damaged or edited"),
        (damage, DataError, "00000-of-00001.npy: is damaged. Restore the folder"),
        (lambda old: next((old / "work" / "hashes").iterdir()).unlink(), DataError, "work/hashes lacks hashes"),
    ],
    ids=["no build", "unfinished", "no records", "damaged records", "wrong byte", "missing file"],
)  # fmt: skip
def test_folder_that_cannot_be_left_out_is_refused(make, old, tmp_path, change, error, message):
    change(old)
    with pytest.raises(error, match="old") as raised:
        make("new", NEW, exclude=(str(old),))
    assert message in str(raised.value)
    assert not (tmp_path / "new" / "build.json").exists()


@pytest.mark.parametrize("command", ["build --dry-run", "estimate", "vocab"])
def test_commands_that_look_at_text_read_the_hashes(old, megabert_data, tmp_path, command):
    text = write_jsonl(tmp_path / "new.jsonl", [*COPIES, *NEW])
    words = ("--input", text, "--vocab-size", "300", "--exclude", old)
    megabert_data(*command.split(), *words, "--output", tmp_path / "first")
    damage(old)
    said = megabert_data(*command.split(), *words, "--output", tmp_path / "second", code=3).err
    assert "00000-of-00001.npy: is damaged. Restore the folder" in said


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (("duplicate_documents",), "is the folder of this build"),
        (NEAR, "was built without near_duplicates, so that near copies of its documents cannot be recognized"),
    ],
)
def test_build_that_cannot_be_compared_is_refused(make, old, rules, message):
    output = "old" if "folder" in message else "new"
    with pytest.raises(ConfigError, match=message):
        make(output, NEW, rules, exclude=(str(old),))


def test_url_and_text_that_is_all_known_are_refused(make, old):
    with pytest.raises(ConfigError, match="exclude: s3://bucket/old: is no folder of this machine"):
        make("new", NEW, exclude=("s3://bucket/old",))
    with pytest.raises(DataError, match=r"excluded_documents\). Give --input other files, or fewer rules"):
        make("new", OLD, exclude=(str(old),))


def test_other_cleaning_is_warned_of(make, old, capsys):
    make("new", NEW, ("duplicate_documents", "boilerplate"), exclude=(str(old),))
    assert "was cleaned in another way (boilerplate). A document" in capsys.readouterr().err
    make("third", NEW, PARAGRAPHS, exclude=(str(old),))  # a rule over the corpus changes no hash
    assert "in another way" not in capsys.readouterr().err
