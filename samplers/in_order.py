"""Problems in the order of the file: a curriculum by hand."""

from plumbing.errors import InputError
from sampler import Uniform


class InOrder(Uniform):
    """Every problem in the file's order, over and over: sort the file from easy to hard for the
    oldest of curricula (Bengio et al., 2009)."""

    flags = ()
    learned = {"position": 0}  # in the file, over all passes

    def propose(self, n):
        index_N = []
        total = len(self.problems)
        for _ in range(total):
            index = self.position % total
            self.position += 1
            if self.fits(index):
                index_N.append(index)
            else:
                self.status[index] = self.OVERLONG
            if len(index_N) == n:
                return self.untried(index_N)
        raise InputError(
            f"a step takes {n} distinct problems, only {len(index_N)} of {total} problems fit "
            "--max_prompt_tokens: add some, or raise it"
        )

    def metrics(self):
        """Return `passes` over the file, and the share of this one, `coverage`."""
        passes, position = divmod(self.position, len(self.problems))
        coverage = position / len(self.problems)
        return super().metrics() | {"passes": passes + 1, "coverage": coverage}
