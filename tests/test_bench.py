"""bench.py: floors and shares that a reader can work out by hand, one-line errors, and that a step can be measured."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from scripts import bench, floors, measure

# D 4, MLP 6, 2 layers, 2 heads and 1 key-value head of 3, 10 words.
TINY = floors.Shape(4, 6, 2, 2, 1, 3, 10, True)


def test_sizes_of_a_tiny_shape_by_hand():
    # A layer: q 4x6, k and v 4x3 each, o 6x4, three of 4x6 = 24 + 24 + 24 + 72 = 144.
    assert TINY.matrices == 2 * 144
    assert TINY.parameters == 288 + 40
    assert floors.Shape(4, 6, 2, 2, 1, 3, 10, False).parameters == 288 + 80


def test_flops_of_one_row_by_hand():
    # 3 tokens see 1 + 2 + 3 = 6 keys; a key costs 2 layers x 2 heads x (2x3 for its score + 2x3 for its value) = 48.
    assert floors.causal(3) == 6
    forward = 2 * 288 * 3 + 48 * 6 + 2 * 40 * 2  # two of the tokens go through the head
    assert TINY.forward_flops(3, 6, 2) == forward == 2176
    assert TINY.train_flops(3, 6, 2) == 3 * 2176


def test_bytes_by_hand():
    assert floors.causal(2, before=3) == 4 + 5
    # float32, 2 positions: 328 weights each; keys and values of 9 tokens: 2 x 2 layers x 1 head x 3 numbers each.
    assert TINY.decode_bytes(2, 9, 4) == 4 * (2 * 328 + 9 * 12)
    assert TINY.adamw_bytes() == 7 * 4 * 328
    assert TINY.refresh_bytes(2) == 4 * 328 + 2 * 328


def test_floor_is_the_slower_of_arithmetic_and_memory():
    machine = floors.Machine(bandwidth=10.0, rate=100.0)
    assert machine.floor(flops=300, moved=20) == 3.0
    assert machine.floor(flops=100, moved=20) == 2.0


@pytest.mark.parametrize("name", floors.SHAPES)
def test_parameters_of_the_presets_shapes_are_those_of_the_model(name, tmp_path, monkeypatch):
    """Against transformers' own count, on the meta device: norms and biases are all that a Shape leaves out."""
    saved = []
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", lambda config, dtype: saved.append(config) or Saved())
    measure.save_random_model(name, None, 0, tmp_path)
    monkeypatch.undo()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(saved[0])
    shape = floors.Shape.of(saved[0])
    assert shape == floors.Shape(*floors.SHAPES[name][1:])
    assert shape.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=1e-3)


class Saved:
    def save_pretrained(self, folder):
        pass


def test_shares_by_hand():
    assert bench.padding_share(forwarded=8, useful=6) == 0.25
    assert bench.padding_share(0, 0) == 0.0
    assert bench.imbalance([30, 10, 20]) == 0.5  # 30 where the mean is 20
    assert bench.ratios([1.0, 6.0], [2.0, 4.0]) == [0.5, 1.5]
    assert bench.spread([3.0, 1.0, 2.0], 0) == "2 (1 to 3)"
    assert bench.spread([]) == "-"


def test_scripted_rewards_have_the_share_of_dead_groups_asked_for():
    rewards = measure.scripted_rewards(P=5, G=2, dead=0.6)
    assert rewards == [0, 0, 0, 0, 0, 0, 0, 1, 0, 1]
    verdicts = measure.Scripted().grade(["a", "b"], [("7", 1.0), ("7", 0.0)])
    assert [(v.reward, v.status) for v in verdicts] == [(1.0, "correct"), (0.0, "wrong")]


def test_plan_by_hand():
    """One thing at a time: with everything else free, a part takes its FLOPs or bytes over the assumed speed."""
    a = SimpleNamespace(**{name: value for name, (value, _) in floors.ASSUMED.items()})
    a.tflops, a.matrix_share, a.bandwidth, a.bandwidth_share = 1e-12, 1.0, 1e6, 1.0  # one FLOP a second, memory free
    a.nvlink = a.network = 1e12
    a.prompts, a.group, a.dead, a.prompt_tokens, a.mean_tokens = 3, 4, 0.5, 2, 1
    row = floors.plan_row(TINY, TINY, 8, a)
    assert row["train"] == pytest.approx(3 * 2176 - 3 * 80)  # 6 live rows on 6 ranks: one of 3 tokens, 1 scored
    busy = row["rollout"] + row["train"] + row["weights"]
    assert row["step"] == max(busy, row["teacher"]) and row["wait"] == max(0, row["teacher"] - busy)


def test_made_up_problems_are_different_and_load(tmp_path):
    measure.write_problems(tmp_path / "p.jsonl", 50, 10, seed=0)
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert len({row["problem"] for row in rows}) == 50
    assert len(measure.Problems(tmp_path / "p.jsonl")) == 50


def test_random_model_of_a_folders_config(tiny_model, tmp_path):
    measure.save_random_model(str(tiny_model), 1, 0, tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.num_hidden_layers, config.hidden_size) == (1, 32)


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
        (["trl", "--trl_python", "/no/such/python", "--trl_batch", "4"], "--trl_python"),
    ],
)
def test_bad_flags_one_line(flags, said, capsys):
    assert bench.main(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error


def test_step_on_a_tiny_model(tiny_model, tmp_path, capsys, monkeypatch):
    """Every part is there, parts add up to the step, and what was counted is what the rows say."""
    monkeypatch.setattr(sys, "argv", ["bench.py", "step"])
    monkeypatch.setattr(floors.Machine, "measure", lambda device: floors.Machine(1e10, 1e11))
    out = tmp_path / "raw.json"
    run = ["--shape", str(tiny_model), "--question_tokens", "4", "--repeats", "2", "--warmup", "0", "--dead", "0.5"]
    run += ["--prompts_per_step", "2", "--group_size", "4", "--max_completion_tokens", "5", "--candidates", "2"]
    assert bench.main(["step", *run, "--verify_workers", "1", "--json", str(out)]) == 0
    printed, raw = capsys.readouterr().out, json.loads(out.read_text())
    assert all(f"| {name} |" in printed for name, _ in bench.PARTS.values()) and "commit" in printed
    assert raw["live_rows"] == [4, 4] and raw["dead"] == [0.5, 0.5]
    for i, whole in enumerate(raw["seconds"]):
        parts = sum(raw["parts"][part][i] for part in bench.PARTS if part != "seconds")
        assert 0 < parts <= whole
        assert raw["floors"][i]["seconds"] == pytest.approx(
            sum(v for k, v in raw["floors"][i].items() if k != "seconds")
        )
    assert all(0 <= share < 1 for share in raw["training_padding"] + raw["generation_waste"])
