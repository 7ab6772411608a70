#!/usr/bin/env python
"""The same rollouts and weights through this project's maths and through TRL's GRPOTrainer, side by side.

    python -m venv trl_venv
    trl_venv/bin/pip install torch==2.13.0 transformers==5.23.0 datasets==5.2.0 math-verify==0.9.0 trl==1.16.0
    trl_venv/bin/python scripts/agree_with_trl.py

TRL is needed for nothing else, so it gets an environment of its own. The demo model samples 16 completions of each
of 12 problems and `Verifier` grades them. TRL is handed the tokens (its `rollout_func`) and the rewards (a reward
function) and runs its own code from there: padding, old and reference log-probs and advantages
(`_generate_and_score_completions`), then the loss (`_compute_loss`). Between the two the weights are moved, so that
the ratio differs from 1 as at a second update. Ours is Policy, grpo.py and the lines of train.py that join them.

Prints a Markdown table and exits with 1 when numbers that should agree do not. `intended` marks two definitions that
differ on purpose; a row below it, begun with an ellipsis, takes the difference out and must agree.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import grpo
from rollout import Generator, Policy, PromptEncoder, Rollouts, collate
from verify import Verifier

INSTALL = next(line.strip() for line in __doc__.splitlines() if "pip install" in line)
DEMO, CPU = Path(__file__).resolve().parent.parent / "demo", torch.device("cpu")
MODEL = str(DEMO / "model")
# Hot and short: at 0.7 all completions of a demo problem have one length, which hides what a normaliser does.
G, TEMPERATURE, MAX_TOKENS = 16, 2.0, 40
CLIP_LOW, CLIP_HIGH, KL, ENTROPY = 0.2, 0.28, 0.04, 0.01
POLICY, REFERENCE = (
    1,
    2,
)  # seeds: how the policy has moved since it sampled, and where the reference is
# The float32 gradient of either side lies up to 2.3e-5 from ours in float64 (measured on three seeds).
TOLERANCE = 5e-5


def shift(model: torch.nn.Module, seed: int) -> None:
    """Moves every weight by 10% of its tensor's scale, the same way for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * p.square().mean().sqrt() * torch.randn(p.shape, generator=generator)


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    """The gradient of all parameters as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def sample(seed: int) -> tuple[Rollouts, torch.Tensor]:
    """Groups for 12 problems from the easiest third: the rollouts and their rewards (P, G)."""
    rows = map(json.loads, (DEMO / "val.jsonl").read_text().splitlines())
    rows = sorted(rows, key=lambda row: row["difficulty"])[:120:10]
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    encode = PromptEncoder(tokenizer, header="", footer="Solution:")
    prompts = [encode(row["problem"]) for row in rows for _ in range(G)]
    rollouts = Generator(MODEL, CPU, tokenizer).generate(prompts, TEMPERATURE, MAX_TOKENS, seed)
    texts = tokenizer.batch_decode(rollouts.completion_ids, skip_special_tokens=True)
    with Verifier(workers=1) as verifier:
        verdicts = verifier.grade(texts, [row["expected_answer"] for row in rows for _ in range(G)])
    return rollouts, torch.tensor([v.reward for v in verdicts]).reshape(-1, G)


class Ours:
    """The update of train.py on one rank: rows that have a gradient, log-probs, loss, backward."""

    def __init__(self, rollouts: Rollouts):
        self.rollouts, self.pad_id = rollouts, AutoTokenizer.from_pretrained(MODEL).pad_token_id
        self.old, self.policy, self.reference = (Policy(MODEL, CPU) for _ in range(3))
        shift(self.policy.lm, POLICY)
        shift(self.reference.lm, REFERENCE)

    def logprobs(self, policy: Policy, rows):
        """Row number, log-prob and entropy of each response token of these rows, each (N,)."""
        rows_N, *inputs = collate(self.rollouts, list(rows), self.pad_id, CPU)
        return rows_N, *policy(*inputs, TEMPERATURE)

    def loss(
        self, advantage_B, weight_B, policy=None, kl_coef=0.0, entropy_coef=0.0
    ) -> dict[str, torch.Tensor]:
        """Loss, gradient, and the means over all response tokens that are logged."""
        policy = policy or self.policy
        # As in train.py, rows of dead groups are not forwarded where they have no gradient; TRL forwards them.
        rows = (
            range(len(advantage_B))
            if kl_coef or entropy_coef
            else advantage_B.nonzero()[:, 0].tolist()
        )
        with torch.no_grad():
            old_N, ref_N = self.logprobs(self.old, rows)[1], self.logprobs(self.reference, rows)[1]
        policy.zero_grad()
        rows_N, logp_N, entropy_N = self.logprobs(policy, rows)
        clip = {"clip_low": CLIP_LOW, "clip_high": CLIP_HIGH}
        extra = {
            "ref_logp_N": ref_N,
            "kl_coef": kl_coef,
            "entropy_N": entropy_N,
            "entropy_coef": entropy_coef,
        }
        loss, stats = grpo.policy_loss(
            logp_N, old_N, advantage_B[rows_N], weight_B[rows_N], **clip, **extra
        )
        loss.backward()
        means = {name: total / self.rollouts.lengths().sum() for name, total in stats.items()}
        return {"loss": loss.detach(), "gradient": flat_gradient(policy.lm), **means}


class TRL:
    """A GRPOTrainer with the settings given, and the batch that it makes of our rollouts and rewards."""

    def __init__(self, rollouts: Rollouts, r_P_G: torch.Tensor, folder: str, **settings):
        from trl import GRPOConfig, GRPOTrainer

        settings |= {
            "num_generations": G,
            "max_completion_length": MAX_TOKENS,
            "temperature": TEMPERATURE,
        }
        settings |= {
            "epsilon": CLIP_LOW,
            "epsilon_high": CLIP_HIGH,
            "per_device_train_batch_size": len(rollouts),
        }
        settings["num_iterations"] = (
            2  # two updates a batch: TRL then records the log-probs from before the first
        )
        # bf16 is TRL's default, on a CPU too, and would leave three digits.
        machine = {
            "bf16": False,
            "use_cpu": True,
            "gradient_checkpointing": False,
            "report_to": "none",
        }
        args = GRPOConfig(folder, model_init_kwargs={"dtype": "float32"}, **machine, **settings)
        tokens = {
            "prompt_ids": rollouts.prompt_ids,
            "completion_ids": rollouts.completion_ids,
            "logprobs": None,
        }
        # The text of a prompt is not used: rollout_func brings its tokens.
        rows = [{"prompt": str(b), "graded": r} for b, r in enumerate(r_P_G.flatten().tolist())]
        self.trainer = GRPOTrainer(
            MODEL,
            lambda graded, **_: graded,
            args,
            Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(MODEL),
            rollout_func=lambda prompts, trainer: tokens,
        )
        self.model = self.trainer.model.train()
        self.trainer.current_gradient_accumulation_steps = (
            1  # set by the training loop, which is not run here
        )
        if self.trainer.ref_model is not None:
            shift(self.trainer.ref_model, REFERENCE)
        self.batch = self.trainer._generate_and_score_completions(rows)
        self.mask = self.batch["completion_mask"].bool()

    def logprobs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-prob and entropy of each response token with the weights as they are now, row by row, (N,)."""
        prompt, completion = (
            [self.batch[f"{part}_{x}"] for x in ("ids", "mask")]
            for part in ("prompt", "completion")
        )
        ids, mask = (torch.cat(pair, dim=1) for pair in zip(prompt, completion, strict=True))
        with torch.no_grad():
            logp, entropy, _ = self.trainer._get_per_token_logps_and_entropies(
                self.model, ids, mask, self.mask.shape[1], compute_entropy=True
            )
        return logp[self.mask], entropy[self.mask]

    def loss(self, advantage_B=None, move=True, by_group=False) -> dict[str, torch.Tensor]:
        """Loss, gradient, logged means; `by_group` makes each group a batch of its own and takes their mean."""
        if move:
            shift(self.model, POLICY)
        batch = self.batch if advantage_B is None else {**self.batch, "advantages": advantage_B}
        batches = [batch]
        if by_group:
            groups = [slice(b, b + G) for b in range(0, len(self.mask), G)]
            batches = [{k: v[group] for k, v in batch.items() if v.dim()} for group in groups]
            batches = [
                {**part, "num_items_in_batch": part["completion_mask"].sum()} for part in batches
            ]
        loss = sum(self.trainer._compute_loss(self.model, part) for part in batches) / len(batches)
        loss.backward()
        logged = {
            name: torch.tensor(values[-1])
            for name, values in self.trainer._metrics["train"].items()
        }
        means = {"clipped": logged["clip_ratio/region_mean"], "kl": logged.get("kl")}
        return {"loss": loss.detach(), "gradient": flat_gradient(self.model), **means}


