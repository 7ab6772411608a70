"""The Teacher: a language model that predicts the utility √(p(1-p)) of untried questions.

    f_φ(q) = 0.5 · σ(wᵀ MeanPool(Embed(q)) + b)        Section 4.2

It learns online from the student's outcomes (Alg. 2). All teacher ranks receive the same messages
(plumbing/distributed/channel.py), make the same calls, and share the rows of each batch.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AttentionInterface, AutoModel, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from plumbing.batches import pad
from plumbing.config import Config
from plumbing.decoding.fused import fuse_norms
from plumbing.errors import InputError, NonFiniteError
from plumbing.metrics import Stopwatch
from plumbing.models import Card, check_directory, checksum, load, trial, unsharded, write
from plumbing.run.checkpoint import Learner
from sampler import utility_target

TIMES = ("teacher_learn_s", "teacher_predict_s")
Ids = tuple[int, ...]  # the tokens of a question
LORA_RANK = 256  # App. L.3
LORA_ALPHA = 512
LORA_DROPOUT = 0.01
# transformers builds no mask for an implementation without a mask function.
AttentionInterface.register("causal_sdpa", sdpa_attention_forward)


class LoRALinear(nn.Module):
    """W x + (α/r) B A dropout(x), with W frozen and B = 0 at the start."""

    def __init__(self, base: nn.Linear, rank=LORA_RANK, alpha=LORA_ALPHA, dropout=LORA_DROPOUT):
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.A = nn.Parameter(torch.empty(rank, base.in_features, dtype=base.weight.dtype))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank, dtype=base.weight.dtype))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        update = self.dropout(x) @ self.A.T @ self.B.T
        return self.base(x) + self.scale * update


def add_lora(backbone: nn.Module) -> None:
    """Freeze the backbone and wrap each nn.Linear in a LoRALinear, in place. Other layers, such as
    GPT-2's Conv1D and fused experts, stay frozen. Raises InputError if there is no nn.Linear."""
    backbone.requires_grad_(False)
    for module in list(backbone.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child))
    if not any(parameter.requires_grad for parameter in backbone.parameters()):
        raise InputError("--teacher_mode lora: the teacher has no nn.Linear; choose another mode")


def merge_lora(weights: dict[str, torch.Tensor], name: str, layer: LoRALinear) -> None:
    """Replace the weights of a LoRALinear by those of the nn.Linear that computes the same."""
    A = weights.pop(f"{name}.A")
    B = weights.pop(f"{name}.B")
    W = weights.pop(f"{name}.base.weight")
    weights[f"{name}.weight"] = W + layer.scale * B @ A
    if layer.base.bias is not None:
        weights[f"{name}.bias"] = weights.pop(f"{name}.base.bias")


class UtilityModel(nn.Module):
    """f_φ: backbone without its LM head, pooling, and a linear head that starts at 0 (f = 0.25)."""

    def __init__(self, backbone: nn.Module, mode: str):
        super().__init__()
        self.backbone = backbone
        self.mode = mode
        backbone.pooler = None  # BERT's, whose output is not used, would get no gradient
        if mode == "lora":
            add_lora(backbone)
        # Padding comes after every token, so causal attention hides it. A mask would copy the keys
        # of each layer, and transformers reads it on the host.
        is_causal = all(getattr(module, "is_causal", True) for module in backbone.modules())
        window = getattr(backbone.config, "sliding_window", None)
        if is_causal and window is None:
            backbone.set_attn_implementation("causal_sdpa")
        self.head = nn.Linear(backbone.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids_B_T=None, mask_B_T=None, pooled_B_D=None) -> tuple[torch.Tensor, ...]:
        """Predict from right-padded token ids and mask (B, T), or from pooled embeddings (B, D).
        Returns the utility (B,) in [0, 0.5] and the pooled embeddings, both float32."""
        if pooled_B_D is None:
            out = self.backbone(ids_B_T, attention_mask=mask_B_T, use_cache=False)
            hidden_B_T_D = out.last_hidden_state.float()
            last_token = self.mode == "last_token"
            pooled_B_D = pool(hidden_B_T_D, mask_B_T, last_token)
        dtype = self.head.weight.dtype
        logit_B_1 = self.head(pooled_B_D.to(dtype))
        logit_B = logit_B_1[:, 0].float()
        return 0.5 * torch.sigmoid(logit_B), pooled_B_D


