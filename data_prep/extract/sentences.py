"""Sentences, by the rules of the Wikimedia Foundation's ``sentencex``, in linear time.

It has rules for about 30 languages, cuts many others as a related language, and cuts the rest as English.

For each full stop the library looks back to the last white space, which in Chinese or Japanese is the start of the
paragraph. Long words are therefore broken up before the call, where that cannot change a sentence. Quotation marks and
lists are looked for over whole paragraphs, so a paragraph that is too long for that is read in windows that overlap.

How long the library takes for a paragraph is estimated before it is called: for each mark it may search the whole
paragraph, for the end of a quotation that never ends or for the start of a word that is as long as the paragraph. In
text as people write it few marks do.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise

import numpy as np
import sentencex
from numpy.typing import NDArray

from data_prep.config.languages import KNOWN

ENGLISH_RULES = "en"
"""Rules for sentences of a language whose code is not known here; the splitter takes the same for any word."""
PARAGRAPH_BREAK = "\n\n"
"""What ends a paragraph for sentencex."""
WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")
"""White space that takes several bytes."""
NUMBER = re.compile(r"\d+\.\s+")
"""What sentencex takes for sentences: the start of a date ("2023. 5. 12."), the number of an item of a list."""
WINDOW = 1 << 18
"""Characters that sentencex reads as one paragraph at most."""
SMALL_WINDOW = 1 << 12
"""Likewise, in a paragraph on which it would take long. Shorter paragraphs are never cut."""
MAX_STEPS = 100
"""Characters that it may read again for each character of a paragraph before that is called long."""
TAKEN = 0.75
"""Share of a window whose sentences are taken. The rest of the window is there for the marks that open in them, and is
read again. No sentence is left longer than a window: it is cut at white space or, without any, anywhere."""
_PAIRS = "\u00ab\u00bb \u00bb\u00ab \u2018\u2019 \u201c\u201d \u201e\u201c \u2039\u203a \u300a\u300b \u300c\u300d"
QUOTES = (*((pair[0], pair[1]) for pair in _PAIRS.split()), ("``", "''"))
"""Opening and closing marks of sentencex that differ. Marks that do not differ close the mark before them."""
# The typewriter's marks are apostrophes as well: what may open and what may close depends on the letters around them.
SINGLE_OPENS, SINGLE_CLOSES = re.compile(r"(?<!\w)'"), re.compile(r"(?<=\S)'(?!\w)")
SINGLE_RUNS = re.compile(r"[`']{3,}")
MIN_CLOSED_SHARE = 0.5
FULL_STOPS = re.compile(r"[.!?]+")
COUNTING = 0.1
"""Share of a step that one character takes where marks are only counted."""
_FROM_THE_START = "it aae co egl eml fur lij lld lmo nap pms rgn roa-tara scn sdc sro vec"
FROM_THE_START = frozenset(_FROM_THE_START.split())
"""Languages in which each full stop takes all the text before it: Italian, and languages that fall back to it."""
# Ideographs and kana: words that begin with one are in no list of sentencex.
_IDEOGRAPHS = ((0x3041, 0x3096), (0x30A1, 0x30FA), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF))


def splitter_code(code: str) -> str:
    """Return the code that the splitter is given for a language: its own, or English if it is not known here.

    The splitter has rules for some of the known codes only, and cuts the others as English, too.
    """
    return code if code in KNOWN else ENGLISH_RULES


def split_sentences(paragraphs: list[str], language: str, content: bytes | None = None) -> list[str]:
    """Return the sentences of paragraphs in order, as sentencex finds them; none reaches over the end of a paragraph.

    White space may stay at the ends of sentences. A language without rules falls back to a related one.

    Args:
        paragraphs: The paragraphs of a document.
        language: Code of the rules.
        content: UTF-8 of all paragraphs with white space in between, if the caller has it.
    """
    content = PARAGRAPH_BREAK.join(paragraphs).encode() if content is None else content
    has_long_words = _loops()[0](np.frombuffer(content, np.uint8))
    sentences: list[str] = []
    whole: list[str] = []
    for paragraph in paragraphs:
        if len(paragraph) > SMALL_WINDOW:
            steps = mark_steps(paragraph, MAX_STEPS) + full_stop_steps(paragraph, language) + _broken(paragraph)[1]
            window = WINDOW if steps <= MAX_STEPS * len(paragraph) else SMALL_WINDOW
            if window < len(paragraph):
                sentences += _segment_whole(whole, language, has_long_words)
                sentences += _segment_windows(paragraph, language, window)
                whole = []
                continue
        whole.append(paragraph)
    return sentences + _segment_whole(whole, language, has_long_words)


def _segment_whole(paragraphs: list[str], language: str, has_long_words: bool) -> list[str]:
    """Return the sentences of paragraphs that are read as they are."""
    # All in one call, which costs less than one each: blank lines part them, and come back as such.
    sentences = _segment(PARAGRAPH_BREAK.join(paragraphs), language, has_long_words)
    return [sentence for sentence in sentences if sentence != PARAGRAPH_BREAK]


def _segment_windows(paragraph: str, language: str, window: int) -> Iterator[str]:
    """Yield the sentences of a paragraph that is longer than a window."""
    start, most = 0, int(window * TAKEN)
    while len(paragraph) - start > window:
        first = start
        for sentence in _segment(paragraph[start : start + window], language):
            if start + len(sentence) - first > most:
                break
            yield sentence
            start += len(sentence)
        if start == first:  # no sentence ends here
            end = _end_of_part(paragraph, start, start + most)
            yield paragraph[start:end]
            start = end
    yield from _segment(paragraph[start:], language)


def _end_of_part(paragraph: str, start: int, end: int) -> int:
    """Return where an endless sentence is cut: after white space, or before a character that is no combining mark."""
    space = paragraph.rfind(" ", (start + end) // 2, end)
    if space > 0:
        return space + 1
    while end > start + 1 and unicodedata.combining(paragraph[end]):
        end -= 1
    return end


def _segment(text: str, language: str, has_long_words: bool = True) -> list[str]:
    """Return the sentences of a text, and its paragraph breaks, whatever its words are like."""
    if not text:
        return []
    broken = _broken(text)[0] if has_long_words else text
    try:
        sentences = sentencex.segment(language, broken)
    except BaseException as error:  # as which Rust's panics come
        if type(error).__name__ != "PanicException":
            raise
        # It takes any white space before a full stop for one byte: "plan B\u00a0." So it cuts a text with plain spaces.
        broken = WIDE_SPACE.sub(" ", broken)
        sentences = sentencex.segment(language, broken)
    if broken is text:
        return _with_numbers(sentences)
    # The sentences as they are in the text; of a long one, some paragraph breaks do not come back.
    own, end = [], 0
    for sentence in sentences:
        start = broken.index(sentence, end)
        end = start + len(sentence)
        own.append(text[start:end])
    return _with_numbers(own)


def _with_numbers(sentences: list[str]) -> list[str]:
    """Return sentences, each with the numbers before it in its paragraph that would be sentences by themselves."""
    joined = sentences[:1]
    for before, sentence in pairwise(sentences):
        if NUMBER.fullmatch(before):  # the last one of a paragraph has no white space after it
            joined[-1] += sentence
        else:
            joined.append(sentence)
    return joined


def _broken(text: str) -> tuple[str, int]:
    """Return a text of equal length, and of equal sentences, whose long words are broken up by spaces.

    For each full stop sentencex takes the word before it, back to white space, "." or "/", and looks it up in lists of
    abbreviations and the like. A letter inside a long word becomes a space if no list can tell: its neighbours are
    letters, no "." follows soon, and the rest of the word either begins with an ideograph or kana or is far from
    the mark before it.

    Returns:
        The text, and how many bytes the words before all marks have that may end a sentence.
    """
    has_long_word, break_words, kinds = _loops()
    data = np.frombuffer(text.encode(), np.uint8)
    if not has_long_word(data):
        return text, 0
    data = data.copy()
    breaks, steps = break_words(data, kinds)
    return data.tobytes().decode() if breaks else text, steps


@cache
def _loops() -> tuple[Callable[..., bool], Callable[..., tuple[int, int]], NDArray[np.uint8]]:
    """Return the loops, and the kind of each character that they may meet."""
    from data_prep.extract import sentence_loops as loops

    by_category = {"Lo": loops.LETTER, "M": loops.MARK, "Z": loops.SPACE, "P": loops.PUNCTUATION}
    categories = [unicodedata.category(chr(code)) for code in range(0x10000)]
    kinds = np.array([by_category.get(name, by_category.get(name[0], 0)) for name in categories], np.uint8)
    for first, last in _IDEOGRAPHS:
        block = kinds[first : last + 1]
        block[block == loops.LETTER] = loops.IDEOGRAPH
    return loops.has_long_word, loops.break_words, kinds


def mark_steps(paragraph: str, most: int) -> float:
    """Return how many characters are searched for closing marks that do not come, about and at most.

    It is 0 for at most ``most`` marks in all, as nearly every paragraph has.
    """
    # The typewriter's marks count by themselves and, at most once more, as parts of a run.
    single, double = paragraph.count("`") + paragraph.count("'"), paragraph.count('"')
    if 2 * single + double + sum(paragraph.count(opening) for opening, _ in QUOTES) <= most:
        return 0
    length, steps = len(paragraph), 0.0
    for opening, closing in QUOTES:
        last = paragraph.rfind(closing) + 1
        steps += paragraph.count(opening, last) * (length - last)
    closed = [match.end() for match in SINGLE_CLOSES.finditer(paragraph)]
    last = closed[-1] if closed else 0
    steps += paragraph.count("`", last) * (length - last)
    opened = sum(1 for _ in SINGLE_OPENS.finditer(paragraph))
    if len(closed) < MIN_CLOSED_SHARE * opened:
        steps += opened * length
    # Marks of one kind are counted again after each one of another kind.
    steps += COUNTING * length * (min(double, opened) + min(paragraph.count("''"), max(double, opened)))
    return steps + length * sum(len(run) for run in SINGLE_RUNS.findall(paragraph))


def full_stop_steps(paragraph: str, language: str) -> float:
    """Return how many characters are read again for the full stops of a paragraph, without the long words' share."""
    if language not in FROM_THE_START:
        return 0
    return sum(1 for _ in FULL_STOPS.finditer(paragraph)) * len(paragraph) / 2
