import errno
import os
import shutil
import subprocess

import pytest
from unit.data_prep.conftest import write_jsonl

from data_prep.cli import main
from data_prep.execution.executors import ProcessExecutor

SENTENCES = "The first sentence is here. The second one follows it. A third one ends the text."
FLAGS = ["--vocab-size", "200", "--lengths", "32", "--dupe-factor", "1", "--workers", "1", "--validation-share", "0"]


def run_build(tmp_path, capsys, *flags):
    code = main(["build", "--output", str(tmp_path / "out"), *FLAGS, *flags])
    return code, capsys.readouterr().err


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def assert_nothing_to_read(folder):
    """No manifest, no instances, no temporary file."""
    assert not [name for name in files_of(folder) if "instances" in name or name.endswith(".tmp")]


@pytest.mark.parametrize("content", ["", "\n\n \n"])
def test_empty_corpus_is_refused(tmp_path, capsys, content):
    (tmp_path / "a.txt").write_text(content)
    code, message = run_build(tmp_path, capsys, "--input", str(tmp_path / "a.txt"))
    assert code == 3
    assert "corpus is empty" in message
    assert "--input" in message
    assert_nothing_to_read(tmp_path)


def test_documents_of_one_sentence_are_refused_with_the_remedy(tmp_path, capsys):
    write_jsonl(tmp_path / "a.jsonl", [SENTENCES] * 7 + [f"Only sentence number {i}." for i in range(3)])
    code, message = run_build(tmp_path, capsys, "--input", str(tmp_path / "a.jsonl"))
    assert code == 3
    assert "3 of 10 documents have one sentence" in message
    assert "objective: none" in message
    assert_nothing_to_read(tmp_path)
    shutil.rmtree(tmp_path / "out")
    assert run_build(tmp_path, capsys, "--input", str(tmp_path / "a.jsonl"), "--objective", "none")[0] == 0


def test_few_documents_of_one_sentence_are_counted(tmp_path, capsys):
    write_jsonl(tmp_path / "a.jsonl", [SENTENCES] * 9 + ["Only one sentence."])
    assert main(["build", "--output", str(tmp_path / "out"), *FLAGS, "--input", str(tmp_path / "a.jsonl")]) == 0
    assert "documents of one sentence 1" in capsys.readouterr().out


def test_single_document_cannot_have_a_random_next(tmp_path, capsys):
    write_jsonl(tmp_path / "a.jsonl", [SENTENCES])
    code, message = run_build(tmp_path, capsys, "--input", str(tmp_path / "a.jsonl"))
    assert code == 3
    assert "1 training document(s) of 1" in message


@pytest.mark.parametrize("workers", ["1", "2"])
def test_invalid_utf8_is_named_without_traceback(tmp_path, capsys, workers):
    (tmp_path / "a.txt").write_bytes(b"Good text.\n\nBad \xff text.\n")
    code, message = run_build(tmp_path, capsys, "--input", str(tmp_path / "a.txt"), "--workers", workers)
    assert code == 3
    assert "not utf-8 at byte 16 (line 3" in message
    assert "Traceback" not in message
    assert_nothing_to_read(tmp_path)


def test_vocabulary_without_mask_is_refused_before_anything_is_written(tmp_path, capsys):
    write_jsonl(tmp_path / "a.jsonl", [SENTENCES] * 9)
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "##s"]) + "\n")
    code, message = run_build(
        tmp_path, capsys, "--input", str(tmp_path / "a.jsonl"), "--tokenizer", str(tmp_path / "v")
    )
    assert code == 3
    assert "[MASK]" in message
    assert not (tmp_path / "out").exists()


def test_literal_special_tokens_are_text(tmp_path, capsys):
    write_jsonl(tmp_path / "a.jsonl", [f"He wrote [MASK] and [SEP] there. {SENTENCES}"] * 9)
    assert run_build(tmp_path, capsys, "--input", str(tmp_path / "a.jsonl"))[0] == 0
    assert main(["verify", str(tmp_path / "out"), "--workers", "1"]) == 0


