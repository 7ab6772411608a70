"""Print rank correlations of samplers between simulated full runs and real toy runs.

    python -m studies.candidates.order

Live groups are shares of all that a run tried. Accuracy, at the end of the simulation, is compared
with the speed-up of the toy runs, which are those of studies/sparsity/plan.toml.
"""

import pandas as pd

from plumbing.config import ROOT
from scripts.command import make_parser

ARMS = {  # of the toy runs -> of the simulation
    "Goldilocks, K=8": "GoldilocksPasses",
    "Goldilocks, K=64": "goldilocks, candidates=64",
    "Goldilocks, K=auto": "GoldilocksPasses, candidates=auto",
    "words, K=8": "bag_of_words",
    "words, K=64": "bag_of_words, candidates=64",
    "embedded, K=8": "embedded",
    "SEC": "sec, column=topic",
    "bins": "learnability_bins, column=topic",
    "SPEED": "speed",
    "DAPO": "uniform, resample_rounds=2",
}


def main(argv=None) -> None:
    make_parser(__doc__).parse_args(argv)
    toy_runs = pd.read_csv(ROOT / "studies/sparsity/summary.csv", dtype={"task": str})
    parts = pd.read_csv(ROOT / "studies/candidates/full_length.csv").groupby("arm")
    simulated = pd.DataFrame({"live": parts.live.mean(), "accuracy": parts.accuracy.last()})
    for task in ("60", "84"):
        of_task = toy_runs[toy_runs.task == task].set_index("arm")
        pairs = of_task.join(simulated.reindex(ARMS.values()).set_axis(ARMS), how="inner")
        live = pairs.live.corr(1 - pairs.dead, method="spearman")
        speed = pairs.accuracy.corr(pairs.speed_up_value, method="spearman")
        print(
            f"{task}: {len(pairs)} arms, live groups {live:.2f}, accuracy and speed-up {speed:.2f}"
        )


if __name__ == "__main__":
    main()
