"""teacher.py in one process: pooling and Algorithm 2 by hand, the ablations, export."""

import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from plumbing.batches import pad
from plumbing.config import MODES, Config
from plumbing.errors import InputError, NonFiniteError
from plumbing.lora import LoRALinear, add_lora
from scripts import embed
from teacher import Teacher, UtilityModel, pool
from tests.helpers.models import save_tiny_model

QUESTIONS = ["what is 1?", "what is 22 and 3?", "7", "how many are 1234567?", "what is 5 + 5?"]


def make(folder, shard=lambda *_, **__: None, **changes) -> Teacher:
    """Make a teacher in this process, with the paper's settings but for a few."""
    few = {"teacher_learning_rate": 1e-3, "teacher_batch_size": 4, "max_prompt_tokens": 64}
    config = Config(teacher_model=str(folder), **few | changes)
    return Teacher(config, torch.device("cpu"), shard)


def teach(t, questions, y=0.3) -> None:
    for question in questions:
        t.update(question, y)


@pytest.mark.parametrize(("last_token", "pooled"), [(False, [2, 1]), (True, [3, 2])])
def test_pooling_leaves_padding_out(last_token, pooled):
    hidden = torch.tensor([[[1.0, 0], [3, 2], [100, 100]]])
    assert pool(hidden, torch.tensor([[1, 1, 0]]), last_token).tolist() == [pooled]


every_mode = pytest.mark.parametrize("mode", MODES)


@every_mode
def test_prediction_starts_at_one_quarter_also_of_a_question_without_text(tiny_model, mode):
    """A mean over no token would be NaN."""
    assert make(tiny_model, teacher_mode=mode).predict([*QUESTIONS, ""]).tolist() == [0.25] * 6


def test_the_head_computes_in_float32(tiny_model):
    """In bf16, logits near 1 are 0.008 apart: candidates would tie."""

    def shard(model, float32, units):
        model.bfloat16()
        torch.nn.ModuleList(float32).float()

    t = make(tiny_model, shard)
    torch.nn.init.constant_(t.model.head.weight, 1e-4)
    torch.nn.init.ones_(t.model.head.bias)
    assert len(set(t.predict(QUESTIONS))) == len(QUESTIONS)


def test_embed_makes_the_embeddings_of_a_frozen_teacher(tiny_model, monkeypatch):
    monkeypatch.setattr(embed, "TOKENS", 30)  # two batches or more
    t = make(tiny_model, teacher_mode="frozen", max_prompt_tokens=15)
    stored_N_D = embed.embed(str(tiny_model), QUESTIONS, 15, "cpu")
    own_N_D = torch.stack([t._embed(t._encode(question)) for question in QUESTIONS])
    assert torch.allclose(stored_N_D, own_N_D, atol=1e-5)


def test_algorithm_2_updates_every_fourth_outcome(tiny_model):
    """4th: 1 batch of 4 in 4 epochs; 8th: 2 batches in 4 epochs; samples 9 and 10 wait for the
    12th."""
    t = make(tiny_model)
    steps = []
    for i in range(10):
        t.update(f"what is {i}?", i % 3 / 10)
        steps.append(t.updates)
    assert steps == [0, 0, 0, 4, 4, 4, 4, 12, 12, 12]


SIX = ["0", "1", "2", "3", "4", "5"]


def batches_of(folder, questions, **changes) -> list[list[str]]:
    """Update a teacher after every sixth question; return the questions of each batch."""
    t = make(folder, teacher_update_every=6, replay_capacity=6, **changes)
    batches = []

    def record(_, args, inputs):
        batches.append(t.tokenizer.batch_decode(inputs["ids_B_T"]))

    t.model.register_forward_pre_hook(record, with_kwargs=True)
    teach(t, questions)
    return batches


def test_algorithm_2_shuffles_once_an_update(tiny_model):
    """Six questions in three batches of two, in two epochs."""
    first, second, third, *again = batches_of(
        tiny_model, SIX, teacher_epochs=2, teacher_batch_size=2
    )
    assert again == [first, second, third]
    assert sorted(first + second + third) == SIX
    assert first + second + third != SIX


def test_each_update_and_seed_shuffles_in_another_order(tiny_model):
    """Two updates of each of two runs; before the second the same questions replace the first's."""
    changes = {"teacher_epochs": 1, "teacher_batch_size": 6}
    orders = []
    for seed in (0, 1):
        orders += batches_of(tiny_model, SIX + SIX, seed=seed, **changes)
    assert [sorted(order) for order in orders] == [SIX] * 4
    assert len(set(map(tuple, orders))) == 4


def test_the_loss_is_the_mean_of_the_batches(tiny_model):
    """Two batches of four. At the start f = 1/4, and it stays: (1/4 - 0)² = 1/16 in both."""
    t = make(tiny_model, teacher_update_every=8, teacher_learning_rate=0.0)
    teach(t, ["what is 1?"] * 8, y=0.0)
    assert t.last_loss == 1 / 16


def test_first_gradient_by_hand(tiny_model):
    """At the start f = 1/4 and the derivative of 0.5 σ at 0 is 1/8, so dL/db is 2/|B| Σ (1/4 - y)/8
    of |B| = 4 outcomes. Without a step it is the same in the second epoch."""
    t = make(tiny_model, teacher_epochs=2, teacher_batch_size=8)
    caught = []
    t.optimizer.step = lambda: caught.append(t.model.head.bias.grad.item())
    for y in (0, 0.5, 0.4, 0):
        t.update("what is 1?", y)
    assert caught == pytest.approx([2 / 4 * (0.25 - 0.25 - 0.15 + 0.25) / 8] * 2, abs=1e-7)


