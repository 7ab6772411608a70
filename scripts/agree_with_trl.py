"""The same rollouts and weights through this project's maths and through TRL's GRPOTrainer.

    python -m venv trl_venv
    trl_venv/bin/pip install -r requirements.txt trl==1.16.0
    trl_venv/bin/python -m scripts.agree_with_trl

TRL is needed for nothing else, so it gets an environment of its own. The demo model samples 16
completions of each of 12 problems and `Verifier` grades them. TRL is handed the tokens (its
`rollout_func`) and the rewards (a reward function) and runs its own code from there: padding, old
and reference log-probs and advantages (`_generate_and_score_completions`), then the loss
(`_compute_loss`). Between the two the weights are moved, so that the ratio differs from 1 as at a
second update. Ours is Policy, grpo.py and the lines of train.Student.update that join them.

Prints a Markdown table and exits with 1 when numbers that should agree do not. `intended` marks two
definitions that differ on purpose; a row below it, begun with an ellipsis, takes the difference out
and must agree.
"""

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

import grpo
from plumbing.batches import collate
from plumbing.flags import Parser, natural
from plumbing.ranks import begin_process
from rollout import Generator, Policy, PromptEncoder, Rollouts
from verify import Verifier

INSTALL = next(line.strip() for line in __doc__.splitlines() if "pip install" in line)
DEMO, CPU = Path(__file__).resolve().parent.parent / "demo", torch.device("cpu")
MODEL = str(DEMO / "model")
# Hot and short: at 0.7 all completions of a demo problem have one length, which hides what a
# normaliser does.
G, TEMPERATURE, MAX_TOKENS = 16, 2.0, 40
CLIP_LOW, CLIP_HIGH, KL, ENTROPY = 0.2, 0.28, 0.04, 0.01
POLICY, REFERENCE = 1, 2  # seeds: how the policy has moved since it sampled, where the reference is
# The float32 gradient of either side lies up to 2.3e-5 from ours in float64 (measured on three
# seeds).
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


def sample(seed: int) -> Rollouts:
    """Graded groups for 12 problems from the easiest third."""
    rows = map(json.loads, (DEMO / "val.jsonl").read_text().splitlines())
    rows = [r for r in sorted(rows, key=lambda r: r["difficulty"])[:120:10] for _ in range(G)]
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    encode = PromptEncoder(tokenizer, header="", footer="Solution:")
    prompts = [encode(row["problem"]) for row in rows]
    rollouts = Generator(MODEL, CPU, tokenizer).generate(prompts, TEMPERATURE, MAX_TOKENS, seed)
    texts = tokenizer.batch_decode(rollouts.completion_ids, skip_special_tokens=True)
    with Verifier(workers=1) as verifier:
        verdicts = verifier.grade(texts, [row["expected_answer"] for row in rows])
    rollouts.rewards = [verdict.reward for verdict in verdicts]
    return rollouts


class Ours:
    """One rank's update: rows that have a gradient, log-probs, loss, backward."""

    def __init__(self, rollouts: Rollouts):
        self.rollouts, self.pad_id = rollouts, AutoTokenizer.from_pretrained(MODEL).pad_token_id
        self.old, self.policy, self.reference = (Policy(MODEL, CPU) for _ in range(3))
        shift(self.policy.lm, POLICY)
        shift(self.reference.lm, REFERENCE)

    def batch(self, rows):
        return collate(self.rollouts, list(rows), self.pad_id, CPU)

    def loss(self, A_P_G, weight_P_G, policy=None, **coefficients) -> dict[str, torch.Tensor]:
        """Loss, gradient, and the means over all response tokens that are logged. coefficients:
        kl_coef, entropy_coef."""
        policy, advantage_B = policy or self.policy, A_P_G.flatten()
        # Rows of dead groups are not forwarded where they have no gradient; TRL forwards them.
        rows = range(len(advantage_B)) if coefficients else advantage_B.nonzero()[:, 0].tolist()
        batch = self.batch(rows)
        with torch.no_grad():
            old_N, ref_N = (p(batch, TEMPERATURE)[0] for p in (self.old, self.reference))
        policy.zero_grad()
        logp_N, entropy_N = policy(batch, TEMPERATURE)
        columns = old_N, advantage_B[batch.row_N], weight_P_G.flatten()[batch.row_N]
        more = {"clip_low": CLIP_LOW, "clip_high": CLIP_HIGH, **coefficients}
        more |= {"ref_logp_N": ref_N, "entropy_N": entropy_N}
        loss, stats = grpo.policy_loss(logp_N, *columns, **more)
        loss.backward()
        means = {name: total / self.rollouts.lengths().sum() for name, total in stats.items()}
        return {"loss": loss.detach(), "gradient": flat_gradient(policy.lm), **means}


