"""Nearest word embeddings by cosine, with ``a - b + c``."""

# V vocabulary, D hidden, E embedding

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.downstream.inspection.encode_text import RankedPiece, best_pieces
from megabert.foundation.errors import ConfigError
from megabert.models.bert import PretrainingModel
from megabert.models.embedding_sharing import table_of
from megabert.settings.command_line.arguments import checks_arguments
from megabert.tokens.tokenization import Tokenizer
from megabert.tokens.tokenization.written import readable_pieces


class Query(NamedTuple):
    """A sum of signed words."""

    terms: tuple[tuple[int, str], ...]
    """Pairs of a sign, +1 or -1, and a word."""

    def __str__(self) -> str:
        (first_sign, first), *others = self.terms
        return ("- " if first_sign < 0 else "") + first + "".join(f" {'-+'[s > 0]} {word}" for s, word in others)


def parse_queries(words: Sequence[str]) -> list[Query]:
    """Read words and the operators between them; words without an operator between them are queries of their own.

    Args:
        words: Words and operators, such as ``["king", "-", "man", "+", "woman"]``; an item may hold several.

    Raises:
        ConfigError: An operator has no word after it, or there is no word at all.
    """
    queries: list[list[tuple[int, str]]] = []
    sign = 0  # of the operator before the word; 0 without one
    for word in " ".join(words).split():
        if word in ("+", "-"):
            if sign:
                raise ConfigError(f"{' '.join(words)!r}: two operators follow each other. Put a word between them.")
            sign = 1 if word == "+" else -1
            continue
        if sign and queries:
            queries[-1].append((sign, word))
        else:
            queries.append([(sign or 1, word)])
        sign = 0
    if sign or not queries:
        raise ConfigError(f"{' '.join(words)!r}: a word is missing. Write words, or a sum such as: king - man + woman")
    return [Query(tuple(terms)) for terms in queries]


def word_embeddings(model: PretrainingModel, tokenizer: Tokenizer) -> NDArray[np.float32]:
    """Return the rows of the embedding matrix, of shape (V, E); E is D, unless the model has another width for them."""
    weight = table_of(model.bert.embeddings.word_embeddings)
    return weight[: tokenizer.vocab_size].detach().float().cpu().numpy()  # type: ignore[no-any-return]


@checks_arguments
def nearest(
    query: Query, embeddings_VD: NDArray[np.floating], tokenizer: Tokenizer, *, top_k: int = 10
) -> list[RankedPiece]:
    """Return the pieces whose embeddings have the greatest cosine with the query's.

    Each word is the mean of its pieces' embeddings, scaled to length 1 before the words are added: otherwise frequent
    words, whose embeddings are shorter, would count less. Special pieces and the query's own pieces are left out.

    Args:
        query: Signed words to add.
        embeddings_VD: Word embeddings, one row for each piece.
        tokenizer: The model's tokenizer.
        top_k: Number of pieces to return.

    Raises:
        ConfigError: The vocabulary cannot write a word, or the sum is zero.
    """
    unit_VD = embeddings_VD / np.maximum(np.linalg.norm(embeddings_VD, axis=1, keepdims=True), 1e-12)
    excluded = set(tokenizer.special_ids)
    total_D = np.zeros(embeddings_VD.shape[1])
    for sign, word in query.terms:
        ids = word_ids(word, tokenizer)
        excluded.update(ids)
        mean_D = embeddings_VD[ids].mean(axis=0)
        total_D += sign * mean_D / np.linalg.norm(mean_D)
    length = np.linalg.norm(total_D)
    if not length >= 1e-6:  # NaN if a word's embedding is zero
        raise ConfigError(f"{query}: the words cancel out, nothing is left to compare with. Use different words.")
    # All rows have length 1, so one product is the cosine with every piece (Mikolov et al. 2013, section 4.1).
    cosine_V = unit_VD @ (total_D / length)
    cosine_V[list(excluded)] = -np.inf
    return best_pieces(cosine_V, tokenizer, top_k)


def word_ids(word: str, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a word's pieces.

    Raises:
        ConfigError: The vocabulary cannot write the word.
    """
    ids = tokenizer.encode_words([word])[0].tolist()
    unknown = tokenizer.special_ids.unk
    if not ids or unknown in ids:
        written = " ".join(readable_pieces(tokenizer, ids)) or "nothing"
        raise ConfigError(
            f"{word!r}: the vocabulary of {tokenizer.where} cannot write this word; it becomes {written}. Use a word "
            "in the script and language that the model was trained on."
        )
    return ids


def render_neighbours(query: Query, neighbours: Sequence[RankedPiece], tokenizer: Tokenizer) -> str:
    """Return a plain-text table: the query with its pieces, then one line for each neighbour."""
    pieces = [readable_pieces(tokenizer, word_ids(word, tokenizer)) for _, word in query.terms]
    cut = [f"{word} = {' '.join(own)}" for (_, word), own in zip(query.terms, pieces, strict=True) if len(own) > 1]
    lines = [str(query) + (f"   ({'; '.join(cut)})" if cut else "")]
    return "\n".join([*lines, *(f"  {near.score:6.3f}  {near.piece}" for near in neighbours)])
