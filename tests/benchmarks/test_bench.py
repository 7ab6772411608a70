"""bench: floors that a reader can work out by hand, one-line errors, a step that is measured."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

import train
from benchmarks import bench, measure, roofline
from benchmarks.memory import Shape
from tests.helpers.ranks import on_ranks
from tests.helpers.shapes import TINY

# D 4, MLP 6, 2 layers, 2 heads and 1 key-value head of 3, 10 words: 328 weights.
FREE = 1e30  # a speed at which work takes no time


@pytest.mark.parametrize("name", roofline.SHAPES)
def test_presets_shapes_are_those_of_the_model(name):
    """Against transformers' parameters and torch's FLOPs. Norms and biases are left out."""
    config = roofline.model_config(name, num_hidden_layers=2)
    shape, T = Shape(config), 5
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, T, dtype=torch.long))
    assert shape.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=1e-3)
    flops = shape.forward_flops(T, T * T, T)  # the mask is not used
    assert flops == pytest.approx(counter.get_total_flops(), rel=1e-3)


def test_floors_by_hand():
    """Two prompts of 3 tokens, two completions each; two ranks train on the second's rows."""
    step = {"prompt_B": [3] * 4, "new_B": [2, 1, 2, 3], "live": [2, 3], "G": 2, "ranks": 2}
    flops = roofline.floors(TINY, roofline.Machine(bandwidth=FREE, rate=1), **step, size=4)
    # 2 x 3 prompt tokens see 12 keys and make a first token each; 1 + 0 + 1 + 2 more see 4,
    # nothing, 4, 4 + 5.
    assert flops["rollout_s"] == TINY.forward_flops(6 + 4, 12 + 4 + 4 + 9, 2 + 4) / 2
    assert flops["train_s"] == pytest.approx(3 * TINY.forward_flops(5 + 6, 15 + 21, 2 + 3) / 2)
    moved = roofline.floors(TINY, roofline.Machine(bandwidth=1, rate=FREE), **step, size=4)
    # float32, 2 positions of 328 weights; keys and values of 17 tokens: 2 x 2 layers x 1 head x 3.
    assert moved["rollout_s"] == 4 * (2 * 328 + 17 * 12 / 2)
    assert moved["train_s"] == pytest.approx(7 * 4 * 328 / 2 + (4 + 4) * 328)
    machine = roofline.Machine(bandwidth=10.0, rate=100.0)  # the slower of the two counts
    assert machine.floor(flops=300, moved=20) == 3.0 and machine.floor(flops=100, moved=20) == 2.0


def test_many_cards_by_hand(monkeypatch):
    c, free = train.parse([]), roofline.Machine(FREE, FREE)
    one = roofline.on_cards(TINY, TINY, c, 8, dead=0.5)
    two = roofline.on_cards(TINY, TINY, c, 16, dead=0.5)
    # 4 bytes of each of 328 gradients, twice 2 of each weight; 6 ranks, then 12 on two machines.
    assert one["exchange"] == pytest.approx(8 * 328 * 5 / 6 / 300e9)
    assert two["exchange"] == pytest.approx(8 * 328 * 11 / 12 / 40e9)
    assert one["train"] == pytest.approx(2 * two["train"], rel=1e-3)
    monkeypatch.setattr(roofline, "H100", free)  # what is left of the teacher is its exchange
    # 18 / 4 updates of 4 epochs over 64 outcomes, 8 a rank: 4 batches on 2 ranks, 1 on 8 and on 16.
    for cards, updates, ranks, speed in ((8, 72, 2, 300e9), (32, 18, 8, 300e9), (64, 18, 16, 40e9)):
        teacher = roofline.on_cards(TINY, TINY, c, cards, dead=0.5)["teacher"]
        assert teacher == pytest.approx(updates * 6 * 328 * (ranks - 1) / ranks / speed)


def test_sides_take_turns(monkeypatch, capsys):
    """One step each, and who is first changes from round to round; ratios are of pairs."""
    order, setting = [], SimpleNamespace(prompts_per_step=2, group_size=4)

    def steps(side: str, seconds: float):
        for i in itertools.count(1):
            order.append(side)
            yield {"seconds": seconds * i, "cpu_s": seconds, "completion_tokens": 8}

    ready = contextlib.nullcontext((setting, None, None))
    monkeypatch.setattr(measure, "ready", lambda *_, **__: ready)
    monkeypatch.setattr(measure, "rows", lambda *_: steps("a", 1.0))
    monkeypatch.setattr(bench, "trl_rows", lambda *_: steps("b", 4.0))
    assert bench.main(["trl", "--repeats", "2", "--warmup", "1"]) == 0
    # The first two, one a share of dead groups, are not measured.
    assert "".join(order) == "bb" + "abab" + "baba" + "abab"
    printed = capsys.readouterr().out
    whole = next(line for line in printed.splitlines() if line.startswith("| seconds"))
    # The second and third round of the first share: ours 3 and 5 s, TRL's its 5th and 7th step.
    ratios = bench.spread([3 / 20, 5 / 28])
    assert whole.split(" | ")[1:4] == ["4 (3 to 5)", "24 (20 to 28)", ratios]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("step --no_such_flag 1", "--no_such_flag"),
        ("step --dead 2", "--dead"),
        ("trl --shape nowhere", "nowhere"),
        ("nodes --repeats 2", "--repeats"),
    ],
)
def test_bad_flags_one_line(flags, said, capsys):
    assert bench.main(flags.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0.5, 1.0])
def test_step_on_two_students_and_a_teacher(dead, tiny_model, tmp_path):
    """The parts add up to the step, and what was counted is what the rows say."""
    flags = f"step --shape {tiny_model} --question_tokens 4 --repeats 2 --warmup 1 --dead {dead}"
    flags += " --prompts_per_step 2 --group_size 4 --max_completion_tokens 5 --candidates 2"

    def body():
        roofline.Machine.measure = lambda cuda: roofline.Machine(1e10, 1e11)
        args, rest = bench.arguments([*flags.split(), "--verify_workers", "1"])
        return bench.step(args, [*rest, "--teacher_ranks", "1"])

    rows = on_ranks(3, tmp_path, body)
    assert len(rows) == 2
    for row in rows:
        prompt_B, new_B, live = row["rows"]
        assert live == [4, 5, 6, 7][: row["forwarded_rows"]] and row["zero_variance"] == dead
        assert sum(new_B) == row["completion_tokens"] <= 8 * 5
        assert sum(prompt_B) + sum(new_B) == row["total_tokens"]
        parts = [row[f"{x}_s"] for x in ("teacher_wait", "rollout", "verify", "gather", "train")]
        assert min(parts) > 0 and sum(parts) <= row["seconds"]
        assert row["cpu_s"] > 0 and row["peak_gib"] > 0.1
