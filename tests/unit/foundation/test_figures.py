import warnings

import pytest

from megabert.foundation import figures


def figure_of(text: str) -> figures.Figure:
    figure = figures.Figure(figsize=(1, 1))
    figure.subplots().set_title(text)
    return figure


def test_text_gets_the_installed_ones_of_the_fonts(monkeypatch):
    monkeypatch.setattr(figures, "CJK_FONTS", ("no such font", "cmr10"))
    figure = figure_of("a")
    assert figures.png_of(figure).startswith(b"\x89PNG")
    assert figure.axes[0].title.get_fontfamily() == ["sans-serif", "cmr10"]


@pytest.mark.parametrize(("text", "sentences"), [("\ud559\uc2b5", 1), ("training", 0)])
def test_letters_that_no_font_has_are_one_sentence(text, sentences, monkeypatch, caplog):
    monkeypatch.setattr(figures, "CJK_FONTS", ("no such font",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures.png_of(figure_of(text))
    assert [record.getMessage() for record in caplog.records] == [
        "A picture has letters that no font here has. Install one of: no such font."
    ] * sentences
