"""The same completions give the same gradient for any ranks, micro-batches, packing, order of rows.

The tests compare the whole gradient of Student.update just before the optimizer's step.
"""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

import train
from grpo import Group
from plumbing.batches import collate
from plumbing.errors import NonFiniteError
from plumbing.models import unsharded
from rollout import Policy
from teacher import Teacher
from tests.helpers.groups import group
from tests.helpers.ranks import on_ranks

pytestmark = pytest.mark.slow


def close(a, b):
    """Compare up to float32 rounding: sums run in another order."""
    return (a - b).norm() <= 1e-5 * b.norm()


def config_for(folder, *switches, **changes):
    flags = {
        "preset": "demo",
        "model": folder,
        "sampler": "uniform",
        "prompts_per_step": 6,
        "group_size": 4,
        "max_grad_norm": 0,
        "max_prompt_tokens": 16,
        "max_completion_tokens": 16,
    }
    words = [f"--{name}={value}" for name, value in (flags | changes).items()]
    return train.parse([*words, *switches])


# Of six groups of unlike size; two of them are dead.
REWARDS = [[1, 0], [1, 1, 1, 1], [0, 1, 1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
LIVE_ROWS = 2 + 6 + 4 + 4


def make_groups(rewards=REWARDS) -> list[Group]:
    """Make six groups with prompts of 3 to 13 tokens and completions of 1 to 16."""
    generator = torch.Generator().manual_seed(0)

    def tokens(n):
        return torch.randint(3, 90, (n,), generator=generator).tolist()

    groups = [group(problem, each) for problem, each in enumerate(rewards)]
    for each in groups:
        each.prompt_ids = tokens(3 + 2 * each.problem)
        for completion in each.completions:
            length = torch.randint(1, 17, (), generator=generator).item()
            completion.ids = tokens(length)
            completion.logps = [-1.0] * length
    return groups


def in_reverse(groups: list[Group]) -> list[Group]:
    for each in groups:
        each.completions.reverse()
    return groups[::-1]


DEAD = [[0] * len(rewards) for rewards in REWARDS]
CHANGED = {  # variants with other groups
    "in reverse": lambda: in_reverse(make_groups()),
    "one live group": lambda: make_groups([REWARDS[0], *DEAD[1:]]),
    "all dead": lambda: make_groups(DEAD),
}
SETTINGS = {
    "grpo": {},
    "dapo": {"loss": "dapo"},
    "batch": {"loss": "batch"},
    "mismatch": {"mismatch": "truncate"},
    "dead rows out": {"dead_rows": "out"},
    "small micro-batches": {"per_device_batch_size": 1},
    "packed": {"per_device_batch_size": 3},
    "in reverse": {},
    "dead rows forwarded": {"entropy_coef": 1e-30},
    "one live group": {},
    "all dead": {},
    # The last one: its first update moves the weights.
    "two updates": {"entropy_coef": 0.01, "kl_coef": 0.1, "update_iterations": 2},
}


def make_student(folder, *switches, **changes) -> train.Student:
    config = config_for(folder, *switches, **changes)
    layout = train.build_layout(config)
    layout.connect(timeout_minutes=5)
    return train.Student.load(config, layout, verifier=None)


def growth_of_the_generator(folder) -> float:
    """Return by what factor a refresh changes a weight of the generator, after a forward of the
    policy and an update that doubles its weights."""
    student = make_student(folder, kl_coef=0.1)
    weight = student.generator.lm.model.norm.weight
    before = weight[0].item()
    first = make_groups()[0]
    batch = collate([(first.prompt_ids, first.completions[0])], "cpu")
    with torch.no_grad():
        student.policy(batch, 1.0)
        for shard in student.optimizer.param_groups[0]["params"]:
            shard.mul_(2)
    student.generator.refresh(student.policy)
    return weight[0].item() / before


def test_refresh_copies_the_weights_of_an_update_that_follows_a_forward(tiny_model, tmp_path):
    """FSDP keeps what the forward has gathered until a backward."""
    assert on_ranks(2, tmp_path, growth_of_the_generator, tiny_model) == 2


def norms_in_bf16(folder) -> tuple[bool, bool]:
    """Return whether a norm's weights, all 1 in the file, are 1 in the policy and where bf16
    computes."""
    student = make_student(folder, "--bf16")
    weight = unsharded(student.policy.lm.model.norm.weight)
    student.generator.refresh(student.policy)
    return (weight == 1).all().item(), (student.generator.lm.model.norm.weight == 1).all().item()


@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_that_bf16_can_hold_are_dithered_where_it_computes(ranks, tiny_model, tmp_path):
    assert on_ranks(ranks, tmp_path, norms_in_bf16, tiny_model) == (False, True)


def gradients(folder) -> dict[str, dict]:
    """Return by variant the gradient of its last update as one vector, and its metrics; for "NaN"
    how often the optimizer took a step."""
    student = make_student(folder, kl_coef=0.1)
    step = student.optimizer.step
    recorded = []

    def record():
        parameters = student.policy.parameters()
        recorded.append(torch.cat([unsharded(p.grad).flatten() for p in parameters]))
        if student.config.update_iterations > 1:  # else no weight moves
            step()

    student.optimizer.step = record
    gradient, metrics = {}, {}
    for name, settings in SETTINGS.items():
        student.config = config_for(folder, **settings)
        Policy.packed = name == "packed"
        attention = "sdpa" if Policy.packed else "shared_prompts"
        for policy in (student.policy, student.reference):
            policy.lm.set_attn_implementation(attention)
        groups = CHANGED.get(name, make_groups)()
        metrics[name] = student.update(groups, step=1)
        gradient[name] = recorded[-1]
    recorded.clear()
    groups = make_groups()
    groups[0].completions[0].logps[0] = math.nan
    with pytest.raises(NonFiniteError, match="step 2: gradient norm "):
        student.update(groups, step=2)
    return {"gradient": gradient, "metrics": metrics | {"NaN": {"updates": len(recorded)}}}


@pytest.fixture(scope="module")
def one_rank(tiny_model, tmp_path_factory):
    return on_ranks(1, tmp_path_factory.mktemp("one"), gradients, tiny_model)


def test_same_gradient_on_any_ranks(one_rank, tiny_model, tmp_path):
    """And the same metrics. "One live group" has two rows to forward, fewer than ranks."""
    several = on_ranks(3, tmp_path, gradients, tiny_model)
    for name, gradient in one_rank["gradient"].items():
        assert close(gradient, several["gradient"][name]), name
    for name, metrics in one_rank["metrics"].items():
        for key, value in metrics.items():
            expected = value if value is None else pytest.approx(value, rel=1e-4, abs=1e-6)
            assert several["metrics"][name][key] == expected, (name, key)


SAME = ["small micro-batches", "packed", "in reverse", "dead rows forwarded"]


@pytest.mark.parametrize("name", SAME)
def test_same_gradient_in_any_batches(one_rank, name):
    assert close(one_rank["gradient"]["grpo"], one_rank["gradient"][name])


@pytest.mark.parametrize("name", ["dapo", "mismatch", "two updates"])
def test_another_loss_has_another_gradient(one_rank, name):
    assert not close(one_rank["gradient"]["grpo"], one_rank["gradient"][name])


def test_dead_rows_are_forwarded_if_a_term_of_the_loss_needs_them_alone(one_rank):
    assert one_rank["metrics"]["grpo"]["forwarded_rows"] == LIVE_ROWS
    assert one_rank["metrics"]["dead rows forwarded"]["forwarded_rows"] == 24


def test_dead_rows_out_of_the_denominators_scale_the_gradient(one_rank):
    """Two of six groups are dead: without them the gradient is 6/4 as large."""
    scaled = one_rank["gradient"]["grpo"] * 6 / 4
    assert close(scaled, one_rank["gradient"]["dead rows out"])


def test_gradient_is_that_of_the_plain_formula(one_rank, tiny_model):
    """The mean over groups of (1/G) Σ_i Â_i (1/|o_i|) Σ_t ∇ log π(o_t), computed without this
    project's code."""
    lm = AutoModelForCausalLM.from_pretrained(tiny_model)
    loss = 0.0
    for each in make_groups():
        if not each.live:
            continue
        prompt = each.prompt_ids
        r = torch.tensor([float(o.reward) for o in each.completions])
        advantages = (r - r.mean()) / r.std(correction=0)
        for advantage, completion in zip(advantages, each.completions, strict=True):
            o = completion.ids
            logits = lm(torch.tensor([prompt + o])).logits[0, len(prompt) - 1 : -1] / 0.7
            logp = logits.log_softmax(-1)[torch.arange(len(o)), o]
            loss = loss - advantage * logp.mean() / len(r) / len(REWARDS)
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in lm.parameters()])
    assert close(one_rank["gradient"]["grpo"], gradient)
    grad_norm = one_rank["metrics"]["grpo"]["grad_norm"]
    assert grad_norm == pytest.approx(gradient.norm().item(), rel=1e-4)


