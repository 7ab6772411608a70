"""The paper's target √(p(1-p)), whatever divides the advantages: `--advantage_std none`, `mean`."""

from sampler import Goldilocks, utility_target


class PaperTarget(Goldilocks):
    target = staticmethod(utility_target)
