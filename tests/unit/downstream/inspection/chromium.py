"""A real browser that opens pages and returns the HTML that their scripts produced."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync"


def dump_dom(page: Path, fragment: str, profile: Path) -> str:
    """Open a page and return its document after its scripts have run."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium on the PATH: apt-get install chromium")
    command = [browser, *FLAGS.split(), f"--user-data-dir={profile}", "--dump-dom", f"{page.as_uri()}#{fragment}"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout
