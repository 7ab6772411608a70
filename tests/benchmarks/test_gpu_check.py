"""gpu_check: its parts with tiny sizes, what it says when one fails; memory by formula, counted."""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import train
from benchmarks import bench, gpu_check, roofline
from benchmarks.gpu_check import CheckError, Sizes
from benchmarks.memory import Shape, memory_row, training_bytes
from plumbing.files import write_lines
from tests.helpers.models import FAMILIES, kept_by_forward
from tests.helpers.ranks import all_end, on_ranks
from tests.helpers.shapes import TINY

# ---- memory by formula


@pytest.mark.parametrize("family", [*FAMILIES, "llama"])
def test_what_a_layer_keeps_is_what_the_formula_says(family):
    (one, *_), (two, config, _) = (kept_by_forward(family, layers, 100) for layers in (1, 2))
    assert two - one == 100 * Shape(config).kept
    after = 10 * 64 * 100  # of training_bytes; with the tables of rotary angles and the token ids
    assert 0 < one - (two - one) < after


def test_training_bytes_by_hand():
    """288 weights in matrices and 40 in the tied head; 2 layers; 5 tokens."""
    T = 5
    # A layer keeps 16 D + 8, 4 (q + kv) + 4 H, 8 I with D 4, q 6, kv 3, H 2, I 6: 164.
    parts = training_bytes(TINY, T, ranks=2)
    assert parts["sharded"] == 12 * 328 / 2 and parts["gathered"] == 6 * 328
    assert parts["activations"] == T * (2 * 164 + 40)
    assert parts["working"] == T * 164 + 2 * 40 + 2**26 + 16 * T
    first = training_bytes(TINY, T, recompute=True, accumulated=False)
    assert first["gathered"] == 2 * 328 and first["activations"] == T * (2 * 2 * 4 + 164 + 40)


def test_a_teacher_in_the_students_rank():
    config = train.parse(["--preset", "qwen2.5-1.5b"])
    shape = Shape(roofline.model_config("qwen2.5-1.5b"))
    alone = memory_row(shape, None, config, 1, 0)
    both = memory_row(shape, shape, config, 1, 0)
    assert both["student"] - alone["student"] == pytest.approx(both["teacher here"])
    assert both["teacher here"] == pytest.approx(14 * shape.parameters / 2**30)
    assert bench.main(["fits"]) == 0


# ---- the parts


def test_parts_on_a_model_run_dry(tmp_path):
    """In a process of their own, as they train; what they return goes into JSON and summary."""

    def body():
        del os.environ["RANK"]  # alone, as gpu_check runs them
        roofline.Machine.measure = classmethod(lambda cls, cuda: cls(1e10, 1e11))
        for part in ("decode", "train", "step", "memory"):
            assert gpu_check.do(part, tmp_path, dry=True) == 0
            gpu_check.PARTS[part] = None  # done: the second time it is not called
            assert gpu_check.do(part, tmp_path, dry=True) == 0

    on_ranks(1, tmp_path, body)
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert all("\n" not in part["said"] and part["said"] for part in found.values())
    decode, train, step, memory = (found[n]["found"] for n in ("decode", "train", "step", "memory"))
    assert decode["without graphs"] > decode["floor, ms a token"] > 0
    assert train["seconds"] > train["floor"] > 0
    assert 0 < step["rollout_s"] + step["verify_s"] + step["train_s"] <= step["seconds"]
    assert memory["demo measured"] > 0 and memory["demo by formula"] > 0


def pretend(monkeypatch, run) -> None:
    """Instead of train.py, run(folder, i) makes the i-th run's folder, and returns its metrics."""

    def runs(jobs, cpu=(), ranks=1):
        for i, out in enumerate(jobs):
            number, keys = run(out, i), ("zero_variance", "grad_norm", "val_accuracy", "logp_gap")
            row = dict.fromkeys((*keys, "seconds", "teacher_updates", "reward_mean"), number)
            write_lines(out / "metrics.jsonl", [{"step": step} | row for step in range(5)])

    monkeypatch.setattr(gpu_check, "demo_runs", runs)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_curve_tells_a_difference_from_seed_noise(shift, monkeypatch):
    pretend(monkeypatch, lambda out, i: int(out.name[-1]) / 100 + shift * (out.name[:3] == "cpu"))
    wrong = pytest.raises(CheckError, match="differ by more than seeds do: reward_mean")
    with wrong if shift else nullcontext():
        found = gpu_check.curve(Sizes(steps=4))
        assert found["val_accuracy on card"] == pytest.approx(0.01)
        assert found["p of val_accuracy"] > 0.999


@pytest.mark.parametrize(
    ("further", "error"),
    [
        ((0, 0, 0), None),
        ((0, 0.1, 0.5), None),
        ((0, 0, 1), "the continued run is another"),
        ((-1, -1, -1), "no group had a gradient"),  # nothing has moved
    ],
)
def test_resume_allows_what_two_equal_runs_differ_by(further, error, monkeypatch):
    """Each weight goes 1 away from the demo's, and `further` in one of the three runs."""
    base = load_file(Path(gpu_check.ROOT) / "demo/model/model.safetensors")

    def run(out, i):
        (out / "student").mkdir(parents=True, exist_ok=True)
        i = ("once", "again", "halves").index(out.name)
        moved = {name: tensor + (1 + further[i]) for name, tensor in base.items()}
        save_file(moved, out / "student/model.safetensors")

    pretend(monkeypatch, run)
    with pytest.raises(CheckError, match=error) if error else nullcontext():
        found = gpu_check.resume(Sizes())
        assert found["weights apart, of their way"] == pytest.approx(further[2], abs=1e-5)


@pytest.mark.parametrize("saved", ["student teacher", "student"])
def test_groups_wants_both_roles_in_the_checkpoint(saved, monkeypatch):
    def run(out, i):
        for name in saved.split():
            (out / "checkpoints/step_4" / name).mkdir(parents=True, exist_ok=True)
        return 3

    pretend(monkeypatch, run)
    wrong = pytest.raises(CheckError, match=r"checkpoint of \['student'\]")
    with nullcontext() if "teacher" in saved else wrong:
        assert gpu_check.groups(Sizes())["teacher updates"] == 3


def test_a_run_that_fails_is_told_with_its_last_error(tmp_path, monkeypatch):
    """Of two runs at once, started as train.py is; the one that is not to see the card does not."""
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    script = "import os, sys\nprint(*sys.argv[1:], '/', os.environ['CUDA_VISIBLE_DEVICES'])\n"
    script += "sys.exit('error: full' if 'bad' in sys.argv else 0)"
    (tmp_path / "train.py").write_text(script)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    good, bad = tmp_path / "good", tmp_path / "bad-run"
    with pytest.raises(CheckError, match=r"^train.py bad: status 1: error: full$"):
        gpu_check.demo_runs({good: ["--seed", "1"], bad: ["bad"]}, cpu=[bad])
    assert good.with_suffix(".log").read_text() == f"--preset demo --seed 1 --out {good} / 0\n"
    assert bad.with_suffix(".log").read_text().endswith(f"--out {bad} / \nerror: full\n")


PART = """
import json, subprocess, sys, time
part, out = sys.argv[1], sys.argv[4]
if part == "groups":
    sys.exit("error: NCCL is not there")
if part == "decode":
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid, flush=True)
    time.sleep(60)
said = {"said": part + " is | well", "seconds": 7, "here": {"device": "a card"}}
json.dump(said, open(f"{out}/{part}.json", "w"))
"""


def test_what_fails_is_reported_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "COMMAND", [sys.executable, "-c", PART])
    parts = ["tests", "groups", "decode", "memory"]
    assert gpu_check.main([*parts, "--out", str(tmp_path), "--minutes", "0.06"]) == 1
    table = (tmp_path / "summary.md").read_text()
    assert capsys.readouterr().out.endswith(f"\n{table}")
    tests, groups, decode, memory = table.splitlines()[2:6]
    assert tests == "| tests | ok | 7 | tests is / well |"
    assert groups.startswith("| groups | FAILED | ")
    assert groups.endswith(" | error: NCCL is not there |")
    pid = int((tmp_path / "decode.log").read_text())
    assert decode.endswith(f" | stopped after 0.06 minutes: {pid} |")
    assert memory == "| memory | ok | 7 | memory is / well |"
    assert all_end([pid])


def test_without_a_card_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(["decode", "--here", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == "error: no CUDA device here: --dry runs the same code on a CPU\n"
    monkeypatch.setattr(gpu_check, "run", lambda *_: (2, said.strip()))
    assert gpu_check.main(["--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == said
