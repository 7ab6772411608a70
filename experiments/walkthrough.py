"""Print docs/walkthrough.md: one training step of the demo, with the numbers of a real run.

    python -m experiments.walkthrough > docs/walkthrough.md

Runs the steps of `train.py` (FLAGS) on the CPU with train_step and records the last one.
tests/experiments/test_walkthrough.py compares the page with the output of this command.
"""

import os
import textwrap
from dataclasses import dataclass, field

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist

import grpo
import train
from plumbing.batches import Batch, collate
from plumbing.config import Config
from plumbing.data.problems import Problems
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process
from scripts import analysis
from teacher import Teacher
from verify import Verifier, extract_boxed

# The teacher makes dozens of Adam steps in a training step, which amplify rounding differences
# between CPUs. At this seed and step the printed digits are the same on two instruction sets.
STEP = 3
PROMPT = 4  # a greedy choice with a mixed outcome, not half and half, where all |Â| are 1
FLAGS = f"--preset demo --seed 0 --teacher_lag 0 --steps {STEP}"


@dataclass
class StepRecord:
    """One training step: its objects, the groups and the metrics."""

    problems: Problems
    student: train.Student
    teacher: Teacher
    pushed: int  # samples that the teacher had received before the step
    updates: int  # optimizer steps that it had taken before the step
    replay_size: int  # length of its replay buffer before the step

    groups: list[grpo.Group] = field(init=False)
    batch: Batch = field(init=False)  # the completions of the group that the page follows
    logp_N: torch.Tensor = field(init=False)  # their log-probs before the update
    metrics: dict = field(init=False)  # the step's row of metrics.jsonl

    @property
    def config(self) -> Config:
        """The settings of the run."""
        return self.student.config

    @property
    def group(self) -> grpo.Group:
        """The group that the page follows."""
        return self.groups[PROMPT - 1]

    def capture(self, step: int, groups: list[grpo.Group], decode) -> None:
        """Record the groups and the log-probs; train_step calls this before the update."""
        self.groups = groups
        rows = [(self.group.prompt_ids, completion) for completion in self.group.completions]
        self.batch = collate(rows, self.student.layout.device)
        with torch.no_grad():
            self.logp_N = self.student.policy(self.batch, self.config.temperature)[0]

    def advantages(self) -> torch.Tensor:
        """Compute the advantages Â of the followed group from its rewards, of shape (G,)."""
        rewards_G = [completion.reward for completion in self.group.completions]
        return grpo.group_advantages(torch.tensor([rewards_G]), self.config.advantage_std)[0]


def follow() -> StepRecord:
    """Run the steps; return the record of the last one."""
    config = train.parse(FLAGS.split())
    layout = Layout(config)
    with Verifier(workers=1) as verifier:
        layout.connect(timeout_minutes=1)
        problems = Problems(config.train_data)
        student = train.Student(config, layout, verifier)
        sampler = train.build_sampler(config, layout, problems)
        teacher = sampler.teacher
        for step in range(1, STEP + 1):
            before = teacher.pushed, teacher.updates, len(teacher.replay)
            record = StepRecord(problems, student, teacher, *before)
            record.metrics = train.train_step(step, student, sampler, problems, record.capture)
    dist.destroy_process_group()
    return record


def table(columns, digits: str = ".4f") -> str:
    """A Markdown table of columns by name; floats in the format `digits`."""
    frame = pd.DataFrame(columns).map(lambda x: f"{x:{digits}}" if isinstance(x, float) else x)
    return analysis.markdown(list(frame), frame.to_numpy().tolist())


# ---- the page: one function for each section


def page(record: StepRecord) -> str:
    """Write the page in Markdown."""
    sections = [
        introduction(record),
        pool_section(record),
        choice_section(record),
        completions_section(record),
        rewards_section(record),
        utility_section(record),
        advantages_section(record),
        loss_section(record),
        student_section(record),
        teacher_section(record),
    ]
    return "\n".join(sections)


def introduction(record: StepRecord) -> str:
    """Write the title, the demo and the sizes of the step."""
    c = record.config
    P, G, K = c.prompts_per_step, c.group_size, c.candidates
    B = P * G
    return f"""# One training step with real numbers

<!-- Written by experiments/walkthrough.py. Do not edit: change the script and run it again. -->

This page follows one prompt through step {STEP} of `python train.py {FLAGS}`.
Read it beside `train.train_step`. By default the teacher learns while the student trains, and is
one step behind; here it is not.

A problem of the demo names a topic and applies invented words of that topic to a number. The
student has mastered the topic Amber, knows some words of Birch and Cedar, and none of the other
seven topics. P = {P} prompts have G = {G} completions each, so B = P · G = {B}. A pool has K = {K}
candidates, and ε = {c.epsilon}.
"""


