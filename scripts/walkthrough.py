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
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # the same everywhere
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch

import grpo
import rollout
import sampler
import train
from verify import extract_boxed

# The teacher makes dozens of Adam steps a training step, which blow rounding differences between CPUs up: by step 10
# they change a choice. This seed and step were taken because there they stay below 1e-5, what the teacher learns in
# the step included (ATEN_CPU_CAPABILITY=default, avx2 and avx512 write the same page).
STEP = 4
FLAGS = f"--preset demo --seed 2 --teacher_lag 0 --steps {STEP}"


def follow(folder: str) -> SimpleNamespace:
    """Runs the command; returns what was seen in its last step."""
    seen = SimpleNamespace(step=0, proposals=[], draws=[], rows=[], calls=[])

    def epsilon_greedy(real, utilities_N_K, epsilon, rng):
        seen.draws.append(copy.deepcopy(rng).random(len(utilities_N_K)))  # of a copy: the run's own is untouched
        return real(utilities_N_K, epsilon, rng)

    def propose(real, goldilocks, n):
        seen.proposals.append(real(goldilocks, n))
        return seen.proposals[-1]

    def observe(real, goldilocks, index_N, successes_N, G):
        seen.step += 1
        seen.problems, teacher = goldilocks.problems, goldilocks.teacher
        questions = [seen.problems.question(i) for i in index_N]

        def state():
            f_N = teacher.predict(questions)
            return SimpleNamespace(f_N=f_N, pushed=teacher.pushed, updates=teacher.updates, size=len(teacher.replay))

        seen.before = state()
        real(goldilocks, index_N, successes_N, G)
        seen.after = state()
        s = seen.proposals[seen.step - 1]
        live = [n for n in range(len(index_N)) if successes_N[n] not in (0, G // 2, G) and not s.explored_N[n]]
        seen.n = min(live, key=lambda n: abs(successes_N[n] - G / 2), default=0)  # a mixed group, chosen greedily

    def collate(real, *args):
        out = real(*args)
        if seen.step == STEP:
            seen.rows.append(out[0])
        return out

    def policy_loss(real, logp_N, old_logp_N, advantage_N, weight_N, **settings):
        if seen.step == STEP:
            logp_N.retain_grad()
            seen.calls.append((logp_N, old_logp_N, advantage_N, weight_N))
        return real(logp_N, old_logp_N, advantage_N, weight_N, **settings)

    def update(real, student, rollouts, rewards_P_G, learning_rate):
        metrics = real(student, rollouts, rewards_P_G, learning_rate)
        if seen.step == STEP:
            c, seen.student = student.config, student
            rows = range(seen.n * c.group_size, (seen.n + 1) * c.group_size)
            _, ids, response = rollout.collate(rollouts, rows, student.tokenizer.pad_token_id, torch.device("cpu"))
            with torch.no_grad():
                seen.logp_after, _ = student.policy(ids, response, c.temperature)
        return metrics

    def log(real, run, metrics, rounds=(), tokenizer=None):
        seen.metrics, seen.rounds = metrics, rounds
        real(run, metrics, rounds, tokenizer)

    spots = [(sampler, epsilon_greedy), (sampler.Goldilocks, propose), (sampler.Goldilocks, observe)]
    spots += [(rollout, collate), (grpo, policy_loss), (train.Student, update), (train.Run, log)]
    with ExitStack() as stack:
        for owner, note in spots:
            real = getattr(owner, note.__name__)
            around = lambda *args, note=note, real=real, **kwargs: note(real, *args, **kwargs)  # noqa: E731
            stack.enter_context(patch.object(owner, note.__name__, around))
        if train.main([*FLAGS.split(), "--out", folder]) or seen.step != STEP:
            raise RuntimeError("the run did not come to its last step")
    return seen


def num(x, digits: int = 4) -> str:
    """A number for the page, without the minus of a rounded zero."""
    text = f"{float(x):.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text


def table(head: str, rows) -> str:
    """A Markdown table; `head` has the columns separated by |."""
    lines = [head.split("|"), ["---"] * len(head.split("|")), *rows]
    return "\n".join("| " + " | ".join(str(cell).strip() for cell in line) + " |" for line in lines)


def page(seen: SimpleNamespace) -> str:
    """The Markdown text."""
    c, m, n, tokenizer = seen.student.config, seen.metrics, seen.n, seen.student.tokenizer
    P, G, K = c.prompts_per_step, c.group_size, c.candidates
    B, s, (round_,) = P * G, seen.proposals[STEP - 1], seen.rounds
    problem, draw_N, successes_N = s.index_N[n], seen.draws[STEP - 1], round_.successes_P
    explored = ", ".join(f"{i + 1} (r = {num(draw_N[i])})" for i in range(P) if s.explored_N[i]) or "none"
    pool = [
        (i, seen.problems.question(i), num(f) + (" ←" if k == s.chosen_N[n] else ""))
        for k, (i, f) in enumerate(zip(s.pool_N_K[n], s.utilities_N_K[n], strict=True))
    ]

    # The group: its rows, their verdicts, and how the loss met them.
    rows = list(range(n * G, (n + 1) * G))
    r_G, ids_G = round_.rewards_P_G[n], [round_.rollouts.completion_ids[b] for b in rows]
    texts = tokenizer.batch_decode(ids_G, skip_special_tokens=True)
    first = {text: g for g, text in reversed(list(enumerate(texts)))}  # the first completion with each text
    shown = [g for reward in (1, 0) for g in sorted(first.values()) if r_G[g] == reward][:2]
    shown += [g for g in sorted(first.values()) if r_G[g] == 0][:2]
    samples = [
        (g + 1, f"`{texts[g].strip()[:80]}`", f"`{extract_boxed(texts[g])}`", round_.statuses[rows[g]], int(r_G[g]))
        for g in shown
    ]
    right, wrong = int(successes_N[n]), G - int(successes_N[n])
    p, y = right / G, sampler.utility_target(right / G)
    A_G = grpo.group_advantages(round_.rewards_P_G, c.advantage_std)[n]
    lengths_P_G = round_.rollouts.lengths().reshape(P, G)
    w_G = grpo.row_weights(lengths_P_G, c.loss)[n]

    # What policy_loss got and gave: all tokens of the step, then those of this group's rows.
    row_N = torch.cat(seen.rows[: len(seen.calls)])
    columns = [torch.cat(column) for column in zip(*seen.calls, strict=True)]
    columns.append(torch.cat([call[0].grad for call in seen.calls]))
    mine = torch.cat([(row_N == b).nonzero()[:, 0] for b in rows])
    logp, old, advantage, weight, gradient = (column.detach()[mine] for column in columns)
    clips = {"clip_low": c.clip_low, "clip_high": c.clip_high}
    loss_before, _ = grpo.policy_loss(logp, old, advantage, weight, **clips)
    loss_after, stats = grpo.policy_loss(seen.logp_after, old, advantage, weight, **clips)
    ratio_G = [x.mean() for x in (seen.logp_after - old).exp().split([len(ids) for ids in ids_G])]

    # By hand, from the figures as they are printed.
    A_right, A_wrong = round((1 - p) / round(y, 4), 4), round(-p / round(y, 4), 4)
    hand_A = [A_right if reward else A_wrong for reward in r_G]
    before_G = [round(-a / B, 6) for a in hand_A]
    after_G = [round(-a / B * round(float(x), 4), 6) for a, x in zip(hand_A, ratio_G, strict=True)]
    group = [
        (g + 1, int(r_G[g]), len(ids_G[g]), num(A_G[g]), f"{w_G[g]:.4e}", num(before_G[g], 6))
        + (num(ratio_G[g]), num(after_G[g], 6))
        for g in range(G)
    ]
    group.append(("sum", right, sum(map(len, ids_G)), "", "", num(sum(before_G), 6), "", num(sum(after_G), 6)))
    hand_gradient = -float(f"{w_G[0]:.4e}") * hand_A[0]

    # All groups, and the teacher.
    y_N = sampler.utility_target(successes_N / G)
    f0_N, f1_N, t0, t1 = seen.before.f_N, seen.after.f_N, seen.before, seen.after
    fate = {0: "dead: all wrong", G: "dead: all right"}
    outcomes = [
        (i + 1, s.index_N[i], "explored" if s.explored_N[i] else "greedy", num(f0_N[i]), int(successes_N[i]))
        + (num(y_N[i]), num(f1_N[i]), fate.get(successes_N[i], "live"))
        for i in range(P)
    ]
    dead = [int((successes_N == k).sum()) for k in (0, G)]
    mse = [sum((round(f, 4) - round(t, 4)) ** 2 for f, t in zip(f_N, y_N, strict=True)) / P for f_N in (f0_N, f1_N)]
    mae = sum(abs(round(f, 4) - round(t, 4)) for f, t in zip(f0_N, y_N, strict=True)) / P
    triggers = [k for k in range(t0.pushed + 1, t1.pushed + 1) if k % c.teacher_update_every == 0]
    batches = [math.ceil(min(k, c.replay_capacity) / c.teacher_batch_size) for k in triggers]
    prompt = tokenizer.decode(round_.rollouts.prompt_ids[rows[0]])
    code = "\n".join("    " + line if line else "" for line in prompt.split("\n"))
    clipped = m["grad_norm"] > c.max_grad_norm
    cut = "longer than" if clipped else "within"
    zero = {q: num(grpo.zero_variance_probability(q, G), 6) for q in (p, 0.5, 0.01)}

    return rf"""# One training step, followed with real numbers

<!-- Written by scripts/walkthrough.py. Do not edit: change the script and run it again. -->

This page follows step {STEP} of

    python train.py {FLAGS}

and in it one prompt of {P}. `scripts/walkthrough.py` runs that command and takes notes around the functions named here,
so every number is one that the code computed. Lines that say *by hand* are arithmetic on the printed figures, set beside
what the code has. Read `train.train` next to it: the loop has the same order. (`--teacher_lag 0` is Algorithms 1 and 2
to the letter, one after the other; by default the teacher learns while the student works, one step behind.)

In the demo a problem starts at a three-digit number and applies a chain of invented words to it. Each word stands for a
rule that the student knows well, a little, or hardly at all. Sizes: P = {P} prompts a step, G = {G} completions each,
so B = P · G = {B}; pools of K = {K} candidates; ε = {c.epsilon}.

## 1. The teacher scores a pool of candidates

*Alg. 1, lines 4-10; Figure 1, steps 1-2: `sampler.Goldilocks.propose`, `teacher.Teacher.predict`.*

Each prompt gets a pool of {K} problems that were not trained on before (`sampler.Unseen.draw`). The teacher reads the
bare question and predicts its utility f = 0.5 · σ(wᵀ MeanPool + b), a number from 0 to 0.5 (`teacher.UtilityModel`). It
began at 0.25 for everything; {t0.pushed} outcomes later it tells problems apart. The pool of prompt {n + 1}:

{table("problem | text | predicted utility f", pool)}

## 2. One is chosen, ε-greedily

*Alg. 1, lines 11-16: `sampler.epsilon_greedy`.*

For this prompt r = {num(draw_N[n])} was drawn. r ≥ ε = {c.epsilon}, so the highest prediction wins: problem {problem}
with f = {num(s.utility_N[n])}. In this step r < ε, and with it a uniform choice, befell prompts {explored}.
The other {K - 1} of the pool go back and can be drawn again.

## 3. The student answers it {G} times

*Figure 1, step 3; App. M: `rollout.PromptEncoder`, `rollout.Generator.generate`.*

The prompt (the demo has no header and a footer of one word; for real models both are the paper's):

{code}

{G} completions are sampled at temperature {c.temperature}, at most {c.max_completion_tokens} tokens each. Some of them:

{table("completion | text | box | verdict | reward r", samples)}

## 4. Verdicts become rewards

*Section 2: `verify.Verifier.grade`, called by `train.Student.rollout`.*

The last `\boxed{{}}` of a completion is compared with the gold answer `{seen.problems.answer(problem)}`; the way to it is
not judged. The {G} rewards are

    {" ".join(str(int(x)) for x in r_G)}

so p̂ = {right}/{G} = {num(p)}.

## 5. What the group is worth

*Section 3.3: `sampler.utility_target`. Eq. 1: `grpo.zero_variance_probability`, `grpo.dead_groups`.*

- Utility: y = √(p̂(1 - p̂)) = {num(y)}. By hand: √({num(p)} · {num(1 - p)}) = {num((p * (1 - p)) ** 0.5)}.
  The teacher had said {num(s.utility_N[n])}.
- Were the true success probability p = {num(p)}, all {G} would agree, and teach nothing, with probability
  p^{G} + (1 - p)^{G} = {zero[p]} (Eq. 1). By hand: {num(p)}^{G} + {num(1 - p)}^{G} = {num(p**G + (1 - p) ** G, 6)}. At p = 1/2 it is {zero[0.5]},
  at p = 0.01 {zero[0.01]}.
- It does happen: {sum(dead)} of this step's {P} groups are dead, {dead[0]} all wrong and {dead[1]} all right
  (`zero_variance` in metrics.jsonl: {num(m["zero_variance"])}; by hand {sum(dead)}/{P} = {num(sum(dead) / P)}).

## 6. Rewards become advantages

*Section 2, "Advantage computation": `grpo.group_advantages`.*

Â = (r - mean)/std within the group. The mean of the rewards is p̂ and their standard deviation is y, so there are two values:

- right: (1 - p̂)/y. By hand: {num(1 - p)}/{num(y)} = {num(A_right)}; the code has {num(A_G[r_G == 1].mean())}.
- wrong: -p̂/y. By hand: -{num(p)}/{num(y)} = {num(A_wrong)}; the code has {num(A_G[r_G == 0].mean())}.

They cancel: {right} · {num(A_right)} + {wrong} · ({num(A_wrong)}) = {num(right * A_right + wrong * A_wrong, 2)}. In a dead group every Â is exactly 0.

## 7. Advantages become a loss

*L_PG of Section 2, with the clip of Section 6: `grpo.row_weights`, `grpo.policy_loss`.*

L = -Σ w · min(ρÂ, clip(ρ)Â) over all response tokens. ρ is the probability of the token now over its probability when it
was sampled; w = 1/(B · |o|), with |o| the tokens of the row (stop token included), makes it the mean over {B} rows of the
mean over their tokens. A row's share of the loss is therefore -Â/B times its mean ratio ρ̄, as long as no clip bites:

{table("completion | r | tokens | Â | w | share at ρ = 1 | ρ̄ after the update | share after it", group)}

- **Before the update** every ρ is 1. The group's loss by hand: {num(sum(before_G), 6)}; `grpo.policy_loss` on these tokens: {num(loss_before, 6)}.
  (On the whole batch: {num(m["loss"], 6)}, also 0.) The loss says nothing, its gradient everything: at the first token of
  completion 1, ∂L/∂log π = -wÂ, by hand {hand_gradient:.3e}, and autograd left {gradient[0]:.3e}. A negative one: descent makes
  the token likelier.
- **After the update** (all live groups together moved the weights) the loss of the same tokens is, by hand, {num(sum(after_G), 6)};
  `grpo.policy_loss`: {num(loss_after, 6)}. Below 0 is better than before. Clipped tokens: {int(stats["clipped"])}. The mean ρ̄ of
  right completions is {num(sum(x for x, r in zip(ratio_G, r_G, strict=True) if r) / right)}, of wrong ones {num(sum(x for x, r in zip(ratio_G, r_G, strict=True) if not r) / wrong)}.

## 8. One step of the student

*Figure 1, step 4; App. K.1: `train.Student.update`.*

- **Skipped:** rows whose Â is 0 have no gradient and are not sent through the model. {P} - {sum(dead)} live groups of {G} make
  {(P - sum(dead)) * G} rows; `forwarded_rows` says {m["forwarded_rows"]} of {B}. Dead rows still count in B, so that the
  step's length does not depend on how many others are dead.
- **Gradient norm before clipping:** {num(m["grad_norm"])}, {cut} the limit of {c.max_grad_norm}: {"scaled down to it" if clipped else "left as it is"}.
- **AdamW** makes one step at rate {m["learning_rate"]}, and the generator gets the new weights.

## 9. The teacher learns from the outcomes

*Section 3.3, Alg. 2; Figure 1, steps 5-6: `teacher.Teacher.update`, `teacher.Teacher._refine`, `teacher.Teacher._step`.*

Every group, dead ones too, becomes a sample (q, y). `train.train` hands them over right after the verdicts, before step 8:
neither needs the other.

- **Push, slide:** {t0.pushed} samples before, {t1.pushed} after; the buffer holds the latest {c.replay_capacity} at most: {t0.size} before, {t1.size} after.
- **Trigger:** after every {c.teacher_update_every}th sample: at {", ".join(map(str, triggers))}.
- **Refine:** each time the buffer is shuffled into batches of {c.teacher_batch_size} ({", ".join(map(str, batches))} batches) and gone
  through {c.teacher_epochs} times. Optimizer steps by hand: {c.teacher_epochs} · ({" + ".join(map(str, batches))}) = {c.teacher_epochs * sum(batches)}; the teacher counted {t1.updates - t0.updates}.

For problem {problem} the target was y = {num(y)}: the prediction was {num(f0_N[n])} before and is {num(f1_N[n])} after. All {P}:

{table(f"prompt | problem | choice | f before | right of {G} | y | f after | group", outcomes)}

Mean (f - y)² over these {P}, by hand: {num(mse[0])} before, {num(mse[1])} after. Before learning is what counts: mean |f - y|
by hand {num(mae)}, in metrics.jsonl (`teacher_mae`, `sampler.prediction_metrics`, Section 5.4) {num(m["teacher_mae"])}.

The next call of `sampler.Goldilocks.propose` scores its pools with the new teacher, and the loop begins again.
`docs/paper_map.md` leads from each equation to its test; `tests/test_theory.py` proves what is used here.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/walkthrough.md", help="file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        text = page(follow(folder))
    args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
