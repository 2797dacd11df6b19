"""Word embeddings of a generator and a discriminator: one table, two, or one and a difference (He et al. 2023).

Generator and discriminator pull their embeddings in different directions: a masked LM wants words of like meaning close
together, replaced-token detection wants them apart. Gradient-disentangled sharing lets the discriminator use the
generator's table, and does not let it pull: its table is ``stop_gradient(table) + difference``, and it trains the
difference, which begins at zero (section 3.3). Exports hold two whole tables.

In a phase without replaced tokens both models are masked LMs that predict by the generator's head, whose decoder is the
generator's table: there the discriminator trains it too, under every form.
"""

# T packed tokens, V vocabulary, E embedding width

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from megabert.foundation.errors import CheckpointError
from megabert.ops.dense import embedding

WORDS = "bert.embeddings.word_embeddings.weight"
"""Within a model, the table of the discriminator, or the generator's that the difference is added to."""
DIFFERENCE = "bert.embeddings.word_embeddings.difference"
"""Added to it."""
GENERATOR = "generator."
"""Prefix of the generator's parameters within a model."""
GENERATOR_WORDS = f"{GENERATOR}{WORDS}"
"""The generator's table if the discriminator has one of its own, and so outside of a run."""


class DisentangledEmbedding(nn.Embedding):
    """A table that this module does not train, plus a difference that it does.

    Args:
        rows: V, padding included.
        width: E.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__(rows, width)
        self.difference = nn.Parameter(torch.zeros(rows, width))

    def forward(self, ids_T: Tensor) -> Tensor:
        """Return the embeddings of tokens, of shape (T, E)."""
        # Two lookups: the sum of the tables would be another table, of which a batch reads few rows.
        return embedding(ids_T, self.weight.detach()) + embedding(ids_T, self.difference)


def table_of(words: nn.Embedding) -> Tensor:
    """Return the table that an embedding looks up in, of shape (V, E)."""
    return words.weight + words.difference if isinstance(words, DisentangledEmbedding) else words.weight


def whole_tables(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a run's parameters with a whole table for each model in place of the difference, if there is one."""
    rest = {name: value for name, value in state.items() if name != DIFFERENCE}
    if len(rest) == len(state):
        return rest
    return {**rest, WORDS: state[WORDS] + state[DIFFERENCE], GENERATOR_WORDS: state[WORDS]}


def trained_tables(state: Mapping[str, Tensor], parameters: Collection[str]) -> dict[str, Tensor]:
    """Return whole tables as the tables that a model trains, the inverse of `whole_tables`.

    Args:
        state: Parameters by our names, of a model that may have shared its tables in another way.
        parameters: Names of the model's parameters.

    Raises:
        CheckpointError: The source has a table for each of generator and discriminator, and the model one for both.
    """
    if DIFFERENCE in state or WORDS not in state:
        return dict(state)
    rest = {name: value for name, value in state.items() if name != GENERATOR_WORDS}
    generators = state.get(GENERATOR_WORDS, state[WORDS])
    if DIFFERENCE in parameters:
        return {**rest, WORDS: generators, DIFFERENCE: state[WORDS] - generators}
    if not all(any(name.startswith(GENERATOR) for name in names) for names in (state, parameters)):
        return dict(state)
    if GENERATOR_WORDS in parameters:
        return {**rest, GENERATOR_WORDS: generators}
    if not torch.equal(generators, state[WORDS]):
        raise CheckpointError(
            "generator and discriminator have a table of words each, and model.embedding_sharing=shared has one for "
            "both: set it to disentangled or separate"
        )
    return rest
