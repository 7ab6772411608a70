"""What training curves cannot separate: Markdown tables from run folders.

    python -m scripts.audit runs/goldilocks_* runs/uniform_* > audit.md

Values are mean ± sample standard deviation over runs. Predictions are those that a problem was
selected with, outcomes y = √(p̂(1-p̂)) of its G completions.

Exploring picks uniformly (the uniform sampler always does): it judges the teacher without bias, and
its mean outcome is the pool's. Greedy takes the largest of K predictions, so on average it
overrates. Lift: how far greedy lies above its pool, predicted (utility less the pool's mean) and in
outcomes (greedy less exploring). Noise floor: a perfect teacher's error, from G only.

Gradient norm: a dead group adds nothing to the sum but counts in the denominator, so fewer of them
raise the norm with no group's gradient changed. ÷ live share undoes it, as `--dead_rows out` does.

Of a run without a teacher it also answers: would one pay, on 4/3 of the devices? S, how many times
fewer steps it would need, is predicted from r, how many times more groups would be live, and x, how
much of the gradient is signal already (report.predicted_speed). A perfect teacher gives the most
that r can be. `--teacher MODEL` has a real one learn from the run's own outcomes, as it would have
beside the run, and takes as r what it would have found in them:

    python -m scripts.audit runs/demo-uniform-seed0 --teacher demo/model
"""

import math
from dataclasses import fields
from functools import partial

import numpy as np
import pandas as pd
import torch.distributed as dist

import train
from plumbing.errors import InputError
from plumbing.problems import Problems
from plumbing.ranks import Layout
from scripts import report
from scripts.report import Run
from teacher import Teacher, check_teacher

PAYS = 4 / 3  # devices with a teacher over devices without (App. D)
LOGGED = ["zero_variance", "grad_norm"]
LOGGED += ["teacher_mae", "teacher_mae_explore", "teacher_noise_floor"]


def measures(run: Run, first: int, last: int) -> dict[str, float]:
    """The table's numbers for the steps first..last; NaN where one is not known."""
    m = run.metrics.reindex(columns=LOGGED).loc[first:last]
    # A step without a live group divides by one in training, too.
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
        "teacher MAE − noise floor": (m.teacher_mae - m.teacher_noise_floor).mean(),
        "Spearman, exploring": known.predicted.rank().corr(known.y.rank()),
        "predicted, greedy": greedy.predicted.mean(),
        "outcome y, greedy": greedy.y.mean(),
        "predicted, exploring": exploring.predicted.mean(),
        "outcome y, exploring": exploring.y.mean(),
        "lift, predicted": (greedy.predicted - greedy.pool_mean).mean(),
        "lift, outcome": greedy.y.mean() - exploring.y.mean(),
    }


