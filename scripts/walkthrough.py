"""Writes docs/walkthrough.md: one training step of the demo, with the numbers that the code had.

    python -m scripts.walkthrough

It makes the steps of `train.py` (FLAGS) on the CPU with train_step, and looks on.
tests/test_walkthrough.py does the page's sums again, from the figures printed on it.
"""

import copy
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}  # the same everywhere

import numpy as np
import torch
import torch.distributed as dist

import grpo
import train
from plumbing.batches import collate
from plumbing.files import write_whole
from plumbing.flags import Parser
from plumbing.problems import Problems
from plumbing.ranks import Layout, begin_process
from sampler import Goldilocks, utility_target
from verify import Verifier, extract_boxed

ROOT = Path(train.__file__).resolve().parent
# The teacher makes dozens of Adam steps a training step, which blow rounding differences between
# CPUs up: by step 10 they change a choice. This seed and step are ones where predictions still
# agree to 1e-5, even after the step.
STEP = 4
PROMPT = 11  # a greedy choice with a mixed outcome, not half and half, where all |Â| are 1
FLAGS = f"--preset demo --seed 5 --teacher_lag 0 --steps {STEP}"


class Noted(Goldilocks):
    """The sampler, and notes of what it drew and of its teacher before and after learning."""

    def __init__(self, context):
        super().__init__(context)
        self.draws = []

    def choose(self, pool_N_K, utilities_N_K):
        # Of a copy: the run's own generator is untouched.
        self.draws.append(copy.deepcopy(self.rng).random(len(pool_N_K)))
        return super().choose(pool_N_K, utilities_N_K)

    def observe(self, index_N, successes_N, G) -> None:
        self.was = self.look(index_N)
        super().observe(index_N, successes_N, G)
        self.now = self.look(index_N)

    def look(self, index_N) -> SimpleNamespace:
        f_N = self.teacher.predict([self.problems.question(i) for i in index_N])
        t = self.teacher
        return SimpleNamespace(f_N=f_N, pushed=t.pushed, updates=t.updates, size=len(t.replay))


def follow() -> SimpleNamespace:
    """Makes the steps; returns what was seen in the last of them."""
    config = train.parse([*FLAGS.split(), "--sampler", f"{Path(__file__).resolve()}:Noted"])
    G, layout, seen = config.group_size, Layout(config), SimpleNamespace()

    def logps() -> torch.Tensor:
        """Of the tokens of the group that is followed, by the policy as it is."""
        with torch.no_grad():
            return student.policy(seen.batch, config.temperature)[0]

    def look(step, selections, rollouts, decode) -> None:
        seen.selections, seen.rollouts = selections, rollouts
        rows = list(range((PROMPT - 1) * G, PROMPT * G))
        seen.batch = collate(rollouts, rows, student.tokenizer.pad_token_id, layout.device)
        seen.old_logp_N = logps()

    with Verifier(workers=1) as verifier:
        layout.connect(timeout_minutes=1)
        seen.problems = Problems(config.train_data)
        seen.student = student = train.Student(config, layout, verifier)
        sampler = train.build_sampler(config, layout, seen.problems)
        for step in range(1, STEP + 1):
            seen.m = train.train_step(step, student, sampler, seen.problems, look)
        seen.logp_N, seen.notes = logps(), sampler.sampler
    dist.destroy_process_group()
    return seen


