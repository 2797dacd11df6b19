"""Checks of the settings of a build from ids: settings of text that it cannot have, and its own."""

from typing import TYPE_CHECKING

from megabert.settings.config.needs import Need, Needs

if TYPE_CHECKING:
    from data_prep.config.build import BuildConfig

TEXT_FORMATS = ("auto", "text", "book", "jsonl", "parquet", "arrow", "wikipedia")
DEFAULT_RULES = ("mojibake", "control_characters")
"""Rules that run unless others are named; of ids they are left out in silence."""
RULES_OF_IDS = ("duplicate_documents",)
"""The rules that compare whole documents by their hash, and read no character."""


def require_usable_ids(config: "BuildConfig") -> None:
    """Refuse settings of ids for text, and settings of text for ids.

    Raises:
        ValueError: There are some; pydantic makes it an error of the configuration.
    """
    kinds = {source.format == "ids" for source in config.sources}
    if len(kinds) > 1:
        raise ValueError(
            "sources: some are of format ids and some are text, which would be tokenized by another vocabulary; build "
            "each by itself, or tokenize the text first"
        )
    if kinds == {False}:
        _require_text(config)
        return
    _require_vocabulary(config)
    _require_pairs(config)
    rules = [] if config.clean.rules == DEFAULT_RULES else config.clean.rules
    if of_text := [rule for rule in rules if rule not in RULES_OF_IDS]:
        raise ValueError(
            f"clean.rules={', '.join(of_text)}: reads characters, words or lines, and ids have none; for format ids "
            f"only {', '.join(RULES_OF_IDS)} is defined, which compares whole lists"
        )
    if config.mask_unit == "whole_word" and config.tokenizer is None:
        raise ValueError(
            "mask_unit=whole_word: ids have no words, since nothing says which of them continue one; use token, span "
            "(runs of ids), or name the tokenizer that made the ids"
        )


def _require_text(config: "BuildConfig") -> None:
    for name in ("symbols", "special_ids"):
        if getattr(config, name) is not None:
            raise ValueError(f"{name}: describes ids, and the sources are text; say format: ids, or leave it out")
    for index, source in enumerate(config.sources):
        if source.second_field is not None:
            raise ValueError(
                f"sources.{index}: second_field={source.second_field!r} is for pairs of ids; text is paired by its "
                "sentences. Leave it out, or say format: ids"
            )


def _require_vocabulary(config: "BuildConfig") -> None:
    if config.tokenizer is not None:
        if config.symbols is not None or config.special_ids is not None:
            raise ValueError("tokenizer: says all ids; leave symbols and special_ids out")
        return
    if config.symbols is None and config.special_ids is None:
        raise ValueError(
            "format ids: there is no vocabulary; name the file of the vocabulary (symbols), the tokenizer that "
            "made them (tokenizer), or their number and the special ones (vocab_size, special_ids)"
        )
    special = config.special_ids or ()
    if len(set(special)) != len(special):
        raise ValueError(f"special_ids={special}: two of them are equal; padding, unknown, [CLS], [SEP], [MASK] differ")
    if config.symbols is None and special and max(special) >= config.vocab_size:
        raise ValueError(f"special_ids={special}: {max(special)} is not below vocab_size={config.vocab_size}")


def _require_pairs(config: "BuildConfig") -> None:
    paired = [source.second_field is not None for source in config.sources]
    if config.objective == "none" and any(paired):
        raise ValueError(
            f"sources.{paired.index(True)}.second_field: objective=none writes single segments; use nsp or sop, or "
            "leave second_field out"
        )
    if config.objective != "none" and not all(paired):
        raise ValueError(
            f"objective={config.objective}: sources.{paired.index(False)} has one list per document, and ids have no "
            "sentences to pair; name the list of B (second_field), or use objective none"
        )


TEXT_NEEDS: Needs = {
    **dict.fromkeys(("language", "pieces", "spare_pieces", "uncased"), Need("sources.0.format", TEXT_FORMATS)),
    "language_model": Need("sources.0.format", TEXT_FORMATS),
    "sources.N.language": Need("sources.N.format", TEXT_FORMATS),
}
"""Fields that need text, in addition to `data_prep.config.build.BUILD_NEEDS`."""
