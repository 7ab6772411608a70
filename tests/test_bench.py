"""bench.py: floors and shares that a reader can work out by hand, one-line errors, and that a step can be measured."""

import contextlib
import itertools
import json
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

import train
from rollout import Rollouts
from scripts import bench, floors, measure

# D 4, MLP 6, 2 layers, 2 heads and 1 key-value head of 3, 10 words.
SIZES = dict(zip(floors.SIZES, (4, 6, 2, 2, 1, 3, 10, True), strict=True))
TINY = floors.Shape(SimpleNamespace(**SIZES))
FREE = 1e30  # a speed at which work takes no time


def test_sizes_of_a_tiny_shape_by_hand():
    # A layer: q 4x6, k and v 4x3 each, o 6x4, three of 4x6 = 24 + 24 + 24 + 72 = 144.
    assert TINY.matrices == 2 * 144
    assert TINY.parameters == 288 + 40
    assert (
        floors.Shape(SimpleNamespace(**SIZES | {"tie_word_embeddings": False})).parameters
        == 288 + 80
    )


def test_flops_by_hand():
    # 3 tokens see 1 + 2 + 3 = 6 keys; a key costs 2 layers x 2 heads x (2x3 for its score + 2x3 for its value) = 48.
    assert floors.causal(3) == 6 and floors.causal(2, before=3) == 4 + 5
    assert (
        TINY.forward_flops(3, 6, 2) == 2 * 288 * 3 + 48 * 6 + 2 * 40 * 2
    )  # two of the tokens go through the head


@pytest.mark.parametrize("name", floors.SHAPES)
def test_presets_shapes_are_those_of_the_model(name):
    """Against transformers' parameters and torch's FLOPs, on the meta device. Norms and biases are left out."""
    config = floors.model_config(name, num_hidden_layers=2)
    shape, T = floors.Shape(config), 5
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, T, dtype=torch.long))
    assert shape.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=1e-3)
    assert shape.forward_flops(T, T * T, T) == pytest.approx(
        counter.get_total_flops(), rel=1e-3
    )  # the mask is not used


def test_floors_by_hand():
    """Two prompts of 3 tokens, two completions each; the rows of the second are trained on, by two ranks."""
    step = {
        "prompt_B": [3] * 4,
        "new_B": [2, 1, 2, 3],
        "live": [2, 3],
        "G": 2,
        "ranks": 2,
        "size": 4,
    }
    flops = floors.floors(TINY, floors.Machine(bandwidth=FREE, rate=1), **step)
    # 2 x 3 prompt tokens see 12 keys and make a first token each; 1 + 0 + 1 + 2 more see 4, nothing, 4, 4 + 5.
    assert flops["rollout_s"] == TINY.forward_flops(6 + 4, 12 + 4 + 4 + 9, 2 + 4) / 2
    assert flops["fwd_bwd_s"] == 3 * TINY.forward_flops(5 + 6, 15 + 21, 2 + 3) / 2
    moved = floors.floors(TINY, floors.Machine(bandwidth=1, rate=FREE), **step)
    # float32, 2 positions of 328 weights; keys and values of 17 tokens: 2 x 2 layers x 1 head x 3 numbers each.
    assert moved["rollout_s"] == 4 * (2 * 328 + 17 * 12 / 2)
    assert (moved["step"], moved["refresh"]) == (7 * 4 * 328 / 2, (4 + 4) * 328)
    assert (
        floors.Machine(bandwidth=10.0, rate=100.0).floor(flops=300, moved=20) == 3.0
    )  # the slower of the two
    assert floors.Machine(bandwidth=10.0, rate=100.0).floor(flops=100, moved=20) == 2.0


