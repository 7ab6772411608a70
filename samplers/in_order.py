"""Problems in the order of the file: a curriculum by hand."""

from plumbing.errors import InputError
from sampler import Context, Uniform


class InOrder(Uniform):
    """Every problem in the file's order, over and over: sort the file from easy to hard for the
    oldest of curricula (Bengio et al., 2009)."""

    def __init__(self, context: Context):
        super().__init__(context)
        self.position = 0  # in the file, over all passes

    def propose(self, P):
        index_P = []
        total = len(self.problems)
        for _ in range(total):
            index = self.position % total
            self.position += 1
            if self.context.fits(index):
                index_P.append(index)
            else:
                self.status[index] = self.OVERLONG
            if len(index_P) == P:
                return self.untried(index_P)
        raise InputError(
            f"a step takes {P} distinct problems, only {len(index_P)} of {total} problems fit "
            "--max_prompt_tokens: add some, or raise it"
        )

    def metrics(self):
        """Return `passes` over the file, and the share of this one, `coverage`."""
        passes, position = divmod(self.position, len(self.problems))
        coverage = position / len(self.problems)
        return super().metrics() | {"passes": passes + 1, "coverage": coverage}
