"""Check that this project and TRL's GRPOTrainer compute the same numbers from the same rollouts.

    python -m venv trl_venv
    trl_venv/bin/pip install -r requirements.txt trl==1.16.0
    trl_venv/bin/python -m benchmarks.trl_agreement

TRL gets the tokens and rewards of 12 of the demo's groups and runs its own code: padding,
log-probs, advantages (`_generate_and_score_completions`) and loss (`_compute_loss`). Before the
loss the weights are moved, so that the ratio differs from 1 as in a second update. Our side is
train.Student: rollout, grpo.weigh, forward_backward.

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
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from torch.nn.utils import parameters_to_vector
from transformers import AutoTokenizer

import grpo
import train
from grpo import Group
from plumbing.batches import micro_batches
from plumbing.data.problems import Problems
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import print_error
from plumbing.files import read_lines
from plumbing.metrics import Stopwatch
from scripts import analysis
from verify import Verifier

INSTALL = next(line.strip() for line in __doc__.splitlines() if "pip install" in line)
# Hot and short. At temperature 0.7 the completions of a demo problem have one length, which would
# hide a wrong normalizer.
CONFIG = train.parse(["--preset", "demo", "--sampler", "uniform", "--temperature", "2"])
TOKENIZER = AutoTokenizer.from_pretrained(CONFIG.model)
POLICY_SEED, REFERENCE_SEED = 1, 2
# Each side's float32 gradient is within 2.3e-5 of our float64 gradient, on three seeds.
TOLERANCE = 5e-5


def shift(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Move every weight by 10% of its tensor's RMS, the same way for the same seed, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * p.square().mean().sqrt() * torch.randn(p.shape, generator=generator)
    return model


def sample(layout: Layout) -> list[Group]:
    """Generate and grade a group for each of 12 problems from easy to too hard."""
    rows = read_lines(Path(CONFIG.val_data))
    order = sorted(range(len(rows)), key=lambda i: rows[i]["difficulty"])
    groups = [Group(problem, CONFIG.group_size) for problem in order[:192:16]]
    with Verifier(workers=1) as verifier:
        student = train.Student(CONFIG, layout, verifier)
        problems = Problems(CONFIG.val_data)
        student.rollout(groups, problems, CONFIG.temperature, (0, 0, 0), Stopwatch())
    return groups


def by_group(groups: list[Group], name: str) -> torch.Tensor:
    """The rewards or advantages of the completions: (P, G)."""
    return torch.tensor([[getattr(o, name) for o in group.completions] for group in groups])


def our_loss(layout: Layout, groups: list[Group], moved: bool, **settings) -> dict:
    """Weigh the groups; return loss, gradient and logged means of our update. moved: the weights
    have changed since the rollouts."""
    c = replace(CONFIG, **settings)
    student = train.Student(c, layout, verifier=None)
    grpo.weigh(
        groups,
        c.loss,
        std=c.advantage_std,
        max_completion_tokens=c.max_completion_tokens,
        dead_rows="in",
        truncated_rows="in",
    )
    completions = [(group.prompt_ids, o) for group in groups for o in group.completions]
    rows = [row for row in completions if student.has_gradient(row[1])]
    options = {"max_tokens": 10**6, "pad_id": TOKENIZER.pad_token_id}
    batches = micro_batches(rows, layout, packed=student.policy.packed, **options)
    if student.reference:
        shift(student.reference, REFERENCE_SEED)
    sums = student.forward_backward(batches, first=True)
    if moved:
        shift(student.policy, POLICY_SEED)
        student.optimizer.zero_grad()
        sums = student.forward_backward(batches, first=False)
    tokens = sum(len(o.ids) for _, o in completions)  # TRL forwards dead groups too
    means = {name: torch.tensor(total / tokens) for name, total in sums.items()}
    loss = torch.tensor(sums["loss"])
    return means | {"loss": loss, "gradient": gradient_of(student.policy)}


def gradient_of(model: torch.nn.Module) -> torch.Tensor:
    return parameters_to_vector(p.grad for p in model.parameters())


class TRL:
    """A GRPOTrainer with some settings, and the batch that it makes of our rollouts."""

    def __init__(self, groups: list[Group], **settings):
        from datasets import Dataset  # TRL brings it
        from trl import GRPOConfig, GRPOTrainer

        settings = {
            "loss_type": "grpo",
            "num_generations": CONFIG.group_size,
            "max_completion_length": CONFIG.max_completion_tokens,
            "temperature": CONFIG.temperature,
            "epsilon": CONFIG.clip_low,
            "epsilon_high": CONFIG.clip_high,
            "per_device_train_batch_size": len(groups) * CONFIG.group_size,
            "num_iterations": 2,  # with two updates a batch TRL records the log-probs before both
            "use_cpu": True,
            "bf16": False,  # TRL's default on a CPU too, which would leave three digits
            "model_init_kwargs": {"dtype": "float32"},
            "gradient_checkpointing": False,
            "report_to": "none",
        } | settings
        completions = [o for group in groups for o in group.completions]
        prompts = [group.prompt_ids for group in groups for _ in group.completions]
        tokens = {"prompt_ids": prompts, "completion_ids": [o.ids for o in completions]}
        # rollout_func returns token ids, so TRL never reads the text of a prompt.
        data = [{"prompt": str(b), "graded": o.reward} for b, o in enumerate(completions)]
        self.trainer = GRPOTrainer(
            CONFIG.model,
            lambda graded, **_: graded,
            GRPOConfig(tempfile.gettempdir(), **settings),
            Dataset.from_list(data),
            processing_class=TOKENIZER,
            rollout_func=lambda prompts, trainer: tokens | {"logprobs": None},
        )
        self.model = self.trainer.model.train()
        # TRL's training loop, which does not run here, would set this.
        self.trainer.current_gradient_accumulation_steps = 1
        if self.trainer.ref_model is not None:
            shift(self.trainer.ref_model, REFERENCE_SEED)
        self.batch = self.trainer._generate_and_score_completions(data)
        self.mask = self.batch["completion_mask"].bool()
        self.advantages = self.batch["advantages"].reshape(len(groups), -1)

    def loss(self, A_P_G, one_by_one: bool) -> dict[str, torch.Tensor]:
        """Loss, gradient and logged means; one_by_one: the mean over groups, each its own batch."""
        batches = [batch := {**self.batch, "advantages": A_P_G.flatten()}]
        if one_by_one:
            sizes = [CONFIG.group_size] * len(A_P_G)
            parts = zip(*(v.split(sizes) for v in batch.values() if v.dim()), strict=True)
            names = [k for k, v in batch.items() if v.dim()]
            batches = [dict(zip(names, part, strict=True)) for part in parts]
            for part in batches:
                part["num_items_in_batch"] = part["completion_mask"].sum()
        loss = sum(self.trainer._compute_loss(self.model, part) for part in batches) / len(batches)
        loss.backward()
        logged = {k: torch.tensor(v[-1]) for k, v in self.trainer._metrics["train"].items()}
        clipped = None if one_by_one else logged["clip_ratio/region_mean"]  # of the last group
        means = {"clip_fraction": clipped, "kl": logged.get("kl")}
        return {"loss": loss.detach(), "gradient": gradient_of(self.model), **means}


# name: our loss, TRL's settings, whether TRL gets each group as a batch of its own
LOSSES = {
    "`grpo`": ("grpo", {}, False),
    "`grpo` from rewards": ("grpo", {"scale_rewards": "none"}, False),
    "`constant` / `dr_grpo`": ("constant", {"loss_type": "dr_grpo"}, False),
    "`batch` / `dapo`": ("batch", {"loss_type": "dapo"}, False),
    "`dapo`, a group at a time": ("dapo", {"loss_type": "dapo"}, True),
    "`dapo` / `bnpo`, a group at a time": ("dapo", {"loss_type": "bnpo"}, True),
    "`grpo` + 0.04 KL": ("grpo", {"beta": 0.04, "use_bias_correction_kl": False}, False),
    "`dapo` − 0.01 H, a group at a time": (
        "dapo",
        {"loss_type": "dapo", "entropy_coef": 0.01},
        True,
    ),
}
Comparison = tuple[str, torch.Tensor, torch.Tensor]  # name, ours, TRL's


def comparisons(layout: Layout, groups: list[Group]) -> Iterator[Comparison]:
    """Yield the rows of the table: advantages, then the losses. Where no weight has moved only the
    gradient says something. TRL uses our advantages, unless it shall not scale them."""
    trl, rewards_P_G = TRL(groups), by_group(groups, "reward")
    sample = grpo.group_advantages(rewards_P_G, "sample")
    std_P_1 = rewards_P_G.std(1, keepdim=True)
    yield (
        "advantages: `sample`, × std / (std + 1e-4)",
        sample * std_P_1 / (std_P_1 + 1e-4),
        trl.advantages,
    )
    dead_P = grpo.dead_groups(rewards_P_G)
    yield "advantages: dead groups", sample[dead_P], trl.advantages[dead_P]
    for name, (loss, settings, one_by_one) in {"first update": LOSSES["`grpo`"], **LOSSES}.items():
        moved = name != "first update"
        trl = TRL(groups, **settings)
        if moved:
            shift(trl.model, POLICY_SEED)
        std = settings.get("scale_rewards", "population")
        ours = our_loss(
            layout,
            groups,
            moved,
            loss=loss,
            advantage_std=std,
            kl_coef=settings.get("beta", 0.0),
            entropy_coef=settings.get("entropy_coef", 0.0),
        )
        advantages = trl.advantages if std == "none" else by_group(groups, "advantage")
        theirs = trl.loss(advantages, one_by_one)
        for part in ("loss", "gradient", "clip_fraction", "kl") if moved else ("gradient",):
            if theirs[part] is not None:
                yield f"{name}: {part}", ours[part], theirs[part]


def main() -> int:
    """Print the table. Returns the exit status."""
    analysis.parser(__doc__).parse_args()
    # TRL calls rollout_func experimental, and transformers has renamed settings.
    warnings.filterwarnings("ignore")
    begin_process()
    torch.set_num_threads(1)
    try:
        import trl
    except ImportError:
        print_error(f"TRL is not installed: in an environment of its own, {INSTALL}")
        return 2
    layout = train.build_layout(CONFIG)
    layout.connect(CONFIG.timeout_minutes)
    groups = sample(layout)
    print(
        f"TRL {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    )
    print(f"{len(groups)} groups, {sum(not group.live for group in groups)} of them dead\n")
    print("| quantity | ours | TRL | relative difference |\n|---|---|---|---|")
    largest = 0.0
    for name, ours, theirs in comparisons(layout, groups):
        # The largest difference of two elements, relative to TRL's largest; NaN is passed on.
        scale = theirs.abs().max().clamp(min=1e-30)
        difference = ((ours - theirs).abs().max() / scale).item()
        norms = (torch.linalg.vector_norm(x.double()).item() for x in (ours, theirs))
        print("| {} | {:.7g} | {:.7g} | {:.1e} |".format(name, *norms, difference), flush=True)
        largest = max(largest, difference) if difference <= TOLERANCE else float("inf")
    dist.destroy_process_group()
    agree = largest <= TOLERANCE
    print(f"\n{'All agree' if agree else 'NOT ALL AGREE'}, to {TOLERANCE:g}.")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
