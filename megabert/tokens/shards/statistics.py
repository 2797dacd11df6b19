"""Totals of a set of instances."""

from dataclasses import dataclass, replace

from megabert.tokens.masking import MaskingOptions


@dataclass(frozen=True, kw_only=True)
class InstanceStatistics:
    """Totals of a split, from the manifest: all that is needed to size micro-batches.

    Attributes:
        rows: Number of instances.
        tokens: Tokens of all instances.
        masked_tokens: Masked positions of all instances.
        max_seq_length: Greatest length that an instance may have.
        max_masked: Most masked positions that one instance may have.
    """

    rows: int
    tokens: int
    masked_tokens: int
    max_seq_length: int
    max_masked: int

    def masked_by(self, options: MaskingOptions) -> "InstanceStatistics":
        """Return the totals if the loader draws the masks; the number of masked positions is an upper estimate."""
        most = options.max_predictions_per_seq
        expected = round(options.masked_lm_prob * self.tokens + 0.5 * self.rows)
        return replace(self, masked_tokens=min(most * self.rows, expected), max_masked=max(1, most))
