"""Check that this project and TRL's GRPOTrainer compute the same numbers from the same rollouts.

    python -m venv trl_venv
    trl_venv/bin/pip install -r requirements.txt trl==1.16.0
    trl_venv/bin/python -m benchmarks.trl_agreement

TRL gets the tokens and rewards of 12 of the demo's groups and runs its own code: padding,
log-probs, advantages (`_generate_and_score_completions`) and loss (`_compute_loss`). Before the
loss the weights are moved, so that the ratio differs from 1 as in a second update. Our side is
Policy and grpo.py, joined as in train.Student.update.

`intended` marks a definition that differs on purpose; the row below it that begins with an ellipsis
removes the difference and must agree. Exit status 1 if numbers that should agree do not.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
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

INTENDED = {  # name of a row: how the definitions differ on purpose
    "advantages, defaults": "TRL divides by the std of ddof 1, plus 1e-4, we by that of ddof 0",
    "`sum` / `dr_grpo`": "TRL divides by its limit of tokens as well",
    "`dapo`": "ours is the mean over groups of a group's tokens, TRL's over the batch's tokens",
    "`grpo` + 0.04 KL": "TRL multiplies k3 by the ratio: its gradient is that of KL(π ‖ π_ref)",
    "`grpo` − 0.01 H": "we weight a token's H as its surrogate, TRL by 1 / the batch's tokens",
}


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

    def logprobs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-prob and entropy of each response token under the present weights: (N,), (N,)."""
        b, forward = self.batch, self.trainer._get_per_token_logps_and_entropies
        ids = torch.cat([b["prompt_ids"], b["completion_ids"]], dim=1)
        mask = torch.cat([b["prompt_mask"], b["completion_mask"]], dim=1)
        with torch.no_grad():
            logp, H, _ = forward(self.model, ids, mask, self.mask.shape[1], compute_entropy=True)
        return logp[self.mask], H[self.mask]

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
        means = {"clip_fraction": logged["clip_ratio/region_mean"], "kl": logged.get("kl")}
        return {"loss": loss.detach(), "gradient": gradient_of(self.model), **means}


@dataclass
class Comparison:
    """A row of the table: a quantity of ours and of TRL's."""

    name: str
    part: str
    ours: torch.Tensor
    theirs: torch.Tensor

    def difference(self) -> float:
        """The largest difference of two elements, relative to TRL's largest."""
        largest = self.theirs.abs().max().clamp(min=1e-30)
        return ((self.ours - self.theirs).abs().max() / largest).item()

    def disagrees(self) -> bool:
        """Whether numbers that should agree do not, also where one is NaN."""
        return self.name not in INTENDED and not self.difference() <= TOLERANCE

    def line(self) -> str:
        """The row in Markdown."""
        note = f"intended: {INTENDED[self.name]}" if self.name in INTENDED else ""
        if self.disagrees():
            note = "**DISAGREES**"
        ours, theirs = map(self.shown, (self.ours, self.theirs))
        return (
            f"| {self.name}: {self.part} | {ours} | {theirs} | {self.difference():.1e} | {note} |"
        )

    def shown(self, value: torch.Tensor) -> str:
        """One number for a tensor: itself, the mean over tokens, or its norm."""
        is_by_token = self.part in ("log-prob", "entropy")
        summary = torch.mean if is_by_token else torch.linalg.vector_norm
        return f"{value.item() if value.dim() == 0 else summary(value.double()).item():.7g}"


def compare_advantages(rows: list[Row], trl: TRL) -> Iterator[Comparison]:
    """Yield the rows of the table on advantages."""
    r_P_G = rewards_of(rows)
    none, sample, population = (
        grpo.group_advantages(r_P_G, std) for std in ("none", "sample", "population")
    )
    dead_P = grpo.dead_groups(r_P_G)
    std_P_1 = r_P_G.std(1, keepdim=True)
    as_trl = sample * std_P_1 / (std_P_1 + 1e-4)
    unscaled = TRL(rows, scale_rewards="none")
    yield Comparison("advantages", "`none`", none, unscaled.advantages)
    yield Comparison("advantages, defaults", "`population` / `group`", population, trl.advantages)
    yield Comparison("…", "ours with `sample`, × std / (std + 1e-4)", as_trl, trl.advantages)
    yield Comparison("advantages", "dead groups", population[dead_P], trl.advantages[dead_P])


