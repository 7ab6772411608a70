"""Show what training curves do not separate: Markdown tables from run directories.

    python -m scripts.audit runs/demo-* > audit.md
    python -m scripts.audit runs/demo-uniform-seed0 --teacher demo/model

A prediction is the utility that a problem was selected with; its outcome is y = √(p̂(1-p̂)).
Exploring selects uniformly, so it judges the teacher without bias, and its mean outcome is the
pool's. Greedy takes the largest of K predictions, so on average it overrates. Its lift is how far
it lies above its pool: predicted (less the pool's mean) and in outcomes (less exploring). The noise
floor is the error of a teacher that knows p. A dead group counts in the gradient's denominator, so
fewer dead groups raise the norm: dividing by the live share undoes this.

For a uniform run the last table has r, how many times more groups would have been live with a
perfect teacher or, trained offline on the run's outcomes, with that of --teacher. No estimate of
ours told better than the share of dead groups whether a teacher pays.
"""

import math
from functools import partial

import numpy as np
import torch.distributed as dist

import train
from plumbing.command_line import user_path
from plumbing.config import default_teacher_ranks
from plumbing.data.problems import Problems
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from scripts import analysis
from scripts.analysis import Run
from teacher import Teacher, check_teacher

PERFECT = "a perfect one"
LOGGED = ["zero_variance", "grad_norm"]
LOGGED += ["teacher_mae", "teacher_mae_explore", "teacher_noise_floor"]


def measures(run: Run, first: int, last: int) -> dict[str, float]:
    """The table's numbers for the steps first to last; NaN if unknown."""
    m = run.metrics.reindex(columns=LOGGED).loc[first:last]
    # Training divides by at least one group, too.
    live = run.live.clip(lower=1 / run.config["prompts_per_step"]).loc[first:last]
    norm = m.grad_norm * (live if run.config["dead_rows"] == "out" else 1)
    s = run.selections[run.selections.step.between(first, last)]
    greedy, exploring = s[~s.explored], s[s.explored]
    known = exploring.dropna()
    return {
        "dead groups": m.zero_variance.mean(),
        "gradient norm, dead rows in the denominators": norm.mean(),
        "gradient norm, dead rows out: ÷ live share": (norm / live).mean(),
        "teacher MAE": m.teacher_mae.mean(),
        "teacher MAE, exploring": m.teacher_mae_explore.mean(),
        "noise floor of G": m.teacher_noise_floor.mean(),
        "Spearman, exploring": known.predicted.rank().corr(known.y.rank()),
        "predicted, greedy": greedy.predicted.mean(),
        "outcome y, greedy": greedy.y.mean(),
        "predicted, exploring": exploring.predicted.mean(),
        "outcome y, exploring": exploring.y.mean(),
        "lift, predicted": (greedy.predicted - greedy.pool_mean).mean(),
        "lift, outcome": greedy.y.mean() - exploring.y.mean(),
    }


def audit(methods: dict[str, list[Run]]) -> str:
    """Format a table for each quarter of the longest run's steps."""
    longest = max(run.metrics.index[-1] for runs in methods.values() for run in runs)
    tables, width = [], math.ceil(longest / 4)
    for first in range(1, longest + 1, width):
        last = min(first + width - 1, longest)
        of_steps = partial(measures, first=first, last=last)
        tables.append(analysis.by_method(f"Steps {first} to {last}", methods, of_steps, "", 3))
    return "\n".join(tables)


