"""Writes docs/walkthrough.md: one training step of the demo, with the numbers that the code had.

    python -m scripts.walkthrough

It makes the steps of `train.py` (FLAGS) on the CPU with train_step, and looks on. Nothing is
computed here but what the page calls "by hand": plain arithmetic on the figures that it prints.
"""

import copy
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}  # the same everywhere

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


def prompt_to_follow(selections, rollouts, G: int) -> int:
    """A greedy choice with a mixed outcome (not half and half, where all |Â| are 1), and of these
    the one with the most various completions, then the longest."""
    texts, right_P = list(map(tuple, rollouts.completion_ids)), rollouts.successes_P(G)
    mixed = (right_P > 0) & (right_P < G) & (right_P != G / 2) & ~selections.explored_N
    various = {n: len(set(texts[n * G : (n + 1) * G])) for n in mixed.nonzero()[0].tolist()}
    return max(various, key=lambda n: (various[n], len(texts[n * G])))


def follow() -> SimpleNamespace:
    """Makes the steps; returns what was seen in the last of them."""
    config = train.parse([*FLAGS.split(), "--sampler", f"{Path(__file__).resolve()}:Noted"])
    G, layout, seen = config.group_size, Layout(config), SimpleNamespace()

    def logps() -> torch.Tensor:
        """Of the tokens of the group that is followed, by the policy as it is."""
        with torch.no_grad():
            return student.policy(seen.batch, config.temperature)[0]

    def look(step, selections, rollouts, decode) -> None:
        if step == STEP:
            seen.selections, seen.rollouts = selections, rollouts
            seen.n = prompt_to_follow(selections, rollouts, G)
            rows = list(range(seen.n * G, (seen.n + 1) * G))
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


def each(*columns):
    """zip of columns that must be equally long."""
    return zip(*columns, strict=True)


