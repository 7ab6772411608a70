"""The paper's target √(p(1-p)), also where `--advantage_std` is none or mean."""

from sampler import Goldilocks, utility_target


class PaperTarget(Goldilocks):
    target = staticmethod(utility_target)