def test_a_number_that_is_not_finite_stops_before_the_update(one_rank):
    assert one_rank["metrics"]["NaN"]["updates"] == 0


def test_a_step_of_dead_groups_has_a_zero_gradient_and_still_steps(one_rank):
    metrics = one_rank["metrics"]["all dead"]
    assert metrics["grad_norm"] == 0
    assert metrics["forwarded_rows"] == 0
    assert metrics["entropy"] is None
    assert not one_rank["gradient"]["all dead"].any()


TEACHER_MODES = ("full", "frozen", "lora")  # last_token differs from full in its pooling alone


def teachers_after_two_updates(folder, batch_size):
    """Return for each mode a teacher's gradients in two updates; its predictions and loss after."""
    layout = train.build_layout(config_for(folder))
    layout.connect(timeout_minutes=5)
    flags = {
        "sampler": "goldilocks",
        "teacher_model": folder,
        "teacher_ranks": 0,
        "teacher_batch_size": batch_size,
        "teacher_epochs": 1,
    }
    configs = {mode: config_for(folder, **flags, teacher_mode=mode) for mode in TEACHER_MODES}
    return {mode: after_two_updates(config, layout) for mode, config in configs.items()}


def after_two_updates(config, layout) -> dict:
    t = Teacher(config, layout.device, layout.shard, layout.group)
    torch.nn.init.constant_(t.model.head.weight, 0.1)  # at 0 the backbone would get no gradient
    for module in t.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # LoRA's, which each rank draws for its own rows
    recorded = []

    def record():
        parts = [p.grad for p in t.model.parameters() if p.grad is not None]
        recorded.append(torch.cat([unsharded(part).flatten() for part in parts]))

    t.optimizer.step = record
    for i in range(8):
        t.update(f"what is {'1' * i}?", i / 16)
    several = t.predict(["what is 3?", "4", "5 and 6"]).tolist()
    single = t.predict(["what is 7?"]).tolist()  # every rank but the first is idle
    return {"gradients": recorded, "numbers": [*several, *single, t.last_loss]}


@pytest.fixture(scope="module")
def teachers(tiny_model, tmp_path_factory):
    """What teachers_after_two_updates returns on one and three ranks, with 6 rows a batch."""
    folder = tmp_path_factory.mktemp("teachers")
    body = teachers_after_two_updates
    return [on_ranks(n, folder, body, tiny_model, 6 // n) for n in (1, 3)]


every_mode = pytest.mark.parametrize("mode", TEACHER_MODES)


@every_mode
def test_same_teacher_gradient_on_any_ranks(mode, teachers):
    """The last batch, of 2 rows, leaves one of three ranks idle."""
    alone, shared = (each[mode]["gradients"] for each in teachers)
    assert len(alone) == 1 + 2
    for a, b in zip(alone, shared, strict=True):
        assert a.abs().max() > 1e-4
        assert close(a, b)


@every_mode
def test_same_teacher_predictions_on_any_ranks(mode, teachers):
    """And the same loss."""
    alone, shared = (each[mode]["numbers"] for each in teachers)
    assert shared == pytest.approx(alone, rel=1e-5)