class TRL:
    """A GRPOTrainer with the settings given, and the batch that it makes of our rollouts."""

    def __init__(self, rollouts: Rollouts, folder: str, loss_type: str, **settings):
        from trl import GRPOConfig, GRPOTrainer

        settings |= {"num_generations": G, "max_completion_length": MAX_TOKENS}
        settings |= {"temperature": TEMPERATURE, "epsilon": CLIP_LOW, "epsilon_high": CLIP_HIGH}
        settings |= {"per_device_train_batch_size": len(rollouts), "loss_type": loss_type}
        # Two updates a batch: TRL then records the log-probs from before the first.
        settings |= {"num_iterations": 2, "report_to": "none", "use_cpu": True}
        # bf16 is TRL's default, on a CPU too, and would leave three digits.
        settings |= {"bf16": False, "model_init_kwargs": {"dtype": "float32"}}
        settings |= {"gradient_checkpointing": False}
        tokens = {"prompt_ids": rollouts.prompt_ids, "completion_ids": rollouts.completion_ids}
        # The text of a prompt is not used: rollout_func brings its tokens.
        rows = [{"prompt": str(b), "graded": r} for b, r in enumerate(rollouts.rewards)]
        self.trainer = GRPOTrainer(
            MODEL,
            lambda graded, **_: graded,
            GRPOConfig(folder, **settings),
            Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(MODEL),
            rollout_func=lambda prompts, trainer: tokens | {"logprobs": None},
        )
        self.model = self.trainer.model.train()
        # Set by the training loop, which is not run here.
        self.trainer.current_gradient_accumulation_steps = 1
        if self.trainer.ref_model is not None:
            shift(self.trainer.ref_model, REFERENCE)
        self.batch = self.trainer._generate_and_score_completions(rows)
        self.mask = self.batch["completion_mask"].bool()

    def logprobs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-prob and entropy of each response token with the weights as they are, (N,)."""
        pairs = [
            (self.batch[f"prompt_{x}"], self.batch[f"completion_{x}"]) for x in ("ids", "mask")
        ]
        inputs = [torch.cat(pair, dim=1) for pair in pairs]
        forward = self.trainer._get_per_token_logps_and_entropies
        with torch.no_grad():
            logp, H, _ = forward(self.model, *inputs, self.mask.shape[1], compute_entropy=True)
        return logp[self.mask], H[self.mask]

    def loss(self, A_P_G=None, move=True, by_group=False) -> dict[str, torch.Tensor]:
        """Loss, gradient, logged means; by_group makes each group a batch of its own and takes
        their mean. A_P_G: in place of TRL's own advantages."""
        if move:
            shift(self.model, POLICY)
        batch = self.batch if A_P_G is None else {**self.batch, "advantages": A_P_G.flatten()}
        batches = [batch]
        if by_group:
            groups = [slice(b, b + G) for b in range(0, len(self.mask), G)]
            batches = [{k: v[group] for k, v in batch.items() if v.dim()} for group in groups]
            for part in batches:
                part["num_items_in_batch"] = part["completion_mask"].sum()
        loss = sum(self.trainer._compute_loss(self.model, part) for part in batches) / len(batches)
        loss.backward()
        logged = {k: torch.tensor(v[-1]) for k, v in self.trainer._metrics["train"].items()}
        means = {"clip_fraction": logged["clip_ratio/region_mean"], "kl": logged.get("kl")}
        return {"loss": loss.detach(), "gradient": flat_gradient(self.model), **means}