def pool(hidden_B_T_D: torch.Tensor, mask_B_T: torch.Tensor, last_token=False) -> torch.Tensor:
    """Average over the tokens of each question, or take its last token (App. L): (B, D)."""
    if last_token:
        last_B = mask_B_T.sum(dim=1) - 1
        row_B = torch.arange(len(last_B), device=last_B.device)
        return hidden_B_T_D[row_B, last_B]
    mask_B_T_1 = mask_B_T[:, :, None].to(hidden_B_T_D.dtype)
    sum_B_D = (hidden_B_T_D * mask_B_T_1).sum(dim=1)
    return sum_B_D / mask_B_T_1.sum(dim=1)


def check_teacher(name: str, tokens: int, mode: str = "full") -> None:
    """Raise ValueError, in one line, unless `name` can be the backbone, for `tokens` tokens."""
    backbone, tokenizer = check_directory(name, tokens, AutoModel, "sdpa", unused=("pooler.",))
    ids_B_T = torch.tensor([tokenizer("1 + 1").input_ids])
    with trial(name, "cannot be a teacher's backbone"), torch.no_grad():
        f_B, _ = UtilityModel(backbone, mode)(ids_B_T, torch.ones_like(ids_B_T))
        if not f_B.isfinite():
            raise ValueError("its embeddings are not finite")


class ShardedAdamW(torch.optim.AdamW):
    """AdamW that updates the shards themselves, not DTensors: 300 of them cost more host time."""

    def _init_group(self, *args):
        has_complex = super()._init_group(*args)
        for tensors in args[1:]:  # parameters, gradients, moments and counts of updates
            tensors[:] = map(_local, tensors)
        return has_complex


@dataclass
class BatchShare:
    """The rows of a batch B that a teacher rank computes."""

    inputs: dict[str, torch.Tensor]  # of UtilityModel
    y_b: torch.Tensor  # targets
    size: int  # |B|
    idle: bool  # the rank has no row of the batch: its loss is 0