def test_no_weight_changes_from_a_non_finite_gradient_on(tiny_model, monkeypatch):
    """The second of three updates has one."""
    one_update = make(tiny_model, teacher_epochs=1)
    teach(one_update, QUESTIONS[:4])
    t = make(tiny_model, teacher_epochs=3)
    norms = [1.0, math.inf, 1.0]
    monkeypatch.setattr(torch.nn.utils, "get_total_norm", lambda _: torch.tensor(norms.pop(0)))
    with pytest.raises(NonFiniteError, match="norm is inf at update 2: no update was made"):
        teach(t, QUESTIONS[:4])
    assert norms == [1.0]
    assert all(map(torch.equal, t.model.parameters(), one_update.model.parameters()))


BACKBONES = {"llama": {}, "mistral": {"sliding_window": 3}, "bert": {}}


@pytest.mark.parametrize("family", BACKBONES)
def test_padding_changes_no_embedding_and_attention_stays_the_models_own(family, tmp_path):
    """Causal, in a sliding window, and bidirectional."""
    save_tiny_model(tmp_path, family, **BACKBONES[family])
    backbone = AutoModel.from_pretrained(tmp_path)
    ids_B_T, mask_B_T = pad([list(range(1, 9)), [1, 2, 3, 4]], 0, "cpu")
    own_T_D = backbone(ids_B_T[:1, :4]).last_hidden_state[0]
    pooled_B_D = UtilityModel(backbone, "full").embed(ids_B_T, mask_B_T)
    assert torch.allclose(pooled_B_D[1], own_T_D.mean(dim=0), atol=1e-5)
    torch.autograd.grad(pooled_B_D.sum(), [*backbone.parameters()])  # raises if one has none


@pytest.mark.parametrize("mode", ["frozen", "lora"])
def test_frozen_and_lora_leave_the_backbone_untrained(tiny_model, mode):
    """A frozen teacher is compared over the ranks as it is, others as they were loaded: of these a
    rank holds a shard."""
    t = make(tiny_model, teacher_mode=mode)
    checksum = t.trained_model.checksum()
    before = {name: p.clone() for name, p in t.model.named_parameters()}
    teach(t, QUESTIONS[:4] * 2, y=0.5)
    changed = {name for name, p in t.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {
        name for name in before if name.startswith("head.") or name[-2:] in (".A", ".B")
    }
    assert (t.trained_model.checksum() != checksum) == (mode == "frozen")


@every_mode
def test_dropout_is_active_while_lora_learns(tiny_model, mode):
    """A backbone in train mode may add noise to its router."""
    t = make(tiny_model, teacher_update_every=2, teacher_mode=mode)
    in_train_mode = []

    def record(*_):
        in_train_mode.append({type(module) for module in t.model.modules() if module.training})

    t.model.register_forward_pre_hook(record)
    teach(t, QUESTIONS[:2])
    t.predict(QUESTIONS)
    assert in_train_mode[0] == ({LoRALinear, torch.nn.Dropout} if mode == "lora" else set())
    assert in_train_mode[-1] == set()


def test_each_rank_has_its_own_dropout(tiny_model):
    """The two ranks have the same question. Half of the features are dropped, to see it."""

    def mask(rank):
        t = make(tiny_model, teacher_update_every=2, teacher_mode="lora")
        t.rank, t.ranks = rank, 2
        layer = next(module for module in t.model.modules() if isinstance(module, LoRALinear))
        layer.dropout.p = 0.5
        masks = []
        layer.dropout.register_forward_hook(lambda _, inputs, output: masks.append(output != 0))
        teach(t, QUESTIONS[:1] * 2)
        return masks[0]

    assert torch.equal(mask(0), mask(0))
    assert not torch.equal(mask(0), mask(1))


def test_lora_begins_from_the_seed(tiny_model):
    def first_A(seed):
        parameters = make(tiny_model, teacher_mode="lora", seed=seed).model.named_parameters()
        return next(p for name, p in parameters if name.endswith(".A"))

    A = first_A(seed=0)
    assert torch.equal(A, first_A(seed=0))
    assert not torch.equal(A, first_A(seed=1))


def test_lora_by_hand():
    """W x + α/r B A x, with W = (1, 1), x = (1, 1), α = 4 and r = 2; B begins at 0."""
    base = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(base.weight)
    layer = LoRALinear(base, rank=2, alpha=4, dropout=0.0)
    x = torch.ones(1, 2)
    assert layer(x).item() == 2
    torch.nn.init.constant_(layer.A, 3.0)
    torch.nn.init.constant_(layer.B, 0.5)
    assert layer(x).item() == 2 + 2 * (3 + 3)


def test_lora_rejects_a_model_without_linear_layers():
    with pytest.raises(InputError, match="has no nn"):
        add_lora(torch.nn.Embedding(2, 3))


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_an_exported_teacher_predicts_the_same(tiny_model, tmp_path, mode):
    """0.5 σ(wᵀ MeanPool(Embed(q)) + b), from the exported files alone."""
    t = make(tiny_model, teacher_mode=mode, teacher_learning_rate=0.03)
    teach(t, QUESTIONS * 2)
    t.export(tmp_path)
    head = load_file(tmp_path / "head.safetensors")
    backbone = AutoModel.from_pretrained(tmp_path / "backbone")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "backbone")
    inputs = tokenizer("what is 7?", return_tensors="pt")
    pooled_D = backbone(inputs.input_ids).last_hidden_state[0].mean(dim=0)
    logit = head["head.weight"] @ pooled_D + head["head.bias"]
    expected = 0.5 * torch.sigmoid(logit).item()
    assert t.predict(["what is 7?"])[0] == pytest.approx(expected, abs=1e-5)
    assert abs(expected - 0.25) > 1e-4