class Table:
    """Prints rows as they come; keeps the names of those that should agree and do not."""

    def __init__(self):
        self.disagree: list[str] = []
        print("| quantity | ours | TRL | relative difference | note |\n|---|---|---|---|---|")

    def row(self, name, ours, trl, note="", intended=False, show=torch.linalg.vector_norm):
        """One quantity: a number each (of a tensor, what `show` makes of it), and
        max |ours - TRL| / max |TRL|."""
        difference = float("inf")  # not even the same tokens
        if ours.shape == trl.shape:
            difference = ((ours - trl).abs().max() / trl.abs().max().clamp(min=1e-30)).item()
        if not intended and not difference <= TOLERANCE:  # written so that NaN fails
            self.disagree.append(name)
            note = f"**DISAGREES** {note}"
        a, b = (x.item() if x.dim() == 0 else show(x.double()).item() for x in (ours, trl))
        note = f"intended: {note}" if intended else note
        print(f"| {name} | {a:.7g} | {b:.7g} | {difference:.1e} | {note} |", flush=True)

    def mean(self, name, ours, trl, note=""):
        """A quantity of each token, shown by its mean."""
        self.row(name, ours, trl, note, show=torch.mean)

    def loss(self, name, ours, trl, note="", intended=False):
        """A loss and its gradient."""
        self.row(f"{name}: loss", ours["loss"], trl["loss"], note, intended)
        again = "as above" if intended else ""
        self.row(f"{name}: gradient (norm)", ours["gradient"], trl["gradient"], again, intended)