class Table:
    """Prints rows as they come; keeps the names of those that should agree and do not."""

    def __init__(self):
        self.disagree: list[str] = []
        print("| quantity | ours | TRL | relative difference | note |\n|---|---|---|---|---|")

    def row(self, name, ours, trl, note="", intended=False, show=torch.linalg.vector_norm):
        """One quantity: a number each (of a tensor, what `show` makes of it), and max |ours - TRL| / max |TRL|."""
        difference = float("inf")  # not even the same tokens
        if ours.shape == trl.shape:
            difference = ((ours - trl).abs().max() / trl.abs().max().clamp(min=1e-30)).item()
        if not intended and not difference <= TOLERANCE:  # written so that NaN fails
            self.disagree.append(name)
            note = f"**DISAGREES** {note}"
        a, b = (x.item() if x.dim() == 0 else show(x.double()).item() for x in (ours, trl))
        note = f"intended: {note}" if intended else note
        print(f"| {name} | {a:.7g} | {b:.7g} | {difference:.1e} | {note} |", flush=True)

    def loss(self, name, ours, trl, note="", intended=False):
        """A loss and its gradient."""
        self.row(f"{name}: loss", ours["loss"], trl["loss"], note, intended)
        self.row(
            f"{name}: gradient (norm)",
            ours["gradient"],
            trl["gradient"],
            "as above" * intended,
            intended,
        )


