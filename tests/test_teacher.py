"""teacher.py in one process: pooling and Algorithm 2 by hand, the ablations, export. No shape-only checks."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

import teacher as teacher_module
from teacher import LoRALinear, Teacher, pool

QUESTIONS = ["what is 1?", "what is 22 and 3?", "7", "how many are 1234567?", "what is 5 + 5?"]


def make(folder, **changes):
    config = SimpleNamespace(
        teacher_model=str(folder),
        teacher_mode="full",
        teacher_learning_rate=1e-3,
        teacher_batch_size=4,
        teacher_epochs=4,
        teacher_update_every=4,
        replay_capacity=64,
        max_prompt_tokens=64,
        seed=0,
    )
    vars(config).update(changes)
    return Teacher(config, torch.device("cpu"), shard=lambda model, float32=(): None)


def copy_of(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def test_mean_pool_leaves_padding_out():
    hidden = torch.tensor(
        [[[1.0, 0.0], [3.0, 2.0], [100.0, 100.0]], [[1.0, 1.0], [2.0, 2.0], [6.0, 0.0]]]
    )
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert pool(hidden, mask).tolist() == [[2.0, 1.0], [3.0, 1.0]]
    assert pool(hidden, mask, last_token=True).tolist() == [[3.0, 2.0], [6.0, 0.0]]


def test_the_untrained_teacher_says_a_quarter(tiny_model):
    assert make(tiny_model).predict(QUESTIONS).tolist() == [0.25] * len(QUESTIONS)


@pytest.mark.parametrize("mode", teacher_module.MODES)
def test_prediction_does_not_depend_on_neighbours(tiny_model, mode):
    t = make(tiny_model, teacher_mode=mode)
    torch.manual_seed(1)
    torch.nn.init.normal_(t.model.head.weight)
    together = t.predict(QUESTIONS)
    alone = np.concatenate([t.predict([q]) for q in QUESTIONS])
    assert together == pytest.approx(alone, abs=1e-6)
    assert together.std() > 1e-3 and together.min() >= 0 and together.max() <= 0.5


def test_prediction_is_the_papers_formula(tiny_model):
    t = make(tiny_model)
    torch.manual_seed(1)
    torch.nn.init.normal_(t.model.head.weight)
    t.model.head.bias.data.fill_(0.3)
    ids = torch.tensor([AutoTokenizer.from_pretrained(tiny_model)(QUESTIONS[1]).input_ids])
    with torch.no_grad():
        embedding = AutoModel.from_pretrained(tiny_model)(ids).last_hidden_state[0].mean(dim=0)
    expected = 0.5 / (1 + math.exp(-(float(embedding @ t.model.head.weight[0].detach()) + 0.3)))
    assert t.predict([QUESTIONS[1]])[0] == pytest.approx(expected, abs=1e-6)


def test_algorithm_2_triggers_inside_the_stream_and_carries_the_rest(tiny_model):
    t = make(tiny_model, teacher_batch_size=4, teacher_epochs=4)
    steps = []
    for i in range(10):
        t.update(f"what is {i}?", i % 3, 16)
        steps.append(t.updates)
    # 4th sample: 1 batch of 4 x 4 epochs; 8th: 2 batches x 4 epochs; samples 9 and 10 wait for the 12th.
    assert steps == [0, 0, 0, 4, 4, 4, 4, 12, 12, 12]


def test_replay_is_a_sliding_window_of_targets(tiny_model):
    t = make(tiny_model, replay_capacity=3, teacher_update_every=100)
    for successes in (0, 8, 16, 4, 12):
        t.update(str(successes), successes, 16)
    assert [y for _, y in t.replay] == pytest.approx([0, math.sqrt(3) / 4, math.sqrt(3) / 4])
    assert len(t.replay) == 3


def test_first_gradient_by_hand(tiny_model):
    # At the start f = 1/4 and the derivative of 0.5 σ at 0 is 1/8, so dL/db = 2/|B| Σ (1/4 - y) / 8.
    t = make(tiny_model, teacher_epochs=1, teacher_batch_size=8)
    caught = []
    t.optimizer.step = lambda: caught.append(t.model.head.bias.grad.item())
    targets = [0, 8, 4, 16]
    for successes in targets:
        t.update("what is 1?", successes, 16)
    y = [0, 0.5, math.sqrt(3) / 4, 0]
    assert caught == [pytest.approx(2 / 4 * sum(0.25 - v for v in y) / 8, abs=1e-7)]


@pytest.mark.parametrize("mode", ["full", "last_token", "lora"])
def test_it_learns_what_the_text_says(tiny_model, mode):
    t = make(tiny_model, teacher_mode=mode, replay_capacity=16, teacher_epochs=8)
    for i in range(64):
        word, successes = (("easy", 16), ("half", 8))[i % 2]
        t.update(f"{word} {i}", successes, 16)
    unseen = t.predict(["easy 99", "half 98", "easy 97", "half 96"])
    assert unseen[[1, 3]].min() - unseen[[0, 2]].max() > 0.2
    assert t.last_loss < 0.02  # the variance of the targets is 0.0625


def test_frozen_trains_the_head_alone_and_embeds_once(tiny_model, monkeypatch):
    t = make(tiny_model, teacher_mode="frozen")
    before, calls = copy_of(t.model.backbone), []
    forward = t.model.backbone.forward
    monkeypatch.setattr(
        t.model.backbone, "forward", lambda ids, **kw: calls.append(len(ids)) or forward(ids, **kw)
    )
    t.predict(QUESTIONS)
    for i in range(12):
        t.update(QUESTIONS[i % 5], 8, 16)
    t.predict(QUESTIONS)
    assert sum(calls) == len(QUESTIONS)
    assert t.updates == 24 and t.model.head.bias.item() > 0  # 0.25 is moved towards 0.5
    assert all(torch.equal(p, before[name]) for name, p in t.model.backbone.named_parameters())


def test_lora_changes_only_its_own_matrices(tiny_model):
    t = make(tiny_model, teacher_mode="lora")
    assert t.predict(QUESTIONS).tolist() == [0.25] * 5
    before = copy_of(t.model)
    for i in range(8):
        t.update(QUESTIONS[i % 5], 8, 16)
    moved = {name for name, p in t.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved and all(name.startswith("head.") or name.endswith((".A", ".B")) for name in moved)
    assert any(name.endswith(".A") for name in moved)


def test_lora_formula():
    base = torch.nn.Linear(3, 2)
    layer = LoRALinear(base, rank=4, alpha=8, dropout=0.0)
    torch.nn.init.normal_(layer.B)
    x = torch.randn(5, 3)
    assert torch.allclose(layer(x), base(x) + 2 * x @ (layer.B @ layer.A).T, atol=1e-6)


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_export_predicts_the_same_elsewhere(tiny_model, tmp_path, mode):
    t = make(tiny_model, teacher_mode=mode)
    for i in range(8):
        t.update(QUESTIONS[i % 5], 3 * i % 17, 16)
    t.export(tmp_path)
    backbone, tokenizer = (
        cls.from_pretrained(tmp_path / "backbone") for cls in (AutoModel, AutoTokenizer)
    )
    head = load_file(tmp_path / "head.safetensors")
    ids = torch.tensor([tokenizer(QUESTIONS[3]).input_ids])
    with torch.no_grad():
        logit = (
            backbone(ids).last_hidden_state[0].mean(0) @ head["head.weight"][0]
            + head["head.bias"][0]
        )
    assert t.predict([QUESTIONS[3]])[0] == pytest.approx(
        0.5 * torch.sigmoid(logit).item(), abs=1e-5
    )
    assert abs(logit.item()) > 1e-3


def test_state_dict_restores_buffer_and_trigger(tiny_model, tmp_path):
    a, b = make(tiny_model), make(tiny_model)
    for i in range(6):
        a.update(f"what is {i}?", i, 16)
    b.model.load_state_dict(a.model.state_dict())
    b.optimizer.load_state_dict(
        copy.deepcopy(a.optimizer.state_dict())
    )  # it would share the tensors
    torch.save(a.state_dict(), tmp_path / "t.pt")
    b.load_state_dict(torch.load(tmp_path / "t.pt", weights_only=True))
    for t in (a, b):
        for i in range(6, 13):
            t.update(f"what is {i}?", i, 16)
    assert a.updates == b.updates == 4 + 8 + 12
    assert a.predict(QUESTIONS).tolist() == b.predict(QUESTIONS).tolist()


def test_frozen_embeds_a_question_as_if_it_were_alone(tiny_model):
    """To the last bit, so that ranks which read it beside others, or padded, agree on it."""
    together, alone = (make(tiny_model, teacher_mode="frozen") for _ in range(2))
    together.predict(QUESTIONS)
    for question in QUESTIONS:
        alone.predict([question])
    assert len({len(ids) for ids in together._pooled}) > 1
    assert all(torch.equal(vector, alone._pooled[ids]) for ids, vector in together._pooled.items())
