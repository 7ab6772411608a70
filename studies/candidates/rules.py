"""Where candidates come from: three rules, each with three samplers.

Of the P · K candidates of a step P are trained on. The others are

- `Returning`: untried, and may be drawn again in this pass over the data; only the P are not (the
  rule of 56f0dc2);
- `Passes`: not drawn again in this pass either: it is a pass of candidates;
- `Replacement`: there are no passes, each step draws from all problems.

In `python -m scripts.study studies/candidates/short.toml` a run has a class of this file.
"""

from sampler import Goldilocks
from samplers.bag_of_words import BagOfWords
from samplers.noisy_and import NoisyAnd


class Returning:
    """Candidates that are not chosen return to this pass."""

    def draw(self, k):
        self._drawn = super().draw(k)
        return self._drawn

    def select(self, pool_P_K, utilities_P_K):
        groups = super().select(pool_P_K, utilities_P_K)
        self.status[self._drawn] = self.LEFT
        self.status[[group.problem for group in groups]] = self.DRAWN
        return groups


class Passes:
    """All candidates return in the next pass."""

    def draw(self, k):
        drawn = super().draw(k)
        self.status[drawn] = self.DRAWN
        return drawn


class Replacement:
    """All problems return in the next step."""

    def draw(self, k):
        self.status[self.status == self.DRAWN] = self.LEFT
        return super().draw(k)


class GoldilocksReturning(Returning, Goldilocks):
    pass


class GoldilocksPasses(Passes, Goldilocks):
    pass


class GoldilocksReplacement(Replacement, Goldilocks):
    pass


class WordsReturning(Returning, BagOfWords):
    pass


class WordsPasses(Passes, BagOfWords):
    pass


class WordsReplacement(Replacement, BagOfWords):
    pass


class NoisyAndReturning(Returning, NoisyAnd):
    pass


class NoisyAndPasses(Passes, NoisyAnd):
    pass


class NoisyAndReplacement(Replacement, NoisyAnd):
    pass
