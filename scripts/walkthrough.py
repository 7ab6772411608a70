"""Writes docs/walkthrough.md: one training step of the demo, followed with the numbers that the code computed.

    python scripts/walkthrough.py

It runs `train.py` (FLAGS) on the CPU and takes notes around a few functions; the run is the same as without them.
Nothing is computed here but what the page calls "by hand": plain arithmetic on the figures that it prints.
"""

import argparse
import copy
import math
import os
import sys
import tempfile
from contextlib import ExitStack, redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

os.environ.update(
    CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1"
)  # the same everywhere
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import grpo
import rollout
import sampler
import train
from verify import extract_boxed

ROOT = Path(train.__file__).parent
# The teacher makes dozens of Adam steps a training step, which blow rounding differences between CPUs up: by step 10
# they change a choice. This seed and step are ones where predictions still agree to 1e-5, even after the step.
STEP = 4
FLAGS = f"--preset demo --seed 5 --teacher_lag 0 --steps {STEP}"

PAGE = r"""# One training step, followed with real numbers

<!-- Written by scripts/walkthrough.py. Do not edit: change the script and run it again. -->

This page follows step {step} of

    python train.py {flags}

and in it one prompt of {P}. `scripts/walkthrough.py` runs that command and takes notes around the functions named here,
so every number was computed by the code. *By hand* is arithmetic on the printed figures, set beside what the code has;
the last digit can differ. Read `train.train` next to it. (`--teacher_lag 0` is Algorithms 1 and 2 to the letter, one
after the other; by default the teacher learns while the student works, and is one step behind.)

A problem of the demo starts at a three-digit number and applies a chain of invented words to it. Each word stands for a
rule that the student knows well, a little, or hardly at all. Sizes: P = {P} prompts a step, G = {G} completions of
each, so B = P · G = {B}; pools of K = {K} candidates; ε = {epsilon}.

## 1. The teacher scores a pool of candidates

*Alg. 1, lines 4-10; Figure 1, steps 1-2. `sampler.Goldilocks.propose`, `teacher.Teacher.predict`*

Each prompt gets a pool of {K} problems that were not trained on before (`sampler.Uniform.draw`). The teacher reads the
bare question and predicts its utility f = 0.5 · σ(wᵀ MeanPool + b), a number from 0 to 0.5 (`teacher.UtilityModel`).
At first it said 0.25 of everything; {was.pushed} outcomes later it tells problems apart. The pool of prompt {prompt}:

{pool}

## 2. One is chosen, ε-greedily

*Alg. 1, lines 11-16. `sampler.epsilon_greedy`*

For this prompt r = {draw:.4f} was drawn. It is not below ε = {epsilon}, so the highest prediction wins:
problem {problem} with f = {f:.4f}. Below ε the choice from the pool is uniform; that befell prompts
{explored}.
The others of each pool go back and can be drawn again.

## 3. The student answers it {G} times

*Figure 1, step 3; App. M. `rollout.PromptEncoder`, `rollout.Generator.generate`*

The prompt (the demo has no header and a footer of one word; real models get the paper's):

    {text}

{G} completions are sampled at temperature {temperature}, of at most {max_completion_tokens} tokens. Some of them:

{samples}

## 4. Verdicts become rewards

*Section 2. `verify.Verifier.grade`, called by `train.Student.rollout`*

The last `\boxed{{}}` of a completion is compared with the gold answer `{gold}`; the way to it is not judged. Rewards:

    {rewards}

So p̂ = {right}/{G} = {p:.4f}.

## 5. What the group is worth

*Section 3.3, Eq. 1. `sampler.utility_target`, `grpo.zero_variance_probability`, `grpo.dead_groups`*

- The utility is y = √(p̂(1 - p̂)) = {y:.4f}. By hand: √({p:.4f} · {q:.4f}) = {hand_y:.4f}. The teacher had said {f:.4f}.
- If the true success probability is p, all {G} agree, and teach nothing, with probability p^{G} + (1 - p)^{G} (Eq. 1).
  For p = {p:.4f} that is {zero[0]:.6f}. By hand: {p:.4f}^{G} + {q:.4f}^{G} = {hand_zero:.6f}.
  For p = 0.5 it is {zero[1]:.6f}, for p = 0.01 it is {zero[2]:.6f}.
- It does happen: {dead} of the {P} groups of this step are dead, {all_wrong} all wrong and {all_right} all right.
  By hand {dead}/{P} = {hand_dead:.4f}; `zero_variance` in metrics.jsonl is {m[zero_variance]:.4f}.

## 6. Rewards become advantages

*Section 2, "Advantage computation". `grpo.group_advantages`*

Â = (r - mean)/std within the group. The rewards have mean p̂ and standard deviation y, so there are two values:

- right: (1 - p̂)/y. By hand: {q:.4f}/{y:.4f} = {hand[1]:.4f}. The code has {code_right:.4f}.
- wrong: -p̂/y. By hand: -{p:.4f}/{y:.4f} = {hand[0]:.4f}. The code has {code_wrong:.4f}.

They cancel: {right} · {hand[1]:.4f} + {wrong} · ({hand[0]:.4f}) = {cancel:.2f}. In a dead group every Â is exactly 0.

## 7. Advantages become a loss

*L_PG of Section 2, clip of Section 6. `grpo.row_weights`, `grpo.policy_loss`*

L = -Σ w · min(ρÂ, clip(ρ)Â), a sum over all response tokens. ρ is a token's probability now over its probability when
it was sampled. w = 1/(B · |o|), with |o| the tokens of the row (its stop token included), makes L the mean over {B}
rows of the mean over their tokens. So a row's share of L is -Â/B times its mean ratio ρ̄, while no token is clipped:

{shares}

- **Before the update** every ρ is 1. The group's loss by hand is {hand_before:.6f}; `grpo.policy_loss` gives
  {code_before:.6f}, and `loss` in metrics.jsonl, for the whole batch, is {loss:.6f}. The value says nothing here;
  its gradient does. At the first token of completion 1 it is ∂L/∂log π = -wÂ: by hand {hand_gradient:.3e};
  autograd left {code_gradient:.3e}. Where it is negative, descent makes the token likelier.
- **After the update**, in which all live groups moved the weights together, the loss of the same tokens by hand is
  {hand_after:.6f}; `grpo.policy_loss` gives {code_after:.6f}. Tokens clipped: {clipped}. The mean of ρ̄ is
  {ratio_right:.6f} over the right completions and {ratio_wrong:.6f} over the wrong ones. A loss below 0 says that the
  right ones gained on the wrong ones.

## 8. The student makes one step

*Figure 1, step 4; App. K.1. `train.Student.update`*

- **Skipped:** rows with Â = 0 have no gradient and are not sent through the model. By hand: ({P} - {dead}) live groups
  · {G} = {live_rows} rows; `forwarded_rows` is {m[forwarded_rows]} of {B}. Dead rows still count in B, so that what a
  live group contributes does not depend on how many others are dead.
- **Gradient norm before clipping:** {m[grad_norm]:.4f}, which is {cut} the limit of {max_grad_norm}.
- **AdamW** makes one step at rate {m[learning_rate]}, and the generator gets the new weights.

## 9. The teacher learns from the outcomes

*Section 3.3, Alg. 2; Figure 1, steps 5-6. `teacher.Teacher.update`, `teacher.Teacher._refine`, `teacher.Teacher._step`*

Every group, dead ones too, becomes a sample (q, y). The loop hands them over right after the verdicts, before step 8:
neither needs the other.

- **Push and slide:** {was.pushed} samples so far, {now.pushed} with this step's. The buffer keeps the latest
  {replay_capacity}: it held {was.size} and now holds {now.size}.
- **Trigger:** after every {teacher_update_every}th sample, so at {triggers}.
- **Refine:** each time, the buffer is shuffled into batches of {teacher_batch_size} and gone through {teacher_epochs}
  times, with an AdamW step for each batch. By hand: {teacher_epochs} · ({batches}) = {hand_updates} steps; the teacher
  counted {updates}.

For problem {problem} the target was y = {y:.4f}; the prediction was {f:.4f} and is now {f_now:.4f}. All {P}:

{outcomes}

The mean of (f - y)² over them, by hand, is {mse[0]:.4f} before and {mse[1]:.4f} after, when it has seen them. The
honest measure is the error before: mean |f - y| by hand is {hand_mae:.4f}, and `teacher_mae` in metrics.jsonl
(`sampler.outcome_metrics`, Section 5.4) is {m[teacher_mae]:.4f}.

The next `sampler.Goldilocks.propose` scores its pools with the new teacher, and the loop begins again.
`docs/paper_map.md` leads from each equation to its code and its test; `tests/test_theory.py` proves Eq. 1-3.
"""