def compare(rollouts: Rollouts, folder: str) -> list[str]:
    """Prints the table; returns the names of what disagrees."""
    ours, table, r_P_G = Ours(rollouts), Table(), rollouts.rewards_P_G(G)
    lengths_P_G = rollouts.lengths().reshape(r_P_G.shape)
    by_grpo, by_dapo, by_sum = (grpo.row_weights(lengths_P_G, loss) for loss in grpo.LOSSES)
    A, sampled, centred = (grpo.group_advantages(r_P_G, std) for std in grpo.STDS)

    def trl(loss_type, **settings):
        return TRL(rollouts, folder, loss_type, **settings)

    default, plain = trl("grpo"), trl("grpo", scale_rewards="none")
    trl_A, trl_centred = (t.batch["advantages"].reshape(r_P_G.shape) for t in (default, plain))
    note = "r − mean; TRL's `batch`, one std for the whole batch, has no counterpart"
    table.row("advantages, `none` / `none` (norm)", centred, trl_centred, note)
    note = "TRL divides by the std of ddof 1, plus 1e-4, we by that of ddof 0: "
    note += "√(16/15) = 1.033 times larger"
    name = "advantages, `population` / `group`, the defaults (norm)"
    table.row(name, A, trl_A, note, intended=True)
    std, dead_P = r_P_G.std(dim=1, keepdim=True), grpo.dead_groups(r_P_G)
    name = "… ours with `sample`, × std / (std + 1e-4)"
    table.row(name, sampled * std / (std + 1e-4), trl_A)
    name = "advantages of the dead groups (norm)"
    table.row(name, A[dead_P], trl_A[dead_P], "exactly 0 in both")

    batch = ours.batch(range(len(rollouts)))
    with torch.no_grad():
        old_N, (logp_N, entropy_N) = (p(batch, TEMPERATURE) for p in (ours.old, ours.policy))
    name = f"log-prob of a token at temperature {TEMPERATURE:g} (mean)"
    note = "we pad right, TRL left; the stop token counts in both"
    table.mean(name, old_N[0], default.batch["old_per_token_logps"][default.mask], note)
    note = "ratio 1; TRL gets our advantages, here and below, and forwards dead groups too"
    a, b = ours.loss(A, by_grpo, ours.old), default.loss(A, move=False)
    name = "`grpo` / `grpo`, first update: gradient (norm)"
    table.row(name, a["gradient"], b["gradient"], note)
    a, b = ours.loss(centred, by_grpo, ours.old), plain.loss(move=False)
    name, note = "… from rewards to gradient, `none` / `none`", "each with its own advantages"
    table.row(name, a["gradient"], b["gradient"], note)

    moved = trl("grpo")
    a, b = ours.loss(A, by_grpo), moved.loss(A)
    trl_logp_N, trl_entropy_N = moved.logprobs()
    note = "here and below: the weights have moved"
    table.mean("log-prob of a token (mean)", logp_N, trl_logp_N, note)
    table.mean("entropy of a token's distribution (mean)", entropy_N, trl_entropy_N)
    note = "clipped to 0.8 … 1.28; TRL's upper bound would be its lower one's by default"
    table.loss("`grpo` / `grpo`", a, b, note)
    name, note = "share of tokens where the clip bites", "tokens of dead groups are counted"
    table.row(name, a["clip_fraction"], b["clip_fraction"], note)
    a, b = ours.loss(A, by_sum), trl("dr_grpo").loss(A)
    note = f"TRL divides by its limit of tokens, {MAX_TOKENS}, as well"
    table.loss("`sum` / `dr_grpo`", a, b, note, intended=True)
    table.loss("… ours / limit", {name: x / MAX_TOKENS for name, x in a.items()}, b)
    a, b = ours.loss(A, by_dapo), trl("dapo").loss(A)
    note = "ours: mean over groups of the mean over a group's tokens, as printed; "
    note += "TRL: mean over the batch's tokens"
    table.loss("`dapo` / `dapo`", a, b, note, intended=True)
    by_tokens = torch.full_like(A, 1 / lengths_P_G.sum())
    table.loss("… ours, weight 1 / all tokens", ours.loss(A, by_tokens), b)
    table.loss("… TRL, a group at a time", a, trl("dapo").loss(A, by_group=True))
    table.loss("`dapo` / `bnpo`, a group at a time", a, trl("bnpo").loss(A, by_group=True))

    a, b = ours.loss(A, by_grpo, kl_coef=KL), trl("grpo", beta=KL).loss(A)
    note = "by default TRL multiplies k3 by the ratio, so its gradient is that of KL(π ‖ π_ref)"
    table.loss(f"`grpo` + {KL} KL", a, b, note, intended=True)
    b = trl("grpo", beta=KL, use_bias_correction_kl=False).loss(A)
    table.loss("… TRL, use_bias_correction_kl=False", a, b)
    table.row("k3 of a token (mean)", a["kl"], b["kl"])
    bonus = {"entropy_coef": ENTROPY}
    a, b = ours.loss(A, by_grpo, **bonus), trl("grpo", **bonus).loss(A)
    note = "we weight a token's H as its surrogate, TRL takes the mean over the batch's tokens; "
    table.loss(f"`grpo` − {ENTROPY} H", a, b, note + "both subtract it", intended=True)
    a, b = ours.loss(A, by_dapo, **bonus), trl("dapo", **bonus).loss(A, by_group=True)
    name, note = f"… `dapo` − {ENTROPY} H, TRL a group at a time", "where the two weights are equal"
    table.loss(name, a, b, note)
    return table.disagree


def main() -> int:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=natural, default=0, help="of the rollouts")
    seed = parser.parse_args().seed
    if importlib.util.find_spec("trl") is None:
        print(f"error: TRL is needed, in an environment of its own: {INSTALL}", file=sys.stderr)
        return 2
    import trl

    begin_process()
    # TRL: rollout_func is experimental; transformers: renamed settings.
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rollouts = sample(seed)
    groups, dead = len(rollouts) // G, int(grpo.dead_groups(rollouts.rewards_P_G(G)).sum())
    print(f"TRL {trl.__version__}, transformers {transformers.__version__}, ", end="")
    print(f"torch {torch.__version__}, float32. Seed {seed}: {groups} groups of {G}, ", end="")
    print(f"{dead} of them dead; {int(rollouts.lengths().sum())} response tokens, ", end="")
    print(f"{rollouts.finished.count(False)} completions cut off.\n")
    if not 0 < dead < groups:
        print("error: both live and dead groups are needed: try another --seed", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        disagree = compare(rollouts, folder)
    agree = f"All that should agree do, to {TOLERANCE:g}."
    print(f"\nDisagree: {'; '.join(disagree)}." if disagree else f"\n{agree}")
    return int(bool(disagree))


if __name__ == "__main__":
    sys.exit(main())
