"""Check that this project and TRL's GRPOTrainer compute the same numbers from the same rollouts.

    python -m venv trl_venv
    trl_venv/bin/pip install -r requirements.txt trl==1.16.0
    trl_venv/bin/python -m benchmarks.trl_agreement

TRL gets the tokens and rewards of 12 of the demo's groups and runs its own code: padding,
log-probs, advantages (`_generate_and_score_completions`) and loss (`_compute_loss`). Our side is
train.Student.update, of which the second of two updates is compared. Before it the weights are
moved, so that the ratio differs from 1.

Four definitions differ on purpose; here the difference is removed. TRL divides advantages by the
std of ddof 1, plus 1e-4, we by that of ddof 0. TRL's `dapo` is our `batch`, a mean over the batch's
tokens. `dr_grpo` divides by the limit of tokens, as our `constant` and not our `sum`. TRL's default
KL multiplies k3 by the ratio. Exit status 1 if numbers do not agree.
"""

import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector
from transformers import AutoTokenizer

import grpo
import train
from benchmarks.step import provenance
from examples.trl_demo import trl_config
from grpo import Group
from plumbing.data.problems import Problems
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process
from plumbing.files import read_lines
from plumbing.stopwatch import Stopwatch
from scripts.command import exit_on_error, make_parser
from verify import Verifier

# Hot and short. At temperature 0.7 the completions of a demo problem have one length, which would
# hide a wrong normalizer.
FLAGS = f"--preset demo --sampler uniform --temperature 2 --out {tempfile.gettempdir()}"
CONFIG = train.parse(FLAGS.split())  # TRL writes nothing there
POLICY_SEED, REFERENCE_SEED = 1, 2
# Each side's float32 gradient is within 2.3e-5 of our float64 gradient, on three seeds.
TOLERANCE = 5e-5
# name: our settings, TRL's
LOSSES = {
    "`grpo`": ({}, {}),
    "`constant` / `dr_grpo`": ({"loss": "constant"}, {"loss_type": "dr_grpo"}),
    "`batch` / `dapo`": ({"loss": "batch"}, {"loss_type": "dapo"}),
    "`grpo` + 0.04 KL": ({"kl_coef": 0.04}, {"beta": 0.04, "use_bias_correction_kl": False}),
    "`batch` / `dapo`, − 0.01 H": (
        {"loss": "batch", "entropy_coef": 0.01},
        {"loss_type": "dapo", "entropy_coef": 0.01},
    ),
}