def test_plan_by_hand():
    """6 students share 144 live rows of 2 + 1 tokens; with free memory the parts are FLOPs, at one a second."""
    a = SimpleNamespace(**{name: value for name, (value, _) in floors.ASSUMED.items()})
    a.tflops, a.bandwidth, a.nvlink, a.network = 1e-12, FREE, FREE, FREE
    a.prompt_tokens, a.mean_tokens, a.max_tokens, a.question_tokens = 2, 1, 1, 3
    row = floors.plan_row(TINY, TINY, 8, a)
    assert row["train"] == 24 * 3 * TINY.forward_flops(3, 6, 1)
    question = TINY.forward_flops(3, 6, 0)
    assert row["teacher"] == pytest.approx(
        72 * 3 * 8 * question + 72 * question
    )  # 72 batches; 144 scored by 2 ranks
    busy = row["rollout"] + row["train"] + row["weights"]
    assert row["step"] == max(busy, row["teacher"]) and row["wait"] == max(0, row["teacher"] - busy)


def test_row_of_a_step_by_hand():
    """2 ranks ran 200 and 100 positions for 48 rows of 2 + 3 tokens that have a gradient; as many more have none."""
    layout, stops = SimpleNamespace(group=None), []
    layout.gather = lambda mine, group: [(200, 0.5, 2**30), (100, 1.5, 2**31)]
    layout.request_stop = lambda: stops.append(True)
    config = train.parse(["--preset", "demo", "--group_size", "2"])
    probe = measure.Probe(config, layout, 1, [None], after=len)
    rewards_P_G = torch.tensor([[0.0, 1.0]] * 24 + [[1.0, 1.0]] * 24)
    groups = train.Groups(None, Rollouts([[1, 2]] * 96, [[3, 4, 5]] * 96, [], []), rewards_P_G, [])
    probe.cpu, probe.parts = 0.0, measure.Counter(step=1.0, refresh=0.5)
    probe.log(
        {"seconds": 10.0, "train_s": 4.0, "rollout_s": 3.0, "teacher_wait_s": 2.5}, groups, None
    )
    (row,) = probe.rows
    assert stops == [True]
    assert row["live_rows"] == 48 and row["rows"] == ([2] * 96, [3] * 96, list(range(48)))
    assert row["imbalance"] == pytest.approx(200 / 150 - 1) and row["padding"] == pytest.approx(
        1 - 48 * 5 / 300
    )
    assert (row["fwd_bwd_s"], row["tokens_a_second"], row["position_ms"]) == (2.5, 48, 1000)
    assert (row["teacher_wait"], row["cpu_s"], row["peak_gib"]) == (0.25, 1.5, 2)


def test_spread():
    assert bench.spread([3.0, None, 1.0, 2.0], 0) == "2 (1 to 3)" and bench.spread([None]) == "-"


def test_scripted_rewards_have_the_share_of_dead_groups_asked_for():
    assert measure.scripted_rewards(P=5, G=2, dead=0.6) == [0, 0, 0, 0, 0, 0, 0, 1, 0, 1]


def test_made_up_problems_are_different_and_load(tmp_path):
    measure.write_problems(tmp_path / "p.jsonl", 50, 10, seed=0)
    problems = bench.Problems(tmp_path / "p.jsonl")
    assert len({problems.question(i) for i in range(len(problems))}) == 50
    assert all(5 <= problems.question(i).count(" ") <= 15 for i in range(50))


def test_random_model_of_a_folders_config(tiny_model, tmp_path):
    measure.save_random_model(str(tiny_model), 1, 0, tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.num_hidden_layers, config.hidden_size) == (1, 32)


