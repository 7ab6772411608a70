"""Bad input of every kind: exit status 2, one line that says what is wrong and what to do, and nothing written or lost.

Four tables, one for each thing that may be wrong: flags, data files, model folders, run folders. A case is what is
spoilt and what the line must say. `refused` runs train.py in a forked rank, with a verifier that starts no process.
"""

import contextlib
import gzip
import io
import json
import logging
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ranks import on_ranks
from safetensors.torch import load_file, save_file
from test_train import command, parse, shell
from transformers import BertConfig, T5Config

import train
from verify import Verdict


class Grades:
    """Stands in for the Verifier: every second length of an answer is right. It starts no process."""

    def grade(self, completions, golds):
        return [
            Verdict(float(len(text) % 2), "correct" if len(text) % 2 else "wrong")
            for text in completions
        ]

    def check_golds(self, golds):
        return [True] * len(golds)


def main(folder, *flags, model, data, before=lambda: None):
    """train.main in a forked rank: (exit status, standard output, standard error)."""

    def body():
        train.Verifier = lambda workers: contextlib.nullcontext(Grades())
        out, err = io.StringIO(), io.StringIO()
        for name in (
            "transformers",
            "datasets",
            "torch",
        ):  # they hold on to the stream that they began with
            logging.getLogger(name).handlers = [logging.StreamHandler(err)]
        before()
        small = ("--max_completion_tokens", 4, "--steps", 2, "--checkpoint_every", 1)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = train.main(command(folder, *small, *flags, model=model, data=data))
        return code, out.getvalue(), err.getvalue()

    return on_ranks(1, data, body)


def contents(folder):
    """Every path under a folder with the bytes of its file: what must not change."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def refused(place, *flags, says, folder=None, **where):
    """Runs with the run's folder in `place`; asserts all that must be true of bad input. Returns the line."""
    before = contents(place)
    code, out, err = main(folder or place / "run", *flags, **where)
    assert code == 2, out + err
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n"), err
    for part in [says] if isinstance(says, str) else says:
        assert part in err
    assert "Traceback" not in out + err
    assert contents(place) == before
    return err


# ---- flags

