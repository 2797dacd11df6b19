"""Rows of tables of tests that only ``make soak`` runs."""

from typing import Any

import pytest


def in_soak(*rows: Any) -> list[Any]:
    """Return rows for ``parametrize`` that bear the mark; a row of several values is a tuple."""
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.soak) for row in rows]
