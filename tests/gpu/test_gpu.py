"""What only a GPU can show: bf16 over float32 masters, CUDA graphs, attention, the Teacher."""

from copy import deepcopy

import pytest
import torch
from transformers import AutoTokenizer
from transformers.utils import is_flash_attn_2_available

import grpo
from plumbing.batches import collate, micro_batches
from plumbing.config import MODES, Config
from plumbing.decoding.graphs import GraphCapture
from plumbing.distributed.layout import Layout
from plumbing.files import read_lines
from rollout import Generator, Policy
from sampler import utility_target
from scripts.embed import embed
from teacher import Teacher
from tests.helpers.groups import completion
from tests.helpers.models import ROOT, save_tiny_model
from tests.helpers.ranks import DEMO, one_rank

CPU = torch.device("cpu")
CARD = torch.device("cuda")
REASON = "needs a CUDA device, and `pytest -m gpu`"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason=REASON)]


def test_logits_of_bf16_are_not_rounded_to_bf16():
    torch.manual_seed(0)
    hidden = torch.randn(50, 64).bfloat16()
    weight = torch.randn(1000, 64).bfloat16()
    expected = hidden.double() @ weight.double().T
    logits = grpo.logits(hidden.cuda(), weight.cuda())
    assert logits.dtype == torch.float32
    assert (logits.cpu() - expected).abs().max() < 1e-3  # in bf16 the error would be up to 0.125


def test_generation_in_bf16_agrees_with_the_float32_policy():
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    generator = Generator.load(str(DEMO), CARD, tokenizer, torch.bfloat16)
    policy = Policy.load(str(DEMO), CARD)
    problems = read_lines(ROOT / "demo/val.jsonl")[:32]
    prompts = [tokenizer(row["problem"] + "\n\nSolution:").input_ids for row in problems]
    policy.lm.set_attn_implementation("shared_prompts")  # flash-attn cannot compute in float32
    completions = generator.generate(prompts, 0.7, 100, seed=0)
    rows = [*zip(prompts, completions, strict=True)]
    batch = collate(rows, CARD)
    with torch.no_grad():
        logp_N = policy(batch, 0.7)[0]
    assert logp_N.mean() > -0.2  # tokens that the policy finds likely, though bf16 chose them
    assert (logp_N - batch.generator_logp_N).abs().mean() < 0.05  # logged as logp_gap


def rows_of_all_lengths():
    """32 rows, of 1 to 63 tokens, short prompts before long completions and the reverse."""
    tokens_B_T = torch.randint(2, 81, (32, 64), generator=torch.Generator().manual_seed(0)).tolist()
    rows = []
    for b, tokens in enumerate(tokens_B_T):
        each = completion(ids=tokens[2 * b + 1 :])
        each.advantage = float(b)  # to know a row's tokens in any batch
        rows.append((tokens[: 2 * b + 1], each))
    return rows


def logps_and_gradient(rows, dtype, attention):
    """Return the log-probs of all tokens, row after row, and the gradient of their sum."""
    layout = one_rank("--preset", "demo", "--device", "cuda")
    policy = Policy.load(str(DEMO), CARD)
    policy.lm.set_attn_implementation(attention)
    for p in policy.parameters():  # as FSDP does; the table of rotary angles stays in float32
        p.data = p.to(dtype)
    batches = micro_batches(rows, layout, 800, pad_id=0, packed=policy.packed)
    logp_N = torch.cat([policy(batch, 1.0)[0] for batch in batches])
    logp_N.sum().backward()
    row_N = torch.cat([batch.advantage_N for batch in batches])
    gradient = torch.cat([p.grad.flatten().float() for p in policy.parameters()])
    return logp_N[row_N.argsort(stable=True)], gradient


