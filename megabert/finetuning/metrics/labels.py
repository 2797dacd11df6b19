"""Scores of predicted labels and numbers, as GLUE states them (Wang et al. 2019)."""

import math
import warnings
from collections.abc import Callable, Sequence

from scipy import stats
from sklearn import metrics


def _correlation(function: Callable[..., tuple[float, float]]) -> Callable[[Sequence[float], Sequence[float]], float]:
    def score(gold: Sequence[float], predicted: Sequence[float]) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.ConstantInputWarning)
            value = float(function(gold, predicted)[0]) if len(gold) > 1 else math.nan
        # Constant predictions correlate with nothing.
        return 0.0 if math.isnan(value) else value

    return score


METRICS: dict[str, Callable[[Sequence, Sequence], float]] = {
    "accuracy": lambda gold, predicted: float(metrics.accuracy_score(gold, predicted)),
    "f1": lambda gold, predicted: float(metrics.f1_score(gold, predicted, pos_label=1, zero_division=0.0)),
    "macro_f1": lambda gold, predicted: float(metrics.f1_score(gold, predicted, average="macro", zero_division=0.0)),
    "mcc": lambda gold, predicted: float(metrics.matthews_corrcoef(gold, predicted)),
    "pearson": _correlation(stats.pearsonr),
    "spearman": _correlation(stats.spearmanr),
}
"""Each metric's function of gold and predicted values. Labels are given as ids; 1 is the positive one of ``f1``."""
