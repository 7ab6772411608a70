"""Print docs/walkthrough.md: one training step of the demo, with the numbers of a real run.

    python -m experiments.walkthrough > docs/walkthrough.md

Runs the steps of `train.py` (FLAGS) on the CPU with train_step and records what passes through.
tests/experiments/test_walkthrough.py recomputes the page's numbers from those printed on it.
"""

import os
import textwrap
from types import SimpleNamespace

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist

import grpo
import train
from plumbing.batches import collate
from plumbing.data.problems import Problems
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process
from scripts import analysis
from verify import Verifier, extract_boxed

# The teacher makes dozens of Adam steps in a training step, which amplify rounding differences
# between CPUs. At this seed and step the printed digits are the same on two instruction sets.
STEP = 3
PROMPT = 4  # a greedy choice with a mixed outcome, not half and half, where all |Â| are 1
FLAGS = f"--preset demo --seed 0 --teacher_lag 0 --steps {STEP}"


def follow() -> SimpleNamespace:
    """Run the steps; return what the last of them passed through."""
    config = train.parse(FLAGS.split())
    layout, seen = Layout(config), SimpleNamespace()

    def record(step, groups, decode) -> None:
        seen.groups = groups
        group = groups[PROMPT - 1]
        rows = [(group.prompt_ids, completion) for completion in group.completions]
        seen.batch = collate(rows, layout.device)
        with torch.no_grad():
            seen.logp_N = student.policy(seen.batch, config.temperature)[0]

    with Verifier(workers=1) as verifier:
        layout.connect(timeout_minutes=1)
        seen.problems = Problems(config.train_data)
        seen.student = student = train.Student(config, layout, verifier)
        sampler = train.build_sampler(config, layout, seen.problems)
        seen.teacher = teacher = sampler.teacher
        for step in range(1, STEP + 1):
            seen.before = teacher.pushed, teacher.updates, len(teacher.replay)
            seen.m = train.train_step(step, student, sampler, seen.problems, record)
    dist.destroy_process_group()
    return seen


def table(columns, digits: str = ".4f") -> str:
    """A Markdown table of columns by name; floats in the format `digits`."""
    frame = pd.DataFrame(columns).map(lambda x: f"{x:{digits}}" if isinstance(x, float) else x)
    return analysis.markdown(list(frame), frame.to_numpy().tolist())


