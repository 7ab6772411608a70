"""Bad input of every kind: one line that says what is wrong and what to do; nothing is written.

A table for each thing that may be wrong: flags, data files, model folders, run folders. A case is
what is spoilt and what the line must say. The last tests run train.py whole: exit status 2.
"""

import gzip
import json
import logging
import os
import shutil
import signal
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import plumbing.distributed.layout
import train
from plumbing.distributed.layout import begin_process
from plumbing.files import digest
from plumbing.problems import Problems
from plumbing.run_dir import RunDir
from tests.helpers.ranks import command, contents, launch, parse, run, shell


def assert_one_line(text, says):
    assert all(part in text for part in says)
    assert text.startswith("error: ") and text.count("\n") == 1 and text.endswith("\n"), text


@pytest.fixture
def quiet(capsys, monkeypatch):
    """What train.py does first, and that nothing is printed but the line."""
    begin_process()
    for name in ("transformers", "datasets", "torch"):  # they hold on to an earlier stream
        handlers = [logging.StreamHandler(sys.stderr)]
        monkeypatch.setattr(logging.getLogger(name), "handlers", handlers)
    yield
    assert capsys.readouterr() == ("", "")


@contextmanager
def refusal(says):
    """What is called within raises an error of one line, with these words."""
    with pytest.raises((ValueError, OSError)) as error:
        yield
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.fixture
def there(tiny_model, tiny_data):
    return {"model": tiny_model, "data": tiny_data}


# ---- flags

FLAGS = {
    "--step 5": "unrecognized arguments: --step 5 (see --help)",  # abbreviated
    "--preset gpt": "--preset gpt: choose from qwen2.5-1.5b, olmo2-1b",
    "--epsilon nan": "argument --epsilon: nan: must be in [0, 1]",
    "--sampler softmax --epsilon 0.1": "--epsilon: the sampler softmax does not use it",
    "--sampler category": "--sampler category needs --column, the name of a column",
    "--sampler uniform --teacher_lag 0": "--teacher_lag: the sampler uniform has no teacher",
}


@pytest.mark.parametrize("flags", FLAGS)
def test_flags(flags):
    with refusal(FLAGS[flags]):
        parse(*flags.split())


CHECKED = {
    "--sampler static --column lvl": "has no column 'lvl' for --column; it has none",
    "--candidates 100": "has 400 problems, and one step draws 600",
    "--max_completion_tokens 5000": "may take 5032 tokens, but",
    "--max_prompt_tokens 5": "--max_prompt_tokens 5: a prompt takes 9 tokens already",
    "--chat_template": "--chat_template: this model's tokenizer has no chat template",
    "--prompt_header \udcff": "the tokenizer cannot make a prompt",  # bytes that are not UTF-8
    "--train_data none.jsonl": "none.jsonl: no such data file (--train_data, --val_data)",
    "--val_data LICENSE": "LICENSE: expected a .jsonl or .parquet file",
    "--model nowhere/no": "'nowhere/no' is no folder and cannot be had from the hub",
    "--teacher_model nowhere/no": "'nowhere/no' is no folder and cannot be had from the hub",
}


@pytest.mark.parametrize("flags", CHECKED)
def test_what_is_looked_at_before_the_first_step(flags, tmp_path, there, quiet):
    config = train.parse(command(tmp_path / "run", *flags.split(" "), **there))
    with refusal(CHECKED[flags]):
        train.check(config, RunDir(config, train.Layout(config), {}))
    assert contents(tmp_path) == {}


# ---- data files


def row(problem="q", answer="1"):
    return json.dumps({"problem": problem, "expected_answer": answer}).encode() + b"\n"


def table(**columns):
    def write(path):
        rows = {"problem": ["q"] * 400, "expected_answer": ["1"] * 400} | columns
        pq.write_table(pa.table({name: column for name, column in rows.items() if column}), path)

    return write


