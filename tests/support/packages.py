"""Packages with entry points, installed by putting their folder on the path: what pip leaves in site-packages."""

from pathlib import Path


def write_package(folder: Path, name: str, entry_points: dict[str, dict[str, str]], code: str = "") -> Path:
    """Write version 0.1 of a package whose module has its name, and return the folder for ``sys.path``."""
    info = folder / f"{name}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    sections = [
        "\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in own.items())]) for group, own in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections) + "\n")
    (folder / f"{name}.py").write_text(code)
    return folder
