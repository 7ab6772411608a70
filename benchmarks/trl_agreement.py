"""Check that this project and TRL's GRPOTrainer compute the same numbers from the same rollouts.

    python -m venv trl_venv
    trl_venv/bin/pip install -r requirements.txt trl==1.16.0
    trl_venv/bin/python -m benchmarks.trl_agreement

TRL gets the tokens and rewards of 12 of the demo's groups and runs its own code: padding,
log-probs, advantages (`_generate_and_score_completions`) and loss (`_compute_loss`). Our side is
train.Student.update. Before the second of two updates the weights are moved, so that the ratio
differs from 1.

Five definitions differ on purpose; here the difference is removed. TRL divides advantages by the
std of ddof 1, plus 1e-4, we by that of ddof 0. TRL's `dapo` is a mean over the batch's tokens, ours
over groups of a group's tokens: TRL gets a group at a time. `dr_grpo` divides by the limit of
tokens, as our `constant` and not our `sum`. TRL's default KL multiplies k3 by the ratio. TRL weighs
the entropy of a token by 1 / the batch's tokens, we as its surrogate. Exit status 1 if numbers do
not agree.
"""

import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version

import pandas as pd
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector
from transformers import AutoTokenizer

import grpo
import train
from benchmarks.step import provenance
from grpo import Group
from plumbing.data.problems import Problems
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process
from plumbing.metrics import Stopwatch
from scripts import analysis
from verify import Verifier

# Hot and short. At temperature 0.7 the completions of a demo problem have one length, which would
# hide a wrong normalizer.
CONFIG = train.parse(["--preset", "demo", "--sampler", "uniform", "--temperature", "2"])
POLICY_SEED, REFERENCE_SEED = 1, 2
# Each side's float32 gradient is within 2.3e-5 of our float64 gradient, on three seeds.
TOLERANCE = 5e-5
HEADER = ["quantity", "ours", "TRL", "relative difference"]


