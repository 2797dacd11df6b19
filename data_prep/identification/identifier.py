"""The language of a document, identified by py3langid (Lui & Baldwin 2012) or by a fastText model (Joulin et al. 2017).

Neither downloads anything, and the answer depends on the text alone, so any worker gives the same one. A process loads
a model once.
"""

import importlib
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path

import numpy as np

from data_prep.config.build import BuildConfig
from data_prep.config.languages import AUTO, UNDETERMINED, code_of_label, identified_code, is_language_label
from data_prep.identification.fasttext_file import PREFIX, REMEDY, read_labels
from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.files import sha256_file
from megabert.settings.config.extensions import installed_version

LANGUAGE_CHARACTERS = 1000
"""The language is identified by these first characters of a document: more rarely change it, and take longer."""
PY3LANGID, FASTTEXT = "py3langid", "fasttext-predict"
"""Packages that identify languages."""
MIN_LANGUAGE_SHARE = 0.5
"""Codes of languages have to be more than this share of a model's labels; a label such as "other" is no obstacle."""
SHOWN_CODES = 12


class Identifier:
    """Identifies the languages of documents, one after the other."""

    def __init__(self, codes: Iterable[str], most_likely: Callable[[str], str]) -> None:
        """Take the codes of the answers, and what gives the most likely code of a text."""
        self.codes = frozenset((*codes, UNDETERMINED))
        # A cleaning rule and the splitter ask for the same document, one right after the other.
        self._most_likely = lru_cache(maxsize=1)(most_likely)

    def language_of(self, paragraphs: list[str]) -> str:
        """Return the code of a document's language, by its first characters; ``und`` without a letter there."""
        beginning = _beginning(paragraphs)
        return self._most_likely(beginning) if any(map(str.isalpha, beginning)) else UNDETERMINED


def _beginning(paragraphs: list[str]) -> str:
    """Return the first characters of a document, with a line feed between paragraphs."""
    parts, left = [], LANGUAGE_CHARACTERS
    for paragraph in paragraphs:
        parts.append(paragraph[:left])
        left -= len(parts[-1]) + 1
        if left <= 0:
            break
    return "\n".join(parts)


def identifier_of(model: str | None, sha256: str = "") -> Identifier:
    """Return what identifies languages.

    Args:
        model: File of a fastText model; py3langid without one.
        sha256: Hash that the file had when the build began; "" if that is not known.

    Raises:
        ConfigError: A package is missing.
        DataError: The file is unfit, or has changed.
    """
    if model is None:
        return _of_py3langid()
    path = Path(model)
    try:
        status = path.stat()
    except OSError:
        status = None  # the reader of the file says why
    return _of_fasttext(path, sha256, status and (status.st_size, status.st_mtime_ns))


@cache
def _of_py3langid() -> Identifier:
    purpose = "language=auto (or the cleaning rule `language`)"
    _require_package(PY3LANGID, purpose, "language", "state the language of each source and leave the rule out")
    labels, label_of = _compiled_py3langid()
    codes = {label: code_of_label(label) or label for label in labels}
    return Identifier(codes.values(), lambda text: codes[label_of(text)])


