"""``python -m integration.programs.listing``: megabert that lists what it has imported, in the file MODULES.

Tests start it in place of ``python -m megabert``.
"""

import os
import sys
from pathlib import Path

from megabert.cli import main

if __name__ == "__main__":
    code = main()
    Path(os.environ["MODULES"]).write_text("\n".join(sys.modules))
    sys.exit(code)
