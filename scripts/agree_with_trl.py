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
differ on purpose; the row below it takes the difference out and must agree.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import grpo
from rollout import Generator, Policy, PromptEncoder, Rollouts, collate
from verify import Verifier

INSTALL = "pip install torch==2.13.0 transformers==5.23.0 datasets==5.2.0 math-verify==0.9.0 trl==1.16.0"
G, TEMPERATURE, MAX_TOKENS, CPU = 16, 0.7, 64, torch.device("cpu")
CLIP_LOW, CLIP_HIGH, KL, ENTROPY = 0.2, 0.28, 0.04, 0.01
POLICY, REFERENCE = 1, 2  # seeds: how the policy has moved since it sampled, and where the reference is
TOLERANCE = 1e-5  # float32: a sum of some thousand terms in another order


def shift(model: torch.nn.Module, seed: int) -> None:
    """Moves every weight by 3% of its tensor's scale, the same way for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.03 * p.square().mean().sqrt() * torch.randn(p.shape, generator=generator)


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    """The gradient of all parameters as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def sample(model: str, data: str, seed: int) -> tuple[Rollouts, torch.Tensor]:
    """Groups for 12 problems of the easier half, evenly spaced: the rollouts and their rewards (P, G)."""
    rows = sorted(map(json.loads, Path(data).read_text().splitlines()), key=lambda row: row["difficulty"])
    rows = rows[: len(rows) // 2 : len(rows) // 24]
    tokenizer = AutoTokenizer.from_pretrained(model)
    encode = PromptEncoder(tokenizer, header="", footer="Solution:")
    prompts = [encode(row["problem"]) for row in rows for _ in range(G)]
    rollouts = Generator(model, CPU, tokenizer).generate(prompts, TEMPERATURE, MAX_TOKENS, seed)
    texts = tokenizer.batch_decode(rollouts.completion_ids, skip_special_tokens=True)
    with Verifier(workers=1) as verifier:
        verdicts = verifier.grade(texts, [row["expected_answer"] for row in rows for _ in range(G)])
    return rollouts, torch.tensor([v.reward for v in verdicts]).reshape(-1, G)


class Ours:
    """The update of train.py on one rank: rows that have a gradient, log-probs, loss, backward."""

    def __init__(self, model: str, rollouts: Rollouts):
        self.rollouts, self.pad_id = rollouts, AutoTokenizer.from_pretrained(model).pad_token_id
        self.old, self.policy, self.reference = (Policy(model, CPU) for _ in range(3))
        shift(self.policy.lm, POLICY)
        shift(self.reference.lm, REFERENCE)

    def logprobs(self, policy: Policy, rows: list[int]):
        """Row number, log-prob and entropy of each response token of these rows, each (N,)."""
        rows_N, ids_B_T, response_B_T = collate(self.rollouts, rows, self.pad_id, CPU)
        return rows_N, *policy(ids_B_T, response_B_T, TEMPERATURE)

    def loss(self, advantage_B, weight_B, policy=None, kl_coef=0.0, entropy_coef=0.0) -> dict[str, torch.Tensor]:
        """Loss, gradient, and the means over all response tokens that are logged."""
        policy = policy or self.policy
        # As in train.py, rows of dead groups are not forwarded where they have no gradient; TRL forwards them.
        rows = range(len(advantage_B)) if kl_coef or entropy_coef else advantage_B.nonzero()[:, 0].tolist()
        with torch.no_grad():
            old_N, ref_N = self.logprobs(self.old, rows)[1], self.logprobs(self.reference, rows)[1]
        policy.zero_grad()
        rows_N, logp_N, entropy_N = self.logprobs(policy, rows)
        clip = {"clip_low": CLIP_LOW, "clip_high": CLIP_HIGH}
        extra = {"ref_logp_N": ref_N, "kl_coef": kl_coef, "entropy_N": entropy_N, "entropy_coef": entropy_coef}
        loss, stats = grpo.policy_loss(logp_N, old_N, advantage_B[rows_N], weight_B[rows_N], **clip, **extra)
        loss.backward()
        means = {name: total / self.rollouts.lengths().sum() for name, total in stats.items()}
        return {"loss": loss.detach(), "gradient": flat_gradient(policy.lm), **means}


class TRL:
    """A GRPOTrainer with the settings given, and the batch that it makes of our rollouts and rewards."""

    def __init__(self, model: str, rollouts: Rollouts, rewards_P_G: torch.Tensor, folder: str, **settings):
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        # The text of the prompt is not used: rollout_func brings its tokens.
        rows = [{"prompt": str(b), "graded": r} for b, r in enumerate(rewards_P_G.flatten().tolist())]
        args = GRPOConfig(
            folder,
            per_device_train_batch_size=len(rows),
            num_generations=G,
            num_iterations=2,  # two updates a batch: TRL then records the log-probs from before the first
            max_completion_length=MAX_TOKENS,
            temperature=TEMPERATURE,
            epsilon=CLIP_LOW,
            epsilon_high=CLIP_HIGH,
            bf16=False,  # TRL's default, on a CPU too; three digits would be left
            gradient_checkpointing=False,
            use_cpu=True,
            report_to="none",
            model_init_kwargs={"dtype": "float32"},
            **settings,
        )
        tokens = {"prompt_ids": rollouts.prompt_ids, "completion_ids": rollouts.completion_ids, "logprobs": None}
        self.trainer = GRPOTrainer(
            model,
            lambda graded, **_: graded,
            args,
            Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(model),
            rollout_func=lambda prompts, trainer: tokens,
        )
        self.model = self.trainer.model.train()
        self.trainer.current_gradient_accumulation_steps = 1  # set by the training loop, which is not run here
        if self.trainer.ref_model is not None:
            shift(self.trainer.ref_model, REFERENCE)
        self.batch = self.trainer._generate_and_score_completions(rows)
        self.mask = self.batch["completion_mask"].bool()

    def logprobs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-prob and entropy of each response token with the weights as they are now, row by row, (N,)."""
        ids, mask = (torch.cat([self.batch[f"{part}_{x}"] for part in ("prompt", "completion")], 1) for x in ("ids", "mask"))
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
            batches = [{**part, "num_items_in_batch": part["completion_mask"].sum()} for part in batches]
        loss = sum(self.trainer._compute_loss(self.model, part) for part in batches) / len(batches)
        loss.backward()
        logged = {name: torch.tensor(values[-1]) for name, values in self.trainer._metrics["train"].items()}
        means = {"clipped": logged["clip_ratio/region_mean"], "kl": logged.get("kl")}
        return {"loss": loss.detach(), "gradient": flat_gradient(self.model), **means}


class Table:
    """Prints rows as they come; keeps the names of those that should agree and do not."""

    def __init__(self):
        self.disagree: list[str] = []
        print("| quantity | ours | TRL | relative difference | note |\n|---|---|---|---|---|")

    def row(self, name, ours, trl, note="", intended=False, show=torch.linalg.vector_norm):
        """One quantity: a number each (of a tensor, what `show` makes of it), and max |ours - TRL| / max |TRL|."""
        difference = ((ours - trl).abs().max() / trl.abs().max().clamp(min=1e-30)).item()
        if not intended and not difference <= TOLERANCE:  # written so that NaN fails
            self.disagree.append(name)
            note = f"**DISAGREE** {note}"
        note = f"intended: {note}" if intended else note
        print(f"| {name} | {show(ours.double()):.7g} | {show(trl.double()):.7g} | {difference:.1e} | {note} |", flush=True)

    def loss(self, name, ours, trl, note="", intended=False):
        """The loss and its gradient."""
        self.row(f"{name}: loss", ours["loss"], trl["loss"], note, intended, show=torch.sum)
        self.row(f"{name}: gradient (norm)", ours["gradient"], trl["gradient"], "" if not intended else "the same", intended)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(ROOT / "demo/model"))
    parser.add_argument("--data", default=str(ROOT / "demo/val.jsonl"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        import trl
    except ImportError:
        print(f"agree_with_trl.py needs TRL, in a virtual environment of its own: {INSTALL}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    rollouts, r_P_G = sample(args.model, args.data, args.seed)
    P, lengths_P_G = len(r_P_G), rollouts.lengths().reshape(-1, G)
    dead = int(grpo.dead_groups(r_P_G).sum())
    if not 0 < dead < P:
        print(f"{dead} of {P} groups are dead: live and dead ones are needed; try another --seed", file=sys.stderr)
        return 2
    print(
        f"TRL {trl.__version__}, torch {torch.__version__}; {P} groups of {G}, {dead} of them dead; "
        f"{int(lengths_P_G.sum())} response tokens, {rollouts.finished.count(False)} completions cut off\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        disagree = compare(args.model, rollouts, r_P_G, lengths_P_G, folder)
    print(f"\nDISAGREE: {', '.join(disagree)}" if disagree else "\nAll rows that should agree do.")
    return bool(disagree)


def compare(model, rollouts, r_P_G, lengths_P_G, folder) -> list[str]:
    """Prints the table; returns the quantities that disagree."""
    ours, table = Ours(model, rollouts), Table()

    def trl(**settings):
        return TRL(model, rollouts, r_P_G, folder, **settings)

    def weight(loss):
        return grpo.row_weights(lengths_P_G, loss).flatten()

    default = grpo.group_advantages(r_P_G)  # (P, G)
    A = default.flatten()
    by_std, centred = trl(loss_type="grpo"), trl(loss_type="grpo", scale_rewards="none")
    theirs = by_std.batch["advantages"].reshape(r_P_G.shape)
    s_P_1 = r_P_G.std(dim=1, keepdim=True)
    table.row(
        "advantages, std `none` / scale_rewards `none` (norm)",
        grpo.group_advantages(r_P_G, "none").flatten(),
        centred.batch["advantages"],
        "r - mean; TRL's `batch` (one std for the whole batch) has no counterpart here",
    )
    table.row(
        "advantages, std `population` (our default) / `group` (TRL's) (norm)",
        default,
        theirs,
        "TRL divides by std with ddof 1, plus 1e-4: ours is √(G/(G-1)) = 1.033 times larger",
        intended=True,
    )
    table.row("… ours × std₀ / (std₁ + 1e-4)", default * r_P_G.std(1, True, correction=0) / (s_P_1 + 1e-4) if False else default * r_P_G.std(dim=1, correction=0, keepdim=True) / (s_P_1 + 1e-4), theirs)
    table.row(
        "advantages, std `sample` / `group` (norm)",
        grpo.group_advantages(r_P_G, "sample"),
        theirs,
        "only the 1e-4 is left",
        intended=True,
    )
    dead = grpo.dead_groups(r_P_G)
    table.row("advantages of dead groups (norm)", default[dead], theirs[dead], "0 exactly in both")

    everything = list(range(len(A)))
    with torch.no_grad():
        _, old_N, _ = ours.logprobs(ours.old, everything)
        _, logp_N, entropy_N = ours.logprobs(ours.policy, everything)
    table.row("log-prob per token at temperature 0.7, sampling weights (mean)", old_N, by_std.batch["old_per_token_logps"][by_std.mask], "ours right-padded, TRL left-padded; EOS counts in both", show=torch.mean)

    result = by_std.loss(A, move=False)
    mine = ours.loss(A, weight("grpo"), policy=ours.old)
    table.row("`grpo`, first update (ratio 1): gradient (norm)", mine["gradient"], result["gradient"], "fed our advantages, here and below; ours forwards live rows only")
    table.row("… end to end", ours.loss(grpo.group_advantages(r_P_G,"none").flatten(), weight("grpo"), policy=ours.old)["gradient"], centred.loss(move=False)["gradient"], "each its own advantages (`none`)")
    by_std.model.zero_grad()
    result = by_std.loss(A)
    theirs_logp, theirs_entropy = by_std.logprobs()
    table.row("log-prob, moved weights (mean)", logp_N, theirs_logp, show=torch.mean)
    table.row("entropy per token (mean)", entropy_N, theirs_entropy, show=torch.mean)
    mine = ours.loss(A, weight("grpo"))
    table.loss("`grpo`", mine, result)
    table.row("clip frac", mine["clipped"], result["clipped"], show=torch.sum)
    mine, result = ours.loss(A, weight("grpo"), kl_coef=KL), trl(loss_type="grpo", beta=KL).loss(A)
    table.loss("`grpo` + KL", mine, result)
    table.row("k3", mine["kl"], result["kl"], show=torch.sum)
    result = trl(loss_type="dr_grpo").loss(A)
    mine = ours.loss(A, weight("sum"))
    table.loss("sum", mine, result, "", True)
    table.loss("sum / max", {k: v / MAX_TOKENS for k, v in mine.items()}, result)
    result = trl(loss_type="dapo").loss(A)
    mine = ours.loss(A, weight("dapo"))
    table.loss("dapo", mine, result, "", True)
    table.loss("dapo by group", mine, trl(loss_type="dapo").loss(A, by_group=True))
    table.loss("dapo with N", ours.loss(A, torch.full_like(A, 1/lengths_P_G.sum())), result)
    result = trl(loss_type="grpo", entropy_coef=ENTROPY).loss(A)
    table.loss("grpo entropy", ours.loss(A, weight("grpo"), entropy_coef=ENTROPY), result, "", True)
    table.loss("dapo entropy by group", ours.loss(A, weight("dapo"), entropy_coef=ENTROPY), trl(loss_type="dapo", entropy_coef=ENTROPY).loss(A, by_group=True))
    return table.disagree


if __name__ == "__main__":
    sys.exit(main())
