"""The parts of a ``tokenizer.json`` that classes of transformers 5 replace by their own."""

import base64
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import folder_settings
from megabert.tokens.tokenization import tokenizer_kinds as kinds
from megabert.tokens.tokenization.special_pieces import SpecialIds, SpecialNames

_A, _B = 2**31, 2**31 + 1  # ids that no vocabulary has


def set_template(
    backend: tokenizers.Tokenizer,
    settings: folder_settings.FolderSettings,
    names: SpecialNames,
    ids: SpecialIds,
    path: Path,
) -> None:
    """Put the special pieces of the folder's class around texts, if it has its own; otherwise check the file's.

    Raises:
        DataError: The file's are others than `Tokenizer.join` writes, or the segments of a BERT's pair are.
    """
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
    start = [ids.cls, _A, *[ids.sep] * separators]
    is_equal = (one.ids, two.ids) == ([ids.cls, _A, ids.sep], [*start, _B, ids.sep])
    if is_equal and settings.model_type in folder_settings.SEGMENT_TYPES:
        is_equal = (one.type_ids, two.type_ids) == ([0, 0, 0], [*(0 for _ in start), 1, 1])
    if own is None and not is_equal:
        written = [" ".join(map("{}:{}".format, text.tokens, text.type_ids)) for text in (one, two)]
        cls, sep = names.cls, names.sep
        raise DataError(
            f"{path}: post_processor writes a text as {written[0]!r} and a pair as {written[1]!r} (piece:segment), and "
            f"transformers takes it as it is. megabert reads only '{cls}:0 a:0 {sep}:0' with "
            f"'{cls}:0 a:0 {sep}:0 b:1 {sep}:1', or with two {sep} between a and b as in RoBERTa. If the model was "
            "trained with these, write them there (tokenizers.processors.TemplateProcessing)."
        )
    if not is_equal:
        kinds.put_template(backend, {names.cls: ids.cls, names.sep: ids.sep}, names, separators=separators)


def rebuild_unigram(
    backend: tokenizers.Tokenizer,
    settings: folder_settings.FolderSettings,
    checked: folder_settings.TokenizerJson,
    unknown: int,
) -> None:
    """Give a Unigram tokenizer the steps of its class, which takes pieces and SentencePiece's character map alone.

    Args:
        backend: The tokenizer of the file.
        settings: The folder's settings. They choose among the steps of the class.
        checked: The fields of the file.
        unknown: Id of the unknown piece. Two classes have a number of their own instead.
    """
    name, written = settings.tokenizer_class or "", checked.normalizer or {}
    vocabulary = [(piece, float(score)) for piece, score in checked.model.vocab]  # type: ignore[str-unpack]  # a list
    unknown = {"AlbertTokenizer": 1, "XLMRobertaTokenizer": 3}.get(name, unknown)
    backend.model = models.Unigram(vocabulary, min(unknown, len(vocabulary) - 1), byte_fallback=False)
    steps: list[normalizers.Normalizer] = []
    words: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.WhitespaceSplit()]
    otherwise = "never"
    if name == "DebertaV2Tokenizer":
        white_space = normalizers.Replace(tokenizers.Regex(r"\s{2,}|[\n\r\t]"), " ")
        steps = [normalizers.Lowercase()] if settings.do_lower_case else []
        steps += [white_space, normalizers.NFC(), normalizers.Strip(left=False, right=True)]
        words = [pre_tokenizers.Punctuation("isolated")] if settings.split_by_punct else []
        otherwise = "first"
    if name == "AlbertTokenizer":
        steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        steps += [] if settings.keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
        steps += [] if settings.do_lower_case is False else [normalizers.Lowercase()]
    for step in written.get("normalizers") or [written]:
        if step.get("type") == "Precompiled" and name != "DebertaV2Tokenizer":
            steps.append(normalizers.Precompiled(base64.b64decode(step["precompiled_charsmap"])))
            break
    backend.normalizer = normalizers.Sequence(steps)
    scheme = otherwise if settings.add_prefix_space is False else "always"
    backend.pre_tokenizer = pre_tokenizers.Sequence([*words, pre_tokenizers.Metaspace(prepend_scheme=scheme)])
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
