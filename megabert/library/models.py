"""Models and their fine-tuning, as functions."""

# S tokens of a text, D hidden, E embedding, L layers, N heads

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.downstream.export.model_folder import find_model
from megabert.downstream.export.sources import Source, find_device, open_source
from megabert.downstream.finetuning.classifier import Classifier
from megabert.downstream.finetuning.finetune import finetune
from megabert.downstream.finetuning.saved_model import read_saved_model
from megabert.downstream.finetuning.seed_results import SETTINGS_NAME, Summary
from megabert.downstream.finetuning.tasks import find_task, refuse_idle_settings
from megabert.downstream.inspection.attention import AttentionRecord, record_attention
from megabert.downstream.inspection.embed import embed_texts
from megabert.downstream.inspection.encode_text import RankedPiece, encode_text
from megabert.downstream.inspection.fill_mask import fill_mask, next_sentence
from megabert.downstream.inspection.pseudo_likelihood import Scores, score_texts
from megabert.downstream.inspection.similar import nearest, parse_queries, word_embeddings, word_ids
from megabert.foundation.errors import ConfigError
from megabert.models.bert import PretrainingModel
from megabert.models.electra import ElectraForPreTraining
from megabert.observability.logs import quiet
from megabert.settings.command_line.arguments import CopyMask, Device, VectorPooling, checks_arguments
from megabert.settings.config.extensions import require_recorded
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import merge_layers
from megabert.tokens.tokenization.written import readable_pieces


class Tokens(NamedTuple):
    """A text, or a pair of texts, as the model reads it: S tokens, special ones included."""

    pieces: list[str]
    """The S pieces as people read them."""
    ids: NDArray[np.int64]
    """Their ids, of shape (S,)."""


@checks_arguments
def load_model(name: str | Path, *, checkpoint: str = "last", device: Device = "auto") -> "Model":
    """Load a model with its tokenizer.

    Args:
        name: A run folder, a folder in Hugging Face form of any family, or the name of a shipped model, ``english`` or
            ``korean``.
        checkpoint: The checkpoint of a run folder: ``last``, ``best`` or a step.
        device: Where it runs; ``auto`` takes a GPU if there is one.

    Raises:
        ConfigError: There is no such model, or no GPU for ``cuda``.
        CheckpointError: The weights are missing or damaged, or do not fit ``config.json``.
        DataError: The tokenizer does not fit the model.

    Example:
        >>> model = load_model("english")
        >>> guesses = model.fill_mask("It was built in the 19th [MASK].")
        >>> guesses[0][0].piece
        'century'
    """
    return Model(open_source(str(name), checkpoint), device=device)


