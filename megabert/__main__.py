"""``python -m megabert``, and ``--module megabert`` of the deepspeed launcher."""

import sys

from megabert.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