class Teacher:
    """f_φ, its replay buffer and its optimizer: `predict` scores questions, `update` is Alg. 2.
    shard: Layout.shard. group: the teacher ranks, None for one process."""

    def __init__(self, config: Config, device: torch.device, shard: Callable, group=None):
        self.config = config
        self.card = Card(config)
        self.device = device
        self.group = group
        self.rank = dist.get_rank(group) if group else 0
        self.ranks = dist.get_world_size(group) if group else 1
        # Frozen: neither sharded nor in bf16. A rank computes every row of a batch, from a cache.
        self.frozen = config.teacher_mode == "frozen"
        self.shares = 1 if self.frozen else self.ranks  # of a batch
        self.tokenizer = AutoTokenizer.from_pretrained(config.teacher_model)
        self.model = self._build_model()
        self.learner = self._shard(shard)
        # A sliding window of (token ids, y).
        self.replay: deque[tuple[Ids, float]] = deque(maxlen=config.replay_capacity)
        self.pushed = 0  # samples received, ever
        self.updates = 0  # optimizer steps taken, ever
        self.last_loss: float | None = None
        self.watch = Stopwatch(TIMES)
        # The cache of embeddings is on the host: 100,000 take 0.6 GB.
        self._encode = lru_cache(100_000)(self._tokenise)
        self._embed = lru_cache(100_000)(self._embed_one)

    def _build_model(self) -> UtilityModel:
        """Load f_φ. LoRA's A comes from the run's seed."""
        mode = self.config.teacher_mode
        name = self.config.teacher_model
        backbone = load(AutoModel, name, torch.float32, "sdpa", self.device)
        torch.manual_seed(self.config.seed)
        if self.frozen:
            backbone.requires_grad_(False)
        model = UtilityModel(backbone, mode).to(self.device).eval()
        if self.device.type == "cuda":
            fuse_norms(model)
        return model

    def _shard(self, shard: Callable) -> Learner:
        """Shard f_φ over the teacher ranks; build its optimizer."""
        initial = checksum(self.model)  # while each rank holds all of it
        if not self.frozen:
            # The head in bf16 would make candidates' scores tie.
            shard(self.model, float32=[self.model.head], units=4)
        self.trainable = [p for p in self.model.parameters() if p.requires_grad]
        rate = self.config.teacher_learning_rate
        self.optimizer = ShardedAdamW(self.trainable, lr=rate, weight_decay=0.0, fused=True)
        weights = partial(checksum, self.model) if self.frozen else lambda: initial
        return Learner(self.model, self.optimizer, weights, self.export)

    @torch.no_grad()
    def predict(self, questions: list[str]) -> np.ndarray:
        """Compute f_φ of each question, float64 in [0, 0.5]. A collective of the teacher ranks."""
        with self.watch("teacher_predict_s"):
            rows = [self._encode(question) for question in questions]
            # By length, for little padding; every ranks-th row, for equal work on all ranks.
            by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]))
            mine = by_length[self.rank :: self.ranks]
            utilities = torch.zeros(len(rows), dtype=torch.float64)
            size = 8 * self.config.teacher_batch_size  # more than in training: no activations kept
            for batch in cut(mine, size):
                inputs = self._inputs([rows[i] for i in batch])
                f_b, _ = self.model(**inputs)
                utilities[batch] = f_b.double().cpu()
            if not mine:  # FSDP's all-gather needs every rank
                inputs = self._inputs(rows[:1])
                self.model(**inputs)
            if self.group:  # each entry is nonzero on one rank only, so the sum is exact
                dist.all_reduce(utilities, group=self.group)
        return utilities.numpy()

    def update(self, question: str, successes: int, G: int, target=utility_target) -> None:
        """(Alg. 2, UpdateTeacher) Push (q, y_q); train after every `teacher_update_every` samples.
        target(p̂) in [0, 0.5]: the regression target; a sampler may pass another."""
        p_hat = successes / G
        y = float(target(p_hat))
        self.replay.append((self._encode(question), y))
        self.pushed += 1
        if self.pushed % self.config.teacher_update_every == 0:
            with self.watch("teacher_learn_s"):
                self._refine()

    def _refine(self) -> None:
        """(Alg. 2, lines 11-17) Shuffle the buffer into batches once; train E epochs on the MSE.
        Raises NonFiniteError if a gradient norm was not finite: updates stopped there."""
        seed = self.config.seed * 1_000_003 + self.pushed
        batches = self._shuffled_batches(seed)
        self.model.train(self.config.teacher_mode == "lora")  # the only mode with dropout
        # A fused optimizer makes no update where found_inf is 1. It stays 1, and the host reads the
        # norms only after the last epoch: waiting for the device each time would leave it idle.
        self.optimizer.found_inf = torch.zeros((), device=self.device)
        losses = []
        norms = []
        cards = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cards):
            torch.manual_seed(seed + self.rank)
            for _ in range(self.config.teacher_epochs):
                for batch in batches:
                    loss, norm = self._step(batch)
                    losses.append(loss)
                    norms.append(norm)
        self.model.eval()
        self._count_updates(torch.stack(norms).tolist())
        losses_of_last_epoch = torch.stack(losses[-len(batches) :])
        last_epoch = losses_of_last_epoch.sum().double().cpu()
        if self.shares > 1:
            dist.all_reduce(last_epoch, group=self.group)
        self.last_loss = last_epoch.item() / len(batches)

    def _shuffled_batches(self, seed: int) -> list[BatchShare]:
        """Shuffle the buffer and cut it into batches."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.replay), generator=generator)
        rows = [self.replay[i] for i in order]
        size = self.config.teacher_batch_size * self.ranks
        return [self._batch(part) for part in cut(rows, size)]

    def _count_updates(self, norms: list[float]) -> None:
        for norm in norms:
            self.updates += 1
            if not math.isfinite(norm):
                raise NonFiniteError(
                    f"the teacher's gradient norm is {norm} at update {self.updates}: "
                    "no update was made"
                )

    def _batch(self, rows: list[tuple[Ids, float]]) -> BatchShare:
        """Make this rank's share of a batch B of (token ids, y)."""
        mine = rows if self.frozen else rows[self.rank :: self.ranks]
        shown = mine or rows[:1]  # FSDP needs every rank in forward and backward
        ids_b, targets_b = zip(*shown, strict=True)
        inputs = self._inputs(ids_b)
        y_b = torch.tensor(targets_b, device=self.device)
        return BatchShare(inputs, y_b, size=len(rows), idle=not mine)

    def _step(self, batch: BatchShare) -> tuple[torch.Tensor, torch.Tensor]:
        """Take an AdamW step on 1/|B| Σ (f_φ(q) - y)², shared over the ranks. Returns this rank's
        part of the loss, and the gradient's norm, which is the same on all ranks."""
        f_b, _ = self.model(**batch.inputs)
        squared_error_b = (f_b - batch.y_b) ** 2
        loss = squared_error_b.sum() / batch.size
        if batch.idle:
            loss = loss * 0
        (loss * self.shares).backward()  # FSDP averages over the ranks; the loss is a sum over them
        with torch.no_grad():  # else to_local builds a graph
            gradients = [_local(p.grad) for p in self.trainable]
        norm = nn.utils.get_total_norm(gradients)
        if self.shares > 1:
            dist.all_reduce(norm.square_(), group=self.group)
            norm.sqrt_()
        is_bad = ~norm.isfinite()
        self.optimizer.found_inf = torch.maximum(self.optimizer.found_inf, is_bad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach(), norm

    def _inputs(self, rows: list[Ids]) -> dict[str, torch.Tensor]:
        """Return UtilityModel's arguments for rows of token ids."""
        if self.frozen:
            pooled_B_D = torch.stack([self._embed(ids) for ids in rows])
            return {"pooled_B_D": pooled_B_D.to(self.device)}
        ids_B_T, mask_B_T = pad(rows, self.tokenizer.pad_token_id, self.device)
        return {"ids_B_T": ids_B_T, "mask_B_T": mask_B_T}

    @torch.no_grad()
    def _embed_one(self, ids: Ids) -> torch.Tensor:
        """Embed a question with the frozen backbone, not padded to the length of others: rounding,
        and so the heads, each trained by its own rank, would then differ from rank to rank."""
        ids_1_T, mask_1_T = pad([ids], self.tokenizer.pad_token_id, self.device)
        _, pooled_1_D = self.model(ids_1_T, mask_1_T)
        return pooled_1_D[0].cpu()

    def _tokenise(self, question: str) -> Ids:
        """Tokenize the raw question, cut at max_prompt_tokens (of the student's tokenizer)."""
        ids = self.tokenizer(question).input_ids[: self.config.max_prompt_tokens]
        return tuple(ids) or (self.tokenizer.pad_token_id,)

    def metrics(self) -> dict[str, float]:
        """Return the last epoch's mean loss of a batch, updates so far, seconds since last call."""
        seconds = self.watch
        self.watch = Stopwatch(TIMES)
        return seconds | {"teacher_loss": self.last_loss, "teacher_updates": self.updates}

    def state_dict(self) -> dict:
        """Return all state but model and optimizer, which a checkpoint holds sharded."""
        return {
            "replay": [[list(ids), y] for ids, y in self.replay],
            "pushed": self.pushed,
            "updates": self.updates,
            "last_loss": self.last_loss,
        }

    def load_state_dict(self, state: dict) -> None:
        self.replay.clear()
        self.replay.extend((tuple(ids), y) for ids, y in state["replay"])
        self.pushed = state["pushed"]
        self.updates = state["updates"]
        self.last_loss = state["last_loss"]

    def export(self, folder: Path) -> None:
        """Write backbone/ (a Hugging Face directory, LoRA merged), head.safetensors and the model
        card in `folder`. A collective; the first teacher rank writes."""
        weights = {}
        for name, tensor in self.model.state_dict().items():
            weights[name] = unsharded(tensor).cpu().contiguous()
        if self.rank:
            return
        for name, layer in self.model.named_modules():
            if isinstance(layer, LoRALinear):
                merge_lora(weights, name, layer)
        head = {name: weights.pop(name) for name in ("head.weight", "head.bias")}
        backbone = {name.removeprefix("backbone."): weight for name, weight in weights.items()}
        config = self.model.backbone.config
        config.architectures = [type(self.model.backbone).__name__]
        write(folder / "backbone", config, self.tokenizer)
        # Not the model's save_pretrained, which writes on global rank 0 only: that is a student.
        file = folder / "backbone" / "model.safetensors"
        save_file(backbone, file, metadata={"format": "pt"})
        save_file(head, folder / "head.safetensors", metadata={"mode": self.model.mode})
        self.card.write(folder, "teacher")


def cut(rows: list, size: int) -> list[list]:
    """Cut rows into parts of `size`; the last may be smaller."""
    starts = range(0, len(rows), size)
    return [rows[start : start + size] for start in starts]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor that FSDP may have sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
