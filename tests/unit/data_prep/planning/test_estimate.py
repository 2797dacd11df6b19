"""Estimates of builds that nobody runs here, and rates that are measured by a small one."""

import itertools
from types import SimpleNamespace

import pytest

from data_prep.commands import estimate as rates
from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.config.cleaning import CleanConfig
from data_prep.execution.work_units import Unit
from data_prep.extract.inputs import find_files, plan_chunks
from data_prep.planning import estimate as module
from data_prep.planning.estimate import RATES, estimate, require_space, shown
from data_prep.steps.step6_instances import bytes_per_token
from megabert.foundation.errors import ConfigError, DataError


def config(**changes):
    return BuildConfig(sources=(SourceConfig(input="web/*.jsonl"),), **changes)


@pytest.mark.parametrize("terabytes", [0.001, 0.1, 1, 10, 30])
@pytest.mark.parametrize("lengths", [(128,), (128, 512)])
def test_files_and_memory_stay_within_what_is_promised_at_any_size(terabytes, lengths):
    plan = estimate(config(lengths=lengths), int(terabytes * 1e12), 1000)
    assert plan.shards <= 50_000
    assert plan.most_opened <= 256
    assert plan.rank0_mib < 500 + 150 * terabytes  # a restart reads the record of every finished unit
    # Five passes and one over 2% held out, 4.76 bytes of text per token, and rows with 15% of the places masked.
    row_bytes = sum((2 * length + 4 * 0.15 * length + 19) / (length - 3) for length in lengths)
    assert plan.stages[-1].bytes / 1e12 == pytest.approx(terabytes * 5.02 / 4.76 * row_bytes, rel=0.01)


@pytest.mark.parametrize("more", [{}, {"masked_lm_prob": 0.4}, {"masking": "dynamic"}])
def test_disk_of_instances_is_that_of_their_columns(build, make_config, tokenizer, more):
    """Lengths, the share of masks and the width of ids decide it, so that a build does not run out of disk."""
    config = make_config(lengths=(16, 128), dupe_factor=1, tokenizer=tokenizer, **more)
    result = build(lengths=(16, 128), dupe_factor=1, tokenizer=tokenizer, **more)
    for length, manifest in result.manifests.items():
        folder = result.folder / "instances" / str(length)
        size = sum((folder / shard.file).stat().st_size for shard in manifest.shards)
        tokens = sum(own["tokens"] for own in manifest.statistics["text"].values())
        assert size / tokens == pytest.approx(bytes_per_token(config, length, 2000), rel=0.15), length


def test_wide_ids_take_twice_the_disk():
    narrow, wide = (estimate(config(vocab_size=size, masking="dynamic"), 10**12, 100) for size in (65_536, 65_537))
    for title in ("tokens", "documents"):
        sizes = [stage.bytes for plan in (narrow, wide) for stage in plan.stages if stage.title == title]
        assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.01)
    assert bytes_per_token(config(), 128, 65_537) == pytest.approx((4 * 128 + 6 * 0.15 * 128 + 19) / 125)


def test_cost_grows_with_the_text():
    small, large = (estimate(config(), int(size), 1) for size in (5e11, 1e13))
    assert large.seconds / small.seconds == pytest.approx(20, rel=0.15)  # one more level of merging


def test_estimated_units_are_those_of_the_plan(built, make_config, corpus):
    """A corpus of megabytes, where every rounding shows."""
    files = find_files(make_config().sources)
    plan = estimate(make_config(), files, 2)
    units = {stage.title: stage.units for stage in plan.stages}
    assert units["extract"] == len(plan_chunks(files, make_config().chunk_bytes))
    assert units["vocabulary"] == units["extract"] + 1  # a chunk gives one file, whose words one unit counts
    instances = [entry for manifest in built.manifests.values() for entry in manifest.shards]
    assert units["instances"] == len(instances)


def test_weights_count_in_the_documents_and_the_instances(corpus):
    plain, heavy = (BuildConfig(sources=(SourceConfig(input=str(corpus), weight=weight),)) for weight in (1, 60))
    once, often = (estimate(config, find_files(config.sources), 2) for config in (plain, heavy))
    for title, times in (("extract", 1), ("tokens", 1), ("documents", 60), ("instances", 60)):
        sizes = [stage.bytes for plan in (once, often) for stage in plan.stages if stage.title == title]
        assert sizes[1] == pytest.approx(times * sizes[0], rel=1e-2)  # hashes of documents have no weight


def test_keys_of_near_duplicates_count_in_the_disk_and_the_time():
    clean = CleanConfig(rules=("near_duplicates", "duplicate_documents"))
    plain, near = (estimate(changed, 10**12, 100) for changed in (config(), config(clean=clean)))
    documents = 10**12 / plain.sample.document_bytes.mean()
    assert near.work_bytes - plain.work_bytes == pytest.approx(14 * (2 * 16 + 8) * documents, rel=1e-6)
    assert near.end_bytes - plain.end_bytes == pytest.approx(14 * 8 * documents, rel=1e-6)
    assert near.seconds - plain.seconds == pytest.approx(10**12 / 1e6 * (1 / 47 + 1 / 60) / 100, rel=1e-6)