def shift(model: torch.nn.Module, seed: int) -> None:
    """Move every weight by 10% of its tensor's RMS, the same way for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * p.square().mean().sqrt() * torch.randn(p.shape, generator=generator)


def gradient_of(model: torch.nn.Module) -> torch.Tensor:
    return parameters_to_vector(p.grad for p in model.parameters())


class MovedStudent(train.Student):
    """A student whose weights `shift` moves instead of AdamW. Keeps the loss and the gradient of
    each of its two updates."""

    def __init__(self, layout: Layout, **settings):
        super().__init__(replace(CONFIG, update_iterations=2, **settings), layout, verifier=None)
        self.updates = []
        if self.reference:
            shift(self.reference, REFERENCE_SEED)

    def apply(self, token_sums: dict[str, float], step: int) -> float:
        self.updates.append((torch.tensor(token_sums["loss"]), gradient_of(self.policy)))
        shift(self.policy, POLICY_SEED)
        self.optimizer.zero_grad()
        return 0.0


def sample(layout: Layout) -> list[Group]:
    """Generate and grade a group for each of 12 problems from easy to too hard."""
    difficulty = pd.read_json(CONFIG.val_data, lines=True).difficulty
    chosen = difficulty.sort_values(kind="stable").index[:192:16].tolist()
    groups = [Group(problem, CONFIG.group_size) for problem in chosen]
    with Verifier(workers=1) as verifier:
        student = train.Student(CONFIG, layout, verifier)
        problems = Problems(CONFIG.val_data)
        student.rollout(groups, problems, CONFIG.temperature, (0, 0, 0), Stopwatch())
    return groups


class TRL:
    """A GRPOTrainer with some settings, and the batch that it makes of our rollouts."""

    def __init__(self, groups: list[Group], **settings):
        from datasets import Dataset
        from trl import GRPOTrainer

        from examples.trl_demo import trl_config

        completions = [o for group in groups for o in group.completions]
        prompts = [group.prompt_ids for group in groups for _ in group.completions]
        tokens = {"prompt_ids": prompts, "completion_ids": [o.ids for o in completions]}
        # rollout_func returns token ids, so TRL never reads the text of a prompt.
        data = [{"prompt": str(b), "graded": o.reward} for b, o in enumerate(completions)]
        # With two updates a batch TRL records the log-probs before both.
        settings = {"num_iterations": 2, "epsilon_high": CONFIG.clip_high} | settings
        self.trainer = GRPOTrainer(
            CONFIG.model,
            lambda graded, **_: graded,
            trl_config(replace(CONFIG, out=tempfile.gettempdir()), **settings),
            Dataset.from_list(data),
            processing_class=AutoTokenizer.from_pretrained(CONFIG.model),
            rollout_func=lambda prompts, trainer: tokens | {"logprobs": None},
        )
        self.model = self.trainer.model.train()
        # TRL's training loop, which does not run here, would set this.
        self.trainer.current_gradient_accumulation_steps = 1
        if self.trainer.ref_model is not None:
            shift(self.trainer.ref_model, REFERENCE_SEED)
        self.batch = self.trainer._generate_and_score_completions(data)
        self.advantages = self.batch["advantages"].reshape(len(groups), -1)

    def updates(self, A_P_G: torch.Tensor, one_by_one: bool) -> list[tuple]:
        """Loss and gradient before and after `shift`. one_by_one: the mean over groups, each a
        batch of its own."""
        batch = {**self.batch, "advantages": A_P_G.flatten()}
        size = A_P_G.shape[1] if one_by_one else A_P_G.numel()
        rows_of_parts = torch.arange(A_P_G.numel()).split(size)
        results = []
        for _ in range(2):
            losses = []
            for rows in rows_of_parts:
                part = {name: x[rows] if x.dim() else x for name, x in batch.items()}
                part["num_items_in_batch"] = part["completion_mask"].sum()
                losses.append(self.trainer._compute_loss(self.model, part))
            loss = torch.stack(losses).mean()
            loss.backward()
            results.append((loss.detach(), gradient_of(self.model)))
            shift(self.model, POLICY_SEED)
            self.model.zero_grad()
        return results


# name: our settings, TRL's, whether TRL gets each group as a batch of its own
LOSSES = {
    "`grpo`": ({}, {}, False),
    "`constant` / `dr_grpo`": ({"loss": "constant"}, {"loss_type": "dr_grpo"}, False),
    "`batch` / `dapo`": ({"loss": "batch"}, {"loss_type": "dapo"}, False),
    "`dapo`, a group at a time": ({"loss": "dapo"}, {"loss_type": "dapo"}, True),
    "`grpo` + 0.04 KL": (
        {"kl_coef": 0.04},
        {"beta": 0.04, "use_bias_correction_kl": False},
        False,
    ),
    "`dapo` − 0.01 H, a group at a time": (
        {"loss": "dapo", "entropy_coef": 0.01},
        {"loss_type": "dapo", "entropy_coef": 0.01},
        True,
    ),
}
Comparison = tuple[str, torch.Tensor, torch.Tensor]  # name, ours, TRL's


def comparisons(layout: Layout, groups: list[Group]) -> Iterator[Comparison]:
    """Yield the rows of the table: advantages, then the losses with our advantages. Before the
    weights have moved only the gradient says something."""

    def column(name: str) -> torch.Tensor:
        return torch.tensor([[getattr(o, name) for o in group.completions] for group in groups])

    rewards_P_G = column("reward")
    unscaled = grpo.group_advantages(rewards_P_G, "none")
    yield "advantages: `none`", unscaled, TRL(groups, scale_rewards="none").advantages
    sample = grpo.group_advantages(rewards_P_G, "sample")
    std_P_1 = rewards_P_G.std(1, keepdim=True)
    theirs = TRL(groups).advantages
    yield "advantages: `sample`, × std / (std + 1e-4)", sample * std_P_1 / (std_P_1 + 1e-4), theirs
    for name, (our_settings, settings, one_by_one) in LOSSES.items():
        student = MovedStudent(layout, **our_settings)
        student.update(groups, step=1)
        (_, first), (loss, second) = student.updates
        trl = TRL(groups, **settings)
        (_, trl_first), (trl_loss, trl_second) = trl.updates(column("advantage"), one_by_one)
        yield f"{name}: first gradient", first, trl_first
        yield f"{name}: second loss", loss, trl_loss
        yield f"{name}: second gradient", second, trl_second


def comparison_row(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> list:
    """Row of the table: name, norm of each side, and the largest difference of two elements,
    relative to TRL's largest element."""
    norms = [f"{torch.linalg.vector_norm(x.double()):.7g}" for x in (ours, theirs)]
    scale = theirs.abs().max().clamp(min=1e-30)
    difference = (ours - theirs).abs().max() / scale
    return [name, *norms, f"{difference.item():.1e}"]


def main() -> int:
    """Print the table. Returns the exit status."""
    analysis.parser(__doc__).parse_args()
    # TRL calls rollout_func experimental, and transformers has renamed settings.
    warnings.filterwarnings("ignore")
    begin_process()
    torch.set_num_threads(1)
    with analysis.one_line("trl_agreement", ImportError):
        title = f"TRL {version('trl')}; {provenance()}"
    layout = train.build_layout(CONFIG)
    layout.connect(CONFIG.timeout_minutes)
    groups = sample(layout)
    rows = [comparison_row(*pair) for pair in comparisons(layout, groups)]
    dist.destroy_process_group()
    agree = all(float(row[-1]) <= TOLERANCE for row in rows)  # false for NaN too
    dead = sum(not group.live for group in groups)
    result = "All agree" if agree else "NOT ALL AGREE"
    note = f"{len(groups)} groups, {dead} of them dead. {result}, to {TOLERANCE:g}."
    print(analysis.table(title, HEADER, rows, note))
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
