"""Counts rooms, floors, arrows and circles of the imports: ``python benchmarks/reading/rooms.py``.

A room is a folder or a file at the top of ``megabert`` or ``data_prep``. An arrow leads from a room to each that it
imports. A room's floor is the length of its longest way down. ``--depth 2`` takes the rooms within the storeys as well.
"""

import argparse
from graphlib import CycleError, TopologicalSorter

import grimp

STOREYS = ("foundation", "settings", "tokens", "downstream", "tooling")


def main() -> None:
    """Print the counts, and the rooms from the top floor down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, choices=(1, 2), default=1, help="2: the rooms within a storey are rooms")
    options = parser.parse_args()
    graph = grimp.build_graph("megabert", "data_prep", exclude_type_checking_imports=True)
    below: dict[str, set[str]] = {}
    for module in graph.modules:
        room = room_of(module, options.depth)
        imported = {room_of(other, options.depth) for other in graph.find_modules_directly_imported_by(module)}
        below.setdefault(room, set()).update(imported - {room, ""})
    below.pop("", None)
    try:
        order = list(TopologicalSorter(below).static_order())
    except CycleError as error:
        raise SystemExit(f"a circle: {' -> '.join(reversed(error.args[1]))}") from None

    floors: dict[str, int] = {}
    for room in order:
        floors[room] = 1 + max((floors[other] for other in below[room]), default=0)
    arrows = sum(map(len, below.values()))
    print(f"{len(below)} rooms, {max(floors.values())} floors, {arrows} arrows, no circle")
    for floor in sorted(set(floors.values()), reverse=True):
        print(f"{floor:3}  {', '.join(sorted(room for room in floors if floors[room] == floor))}")


def room_of(module: str, depth: int) -> str:
    """Return the room of a module, without "megabert."; empty for the packages and the programs themselves."""
    package, _, path = module.partition(".")
    parts = path.split(".")
    if parts[0] in ("", "__main__"):
        return ""
    parts = parts[: depth if parts[0] in STOREYS else 1]
    return ".".join(parts if package == "megabert" else [package, *parts])


if __name__ == "__main__":
    main()