def read_by_teacher(run: Run, model: str) -> np.ndarray:
    """Train a teacher on this run's outcomes; return what it predicts for each selection, in order.

    It predicts a step's outcomes before it learns from the step before, as in training (K.3's
    asynchrony). One process takes the batches of all the teacher ranks the run would have had.
    """
    config = analysis.recorded(train.Config, run.config)
    config.teacher_model, config.teacher_ranks = model, 0
    config.teacher_batch_size *= max(1, default_teacher_ranks(run.config["world_size"]))
    analysis.check_unchanged(config.train_data, run.config["train_data_crc32"])
    try:
        check_teacher(model, config.max_prompt_tokens)
        layout = Layout(config)
    except ValueError as error:
        raise InputError(str(error)) from error
    problems, predicted, feedback = Problems(config.train_data), [], []
    layout.connect(config.timeout_minutes)
    try:
        teacher = Teacher(config, layout.device, layout.shard, layout.group)
        for _, rows in run.selections.groupby("step"):
            questions = [problems.question(i) for i in rows.chosen]
            predicted.append(teacher.predict(questions))
            for question, y in feedback:
                teacher.update(question, y)
            feedback = list(zip(questions, rows.y, strict=True))
    finally:
        dist.destroy_process_group()
    return np.concatenate(predicted)


def picked(predicted_N: np.ndarray, live_N: np.ndarray, K: int) -> float:
    """Over all pools of K of these N ≥ K problems, the share whose highest prediction is that of a
    live problem. The j-th highest of N is the highest of C(N - j, K - 1) pools."""
    n, order = len(live_N), np.argsort(-predicted_N, kind="stable")
    pools = [math.comb(n - 1 - j, K - 1) / math.comb(n, K) for j in range(n)]
    return float(pools @ live_N[order])


def predicted_gain(run: Run, predicted_N=None) -> float:
    """Predict r, how many times more groups would be live if Alg. 1 had chosen among the run's
    problems by these predictions, or by a perfect teacher's if none are given. NaN if none is live.
    """
    K, epsilon, P = (run.config[name] for name in ("candidates", "epsilon", "prompts_per_step"))
    rows = run.selections.assign(live=run.selections.y > 0)
    rows["predicted"] = rows.live.astype(float) if predicted_N is None else predicted_N
    steps = math.ceil(K / P)  # with enough problems for a pool
    parts = [part for _, part in rows.groupby((rows.step - 1) // steps) if len(part) >= K]
    if not (live := np.mean([part.live.mean() for part in parts] or [0])):
        return math.nan
    best = np.mean([picked(part.predicted.to_numpy(), part.live.to_numpy(), K) for part in parts])
    return float(epsilon + (1 - epsilon) * best / live)


def gains(runs: list[Run], model: str | None) -> str:
    """Format predicted_gain of a perfect teacher, and of `model` if given, for each run."""
    lines = []
    for run in runs:
        dead = f"{(run.selections.y == 0).mean():.0%}"
        lines.append([run.folder.name, PERFECT, dead, analysis.number(predicted_gain(run))])
        if model:
            r = predicted_gain(run, read_by_teacher(run, model))
            lines.append([run.folder.name, model, dead, analysis.number(r)])
    header = ["run", "teacher", "dead groups", "r"]
    note = "–: not known, because no group was live."
    return analysis.table("Live groups with a teacher, as a multiple", header, lines, note)


def main(argv=None) -> None:
    parser = analysis.parser(__doc__, runs=True)
    help = "hub id or directory of a teacher, trained offline with the run's settings"
    parser.add_argument("--teacher", type=user_path, metavar="MODEL", help=help)
    devices = ("auto", "cpu", "cuda")
    parser.add_argument("--device", choices=devices, help="where that teacher learns [auto]")
    args = parser.parse_args(argv)
    begin_process()
    with analysis.one_line("audit"):
        methods = analysis.load_methods(args.runs)
        runs = [run for members in methods.values() for run in members]
        for run in runs:
            run.config["device"] = args.device or "auto"
        if args.device and not args.teacher:
            raise InputError(f"--device {args.device}: only --teacher uses it")
        if not any(run.metrics.index[-1] for run in runs):
            raise InputError("none of these runs has finished a step")
        print(audit(methods))
        plain = {"sampler": "uniform", "resample_rounds": 0}
        uniform = [run for run in runs if plain.items() <= run.config.items()]
        if uniform:
            print(gains(uniform, args.teacher), end="")
        elif args.teacher:
            needed = "a run with --sampler uniform and without --resample_rounds"
            raise InputError(f"--teacher needs {needed}")


if __name__ == "__main__":
    main()
