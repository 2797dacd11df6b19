"""The forms that an exported model has besides the weights that ``transformers`` loads."""

from dataclasses import dataclass, replace
from pathlib import Path

from megabert.downstream.export.export_folder import ONNX_FILE
from megabert.downstream.export.model_card import ModelCard
from megabert.downstream.export.vector_form import read_vector_form
from megabert.downstream.publish.sentence_modules import (
    USAGES,
    VectorKind,
    keep_modules,
    refuse_other_vectors,
    write_modules,
)
from megabert.foundation.errors import ConfigError
from megabert.settings.config.model import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Forms:
    """Further forms of a model."""

    vectors: VectorKind | None = None
    """The vectors that sentence-transformers makes of the folder; None adds no files for it."""
    has_onnx: bool = False
    """Whether there is an ONNX form, of the vectors or else of the class with the heads."""

    def on_card(self, card: ModelCard) -> ModelCard:
        """Return the card of a model that has these forms."""
        return replace(card, gives_vectors=True, usage=USAGES[self.vectors]) if self.vectors else card


ONLY_WEIGHTS = Forms()


def refuse_lost_forms(source: Path, forms: Forms) -> None:
    """Refuse to write a folder once more without a form that it has, which a push would delete on the hub as well.

    Raises:
        ConfigError: Naming the flags of the forms that would be lost.
    """
    lost = {}
    if (source / "modules.json").is_file() and not forms.vectors:
        lost["--sentence-transformers KIND"] = "modules.json"
    if (source / ONNX_FILE).is_file() and not forms.has_onnx:
        lost["--onnx"] = ONNX_FILE
    if lost:
        raise ConfigError(
            f"{source}: has {' and '.join(lost.values())}, which the new export would lack. Give {' and '.join(lost)} "
            "again, or remove the form's files first."
        )


def add_forms(
    folder: Path, config: ModelConfig, forms: Forms, *, longest: int | None = None, source: Path | None = None
) -> None:
    """Add the files of each form to a folder with an exported model. Modules that its source has are kept.

    Args:
        folder: The folder.
        config: The model's sizes.
        forms: The forms.
        longest: Length at which longer texts are cut; None reads the model's positions.
        source: The folder that the model is from, whose modules are kept; None for a run.

    Raises:
        ConfigError: A package that a form needs is not installed, or the source's modules give other vectors.
        CheckpointError: The ONNX form gives other results than transformers.
    """
    longest = longest or config.max_position_embeddings
    form = read_vector_form(source) if source else None
    if forms.vectors and source and form:
        refuse_other_vectors(source, form, forms.vectors, has_onnx=forms.has_onnx)
        keep_modules(source, folder, form, positions=longest)
    elif forms.vectors:
        write_modules(folder, forms.vectors, width=config.hidden_size, max_length=longest)
    if forms.has_onnx:
        # transformers, and onnxruntime for the comparison: extras that few need.
        from megabert.downstream.publish.check_forms import require_equal_onnx
        from megabert.downstream.publish.onnx_graph import write_onnx

        write_onnx(folder, forms.vectors)
        require_equal_onnx(folder, forms.vectors)