class Model:
    """A pre-trained encoder with its tokenizer, and the heads that its weights have. `load_model` makes one.

    A ``[MASK]`` in a text (``<mask>`` in some vocabularies) is the mask in `tokenize`, `attention` and `fill_mask`, and
    plain text elsewhere. Outputs that are NaN or infinite raise a CheckpointError, one text in place of a list a
    ConfigError.
    """

    @checks_arguments
    def __init__(self, source: Source, *, device: Device = "auto") -> None:
        self._source, self._device = source, find_device(device)
        self._tokenizer = source.load_tokenizer()  # before the weights, whose size it has to fit
        self._network = source.build_model().to(self._device)
        self._heads: set[str] = set()

    @checks_arguments
    def tokenize(self, text: str, second: str | None = None) -> Tokens:
        """Return the pieces and ids of ``[CLS] text [SEP]``, or of ``[CLS] text [SEP] second [SEP]``.

        Raises:
            ConfigError: There are more tokens than the model was trained on.

        Example:
            >>> load_model("english").tokenize("The unsinkable ship.").pieces
            ['[CLS]', 'the', 'un', '##s', '##ink', '##able', 'ship', '.', '[SEP]']
        """
        ids = encode_text(self._tokenizer, text, second, limit=self._source.longest).ids
        return Tokens(readable_pieces(self._tokenizer, ids.tolist()), ids)

    @checks_arguments
    def embed(self, texts: Sequence[str], *, pooling: VectorPooling | None = None) -> NDArray[np.float32]:
        """Return a vector for each text, of shape (texts, D): its last hidden states, pooled.

        A folder of sentence-transformers gives the vectors of its modules, whose width may be another one than D.

        Args:
            texts: The texts; an empty one is ``[CLS] [SEP]``.
            pooling: ``mean`` of all tokens, [CLS] and [SEP] included, or ``cls``, the vector of [CLS]. None does what
                ``modules.json`` of the folder says, and is ``mean`` without one.

        Raises:
            ConfigError: A text has more tokens than the model reads, or a module is not known here.
        """
        form = self._source.pooled(pooling) if pooling else self._source.vector_form
        if form.has_tokens:
            raise ConfigError("the folder's modules give each token a vector. Use embed_tokens, or state a pooling.")
        vectors = embed_texts(self._network, self._tokenizer, texts, form=form)
        return np.array(vectors, np.float32).reshape(-1, form.width(self._source.model.hidden_size))

    @checks_arguments
    def embed_tokens(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """Return the last hidden states of each text's tokens, special ones included: arrays of shape (S, D).

        Raises:
            ConfigError: A text has more tokens than the model was trained on.
        """
        return embed_texts(self._network, self._tokenizer, texts, form=self._source.pooled("tokens"))

    @checks_arguments
    def embed_words(self, words: Sequence[str]) -> NDArray[np.float32]:
        """Return the word embeddings, the rows of the embedding matrix, of shape (words, E).

        A word of several pieces is the mean of these. E is D, unless the model has embeddings of another width, as an
        ALBERT has.

        Raises:
            ConfigError: The vocabulary cannot write a word.
        """
        table_VD = word_embeddings(self._network, self._tokenizer)
        rows = [table_VD[word_ids(word, self._tokenizer)].mean(0) for word in words]
        return np.array(rows, np.float32).reshape(-1, table_VD.shape[1])

    @checks_arguments
    def nearest(self, query: str, *, top_k: int = 10) -> list[RankedPiece]:
        """Return the pieces whose word embeddings have the greatest cosine with a word's, best first.

        Args:
            query: A word, or a sum of words such as ``"king - man + woman"``, with spaces around the operators.
            top_k: Number of pieces.

        Raises:
            ConfigError: The vocabulary cannot write a word, or the query is no word and no sum.
        """
        queries = parse_queries([query])
        if len(queries) > 1:
            raise ConfigError(f"{query!r}: {len(queries)} words without an operator between them. Put + or - there.")
        embeddings_VD = word_embeddings(self._network, self._tokenizer).astype(np.float64)
        return nearest(queries[0], embeddings_VD, self._tokenizer, top_k=top_k)

    @checks_arguments
    def attention(self, text: str, second: str | None = None) -> AttentionRecord:
        """Return the record of every layer's attention on a text or a pair of texts.

        Its ``pieces`` are the S tokens, its ``probabilities()`` a tensor of shape (L, N, S, S) whose rows attend to the
        columns and add up to 1.

        Raises:
            ConfigError: There are more tokens than the model was trained on.
        """
        return record_attention(self._network, self._tokenizer, text, second, longest=self._source.longest)

    @checks_arguments
    def fill_mask(self, text: str, *, top_k: int = 5) -> list[list[RankedPiece]]:
        """Return the guesses for each ``[MASK]`` of a text from left to right, best first, with their probabilities.

        All masks are guessed at once, none knows the others.

        Raises:
            ConfigError: The text has no mask, or more tokens than the model was trained on.
            CheckpointError: The weights have no masked-LM head.
        """
        network = self._with_head("fills_masks")
        return fill_mask(network, self._tokenizer, text, top_k=top_k, longest=self._source.longest)

    @checks_arguments
    def score(self, texts: Sequence[str], *, mask: CopyMask = "within-word") -> Scores:
        """Return each text's pseudo-log-likelihood in nats (Salazar et al. 2020), and its number of pieces.

        Args:
            texts: The texts. In a text longer than the model was trained on, each piece is seen with the nearest
                pieces.
            mask: ``within-word`` also masks the later pieces of the same word (Kauf and Ivanova 2023), ``token`` masks
                each piece alone.

        Raises:
            CheckpointError: The weights have no masked-LM head.
        """
        network = self._with_head("fills_masks")
        scored = network.generator if isinstance(network, ElectraForPreTraining) else network
        return score_texts(scored, self._tokenizer, texts, longest=self._source.longest, mask=mask)

    @checks_arguments
    def next_sentence(self, first: str, second: str) -> float:
        """Return the probability that the second text follows the first; of an ALBERT, that the two are in order.

        Raises:
            ConfigError: The family is not trained on pairs, as ModernBERT and RoBERTa are not; or there are more tokens
                than the model was trained on.
            CheckpointError: The weights have no head for pairs.
        """
        network = self._with_head("judges_pairs")
        return next_sentence(network, self._tokenizer, first, second, longest=self._source.longest)

    def _with_head(self, need: Literal["fills_masks", "judges_pairs"]) -> PretrainingModel:
        """Return the network, once it is known that its weights have a head; until then the head may be random."""
        if need not in self._heads:
            self._network = self._source.build_model(**{need: True}).to(self._device)
            self._heads.add(need)
        return self._network


@checks_arguments
def fine_tune(
    task: str,
    *,
    model: str | Path,
    data: str | Path,
    output_dir: str | Path,
    device: Device = "auto",
    progress: bool = False,
    **settings: Any,
) -> Summary:
    """Train a head and the encoder on labelled files, score them, and write both to a folder: `megabert finetune`.

    The same call on the same folder continues it, and returns the summary of a finished one at once.

    Args:
        task: A task by its name, such as ``classification``.
        model: The weights to start from, as in `load_model`.
        data: A labelled file, or a folder with ``train.*`` and ``dev.*``.
        output_dir: A new folder for results and models, or the folder of the same fine-tuning.
        device: Where it runs; ``auto`` takes a GPU if there is one.
        progress: Whether to print the messages of the command.
        settings: Fields of `megabert finetune --print-config`, such as ``epochs=2, learning_rate=1e-4``.

    Returns:
        Summary with the scores as fractions: ``mean["dev"]["accuracy"]``, in ``baseline`` the best constant answer's,
        and in ``best_model`` the folder for `load_classifier`.

    Raises:
        ConfigError: The task, the model or a setting is wrong; the message names it and the nearest known one.
        DataError: A file or a label is wrong, such as a label that the training file does not have.
        CheckpointError: The weights are wrong, or the folder holds another fine-tuning.

    Example:
        >>> summary = fine_tune("classification", model="english", data="labelled", output_dir="runs/judge", epochs=1)
        >>> load_classifier(summary.best_model).labels
        ('land', 'sea')
    """
    config = merge_layers(FinetuneConfig, {**settings, "model": str(model), "data": str(data)})
    require_recorded(Path(output_dir) / SETTINGS_NAME, "package")
    known = find_task(task, config)
    refuse_idle_settings(settings, [known], config, are_folders=Path(data).is_dir())
    with quiet(unless=progress):
        summary = finetune(known, config, Path(output_dir), device=device)
    gc.collect()  # as in `pretrain`
    return summary


@checks_arguments
def load_classifier(folder: str | Path, *, device: Device = "auto") -> Classifier:
    """Load a fine-tuned classifier, written by megabert or by another program.

    Args:
        folder: The folder of the model, such as ``Summary.best_model``.
        device: Where it runs; ``auto`` takes a GPU if there is one.

    Raises:
        ConfigError: There is no such folder, or it is of another task.
        CheckpointError: The weights are wrong, or have no head with these labels.
    """
    return Classifier(read_saved_model(find_model(str(folder))), device=find_device(device))
