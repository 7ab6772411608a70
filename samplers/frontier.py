"""The best n of all candidates by predicted headroom, from a bag of words: no device, no ε."""

from samplers.bag_of_words import BagOfWords
from samplers.headroom import headroom


class Frontier(BagOfWords):
    """Bag of words with three changes, each derived before it was tried (docs/frontier.md):

    - a problem is worth √(p(1-p)) · (1-p): Eq. 2's factor times the accuracy left to gain;
    - the best n of all n · K candidates, not the best of each pool of K;
    - ε = 0. Words that were never seen have p = 1/2, where the value is 77% of its maximum: what is
      unknown is tried before what is known to be dead.

    The scores do not predict y, so `teacher_mae` does not apply."""

    flags = ("candidates",)
    settings = BagOfWords.settings | {"best_of_all": 1}
    target = staticmethod(headroom)
