"""Four made families of problems: does a sampler spend where nothing is learned, and does it notice
a family that opens late? No model, seconds.

    python -m studies.useful.families

All four are as frequent. `flat` is solved with p = 0.05, whatever is trained on. `ready` begins
there, too, and each live group that is trained on adds 0.02 to its log-odds. `slow` has p = 0.01
in the first third of the run, `shut` p = 0, and both then go on as `ready` does. Words tell the
families, and so does the column. A run has 120 steps of 12 x 16.

Prints, for each sampler, the share of draws of each family in each third of the run, and p at its
end: means of 5 seeds.
"""

from collections.abc import Iterator

import numpy as np

from plumbing.config import Config
from sampler import Context, find_sampler
from scripts.command import exit_on_error, make_parser
from studies.full_length import answer

FAMILIES = ["flat", "ready", "slow", "shut"]
LEARNED = np.array([False, True, True, True])
LATE_P = {"slow": 0.01, "shut": 0.0}  # in the first third of the run
STEPS = 120
ARMS = {
    "uniform": {},
    "noisy_and": {"candidates": 16},
    "frontier": {"candidates": "auto"},
    "bag_of_words": {"candidates": "auto"},
    "learnability_bins": {"column": "family"},
    "sec": {"column": "family"},
}


class Problems:
    """24,000 problems: a family, one of its 8 words and a number."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.family_N = rng.integers(len(FAMILIES), size=24_000)
        self.word_N = rng.integers(8, size=24_000)

    def __len__(self):
        return len(self.family_N)

    def question(self, index: int) -> str:
        family = FAMILIES[self.family_N[index]]
        return f"{family} {family}{self.word_N[index]} {index}"

    def categories(self):
        return FAMILIES, self.family_N


def run(name: str, seed: int, **settings) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each step, the number of groups of each family and p before the step: (4,)."""
    problems = Problems()
    config = Config(prompts_per_step=12, seed=seed, **settings)
    sampler = find_sampler(name)(Context(problems, config, fits=lambda index: True))
    rng = np.random.default_rng([seed, 2])  # 1 is the sampler's
    logit = np.full(len(FAMILIES), np.log(0.05 / 0.95))
    for step in range(STEPS):
        p = 1 / (1 + np.exp(-logit))
        is_open = LEARNED.copy()
        if step < STEPS / 3:
            for family, late_p in LATE_P.items():
                p[FAMILIES.index(family)] = late_p
                is_open[FAMILIES.index(family)] = False
        groups = sampler.propose(12)
        family_P = problems.family_N[[group.problem for group in groups]]
        answer(groups, p[family_P], rng)
        sampler.observe(groups)
        is_live = np.array([group.live for group in groups])
        yield np.bincount(family_P, minlength=4), p
        logit += 0.02 * is_open * np.bincount(family_P, weights=is_live, minlength=4)


def summarize(name: str, seeds=range(5), **settings) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of draws of each family by third, (3, 4), and p in the last step, (4,)."""
    counts = np.zeros((3, len(FAMILIES)))
    last_p = []
    for seed in seeds:
        counts_of_step, p_of_step = zip(*run(name, seed, **settings), strict=True)
        counts += np.reshape(counts_of_step, (3, -1, len(FAMILIES))).sum(axis=1)
        last_p.append(p_of_step[-1])
    return counts / counts.sum(axis=1, keepdims=True), np.mean(last_p, axis=0)


def main(argv=None) -> None:
    with exit_on_error("families"):
        make_parser(__doc__).parse_args(argv)
        print(f"{'draws by third':24}", *(f"{family:16}" for family in FAMILIES), "p at the end")
        for name, settings in ARMS.items():
            shares, p = summarize(name, **settings)
            thirds = (" ".join(f"{share:.2f}" for share in of_family) for of_family in shares.T)
            print(f"{name:24}", *(f"{of_family:16}" for of_family in thirds), p.round(2))


if __name__ == "__main__":
    main()