FLAGS = {
    "unknown": ("--foo 1", "unrecognized arguments: --foo 1 (see --help)"),
    "abbreviated": ("--step 5", "unrecognized arguments: --step 5"),
    "another tool's name": ("--lr 1e-4", "unrecognized arguments: --lr 1e-4"),
    "no flag at all": ("5", "unrecognized arguments: 5"),
    "without its value": ("--column", "argument --column: expected one argument"),
    "a value for a switch": ("--chat_template yes", "unrecognized arguments: yes"),
    "preset": ("--preset gpt", "--preset gpt: choose from qwen2.5-1.5b, olmo2-1b"),
    "sampler": ("--sampler best", "--sampler best: there are goldilocks, uniform, "),
    "loss": ("--loss ppo", "argument --loss: invalid choice: 'ppo'"),
    "lag": ("--teacher_lag 2", "argument --teacher_lag: invalid choice: 2"),
    "no number": ("--steps ten", "argument --steps: invalid int value: 'ten'"),
    "no whole number": ("--steps 1.5", "argument --steps: invalid int value: '1.5'"),
    "zero steps": ("--steps 0", "--steps 0: must be in [1, 1000000000]"),
    "negative steps": ("--steps -3", "--steps -3: must be in [1, "),
    "endless steps": ("--steps 99999999999999999999", "--steps 99999999999999999999: must be in"),
    "zero prompts": ("--prompts_per_step 0", "--prompts_per_step 0: must be in [1, "),
    "a group of one": ("--group_size 1", "--group_size 1: must be in [2, "),
    "temperature": ("--temperature 0", "--temperature 0.0: must be in [0.001, "),
    "hot": ("--temperature inf", "--temperature inf: must be in"),
    "nan": ("--epsilon nan", "--epsilon nan: must be in [0, 1]"),
    "share": ("--epsilon 1.5", "--epsilon 1.5: must be in [0, 1]"),
    "infinite rate": ("--learning_rate inf", "--learning_rate inf: must be in [0, 1]"),
    "overflowing rate": ("--learning_rate 1e300", "--learning_rate 1e+300: must be in [0, 1]"),
    "seed": ("--seed -1", "--seed -1: must be in [0, "),
    "a seed too large": ("--seed 9223372036854775808", "--seed 9223372036854775808: must be in"),
    "buffer": (
        "--replay_capacity 99999999999999999999",
        "--replay_capacity 99999999999999999999: must be in",
    ),
    "no time": ("--timeout_minutes 0", "--timeout_minutes 0.0: must be in [0.01, "),
    "too much time": ("--timeout_minutes 1e15", "--timeout_minutes 1000000000000000.0: must be in"),
    "no checkpoints": ("--keep 0", "--keep 0: must be in [1, "),
    "no workers": ("--verify_workers 0", "--verify_workers 0: must be in [1, "),
    "no student": (
        "--teacher_ranks 1",
        "--teacher_ranks 1 of 1 ranks leaves no student: at most 0",
    ),
    "teacher ranks": ("--teacher_ranks -2", "--teacher_ranks -2: must be in [-1, "),
    "unused epsilon": (
        "--sampler softmax --epsilon 0.1",
        "--epsilon: the sampler softmax does not use it",
    ),
    "teacher's flag": (
        "--sampler uniform --teacher_lag 0",
        "--teacher_lag: the sampler uniform has no teacher",
    ),
    "teacher's ranks": (
        "--sampler uniform --teacher_ranks 1",
        "--teacher_ranks: the sampler uniform has no teacher",
    ),
    "teacher's buffer": (
        "--sampler uniform --replay_capacity 4",
        "--replay_capacity: the sampler uniform has no teacher",
    ),
    "column needed": (
        "--sampler category",
        "--sampler category needs --column, the name of a column",
    ),
    "no such column": (
        "--sampler static --column lvl",
        "has no column 'lvl' for --column; it has none",
    ),
    "unused column": ("--column level", "--column: the sampler goldilocks does not use it"),
    "too few problems": ("--candidates 100", "has 400 problems, and one step draws 600"),
    "long rows": ("--max_completion_tokens 5000", "may take 5032 tokens, but"),
    "no room for a question": (
        "--max_prompt_tokens 5",
        "--max_prompt_tokens 5: a prompt takes 9 tokens already",
    ),
    "no chat template": (
        "--chat_template",
        "--chat_template: this model's tokenizer has no chat template",
    ),
    "no data": (
        "--train_data none.jsonl",
        "none.jsonl: no such data file (--train_data, --val_data)",
    ),
    "no validation data": (
        "--val_data none.jsonl",
        "none.jsonl: no such data file (--train_data, --val_data)",
    ),
    "data is a folder": ("--train_data .", ".: no such data file"),
    "a file's name with a line break": ("--val_data a\nb.jsonl", "a b.jsonl: no such data file"),
    "no model": (
        "--model nowhere/none",
        "model 'nowhere/none' is no folder and cannot be had from the hub",
    ),
    "no teacher": (
        "--teacher_model nowhere/none",
        "model 'nowhere/none' is no folder and cannot be had from the hub",
    ),
    "no name": ("--model ", "model ''"),
}


@pytest.mark.parametrize("case", FLAGS)
def test_flags(case, tmp_path, tiny_model, tiny_data):
    flags, says = FLAGS[case]
    refused(tmp_path, *flags.split(" "), says=says, model=tiny_model, data=tiny_data)


def test_text_that_cannot_be_encoded(tmp_path, tiny_model, tiny_data):
    """As the shell passes on bytes that are not UTF-8."""
    says = "the tokenizer cannot make a prompt"
    refused(tmp_path, "--prompt_header", "\udcff", says=says, model=tiny_model, data=tiny_data)


def test_out(tmp_path, tiny_model, tiny_data):
    where = {"model": tiny_model, "data": tiny_data}
    (tmp_path / "file").write_text("mine")
    refused(tmp_path, folder=tmp_path / "file", says="is a file; choose a folder", **where)
    refused(
        tmp_path,
        folder=tmp_path / "file/run",
        says="cannot be used (Not a directory): choose another",
        **where,
    )
    refused(
        tmp_path,
        folder=tmp_path / ("a" * 300),
        says="cannot be used (File name too long): choose",
        **where,
    )
    refused(
        tmp_path,
        folder=tmp_path,
        says="the folder is not empty and holds no run; choose another",
        **where,
    )
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused(
        tmp_path,
        folder=tmp_path / "link",
        says="cannot be used (File exists): choose another",
        **where,
    )


