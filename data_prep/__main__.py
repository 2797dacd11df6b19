"""``python -m data_prep``: the same as ``megabert-data``."""

import sys

from data_prep.cli import main

if __name__ == "__main__":
    sys.exit(main())
