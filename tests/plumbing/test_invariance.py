"""The same rollouts give the same gradient for any ranks, micro-batches, packing, order of rows.

The tests compare the whole gradient of Student.update just before the optimizer's step.
"""

import gc
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

import train
from plumbing.distributed.layout import Layout
from plumbing.errors import NonFiniteError
from plumbing.models import unsharded
from rollout import Policy, Rollouts
from teacher import Teacher
from tests.helpers.ranks import on_ranks

pytestmark = pytest.mark.slow


def close(a, b):
    """Compare up to float32 rounding: sums run in another order."""
    return (a - b).norm() <= 1e-5 * b.norm()


def config_for(folder, **changes):
    flags = {"preset": "demo", "model": folder, "sampler": "uniform", "prompts_per_step": 6}
    flags |= {"group_size": 4, "max_grad_norm": 0, "max_prompt_tokens": 16}
    flags |= {"max_completion_tokens": 16} | changes
    return train.parse([str(x) for name, value in flags.items() for x in (f"--{name}", value)])


REWARDS = [[1, 0], [1, 1, 1, 1], [0, 1, 1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
PROBLEMS = [i for i, group in enumerate(REWARDS) for _ in group]
LIVE = [0, 2, 4, 5]


def make_rollouts(order=range(24)):
    """Make 6 groups of unlike size, two of them dead; completions of 1 to 16 tokens."""
    generator = torch.Generator().manual_seed(0)

    def tokens(n):
        return torch.randint(3, 90, (n,), generator=generator).tolist()

    lengths = torch.randint(1, 17, (24,), generator=generator).tolist()
    prompts, completions = [tokens(3 + 2 * i) for i in PROBLEMS], [tokens(n) for n in lengths]
    rewards = [float(r) for group in REWARDS for r in group]
    columns = prompts, completions, [True] * 24, [[-1.0] * n for n in lengths], PROBLEMS, rewards
    return Rollouts(*([column[b] for b in order] for column in columns))


VARIANTS = {
    "grpo": {},
    "dapo": {"loss": "dapo"},
    "batch": {"loss": "batch"},
    "truncated rows out": {"loss": "batch", "truncated_rows": "out"},
    "mismatch": {"mismatch": "truncate"},
    "dead rows out": {"dead_rows": "out"},
    "small micro-batches": {"per_device_batch_size": 1},
    "packed": {"per_device_batch_size": 3},
    "rows in another order": {},
    "dead rows forwarded": {"entropy_coef": 1e-30},
    "dead rows out of every term": {"dead_rows": "out", "entropy_coef": 0.01},
    "live groups alone": {"entropy_coef": 0.01},
    "one live group": {},
    "all dead": {},
    "entropy, KL and two updates": {"entropy_coef": 0.01, "kl_coef": 0.1, "update_iterations": 2},
}


def growth_of_lists(folder):
    """Return by how many entries all lists of the process grow in ten updates with a KL term."""
    layout = Layout(config_for(folder))
    layout.connect(timeout_minutes=5)
    student = train.Student(config_for(folder, kl_coef=0.1), layout, verifier=None)
    rollouts = make_rollouts(range(24))
    counts = []
    for step in range(1, 23):
        student.update(rollouts, rollouts.groups(), step)
        if step in (2, 12, 22):
            gc.collect()
            counts.append(sum(len(x) for x in gc.get_objects() if type(x) is list))
    return counts[-1] - counts[-2]


@pytest.mark.slow
def test_updates_with_a_reference_keep_no_notes_of_its_forwards(tiny_model, tmp_path):
    """FSDP appends an entry for each unit at each forward, and clears them in backward alone."""
    assert on_ranks(2, tmp_path, growth_of_lists, tiny_model) < 10


def gradients(folder):
    """Return for each variant its metrics, and the gradient of its last update as one vector."""
    results, layout = {}, Layout(config_for(folder))
    layout.connect(timeout_minutes=5)
    student = train.Student(config_for(folder, kl_coef=0.1), layout, verifier=None)
    step, gradients, shapes = student.optimizer.step, [], []
    student.policy.register_forward_pre_hook(lambda _, b: shapes.append(b[0].ids_B_T.shape))

    def record():
        parameters = student.policy.parameters()
        gradients.append(torch.cat([unsharded(p.grad).flatten() for p in parameters]))
        # No weight moves before the last variant.
        if student.config.update_iterations > 1 or student.config.learning_rate == 0:
            step()

    student.optimizer.step = record
    for name, changes in VARIANTS.items():
        student.config = config_for(folder, **changes)
        Policy.packed = name == "packed"
        stride = 5 if name == "rows in another order" else 1
        rollouts = make_rollouts([stride * b % 24 for b in range(24)])
        groups = rollouts.groups()
        if name == "live groups alone":
            groups = [groups[i] for i in LIVE]
        if name == "truncated rows out":
            rollouts.finished = [b % 3 > 0 for b in range(24)]
        if name in ("one live group", "all dead"):
            rollouts.rewards = [float(name == "one live group")] + [0.0] * 23
        shapes.clear()
        metrics = student.update(rollouts, groups, step=1)
        assert all(B == 1 for B, _ in shapes) or name != "packed"
        results[name] = metrics, gradients[-1]
    updates, rollouts.logps[0][0] = len(gradients), math.nan
    with pytest.raises(NonFiniteError) as error:
        student.update(rollouts, groups, step=2)
    return results | {"NaN": (str(error.value), len(gradients) - updates)}


@pytest.fixture(scope="module")
def one_rank(tiny_model, tmp_path_factory):
    return on_ranks(1, tmp_path_factory.mktemp("one"), gradients, tiny_model)


@pytest.mark.parametrize("n", [3, 5])
def test_same_gradient_on_any_ranks(n, one_rank, tiny_model, tmp_path):
    several = on_ranks(n, tmp_path, gradients, tiny_model)
    del several["NaN"]
    for name, (other_metrics, other) in several.items():
        metrics, gradient = one_rank[name]
        assert close(gradient, other), name
        for key, value in metrics.items():
            expected = value if value is None else pytest.approx(value, rel=1e-4, abs=1e-6)
            assert other_metrics[key] == expected, (name, key)


def test_same_gradient_in_any_batches(one_rank):
    metrics, gradient = one_rank["grpo"]
    for name in ("small micro-batches", "packed", "rows in another order", "dead rows forwarded"):
        assert close(gradient, one_rank[name][1]), name
    # Two of six groups are dead: without them in the denominators the gradient is 6/4 as large.
    assert close(gradient * 6 / 4, one_rank["dead rows out"][1])
    assert metrics["forwarded_rows"] == 16  # of the live groups
    assert one_rank["dead rows forwarded"][0]["forwarded_rows"] == 24
    out, gradient_out = one_rank["dead rows out of every term"]
    assert close(gradient_out, one_rank["live groups alone"][1]) and out["forwarded_rows"] == 16
    assert not close(gradient_out, one_rank["dead rows out"][1])
    assert not close(gradient, one_rank["dapo"][1])  # the comparison can fail
    live = [b for b in range(24) if PROBLEMS[b] in LIVE]
    kept = one_rank["truncated rows out"][0]["forwarded_rows"]
    assert kept == sum(b % 3 > 0 for b in live) < len(live)


def test_gradient_is_that_of_the_plain_formula(one_rank, tiny_model):
    """The mean over groups of (1/G) Σ_i Â_i (1/|o_i|) Σ_t ∇ log π(o_t), computed without this
    project's code."""
    lm, loss, rollouts = AutoModelForCausalLM.from_pretrained(tiny_model), 0.0, make_rollouts()
    for b, problem in enumerate(PROBLEMS):
        r = torch.tensor(REWARDS[problem]).float()
        if r.min() < r.max():
            prompt, o = rollouts.prompt_ids[b], rollouts.completion_ids[b]
            logits = lm(torch.tensor([prompt + o])).logits[0, len(prompt) - 1 : -1] / 0.7
            logp = logits.log_softmax(-1)[torch.arange(len(o)), o]
            advantage = (rollouts.rewards[b] - r.mean()) / r.std(correction=0)
            loss = loss - advantage * logp.mean() / len(r) / len(REWARDS)
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in lm.parameters()])
    assert close(one_rank["grpo"][1], gradient)
    assert one_rank["grpo"][0]["grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-4)


def test_a_number_that_is_not_finite_stops_before_the_update(one_rank):
    error, updates = one_rank["NaN"]
    assert error.startswith("step 2: gradient norm ") and updates == 0
    assert error.endswith("--step 2` computes them again")


def test_a_step_of_dead_groups_has_a_zero_gradient_and_still_steps(one_rank):
    metrics, gradient = one_rank["all dead"]
    assert metrics["grad_norm"] == metrics["forwarded_rows"] == 0 and metrics["entropy"] is None
    assert not gradient.any()


def teacher_after_two_updates(folder, batch_size):
    flags = {"sampler": "goldilocks", "teacher_model": folder, "teacher_ranks": 0}
    config = config_for(folder, **flags, teacher_batch_size=batch_size, teacher_epochs=1)
    layout = Layout(config)
    layout.connect(timeout_minutes=5)
    t, gradients = Teacher(config, layout.device, layout.shard, layout.group), []

    def record():
        parts = [p.grad for p in t.model.parameters() if p.grad is not None]
        gradients.append(torch.cat([unsharded(part).flatten() for part in parts]))

    t.optimizer.step = record
    for i in range(8):
        t.update(f"what is {'1' * i}?", i, 8)
    return gradients, torch.from_numpy(t.predict(["what is 3?", "4", "5 and 6"])), t.last_loss


def test_same_teacher_gradient_on_any_ranks(tiny_model, tmp_path):
    """6 rows a batch; the last batch, of 2, leaves one of three ranks idle."""
    body = teacher_after_two_updates
    alone, *shared = [on_ranks(n, tmp_path, body, tiny_model, 6 // n) for n in (1, 2, 3)]
    gradients, predictions, loss = alone
    assert len(gradients) == 1 + 2
    for other_gradients, other_predictions, other_loss in shared:
        for a, b in zip(gradients, other_gradients, strict=True):
            assert a.abs().max() > 1e-4 and close(a, b)
        assert torch.allclose(predictions, other_predictions)
        assert other_loss == pytest.approx(loss, rel=1e-5)