def shift(model: torch.nn.Module, seed: int) -> None:
    """Move every weight by 10% of its tensor's RMS, the same way for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * p.square().mean().sqrt() * torch.randn(p.shape, generator=generator)


def gradient_of(model: torch.nn.Module) -> torch.Tensor:
    return parameters_to_vector(p.grad for p in model.parameters())


def sample(layout: Layout) -> list[Group]:
    """Generate and grade groups for 12 problems, of which some are too hard."""
    rows = read_lines(Path(CONFIG.val_data))
    chosen = [index for index, row in enumerate(rows) if row["difficulty"] < 16]
    groups = [Group(index, CONFIG.group_size) for index in chosen[:12]]
    with Verifier(workers=1) as verifier:
        actor = train.Actor.load(CONFIG, layout, verifier)
        problems = Problems(CONFIG.val_data)
        actor.rollout(groups, problems, CONFIG.temperature, (0, 0, 0), Stopwatch())
    return groups


class MovedStudent(train.Student):
    """A student whose weights `shift` moves. Keeps loss and gradient of its latest update."""

    @classmethod
    def moved(cls, layout: Layout, **settings) -> "MovedStudent":
        """Load the student, and move its reference."""
        config = replace(CONFIG, update_iterations=2, **settings)
        student = cls.load(config, layout, verifier=None)
        if student.reference:
            shift(student.reference, REFERENCE_SEED)
        return student

    def apply(self, token_sums: dict[str, float], step: int) -> float:
        self.loss = torch.tensor(token_sums["loss"])
        self.gradient = gradient_of(self.policy)
        self.optimizer.zero_grad()
        shift(self.policy, POLICY_SEED)
        return 0.0


def trl_update(groups: list[Group], **settings) -> tuple[torch.Tensor, ...]:
    """Let a GRPOTrainer with some settings update on our rollouts. Returns its advantages, and its
    loss and gradient after `shift` with our advantages."""
    from datasets import Dataset
    from trl import GRPOTrainer

    rows = [(group.prompt_ids, o) for group in groups for o in group.completions]
    tokens = {
        "prompt_ids": [prompt for prompt, _ in rows],
        "completion_ids": [o.ids for _, o in rows],
        "logprobs": None,
    }
    # rollout_func returns token ids, so TRL never reads the text of a prompt.
    data = [{"prompt": "?", "graded": o.reward} for _, o in rows]
    # With two updates a batch TRL records the log-probs before both.
    settings = {"num_iterations": 2, "epsilon_high": CONFIG.clip_high} | settings
    trainer = GRPOTrainer(
        CONFIG.model,
        lambda graded, **_: graded,
        trl_config(CONFIG, **settings),
        Dataset.from_list(data),
        processing_class=AutoTokenizer.from_pretrained(CONFIG.model),
        rollout_func=lambda prompts, trainer: tokens,
    )
    # TRL's training loop, which does not run here, would set this.
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.model.train()
    if trainer.ref_model is not None:
        shift(trainer.ref_model, REFERENCE_SEED)
    batch = trainer._generate_and_score_completions(data)
    shift(model, POLICY_SEED)
    ours = {
        "advantages": torch.tensor([o.advantage for _, o in rows]),
        "num_items_in_batch": batch["completion_mask"].sum(),
    }
    loss = trainer._compute_loss(model, batch | ours)
    loss.backward()
    return batch["advantages"], loss.detach(), gradient_of(model)


def compared(quantity: str, ours: torch.Tensor, theirs: torch.Tensor) -> tuple:
    """Row of the table: TRL's largest element, and the largest difference of two elements, relative
    to it."""
    largest = theirs.abs().max()
    difference = (ours - theirs).abs().max() / largest  # NaN where all are 0
    return quantity, largest.item(), difference.item()


def comparisons(layout: Layout, groups: list[Group]) -> Iterator[tuple]:
    """Yield the rows of the table: the losses with our advantages, then TRL's advantages."""
    for name, (our_settings, settings) in LOSSES.items():
        student = MovedStudent.moved(layout, **our_settings)
        student.update(groups, step=1)  # computes the advantages, too
        advantage_B, loss, gradient = trl_update(groups, **settings)
        yield compared(f"{name}: loss", student.loss, loss)
        yield compared(f"{name}: gradient", student.gradient, gradient)
    rewards_P_G = torch.tensor([[o.reward for o in group.completions] for group in groups])
    std_P_1 = rewards_P_G.std(1, keepdim=True)
    ours_P_G = grpo.group_advantages(rewards_P_G, "sample") * std_P_1 / (std_P_1 + 1e-4)
    name = "advantages: `sample`, × std / (std + 1e-4)"
    yield compared(name, ours_P_G.flatten(), advantage_B)


def main() -> int:
    """Print the table. Returns the exit status."""
    # TRL calls rollout_func experimental, and transformers has renamed settings.
    warnings.filterwarnings("ignore")
    begin_process()
    torch.set_num_threads(1)
    with exit_on_error("trl_agreement"):
        make_parser(__doc__).parse_args()
        print(f"TRL {version('trl')}; {provenance()}")
    layout = train.build_layout(CONFIG)
    layout.connect(CONFIG.timeout_minutes)
    groups = sample(layout)
    table = pd.DataFrame(comparisons(layout, groups), columns=["", "largest", "difference"])
    dist.destroy_process_group()
    print(table.to_string(index=False, float_format="{:.2g}".format))
    agree = (table.difference <= TOLERANCE).all()  # false for NaN too
    print("All agree" if agree else "NOT ALL AGREE", f"to {TOLERANCE:g}")
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
