"""The two recipes of a container image copy the same files: those that the installation needs."""

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def files_of_dockerfile() -> set[str]:
    copied = re.findall(r"^COPY (.+) (\S+)$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert all(target in ("./", sources) for sources, target in copied), "a folder keeps its name"
    return {source for sources, _ in copied for source in sources.split()}


def files_of_apptainer() -> set[str]:
    section = (ROOT / "docker" / "apptainer.def").read_text().split("%files\n")[1].split("\n\n")[0]
    pairs = [line.split() for line in section.splitlines()]
    assert all(target == f"/opt/megabert/{source}" for source, target in pairs)
    return {source for source, _ in pairs}


def test_both_images_hold_the_packages_and_the_files_of_their_installation():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = setup["options.packages.find"]["include"].replace("*", "").split()
    needed = {"setup.cfg", "pyproject.toml", "README.md", "LICENSE", "requirements", *packages}
    assert files_of_dockerfile() == files_of_apptainer() == needed
    assert all((ROOT / name).exists() for name in needed)
