"""Holds the size of the house: lines of code per room, of tests and of benchmarks, and words of docs.

    python benchmarks/reading/size.py            exit 1 if a room is larger than size.json records
    python benchmarks/reading/size.py --record   record the sizes of this tree; a larger one needs --for WORDS

A room is a folder or a file at the top of ``megabert`` or ``data_prep``; lines of code are those of ``lines.py``.
``size.json`` has the recorded sizes, and in ``grown_for`` the features for which a room was allowed to grow, each in
words that stand in CHANGELOG.md.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from lines import kinds_of

RECORD = Path(__file__).with_name("size.json")
TOPS = {"megabert": 2, "data_prep": 2, "tests": 1, "benchmarks": 1}
"""Folders whose code is counted, and the number of parts of a path that name a room."""


def main() -> int:
    """Print the rooms that are larger than recorded, or record them; return 1 if one is larger without a reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="record the sizes of this tree")
    parser.add_argument("--for", dest="feature", metavar="TEXT", help="words of CHANGELOG.md that name the new feature")
    options = parser.parse_args()
    sizes, recorded = sizes_of_tree(), json.loads(RECORD.read_text())
    larger = {room: size for room, size in sizes.items() if size > recorded["rooms"].get(room, 0)}
    for room, size in larger.items():
        print(f"{room}: {size} lines of code or words, {recorded['rooms'].get(room, 0)} are recorded")
    if not options.record:
        return int(bool(larger))
    if larger and options.feature not in recorded["grown_for"]:
        if not options.feature or options.feature not in " ".join(Path("CHANGELOG.md").read_text().split()):
            sys.exit("A larger room needs --for with words of CHANGELOG.md that name its feature; nothing is recorded.")
        recorded["grown_for"].append(options.feature)
    RECORD.write_text(json.dumps({**recorded, "rooms": sizes}, indent=2) + "\n")
    return 0


def sizes_of_tree() -> dict[str, int]:
    """Return lines of code of each room, of tests and of benchmarks, and words of README and docs, by name."""
    sizes: Counter[str] = Counter()
    listed = subprocess.run(["git", "ls-files"], stdout=subprocess.PIPE, text=True, check=True).stdout
    for path in filter(Path.is_file, map(Path, listed.splitlines())):
        parts = TOPS.get(path.parts[0], 0)
        if parts and path.suffix == ".py":
            sizes["/".join(path.parts[:parts])] += kinds_of(path.read_text(encoding="utf-8")).count("code")
        elif path.suffix == ".md" and (path.parts[0] == "docs" or path.name == "README.md" == str(path)):
            sizes["docs (words)"] += len(path.read_text(encoding="utf-8").split())
    return dict(sorted(sizes.items()))


if __name__ == "__main__":
    sys.exit(main())
