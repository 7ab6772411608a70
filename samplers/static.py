"""Fixed difficulty, from a column of pass rates."""

import numpy as np

from plumbing.errors import InputError
from sampler import Context, Pooled, utility_target


def number(text: str) -> float:
    """Convert text to float; NaN if it is no number, such as "n/a"."""
    try:
        return float(text)
    except ValueError:
        return np.nan


class Static(Pooled):
    """Chooses from each pool the pass rate nearest to 1/2. --column holds some model's pass rate,
    such as `pass_rate` of OpenMathReasoning (Moshkov et al., 2025, arXiv 2504.16891). A problem
    without a rate gets the mean utility."""

    uses_epsilon = False

    def __init__(self, context: Context):
        super().__init__(context)
        values_C, value_of = self.categories()
        p_C = np.array([number(value) for value in values_C])
        outside_C = (p_C < 0) | (p_C > 1)
        if outside_C.any() or np.isnan(p_C).all():
            value = values_C[outside_C.argmax()]
            raise InputError(f"--column {context.config.column}: {value} is no pass rate in [0, 1]")
        self._utility = utility_target(p_C)[value_of]
        is_unrated = np.isnan(self._utility)
        self.unrated = float(is_unrated.mean())
        self._utility[is_unrated] = np.nanmean(self._utility)

    def score(self, pool_P_K):
        return self._utility[pool_P_K]

    def metrics(self):
        """Return as `unrated` the share of problems whose pass rate is no number."""
        return super().metrics() | {"unrated": self.unrated}