def pool_section(record: StepRecord) -> str:
    """Write section 1: the pool of candidates and the teacher's predictions."""
    group = record.group
    K = record.config.candidates
    pool = {
        "problem": group.pool,
        "text": [record.problems.question(problem) for problem in group.pool],
        "predicted utility f": group.utilities,
    }
    return f"""## 1. The teacher scores a pool of candidates

*Alg. 1, lines 4-9; Figure 1, steps 1-2. `sampler.Pooled.propose`, `teacher.Teacher.predict`*

Each prompt gets a pool of {K} problems that were not trained on before. The teacher reads the
question and predicts its utility f = 0.5 · σ(wᵀ MeanPool + b), at first 0.25 for every problem.
After {record.pushed} outcomes it rates prompt {PROMPT}'s pool:

{table(pool)}
"""


def choice_section(record: StepRecord) -> str:
    """Write section 2: the greedy choice, and the prompts that explored."""
    problem = record.group.problem
    f = record.group.utility
    explored = ", ".join(str(i) for i, g in enumerate(record.groups, 1) if g.explored)
    return f"""## 2. One candidate is chosen, ε-greedily

*Alg. 1, lines 10-16. `sampler.epsilon_greedy`*

The highest prediction wins: problem {problem} with f = {f:.4f}. With probability ε, in this step
for prompt {explored}, the choice is uniform instead.
"""


def completions_section(record: StepRecord) -> str:
    """Write section 3: the prompt and the distinct completions."""
    group = record.group
    G = group.size
    temperature = record.config.temperature
    decode = record.student.tokenizer.decode
    prompt = textwrap.indent(decode(group.prompt_ids), "    ")
    texts = [decode(o.text_ids).strip() for o in group.completions]
    rows = pd.DataFrame({"text": [f"`{text}`" for text in texts]})
    rows.insert(0, "times", rows.groupby("text")["text"].transform("size"))
    rows["box"] = [extract_boxed(text) for text in texts]
    rows["verdict"] = [o.status for o in group.completions]
    rows["r"] = [int(o.reward) for o in group.completions]
    return f"""## 3. The student answers it {G} times

*Figure 1, step 3; App. M. `rollout.PromptEncoder`, `rollout.Generator.generate`*

The student samples {G} completions at temperature {temperature}. The demo's prompt has no header
and a footer of one word:

{prompt}

The distinct completions and their number:

{table(rows.drop_duplicates("text"))}
"""


def rewards_section(record: StepRecord) -> str:
    """Write section 4: the verdicts and the pass rate."""
    group = record.group
    gold = record.problems.golds([group.problem])[0][0]
    pass_rate = f"{group.successes}/{group.size} = {group.p_hat:.4f}"
    return rf"""## 4. Verdicts become rewards

*Section 2. `verify.Verifier.grade`, called by `train.Student.rollout`*

The verifier compares the last `\boxed{{}}` of a completion with the reference answer `{gold}`. The
reward r is 1 if they are equal, so p̂ = {pass_rate}.
"""


def utility_section(record: StepRecord) -> str:
    """Write section 5: the utility, and the probability that a group is dead."""
    group = record.group
    G = group.size
    p, y, f = group.p_hat, group.y, group.utility
    dead_p = grpo.zero_variance_probability(p, G)
    dead_rare = grpo.zero_variance_probability(0.01, G)
    dead = sum(not g.live for g in record.groups)
    return f"""## 5. The group's utility

*Section 3.3, Eq. 1. `sampler.utility_target`, `grpo.zero_variance_probability`, `grpo.dead_groups`*

- The utility is y = √(p̂(1 - p̂)) = {y:.4f}. The teacher had predicted {f:.4f}.
- A group is dead, with zero variance and no gradient, if all {G} rewards agree. The probability is
  p^{G} + (1 - p)^{G} (Eq. 1). For p = {p:.4f} that is {dead_p:.6f}, for p = 0.01 {dead_rare:.6f}.
- In this step {dead} of the {len(record.groups)} groups are dead: `zero_variance` is
  {record.metrics["zero_variance"]:.4f}.
"""


def advantages_section(record: StepRecord) -> str:
    """Write section 6: the advantages of right and wrong completions."""
    A_G = record.advantages()
    return f"""## 6. Rewards become advantages

*Section 2, "Advantage computation". `grpo.group_advantages`*

Â = (r - mean)/std within the group, whose rewards have mean p̂ and standard deviation y. So a right
completion gets (1 - p̂)/y = {A_G.max():.4f}, a wrong one -p̂/y = {A_G.min():.4f}. In a dead group
every Â is exactly 0.
"""