def test_sides_take_turns(monkeypatch, capsys):
    """One step each, and who is first changes after every round of the two shares; ratios are of pairs."""
    order = []

    def steps(side: str, seconds: float):
        for i in itertools.count():
            order.append(side)
            yield {"seconds": seconds * (1 + i), "cpu_s": seconds, "completion_tokens": 8}

    def run(args, rest, n, shares, after, reads):
        taken, rows = steps("a", 1.0), []
        for _ in range(n):
            rows.append(next(taken))
            after(rows)
        return SimpleNamespace(rows=rows)

    monkeypatch.setattr(measure, "run", run)
    monkeypatch.setattr(
        bench, "trl_worker", contextlib.contextmanager(lambda args, batch: (yield steps("b", 4.0)))
    )
    assert (
        bench.main(
            ["trl", "--trl_batch", "96", "--repeats", "2", "--warmup", "1", "--threads", "1"]
        )
        == 0
    )
    assert (
        "".join(order) == "bbb" + "abab" + "baba" + "abab"
    )  # the first three: how fast is this batch size?
    whole = next(line for line in capsys.readouterr().out.splitlines() if "whole step" in line)
    ours, theirs = (
        "4.0000 (3.0000 to 5.0000)",
        "16.0000 (12.0000 to 20.0000)",
    )  # the second and third round
    assert whole.split(" | ")[1:4] == [ours, theirs, "0.2500 (0.2500 to 0.2500)"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["step", "--no_such_flag", "1"], "--no_such_flag"),
        (["memory", "--shape", "demo"], "--shape"),
        (["step", "--dead", "2"], "--dead"),
        (["step", "--threads", "2"], "--threads"),
        (["plan", "--repeats", "2"], "--repeats"),
        (["step", "--repeats", "0"], "--repeats"),
        (["step", "--shape", "no_such_shape"], "no_such_shape"),
        (["step", "--group_size", "1"], "--group_size"),
        (["nothing"], "nothing"),
        (["trl", "--trl_python", "/no/such/python", "--trl_batch", "4"], "/no/such/python"),
        (
            ["trl", "--trl_python", "/bin/false", "--trl_batch", "4"],
            "TRL's side ended with status 1",
        ),
    ],
)
def test_bad_flags_one_line(flags, said, capsys):
    assert bench.main(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error


@pytest.mark.parametrize("dead", [0.5, 1.0])
def test_step_on_a_tiny_model(dead, tiny_model, tmp_path, capsys, monkeypatch):
    """Every part is there, parts add up to the step, and what was counted is what the rows say."""
    monkeypatch.setattr(floors.Machine, "measure", lambda cuda: floors.Machine(1e10, 1e11))
    monkeypatch.setattr(
        train.Layout, "stop_at_sigterm", lambda layout: None
    )  # pytest's own process
    out = tmp_path / "rows.json"
    run = [
        "--shape",
        tiny_model,
        "--question_tokens",
        4,
        "--repeats",
        2,
        "--warmup",
        1,
        "--dead",
        dead,
        "--json",
        out,
    ]
    run += [
        "--prompts_per_step",
        2,
        "--group_size",
        4,
        "--max_completion_tokens",
        5,
        "--candidates",
        2,
    ]
    assert bench.main(["step", *map(str, run), "--verify_workers", "1"]) == 0
    printed, rows = capsys.readouterr().out, json.loads(out.read_text())
    quantities = set(bench.QUANTITIES) - {
        "imbalance",
        "teacher_cpu_s",
        "teacher_wait_alone",
    }  # of more rows and ranks
    assert (
        all(f"| {bench.QUANTITIES[key][0]} |" in printed for key in quantities)
        and "commit" in printed
    )
    assert "inf" not in printed  # with nothing to train on there is no floor to compare with
    assert len(rows) == 2
    for row in rows:
        assert (row["live_rows"], row["zero_variance"], row["imbalance"]) == (
            8 * (1 - dead),
            dead,
            None,
        )
        parts = (
            "propose",
            "rollout_s",
            "verify_s",
            "gather_s",
            "observe",
            "fwd_bwd_s",
            "step",
            "refresh",
        )
        assert (
            all(row[part] > 0 for part in parts)
            and sum(row[part] for part in parts) <= row["seconds"]
        )
        prompt_B, new_B, live = row["rows"]
        assert (
            live == [4, 5, 6, 7][: row["live_rows"]]
            and sum(new_B) == row["completion_tokens"] <= 8 * 5
        )
        assert sum(prompt_B) + sum(new_B) == row["total_tokens"]
