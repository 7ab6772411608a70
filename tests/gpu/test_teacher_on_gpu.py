"""The Teacher on a card: the same learning as on the CPU, without waiting for the device."""

from types import SimpleNamespace

import pytest
import torch

from plumbing.decoding import fuse_norms
from plumbing.distributed.layout import Layout
from plumbing.files import read_lines
from teacher import MODES, Teacher
from tests.helpers.models import ROOT
from tests.helpers.ranks import DEMO, one_rank

CPU = torch.device("cpu")
REASON = "needs a CUDA device, and `pytest -m gpu`"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason=REASON)]
QUESTIONS = [row["problem"] for row in read_lines(ROOT / "demo/val.jsonl")[:48]]


@pytest.fixture(scope="module")
def layout():
    """One process that is its own group, as where a single GPU trains."""
    layout = one_rank("--preset", "demo", "--device", "cuda")
    layout.connect(timeout_minutes=1)
    yield layout
    torch.distributed.destroy_process_group()


def make(layout: Layout, mode: str, device: torch.device | None = None) -> Teacher:
    config = {"teacher_model": str(DEMO), "teacher_mode": mode, "teacher_learning_rate": 1e-3}
    config |= {"teacher_batch_size": 8, "teacher_epochs": 4, "teacher_update_every": 16}
    config |= {"replay_capacity": 32, "max_prompt_tokens": 64, "seed": 0}
    return Teacher(SimpleNamespace(**config), device or layout.device, layout.shard)


def learn(t: Teacher, questions: list[str]) -> list[float]:
    """Push outcomes that follow a question's length; return the loss after each update."""
    losses = []
    for question in questions:
        t.update(question, min(len(question) // 8, 16), 16)
        losses.append(t.last_loss)
    return losses[15::16]


@pytest.mark.parametrize("mode", MODES)
def test_the_teacher_learns_as_on_the_cpu(layout, mode):
    """bf16 over float32 weights. The first losses are near the variance of the targets."""
    on_cpu, on_card = (make(layout, mode, device) for device in (CPU, None))
    expected = learn(on_cpu, QUESTIONS)
    assert learn(on_card, QUESTIONS) == pytest.approx(expected, rel=0.2, abs=2e-3)
    assert on_card.predict(QUESTIONS) == pytest.approx(on_cpu.predict(QUESTIONS), abs=0.1)


def test_a_step_never_waits_for_the_device_and_allocates_nothing_new(layout):
    t = make(layout, "full")
    learn(t, QUESTIONS)
    step, allocated = t._step, torch.cuda.memory_stats().get("num_device_alloc")

    def watched(*batch):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return step(*batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    t._step = watched
    before = t.updates
    learn(t, QUESTIONS)
    assert t.updates == before + 3 * 4 * 4
    assert torch.cuda.memory_stats().get("num_device_alloc") == allocated


def test_fused_norms_are_as_near_to_float64_as_the_models_own(layout):
    """Errors of bf16, over rows of very different sizes."""
    backbone = make(layout, "frozen", CPU).model.backbone
    norm = backbone.norm.to("cuda", torch.bfloat16)
    x = (torch.randn(64, norm.weight.numel()) * torch.logspace(-3, 3, 64)[:, None]).bfloat16()
    mean_square = x.double().square().mean(-1, keepdim=True)
    exact = x.double() * (mean_square + norm.variance_epsilon) ** -0.5 * norm.weight.cpu().double()
    x = x.cuda()

    def error() -> float:
        return (norm(x).detach().cpu().double() - exact).norm().item()

    own = error()
    fuse_norms(norm)
    assert 0 < error() <= 1.1 * own
