import gzip

import pytest

from data_prep.config.build import SourceConfig
from data_prep.extract.first_look import SIGNATURES, count_wrapped, warn_of_likely_mistakes
from data_prep.extract.inputs import find_files
from megabert.foundation.errors import DataError

WRAPPED = "The ship had left the harbour before the dawn and\nnobody on the quay had slept.\n\n" * 60
UNWRAPPED = "The ship had left the harbour before the dawn and nobody on the quay had slept.\nIt rained.\n\n" * 60
POEM = "The ship had left the harbour before dawn,\nAnd nobody on the quay had slept that night,\n" * 60
KOREAN = "\ubc30\ub294 \uc0c8\ubcbd\uc774 \ub418\uae30 \uc804\uc5d0 " * 4 + "\n"


def files_of(path, **options):
    return find_files((SourceConfig(input=str(path), **options),))


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
@pytest.mark.parametrize("signature", [signature for signature, _, _ in SIGNATURES], ids=range(len(SIGNATURES)))
def test_files_that_are_not_text_are_told_by_their_first_bytes(tmp_path, signature, suffix):
    content = signature + bytes(range(256))
    (tmp_path / f"a{suffix}").write_bytes(gzip.compress(content) if suffix == ".txt.gz" else content)
    with pytest.raises(DataError, match=rf"a{suffix}: is .*, not text\. [A-Z].*\.$"):
        files_of(tmp_path / f"a{suffix}", format="text")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_named(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes(UNWRAPPED.encode(encoding))
    with pytest.raises(DataError, match=f"--encoding {encoding}"):
        files_of(tmp_path / "a.txt")
    assert files_of(tmp_path / "a.txt", encoding=encoding)


def test_wrapped_lines_are_warned_of_once_a_source(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(WRAPPED)
    (tmp_path / "b.txt").write_text(WRAPPED)
    warn_of_likely_mistakes(files_of(tmp_path / "*.txt"))
    (line,) = capsys.readouterr().err.splitlines()
    assert "a.txt (and 1 more files)" in line
    assert "--format book" in line
    warn_of_likely_mistakes(files_of(tmp_path / "*.txt", format="book"))
    assert not capsys.readouterr().err


def test_files_are_gone_through_once_however_many_sources_there_are(tmp_path, capsys):
    class Counted(list):
        times = 0

        def __iter__(self):
            self.times += 1
            return super().__iter__()

    paths = [tmp_path / f"{number}.txt" for number in range(5)]
    for path in paths:
        path.write_text(WRAPPED)
    files = Counted(find_files(tuple(SourceConfig(input=str(path)) for path in paths)))
    warn_of_likely_mistakes(files)
    assert files.times == 1
    assert len(capsys.readouterr().err.splitlines()) == len(paths)


@pytest.mark.parametrize("text", [UNWRAPPED, POEM, "a list\nof words\n" * 200, ""], ids=range(4))
def test_whole_lines_are_not_taken_for_wrapped(text):
    inside, ends = count_wrapped(text)
    assert inside <= ends / 2


def test_wrapped_lines_without_case_are_told():
    assert count_wrapped(KOREAN * 10) == (9, 9)