def page(seen: SimpleNamespace) -> str:
    """The Markdown text."""
    c, m, groups = seen.student.config, seen.m, seen.groups
    P, G, K, n = c.prompts_per_step, c.group_size, c.candidates, PROMPT - 1
    B = P * G
    question, decode = seen.problems.question, seen.student.tokenizer.decode
    k_P = [g.successes for g in groups]
    y_P = np.array([g.y for g in groups])
    f_P = np.array([g.utility for g in groups])
    wrong = k_P.count(0)
    right = k_P.count(G)

    # The choice.
    group = groups[n]
    problem, f, p, y = group.problem, group.utility, group.p_hat, group.y
    pool = {"problem": group.pool, "text": map(question, group.pool)}
    pool |= {"predicted utility f": group.utilities}
    explored = ", ".join(str(i) for i, g in enumerate(groups, 1) if g.explored)

    # The group.
    gold = seen.problems.golds([problem])[0][0]
    prompt = textwrap.indent(decode(group.prompt_ids), "    ")
    texts = [decode(o.ids, skip_special_tokens=True).strip() for o in group.completions]
    rows = pd.DataFrame({"text": [f"`{text}`" for text in texts]})
    rows["times"] = rows.groupby("text")["text"].transform("size")
    rows["box"] = list(map(extract_boxed, texts))
    rows["verdict"] = [o.status for o in group.completions]
    rows["r"] = r_G = [int(o.reward) for o in group.completions]
    distinct = rows.drop_duplicates("text")
    zero = [grpo.zero_variance_probability(x, G) for x in (p, 0.01)]

    # Its advantages and its loss.
    lengths_G = torch.tensor([len(o.ids) for o in group.completions])
    A_G = grpo.group_advantages(torch.tensor([r_G]).float(), c.advantage_std)[0]
    w_G = grpo.row_weights(lengths_G, P, c.loss, 0, 0)
    A_N = A_G[seen.batch.row_N]
    w_N = w_G[seen.batch.row_N]
    logp_N = seen.logp_N.clone().requires_grad_()
    clip = {"clip_low": c.clip_low, "clip_high": c.clip_high}
    loss, _ = grpo.policy_loss(logp_N, seen.logp_N, A_N, w_N, **clip)
    loss.backward()
    numbers = {"tokens": lengths_G, "Â": A_G, "w": w_G, "share of L": -A_G * w_G * lengths_G}
    rows = rows.assign(**{name: column.tolist() for name, column in numbers.items()})
    verdicts = rows.groupby(["r", *numbers], as_index=False).size()
    verdicts.insert(1, "times", verdicts.pop("size"))

    # The teacher.
    teacher, (pushed, updates, size) = seen.teacher, seen.before
    now_P = teacher.predict([question(g.problem) for g in groups])
    errors = [((f_P - y_P) ** 2).mean() for f_P in (f_P, now_P)]
    return rf"""# One training step with real numbers

<!-- Written by experiments/walkthrough.py. Do not edit: change the script and run it again. -->

This page follows one prompt through step {STEP} of `python train.py {FLAGS}`.
Read it beside `train.train_step`. By default the teacher learns while the student trains, and is
one step behind; here it is not.

A problem of the demo names a topic and applies invented words of that topic to a number. The
student has mastered the topic Amber, knows some words of Birch and Cedar, and none of the other
seven topics. P = {P} prompts have G = {G} completions each, so B = P · G = {B}. A pool has K = {K}
candidates, and ε = {c.epsilon}.

## 1. The teacher scores a pool of candidates

*Alg. 1, lines 4-9; Figure 1, steps 1-2. `sampler.Pooled.propose`, `teacher.Teacher.predict`*

Each prompt gets a pool of {K} problems that were not trained on before. The teacher reads the
question and predicts its utility f = 0.5 · σ(wᵀ MeanPool + b), at first 0.25 for every problem.
After {pushed} outcomes it rates prompt {n + 1}'s pool:

{table(pool)}

## 2. One candidate is chosen, ε-greedily

*Alg. 1, lines 10-16. `sampler.epsilon_greedy`*

The highest prediction wins: problem {problem} with f = {f:.4f}. With probability ε, in this step
for prompt {explored}, the choice is uniform instead.

## 3. The student answers it {G} times

*Figure 1, step 3; App. M. `rollout.PromptEncoder`, `rollout.Generator.generate`*

The student samples {G} completions at temperature {c.temperature}. The demo's prompt has no header
and a footer of one word:

{prompt}

The distinct completions and their number:

{table(distinct[["times", "text", "box", "verdict", "r"]])}

## 4. Verdicts become rewards

*Section 2. `verify.Verifier.grade`, called by `train.Student.rollout`*

The verifier compares the last `\boxed{{}}` of a completion with the reference answer `{gold}`. The
reward r is 1 if they are equal, so p̂ = {k_P[n]}/{G} = {p:.4f}.

## 5. The group's utility

*Section 3.3, Eq. 1. `sampler.utility_target`, `grpo.zero_variance_probability`, `grpo.dead_groups`*

- The utility is y = √(p̂(1 - p̂)) = {y:.4f}. The teacher had predicted {f:.4f}.
- A group is dead, with zero variance and no gradient, if all {G} rewards agree. The probability is
  p^{G} + (1 - p)^{G} (Eq. 1). For p = {p:.4f} that is {zero[0]:.6f}, for p = 0.01 {zero[1]:.6f}.
- In this step {wrong + right} of the {P} groups are dead: `zero_variance` is
  {m["zero_variance"]:.4f}.

## 6. Rewards become advantages

*Section 2, "Advantage computation". `grpo.group_advantages`*

Â = (r - mean)/std within the group, whose rewards have mean p̂ and standard deviation y. So a right
completion gets (1 - p̂)/y = {A_N.max():.4f}, a wrong one -p̂/y = {A_N.min():.4f}. In a dead group
every Â is exactly 0.

## 7. Advantages become a loss

*L_PG of Section 2, clip of Section 6. `grpo.row_weights`, `grpo.policy_loss`*

L = -Σ w · min(ρÂ, clip(ρ)Â) over all response tokens. ρ is a token's probability now over its
probability when it was sampled, and w = 1/(B · |o|) with |o| tokens in the row. Before the update
every ρ is 1, and a row's share of L is -Â/B:

{table(verdicts, ".6g")}

The group's loss, the sum of its {G} shares, is {round(loss.item(), 6) + 0.0:.6f}. Only its
gradient matters: at the first token of completion 1 ∂L/∂log π = -wÂ, and autograd gives
{logp_N.grad[0]:.3e}.

## 8. The student makes one step

*Figure 1, step 4; App. K.1. `train.Student.update`*

- **Skipped rows:** rows with Â = 0 have no gradient and do not pass through the model, but count
  in B: `forwarded_rows` is {m["forwarded_rows"]} of {B}.
- **AdamW** makes one step at rate {m["learning_rate"]}. The gradient's norm was
  {m["grad_norm"]:.4f}; it is clipped at {c.max_grad_norm}.

## 9. The teacher learns from the outcomes

*Section 3.3, Alg. 2; Figure 1, steps 5-6. `teacher.Teacher.update`*

Every group, also a dead one, becomes a sample (q, y). The buffer keeps the latest
{c.replay_capacity}; it held {size} and now holds {len(teacher.replay)}. After every
{c.teacher_update_every}th sample it is shuffled into batches of {c.teacher_batch_size} and passed
{c.teacher_epochs} times: {teacher.updates - updates} AdamW steps in this step.

For problem {problem} the target was y = {y:.4f}; the prediction was {f:.4f} and is now
{now_P[n]:.4f}. The mean of (f - y)² over all {P} problems falls from {errors[0]:.4f} to
{errors[1]:.4f}. `teacher_mae` in metrics.jsonl is the mean |f - y| before the update, when the
problems were unseen: {m["teacher_mae"]:.4f} (Section 5.4).
"""


def main() -> None:
    analysis.parser(__doc__).parse_args()
    begin_process()
    torch.set_num_threads(1)
    print(page(follow()), end="")


if __name__ == "__main__":
    main()