# ---- data files


def jsonl(**row):
    return json.dumps(row).encode() + b"\n"


def table(**columns):
    def write(path):
        rows = {"problem": ["q"] * 400, "expected_answer": ["1"] * 400} | columns
        pq.write_table(pa.table({name: column for name, column in rows.items() if column}), path)

    return write


ROW = jsonl(problem="What is 1 + 1?", expected_answer="2")
GOOD = ROW * 400
DATA = {  # what follows 400 good rows, or all of the file if it begins with `=`
    "nothing": (b"=", "the file is empty"),
    "blank lines": (b"=\n \n\n", "bad.jsonl: cannot be read as json"),
    "no JSON": (b"{not json\n", "line 401: not JSON (Expecting property name"),
    "a last line cut short": (ROW[:-9], "line 401: not JSON (Unterminated string"),
    "commas between rows": (b"=" + GOOD.replace(b"\n", b",\n"), "line 1: not JSON (Extra data"),
    "a list": (b"[1]\n", "line 401: lacks the field 'problem'"),
    "a number": (b"3\n", "line 401: lacks the field 'problem'"),
    "a string": (b'"x"\n', "line 401: lacks the field 'problem'"),
    "null": (b"null\n", "line 401: lacks the field 'problem'"),
    "only lists": (b"=" + b"[1]\n" * 400, "line 1: lacks the field 'problem'"),
    "only numbers": (b"=" + b"3\n" * 400, "line 1: lacks the field 'problem'"),
    "a table in one object": (
        b'={"data": [' + ROW.strip() + b"]}",
        "line 1: lacks the field 'problem'",
    ),
    "a missing field": (jsonl(problem="q"), "line 401: lacks the field 'expected_answer'"),
    "no row with the field": (
        b"=" + jsonl(question="q", expected_answer="1"),
        "lacks the field 'problem'",
    ),
    "an empty field": (
        jsonl(problem="q", expected_answer=""),
        "line 401: lacks the field 'expected_answer'",
    ),
    "a null": (jsonl(problem=None, expected_answer="1"), "line 401: lacks the field 'problem'"),
    "spaces": (
        jsonl(problem=" \u00a0\u3000", expected_answer="1"),
        "line 401: lacks the field 'problem'",
    ),
    "a list in a field": (
        jsonl(problem=["q"], expected_answer="1"),
        "line 401: lacks the field 'problem', as text",
    ),
    "an object in a field": (
        jsonl(problem={"q": 1}, expected_answer="1"),
        "line 401: lacks the field 'problem'",
    ),
    "a truth value": (
        jsonl(problem="q", expected_answer=True),
        "line 401: lacks the field 'expected_answer', as text",
    ),
    "only objects": (
        b"=" + jsonl(problem={"q": "1"}, expected_answer="1") * 400,
        "line 1: lacks the field 'problem'",
    ),
    # `datasets` would make JSON of all the others: 2 becomes "2", with the quotes
    "a number among texts": (
        jsonl(problem="q", expected_answer=5),
        "'expected_answer' must be text in every row",
    ),
    "nan": (
        jsonl(problem="q", expected_answer=float("nan")),
        "'expected_answer' must be text in every row",
    ),
    "only nan": (
        b"=" + jsonl(problem="q", expected_answer=float("nan")) * 400,
        "'expected_answer' must be text",
    ),
    # and of these 2020-01-01 00:00:00, and 1e+33
    "only dates": (
        b"=" + jsonl(problem="q", expected_answer="2020-01-01") * 400,
        "'expected_answer' must be text",
    ),
    "long numbers": (
        b"=" + jsonl(problem="q", expected_answer=10**33 + 1) * 400,
        "'expected_answer' must be text",
    ),
    "Latin-1": (
        b'{"problem": "\xe9", "expected_answer": "1"}\n',
        "line 401: not JSON ('utf-8' codec can't decode",
    ),
    "UTF-16": (
        b"=" + GOOD.decode().encode("utf-16"),
        "line 1: not JSON ('utf-8' codec can't decode",
    ),
    "NUL bytes": (b"\0\0\0\n", "line 401: not JSON"),
    "only NUL bytes": (b"=" + b"\0" * 4096, "line 1: not JSON"),
    "a NUL in a text": (
        b'{"problem": "a\0b", "expected_answer": "1"}\n',
        "line 401: not JSON (Invalid control",
    ),
    "half a surrogate pair": (
        b'{"problem": "\\ud800", "expected_answer": "1"}\n',
        "surrogate pair",
    ),
    "a field twice": (
        b'{"problem": "a", "problem": "b", "expected_answer": "1"}\n',
        "specified twice in row 400",
    ),
    "nested deeply": (
        b'{"problem": ' + b"[" * 10**5 + b"]" * 10**5 + b"}\n",
        "line 401: not JSON (maximum recursion",
    ),
    # `datasets` would unpack these, and find the old contents when the file has changed
    "compressed": (
        b"=" + gzip.compress(GOOD),
        "line 1: not JSON ('utf-8' codec can't decode byte 0x8b",
    ),
    "a picture": (b"=\x89PNG\r\n\x1a\n" + bytes(range(256)), "line 1: not JSON"),
    "few rows": (b"=" + ROW * 23, "has 23 problems, and one step draws 24"),
}
PARQUET = {
    "cut short": (
        lambda path: path.write_bytes(path.read_bytes()[:-50]),
        "bad.parquet: cannot be read as parquet: Parq",
    ),
    "damaged": (
        lambda path: path.write_bytes(path.read_bytes()[:40] + b"\xff" * 60),
        "cannot be read as parquet",
    ),
    "text": (lambda path: path.write_bytes(GOOD), "bad.parquet: is no parquet file"),
    "no answers": (table(expected_answer=None), "bad.parquet: lacks the field 'expected_answer'"),
    "a null": (
        table(problem=["q"] * 399 + [None]),
        "'problem' must be text in every row (not blank, no date)",
    ),
    "a blank": (
        table(problem=["q"] * 399 + [" "]),
        "'problem' must be text in every row (not blank, no date)",
    ),
    "lists": (table(problem=[["q"]] * 400), "'problem' must be text in every row"),
    "bytes": (table(problem=[b"\xff"] * 400), "bad.parquet"),
    "dates": (
        table(expected_answer=pa.array([1] * 400, pa.timestamp("s"))),
        "'expected_answer' must be text",
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_data(case, tmp_path, tiny_model, tiny_data):
    rows, says = DATA[case]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(rows[1:] if rows[:1] == b"=" else GOOD + rows)
    refused(
        tmp_path, "--train_data", path, says=("bad.jsonl", says), model=tiny_model, data=tiny_data
    )


@pytest.mark.parametrize("case", PARQUET)
def test_parquet(case, tmp_path, tiny_model, tiny_data):
    spoil, says = PARQUET[case]
    table()(tmp_path / "bad.parquet")
    spoil(tmp_path / "bad.parquet")
    refused(
        tmp_path,
        "--val_data",
        tmp_path / "bad.parquet",
        says=says,
        model=tiny_model,
        data=tiny_data,
    )


@pytest.mark.parametrize("name", ["bad.csv", "bad.jsonl.gz", "bad", "bad.JSONL"])
def test_suffixes(name, tmp_path, tiny_model, tiny_data):
    (tmp_path / name).write_bytes(GOOD)
    says = f"{name}: expected a .jsonl or .parquet file"
    refused(tmp_path, "--train_data", tmp_path / name, says=says, model=tiny_model, data=tiny_data)


# A mark of the order of bytes, Windows line ends, no last line end, a JSON list, numbers as answers, a long line, a NUL
# escaped, two rows on a line: what they say is clear.
FINE = {
    "mark": (b"\xef\xbb\xbf" + GOOD, "2"),
    "Windows": (GOOD.replace(b"\n", b"\r\n"), "2"),
    "no last line end": (GOOD[:-1], "2"),
    "two on a line": (ROW.strip() + GOOD, "2"),
    "list": (json.dumps([json.loads(ROW)] * 400).encode(), "2"),
    "whole numbers": (jsonl(problem="q", expected_answer=0) * 400, "0"),
    "numbers": (
        jsonl(problem="q", expected_answer=3) + jsonl(problem="q", expected_answer=0.5) * 400,
        "0.5",
    ),
    "long line": (GOOD + jsonl(problem="x" * 20_000_000, expected_answer="2"), "2"),
    "NUL": (jsonl(problem="q", expected_answer="a\0b") * 400, "a\0b"),
}


@pytest.mark.parametrize("case", FINE)
def test_data_that_is_fine(case, tmp_path):
    rows, answer = FINE[case]
    (tmp_path / "fine.jsonl").write_bytes(rows)
    problems = train.Problems(tmp_path / "fine.jsonl")
    assert len(problems) >= 400 and problems.answer(len(problems) - 1) == answer


# ---- model folders


def settings(file, **changes):
    """A change of a JSON file in the folder; None takes a setting out."""

    def spoil(folder):
        old = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        new = {name: value for name, value in (old | changes).items() if value is not None}
        (folder / file).write_text(json.dumps(new))

    return spoil


def text(file, content):
    return lambda folder: (folder / file).write_text(content)


def gone(file):
    return lambda folder: (folder / file).unlink()


def cut(file, size):
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:size])


