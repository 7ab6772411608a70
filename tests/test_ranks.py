"""The number of ranks, the micro-batches and the order of rows change nothing: same rollouts, same gradient.

Each case runs the real Student.update (FSDP2 over gloo) in forked processes and returns the whole gradient as it
stands when the optimizer is about to step, after clipping.
"""

import os
import signal
import time

import pytest
import torch
from ranks import on_ranks
from torch._subclasses.fake_tensor import FakeTensorMode

import train
from rollout import Policy, Rollouts
from teacher import Teacher

pytestmark = pytest.mark.slow


def test_ranks_can_train_after_a_backward_here_and_see_no_card(tmp_path):
    """On a CUDA build of torch the first fails without conftest's first backward, where this test runs alone."""

    def train_and_count():
        with FakeTensorMode():
            pass
        torch.ones((), requires_grad=True).backward()
        return torch.cuda.device_count()

    assert train_and_count() == on_ranks(1, tmp_path, train_and_count) == 0


def test_a_rank_that_hangs_ends_with_its_test(tmp_path):
    """The test's end is an exception in a signal's handler, as pytest-timeout's is."""

    def time_is_up(*_):
        raise TimeoutError

    def hang():
        (tmp_path / "pid").write_text(str(os.getpid()))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1)  # until on_ranks waits for this rank
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(3600)

    before = signal.signal(signal.SIGUSR1, time_is_up)
    try:
        with pytest.raises(TimeoutError):
            on_ranks(1, tmp_path, hang)
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def close(a, b):
    """Equal but for float32 rounding: the sums run in another order."""
    return (a - b).norm() <= 1e-5 * b.norm()


def config_for(folder, **changes):
    flags = {"model": folder, "sampler": "uniform", "prompts_per_step": 6, "group_size": 4}
    flags |= {"max_grad_norm": 0, "max_prompt_tokens": 16, "max_completion_tokens": 16} | changes
    return train.parse(
        ["--preset", "demo", *(str(x) for k, v in flags.items() for x in (f"--{k}", v))]
    )


