"""What training curves cannot separate: Markdown tables from run folders.

    python -m scripts.audit runs/demo-* > audit.md

Values are mean ± sample standard deviation over runs. Predictions are those that a problem was
selected with, outcomes y = √(p̂(1-p̂)) of its G completions.

Exploring picks uniformly (the uniform sampler always does): it judges the teacher without bias, and
its mean outcome is the pool's. Greedy takes the largest of K predictions, so on average it
overrates. Lift: how far greedy lies above its pool, predicted (utility less the pool's mean) and in
outcomes (greedy less exploring). Noise floor: a perfect teacher's error, from G only.

Gradient norm: a dead group adds nothing to the sum but counts in the denominator, so fewer of them
raise the norm with no group's gradient changed. ÷ live share undoes it, as `--dead_rows out` does.

Of a uniform run it also answers: would a teacher pay, on 4/3 of the devices? S, how many times
fewer steps it would need, is predicted from r, how many times more groups would be live, and x, how
much of the gradient is signal already (analysis.predicted_speed). A perfect teacher gives the most
that r can be. `--teacher MODEL` has a real one learn from the run's own outcomes, as it would have
beside the run, and takes as r what it would have found in them:

    python -m scripts.audit runs/demo-uniform-seed0 --teacher demo/model
"""

import math
from functools import partial

import numpy as np
import pandas as pd
import torch.distributed as dist

import train
from plumbing import command_line
from plumbing.distributed.layout import Layout, begin_process
from plumbing.errors import InputError
from plumbing.problems import Problems
from scripts import analysis
from scripts.analysis import Run
from teacher import Teacher, check_teacher

PERFECT = "a perfect one"
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
        parts.append(analysis.by_method(f"Steps {first} to {last}", methods, of_steps, "", 3))
    return "\n".join(parts)


def read_by_teacher(run: Run, model: str) -> np.ndarray:
    """What a teacher that learns from this run's outcomes predicts for each of its selections, in
    their order: before it hears how they came out, or how the step before did (K.3's asynchrony).
    One process takes the batches of as many teacher ranks as the run would have had."""
    config = command_line.recorded(train.Config, run.config)
    config.teacher_model, config.teacher_ranks = model, 0
    config.teacher_batch_size *= max(1, run.config["world_size"] // 4)
    analysis.check_unchanged(config.train_data, run.config["train_data_crc32"])
    try:
        check_teacher(model, config.max_prompt_tokens)
        layout = Layout(config)
    except ValueError as error:
        raise InputError(str(error)) from error
    problems, predicted, unheard = Problems(config.train_data), [], []
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


def foretold(run: Run, predicted_N=None) -> dict[str, float]:
    """r, x and the predicted S with its 95% interval (a jackknife over tenths of the run), had
    Alg. 1 chosen the run's problems with these predictions; without any, with a perfect teacher's.
    live: the share of live groups that the run had. NaN: what it cannot tell."""
    K, epsilon, P = (run.config[name] for name in ("candidates", "epsilon", "prompts_per_step"))
    rows = run.selections.assign(live=run.selections.y > 0)
    rows["predicted"] = rows.live.astype(float) if predicted_N is None else predicted_N
    size = math.ceil(K / P)  # steps that give a pool
    cosine, found = run.curve("grad_cosine"), []
    for at, part in rows.groupby((rows.step - 1) // size):
        if len(part) >= K:
            best = picked(part.predicted.to_numpy(), part.live.to_numpy(), K)
            row = {
                "live": part.live.mean(),
                "cosine": cosine[(cosine.index - 1) // size == at].mean(),
            }
            found.append(row | {"taught": epsilon * row["live"] + (1 - epsilon) * best})
    found = pd.DataFrame(found, columns=["live", "cosine", "taught"])

    def numbers(tenths: list[pd.DataFrame]) -> tuple[float, float]:
        some = pd.concat(tenths)
        return some.taught.mean() / some.live.mean(), analysis.signal(some.live, some.cosine)

    tenths = [found.iloc[i] for i in np.array_split(range(len(found)), 10) if len(i)]
    enough = len(tenths) > 1 and found.live.any()
    r, x = numbers(tenths) if enough else (math.nan, math.nan)
    S = low = high = math.nan
    if r > 0 and x >= 0:
        S, low, high = analysis.ratio_interval(
            lambda t: analysis.predicted_speed(*numbers(t)), tenths
        )
    return {"live": found.live.mean(), "r": r, "x": x, "S": S, "low": low, "high": high}


def says(found: dict) -> str:
    """Of an S with its interval: does it pay? yes, no, or open."""
    return "no" if found["high"] < PAYS else "yes" if found["low"] > PAYS else "open"


def would_pay(run: Run, model: str | None) -> dict[str, dict]:
    """What is foretold of a perfect teacher and, if asked, of this one, each with its answer."""
    perfect = foretold(run)
    # That a perfect one pays does not say that one does; that it does not says that none does.
    at_best = "no" if says(perfect) == "no" else "open"
    found = {PERFECT: perfect | {"says": at_best}}
    if model:
        learned = foretold(run, read_by_teacher(run, model))
        found[model] = learned | {"says": "no" if at_best == "no" else says(learned)}
    return found


def answers(runs: list[Run], model: str | None) -> str:
    """Would a teacher pay? For each run a row for a perfect one and, if asked, one for `model`."""
    lines = []
    for run in runs:
        for name, found in would_pay(run, model).items():
            numbers = (analysis.number(found[key]) for key in ("r", "x"))
            S = analysis.interval(found["S"], found["low"], found["high"])
            line = [run.folder.name, name, f"{1 - found['live']:.0%}", *numbers, S]
            lines.append([*line, found["says"]])
    header = ["run", "teacher", "dead groups", "r", "x", "predicted S", "S > 4/3"]
    note = "–: not known, as no group was live, or no `grad_cosine` was logged."
    return analysis.table("Would a teacher pay for 4/3 of the devices?", header, lines, note)


def main(argv=None) -> None:
    """The command line of `audit`."""
    parser = analysis.parser(__doc__, runs=True)
    what = "hub id or folder of a teacher, with the run's preset's settings: would it pay?"
    parser.add_argument("--teacher", metavar="MODEL", help=what)
    args = parser.parse_args(argv)
    begin_process()
    with analysis.one_line("audit"):
        methods = analysis.load_methods(args.runs)
        runs = [run for runs in methods.values() for run in runs]
        if not any(run.metrics.index[-1] for run in runs):
            raise InputError("none of these runs has finished a step")
        print(audit(methods))
        uniform = [run for run in runs if run.config["sampler"] == "uniform"]
        uniform = [run for run in uniform if not run.config["resample_rounds"]]
        if uniform:
            print(answers(uniform, args.teacher), end="")
        elif args.teacher:
            what = "plain uniform runs (--sampler uniform, no --resample_rounds)"
            raise InputError(f"--teacher is a question about {what}, and there is none here")


if __name__ == "__main__":
    main()