def table(head: str, rows) -> str:
    """A Markdown table; `head` has the names of the columns separated by |. Floats get four
    digits."""
    lines = [head.split("|"), ["---"] * (head.count("|") + 1)]
    lines += [[f"{x:.4f}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(seen: SimpleNamespace) -> str:
    """The Markdown text."""
    c, m, was, now = seen.student.config, seen.m, seen.notes.was, seen.notes.now
    P, G, K, n, B = c.prompts_per_step, c.group_size, c.candidates, PROMPT - 1, len(seen.rollouts)
    s, rollouts, decode = seen.selections, seen.rollouts, seen.student.tokenizer.decode
    k_P, rewards_P_G = rollouts.successes_P(G), rollouts.rewards_P_G(G)

    # The choice.
    problem, f, draw_N = s.index_N[n], s.utility_N[n], seen.notes.draws[STEP - 1]
    rows = []
    for i, u in zip(s.pool_N_K[n], s.utilities_N_K[n], strict=True):
        rows.append((i, seen.problems.question(i), f"{u:.4f}" + " ← chosen" * int(i == problem)))
    pool = table("problem|text|predicted utility f", rows)
    explored = ", ".join(f"{i + 1} (r = {draw_N[i]:.4f})" for i in s.explored_N.nonzero()[0])

    # The group: of equal completions the first is shown.
    group, right = range(n * G, (n + 1) * G), int(k_P[n])
    mine, r_G = rollouts.take(group), rewards_P_G[n].int().tolist()
    prompt = decode(mine.prompt_ids[0]).replace("\n", "\n    ").replace("    \n", "\n")
    texts = [decode(ids, skip_special_tokens=True).strip() for ids in mine.completion_ids]
    rows = enumerate(zip(texts, map(extract_boxed, texts), mine.statuses, r_G, strict=True))
    rows = [(g + 1, f"`{x}`", f"`{box}`", *of) for g, (x, box, *of) in rows if texts.index(x) == g]
    samples = table("completion|text|box|verdict|reward r", rows)
    p, y = right / G, utility_target(right / G)
    zero = [grpo.zero_variance_probability(x, G) for x in (p, 0.5, 0.01)]

    # Its advantages and its loss.
    A_B = grpo.group_advantages(rewards_P_G, c.advantage_std).flatten()
    w_B = grpo.row_weights(rollouts.lengths().reshape(P, G), c.loss).flatten()
    row_N, old_N = seen.batch.row_N, seen.old_logp_N
    A_N, w_N, ratio_N = A_B[row_N], w_B[row_N], (seen.logp_N - old_N).exp()
    clip = {"clip_low": c.clip_low, "clip_high": c.clip_high}
    after, stats = grpo.policy_loss(seen.logp_N, old_N, A_N, w_N, **clip)
    logp_N = old_N.clone().requires_grad_()
    before, _ = grpo.policy_loss(logp_N, old_N, A_N, w_N, **clip)
    before.backward()
    rows = []
    for g, b in enumerate(group):
        tokens, ratio = len(mine.completion_ids[g]), ratio_N[row_N == b].mean()
        share = -A_B[b] * w_B[b] * tokens
        row = [g + 1, r_G[g], tokens, A_B[b].item(), f"{w_B[b]:.4e}"]
        rows.append([*row, *(f"{x:.6f}" for x in (share, ratio, share * ratio))])
    head = "completion|r|tokens|Â|w|share at ρ = 1|ρ̄ after the update|share after it"
    shares = table(head, rows)

    # The whole step, and the teacher.
    y_P, wrong_P, right_P = utility_target(k_P / G), k_P == 0, k_P == G
    choice = np.where(s.explored_N, "explored", "greedy")
    fate = np.select([wrong_P, right_P], ["dead, all wrong", "dead, all right"], "live")
    head = f"prompt|problem|choice|f before|right of {G}|y|f after|group"
    columns = range(1, P + 1), s.index_N, choice, was.f_N, k_P, y_P, now.f_N, fate
    outcomes = table(head, zip(*columns, strict=True))
    errors = [((f_N - y_P) ** 2).mean() for f_N in (was.f_N, now.f_N)]
    at = [k for k in range(was.pushed + 1, now.pushed + 1) if k % c.teacher_update_every == 0]
    return rf"""# One training step, followed with real numbers

<!-- Written by scripts/walkthrough.py. Do not edit: change the script and run it again. -->

This page follows step {STEP} of

    python train.py {FLAGS}

and in it one prompt of {P}. `python -m scripts.walkthrough` makes the same steps and looks on, so
every number was computed by the code; a test does the sums again from the printed figures. Read
`train.train_step` next to it. (`--teacher_lag 0` is Algorithms 1 and 2 to the letter, one after the
other; by default the teacher learns while the student works, and is one step behind.)

A problem of the demo starts at a three-digit number and applies a chain of invented words to it.
Each word stands for a rule that the student knows well, a little, or hardly at all. Sizes: P = {P}
prompts a step, G = {G} completions of each, so B = P · G = {B}; pools of K = {K} candidates;
ε = {c.epsilon}.

## 1. The teacher scores a pool of candidates

*Alg. 1, lines 4-10; Figure 1, steps 1-2. `sampler.Pooled.propose`, `teacher.Teacher.predict`*

Each prompt gets a pool of {K} problems that were not trained on before (`sampler.Uniform.draw`).
The teacher reads the bare question and predicts its utility f = 0.5 · σ(wᵀ MeanPool + b), a number
from 0 to 0.5 (`teacher.UtilityModel`). At first it said 0.25 of everything; {was.pushed} outcomes
later it tells problems apart. The pool of prompt {n + 1}:

{pool}

## 2. One is chosen, ε-greedily

*Alg. 1, lines 11-16. `sampler.epsilon_greedy`*

For this prompt r = {draw_N[n]:.4f} was drawn. It is not below ε = {c.epsilon}, so the highest
prediction wins: problem {problem} with f = {f:.4f}. Below ε the choice from the pool is uniform;
that befell prompts {explored}.
The others of each pool go back and can be drawn again.

## 3. The student answers it {G} times

*Figure 1, step 3; App. M. `rollout.PromptEncoder`, `rollout.Generator.generate`*

The prompt (the demo has no header and a footer of one word; real models get the paper's):

    {prompt}

{G} completions are sampled at temperature {c.temperature}, of at most {c.max_completion_tokens}
tokens. The different ones:

{samples}

## 4. Verdicts become rewards

*Section 2. `verify.Verifier.grade`, called by `train.Student.rollout`*

The last `\boxed{{}}` of a completion is compared with the gold answer
`{seen.problems.answer(problem)}`; the way to it is not judged. Rewards:

    {" ".join(map(str, r_G))}

So p̂ = {right}/{G} = {p:.4f}.

## 5. What the group is worth

*Section 3.3, Eq. 1. `sampler.utility_target`, `grpo.zero_variance_probability`, `grpo.dead_groups`*

- The utility is y = √(p̂(1 - p̂)) = {y:.4f}. The teacher had said {f:.4f}.
- If the true success probability is p, all {G} agree, and teach nothing, with probability
  p^{G} + (1 - p)^{G} (Eq. 1). For p = {p:.4f} that is {zero[0]:.6f},
  for p = 0.5 it is {zero[1]:.6f}, for p = 0.01 it is {zero[2]:.6f}.
- It does happen: {(wrong_P | right_P).sum()} of the {P} groups of this step are dead,
  {wrong_P.sum()} all wrong and {right_P.sum()} all right: `zero_variance` in metrics.jsonl
  is {m["zero_variance"]:.4f}.

## 6. Rewards become advantages

*Section 2, "Advantage computation". `grpo.group_advantages`*

Â = (r - mean)/std within the group. The rewards have mean p̂ and standard deviation y, so there are
two values:

- right: (1 - p̂)/y = {A_N.max():.4f},
- wrong: -p̂/y = {A_N.min():.4f}.

Over a group they cancel. In a dead group every Â is exactly 0.

## 7. Advantages become a loss

*L_PG of Section 2, clip of Section 6. `grpo.row_weights`, `grpo.policy_loss`*

L = -Σ w · min(ρÂ, clip(ρ)Â), a sum over all response tokens. ρ is a token's probability now over
its probability when it was sampled. w = 1/(B · |o|), with |o| the tokens of the row (its stop token
included), makes L the mean over {B} rows of the mean over their tokens. So a row's share of L is
-Â/B times its mean ratio ρ̄, while no token is clipped:

{shares}

- **Before the update** every ρ is 1. The group's loss is the sum of its shares:
  `grpo.policy_loss` gives {round(before.item(), 6) + 0.0:.6f}, and `loss` in metrics.jsonl,
  for the whole batch, is {round(m["loss"], 6) + 0.0:.6f}. The value says nothing here; its gradient
  does. At the first token of completion 1 it is ∂L/∂log π = -wÂ; autograd says
  {logp_N.grad[0]:.3e}. Where it is negative, descent makes the token likelier.
- **After the update**, in which all live groups moved the weights together, `grpo.policy_loss`
  gives {after:.6f}. Tokens clipped: {int(stats["clip_fraction"])}. The mean of ρ is
  {ratio_N[A_N > 0].mean():.6f} over the right completions and {ratio_N[A_N < 0].mean():.6f} over
  the wrong ones. A loss below 0 says that the right ones gained on the wrong ones.

## 8. The student makes one step

*Figure 1, step 4; App. K.1. `train.Student.update`*

- **Skipped:** rows with Â = 0 have no gradient and are not sent through the model:
  `forwarded_rows` is {m["forwarded_rows"]} of {B}. Dead rows still count in B, so that what a live
  group contributes does not depend on how many others are dead.
- **Gradient norm before clipping:** {m["grad_norm"]:.4f}, which is
  {"longer than" if m["grad_norm"] > c.max_grad_norm else "within"} the limit of {c.max_grad_norm}.
- **AdamW** makes one step at rate {m["learning_rate"]}, and the generator gets the new weights.

## 9. The teacher learns from the outcomes

*Section 3.3, Alg. 2; Figure 1, steps 5-6. `teacher.Teacher.update`*

Every group, dead ones too, becomes a sample (q, y). `train_step` hands them over right after the
verdicts, before step 8: neither needs the other.

- **Push and slide:** {was.pushed} samples so far, {now.pushed} with this step's. The buffer keeps
  the latest {c.replay_capacity}: it held {was.size} and now holds {now.size}.
- **Trigger:** after every {c.teacher_update_every}th sample, so at {", ".join(map(str, at))}.
- **Refine:** each time, the buffer is shuffled into batches of {c.teacher_batch_size} and gone
  through {c.teacher_epochs} times, with an AdamW step for each batch. The teacher counted
  {now.updates - was.updates}.

For problem {problem} the target was y = {y:.4f}; the prediction was {f:.4f} and is now
{now.f_N[n]:.4f}. All {P}:

{outcomes}

The mean of (f - y)² over them is {errors[0]:.4f} before and {errors[1]:.4f} after, when it has
seen them. The honest measure is the error before: mean |f - y| is `teacher_mae` in metrics.jsonl
(`sampler.outcome_metrics`, Section 5.4), {m["teacher_mae"]:.4f}.

The next `sampler.Pooled.propose` scores its pools with the new teacher, and the loop begins again.
`docs/paper_map.md` leads from each equation to its code and its test; `tests/test_theory.py` proves
Eq. 1-3.
"""


def main() -> None:
    parser = Parser(description=__doc__.splitlines()[0])
    file = ROOT / "docs/walkthrough.md"
    parser.add_argument("--out", type=Path, default=file, help="file to write")
    args = parser.parse_args()
    begin_process()
    torch.set_num_threads(1)
    write_whole(args.out, page(follow()))


if __name__ == "__main__":
    sys.exit(main())
