"""The names of a head's parameters in ``transformers``, as data, where they differ from ours."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from megabert.errors import ConfigError
from megabert.models.key_maps import to_ours

_DENSE_AND_OUT = (("bert.pooler.dense.", "classifier.dense."), ("classifier.", "classifier.out_proj."))

HEAD_NAMES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("roberta", "SequenceClassification"): _DENSE_AND_OUT,
    ("electra", "SequenceClassification"): _DENSE_AND_OUT,
    ("electra", "MultipleChoice"): (
        ("bert.pooler.dense.", "sequence_summary.summary."),
        ("classifier.", "classifier."),
    ),
}
"""Beginnings of names, ours and theirs, for a family and a head. In other families the pooler is the encoder's own."""


NO_CLASS = {("deberta", "MultipleChoice"): "deberta-v2"}
"""Heads that ``transformers`` has no class for, and the nearest family that it has one for."""


def take_head(
    state: Mapping[str, Tensor], family: str, architecture: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a fine-tuned model into its encoder, by our names, and its head, by their names."""
    pairs = HEAD_NAMES.get((family, architecture), ())
    encoder: dict[str, Tensor] = {}
    head: dict[str, Tensor] = {}
    for name, value in state.items():
        theirs = _renamed(name, pairs)
        if theirs is None and name.startswith("bert."):
            encoder[name] = value
        else:
            head[theirs or name] = value
    return encoder, head


def head_by_our_names(head: Mapping[str, Tensor], family: str, architecture: str) -> dict[str, Tensor]:
    """Rename the parameters that a pre-training model lacks: the head, and the pooler of a family without one."""
    # Longer names first: "classifier.out_proj." begins with "classifier.".
    pairs = [(theirs, ours) for ours, theirs in HEAD_NAMES.get((family, architecture), ())]
    pairs.sort(key=lambda pair: -len(pair[0]))
    return {_renamed(name, pairs) or to_ours(name, family): value for name, value in head.items()}


def _renamed(name: str, pairs: Sequence[tuple[str, str]]) -> str | None:
    """Replace the beginning of a name by the first of the pairs that has it; None where none has."""
    return next((new + name.removeprefix(old) for old, new in pairs if name.startswith(old)), None)


def architecture_of(family: str, head: str) -> str:
    """Return the name of the class that ``transformers`` has for a family and a head.

    Raises:
        ConfigError: There is none.
    """
    if (family, head) in NO_CLASS:
        raise ConfigError(
            f"family {family}: transformers has no class of it for {head}, so the result could not be loaded. Take a "
            f"model of another family, such as {NO_CLASS[family, head]}."
        )
    return f"{''.join(part.capitalize() for part in family.split('-'))}For{head}"