def compare(rollouts: Rollouts, r_P_G: torch.Tensor, folder: str) -> list[str]:
    """Prints the table; returns the names of what disagrees."""
    ours, table = Ours(rollouts), Table()
    lengths_P_G = rollouts.lengths().reshape(r_P_G.shape)
    grpo_B, dapo_B, sum_B = (
        grpo.row_weights(lengths_P_G, loss).flatten() for loss in ("grpo", "dapo", "sum")
    )

    def trl(loss_type, **settings):
        return TRL(rollouts, r_P_G, folder, loss_type=loss_type, **settings)

    default, sampled, centred = (
        grpo.group_advantages(r_P_G, std) for std in ("population", "sample", "none")
    )
    A, std_P_1, dead_P = default.flatten(), r_P_G.std(dim=1, keepdim=True), grpo.dead_groups(r_P_G)
    trl_default, trl_centred = trl("grpo"), trl("grpo", scale_rewards="none")
    trl_A = trl_default.batch["advantages"].reshape(r_P_G.shape)
    note = "r − mean; TRL's `batch`, one std for the whole batch, has no counterpart"
    table.row(
        "advantages, `none` / `none` (norm)",
        centred.flatten(),
        trl_centred.batch["advantages"],
        note,
    )
    note = "TRL divides by the std of ddof 1, plus 1e-4, we by that of ddof 0: √(16/15) = 1.033 times larger"
    table.row(
        "advantages, `population` / `group`, the defaults (norm)",
        default,
        trl_A,
        note,
        intended=True,
    )
    table.row(
        "… ours with `sample`, × std / (std + 1e-4)", sampled * std_P_1 / (std_P_1 + 1e-4), trl_A
    )
    table.row(
        "advantages of the dead groups (norm)", default[dead_P], trl_A[dead_P], "exactly 0 in both"
    )

    everything = range(len(rollouts))
    with torch.no_grad():
        old_N, (logp_N, entropy_N) = (
            ours.logprobs(ours.old, everything)[1],
            ours.logprobs(ours.policy, everything)[1:],
        )
    trl_old = trl_default.batch["old_per_token_logps"][trl_default.mask]
    note = "we pad right, TRL left; the stop token counts in both"
    table.row(
        f"log-prob of a token at temperature {TEMPERATURE:g} (mean)",
        old_N,
        trl_old,
        note,
        show=torch.mean,
    )
    first = ours.loss(A, grpo_B, ours.old)["gradient"], trl_default.loss(A, move=False)["gradient"]
    note = "ratio 1; TRL gets our advantages, here and below, and forwards dead groups too"
    table.row("`grpo` / `grpo`, first update: gradient (norm)", *first, note)
    first = (
        ours.loss(centred.flatten(), grpo_B, ours.old)["gradient"],
        trl_centred.loss(move=False)["gradient"],
    )
    table.row("… from rewards to gradient, `none` / `none`", *first, "each with its own advantages")

    moved = trl("grpo")
    a, b = ours.loss(A, grpo_B), moved.loss(A)
    trl_logp, trl_entropy = moved.logprobs()
    table.row(
        "log-prob of a token (mean)",
        logp_N,
        trl_logp,
        "here and below: the weights have moved",
        show=torch.mean,
    )
    table.row("entropy of a token's distribution (mean)", entropy_N, trl_entropy, show=torch.mean)
    table.loss(
        "`grpo` / `grpo`",
        a,
        b,
        "clipped to 0.8 … 1.28; TRL's upper bound would be its lower one's by default",
    )
    table.row(
        "share of tokens where the clip bites",
        a["clipped"],
        b["clipped"],
        "tokens of dead groups are counted",
    )
    a, b = ours.loss(A, sum_B), trl("dr_grpo").loss(A)
    note = f"TRL divides by its limit of tokens, {MAX_TOKENS}, as well"
    table.loss("`sum` / `dr_grpo`", a, b, note, intended=True)
    table.loss("… ours / limit", {name: x / MAX_TOKENS for name, x in a.items()}, b)
    a, b = ours.loss(A, dapo_B), trl("dapo").loss(A)
    note = "ours: mean over groups of the mean over a group's tokens, as printed; TRL: mean over the batch's tokens"
    table.loss("`dapo` / `dapo`", a, b, note, intended=True)
    table.loss(
        "… ours, weight 1 / all tokens", ours.loss(A, torch.full_like(A, 1 / lengths_P_G.sum())), b
    )
    table.loss("… TRL, a group at a time", a, trl("dapo").loss(A, by_group=True))
    table.loss("`dapo` / `bnpo`, a group at a time", a, trl("bnpo").loss(A, by_group=True))

    a, b = ours.loss(A, grpo_B, kl_coef=KL), trl("grpo", beta=KL).loss(A)
    note = (
        "by default TRL multiplies k3 by the ratio, which makes its gradient that of KL(π ‖ π_ref)"
    )
    table.loss(f"`grpo` + {KL} KL", a, b, note, intended=True)
    b = trl("grpo", beta=KL, use_bias_correction_kl=False).loss(A)
    table.loss("… TRL, use_bias_correction_kl=False", a, b)
    table.row("k3 of a token (mean)", a["kl"], b["kl"])
    a, b = ours.loss(A, grpo_B, entropy_coef=ENTROPY), trl("grpo", entropy_coef=ENTROPY).loss(A)
    note = "we weight a token's H as its surrogate, TRL takes the mean over the batch's tokens; both subtract it"
    table.loss(f"`grpo` − {ENTROPY} H", a, b, note, intended=True)
    a, b = (
        ours.loss(A, dapo_B, entropy_coef=ENTROPY),
        trl("dapo", entropy_coef=ENTROPY).loss(A, by_group=True),
    )
    table.loss(
        f"… `dapo` − {ENTROPY} H, TRL a group at a time", a, b, "where the two weights are the same"
    )
    return table.disagree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the rollouts")
    seed = parser.parse_args().seed
    if importlib.util.find_spec("trl") is None:
        print(
            f"agree_with_trl.py needs TRL, in a virtual environment made for it (python -m venv trl_venv): {INSTALL}",
            file=sys.stderr,
        )
        return 2
    import trl

    warnings.filterwarnings(
        "ignore"
    )  # TRL: rollout_func is experimental; transformers: renamed settings
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    rollouts, r_P_G = sample(seed)
    dead = int(grpo.dead_groups(r_P_G).sum())
    versions = f"TRL {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}, float32"
    tokens, cut = int(rollouts.lengths().sum()), rollouts.finished.count(False)
    print(f"{versions}. Seed {seed}: {len(r_P_G)} groups of {G}, {dead} of them dead;", end=" ")
    print(f"{tokens} response tokens, {cut} completions cut off.\n")
    if not 0 < dead < len(r_P_G):
        print("both live and dead groups are needed: try another --seed", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        disagree = compare(rollouts, r_P_G, folder)
    print(
        f"\nDisagree: {'; '.join(disagree)}."
        if disagree
        else f"\nAll that should agree do, to {TOLERANCE:g}."
    )
    return int(bool(disagree))


if __name__ == "__main__":
    sys.exit(main())
