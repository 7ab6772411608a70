"""Frontier that also reads --column, as one more word of each problem."""

import numpy as np

from sampler import Context
from samplers.frontier import Frontier


class Tagged(Frontier):
    """Frontier with the value of a column, such as the topic or the source, among the words of a
    problem. It knows what SEC knows, and can tell the problems of a category apart."""

    flags = ("candidates", "column")

    def __init__(self, context: Context):
        super().__init__(context)
        values, self.value = self.problems.column(context.config.column)
        self.tag_C = [self.entry(f"column {value}") for value in values]

    def words(self, index: int) -> np.ndarray:
        return np.union1d(super().words(index), self.tag_C[self.value[index]])
