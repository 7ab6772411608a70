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


def our_loss(rows: list[Row], A_P_G, weight_P_G, moved: bool, **coefficients) -> dict:
    """Loss, gradient and logged means of our update, with rows of advantage 0 left out."""
    policy, reference = Policy.load(MODEL, CPU), shift(Policy.load(MODEL, CPU), REFERENCE_SEED)
    weighed = zip(rows, A_P_G.flatten().tolist(), weight_P_G.flatten().tolist(), strict=True)
    rows = [(prompt, replace(o, advantage=a, weight=w)) for (prompt, o), a, w in weighed]
    total = lengths_of(rows).sum()
    if not any(coefficients.values()):  # TRL forwards the rows of dead groups nevertheless
        rows = [row for row in rows if row[1].advantage]
    batch = collate(rows, CPU)
    with torch.no_grad():
        old_N, ref_N = (model(batch, TEMPERATURE)[0] for model in (policy, reference))
    if moved:
        shift(policy, POLICY_SEED)
    logp_N, entropy_N = policy(batch, TEMPERATURE)
    columns = old_N, batch.advantage_N, batch.weight_N
    terms = {"ref_logp_N": ref_N, "entropy_N": entropy_N, **coefficients}
    clip = {"clip_low": CLIP_LOW, "clip_high": CLIP_HIGH}
    loss, stats = grpo.policy_loss(logp_N, *columns, **terms, **clip)
    loss.backward()
    means = {name: value / total for name, value in stats.items()}
    gradient = parameters_to_vector(p.grad for p in policy.parameters())
    return {"loss": loss.detach(), "gradient": gradient, **means}


class TRL:
    """A GRPOTrainer with some settings, and the batch that it makes of our rollouts."""

    def __init__(self, rows: list[Row], **settings):
        from datasets import Dataset  # TRL brings it
        from trl import GRPOConfig, GRPOTrainer

        settings = {"loss_type": "grpo", "num_generations": G, **settings}
        settings |= {"max_completion_length": MAX_TOKENS, "temperature": TEMPERATURE}
        settings |= {"epsilon": CLIP_LOW, "epsilon_high": CLIP_HIGH}
        settings |= {"per_device_train_batch_size": len(rows), "report_to": "none"}
        # With two updates a batch TRL records the log-probs before the first.
        settings |= {"num_iterations": 2, "use_cpu": True, "gradient_checkpointing": False}
        # bf16, TRL's default on a CPU too, would leave three digits.
        settings |= {"bf16": False, "model_init_kwargs": {"dtype": "float32"}}
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
        gradient = parameters_to_vector(p.grad for p in self.model.parameters())
        return {"loss": loss.detach(), "gradient": gradient, **means}