GOOD = row("What is 1 + 1?", "2") * 400
NOT_JSON, LACKS, TEXT = "not JSON (", "lacks the field 'problem'", " must be text in every row"
NO_ANSWER, ANSWER = "line 401: lacks the field 'expected_answer'", "'expected_answer'" + TEXT
DEEP = b'{"problem": ' + b"[" * 10**5 + b"]" * 10**5 + b"}\n"
DATA = {  # what follows 400 good rows, or all of the file if it begins with `=`
    "nothing": (b"=", "the file is empty"),
    "a line cut short": (b"\n" + row()[:-9], f"line 402: {NOT_JSON}Unterminated string"),
    "a table in one object": (b'={"data": [' + row().strip() + b"]}", f"line 1: {LACKS}"),
    "a list": (b"[1, 2]\n", f"line 401: {LACKS}, as text or a number"),
    "a blank": (row("\u00a0\t"), f"line 401: {LACKS}"),
    "a truth value": (row("q", True), NO_ANSWER),
    "a number among texts": (row("q", 2), ANSWER),
    "a date": (b"=" + row("q", "2024-01-01") * 400, "no date"),  # how Arrow reads it
    # `datasets` would make JSON of all the others: 2 becomes "2", with the quotes
    "long numbers": (b"=" + row("q", 10**33 + 1) * 400, ANSWER),  # and of these 1e+33
    "Latin-1": (row("?").replace(b"?", b"\xe9"), f"line 401: {NOT_JSON}'utf-8' codec"),
    "a NUL in a text": (row("?").replace(b"?", b"\0"), f"line 401: {NOT_JSON}Invalid control"),
    "half a surrogate pair": (row("?").replace(b"?", b"\\ud800"), "surrogate pair"),
    "a field twice": (row().replace(b"{", b'{"problem": "a", '), "specified twice in row 400"),
    "nested deeply": (DEEP, f"line 401: {NOT_JSON}maximum recursion"),
    # `datasets` would unpack these, and find the old contents when the file has changed
    "compressed": (b"=" + gzip.compress(GOOD), f"line 1: {NOT_JSON}'utf-8' codec"),
    # What these say is clear, and they are taken.
    "a byte order mark": (b"=\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n"), None),
    "a JSON list": (b"=" + json.dumps([json.loads(row())] * 400).encode(), None),
    "numbers": (b"=" + row("q", 3) + row("q", 0.5) * 400, None),
    "a long line": (row("x" * 20_000_000, "2"), None),
    "an escaped NUL": (row("q", "a\0b"), None),
}
PARQUET = {
    "cut short": (lambda p: p.write_bytes(p.read_bytes()[:-50]), "cannot be read as parquet: Parq"),
    "text": (lambda p: p.write_bytes(GOOD), "bad.parquet: is no parquet file"),
    "no answers": (table(expected_answer=None), "bad.parquet: lacks the field 'expected_answer'"),
    "blank": (table(problem=["q"] * 399 + [" "]), "'problem'" + TEXT + " (not blank, no date)"),
    "dates": (table(expected_answer=pa.array([1] * 400, pa.timestamp("s"))), ANSWER),
}


@pytest.mark.parametrize("case", [*DATA, *PARQUET])
def test_data(case, tmp_path, quiet):
    if case in DATA:
        path, (rows, says) = tmp_path / "bad.jsonl", DATA[case]
        path.write_bytes(rows[1:] if rows[:1] == b"=" else GOOD + rows)
    else:
        path, (spoil, says) = tmp_path / "bad.parquet", PARQUET[case]
        table()(path)
        spoil(path)
    with refusal(says) if says else nullcontext():
        assert len(Problems(path)) >= 400


# ---- model folders


def put(path, new):
    """The file's bytes become `new`; with a number they are cut there."""
    path.write_bytes(path.read_bytes()[:new] if isinstance(new, int) else new)


def change(path, **settings):
    """Other settings in a JSON file; None takes one out."""
    new = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({name: value for name, value in new.items() if value is not None}))


def gate(folder, new):
    """One of the weights becomes new(weight), or is gone."""
    weights = load_file(folder / WEIGHTS)
    name = "model.layers.0.mlp.gate_proj.weight"  # a teacher's has no "model."
    weights[name] = new(weights[name])
    left = {name: weight for name, weight in weights.items() if weight is not None}
    save_file(left, folder / WEIGHTS, metadata={"format": "pt"})


def own_code(folder):
    """A model whose class comes in a file beside it, which leaves a mark when it is run."""
    mark = f"open({str(folder / 'RUN')!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
    (folder / "own.py").write_text(mark)
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    change(folder / CONFIG, model_type="own", auto_map=names)


def no_end(folder):
    change(folder / TOKENS, eos_token=None)
    change(folder / CONFIG, eos_token_id=None)
    change(folder / OWN, eos_token_id=None)


WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
TOKENS, OWN = "tokenizer_config.json", "generation_config.json"
NO_FOLDER, NOT_LOADED = "is no Hugging Face model folder: ", "cannot be loaded: "
NO_WEIGHTS = "has no weights: no .safetensors file in the folder"
LOST_GATE = "layers.0.mlp.gate_proj.weight', or have it in another shape"
WINDOW = {"use_sliding_window": True, "sliding_window": 8}
MODELS = {
    "a config cut short": (lambda f: put(f / CONFIG, 50), NO_FOLDER),
    "a vocabulary": (lambda f: change(f / CONFIG, vocab_size=200), "embed_tokens.weight', or"),
    "an activation": (lambda f: change(f / CONFIG, hidden_act="nope"), NOT_LOADED + "'nope'"),
    "an architecture": (lambda f: change(f / CONFIG, model_type="x"), "model type `x`"),
    "code of its own": (own_code, "contains custom code"),
    "only a pickle": (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"), NO_WEIGHTS),
    "little room": (lambda f: change(f / CONFIG, max_position_embeddings=20), " tokens, but"),
    "weights cut short": (lambda f: put(f / WEIGHTS, -100), NOT_LOADED),
    "a weight lost": (lambda f: gate(f, lambda w: None), LOST_GATE),
    "a weight that is NaN": (lambda f: gate(f, lambda w: w * torch.nan), "are not finite: "),
    "no tokenizer": (lambda f: [(f / x).unlink() for x in (TOKENIZER, TOKENS)], "no vocabulary"),
    "no pad token": (lambda f: change(f / TOKENS, pad_token=None), "has no pad token: set tok"),
    "a new pad token": (lambda f: change(f / TOKENS, pad_token="<n>"), "has 100 tokens, its model"),
    "no end token": (no_end, "has no end token: set tokenizer.eos_token and save it again"),
    "no such end": (lambda f: change(f / OWN, eos_token_id="x"), "cannot generate here: TypeError"),
    "a window": (lambda f: change(f / CONFIG, **WINDOW), "attends to the last 8 tokens only"),
}
NO_MATTER_IN_A_TEACHER = ("no end token", "no such end", "a window")


@pytest.mark.parametrize("case", MODELS)
def test_models(case, tmp_path, tiny_model, quiet):
    spoil, says = MODELS[case]
    folder = tmp_path / "spoilt"
    shutil.copytree(tiny_model, folder)
    spoil(folder)
    with refusal(says):
        train.check_model(str(folder), 36)
    with nullcontext() if case in NO_MATTER_IN_A_TEACHER else refusal(says):
        train.check_teacher(str(folder), 36)
    assert not (folder / "RUN").exists()


def test_a_folder_with_code_that_is_not_needed_runs_none_of_it(tmp_path, tiny_model):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    own_code(folder)
    change(folder / CONFIG, model_type="qwen3")
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "own.py", folder / "custom_generate/generate.py")
    train.check_model(str(folder), 36)
    train.Generator(str(folder), torch.device("cpu"), train.AutoTokenizer.from_pretrained(folder))
    assert not (folder / "RUN").exists()


# ---- run folders


