"""How every configuration dataclass is validated: no unknown keys, finite numbers."""

from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, coerce_numbers_to_str=True)
