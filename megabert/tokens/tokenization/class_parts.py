"""The parts of a ``tokenizer.json`` that classes of transformers 5 replace by their own."""

from pathlib import Path

import tokenizers
from tokenizers import models, processors

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import folder_settings
from megabert.tokens.tokenization.special_pieces import SpecialNames

_A, _B = 2**31, 2**31 + 1  # ids that no vocabulary has


def set_template(
    backend: tokenizers.Tokenizer, settings: folder_settings.FolderSettings, names: SpecialNames, path: Path
) -> None:
    """Put the special pieces of the folder's class around texts, if it has its own; otherwise check the file's.

    Raises:
        DataError: The file's are others than `Tokenizer.join` writes, or the segments of a BERT's pair are.
    """
    cls, sep = names.cls, names.sep
    ids = {name: backend.token_to_id(name) for name in (cls, sep)}
    own = folder_settings.PAIR_SEPARATORS.get(settings.tokenizer_class)
    if settings.tokenizer_class == "AlbertTokenizer" and backend.post_processor is not None:
        own = None  # this class alone lets the file's prevail
    if settings.model_type is None and backend.post_processor is None:
        own = own or 1  # a vocabulary that no model reads yet
    separators = own or max(1, backend.num_special_tokens_to_add(True) - 2)

    frame = tokenizers.Tokenizer(models.WordLevel({"a": _A, "b": _B}, unk_token="a"))
    if backend.post_processor is not None:
        frame.post_processor = backend.post_processor
    one, two = frame.encode("a"), frame.encode("a", "b")
    start, end = [ids[cls], _A, *[ids[sep]] * separators], [_B, ids[sep]]
    has_segments = separators == 1 and settings.model_type in folder_settings.SEGMENT_TYPES
    segments = ([0, 0, 0], [0] * len(start) + [1, 1])
    is_equal = (one.ids, two.ids) == ([ids[cls], _A, ids[sep]], start + end)
    if is_equal and (not has_segments or (one.type_ids, two.type_ids) == segments):
        return
    if own is None:
        written = [" ".join(map("{}:{}".format, text.tokens, text.type_ids)) for text in (one, two)]
        raise DataError(
            f"{path}: post_processor writes a text as {written[0]!r} and a pair as {written[1]!r} (piece:segment), and "
            f"transformers takes it as it is. megabert reads only '{cls}:0 a:0 {sep}:0' with "
            f"'{cls}:0 a:0 {sep}:0 b:1 {sep}:1', or with two {sep} between a and b as in RoBERTa. If the model was "
            "trained with these, write them there (tokenizers.processors.TemplateProcessing)."
        )
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A{f' {sep}' * separators} $B:1 {sep}:1",
        special_tokens=list(ids.items()),
    )