def follow(folder: str) -> SimpleNamespace:
    """Runs the command; returns what was seen in its last step."""
    seen = SimpleNamespace(step=0, proposals=[], draws=[], rows=[], calls=[])

    def epsilon_greedy(real, utilities_N_K, epsilon, rng):
        seen.draws.append(
            copy.deepcopy(rng).random(len(utilities_N_K))
        )  # of a copy: the run's own is untouched
        return real(utilities_N_K, epsilon, rng)

    def propose(real, goldilocks, n):
        seen.proposals.append(real(goldilocks, n))
        return seen.proposals[-1]

    def observe(real, goldilocks, index_N, successes_N, G):
        seen.step, seen.problems, teacher = seen.step + 1, goldilocks.problems, goldilocks.teacher

        def state():
            f_N = teacher.predict([seen.problems.question(i) for i in index_N])
            return SimpleNamespace(
                f_N=f_N, pushed=teacher.pushed, updates=teacher.updates, size=len(teacher.replay)
            )

        seen.was = state()
        real(goldilocks, index_N, successes_N, G)
        seen.now = state()

    def collate(real, *args):
        seen.rows.append(real(*args))
        return seen.rows[-1]

    def policy_loss(real, logp_N, old_logp_N, advantage_N, weight_N, **settings):
        logp_N.retain_grad()
        seen.calls.append((logp_N, old_logp_N, advantage_N, weight_N))
        return real(logp_N, old_logp_N, advantage_N, weight_N, **settings)

    def update(real, student, rollouts, rewards_P_G, learning_rate):
        seen.rows, seen.calls, seen.student = [], [], student
        metrics = real(student, rollouts, rewards_P_G, learning_rate)
        # The prompt to follow: a greedy choice with a mixed outcome (not half and half, where all |Â| are 1), and of
        # these the one with the most various completions, then the longest.
        G, texts, s = (
            rewards_P_G.shape[1],
            list(map(tuple, rollouts.completion_ids)),
            seen.proposals[seen.step - 1],
        )
        mixed = [
            n
            for n, k in enumerate(rewards_P_G.sum(dim=1))
            if 0 < k < G and k != G / 2 and not s.explored_N[n]
        ]
        seen.n = max(
            mixed,
            key=lambda n: (len(set(texts[n * G : (n + 1) * G])), len(texts[n * G])),
            default=0,
        )
        if seen.step == STEP:
            rows, pad_id = range(seen.n * G, (seen.n + 1) * G), student.tokenizer.pad_token_id
            _, *inputs = rollout.collate(rollouts, rows, pad_id, torch.device("cpu"))
            with torch.no_grad():
                seen.logp_after, _ = student.policy(*inputs, student.config.temperature)
        return metrics

    def log(real, run, metrics, groups=None, tokenizer=None):
        seen.m, seen.groups = metrics, groups
        real(run, metrics, groups, tokenizer)

    spots = [
        (sampler, epsilon_greedy),
        (sampler.Goldilocks, propose),
        (sampler.Goldilocks, observe),
    ]
    spots += [(rollout, collate), (grpo, policy_loss), (train.Student, update), (train.Run, log)]
    with ExitStack() as stack:
        for owner, note in spots:
            noted = partial(note, getattr(owner, note.__name__))
            stack.enter_context(
                patch.object(owner, note.__name__, lambda *a, noted=noted, **k: noted(*a, **k))
            )
        if train.main([*FLAGS.split(), "--out", folder]) or seen.step != STEP:
            raise RuntimeError("the run did not come to its last step")
    return seen