def weights(change):
    def spoil(folder):
        save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})

    return spoil


def several(*spoilers):
    return lambda folder: [spoil(folder) for spoil in spoilers]


def own_code(folder):
    """A model whose class comes in a file beside it, which leaves a mark when it is run."""
    (folder / "own.py").write_text(
        f"open({str(folder / 'RUN')!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
    )
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    settings("config.json", model_type="own", auto_map=names)(folder)


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (str(self.path),)


def only_pickle(folder):
    (folder / WEIGHTS).unlink()
    torch.save({"lm_head.weight": Touch(folder / "RUN")}, folder / "pytorch_model.bin")


def a_part_lost(folder):
    every = dict.fromkeys(load_file(folder / WEIGHTS), "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": every})
    )
    (folder / WEIGHTS).rename(folder / "model-00002-of-00002.safetensors")


WEIGHTS = "model.safetensors"
GATE = "model.layers.0.mlp.gate_proj.weight"  # a teacher's has no "model."
CONFIG, TOKENIZER, TOKENS = "config.json", "tokenizer.json", "tokenizer_config.json"
NO_FOLDER, NOT_LOADED, TOO_MANY = (
    "is no Hugging Face model folder: ",
    "cannot be loaded: ",
    " tokens, its model only ",
)
SMALL = {
    "vocab_size": 99,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
CANNOT = " cannot generate here: TypeError: "
STUDENTS_OWN = ("no end token", "an end that is no token", "a window")  # no matter in a teacher
T5 = {"vocab_size": 99, "d_model": 16, "d_kv": 8, "d_ff": 8, "num_layers": 1, "num_heads": 2}
MODELS = {
    "not there": (shutil.rmtree, "is no folder and cannot be had from the hub"),
    "empty": (several(shutil.rmtree, Path.mkdir), NO_FOLDER),
    "no config": (gone(CONFIG), NO_FOLDER),
    "a config cut short": (cut(CONFIG, 50), NO_FOLDER),
    "a config that is a list": (text(CONFIG, "[1]"), NO_FOLDER),
    "text for a width": (settings(CONFIG, hidden_size="x"), (NO_FOLDER, "hidden_size")),
    "fewer layers than none": (
        settings(CONFIG, num_hidden_layers=-1),
        (NO_FOLDER, "num_hidden_layers"),
    ),
    "another vocabulary": (
        settings(CONFIG, vocab_size=200),
        "embed_tokens.weight', or have it in another shape",
    ),
    "no heads": (settings(CONFIG, num_attention_heads=0), NOT_LOADED),
    "an unknown activation": (settings(CONFIG, hidden_act="nope"), NOT_LOADED + "'nope'"),
    "an unknown type of numbers": (settings(CONFIG, dtype="float77"), (NO_FOLDER, "float77")),
    "quantised": (
        settings(CONFIG, quantization_config={"quant_method": "gptq", "bits": 4}),
        (NOT_LOADED, "optimum"),
    ),
    "an unknown architecture": (
        settings(CONFIG, model_type="unheard"),
        (NO_FOLDER, "model type `unheard`"),
    ),
    "an encoder-decoder": (
        lambda folder: T5Config(**T5).save_pretrained(folder),
        "spoilt",
    ),
    "an encoder": (
        lambda folder: BertConfig(**SMALL).save_pretrained(folder),
        "embeddings.LayerNorm.bias', or have it in another shape",
    ),
    "code of its own": (own_code, (NO_FOLDER, "contains custom code")),
    "no weights": (gone(WEIGHTS), "has no weights: no .safetensors file in the folder"),
    "only a pickle": (only_pickle, "has no weights: no .safetensors file in the folder"),
    "weights cut short": (cut(WEIGHTS, -100), (NOT_LOADED, "incomplete")),
    "weights of no size": (cut(WEIGHTS, 0), (NOT_LOADED, "header too small")),
    "a pointer to weights": (
        text(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"),
        (NOT_LOADED, "header"),
    ),
    "a part lost": (a_part_lost, (NOT_LOADED, "model-00001-of-00001.safetensors")),
    "a weight lost": (
        weights(lambda w: {k: v for k, v in w.items() if k != GATE}),
        "layers.0.mlp.gate_proj.weight', or have it",
    ),
    "a weight of another shape": (
        weights(lambda w: w | {GATE: w[GATE][:-1].clone()}),
        "layers.0.mlp.gate_proj.weight', or have it",
    ),
    "a weight that is NaN": (
        weights(lambda w: w | {GATE: w[GATE] * torch.nan}),
        ("are not finite: ", "layers.0.mlp.gate_proj.weight"),
    ),
    "no tokenizer": (several(gone(TOKENIZER), gone(TOKENS)), "its tokenizer has no vocabulary"),
    "a tokenizer cut short": (cut(TOKENIZER, 100), NO_FOLDER),
    "a tokenizer that is a list": (text(TOKENIZER, "[]"), NO_FOLDER),
    "an unknown kind of tokenizer": (text(TOKENIZER, '{"model": {"type": "x"}}'), NO_FOLDER),
    "settings that are a list": (text(TOKENS, "[]"), NO_FOLDER),
    "no pad token": (
        settings(TOKENS, pad_token=None),
        "has no pad token: set tokenizer.pad_token and save it again",
    ),
    "no end token": (
        several(
            gone("generation_config.json"),
            settings(TOKENS, eos_token=None),
            settings(CONFIG, eos_token_id=None),
        ),
        "has no end token: set tokenizer.eos_token and save it again",
    ),
    "a new pad token": (settings(TOKENS, pad_token="<new>"), "has 100" + TOO_MANY + "99"),
    "an end that is no token": (settings("generation_config.json", eos_token_id="x"), CANNOT),
    "little room": (settings(CONFIG, max_position_embeddings=20), " tokens, but"),
    "a window": (
        settings(CONFIG, use_sliding_window=True, sliding_window=8),
        "attends to the last 8 tokens only",
    ),
}


@pytest.mark.parametrize("flag", ["--model", "--teacher_model"])
@pytest.mark.parametrize("case", MODELS)
def test_models(case, flag, tmp_path, tiny_model, tiny_data):
    spoil, says = MODELS[case]
    folder = tmp_path / "spoilt"
    shutil.copytree(tiny_model, folder)
    spoil(folder)
    if flag == "--teacher_model" and case in STUDENTS_OWN:
        return train.check_teacher(str(folder), 36)
    line = refused(tmp_path, flag, folder, says=says, model=tiny_model, data=tiny_data)
    assert str(folder) in line and not (folder / "RUN").exists()


def test_a_folder_with_code_that_is_not_needed_runs_none_of_it(tmp_path, tiny_model):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    own_code(folder)
    settings(CONFIG, model_type="qwen3")(folder)
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "own.py", folder / "custom_generate/generate.py")
    torch.save({"a": Touch(folder / "RUN")}, folder / "pytorch_model.bin")
    train.rollout.check_model(str(folder), 36)
    train.Generator(str(folder), torch.device("cpu"), train.AutoTokenizer.from_pretrained(folder))
    assert not (folder / "RUN").exists()


@pytest.mark.parametrize(
    "template", ["{% for m in", "{{ raise_exception('no') }}", "{{ messages[9].content }}"]
)
def test_chat_templates(template, tmp_path, tiny_model, tiny_data):
    shutil.copytree(tiny_model, tmp_path / "model")
    settings(TOKENS, chat_template=template)(tmp_path / "model")
    flags = ("--model", tmp_path / "model", "--chat_template")
    refused(
        tmp_path,
        *flags,
        says="the tokenizer cannot make a prompt: ",
        model=tiny_model,
        data=tiny_data,
    )


# ---- run folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_model, tiny_data):
    """A run of two steps, the teacher in its process, with a checkpoint at each."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(folder, model=tiny_model, data=tiny_data)[0] == 0
    return folder


def lines(name, change):
    """Another list of lines in place of the lines of a log."""

    def spoil(run):
        (run / name).write_text("".join(change((run / name).read_text().splitlines(keepends=True))))

    return spoil


def forged(name, make):
    """A file of both checkpoints as somebody else may have made it, with its digest in the manifest."""

    def spoil(run):
        for folder in (run / "checkpoints").iterdir():
            make(folder / name)
            manifest = json.loads((folder / "manifest.json").read_text())
            manifest[name] = train.digest(folder / name)
            (folder / "manifest.json").write_text(json.dumps(manifest))

    return spoil


def marks(path):
    return Touch(path.parents[2] / "RUN" if path.name == "sampler.pt" else path.parents[3] / "RUN")


def without_teacher(run):
    for folder in (run / "checkpoints").iterdir():
        shutil.rmtree(folder / "teacher")


def no_checkpoint_intact(run):
    for folder in (run / "checkpoints").iterdir():
        cut("sampler.pt", -7)(folder)


PUT_BACK = "put it back, or choose another --out"
LOST = "no checkpoint there is intact; to start again choose another"
DELETE = "delete it to go on from the one before it"
METRICS, SELECTIONS = "metrics.jsonl", "selections.jsonl"
RUNS = {
    "a config cut short": (cut(CONFIG, 50), ("config.json is damaged", PUT_BACK)),
    "a config that is a list": (text(CONFIG, "[1]"), ("config.json is damaged", PUT_BACK)),
    "a config that is no text": (
        lambda run: (run / CONFIG).write_bytes(b"\xff\xfe"),
        ("config.json is damaged", PUT_BACK),
    ),
    "a damaged line": (
        lines(METRICS, lambda rows: [rows[0], "{\n", *rows[1:]]),
        "metrics.jsonl, line 2: damaged",
    ),
    "a line that is a number": (
        lines(METRICS, lambda rows: ["3\n", *rows]),
        ("metrics.jsonl is damaged", PUT_BACK),
    ),
    "a gap": (
        lines(METRICS, lambda rows: [rows[0], rows[2]]),
        ("metrics.jsonl lacks a step before 2", PUT_BACK),
    ),
    "a line twice": (
        lines(METRICS, lambda rows: [*rows[:2], *rows[1:]]),
        ("metrics.jsonl lacks a step", PUT_BACK),
    ),
    "no metrics": (gone(METRICS), ("metrics.jsonl lacks a step before 2", PUT_BACK)),
    "a damaged selection": (
        lines(SELECTIONS, lambda rows: ["{\n", *rows]),
        "selections.jsonl, line 1: damaged",
    ),
    "a selection of no step": (
        lines(SELECTIONS, lambda rows: ["{}\n", *rows]),
        ("selections.jsonl is damaged", PUT_BACK),
    ),
    "a damaged sample": (
        lines("samples.jsonl", lambda rows: ["{\n", *rows]),
        "samples.jsonl, line 1: damaged",
    ),
    "no checkpoint intact": (no_checkpoint_intact, LOST),
    "no teacher in it": (without_teacher, LOST),
    "code in sampler.pt": (
        forged("sampler.pt", lambda path: torch.save(marks(path), path)),
        ("Weights only", DELETE),
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_runs(case, whole, tmp_path, tiny_model, tiny_data):
    spoil, says = RUNS[case]
    shutil.copytree(whole, tmp_path / "run")
    spoil(tmp_path / "run")
    refused(tmp_path, "--steps", 3, says=says, model=tiny_model, data=tiny_data)
    assert not (tmp_path / "RUN").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--seed 1", "belongs to another configuration: seed 0 there, 1 here"),
        (
            "--sampler softmax",
            "belongs to another configuration: sampler 'goldilocks' there, 'softmax' here",
        ),
        (
            "--epsilon 0.3 --kl_coef 0.1",
            "configuration: kl_coef 0.0 there, 0.1 here; epsilon 0.2 there, 0.3 here",
        ),
        ("--steps 1", "--steps 1: the run in"),
        ("--lr_schedule linear", "lr_schedule 'constant' there, 'linear' here"),
        ("--keep 0", "--keep 0: must be in [1, "),
    ],
)
def test_another_run_in_the_folder(flags, says, whole, tiny_model, tiny_data):
    refused(whole.parent, *flags.split(), says=says, model=tiny_model, data=tiny_data)


def test_other_steps_where_the_rate_depends_on_them(tmp_path, tiny_model, tiny_data):
    where = {"model": tiny_model, "data": tiny_data}
    linear = ("--lr_schedule", "linear", "--steps")
    assert main(tmp_path / "run", *linear, 1, **where)[0] == 0
    refused(
        tmp_path,
        *linear,
        2,
        says="belongs to another configuration: steps 1 there, 2 here",
        **where,
    )


def test_data_that_has_changed(whole, tmp_path, tiny_model, tiny_data):
    shutil.copytree(tiny_data, tmp_path / "data")
    path = tmp_path / "data/train.jsonl"
    config = json.loads((whole / CONFIG).read_text()) | {"train_data": str(path)}
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / CONFIG).write_text(json.dumps(config))
    path.write_text(path.read_text().replace("What is 20", "How much is 20"))
    says = "belongs to another configuration: train_data_crc32"
    refused(tmp_path, "--train_data", path, says=says, model=tiny_model, data=tiny_data)


def test_a_folder_that_another_job_writes_to(whole, tiny_model, tiny_data):
    run = train.Run(parse(*command(whole, model=tiny_model, data=tiny_data)), None)
    run.lock()
    refused(
        whole.parent,
        says="another job is writing there; end it, or choose another",
        model=tiny_model,
        data=tiny_data,
    )
    os.close(run.locked)


# ---- what only shows on the way, and many ranks


@pytest.mark.slow
def test_what_the_teachers_rank_finds_is_said_by_it_alone(tmp_path, tiny_model, tiny_data):
    """The students only notice that it has gone, and must not say that the same command would go on."""
    flags = ("--max_prompt_tokens", 12, "--teacher_ranks", 1)
    output = shell(tmp_path / "run", *flags, ranks=2, model=tiny_model, data=tiny_data, code=2)
    assert output.count("fit the prompt limit") == output.count("error: ") == 1


def test_questions_that_do_not_fit(tmp_path, tiny_model, tiny_data):
    """Known only when they have been tokenised. The folder is there by then; nothing of an earlier run is in it."""
    code, _, err = main(
        tmp_path / "run", "--max_prompt_tokens", 12, model=tiny_model, data=tiny_data
    )
    assert code == 2 and "fit the prompt limit" in err and "raise --max_prompt_tokens" in err
    assert err.count("error: ") == 1 and "Traceback" not in err and "\nerror: " in "\n" + err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--train_data", "none.jsonl"), "none.jsonl: no such data file"),
        (("--teacher_ranks", 2), "leaves no student"),
    ],
)
def test_many_ranks_say_it_once(flags, says, tmp_path, tiny_model, tiny_data):
    output = shell(tmp_path / "run", *flags, ranks=2, model=tiny_model, data=tiny_data, code=2)
    assert output.count(says) == output.count("error: ") == 1  # torchrun adds a report of its own
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_line_from_the_shell(tmp_path, tiny_model, tiny_data):
    (tmp_path / "bad.jsonl").write_text("{\n")
    output = shell(
        tmp_path / "run",
        "--val_data",
        tmp_path / "bad.jsonl",
        model=tiny_model,
        data=tiny_data,
        code=2,
    )
    assert (
        output.startswith("error: ")
        and output.count("\n") == 1
        and "bad.jsonl, line 1: not JSON" in output
    )
