"""Names of a head's parameters in ``transformers``, where they are not ours, as data."""

from collections.abc import Mapping

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
"""By family and head: beginnings of names, ours and theirs. Elsewhere the pooler is the encoder's own."""


NO_CLASS = {("deberta", "MultipleChoice"): "deberta-v2"}
"""Heads that ``transformers`` has no class for, and the nearest family that it has one for."""


def take_head(
    state: Mapping[str, Tensor], family: str, architecture: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a fine-tuned model into its encoder, by our names, and its head, by theirs."""
    pairs = _pairs(family, architecture)
    encoder: dict[str, Tensor] = {}
    head: dict[str, Tensor] = {}
    for name, value in state.items():
        found = next(((ours, theirs) for ours, theirs in pairs if name.startswith(ours)), None)
        if found is None and name.startswith("bert."):
            encoder[name] = value
        else:
            head[name if found is None else found[1] + name.removeprefix(found[0])] = value
    return encoder, head


def head_by_our_names(head: Mapping[str, Tensor], family: str, architecture: str) -> dict[str, Tensor]:
    """Rename what a folder holds beside the pre-training model: the head, and the pooler of a family without one."""
    renamed = {}
    # "classifier.out_proj." before "classifier.", which it begins with
    pairs = sorted(_pairs(family, architecture), key=lambda pair: -len(pair[1]))
    for name, value in head.items():
        found = next(((ours, theirs) for ours, theirs in pairs if name.startswith(theirs)), None)
        renamed[to_ours(name, family) if found is None else found[0] + name.removeprefix(found[1])] = value
    return renamed


def architecture_of(family: str, head: str) -> str:
    """Return the class of ``transformers``.

    Raises:
        ConfigError: There is none.
    """
    if (family, head) in NO_CLASS:
        raise ConfigError(
            f"family {family}: transformers has no class of it for {head}, so the result could not be loaded. Take a "
            f"model of another family, such as {NO_CLASS[family, head]}."
        )
    return f"{''.join(part.capitalize() for part in family.split('-'))}For{head}"


def _pairs(family: str, architecture: str) -> tuple[tuple[str, str], ...]:
    return HEAD_NAMES.get((family, architecture), ())
