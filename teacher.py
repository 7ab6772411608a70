"""The Teacher: a language model that predicts the utility √(p(1-p)) of untried questions.

    f_φ(q) = 0.5 · σ(wᵀ MeanPool(Embed(q)) + b)        Section 4.2

It learns online from the student's outcomes (Alg. 2). By default it has its own ranks, which run
`TeacherServer` (App. K.3); without them the student ranks run it. Its ranks receive the same
messages, make the same calls, and share the rows of a batch.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from transformers import AttentionInterface, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from grpo import Group
from plumbing.batches import pad
from plumbing.config import Config
from plumbing.distributed.channel import Channel
from plumbing.distributed.shutdown import stop_requested
from plumbing.errors import NonFiniteError
from plumbing.files import plain
from plumbing.lora import add_lora, merge_lora, set_dropout
from plumbing.model_checks import check_directory, reject_on_error
from plumbing.models import checksum, load, unsharded, write
from plumbing.run.checkpoint import TrainedModel
from plumbing.stopwatch import Stopwatch

TIMES = ("teacher_learn_s", "teacher_predict_s")
STATE = ("replay", "pushed", "updates", "last_loss")  # attributes of Teacher in a checkpoint
Ids = tuple[int, ...]  # the tokens of a question
Sample = tuple[Ids, float]  # a question and its target y
# transformers builds no mask for an implementation without a mask function.
AttentionInterface.register("causal_sdpa", sdpa_attention_forward)


class UtilityModel(nn.Module):
    """f_φ: backbone without its LM head, pooling, and a linear head that starts at 0 (f = 0.25)."""

    def __init__(self, backbone: PreTrainedModel, mode: str):
        super().__init__()
        self.backbone = backbone
        self.mode = mode
        backbone.pooler = None  # BERT's, whose output is not used, would get no gradient
        if mode == "lora":
            add_lora(backbone)
        if is_causal(backbone):
            # Padding comes after every token, so causal attention hides it. A mask would copy the
            # keys of each layer, and transformers reads it on the host.
            backbone.set_attn_implementation("causal_sdpa")
        self.head = nn.Linear(backbone.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids_B_T=None, mask_B_T=None, pooled_B_D=None) -> torch.Tensor:
        """Predict the utility of each question: float32 (B,), in [0, 0.5]. The input is either
        right-padded token ids and their mask (B, T), or pooled embeddings (B, D)."""
        if pooled_B_D is None:
            pooled_B_D = self.embed(ids_B_T, mask_B_T)
        logit_B_1 = self.head(pooled_B_D.to(self.head.weight.dtype))
        return 0.5 * torch.sigmoid(logit_B_1[:, 0].float())

    def embed(self, ids_B_T: torch.Tensor, mask_B_T: torch.Tensor) -> torch.Tensor:
        """Compute MeanPool(Embed(q)) in float32: (B, D)."""
        out = self.backbone(ids_B_T, attention_mask=mask_B_T, use_cache=False)
        return pool(out.last_hidden_state.float(), mask_B_T, last_token=self.mode == "last_token")


def is_causal(backbone: nn.Module) -> bool:
    """Whether a token attends to all earlier tokens and to no later one."""
    of_layers = [getattr(module, "is_causal", True) for module in backbone.modules()]
    window = getattr(backbone.config, "sliding_window", None)
    return all(of_layers) and window is None


def pool(hidden_B_T_D: torch.Tensor, mask_B_T: torch.Tensor, last_token=False) -> torch.Tensor:
    """Average over the tokens of each question, or take its last token (App. L): (B, D)."""
    if last_token:
        last_B = mask_B_T.sum(dim=1) - 1
        row_B = torch.arange(len(last_B), device=last_B.device)
        return hidden_B_T_D[row_B, last_B]
    mask_B_T_1 = mask_B_T[:, :, None].to(hidden_B_T_D.dtype)
    return (hidden_B_T_D * mask_B_T_1).sum(dim=1) / mask_B_T_1.sum(dim=1)


class Teacher:
    """f_φ, its replay buffer and its optimizer: `predict` scores questions, `update` is Alg. 2.
    shard: Layout.shard. group: the process group of the ranks that run it, the student ranks where
    there are no teacher ranks; None for one process."""

    def __init__(self, config: Config, device: torch.device, shard: Callable, group=None):
        self.config = config
        self.device = device
        self.process_group = group
        self.rank = 0
        self.ranks = 1
        if group:
            self.rank = dist.get_rank(group)
            self.ranks = dist.get_world_size(group)
        # Frozen: neither sharded nor in bf16. A rank computes every row of a batch, from a cache.
        self.frozen = config.teacher_mode == "frozen"
        self.is_sharded = self.ranks > 1 and not self.frozen
        self.tokenizer = AutoTokenizer.from_pretrained(config.teacher_model)
        self.model = self._build_model()
        self.trained_model = self._build_trained_model(shard)
        self.replay: deque[Sample] = deque(maxlen=config.replay_capacity)  # a sliding window
        self.pushed = 0  # samples received, ever
        self.updates = 0  # optimizer steps taken, ever
        self.last_loss: float | None = None
        self.watch = Stopwatch(TIMES)
        # The cache of embeddings is on the host: 100,000 take 0.6 GB.
        self._embed = lru_cache(100_000)(self._embed_one)

    def _build_model(self) -> UtilityModel:
        """Load f_φ. LoRA's A comes from the run's seed."""
        name = self.config.teacher_model
        backbone = load(AutoModel, name, torch.float32, "sdpa", self.device)
        torch.manual_seed(self.config.seed)
        if self.frozen:
            backbone.requires_grad_(False)
        return UtilityModel(backbone, self.config.teacher_mode).to(self.device).eval()

    def _build_trained_model(self, shard: Callable) -> TrainedModel:
        """Shard f_φ over the teacher ranks; build its optimizer."""
        initial = checksum(self.model)  # before sharding; later a rank holds only a part

        def replica_checksum() -> int:
            return checksum(self.model) if self.frozen else initial

        if not self.frozen:
            # The head in bf16 would make candidates' scores tie.
            shard(self.model, float32=[self.model.head], units=4)
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trainable, lr=self.config.teacher_learning_rate, weight_decay=0.0, fused=True
        )
        return TrainedModel(self.model, self.optimizer, replica_checksum, self.export)

    def _own(self, rows: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Return this rank's share of a batch, every ranks-th row, and whether it is idle: no row
        was left for it. An idle rank gets the first row, and its caller drops the result.

        It must compute something, because in a backward, and in the first forward after one, FSDP
        waits until every rank takes part. In other forwards it does not wait, so `predict` may make
        one call more on some ranks."""
        own = rows[self.rank :: self.ranks]
        idle = len(own) == 0
        return (rows[:1] if idle else own), idle

    @torch.no_grad()
    def predict(self, questions: list[str]) -> np.ndarray:
        """Compute f_φ of each question, float64 in [0, 0.5]. A collective of the teacher ranks."""
        with self.watch("teacher_predict_s"):
            utilities = torch.zeros(len(questions), dtype=torch.float64)
            ids_B = [self._encode(question) for question in questions]
            # Questions of similar length in a batch: little padding, equal work of the ranks.
            lengths = torch.tensor([len(ids) for ids in ids_B])
            own, idle = self._own(lengths.argsort(stable=True))
            size = 8 * self.config.teacher_batch_size  # more than in training: no activations kept
            for part in own.split(size):
                f_b = self._f([ids_B[i] for i in part])
                if not idle:
                    utilities[part] = f_b.double().cpu()
            if self.process_group:  # each entry is nonzero on one rank only, so the sum is exact
                dist.all_reduce(utilities, group=self.process_group)
        return utilities.numpy()

    def update(self, question: str, y: float) -> None:
        """(Alg. 2) Push (q, y_q) and, after every `teacher_update_every` samples, train on the
        buffer. Lines 3-4, y_q = √(p̂(1-p̂)), are in `Goldilocks.observe`. A collective of the
        teacher ranks, each of which holds the whole buffer. Raises NonFiniteError, instead of a bad
        update, if a gradient norm is not finite."""
        c = self.config
        self.replay.append((self._encode(question), float(y)))  # line 5; lines 6-8: its maxlen
        self.pushed += 1
        if self.pushed % c.teacher_update_every:  # line 10: not yet
            return
        with self.watch("teacher_learn_s"):
            # Line 11. The order follows from the seed, so that all ranks have the same batches.
            seed = c.seed * 1_000_003 + self.pushed
            order = torch.randperm(len(self.replay), generator=torch.Generator().manual_seed(seed))
            batches = order.split(c.teacher_batch_size * self.ranks)
            # Dropout is LoRA's alone, and each rank has its own: nothing else draws from this.
            torch.manual_seed(seed + self.rank)
            set_dropout(self.model, True)
            for _ in range(c.teacher_epochs):  # line 12
                losses = []
                for batch in batches:  # line 13
                    loss = self._loss(batch)  # line 14
                    self._step(loss)  # line 15
                    losses.append(loss.detach())
            set_dropout(self.model, False)
            self.last_loss = self._sum(losses) / len(batches)

    def _loss(self, batch: torch.Tensor) -> torch.Tensor:
        """(Alg. 2, line 14) Compute 1/|B| Σ (f_φ(q) - y)² over this rank's rows of a batch B, which
        holds positions in the buffer. The sum over the ranks is the loss of the batch."""
        if self.frozen:
            own, idle = batch, False
        else:
            own, idle = self._own(batch)
        samples = [self.replay[i] for i in own]
        f_b = self._f([ids for ids, _ in samples])
        y_b = torch.tensor([y for _, y in samples], device=self.device)
        loss = ((f_b - y_b) ** 2).sum() / len(batch)
        return loss * 0 if idle else loss

    def _step(self, loss: torch.Tensor) -> None:
        """(Alg. 2, line 15) Take an AdamW step on the sum of the ranks' losses."""
        # FSDP averages gradients over the ranks, where a sum is wanted. A frozen teacher is not
        # sharded: each rank has computed the whole loss, and takes the same step alone.
        scale = self.ranks if self.is_sharded else 1
        (loss * scale).backward()
        # Some parameters have none, such as a router's bias.
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = unsharded(nn.utils.get_total_norm(gradients)).item()
        self.updates += 1
        if not math.isfinite(norm):
            raise NonFiniteError(
                f"the teacher's gradient norm is {norm} at update {self.updates}: no update was "
                "made"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _sum(self, losses: list[torch.Tensor]) -> float:
        """Sum losses of which each rank holds a part, or, if it is frozen, all."""
        total = torch.stack(losses).sum().double().cpu()
        if self.is_sharded:
            dist.all_reduce(total, group=self.process_group)
        return total.item()

    def _f(self, ids_b: Sequence[Ids]) -> torch.Tensor:
        """Compute f_φ of tokenized questions: float32 (b,)."""
        if self.frozen:
            pooled_B_D = torch.stack([self._embed(ids) for ids in ids_b])
            return self.model(pooled_B_D=pooled_B_D.to(self.device))
        ids_B_T, mask_B_T = pad(ids_b, self.tokenizer.pad_token_id, self.device)
        return self.model(ids_B_T=ids_B_T, mask_B_T=mask_B_T)

    @torch.no_grad()
    def _embed_one(self, ids: Ids) -> torch.Tensor:
        """Embed a question with the frozen backbone, without padding: each rank trains its own
        head, and padding to the length of other questions would round otherwise on each rank."""
        ids_1_T, mask_1_T = pad([ids], self.tokenizer.pad_token_id, self.device)
        return self.model.embed(ids_1_T, mask_1_T)[0].cpu()

    def _encode(self, question: str) -> Ids:
        """Tokenize the raw question, cut at max_prompt_tokens of its own tokens."""
        ids = self.tokenizer(question).input_ids or [self.tokenizer.pad_token_id]
        return tuple(ids[: self.config.max_prompt_tokens])

    def metrics(self) -> dict[str, float | None]:
        """Return the last epoch's mean loss of a batch (None before the first update), updates so
        far, seconds since last call."""
        seconds = self.watch
        self.watch = Stopwatch(TIMES)
        return seconds | {"teacher_loss": self.last_loss, "teacher_updates": self.updates}

    def state_dict(self) -> dict:
        """Return all state but model and optimizer, which a checkpoint holds sharded."""
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(state)

    def export(self, folder: Path) -> None:
        """Write backbone/ (a Hugging Face directory, LoRA merged) and head.safetensors in `folder`.
        A collective; the first teacher rank writes."""
        weights = {}
        for name, tensor in self.model.state_dict().items():
            weights[name] = unsharded(tensor).cpu().contiguous()
        if self.rank:
            return
        merge_lora(weights, self.model)
        head = {name: weights.pop(name) for name in ("head.weight", "head.bias")}
        backbone = {name.removeprefix("backbone."): weight for name, weight in weights.items()}
        config = self.model.backbone.config
        config.architectures = [type(self.model.backbone).__name__]
        write(folder / "backbone", config)
        # Not the model's save_pretrained, which writes on global rank 0 only: that is a student.
        save_file(backbone, folder / "backbone/model.safetensors", metadata={"format": "pt"})
        save_file(head, folder / "head.safetensors", metadata={"mode": self.model.mode})


def check_teacher(name: str, tokens: int, mode: str = "full") -> None:
    """Raise ValueError, in one line, unless `name` can be the backbone, for `tokens` tokens."""
    backbone, tokenizer = check_directory(name, tokens, AutoModel, "sdpa", unused=("pooler.",))
    ids_B_T = torch.tensor([tokenizer("1 + 1").input_ids])
    with reject_on_error(name, "cannot be a teacher's backbone"), torch.no_grad():
        model = UtilityModel(backbone, mode)
        f_B = model(ids_B_T, torch.ones_like(ids_B_T))
        if not f_B.isfinite():
            raise ValueError("its embeddings are not finite")


# The teacher process


class TeacherServer:
    """The sampler beside the teacher ("Teacher Process (Server)", App. K.3). It is one proposal
    ahead of the students: when it receives the groups of step t it chooses the problems of step
    t+1, or of the next round of a step with DAPO's resampling.

    lag: how many steps its choice is behind. With 1, our reading of App. K.3, it chooses with what
    it has learned up to step t-1, sends, and then learns from step t. With 0 it learns from step t
    before it chooses, as in Alg. 1 and 2, except that all problems of a step are chosen at once.

    Teacher ranks (`run`) choose and learn while the students train; the students wait if the
    proposals are late. Without teacher ranks the student's process calls `answer`, which does the
    same in the same order, and `latest`. A sampler without a teacher needs no server: it observes
    a step before it proposes the next."""

    def __init__(self, sampler, lag: int):
        self.sampler = sampler
        self.lag = lag
        self.proposals: tuple[list[Group], dict] | None = None  # with the metrics at that time

    def run(self, channel: Channel, save: Callable[[int], None]) -> bool:
        """Run the teacher ranks' main loop until the stop message; return whether the run is
        finished. save(step) is called at a checkpoint."""

        def send(proposals):
            if stop_requested(channel.layout):  # a signal that arrives now stays for the next time
                channel.layout.stopping = True
            channel.send(*proposals)

        send(self.latest())
        while True:
            kind, content = channel.receive()
            if kind == "groups":
                self.answer(content, send)
            elif kind == "save":
                save(content)
            elif kind == "stop":
                return content
            # "evaluating" needs no reply: receiving it restarts the wait of --timeout_minutes

    def answer(self, groups: list[Group], send: Callable = lambda proposals: None) -> None:
        """Learn from a round's groups, and send the next proposals before or after."""
        if self.lag == 0:
            self.sampler.observe(groups)
        send(self._propose())
        if self.lag == 1:
            self.sampler.observe(groups)

    def latest(self) -> tuple[list[Group], dict]:
        """Return the latest proposals, and make the first ones. Those of a round are used up when
        its groups reach `answer`, which makes the next ones."""
        return self.proposals or self._propose()

    def _propose(self) -> tuple[list[Group], dict]:
        groups = self.sampler.propose(self.sampler.P)
        self.proposals = groups, self.sampler.metrics()
        return self.proposals

    def state_dict(self) -> dict:
        """Return the state of sampler and Teacher, and the proposals that the students have not yet
        used."""
        proposals = None
        if self.proposals:
            groups, metrics = self.proposals
            # Seconds differ from rank to rank, and all ranks must return the same state.
            metrics = {k: 0.0 if k.endswith("_s") else v for k, v in metrics.items()}
            proposals = groups, plain(metrics)
        return {
            "sampler": self.sampler.state_dict(),
            "teacher": self.sampler.teacher.state_dict(),
            "proposals": proposals,
        }

    def load_state_dict(self, state: dict) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.sampler.teacher.load_state_dict(state["teacher"])
        self.proposals = state["proposals"]
