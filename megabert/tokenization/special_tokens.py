"""The five special pieces that BERT's instances need: padding, unknown, [CLS], [SEP] and [MASK]."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from megabert.errors import DataError


@dataclass(frozen=True, kw_only=True)
class SpecialNames:
    """Spelling of the special pieces in a vocabulary; the defaults are BERT's."""

    pad: str = "[PAD]"
    unk: str = "[UNK]"
    cls: str = "[CLS]"
    sep: str = "[SEP]"
    mask: str = "[MASK]"


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """Ids of the special pieces."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int

    def to_dict(self) -> dict[str, int]:
        """Return the ids by role, in the order of the fields."""
        return asdict(self)


def find_special_ids(vocabulary: Mapping[str, int], names: SpecialNames, *, where: str) -> SpecialIds:
    """Return the ids of the five special pieces.

    Args:
        vocabulary: Ids by piece.
        names: Spelling of the special pieces.
        where: The file that the vocabulary was read from; errors name it.

    Raises:
        DataError: A special piece is not in the vocabulary.
    """
    wanted = {field.name: getattr(names, field.name) for field in fields(names)}
    missing = [name for name in wanted.values() if name not in vocabulary]
    if missing:
        raise DataError(
            f"{where}: the vocabulary of {len(vocabulary):,} pieces has no {' '.join(missing)}. Pre-training needs "
            f"{' '.join(wanted.values())}. Put each missing piece on a line of its own into the vocabulary (an "
            "[unusedN] line can be renamed), or train a new vocabulary with `megabert-data vocab`."
        )
    return SpecialIds(**{role: vocabulary[name] for role, name in wanted.items()})