def audit(methods: dict[str, list[Run]]) -> str:
    """A table for each quarter of the longest run's steps."""
    longest, parts = max(run.metrics.index[-1] for runs in methods.values() for run in runs), []
    width = -(-longest // 4)
    for first in range(1, longest + 1, width):
        last = min(first + width - 1, longest)
        of_steps = partial(measures, first=first, last=last)
        parts.append(report.by_method(f"Steps {first} to {last}", methods, of_steps, "", 3))
    return "\n".join(parts)


def read_by_teacher(run: Run, model: str) -> np.ndarray:
    """What a teacher that learns from this run's outcomes predicts for each of its selections, in
    their order: before it hears how they came out, nor the step before (K.3's asynchrony)."""
    settings = {field.name: run.config[field.name] for field in fields(train.Config)}
    config = train.Config(**settings | {"teacher_model": str(model), "teacher_ranks": 0})
    check_teacher(config.teacher_model, config.max_prompt_tokens)
    problems, layout, predicted, unheard = Problems(config.train_data), Layout(config), [], []
    layout.connect(config.timeout_minutes)
    try:
        teacher = Teacher(config, layout.device, layout.shard, layout.group)
        for _, rows in run.selections.groupby("step"):
            questions = [problems.question(i) for i in rows.chosen]
            predicted.append(teacher.predict(questions))
            for question, successes in unheard:
                teacher.update(question, successes, config.group_size)
            unheard = list(zip(questions, rows.successes, strict=True))
    finally:
        dist.destroy_process_group()
    return np.concatenate(predicted)


def picked(predicted_N: np.ndarray, live_N: np.ndarray, K: int) -> float:
    """Over all pools of K of these N ≥ K problems, the share whose highest prediction is a live
    one's. The j-th highest of N is the highest of C(N - j, K - 1) pools."""
    n, order = len(live_N), np.argsort(-predicted_N, kind="stable")
    pools = [math.comb(n - 1 - j, K - 1) / math.comb(n, K) for j in range(n)]
    return float(pools @ live_N[order])


def would_pay(run: Run, predicted_N=None) -> dict[str, float]:
    """r, x and the predicted S with its 95% interval (a jackknife over tenths of the run), had
    Alg. 1 chosen the run's problems with these predictions; without any, with a perfect teacher's.
    live: the run's own share of live groups. NaN where it has none."""
    K, epsilon, P = (run.config[name] for name in ("candidates", "epsilon", "prompts_per_step"))
    rows = run.selections.assign(live=run.selections.y > 0)
    rows["predicted"] = rows.live.astype(float) if predicted_N is None else predicted_N
    size = math.ceil(K / P)  # steps that a pool takes
    cosine, pools = run.curve("grad_cosine"), []
    for at, part in rows.groupby((rows.step - 1) // size):
        if len(part) >= K:
            best = picked(part.predicted.to_numpy(), part.live.to_numpy(), K)
            own = epsilon * part.live.mean() + (1 - epsilon) * best
            known = cosine[(cosine.index - 1) // size == at].mean()
            pools.append({"live": part.live.mean(), "own": own, "cosine": known})
    pools = pd.DataFrame(pools, columns=["live", "own", "cosine"])

    def numbers(tenths: list[pd.DataFrame]) -> tuple[float, float]:
        some = pd.concat(tenths)
        return some.own.mean() / some.live.mean(), report.signal(some.live, some.cosine)

    tenths = [pools.iloc[i] for i in np.array_split(range(len(pools)), 10) if len(i)]
    if len(tenths) < 2 or not pools.live.any():
        return {"live": pools.live.mean()} | dict.fromkeys(("r", "x", "S", "low", "high"), math.nan)
    r, x = numbers(tenths)
    S, low, high = report.ratio_interval(lambda t: report.predicted_speed(*numbers(t)), tenths)
    return {"live": pools.live.mean(), "r": r, "x": x, "S": S, "low": low, "high": high}


def says(found: dict[str, float], perfect: bool) -> str:
    """yes, no or open; of a perfect teacher no, or open."""
    if found["high"] < PAYS:
        return "no"
    return "yes" if found["low"] > PAYS and not perfect else "open"


def answers(runs: list[Run], model: str | None) -> str:
    """Would a teacher pay? A row for each run and teacher."""
    lines = []
    for run in runs:
        teachers = {"a perfect one": None}
        if model:
            teachers[model] = read_by_teacher(run, model)
        for name, predicted_N in teachers.items():
            found = would_pay(run, predicted_N)
            S = "{S:.2f} ({low:.2f} to {high:.2f})".format(**found)
            numbers = f"{1 - found['live']:.0%}", f"{found['r']:.2f}", f"{found['x']:.2f}", S
            lines.append([run.folder.name, name, *numbers, says(found, predicted_N is None)])
    header = ["run", "teacher", "dead groups", "r", "x", "predicted S", "S > 4/3"]
    return report.table("Would a teacher pay for 4/3 of the devices?", header, lines)


def main(argv=None) -> None:
    """The command line of `audit`."""
    parser = report.parser(__doc__, runs=True)
    parser.add_argument("--teacher", metavar="MODEL", help="hub id or folder: would it pay?")
    args = parser.parse_args(argv)
    with report.one_line("audit", ValueError):
        methods = report.load_methods(args.runs)
        print(audit(methods))
        runs = [run for runs in methods.values() for run in runs]
        alone = [run for run in runs if not run.config["teacher_model"]]
        if alone:
            print(answers(alone, args.teacher), end="")
        elif args.teacher:
            raise InputError("--teacher asks about runs without a teacher, and there is none here")


if __name__ == "__main__":
    main()