def test_folder_without_manifest_and_manifest_without_shards_are_refused(own_copy, capsys):
    manifest = own_copy / "instances" / "64" / "manifest.json"
    manifest.unlink()
    assert main(["verify", str(own_copy)]) == 3
    assert "no finished folder" in capsys.readouterr().err
    manifest.write_text('{"format_version": 1, "metadata": {}, "shards": [], "totals": {}}')
    assert main(["stats", str(own_copy)]) == 3
    assert "lists no shards" in capsys.readouterr().err


def test_lengths_out_of_bounds_are_refused(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(SENTENCES)
    code, message = run_build(tmp_path, capsys, "--input", str(tmp_path / "a.txt"), "--lengths", "8")
    assert code == 2
    assert "allowed are 16 to 65535" in message


def die(task):
    os.kill(os.getpid(), 9)


def test_dead_worker_is_reported():
    with pytest.raises(Exception, match="run the same command again"), ProcessExecutor(2) as executor:
        list(executor.run(die, [1, 2]))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 300 KiB; unmounted lazily, for readers of this process may hold mapped files."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("mounting a small tmpfs needs root")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip(f"mounting a tmpfs is not allowed here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_full_disk_keeps_finished_units_and_a_second_run_completes(small_disk, corpus, capsys):
    arguments = ["build", "--input", str(corpus), "--output", str(small_disk / "out"), *FLAGS]
    assert main(arguments) == 3
    message = capsys.readouterr().err
    assert "no space left" in message
    assert "MiB free" in message
    assert str(small_disk) in message
    finished = [name for name in files_of(small_disk) if "records" in name]
    assert finished
    assert not [name for name in files_of(small_disk) if name.endswith(".tmp")]
    subprocess.run(["mount", "-o", "remount,size=60m", str(small_disk)], check=True)
    assert main(arguments) == 0
    assert "done before" in capsys.readouterr().err
    assert main(["verify", str(small_disk / "out"), "--workers", "1"]) == 0


def test_full_disk_error_names_the_folder(make_config, tmp_path, monkeypatch, capsys):
    """The same without a mount: the fourth write finds no space."""
    from megabert.schema import files

    calls = []

    def sync(path):
        calls.append(path)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "sync_file", sync)
    write_jsonl(tmp_path / "a.jsonl", [SENTENCES] * 9)
    code, message = run_build(tmp_path, capsys, "--input", str(tmp_path / "a.jsonl"))
    assert code == 3
    assert "no space left" in message
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("place", ["/proc/nothing", "a.jsonl/out"])
def test_output_that_cannot_be_made_is_named(tmp_path, capsys, place):
    write_jsonl(tmp_path / "a.jsonl", [SENTENCES] * 9)
    output = str(tmp_path / place)  # an absolute place stays as it is
    assert main(["build", "--input", str(tmp_path / "a.jsonl"), "--output", output, *FLAGS]) == 3
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert "Check that the path exists" in message


def test_vocabulary_into_a_file_is_refused(tmp_path, capsys):
    write_jsonl(tmp_path / "a.jsonl", [SENTENCES] * 9)
    arguments = ["vocab", "--input", str(tmp_path / "a.jsonl"), "--output", str(tmp_path / "a.jsonl")]
    assert main(arguments) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_given_tokenizer_that_does_not_know_the_text_is_refused_before_instances(tmp_path, capsys, tokenizer_folder):
    write_jsonl(tmp_path / "a.jsonl", ["\uc548\ub155 \uc138\uacc4. \uc798 \uc9c0\ub0c8\ub2c8? \uc751."] * 9)
    flags = ("--input", str(tmp_path / "a.jsonl"), "--tokenizer", str(tokenizer_folder))
    code, message = run_build(tmp_path, capsys, *flags)
    assert code == 3
    assert "of the words become [UNK]" in message
    assert "leave --tokenizer out" in message
    assert_nothing_to_read(tmp_path)
