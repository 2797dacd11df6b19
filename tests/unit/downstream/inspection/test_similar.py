import numpy as np
import pytest

from megabert.downstream.inspection.similar import nearest, parse_queries, render_neighbours
from megabert.foundation.errors import ConfigError

# [PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat [ ] mask . ##s
SPECIAL = [[9.0, 0.0, 0.0]] * 5
WORDS = {"the": [0, 0, 2], "cat": [1, 0, 0], "dog": [1, 0.1, 0], "sat": [0, 1, 0], "[": [0, -1, 0], "]": [-1, 0, 0]}
REST = {"mask": [0.5, 0.5, 0], ".": [0, 0, -1], "##s": [0, 3, 0]}
EMBEDDINGS = np.array([*SPECIAL, *WORDS.values(), *REST.values()], np.float64)


@pytest.mark.parametrize(
    ("words", "queries"),
    [
        (["ship"], ["ship"]),
        (["ship", "sea"], ["ship", "sea"]),
        (["king", "-", "man", "+", "woman", "sea"], ["king - man + woman", "sea"]),
        (["king - man  + woman"], ["king - man + woman"]),
        (["-", "man", "+", "woman"], ["- man + woman"]),
        (["well-known"], ["well-known"]),
    ],
)
def test_words_and_operators_become_queries(words, queries):
    assert [str(query) for query in parse_queries(words)] == queries


@pytest.mark.parametrize("words", [["+"], ["king", "-"], ["king", "+", "-", "man"], [" "]])
def test_operators_without_words_are_refused(words):
    with pytest.raises(ConfigError, match="word"):
        parse_queries(words)


def ask(text, tokenizer, **options):
    return nearest(parse_queries([text])[0], EMBEDDINGS, tokenizer, **options)


def test_nearest_are_by_cosine_without_the_word_and_special_pieces(tokenizer):
    neighbours = ask("cat", tokenizer, top_k=3)
    assert [neighbour.piece for neighbour in neighbours] == ["dog", "mask", "the"]
    assert neighbours[0].score == pytest.approx(1 / np.sqrt(1.01))
    assert len(ask("cat", tokenizer, top_k=99)) == len(EMBEDDINGS) - 5 - 1


def test_a_word_of_several_pieces_is_their_mean(tokenizer):
    neighbours = ask("cats", tokenizer, top_k=1)  # (cat + ##s) / 2 = (0.5, 1.5, 0)
    assert neighbours[0].piece == "sat"
    assert neighbours[0].score == pytest.approx(1.5 / np.sqrt(2.5))


def test_sums_are_of_unit_vectors(tokenizer):
    neighbours = ask("cat + the - sat", tokenizer, top_k=1)  # (1, -1, 1), though "the" has length 2
    assert neighbours[0].piece == "["
    assert neighbours[0].score == pytest.approx(1 / np.sqrt(3))


@pytest.mark.parametrize(("text", "message"), [("zebra", r"'zebra'.*becomes \[UNK\]"), ("cat - cat", "cancel out")])
def test_queries_without_a_vector_are_refused(text, message, tokenizer):
    with pytest.raises(ConfigError, match=message):
        ask(text, tokenizer)


def test_table_shows_how_a_word_is_cut(tokenizer):
    query = parse_queries(["cats + dog"])[0]
    text = render_neighbours(query, nearest(query, EMBEDDINGS, tokenizer, top_k=1), tokenizer)
    assert text.splitlines()[0] == "cats + dog   (cats = cat ##s)"


def test_command_finds_the_plural_of_a_real_model(minilm_folder, megabert):
    printed = megabert("similar", "--model", minilm_folder, "--top", "3", "ship", "france - paris + berlin").out
    first, second = printed.strip().split("\n\n")
    assert "ships" in first
    assert "germany" in second
    assert "becomes [UNK]" in megabert("similar", "--model", minilm_folder, "\u1234", code=2).err