def made_up_rollouts():
    """6 groups of 4: two dead (one all right, one all wrong), four live; completions of 1 to 16 tokens."""
    generator = torch.Generator().manual_seed(0)

    def tokens(n):
        return torch.randint(3, 90, (n,), generator=generator).tolist()

    lengths = torch.randint(1, 17, (24,), generator=generator).tolist()
    prompts = [tokens(3 + 2 * p) for p in range(6) for _ in range(4)]
    rewards = torch.tensor(
        [[1, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    )
    logps = [[-1.0] * n for n in lengths]
    return Rollouts(prompts, [tokens(n) for n in lengths], [True] * 24, logps), rewards.float()


VARIANTS = {
    "grpo": {"loss": "grpo"},
    "dapo": {"loss": "dapo"},
    "sum": {"loss": "sum"},
    "dead rows out": {"dead_rows": "out", "loss": "grpo"},
    "small micro-batches": {"loss": "grpo", "per_device_batch_size": 1},
    "packed": {"loss": "grpo", "per_device_batch_size": 3},
    "dead rows forwarded": {"loss": "grpo", "entropy_coef": 1e-30},
    "entropy, KL and two updates": {"entropy_coef": 0.01, "kl_coef": 0.1, "update_iterations": 2},
    "one live group": {"loss": "grpo"},
    "all dead": {"loss": "grpo"},
}


def gradients(folder):
    """Variant -> [gradient norm, the whole gradient as one vector], of the last optimizer step."""
    results, layout = {}, None
    for name, changes in VARIANTS.items():
        config = config_for(folder, **changes)
        if layout is None:
            layout = train.Layout(config)
            layout.connect(config)
        Policy.packed, shapes = name == "packed", []
        student = train.Student(config, layout, verifier=None)
        student.policy.register_forward_pre_hook(
            lambda policy, inputs, shapes=shapes: shapes.append(inputs[0].shape)
        )
        rollouts, rewards = made_up_rollouts()
        if name in ("one live group", "all dead"):
            rewards[1:] = 0
            rewards[0] = rewards[0] * (name == "one live group")
        before, step, caught = [r.clone() for r in rewards], student.optimizer.step, []

        def catch(student=student, step=step, caught=caught):
            caught.append(
                torch.cat([p.grad.full_tensor().flatten() for p in student.policy.parameters()])
            )
            step()

        student.optimizer.step = catch
        metrics = student.update(rollouts, rewards, config.learning_rate)
        assert all(B == 1 for B, _ in shapes) or name != "packed"
        assert all(torch.equal(a, b) for a, b in zip(before, rewards, strict=True))
        weights = torch.cat([p.flatten() for p in student.generator.lm.parameters()])
        results[name] = (metrics, caught[-1], weights)
    return results


@pytest.fixture(scope="module")
def one_rank(tiny_model, tmp_path_factory):
    return on_ranks(1, tmp_path_factory.mktemp("one"), gradients, tiny_model)


@pytest.mark.parametrize("n", [2, 3, 6, 8])
def test_same_gradient_on_any_number_of_ranks(n, one_rank, tiny_model, tmp_path):
    several = on_ranks(n, tmp_path, gradients, tiny_model)
    for name, (metrics, gradient, _) in one_rank.items():
        other_metrics, other, _ = several[name]
        assert close(gradient, other), name
        for key, value in metrics.items():
            expected = value if value is None else pytest.approx(value, rel=1e-4, abs=1e-6)
            assert other_metrics[key] == expected, (name, key)


def test_micro_batches_and_dead_rows_do_not_change_the_gradient(one_rank):
    for name in ("small micro-batches", "dead rows forwarded", "packed"):
        assert close(one_rank["grpo"][1], one_rank[name][1])
    # Two of six groups are dead: with them out of the denominators the gradient is 6/4 of what it was.
    assert close(one_rank["grpo"][1] * 6 / 4, one_rank["dead rows out"][1])
    assert one_rank["grpo"][0]["forwarded_rows"] == 16  # four live groups of four
    assert one_rank["dead rows forwarded"][0]["forwarded_rows"] == 24
    assert not close(one_rank["grpo"][1], one_rank["dapo"][1])  # the test can tell them apart


def test_gradient_is_that_of_the_plain_formula(one_rank, tiny_model):
    """(1/B) Σ_i Â_i (1/|o_i|) Σ_t ∇ log π(o_t), row by row, with no code of this project but the data."""
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(tiny_model)
    rollouts, rewards = made_up_rollouts()
    loss = 0.0
    for b in range(24):
        r = rewards[b // 4]
        if r.min() == r.max():
            continue
        prompt, completion = rollouts.prompt_ids[b], rollouts.completion_ids[b]
        logits = lm(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / 0.7
        logp = logits.log_softmax(-1)[torch.arange(len(completion)), completion]
        advantage = (r[b % 4] - r.mean()) / r.std(correction=0)
        loss = loss - advantage * logp.mean() / 24
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in lm.parameters()])
    assert close(one_rank["grpo"][1], gradient)
    assert one_rank["grpo"][0]["grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-4)


def test_a_step_of_dead_groups_has_a_zero_gradient_and_still_steps(one_rank):
    metrics, gradient, _ = one_rank["all dead"]
    assert (
        metrics["grad_norm"] == 0 and metrics["forwarded_rows"] == 0 and metrics["entropy"] is None
    )
    assert torch.equal(gradient, torch.zeros_like(gradient))


def teacher_after_two_updates(folder, batch_size):
    config = config_for(
        folder,
        sampler="goldilocks",
        teacher_model=folder,
        teacher_ranks=0,
        teacher_batch_size=batch_size,
        teacher_epochs=1,
    )
    layout = train.Layout(config)
    layout.connect(config)
    t = Teacher(config, layout.device, layout.shard, layout.group)
    gradients = []
    t.optimizer.step = lambda: gradients.append(
        torch.cat(
            [p.grad.full_tensor().flatten() for p in t.model.parameters() if p.grad is not None]
        )
    )
    for i in range(8):
        t.update(f"what is {'1' * i}?", i, 8)
    return gradients, torch.from_numpy(t.predict(["what is 3?", "4", "5 and 6"])), t.last_loss


def test_teacher_batch_is_shared_out_over_its_ranks(tiny_model, tmp_path):
    gradients, predictions, loss = on_ranks(1, tmp_path, teacher_after_two_updates, tiny_model, 6)
    for n, batch_size in (
        (2, 3),
        (3, 2),
    ):  # 6 effective; the last batch of 2 leaves one of three ranks idle
        other, other_predictions, other_loss = on_ranks(
            n, tmp_path, teacher_after_two_updates, tiny_model, batch_size
        )
        assert len(gradients) == len(other) == 1 + 2
        for a, b in zip(gradients, other, strict=True):
            assert a.abs().max() > 1e-4
            assert close(a, b)
        assert torch.allclose(predictions, other_predictions)
        assert other_loss == pytest.approx(loss, rel=1e-5)