def _compiled_py3langid() -> tuple[list[str], Callable[[str], str]]:
    """Return the labels of py3langid 0.4, and a function that returns its label of a text in a fraction of its time."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    from data_prep.identification.feature_loops import LOG_UNIT, WEIGHT_UNIT, find_most_likely

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    automaton = identifier.tk_row, identifier.tk_nextmove, np.array(identifier.tk_output, np.int32)
    weights = np.empty(identifier.nb_ptc.shape, np.int16)
    for own, theirs in zip(np.array_split(weights, 64), np.array_split(identifier.nb_ptc, 64), strict=True):
        np.rint(theirs * np.float32(1 / WEIGHT_UNIT), out=own, casting="unsafe")  # in parts, for less memory
    priors = np.rint(identifier.nb_pc / np.float64(WEIGHT_UNIT * LOG_UNIT)).astype(np.int64)
    logs = np.rint(np.log1p(np.arange(4 * LANGUAGE_CHARACTERS)) / LOG_UNIT).astype(np.int32)
    model = *map(np.asarray, automaton), weights, priors, logs, np.zeros(len(weights), np.int32)

    def label_of(text: str) -> str:
        best = find_most_likely(np.frombuffer(identifier._encode(text), np.uint8), *model)
        return str(identifier.nb_classes[best] if best >= 0 else identifier.classify(text)[0])

    return identifier.labels, label_of


@cache
def _of_fasttext(path: Path, sha256: str, _: tuple[int, int] | None) -> Identifier:
    """Load a model; the last argument, size and time of the file, lets a replaced model be loaded again."""
    codes = codes_of_model(path)
    if sha256 and sha256_file(path) != sha256:
        raise DataError(f"{path}: changed since the build began. Run the same command again once nobody writes to it.")
    try:
        model = importlib.import_module("fasttext").load_model(str(path))
    except (MemoryError, ValueError) as error:
        raise DataError(f"language_model={path}: cannot be loaded ({error or 'not enough memory'}).") from None

    def most_likely(text: str) -> str:
        try:
            labels, _ = model.predict(text.replace("\n", " "))  # it reads one line
        except RuntimeError as error:  # nothing but an answer that is no number; `read_labels` does not look at weights
            raise DataError(f"language_model={path}: its weights are damaged ({error}). {REMEDY}") from None
        return codes[labels[0].removeprefix(PREFIX)] if labels else UNDETERMINED  # it knows no word of the text

    return Identifier(codes.values(), most_likely)


def codes_of_model(path: Path) -> dict[str, str]:
    """Return the codes of the languages that a fastText model has labels for, by label.

    Raises:
        ConfigError: The package that reads models is missing.
        DataError: The file is no sound model, or its labels are no languages.
    """
    codes = {label: code_of_label(label) for label in read_labels(path)}
    others = [label for label in codes if not is_language_label(label)]
    if len(codes) - len(others) <= MIN_LANGUAGE_SHARE * len(codes):
        raise DataError(
            f"language_model={path}: {len(others)} of its {len(codes)} labels ({', '.join(others[:3])}) are no codes "
            f"of languages such as en or eng_Latn. {REMEDY}"
        )
    remedy = "leave language_model out, which takes py3langid"
    _require_package(FASTTEXT, f"language_model={path}", "languages", remedy)
    return {label: code or UNDETERMINED for label, code in codes.items()}


def _require_package(package: str, purpose: str, extra: str, remedy: str) -> None:
    """Refuse to identify languages without a package.

    Raises:
        ConfigError: It is not installed; another package of fastText, which needs an old numpy, does not count.
    """
    if not installed_version(package):
        raise ConfigError(
            f"{purpose} needs the package {package}. Install it: pip install 'megabert[{extra}]', or {remedy}."
        )


def package_of(config: BuildConfig) -> str | None:
    """Return the package that a build identifies languages with; None if it identifies none."""
    if not config.identifies_languages:
        return None
    return PY3LANGID if config.language_model is None else FASTTEXT


def require_identifier(config: BuildConfig) -> None:
    """Refuse a build, before anything is written, that could not identify its languages.

    Raises:
        ConfigError: A package is missing, or the model does not know a language to keep.
        DataError: The model is unfit.
    """
    if not config.identifies_languages:
        return
    model = config.language_model
    # A model of a gigabyte is not loaded here: its file says which labels it has.
    codes = _of_py3langid().codes if model is None else {*codes_of_model(Path(model)).values(), UNDETERMINED}
    if "language" not in config.clean.rules:
        return
    kept = chain.from_iterable(config.kept_languages(source) for source in range(len(config.sources)))
    unknown = sorted(code for code in set(kept) if codes.isdisjoint(spellings_of(code)))
    if unknown:
        known = sorted(codes)
        raise ConfigError(
            f"The cleaning rule `language` keeps {', '.join(unknown)}, which {model or PY3LANGID} cannot identify: all "
            f"documents would be dropped. It knows {len(known)} languages, such as "
            f"{', '.join(known[:SHOWN_CODES])}; name others, leave the rule out, or give another language_model."
        )


def spellings_of(code: str) -> set[str]:
    """Return the codes that a model may give for a language: ``pt-br`` and ``pt``."""
    return {code, identified_code(code)}


def keeps_language(config: BuildConfig, source: int, sha256: str = "") -> Callable[[list[str]], bool]:
    """Return a function that says whether the cleaning rule `language` keeps a document of a source."""
    kept = frozenset(chain.from_iterable(map(spellings_of, config.kept_languages(source))))
    identifier = identifier_of(config.language_model, sha256)
    return lambda paragraphs: identifier.language_of(paragraphs) in kept


def language_of_source(config: BuildConfig, source: int, sha256: str = "") -> Callable[[list[str]], str]:
    """Return a function from a document of a source to its language, which is mostly the same for all."""
    language = config.language_of(source)
    if language == AUTO:
        return identifier_of(config.language_model, sha256).language_of
    return lambda paragraphs: language
