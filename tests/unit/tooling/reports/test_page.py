"""The page about a fine-tuning and about a grid."""

import base64
import os
import re

import pytest
from unit.downstream.finetuning.test_comparison import RIGHT, write_finetuning, write_grid

from megabert.cli import main


def test_page_of_a_grid_has_its_picture_tables_and_errors(tmp_path, capsys):
    grid = write_grid(tmp_path / "<grid>", ["no", *RIGHT[1:]])
    png, page = tmp_path / "scores.png", tmp_path / "page.html"
    assert main(["report", str(grid), "--html", str(page), "--png", str(png)]) == 0
    text = page.read_text()
    pictures = re.findall('<img alt="[^"]+" src="data:image/png;base64,([^"]+)">', text)
    assert [base64.b64decode(one) for one in pictures] == [png.read_bytes()]
    assert re.findall("<h2>(.+)</h2>", text) == ["The choices", "Every setting", "rte", "mine"]
    assert "&lt;grid&gt;" in text
    assert "<grid>" not in text
    assert text.count("dev: 1 of 6 are not exact") == 2
    assert "<summary>grid.json</summary>" in text
    printed = capsys.readouterr().out
    assert f"page: {page}" in printed
    assert re.search(r"mine +dev +accuracy +83.33 +50.00 +0.001 +3", printed)
    assert "mean  2 of 2 sets" in printed


def test_page_of_a_fine_tuning_has_its_scores_and_settings(tmp_path, megabert):
    folder, page = write_finetuning(tmp_path / "one", ["no", *RIGHT[1:]]), tmp_path / "page.html"
    megabert("report", folder, "--html", page)
    text = page.read_text()
    assert "dev: 1 of 6 are not exact" in text
    assert "<summary>finetune.json</summary>" in text
    assert "<img" not in text


def test_page_names_a_folder_that_is_not_utf_8(tmp_path, megabert):
    page = tmp_path / "page.html"
    folder = write_finetuning(tmp_path / "a", RIGHT).rename(tmp_path / os.fsdecode(b"a\xff"))
    megabert("report", folder, "--html", page)
    assert r"<title>a\udcff</title>" in page.read_text()


@pytest.mark.parametrize("flag", ["--html", "--png"])
def test_page_in_the_place_of_the_results_is_refused(flag, tmp_path, megabert):
    grid = write_grid(tmp_path / "grid", RIGHT)
    before = (grid / "results.json").read_bytes()
    assert "which this command reads" in megabert("report", grid, flag, grid / "results.json", code=2).err
    assert (grid / "results.json").read_bytes() == before