def compare_tokens(rows: list[Row], trl: TRL) -> Iterator[Comparison]:
    """Yield the rows of the table on single tokens. Moves TRL's weights."""
    batch = collate(rows, CPU)
    policy = Policy.load(MODEL, CPU)
    with torch.no_grad():
        old_logp_N, _ = policy(batch, TEMPERATURE)
        logp_N, entropy_N = shift(policy, POLICY_SEED)(batch, TEMPERATURE)
    trl_old_logp_N = trl.batch["old_per_token_logps"][trl.mask]
    shift(trl.model, POLICY_SEED)
    trl_logp_N, trl_entropy_N = trl.logprobs()
    yield Comparison("before the update", "log-prob", old_logp_N, trl_old_logp_N)
    yield Comparison("of each token", "log-prob", logp_N, trl_logp_N)
    yield Comparison("of each token", "entropy", entropy_N, trl_entropy_N)


@dataclass
class Case:
    """A loss that both sides compute.

    loss: ours, of grpo.row_weights. parts: what is compared. moved: the weights have changed since
    the rollouts. by_group: TRL gets each group as a batch of its own. settings: TRL's.
    """

    name: str
    loss: str
    settings: dict
    parts: tuple[str, ...] = ("loss", "gradient")
    moved: bool = True
    by_group: bool = False

    def compare(self, rows: list[Row]) -> Iterator[Comparison]:
        """Yield the rows of the table. TRL uses our advantages, unless it shall not scale them."""
        trl = TRL(rows, **self.settings)
        if self.moved:
            shift(trl.model, POLICY_SEED)
        if "scale_rewards" in self.settings:
            advantages = grpo.group_advantages(rewards_of(rows), "none")
            trl_advantages = trl.advantages
        else:
            advantages = trl_advantages = grpo.group_advantages(rewards_of(rows))
        kl_coef = self.settings.get("beta", 0.0)
        entropy_coef = self.settings.get("entropy_coef", 0.0)
        weighed = weigh(rows, advantages, self.loss)
        ours = our_loss(weighed, self.moved, kl_coef, entropy_coef)
        theirs = trl.loss(trl_advantages, self.by_group)
        for part in self.parts:
            yield Comparison(self.name, part, ours[part], theirs[part])


DAPO, BNPO, ENTROPY = {"loss_type": "dapo"}, {"loss_type": "bnpo"}, {"entropy_coef": 0.01}
K3 = {"beta": 0.04, "use_bias_correction_kl": False}
FIRST = {"parts": ("gradient",), "moved": False}
CASES = [
    Case("first update", "grpo", {}, **FIRST),
    Case("… from rewards", "grpo", {"scale_rewards": "none"}, **FIRST),
    Case("`grpo`", "grpo", {}, parts=("loss", "gradient", "clip_fraction")),
    Case("`constant` / `dr_grpo`", "constant", {"loss_type": "dr_grpo"}),
    Case("`batch` / `dapo`", "batch", DAPO),
    Case("`dapo`", "dapo", DAPO),
    Case("… TRL, a group at a time", "dapo", DAPO, by_group=True),
    Case("`dapo` / `bnpo`, a group at a time", "dapo", BNPO, by_group=True),
    Case("`grpo` + 0.04 KL", "grpo", {"beta": 0.04}),
    Case("… TRL, k3 itself", "grpo", K3, parts=("loss", "gradient", "kl")),
    Case("`grpo` − 0.01 H", "grpo", ENTROPY),
    Case("… `dapo`, a group at a time", "dapo", DAPO | ENTROPY, by_group=True),
]


def comparisons(rows: list[Row]) -> Iterator[Comparison]:
    """Yield the rows of the table."""
    trl = TRL(rows)
    yield from compare_advantages(rows, trl)
    yield from compare_tokens(rows, trl)
    for case in CASES:
        yield from case.compare(rows)


def describe(rows: list[Row], trl_version: str) -> str:
    """The line above the table: versions and rollouts."""
    dead = grpo.dead_groups(rewards_of(rows)).sum()
    cut = sum(not completion.finished for _, completion in rows)
    return (
        f"TRL {trl_version}, transformers {transformers.__version__}, torch {torch.__version__}. "
        f"{len(rows) // G} groups of {G}, {dead} of them dead; {lengths_of(rows).sum()} response "
        f"tokens, {cut} rows cut off."
    )


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
    print(f"{describe(rows, trl.__version__)}\n")
    print("| quantity | ours | TRL | relative difference | note |\n|---|---|---|---|---|")
    disagree = []
    for comparison in comparisons(rows):
        print(comparison.line(), flush=True)
        if comparison.disagrees():
            disagree.append(f"{comparison.name}: {comparison.part}")
    if disagree:
        print(f"\nDisagree: {'; '.join(disagree)}.")
        return 1
    print(f"\nAll that should agree do, to {TOLERANCE:g}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