def loss_section(record: StepRecord) -> str:
    """Write section 7: the shares of the loss, and its gradient at one token by autograd."""
    c = record.config
    completions = record.group.completions
    G = len(completions)
    lengths_G = torch.tensor([len(o.ids) for o in completions])
    A_G = record.advantages()
    w_G = grpo.row_weights(lengths_G, c.prompts_per_step, c.loss, 0, 0)
    A_N = A_G[record.batch.row_N]
    w_N = w_G[record.batch.row_N]
    logp_N = record.logp_N.clone().requires_grad_()
    clip = {"clip_low": c.clip_low, "clip_high": c.clip_high}
    loss, _ = grpo.policy_loss(logp_N, record.logp_N, A_N, w_N, **clip)
    loss.backward()

    rows = pd.DataFrame({"r": [int(o.reward) for o in completions]})
    rows["tokens"] = lengths_G.tolist()
    rows["Â"] = A_G.tolist()
    rows["w"] = w_G.tolist()
    rows["share of L"] = (-A_G * w_G * lengths_G).tolist()
    shares = rows.groupby(list(rows), as_index=False).size()
    shares.insert(1, "times", shares.pop("size"))
    return f"""## 7. Advantages become a loss

*L_PG of Section 2, clip of Section 6. `grpo.row_weights`, `grpo.policy_loss`*

L = -Σ w · min(ρÂ, clip(ρ)Â) over all response tokens. ρ is a token's probability now over its
probability when it was sampled, and w = 1/(B · |o|) with |o| tokens in the row. Before the update
every ρ is 1, and a row's share of L is -Â/B:

{table(shares, ".6g")}

The group's loss, the sum of its {G} shares, is {round(loss.item(), 6) + 0.0:.6f}. Only its
gradient matters: at the first token of completion 1 ∂L/∂log π = -wÂ, and autograd gives
{logp_N.grad[0]:.3e}.
"""


def student_section(record: StepRecord) -> str:
    """Write section 8: the rows that pass through the student, and its optimizer step."""
    c = record.config
    metrics = record.metrics
    B = c.prompts_per_step * c.group_size
    return f"""## 8. The student makes one step

*Figure 1, step 4; App. K.1. `train.Student.update`*

- **Skipped rows:** rows with Â = 0 have no gradient and do not pass through the model, but count
  in B: `forwarded_rows` is {metrics["forwarded_rows"]} of {B}.
- **AdamW** makes one step at rate {metrics["learning_rate"]}. The gradient's norm was
  {metrics["grad_norm"]:.4f}; it is clipped at {c.max_grad_norm}.
"""


def teacher_section(record: StepRecord) -> str:
    """Write section 9: the replay buffer, and the predictions before and after the update."""
    c = record.config
    teacher = record.teacher
    problem, y, f = record.group.problem, record.group.y, record.group.utility
    before_P = np.array([g.utility for g in record.groups])
    after_P = teacher.predict([record.problems.question(g.problem) for g in record.groups])
    y_P = np.array([g.y for g in record.groups])
    P = len(y_P)
    f_now = after_P[PROMPT - 1]
    mse_before = ((before_P - y_P) ** 2).mean()
    mse_after = ((after_P - y_P) ** 2).mean()
    return f"""## 9. The teacher learns from the outcomes

*Section 3.3, Alg. 2; Figure 1, steps 5-6. `teacher.Teacher.update`*

Every group, also a dead one, becomes a sample (q, y). The buffer keeps the latest
{c.replay_capacity}; it held {record.replay_size} and now holds {len(teacher.replay)}. After every
{c.teacher_update_every}th sample it is shuffled into batches of {c.teacher_batch_size} and passed
{c.teacher_epochs} times: {teacher.updates - record.updates} AdamW steps in this step.

For problem {problem} the target was y = {y:.4f}; the prediction was {f:.4f} and is now
{f_now:.4f}. The mean of (f - y)² over all {P} problems falls from {mse_before:.4f} to
{mse_after:.4f}. `teacher_mae` in metrics.jsonl is the mean |f - y| before the update, when the
problems were unseen: {record.metrics["teacher_mae"]:.4f} (Section 5.4).
"""


def main() -> None:
    analysis.parser(__doc__).parse_args()
    begin_process()
    torch.set_num_threads(1)
    print(page(follow()), end="")


if __name__ == "__main__":
    main()
