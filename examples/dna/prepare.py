"""Write the bundled sequence as ids for ``megabert-data build --format ids``: bases, and where each document begins.

    python examples/dna/prepare.py build/dna

This writes ``bases.npy``, the id of each base; ``bases.offsets.npy``, the start of each document and the number of all
bases; and ``symbols.txt``, whose lines are the symbols of the ids 0, 1, 2, ...
"""

import argparse
from pathlib import Path

import numpy as np

SEQUENCE = Path(__file__).parent / "escherichia_coli_536.bin"
SYMBOLS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "C", "G", "T")
DOCUMENT_BASES = 2000
"""A genome is one long sequence; it is cut into documents, of which whole ones are held out."""


def read_bases() -> np.ndarray:
    """Return the bundled sequence, 0 to 3 for A, C, G and T: a byte holds four bases, the first in its upper bits."""
    packed = np.fromfile(SEQUENCE, np.uint8)
    return (packed[:, None] >> np.array([6, 4, 2, 0], np.uint8) & 3).reshape(-1)


def main(folder: Path) -> None:
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = read_bases() + np.uint8(SYMBOLS.index("A"))
    np.save(folder / "bases.npy", ids)
    np.save(folder / "bases.offsets.npy", np.append(np.arange(0, len(ids), DOCUMENT_BASES), len(ids)))
    (folder / "symbols.txt").write_text("".join(f"{symbol}\n" for symbol in SYMBOLS))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write")
    main(parser.parse_args().folder)