def table(head: str, rows) -> str:
    """A Markdown table; `head` has the names of the columns separated by |. Floats get four
    digits."""
    lines = [head.split("|"), ["---"] * (head.count("|") + 1)]
    lines += [[f"{x:.4f}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(seen: SimpleNamespace) -> str:
    """The Markdown text."""
    c, m, was, now = seen.student.config, seen.m, seen.notes.was, seen.notes.now
    P, G, K, n, B = c.prompts_per_step, c.group_size, c.candidates, seen.n, len(seen.rollouts)
    s, rollouts, tokenizer = seen.selections, seen.rollouts, seen.student.tokenizer
    k_P, rewards_P_G = rollouts.successes_P(G).tolist(), rollouts.rewards_P_G(G)

    # The choice.
    problem, f, draw_N = s.index_N[n], s.utility_N[n], seen.notes.draws[STEP - 1]
    utility, mark = "{:.4f}{}".format, {problem: " ← chosen"}
    pool = each(s.pool_N_K[n], s.utilities_N_K[n])
    lines = [(i, seen.problems.question(i), utility(u, mark.get(i, ""))) for i, u in pool]
    pool = table("problem|text|predicted utility f", lines)
    explored = ", ".join(f"{i + 1} (r = {draw_N[i]:.4f})" for i in s.explored_N.nonzero()[0])

    # The group.
    rows = range(n * G, (n + 1) * G)
    r_G, right = rewards_P_G[n].int().tolist(), k_P[n]
    text = tokenizer.decode(rollouts.prompt_ids[rows[0]])
    text = text.replace("\n", "\n    ").replace("    \n", "\n")
    ids_G = [rollouts.completion_ids[b] for b in rows]
    texts = [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in ids_G]
    first = sorted(map(texts.index, set(texts)))  # the first row with each text
    shown = [g for g in first if r_G[g]][:2] + [g for g in first if not r_G[g]][:3]
    graded = [(f"`{extract_boxed(texts[g])}`", rollouts.statuses[rows[g]], r_G[g]) for g in shown]
    lines = [(g + 1, f"`{texts[g][:80]}`", *verdict) for g, verdict in each(shown, graded)]
    samples = table("completion|text|box|verdict|reward r", lines)
    p, q, y = right / G, 1 - right / G, utility_target(right / G)
    zero = [grpo.zero_variance_probability(x, G) for x in (p, 0.5, 0.01)]

    # Its advantages and its loss.
    A_B = grpo.group_advantages(rewards_P_G, c.advantage_std).flatten()
    w_B = grpo.row_weights(rollouts.lengths().reshape(P, G), c.loss).flatten()
    row_N, old_N = seen.batch.row_N, seen.old_logp_N.requires_grad_()
    columns = old_N.detach(), A_B[row_N], w_B[row_N]
    clip = {"clip_low": c.clip_low, "clip_high": c.clip_high}
    before, _ = grpo.policy_loss(old_N, *columns, **clip)
    (gradient,) = torch.autograd.grad(before, old_N)
    after, stats = grpo.policy_loss(seen.logp_N, *columns, **clip)
    hand = [round(x, 4) for x in (-round(p, 4) / round(y, 4), round(q, 4) / round(y, 4))]
    ratio_N = (seen.logp_N - old_N.detach()).exp()
    ratio_G = [ratio_N[row_N == b].mean().item() for b in rows]
    before_G = [-hand[r] / B for r in r_G]
    after_G = [share * round(ratio, 6) for share, ratio in each(before_G, ratio_G)]
    lines = []
    for g, b in enumerate(rows):
        line = [g + 1, r_G[g], len(ids_G[g]), A_B[b].item(), f"{w_B[b]:.4e}"]
        lines.append([*line, *(f"{x:.6f}" for x in (before_G[g], ratio_G[g], after_G[g]))])
    sums = ["sum", right, len(row_N), "", ""]
    lines.append([*sums, f"{sum(before_G) + 0.0:.6f}", "", f"{sum(after_G):.6f}"])
    head = "completion|r|tokens|Â|w|share at ρ = 1|ρ̄ after the update|share after it"
    shares = table(head, lines)
    right_ratio = sum(x for x, r in each(ratio_G, r_G) if r) / right
    wrong_ratio = sum(x for x, r in each(ratio_G, r_G) if not r) / (G - right)

    # The whole step, and the teacher.
    y_P, wrong_P, right_P = utility_target(rollouts.successes_P(G) / G), k_P.count(0), k_P.count(G)
    dead = wrong_P + right_P
    choice = [("greedy", "explored")[e] for e in s.explored_N.astype(int)]
    fate = [{0: "dead, all wrong", G: "dead, all right"}.get(k, "live") for k in k_P]
    head = f"prompt|problem|choice|f before|right of {G}|y|f after|group"
    lines = each(range(1, P + 1), s.index_N, choice, was.f_N, k_P, y_P, now.f_N, fate)
    outcomes = table(head, lines)
    errors = [round(f, 4) - round(y, 4) for f, y in each(was.f_N, y_P)]
    errors_now = [round(f, 4) - round(y, 4) for f, y in each(now.f_N, y_P)]
    at = [k for k in range(was.pushed + 1, now.pushed + 1) if k % c.teacher_update_every == 0]
    batches = [math.ceil(min(k, c.replay_capacity) / c.teacher_batch_size) for k in at]
    return rf"""# One training step, followed with real numbers

<!-- Written by scripts/walkthrough.py. Do not edit: change the script and run it again. -->

This page follows step {STEP} of

    python train.py {FLAGS}

and in it one prompt of {P}. `python -m scripts.walkthrough` makes the same steps and looks on, so
every number was computed by the code. *By hand* is arithmetic on the printed figures, set beside
what the code has; the last digit can differ. Read `train.train_step` next to it. (`--teacher_lag 0`
is Algorithms 1 and 2 to the letter, one after the other; by default the teacher learns while the
student works, and is one step behind.)

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
that befell prompts {explored or "none"}.
The others of each pool go back and can be drawn again.

## 3. The student answers it {G} times

*Figure 1, step 3; App. M. `rollout.PromptEncoder`, `rollout.Generator.generate`*

The prompt (the demo has no header and a footer of one word; real models get the paper's):

    {text}

{G} completions are sampled at temperature {c.temperature}, of at most {c.max_completion_tokens}
tokens. Some of them:

{samples}

## 4. Verdicts become rewards

*Section 2. `verify.Verifier.grade`, called by `train.Student.rollout`*

The last `\boxed{{}}` of a completion is compared with the gold answer
`{seen.problems.answer(problem)}`; the way to it is not judged. Rewards:

    {" ".join(map(str, r_G))}

So p̂ = {right}/{G} = {p:.4f}.

## 5. What the group is worth

*Section 3.3, Eq. 1. `sampler.utility_target`, `grpo.zero_variance_probability`, `grpo.dead_groups`*

- The utility is y = √(p̂(1 - p̂)) = {y:.4f}. By hand: √({p:.4f} · {q:.4f}) =
  {math.sqrt(round(p, 4) * round(q, 4)):.4f}. The teacher had said {f:.4f}.
- If the true success probability is p, all {G} agree, and teach nothing, with probability
  p^{G} + (1 - p)^{G} (Eq. 1). For p = {p:.4f} that is {zero[0]:.6f}. By hand:
  {p:.4f}^{G} + {q:.4f}^{G} = {round(p, 4) ** G + round(q, 4) ** G:.6f}.
  For p = 0.5 it is {zero[1]:.6f}, for p = 0.01 it is {zero[2]:.6f}.
- It does happen: {dead} of the {P} groups of this step are dead, {wrong_P} all wrong and {right_P}
  all right. By hand {dead}/{P} = {dead / P:.4f}; `zero_variance` in metrics.jsonl is
  {m["zero_variance"]:.4f}.

## 6. Rewards become advantages

*Section 2, "Advantage computation". `grpo.group_advantages`*

Â = (r - mean)/std within the group. The rewards have mean p̂ and standard deviation y, so there are
two values:

- right: (1 - p̂)/y. By hand: {q:.4f}/{y:.4f} = {hand[1]:.4f}. The code has
  {A_B[rows[r_G.index(1)]]:.4f}.
- wrong: -p̂/y. By hand: -{p:.4f}/{y:.4f} = {hand[0]:.4f}. The code has
  {A_B[rows[r_G.index(0)]]:.4f}.

They cancel: {right} · {hand[1]:.4f} + {G - right} · ({hand[0]:.4f}) =
{round(right * hand[1] + (G - right) * hand[0], 2) + 0.0:.2f}. In a dead group every Â is exactly 0.

## 7. Advantages become a loss

*L_PG of Section 2, clip of Section 6. `grpo.row_weights`, `grpo.policy_loss`*

L = -Σ w · min(ρÂ, clip(ρ)Â), a sum over all response tokens. ρ is a token's probability now over
its probability when it was sampled. w = 1/(B · |o|), with |o| the tokens of the row (its stop token
included), makes L the mean over {B} rows of the mean over their tokens. So a row's share of L is
-Â/B times its mean ratio ρ̄, while no token is clipped:

{shares}

- **Before the update** every ρ is 1. The group's loss by hand is {sum(before_G) + 0.0:.6f};
  `grpo.policy_loss` gives {round(before.item(), 6) + 0.0:.6f}, and `loss` in metrics.jsonl, for the
  whole batch, is {round(m["loss"], 6) + 0.0:.6f}. The value says nothing here; its gradient does.
  At the first token of completion 1 it is ∂L/∂log π = -wÂ: by hand
  {-float(f"{w_B[rows[0]]:.4e}") * hand[r_G[0]]:.3e}; autograd says {gradient[0]:.3e}. Where it is
  negative, descent makes the token likelier.
- **After the update**, in which all live groups moved the weights together, the loss of the same
  tokens by hand is {sum(after_G):.6f}; `grpo.policy_loss` gives {after:.6f}. Tokens clipped:
  {int(stats["clip_fraction"])}. The mean of ρ̄ is {right_ratio:.6f} over the right completions and
  {wrong_ratio:.6f} over the wrong ones. A loss below 0 says that the right ones gained on the wrong
  ones.

## 8. The student makes one step

*Figure 1, step 4; App. K.1. `train.Student.update`*

- **Skipped:** rows with Â = 0 have no gradient and are not sent through the model. By hand:
  ({P} - {dead}) live groups · {G} = {(P - dead) * G} rows; `forwarded_rows` is
  {m["forwarded_rows"]} of {B}. Dead rows still count in B, so that what a live group contributes
  does not depend on how many others are dead.
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
  through {c.teacher_epochs} times, with an AdamW step for each batch. By hand:
  {c.teacher_epochs} · ({" + ".join(map(str, batches))}) = {c.teacher_epochs * sum(batches)} steps;
  the teacher counted {now.updates - was.updates}.

For problem {problem} the target was y = {y:.4f}; the prediction was {f:.4f} and is now
{now.f_N[n]:.4f}. All {P}:

{outcomes}

The mean of (f - y)² over them, by hand, is {sum(e * e for e in errors) / P:.4f} before and
{sum(e * e for e in errors_now) / P:.4f} after, when it has seen them. The honest measure is the
error before: mean |f - y| by hand is {sum(map(abs, errors)) / P:.4f}, and `teacher_mae` in
metrics.jsonl (`sampler.outcome_metrics`, Section 5.4) is {m["teacher_mae"]:.4f}.

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