def test_identification_of_languages_counts_in_the_time():
    stated, identified = (estimate(changed, 10**12, 100) for changed in (config(), config(language="auto")))
    documents = 10**12 / stated.sample.document_bytes.mean()
    assert identified.seconds - stated.seconds == pytest.approx(0.2e-3 * documents / 100, rel=1e-6)
    slower = estimate(config(language="auto", language_model="lid.176.bin"), 10**12, 100)
    assert stated.seconds < identified.seconds < slower.seconds


def test_disk_that_is_too_small_is_refused_with_what_helps(tmp_path, monkeypatch):
    plan = estimate(config(), 10**9, 2)
    assert "at the peak" in require_space(plan, tmp_path / "new" / "out")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: (10**12, 0, plan.peak_bytes - 1))
    with pytest.raises(DataError, match=r"new/out: the build will take about .* --ignore-disk-space"):
        require_space(plan, tmp_path / "new" / "out")


def test_build_says_its_disk_first_and_refuses_to_begin_without_it(texts, tmp_path, monkeypatch, small_build):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: (10**12, 0, 1000))
    assert "and 1.0 KB are free" in small_build(texts=texts[:30], code=3).err
    assert not (tmp_path / "out").exists()
    small_build("--ignore-disk-space", texts=texts[:30])
    monkeypatch.undo()
    assert "disk: " in small_build("--dry-run", texts=texts[:30]).out


def test_command_shows_steps_and_refuses_what_cannot_work(tmp_path, megabert_data):
    shown_text = megabert_data("estimate", "--input-bytes", "10TB", "--ranks", "1000").out
    for word in (
        "10.0 TB of text, taken to be English (4.76 bytes per token), 1,000 ranks",
        "hash input",
        "chunks",
        "instances",
        "shuffle: 18.0 TB",
        "at the peak",
        "instances: about 82,352,941,176 of 128 or 20,224,199,700 of 512 tokens, if each is full",
        "megabert estimate --recipe NAME --instances N",
    ):
        assert word in shown_text
    assert "of the ranks find no unit" in megabert_data("estimate", "--input-bytes", "1MB", "--ranks", "5000").out
    for words, message in (
        (["--input-bytes", "1TB", "--buckets", "4"], "give 10,505 or more"),
        (["--input-bytes", "many"], "'many' is no number of bytes; write 500GB"),
        (["--input-bytes", "0"], "'0' is no number of bytes"),
        (["--input-bytes", "1TB", "--input", "x"], "Leave one of the two out"),
        ([], "No text given"),
    ):
        assert message in megabert_data("estimate", *words, code=2).err
    megabert_data("estimate", "--input-bytes", "9000PB", "--output", tmp_path, code=3)
    with pytest.raises(ConfigError, match="buckets=1 puts"):
        estimate(config(buckets=1), 10**12, 1)


def test_foreseen_instances_are_near_those_of_the_build(built, make_config, corpus):
    manifest = next(iter(built.manifests.values()))
    length = manifest.metadata.max_seq_length
    foreseen = estimate(make_config(), find_files(make_config().sources), 1).instances[length]
    rows = manifest.statistics["instances"]["train"]["rows"]
    assert 0.5 * foreseen < rows < 1.2 * foreseen


def test_sizes_are_shown_in_decimal_units():
    sizes = {0: "0 bytes", 999: "999 bytes", 1500: "1.5 KB", 5.5e12: "5.5 TB", 9e18: "9,000.0 PB"}
    assert {size: shown(size) for size in sizes} == sizes


def test_rates_are_megabytes_per_second_of_each_step(monkeypatch):
    builds = []

    def build_shards(config, folder, executor):
        builds.append(config)
        units = [Unit(folder, step, "0", str, None, {}, "") for step in ("extract", "tokens", "instances-32")]
        assert [result for _, result in executor.run(str, units)] == [str(unit) for unit in units]

    ticks = itertools.count(step=2)  # each unit takes two seconds
    monkeypatch.setattr(rates, "build_shards", build_shards)
    monkeypatch.setattr(rates, "time", SimpleNamespace(process_time=lambda: next(ticks)))
    measured = rates.measured_rates(BuildConfig(sources=(SourceConfig(input="texts"),), lengths=(32, 64)))
    first, second = builds
    assert first == second
    assert first.lengths == (32,)
    assert measured.keys() == {"extract", "tokens", "instances"} <= RATES.keys()
    assert 2.5 < measured["extract"] * 2 < 3.5  # megabytes of text
    assert measured["instances"] == (2 + first.validation_share) * measured["extract"]
