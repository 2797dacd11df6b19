"""The pictures of the documentation are drawn from the functions that they explain."""

import pytest

from benchmarks import pictures


@pytest.mark.parametrize(
    ("name", "picture", "texts"),
    [
        (
            "packing.svg",
            pictures.packing,
            ["Padded to 128: 65% real tokens", "Packed: 99% real tokens", "rank 1, micro-step 2"],
        ),
        ("schedule.svg", pictures.schedule, ["length 128", "length 512", "60,000", "learning rate"]),
    ],
)
def test_picture_shows_the_figures_of_the_page(name, picture, texts, tmp_path, monkeypatch):
    committed = (pictures.DOCS / name).read_text(encoding="utf-8")
    monkeypatch.setattr(pictures, "DOCS", tmp_path)
    pictures.draw(name, (8, 4), picture)
    drawn = (tmp_path / name).read_text(encoding="utf-8")
    assert not [text for text in texts if text not in drawn or text not in committed]