def each(*columns):
    """zip of columns that must be equally long."""
    return zip(*columns, strict=True)


def table(head: str, rows) -> str:
    """A Markdown table; `head` has the names of the columns separated by |. Floats get four digits."""
    columns = head.split("|")
    cells = [
        [f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows
    ]
    return "\n".join(
        "| " + " | ".join(line) + " |" for line in [columns, ["---"] * len(columns), *cells]
    )


def page(seen: SimpleNamespace) -> str:
    """The Markdown text: its braces are the local variables here and the run's configuration."""
    step, flags, c, m, was, now = STEP, FLAGS, seen.student.config, seen.m, seen.was, seen.now
    P, G, K, B, n = (
        c.prompts_per_step,
        c.group_size,
        c.candidates,
        c.prompts_per_step * c.group_size,
        seen.n,
    )
    groups, s, tokenizer = seen.groups, seen.proposals[STEP - 1], seen.student.tokenizer

    # The choice.
    prompt, problem, draw_N, f = n + 1, s.index_N[n], seen.draws[STEP - 1], s.utility_N[n]
    chosen = {problem: " ← chosen"}
    pool = table(
        "problem|text|predicted utility f",
        [
            (i, seen.problems.question(i), f"{v:.4f}{chosen.get(i, '')}")
            for i, v in each(s.pool_N_K[n], s.utilities_N_K[n])
        ],
    )
    draw, gold = draw_N[n], seen.problems.answer(problem)
    explored = (
        ", ".join(f"{i + 1} (r = {draw_N[i]:.4f})" for i in s.explored_N.nonzero()[0]) or "none"
    )

    # The group.
    rows, r_G = range(n * G, (n + 1) * G), groups.rewards_P_G[n].int().tolist()
    ids_G = [groups.rollouts.completion_ids[b] for b in rows]
    text = (
        tokenizer.decode(groups.rollouts.prompt_ids[rows[0]])
        .replace("\n", "\n    ")
        .replace("    \n", "\n")
    )
    texts = [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in ids_G]
    first = sorted(
        {t: g for g, t in reversed(list(enumerate(texts)))}.values()
    )  # the first row with each text
    shown = [g for g in first if r_G[g]][:2] + [g for g in first if not r_G[g]][:3]
    verdicts = [(f"`{extract_boxed(texts[g])}`", groups.statuses[rows[g]], r_G[g]) for g in shown]
    samples = [(g + 1, f"`{texts[g][:80]}`", *verdict) for g, verdict in each(shown, verdicts)]
    samples = table("completion|text|box|verdict|reward r", samples)
    rewards, right, wrong = " ".join(map(str, r_G)), sum(r_G), G - sum(r_G)
    p, q = right / G, 1 - right / G
    y, hand_y = sampler.utility_target(p), math.sqrt(round(p, 4) * round(q, 4))
    zero = [grpo.zero_variance_probability(x, G) for x in (p, 0.5, 0.01)]
    hand_zero = round(p, 4) ** G + round(q, 4) ** G

    # Its advantages and its loss. policy_loss met all rows of the step: those of this group are taken out again.
    A_G = grpo.group_advantages(groups.rewards_P_G, c.advantage_std)[n].tolist()
    code_right, code_wrong = A_G[r_G.index(1)], A_G[r_G.index(0)]
    hand = [round(-round(p, 4) / round(y, 4), 4), round(round(q, 4) / round(y, 4), 4)]
    cancel = round(right * hand[1] + wrong * hand[0], 2) + 0.0
    row_N = torch.cat([rows_N for rows_N, *_ in seen.rows[: len(seen.calls)]])
    mine = torch.cat([(row_N == b).nonzero()[:, 0] for b in rows])
    columns = [*each(*seen.calls), [logp_N.grad for logp_N, *_ in seen.calls]]
    logp, old, advantage, weight, gradient = (
        torch.cat(column).detach()[mine] for column in columns
    )
    clip = {"clip_low": c.clip_low, "clip_high": c.clip_high}
    code_before, _ = grpo.policy_loss(logp, old, advantage, weight, **clip)
    code_after, stats = grpo.policy_loss(seen.logp_after, old, advantage, weight, **clip)
    code_before, loss, clipped = (
        round(code_before.item(), 6) + 0.0,
        round(m["loss"], 6) + 0.0,
        int(stats["clipped"]),
    )
    ratio_G = [
        x.mean().item() for x in (seen.logp_after - old).exp().split([len(ids) for ids in ids_G])
    ]
    ratio_right, ratio_wrong = (
        sum(x for x, r in each(ratio_G, r_G) if r == k) / r_G.count(k) for k in (1, 0)
    )
    before_G = [-hand[r] / B for r in r_G]
    after_G = [-hand[r] / B * round(x, 6) for r, x in each(r_G, ratio_G)]
    hand_before, hand_after = round(sum(before_G), 6) + 0.0, sum(after_G)
    w_G = [f"{w:.4e}" for w in grpo.row_weights(groups.rollouts.lengths().reshape(P, G), c.loss)[n]]
    lines = each(range(1, G + 1), r_G, map(len, ids_G), A_G, w_G, before_G, ratio_G, after_G)
    shares = [(*line[:5], *(f"{x:.6f}" for x in line[5:])) for line in lines]
    shares.append(
        ("sum", right, sum(map(len, ids_G)), "", "", f"{hand_before:.6f}", "", f"{hand_after:.6f}")
    )
    shares = table(
        "completion|r|tokens|Â|w|share at ρ = 1|ρ̄ after the update|share after it", shares
    )
    hand_gradient, code_gradient = -float(w_G[0]) * hand[r_G[0]], gradient[0]

    # The whole step, and the teacher.
    k_P = groups.successes_P.tolist()
    y_P, f_P, f_now_P = sampler.utility_target(groups.successes_P / G), was.f_N, now.f_N
    all_wrong, all_right = k_P.count(0), k_P.count(G)
    dead = all_wrong + all_right
    hand_dead, live_rows = dead / P, (P - dead) * G
    cut = "longer than" if m["grad_norm"] > c.max_grad_norm else "within"
    choice = [("greedy", "explored")[e] for e in s.explored_N.astype(int)]
    fate = [{0: "dead, all wrong", G: "dead, all right"}.get(k, "live") for k in k_P]
    outcomes = each(range(1, P + 1), s.index_N, choice, f_P, k_P, y_P, f_now_P, fate)
    outcomes = table(f"prompt|problem|choice|f before|right of {G}|y|f after|group", outcomes)
    errors = [[round(x, 4) - round(y, 4) for x, y in each(xs, y_P)] for xs in (f_P, f_now_P)]
    mse, hand_mae, f_now = (
        [sum(e * e for e in es) / P for es in errors],
        sum(map(abs, errors[0])) / P,
        f_now_P[n],
    )
    at = [k for k in range(was.pushed + 1, now.pushed + 1) if k % c.teacher_update_every == 0]
    batches = [math.ceil(min(k, c.replay_capacity) / c.teacher_batch_size) for k in at]
    hand_updates, updates = c.teacher_epochs * sum(batches), now.updates - was.updates
    triggers, batches = ", ".join(map(str, at)), " + ".join(map(str, batches))
    return PAGE.format(**(vars(c) | locals()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs/walkthrough.md", help="file to write"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        text = page(follow(folder))
    args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
