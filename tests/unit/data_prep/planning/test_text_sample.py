"""How many tokens a text has, from a look at it, against the tokens that a build counts."""

import pytest
from unit.data_prep.conftest import write_jsonl

from data_prep.cli import main
from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.config.cleaning import CleanConfig
from data_prep.extract.inputs import find_files
from data_prep.planning.estimate import estimate
from data_prep.planning.text_sample import english, sample_text, try_rules
from megabert.foundation.errors import ConfigError


def config_of(path, **changes):
    return BuildConfig(sources=(SourceConfig(input=str(path)),), **changes)


def sampled(path, **changes):
    config = config_of(path, **changes)
    return sample_text(config, find_files(config.sources))


def test_tokens_are_about_those_that_the_build_counts(built, make_config):
    corpus = next(iter(built.manifests.values())).statistics["corpus"]
    config = make_config()
    files = find_files(config.sources)
    bytes_per_token = sum(file.bytes for file in files) / corpus["tokens"]
    assert sample_text(config, files).bytes_per_token == pytest.approx(bytes_per_token, rel=0.25)


@pytest.mark.parametrize(
    ("text", "bytes_per_token"),
    [("The cat sat on the mat. ", 4.76), ("\ud55c\uad6d\uc5b4 \ubb38\uc7a5 ", 7.0), ("\u4e2d\u6587\u53e5\u5b50", 3.0)],
)
def test_scripts_have_tokens_of_other_sizes(text, bytes_per_token, tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", [text * 40] * 5)
    assert sampled(source).bytes_per_token == pytest.approx(bytes_per_token, rel=0.05)


def test_disk_follows_the_script(tmp_path):
    def end_bytes(text: str) -> float:
        source = write_jsonl(tmp_path / "a.jsonl", [text * 400] * 50)
        config = config_of(source)
        files = find_files(config.sources)
        plan = estimate(config, files, 1, sample=sample_text(config, files))
        return plan.stages[-1].bytes / plan.text_bytes

    assert end_bytes("\ud55c\uad6d\uc5b4 \ubb38\uc7a5 ") < 0.75 * end_bytes("The cat sat on the mat. ")


def test_documents_before_one_that_cannot_be_read_are_the_sample(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", ["\ud55c\uad6d\uc5b4 \ubb38\uc7a5 " * 40] * 5)
    with open(source, "a") as stream:
        stream.write("no JSON\n")
    sample = sampled(source)
    assert len(sample.document_bytes) == len(sample.document_tokens) == 5


def test_text_that_cannot_be_read_counts_as_english(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text("no JSON\n" * 10)
    assert sampled(source).bytes_per_token == english(config_of(source)).bytes_per_token


def test_share_of_short_documents_is_that_of_the_sample(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", ["word " * 10] * 3 + ["word " * 1000])
    of_documents, of_text = sampled(source).short_share(100)
    assert of_documents == 0.75
    assert of_text == pytest.approx(30 / 1030, rel=0.05)


def test_hashing_and_small_vocabularies_take_the_time_of_their_size():
    config = config_of("planned")
    seconds = {stage.title: stage.seconds for stage in estimate(config, 1_200_000, 1).stages}
    assert 0 < seconds["vocabulary"] < 2
    assert {stage.title: stage.seconds for stage in estimate(config, 10**12, 1).stages}["hash input"] > 700


def test_rules_are_tried_one_by_one_and_nothing_is_written(tmp_path, megabert_data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad = ["{ code }", "Write to a@example.org, please. It is there.", "same line of text\n" * 5]
    prose = "It was the third day, and of all that we have seen, the sea was the best. Nobody spoke with us."
    write_jsonl(tmp_path / "in.jsonl", [*[f"{prose} {n}." for n in range(17)], *bad, " \n "])  # no text is no loss
    flags = "--dry-run --input in.jsonl --clean c4_brackets gopher_words --clean.gopher-min-words 9 --plots plots"
    rows = [line.split() for line in megabert_data("stats", *flags.split()).out.splitlines()]
    found = {row[0]: row[1:] for row in rows if row}
    assert found["c4_brackets"][:2] == ["1", "5.00%"]
    assert found["email_addresses"] == ["0", "0.00%", "0.72%", "1"]
    assert found["gopher_repeated_lines"][:2] == ["1", "5.00%"]
    assert found["gopher_words"][:2] == ["2", "10.00%"]
    assert "near_duplicates" not in found
    assert "language" not in found  # no language was named
    assert ["c4_brackets,", "gopher_words", "together:", "18", "documents", "(90.00%)", "stay"] in rows
    assert "'Write to email@example.com, please." in " ".join(found["email_addresses:"])
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in.jsonl", "plots", "rules.png"]
    assert (tmp_path / "plots" / "rules.png").read_bytes().startswith(b"\x89PNG")


def test_rule_on_languages_is_tried_with_the_languages_of_each_source(tmp_path):
    english, german = "The whale swam away, and nobody saw it.", "Der Wal schwamm davon, und niemand sah ihn wieder."
    paths = {code: write_jsonl(tmp_path / f"{code}.jsonl", [english, german, german]) for code in ("en", "auto")}
    sources = tuple(SourceConfig(input=str(path), language=code) for code, path in paths.items())
    clean = CleanConfig(rules=("control_characters",), languages=("de",))
    trial = try_rules(BuildConfig(sources=sources, clean=clean), find_files(sources))
    assert (trial.documents, trial.kept) == (6, 6)
    assert trial.effects["language"][:2] == (3, 2 * len(german) + len(english))
    both = CleanConfig(rules=("control_characters", "language"), languages=("de",))
    assert try_rules(BuildConfig(sources=sources, clean=both), find_files(sources)).kept == 3


def test_rule_on_languages_is_not_tried_with_one_that_cannot_be_identified(tmp_path, megabert_data):
    path = write_jsonl(tmp_path / "in.jsonl", ["The whale swam away, and nobody saw it."])
    flags = ["--input", str(path), "--clean", "language", "--clean.languages", "dyu"]
    shown = megabert_data("stats", "--dry-run", *flags, code=2)
    assert "keeps dyu, which py3langid cannot identify" in shown.err
    assert not shown.out
    config = config_of(path, clean=CleanConfig(languages=("dyu",)))  # the rule is tried, though it is not chosen
    with pytest.raises(ConfigError, match="keeps dyu, which py3langid cannot identify"):
        try_rules(config, find_files(config.sources))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "name a build"),
        (["--input", "in.jsonl"], "--input has no effect without --dry-run"),
        (["--dry-run"], "No text given"),
        (["folder", "--dry-run", "--input", "in.jsonl"], "Leave one of the two out"),
        (["--dry-run", "--input", "none.jsonl"], "no such file"),
        (["--dry-run", "--input", "empty.jsonl", "--exclude", "old"], "--exclude: no such flag"),
        (["--dry-run", "--input", "empty.jsonl"], "The corpus is empty"),
    ],
)
def test_dry_run_without_text_is_refused(tmp_path, monkeypatch, capsys, flags, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    assert main(["stats", *flags]) in (2, 3)
    assert says in capsys.readouterr().err
