"""``python -m integration.programs.quick_proof``: megabert whose doctor measures for moments and calls no rate slow."""

import sys
from unittest import mock

from megabert.cli import main
from megabert.tooling.doctor import proof, rates

FAST = {
    "LIMIT_S": 1e-9,
    "COPY_BYTES": {"cpu": 2**20},
    "UPDATED_PARAMETERS": {"cpu": 2**12},
    "MICRO_STEP_S": {"cpu": 0.0},
}
"""Constants of ``rates`` that decide how long it measures."""
NO_JUDGEMENT = mock.patch("megabert.tooling.doctor.finding.SLOW_SHARE", 0.0)

if __name__ == "__main__":
    with mock.patch.multiple(rates, **FAST), mock.patch.multiple(proof, DISK_BYTES=2**20), NO_JUDGEMENT:
        sys.exit(main())