def quantities(rows: list[Row]) -> Iterator[tuple]:
    """Yield the rows of the table: (name, part, our tensor, TRL's)."""
    r_P_G = rewards_of(rows)
    advantages = {std: grpo.group_advantages(r_P_G, std) for std in grpo.STDS}
    A, std, dead_P = advantages["population"], r_P_G.std(1, keepdim=True), grpo.dead_groups(r_P_G)
    trl, unscaled = TRL(rows), TRL(rows, scale_rewards="none")
    yield "advantages", "`none`", advantages["none"], unscaled.advantages
    yield "advantages, defaults", "`population` / `group`", A, trl.advantages
    as_trl = advantages["sample"] * std / (std + 1e-4)
    yield "…", "ours with `sample`, × std / (std + 1e-4)", as_trl, trl.advantages
    yield "advantages", "dead groups", A[dead_P], trl.advantages[dead_P]

    policy = Policy.load(MODEL, CPU)
    batch = collate(rows, CPU)
    with torch.no_grad():
        old_N, _ = policy(batch, TEMPERATURE)
        logp_N, entropy_N = shift(policy, POLICY_SEED)(batch, TEMPERATURE)
    yield "before the update", "log-prob", old_N, trl.batch["old_per_token_logps"][trl.mask]
    shift(trl.model, POLICY_SEED)
    trl_logp_N, trl_entropy_N = trl.logprobs()
    yield "of each token", "log-prob", logp_N, trl_logp_N
    yield "of each token", "entropy", entropy_N, trl_entropy_N

    def losses(name, weight_P_G, parts="loss gradient", moved=True, by_group=False, **settings):
        """Rows of a loss with our weights and TRL's settings. TRL uses our advantages, unless
        `scale_rewards` is given. moved: the weights have changed since the rollouts."""
        trl = TRL(rows, **settings)
        if moved:
            shift(trl.model, POLICY_SEED)
        our_A = trl_A = A
        if "scale_rewards" in settings:
            our_A, trl_A = advantages["none"], trl.advantages
        coefficients = {"kl_coef": settings.get("beta", 0.0)}
        coefficients["entropy_coef"] = settings.get("entropy_coef", 0.0)
        ours = our_loss(rows, our_A, weight_P_G, moved, **coefficients)
        theirs = trl.loss(trl_A, by_group)
        for part in parts.split():
            yield name, part, ours[part], theirs[part]

    lengths_P_G = lengths_of(rows)
    P, limits = len(A), (int(lengths_P_G.sum()), MAX_TOKENS)
    seq, dapo, batch, constant = (
        torch.stack([grpo.row_weights(lengths_G, P, loss, *limits) for lengths_G in lengths_P_G])
        for loss in ("grpo", "dapo", "batch", "constant")
    )
    first, grouped = {"parts": "gradient", "moved": False}, {"by_group": True}
    k3, dapo_H = {"use_bias_correction_kl": False}, {"loss_type": "dapo", "entropy_coef": 0.01}
    yield from losses("first update", seq, **first)
    yield from losses("… from rewards", seq, **first, scale_rewards="none")
    yield from losses("`grpo`", seq, "loss gradient clip_fraction")
    yield from losses("`constant` / `dr_grpo`", constant, loss_type="dr_grpo")
    yield from losses("`batch` / `dapo`", batch, loss_type="dapo")
    yield from losses("`dapo`", dapo, loss_type="dapo")
    yield from losses("… TRL, a group at a time", dapo, loss_type="dapo", **grouped)
    yield from losses("`dapo` / `bnpo`, a group at a time", dapo, loss_type="bnpo", **grouped)
    yield from losses("`grpo` + 0.04 KL", seq, beta=0.04)
    yield from losses("… TRL, k3 itself", seq, "loss gradient kl", beta=0.04, **k3)
    yield from losses("`grpo` − 0.01 H", seq, entropy_coef=0.01)
    yield from losses("… `dapo`, a group at a time", dapo, **dapo_H, **grouped)


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
    rows, disagree = sample(), []
    dead = grpo.dead_groups(rewards_of(rows)).sum()
    tokens = lengths_of(rows).sum()
    cut = sum(not completion.finished for _, completion in rows)
    print(f"TRL {trl.__version__}, transformers {transformers.__version__}, torch", end=" ")
    print(f"{torch.__version__}. {len(rows) // G} groups of {G}, {dead} of them dead;", end=" ")
    print(f"{tokens} response tokens, {cut} rows cut off.\n")
    print("| quantity | ours | TRL | relative difference | note |\n|---|---|---|---|---|")
    for name, part, x, y in quantities(rows):
        difference = ((x - y).abs().max() / y.abs().max().clamp(min=1e-30)).item()
        summary = torch.mean if part in ("log-prob", "entropy") else torch.linalg.vector_norm
        shown = [f"{z.item() if z.dim() == 0 else summary(z.double()).item():.7g}" for z in (x, y)]
        note = f"intended: {INTENDED[name]}" if name in INTENDED else ""
        if not note and not difference <= TOLERANCE:  # also where it is NaN
            note = "**DISAGREES**"
            disagree.append(f"{name}: {part}")
        print(f"| {name}: {part} | {' | '.join(shown)} | {difference:.1e} | {note} |", flush=True)
    agree = f"All that should agree do, to {TOLERANCE:g}."
    print(f"\nDisagree: {'; '.join(disagree)}." if disagree else f"\n{agree}")
    return int(bool(disagree))


if __name__ == "__main__":
    sys.exit(main())
