"""A cleaning rule."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from data_prep.clean.quality import LineRule
from megabert.settings.config.fields import STRICT


@dataclass(frozen=True, config=STRICT)
class Shouting(LineRule):
    """``--clean shouting`` drops lines in capitals; the fields are ``clean.options.shouting``."""

    most: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Largest share of a line's letters that may be capitals."""

    def keep(self, lines: list[str]) -> list[str]:
        """Return the lines that stay."""
        return [line for line in lines if sum(map(str.isupper, line)) <= self.most * sum(map(str.isalpha, line))]
