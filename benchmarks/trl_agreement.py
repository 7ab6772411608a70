"""Check that this project and TRL's GRPOTrainer compute the same numbers from the same rollouts.

    python -m venv trl_venv
    trl_venv/bin/pip install -r requirements.txt trl==1.16.0
    trl_venv/bin/python -m benchmarks.trl_agreement

TRL gets the tokens and rewards of 12 of the demo's groups and runs its own code: padding,
log-probs, advantages (`_generate_and_score_completions`) and loss (`_compute_loss`). Before the
loss the weights are moved, so that the ratio differs from 1 as in a second update. Our side is
Policy and grpo.py, joined as in train.Student.update.

Five definitions differ on purpose; here the difference is removed. TRL divides advantages by the
std of ddof 1, plus 1e-4, we by that of ddof 0. TRL's `dapo` is a mean over the batch's tokens, ours
over groups of a group's tokens: TRL gets a group at a time. `dr_grpo` divides by the limit of
tokens, as our `constant` and not our `sum`. TRL's default KL multiplies k3 by the ratio. TRL weighs
the entropy of a token by 1 / the batch's tokens, we as its surrogate. Exit status 1 if numbers do
not agree.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from torch.nn.utils import parameters_to_vector
from transformers import AutoTokenizer

import grpo
import train
from plumbing.batches import Row, collate
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import print_error
from rollout import Generator, Policy, PromptEncoder
from scripts import analysis
from verify import Verifier

INSTALL = next(line.strip() for line in __doc__.splitlines() if "pip install" in line)
DEMO, CPU = Path(__file__).resolve().parent.parent / "demo", torch.device("cpu")
MODEL = str(DEMO / "model")
TOKENIZER = AutoTokenizer.from_pretrained(MODEL)
# Hot and short. At temperature 0.7 the completions of a demo problem have one length, which would
# hide a wrong normalizer.
G, TEMPERATURE, MAX_TOKENS = 16, 2.0, 40
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
ROLLOUT_SEED, POLICY_SEED, REFERENCE_SEED = 0, 1, 2
# Each side's float32 gradient is within 2.3e-5 of our float64 gradient, on three seeds.
TOLERANCE = 5e-5


def shift(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Move every weight by 10% of its tensor's RMS, the same way for the same seed, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * p.square().mean().sqrt() * torch.randn(p.shape, generator=generator)
    return model


def sample() -> list[Row]:
    """Generate and grade a group for each of 12 problems from easy to too hard; return its rows."""
    rows = map(json.loads, (DEMO / "val.jsonl").read_text().splitlines())
    rows = [r for r in sorted(rows, key=lambda r: r["difficulty"])[:192:16] for _ in range(G)]
    encode = PromptEncoder(train.parse(["--preset", "demo"]), TOKENIZER)
    prompts = [encode(row["problem"]) for row in rows]
    generator = Generator.load(MODEL, CPU, TOKENIZER)
    completions = generator.generate(prompts, TEMPERATURE, MAX_TOKENS, ROLLOUT_SEED)
    texts = [TOKENIZER.decode(o.text_ids) for o in completions]
    with Verifier(workers=1) as verifier:
        verdicts = verifier.grade(texts, [row["expected_answer"] for row in rows])
    for completion, verdict in zip(completions, verdicts, strict=True):
        completion.reward = verdict.reward
    return [*zip(prompts, completions, strict=True)]


def rewards_of(rows: list[Row]) -> torch.Tensor:
    """The rewards by group: (P, G)."""
    return torch.tensor([completion.reward for _, completion in rows]).reshape(-1, G)


def lengths_of(rows: list[Row]) -> torch.Tensor:
    """The response tokens by group: (P, G)."""
    return torch.tensor([len(completion.ids) for _, completion in rows]).reshape(-1, G)


def weigh(rows: list[Row], advantages_P_G: torch.Tensor, loss: str) -> list[Row]:
    """Give each row its advantage, and its weight in a loss of grpo.row_weights."""
    lengths_P_G = lengths_of(rows)
    limits = int(lengths_P_G.sum()), MAX_TOKENS
    weights = [grpo.row_weights(n_G, len(lengths_P_G), loss, *limits) for n_G in lengths_P_G]
    weights_B = torch.cat(weights).tolist()
    advantages_B = advantages_P_G.flatten().tolist()
    return [
        (prompt, replace(completion, advantage=advantage, weight=weight))
        for (prompt, completion), advantage, weight in zip(
            rows, advantages_B, weights_B, strict=True
        )
    ]


def our_loss(rows: list[Row], moved: bool, kl_coef=0.0, entropy_coef=0.0) -> dict:
    """Loss, gradient and logged means of our update, with rows of advantage 0 left out. moved: the
    weights have changed since the rollouts."""
    n_tokens = lengths_of(rows).sum()
    if not kl_coef and not entropy_coef:  # TRL forwards the rows of dead groups nevertheless
        rows = [row for row in rows if row[1].advantage]
    batch = collate(rows, CPU)
    policy = Policy.load(MODEL, CPU)
    reference = shift(Policy.load(MODEL, CPU), REFERENCE_SEED)
    with torch.no_grad():
        old_logp_N, _ = policy(batch, TEMPERATURE)
        ref_logp_N, _ = reference(batch, TEMPERATURE)
    if moved:
        shift(policy, POLICY_SEED)
    logp_N, entropy_N = policy(batch, TEMPERATURE)
    loss, sums = grpo.policy_loss(
        logp_N,
        old_logp_N,
        batch.advantage_N,
        batch.weight_N,
        clip_low=CLIP_LOW,
        clip_high=CLIP_HIGH,
        ref_logp_N=ref_logp_N,
        kl_coef=kl_coef,
        entropy_N=entropy_N,
        entropy_coef=entropy_coef,
    )
    loss.backward()
    means = {name: value / n_tokens for name, value in sums.items()}
    return {"loss": loss.detach(), "gradient": gradient_of(policy), **means}


def gradient_of(model: torch.nn.Module) -> torch.Tensor:
    return parameters_to_vector(p.grad for p in model.parameters())


class TRL:
    """A GRPOTrainer with some settings, and the batch that it makes of our rollouts."""

    def __init__(self, rows: list[Row], **settings):
        from datasets import Dataset  # TRL brings it
        from trl import GRPOConfig, GRPOTrainer

        settings = {
            "loss_type": "grpo",
            "num_generations": G,
            "max_completion_length": MAX_TOKENS,
            "temperature": TEMPERATURE,
            "epsilon": CLIP_LOW,
            "epsilon_high": CLIP_HIGH,
            "per_device_train_batch_size": len(rows),
            "num_iterations": 2,  # with two updates a batch TRL records the log-probs before both
            "use_cpu": True,
            "bf16": False,  # TRL's default on a CPU too, which would leave three digits
            "model_init_kwargs": {"dtype": "float32"},
            "gradient_checkpointing": False,
            "report_to": "none",
        } | settings
        prompts, completions = zip(*rows, strict=True)
        tokens = {"prompt_ids": [*prompts], "completion_ids": [o.ids for o in completions]}
        # rollout_func returns token ids, so TRL never reads the text of a prompt.
        data = [{"prompt": str(b), "graded": o.reward} for b, o in enumerate(completions)]
        self.trainer = GRPOTrainer(
            MODEL,
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
        self.advantages = self.batch["advantages"].reshape(-1, G)

    def loss(self, A_P_G, by_group: bool) -> dict[str, torch.Tensor]:
        """Loss, gradient and logged means; by_group: the mean over groups, each its own batch."""
        batches = [batch := {**self.batch, "advantages": A_P_G.flatten()}]
        if by_group:
            groups = [slice(b, b + G) for b in range(0, len(self.mask), G)]
            batches = [{k: v[group] for k, v in batch.items() if v.dim()} for group in groups]
            for part in batches:
                part["num_items_in_batch"] = part["completion_mask"].sum()
        loss = sum(self.trainer._compute_loss(self.model, part) for part in batches) / len(batches)
        loss.backward()
        logged = {k: torch.tensor(v[-1]) for k, v in self.trainer._metrics["train"].items()}
        clipped = None if by_group else logged["clip_ratio/region_mean"]  # of the last group
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


def compare_rollouts(rows: list[Row]) -> Iterator[Comparison]:
    """Yield the rows of the table on advantages, and on log-probs before the update."""
    trl = TRL(rows)
    r_P_G = rewards_of(rows)
    none, sample = (grpo.group_advantages(r_P_G, std) for std in ("none", "sample"))
    dead_P = grpo.dead_groups(r_P_G)
    std_P_1 = r_P_G.std(1, keepdim=True)
    as_trl = sample * std_P_1 / (std_P_1 + 1e-4)
    yield "advantages: `none`", none, TRL(rows, scale_rewards="none").advantages
    yield "advantages: `sample`, × std / (std + 1e-4)", as_trl, trl.advantages
    yield "advantages: dead groups", sample[dead_P], trl.advantages[dead_P]
    with torch.no_grad():
        logp_N, _ = Policy.load(MODEL, CPU)(collate(rows, CPU), TEMPERATURE)
    yield "log-probs before the update", logp_N, trl.batch["old_per_token_logps"][trl.mask]


def compare_loss(name: str, rows: list[Row], moved: bool) -> Iterator[Comparison]:
    """Yield the rows of the table on one of LOSSES. moved: the weights have changed since the
    rollouts; else only the gradient says something. TRL uses our advantages, unless it shall not
    scale them."""
    loss, settings, by_group = LOSSES[name]
    trl = TRL(rows, **settings)
    if moved:
        shift(trl.model, POLICY_SEED)
    std = settings.get("scale_rewards", "population")
    advantages = grpo.group_advantages(rewards_of(rows), std)
    coefficients = settings.get("beta", 0.0), settings.get("entropy_coef", 0.0)
    ours = our_loss(weigh(rows, advantages, loss), moved, *coefficients)
    theirs = trl.loss(trl.advantages if std == "none" else advantages, by_group)
    for part in ("loss", "gradient", "clip_fraction", "kl") if moved else ("gradient",):
        if theirs[part] is not None:
            yield f"{name}: {part}", ours[part], theirs[part]


def comparisons(rows: list[Row]) -> Iterator[Comparison]:
    """Yield the rows of the table."""
    yield from compare_rollouts(rows)
    yield from compare_loss("`grpo`", rows, moved=False)
    for name in LOSSES:
        yield from compare_loss(name, rows, moved=True)


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
    rows = sample()
    print(
        f"TRL {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    )
    print(f"{len(rows) // G} groups of {G}, {grpo.dead_groups(rewards_of(rows)).sum()} dead\n")
    print("| quantity | ours | TRL | relative difference |\n|---|---|---|---|")
    largest = 0.0
    for name, ours, theirs in comparisons(rows):
        # The largest difference of two elements, relative to TRL's largest; NaN is passed on.
        scale = theirs.abs().max().clamp(min=1e-30)
        difference = ((ours - theirs).abs().max() / scale).item()
        norms = (torch.linalg.vector_norm(x.double()).item() for x in (ours, theirs))
        print("| {} | {:.7g} | {:.7g} | {:.1e} |".format(name, *norms, difference), flush=True)
        largest = max(largest, difference) if difference <= TOLERANCE else float("inf")
    agree = largest <= TOLERANCE
    print(f"\n{'All agree' if agree else 'NOT ALL AGREE'}, to {TOLERANCE:g}.")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
