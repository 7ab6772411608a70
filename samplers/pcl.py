"""Goldilocks with a teacher that predicts p: it chooses the predicted p nearest to 1/2."""

from sampler import Goldilocks, utility_target


class Pcl(Goldilocks):
    """The choice of Prompt Curriculum Learning (Gao et al., 2025, arXiv 2510.01135): of n · K
    candidates the n with the predicted p nearest to 1/2. Theirs has K = 4 and a value model,
    trained once a step on the mean reward; here the teacher predicts p. Checked against a reader's
    account of the algorithm: no code of the authors was found."""

    best_of_all = True

    def target(self, p_hat):
        return p_hat / 2  # the teacher's range is [0, 0.5]

    def score(self, pool_P_K):
        p_P_K = 2 * super().score(pool_P_K)
        return utility_target(p_P_K)  # falls with |p - 1/2|, so the highest is the nearest