def open_run(folder, *flags, **where):
    config = train.parse(command(folder, *flags, **where))
    run = RunDir(config, train.Layout(config), {})
    try:
        return run.open()
    finally:
        if hasattr(run, "locked"):
            os.close(run.locked)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_model, tiny_data):
    """A run of two steps, the teacher in its process, with a checkpoint at each."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    flags = ("--steps", 2, "--checkpoint_every", 1, "--max_completion_tokens", 32)
    run(folder, *flags, model=tiny_model, data=tiny_data)
    return folder


OUT = {
    "file": "file is a file; choose a folder",
    "file/run": "cannot be used (Not a directory): choose another",
    "a" * 300: "cannot be used (File name too long): choose another",
    ".": "the folder is not empty and holds no run; choose another",
}


@pytest.mark.parametrize("name", OUT)
def test_out(name, tmp_path, there):
    (tmp_path / "file").write_text("mine")
    before = contents(tmp_path)
    with refusal(OUT[name]):
        open_run(tmp_path / name, **there)
    assert contents(tmp_path) == before


def cut_each(run):
    for path in run.glob("checkpoints/*/sampler.pt"):
        put(path, -7)


def forge(run):
    """As somebody else may have made it: more than data, with its digest in the manifest."""
    for path in run.glob("checkpoints/*/sampler.pt"):
        torch.save(Path("any class"), path)
        change(path.with_name("manifest.json"), **{"sampler.pt": digest(path)})


def linear(run):
    """A rate that depends on the number of all steps."""
    change(run / CONFIG, lr_schedule="linear")


DAMAGED, PUT_BACK = "config.json is damaged (", "put it back, or choose another --out"
LOST = "no checkpoint there is intact; to start again choose another"
METRICS, SELECTIONS = "metrics.jsonl", "selections.jsonl"
LACKS_STEP, OTHER = f"{METRICS} lacks a step before 2: {PUT_BACK}", "another configuration: "
OLDER = "was made by another version of this code (reward is not in it): choose another --out"
RUNS = {  # what is spoilt, what the line says, the flags
    "a config cut short": (lambda run: put(run / CONFIG, 50), DAMAGED),
    "a number": (lambda run: put(run / METRICS, b"3\n"), f"{METRICS} is damaged: {PUT_BACK}"),
    "a gap": (lambda run: put(run / METRICS, b'{"step": 0}\n{"step": 2}\n'), LACKS_STEP),
    "no metrics": (lambda run: (run / METRICS).unlink(), LACKS_STEP),
    "a torn line": (lambda run: put(run / SELECTIONS, b"{\n{}\n"), f"{SELECTIONS}, line 1: "),
    "no step": (lambda run: put(run / SELECTIONS, b"{}\n"), f"{SELECTIONS} is damaged: {PUT_BACK}"),
    "no checkpoint intact": (cut_each, LOST),
    "code in sampler.pt": (forge, "delete it to go on from the one before it"),
    "older code": (lambda run: change(run / CONFIG, reward=None), OLDER),
    "other data": (lambda run: change(run / CONFIG, val_data_crc32=1), OTHER + "val_data_crc32 1"),
    "another seed": (lambda run: None, OTHER + "seed 0 there, 1 here", "--seed 1"),
    "fewer steps": (lambda run: None, "is at step 2 already", "--steps 1"),
    "linear": (linear, OTHER + "steps 2 there, 3 here", "--lr_schedule linear"),
}


@pytest.mark.parametrize("case", RUNS)
def test_runs(case, whole, tmp_path, there):
    spoil, says, flags = (*RUNS[case], "")[:3]
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    spoil(folder)
    before = contents(folder)
    with refusal(says):
        open_run(folder, "--steps", 3, *flags.split(), **there)
    assert contents(folder) == before


def test_a_folder_that_another_job_writes_to(whole, there):
    """It is not even read: what is there may change at any moment."""
    config = train.parse(command(whole, **there))
    other = RunDir(config, train.Layout(config), {})
    other.lock()
    with refusal("another job is writing there; end it, or choose another"):
        open_run(whole, "--seed", 1, **there)
    os.close(other.locked)
    assert open_run(whole, "--steps", 2, **there) == 2


# ---- train.py whole


def test_data_that_cannot_be_prepared(tmp_path, there):
    """As the hub is out of reach (HF_HUB_OFFLINE)."""
    flags = ("--train_data", "data/math/train.jsonl", "--val_data", "data/math/val.jsonl")
    ended = launch(tmp_path / "run", *flags, before=lambda rank: os.chdir(tmp_path), **there)
    source = "DigitalLearningGmbH/MATH-lighteval"
    why = f"{source}: no such file or folder here, and the Hugging Face hub cannot be read"
    assert_one_line(ended.err, [why, "give a local copy"])
    assert ended.statuses == [2] and contents(tmp_path) == {}


ALL = {  # the flags, what is said
    "--teacher_ranks 2": "leaves no student: at most 1",
    "--train_data a\nb.jsonl": "error: a b.jsonl: no such data file",
    "--sampler uniform --max_prompt_tokens 12": "fit the prompt limit",
}


@pytest.mark.parametrize("flags", ALL)
def test_what_all_ranks_find_is_said_once(flags, tmp_path, there):
    """Also where the one that says it is late, and torchrun means to end it with the other."""

    def late(rank):
        print_error = plumbing.distributed.layout.print_error
        plumbing.distributed.layout.print_error = lambda error: (
            time.sleep(0.3),
            print_error(error),
        )

    ended = launch(tmp_path / "run", *flags.split(" "), ranks=2, before=late, **there)
    assert 2 in ended.statuses and {*ended.statuses} <= {2, -signal.SIGTERM}
    assert ended.err.count("error: ") == ended.err.count(ALL[flags]) == 1


@pytest.mark.slow
def test_the_line_from_the_shell(tmp_path, there):
    (tmp_path / "bad.jsonl").write_text("{\n")
    flags = ("--val_data", tmp_path / "bad.jsonl")
    succeeded, said = shell(command(tmp_path / "run", *flags, **there))
    assert not succeeded and not (tmp_path / "run").exists()
    assert_one_line(said, ["bad.jsonl, line 1: not JSON"])