@pytest.mark.skipif(not is_flash_attn_2_available(), reason="needs flash-attn")
def test_packed_rows_through_flash_attention_are_as_near_to_float32_as_padded_ones_through_sdpa():
    """Log-probs of 1,024 tokens and their gradient. The error of bf16 alone is the measure."""
    rows = rows_of_all_lengths()
    exact = logps_and_gradient(rows, torch.float32, "shared_prompts")
    padded = logps_and_gradient(rows, torch.bfloat16, "shared_prompts")
    packed = logps_and_gradient(rows, torch.bfloat16, "flash_attention_2")
    for x, y, z in zip(exact, padded, packed, strict=True):
        error = (z - x).norm()
        error_of_bf16 = (y - x).norm()
        assert error > 0
        assert error < 2 * error_of_bf16
        assert error_of_bf16 < 0.05 * x.norm()


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_cuda_graphs_draw_the_same_tokens_as_the_cpu(temperature, tmp_path):
    """Float32 on both sides, over more than one block of tokens; then with new weights."""
    folder = str(save_tiny_model(tmp_path / "tiny"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    on_cpu = Generator.load(folder, CPU, tokenizer)
    on_card = Generator(deepcopy(on_cpu.lm).to(CARD), tokenizer)
    texts = ("a", "What is 3 + 4?", "zz\nzz")
    prompts = [tokenizer(text).input_ids for text in texts for _ in range(8)]
    for _ in range(2):
        drawn = [g.generate(prompts, temperature, 300, seed=0) for g in (on_cpu, on_card)]
        same = sum(a.ids == b.ids for a, b in zip(*drawn, strict=True))
        assert same >= 20  # of 24: over 300 tokens rounding may move one across a border
        with torch.no_grad():
            for p, q in zip(on_cpu.lm.parameters(), on_card.lm.parameters(), strict=True):
                p.mul_(1.1)
                q.copy_(p)
    assert on_card.capture.graph  # a step that cannot be captured gives the same tokens


@pytest.fixture
def expandable_segments():
    """The allocator's setting that PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes."""
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    yield
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")


def test_graphs_are_recorded_again_after_all_are_dropped(expandable_segments):
    """PyTorch fails an assertion at a capture into a pool that has blocks but no graph."""
    recorder = GraphCapture()
    for size in (10_000_000, 10):
        x = torch.ones(size, device=CARD)
        for _ in range(2):
            replay = recorder(lambda x=x: (x + 1) * 2)
            out = replay()
        assert out[-1] == 4
        del replay, out


UNCAPTURABLE = {  # steps that compute x + 1, all ones, with the host's part in it
    "a tensor of the host": lambda x: x + torch.tensor([1.0], device=CARD),
    "a number that the host reads": lambda x: x * (x.sum().item() - 1),
}


@pytest.mark.parametrize("case", UNCAPTURABLE)
def test_a_step_that_cannot_be_captured_runs_without_a_graph(case, capsys):
    x = torch.ones(3, device=CARD)
    before = GraphCapture()(lambda: x + 1)
    recorder = GraphCapture()

    def step():
        return UNCAPTURABLE[case](x)

    assert recorder(step) is step
    assert recorder(step) is step
    assert step().tolist() == [2, 2, 2]
    assert capsys.readouterr().out.count("note: a decoding step cannot be a CUDA graph (") == 1
    assert GraphCapture()(lambda: x + 1)().tolist() == [2, 2, 2]
    assert before().tolist() == [2, 2, 2]


QUESTIONS = [row["problem"] for row in read_lines(ROOT / "demo/val.jsonl")[:48]]


@pytest.fixture(scope="module")
def layout():
    """One process that is its own group, as where a single GPU trains."""
    layout = one_rank("--preset", "demo", "--device", "cuda")
    layout.connect(timeout_minutes=1)
    yield layout
    torch.distributed.destroy_process_group()


def make(layout: Layout, mode: str, device: torch.device | None = None) -> Teacher:
    config = Config(
        teacher_model=str(DEMO),
        teacher_mode=mode,
        teacher_learning_rate=1e-3,
        teacher_update_every=16,
        replay_capacity=32,
        max_prompt_tokens=64,
    )
    shard = (lambda *_, **__: None) if device else layout.shard  # a model on the CPU stays whole
    return Teacher(config, device or layout.device, shard)


def learn(t: Teacher, questions: list[str]) -> list[float]:
    """Push outcomes that follow a question's length; return the loss after each update."""
    losses = []
    for question in questions:
        p_hat = min(len(question) // 8, 16) / 16
        t.update(question, utility_target(p_hat))
        losses.append(t.last_loss)
    return losses[15::16]


@pytest.mark.parametrize("mode", MODES)
def test_the_teacher_learns_as_on_the_cpu(layout, mode):
    """bf16 over float32 weights. The first losses are near the variance of the targets."""
    on_cpu, on_card = (make(layout, mode, device) for device in (CPU, None))
    expected = learn(on_cpu, QUESTIONS)
    assert learn(on_card, QUESTIONS) == pytest.approx(expected, rel=0.2, abs=2e-3)
    assert on_card.predict(QUESTIONS) == pytest.approx(on_cpu.predict(QUESTIONS), abs=0.1)


def test_embeddings_are_those_of_the_cpu():
    on_cpu, on_card = (embed(str(DEMO), QUESTIONS, 64, device) for device in ("cpu", "cuda"))
    assert on_card.numpy() == pytest.approx(on_cpu.numpy(), abs=1e-2)


def test_later_updates_allocate_nothing_new(layout):
    t = make(layout, "full")
    learn(t, QUESTIONS)
    allocated = torch.cuda.memory_stats().get("num_device_alloc")
    learn(t, QUESTIONS)
    assert t.updates == 40 + 48  # in the first call the buffer was part-filled
    assert torch.cuda.memory_stats().get("num_device_alloc") == allocated
