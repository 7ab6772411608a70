"""Bad input of every kind: one line that says what is wrong and what to do, nothing written or lost.

A table for each thing that may be wrong: flags, data files, model folders, run folders. A case is
what is spoilt and what the line must say. The functions that look at them are called as they are;
`refused` and the last tests run train.py whole: exit status 2, the line, once.
"""

import gzip
import json
import logging
import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_train import command, launch, parse, run, shell
from transformers import BertConfig, T5Config

import train
from plumbing.files import digest
from plumbing.folder import RunFolder
from plumbing.problems import Problems
from plumbing.ranks import begin_process


def contents(folder):
    """Every path under a folder with the bytes of its file: what must not change."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def assert_one_line(text, says):
    for part in [says] if isinstance(says, str) else says:
        assert part in text
    assert text.startswith("error: ") and text.count("\n") == 1 and text.endswith("\n"), text


def refused(place, *flags, says, folder=None, before=lambda: None, model, data):
    """Runs train.py in a forked rank, the run's folder in `place`, and asserts all that must be true
    of bad input: status 2, one line, nothing else printed, nothing written."""
    was, flags = contents(place), ("--steps", 2, *flags)
    out = data.parent  # the rank's output is written there
    folder = folder or place / "run"
    ended = launch(folder, *flags, model=model, data=data, before=lambda _: before(), place=out)
    assert ended.statuses == [2] and ended.out == "", ended
    assert_one_line(ended.err, says)
    assert contents(place) == was


@pytest.fixture
def quiet(capsys, monkeypatch):
    """What train.py does first, and that nothing is printed but the line."""
    begin_process()
    for name in ("transformers", "datasets", "torch"):  # they hold on to an earlier stream
        handlers = [logging.StreamHandler(sys.stderr)]
        monkeypatch.setattr(logging.getLogger(name), "handlers", handlers)
    yield
    assert capsys.readouterr() == ("", "")


# ---- flags

FLAGS = [
    ("--foo 1", "unrecognized arguments: --foo 1 (see --help)"),
    ("--step 5", "unrecognized arguments: --step 5"),  # abbreviated
    ("5", "unrecognized arguments: 5"),
    ("--column", "argument --column: expected one argument"),
    ("--chat_template yes", "unrecognized arguments: yes"),
    ("--preset gpt", "--preset gpt: choose from qwen2.5-1.5b, olmo2-1b"),
    ("--sampler best", "--sampler best: there are goldilocks, uniform, "),
    ("--loss ppo", "argument --loss: invalid choice: 'ppo'"),
    ("--teacher_lag 2", "argument --teacher_lag: invalid choice: 2"),
    ("--steps ten", "argument --steps: invalid int value: 'ten'"),
    ("--steps 1.5", "argument --steps: invalid int value: '1.5'"),
    ("--steps 0", "--steps: 0: must be in [1, 1000000000]"),
    ("--steps 99999999999999999999", "--steps: 99999999999999999999: must be in"),
    ("--group_size 1", "--group_size: 1: must be in [2, "),
    ("--temperature 0", "--temperature: 0: must be in [0.001, "),
    ("--temperature inf", "--temperature: inf: must be in"),
    ("--epsilon nan", "--epsilon: nan: must be in [0, 1]"),
    ("--learning_rate 1e300", "--learning_rate: 1e300: must be in [0, 1]"),
    ("--seed -1", "--seed: -1: must be in [0, "),
    ("--timeout_minutes 0", "--timeout_minutes: 0: must be in [0.01, "),
    ("--keep 0", "--keep: 0: must be in [1, "),
    ("--teacher_ranks -2", "--teacher_ranks: -2: must be in [-1, "),
    ("--sampler softmax --epsilon 0.1", "--epsilon: the sampler softmax does not use it"),
    ("--column level", "--column: the sampler goldilocks does not use it"),
    ("--sampler category", "--sampler category needs --column, the name of a column"),
    ("--sampler uniform --teacher_lag 0", "--teacher_lag: the sampler uniform has no teacher"),
    ("--sampler uniform --replay_capacity 4", "--replay_capacity: the sampler uniform has no"),
]


@pytest.mark.parametrize(("flags", "says"), FLAGS)
def test_flags(flags, says):
    with pytest.raises(ValueError) as error:
        parse(*flags.split())
    assert says in str(error.value) and "\n" not in str(error.value)


CHECKED = [
    ("--sampler static --column lvl", "has no column 'lvl' for --column; it has none"),
    ("--candidates 100", "has 400 problems, and one step draws 600"),
    ("--max_completion_tokens 5000", "may take 5032 tokens, but"),
    ("--max_prompt_tokens 5", "--max_prompt_tokens 5: a prompt takes 9 tokens already"),
    ("--chat_template", "--chat_template: this model's tokenizer has no chat template"),
    ("--prompt_header \udcff", "the tokenizer cannot make a prompt"),  # bytes that are not UTF-8
    ("--train_data none.jsonl", "none.jsonl: no such data file (--train_data, --val_data)"),
    ("--val_data .", ".: no such data file"),
    ("--model nowhere/no", "'nowhere/no' is no folder and cannot be had from the hub"),
    ("--teacher_model nowhere/no", "'nowhere/no' is no folder and cannot be had from the hub"),
]


@pytest.mark.parametrize(("flags", "says"), CHECKED)
def test_what_is_looked_at_before_the_first_step(
    flags, says, tmp_path, tiny_model, tiny_data, quiet
):
    folder = tmp_path / "run"
    config = train.parse(command(folder, *flags.split(" "), model=tiny_model, data=tiny_data))
    with pytest.raises((ValueError, OSError)) as error:
        train.check(config, RunFolder(config, train.Layout(config), {}))
    assert says in str(error.value) and not folder.exists()


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
    "blank lines": (b"=\n \n\n", "cannot be read as json"),
    "no JSON": (b"{not json\n", f"line 401: {NOT_JSON}Expecting property name"),
    "a line cut short": (row()[:-9], f"line 401: {NOT_JSON}Unterminated string"),
    "commas between rows": (b"=" + GOOD.replace(b"\n", b",\n"), f"line 1: {NOT_JSON}Extra data"),
    "a list": (b"[1]\n", f"line 401: {LACKS}"),
    "null": (b"null\n", f"line 401: {LACKS}"),
    "only numbers": (b"=" + b"3\n" * 400, f"line 1: {LACKS}"),
    "a table in one object": (b'={"data": [' + row().strip() + b"]}", f"line 1: {LACKS}"),
    "a missing field": (b'{"problem": "q"}\n', NO_ANSWER),
    "an empty field": (row("q", ""), NO_ANSWER),
    "a null in a field": (row(None), f"line 401: {LACKS}"),
    "spaces": (row(" \u00a0\u3000"), f"line 401: {LACKS}"),
    "a list in a field": (row(["q"]), f"line 401: {LACKS}, as text or a number"),
    "a truth value": (row("q", True), NO_ANSWER),
    "only objects": (b"=" + row({"q": "1"}) * 400, f"line 1: {LACKS}"),
    # `datasets` would make JSON of all the others: 2 becomes "2", with the quotes
    "a number among texts": (row("q", 5), ANSWER),
    "nan": (row("q", float("nan")), ANSWER),
    # and of these 2020-01-01 00:00:00, and 1e+33
    "only dates": (b"=" + row("q", "2020-01-01") * 400, ANSWER),
    "long numbers": (b"=" + row("q", 10**33 + 1) * 400, ANSWER),
    "Latin-1": (row("?").replace(b"?", b"\xe9"), f"line 401: {NOT_JSON}'utf-8' codec"),
    "UTF-16": (b"=" + GOOD.decode().encode("utf-16"), f"line 1: {NOT_JSON}'utf-8' codec"),
    "only NUL bytes": (b"=" + b"\0" * 4096, f"line 1: {NOT_JSON}"),
    "a NUL in a text": (row("?").replace(b"?", b"\0"), f"line 401: {NOT_JSON}Invalid control"),
    "half a surrogate pair": (row("?").replace(b"?", b"\\ud800"), "surrogate pair"),
    "a field twice": (row().replace(b"{", b'{"problem": "a", '), "specified twice in row 400"),
    "nested deeply": (DEEP, f"line 401: {NOT_JSON}maximum recursion"),
    # `datasets` would unpack these, and find the old contents when the file has changed
    "compressed": (b"=" + gzip.compress(GOOD), f"line 1: {NOT_JSON}'utf-8' codec"),
}
PARQUET = {
    "cut short": (lambda p: p.write_bytes(p.read_bytes()[:-50]), "cannot be read as parquet: Parq"),
    "damaged": (lambda p: p.write_bytes(p.read_bytes()[:40] + b"\xff" * 60), "cannot be read as"),
    "text": (lambda p: p.write_bytes(GOOD), "bad.parquet: is no parquet file"),
    "no answers": (table(expected_answer=None), "bad.parquet: lacks the field 'expected_answer'"),
    "a null": (table(problem=["q"] * 399 + [None]), "'problem'" + TEXT),
    "a blank": (table(problem=["q"] * 399 + [" "]), "'problem'" + TEXT + " (not blank, no date)"),
    "lists": (table(problem=[["q"]] * 400), "'problem'" + TEXT),
    "bytes": (table(problem=[b"\xff"] * 400), "bad.parquet"),
    "dates": (table(expected_answer=pa.array([1] * 400, pa.timestamp("s"))), ANSWER),
}


@pytest.mark.parametrize("case", [*DATA, *PARQUET])
def test_data(case, tmp_path, quiet):
    path = tmp_path / ("bad.jsonl" if case in DATA else "bad.parquet")
    if case in DATA:
        rows, says = DATA[case]
        path.write_bytes(rows[1:] if rows[:1] == b"=" else GOOD + rows)
    else:
        spoil, says = PARQUET[case]
        table()(path)
        spoil(path)
    with pytest.raises(ValueError) as error:
        Problems(path)
    assert path.name in str(error.value) and says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["bad.csv", "bad.jsonl.gz", "bad", "bad.JSONL"])
def test_suffixes(name, tmp_path):
    (tmp_path / name).write_bytes(GOOD)
    with pytest.raises(ValueError, match=rf"{name}: expected a .jsonl or .parquet file"):
        Problems(tmp_path / name)


FINE = {  # what they say is clear, and the last row's answer
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, "2"),
    "Windows": (GOOD.replace(b"\n", b"\r\n"), "2"),
    "no last line end": (GOOD[:-1], "2"),
    "two on a line": (row().strip() + GOOD, "2"),
    "a JSON list": (json.dumps([json.loads(row())] * 400).encode(), "1"),
    "numbers": (row("q", 3) + row("q", 0.5) * 400, "0.5"),
    "a long line": (GOOD + row("x" * 20_000_000, "2"), "2"),
    "an escaped NUL": (row("q", "a\0b") * 400, "a\0b"),
}


@pytest.mark.parametrize("case", FINE)
def test_data_that_is_fine(case, tmp_path):
    rows, answer = FINE[case]
    (tmp_path / "fine.jsonl").write_bytes(rows)
    problems = Problems(tmp_path / "fine.jsonl")
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
    mark = f"open({str(folder / 'RUN')!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
    (folder / "own.py").write_text(mark)
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
    index = {"metadata": {}, "weight_map": every}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / WEIGHTS).rename(folder / "model-00002-of-00002.safetensors")


WEIGHTS, CONFIG = "model.safetensors", "config.json"
TOKENIZER, TOKENS, OWN = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
GATE = "model.layers.0.mlp.gate_proj.weight"  # a teacher's has no "model."
NO_FOLDER, NOT_LOADED = "is no Hugging Face model folder: ", "cannot be loaded: "
NO_WEIGHTS = "has no weights: no .safetensors file in the folder"
LOST_GATE = "layers.0.mlp.gate_proj.weight', or have it in another shape"
SMALL = {"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
T5 = {"vocab_size": 99, "d_model": 16, "d_kv": 8, "d_ff": 8, "num_layers": 1, "num_heads": 2}
GPTQ = {"quant_method": "gptq", "bits": 4}
MODELS = {
    "not there": (shutil.rmtree, "is no folder and cannot be had from the hub"),
    "empty": (several(shutil.rmtree, Path.mkdir), NO_FOLDER),
    "no config": (gone(CONFIG), NO_FOLDER),
    "a config cut short": (cut(CONFIG, 50), NO_FOLDER),
    "a config that is a list": (text(CONFIG, "[1]"), NO_FOLDER),
    "text for a width": (settings(CONFIG, hidden_size="x"), NO_FOLDER),
    "another vocabulary": (settings(CONFIG, vocab_size=200), "embed_tokens.weight', or have it"),
    "no heads": (settings(CONFIG, num_attention_heads=0), NOT_LOADED),
    "an unknown activation": (settings(CONFIG, hidden_act="nope"), NOT_LOADED + "'nope'"),
    "an unknown dtype": (settings(CONFIG, dtype="float77"), NO_FOLDER),
    "quantised": (settings(CONFIG, quantization_config=GPTQ), NOT_LOADED),
    "an unknown architecture": (settings(CONFIG, model_type="unheard"), "model type `unheard`"),
    "an encoder-decoder": (lambda folder: T5Config(**T5).save_pretrained(folder), "spoilt"),
    "an encoder": (
        lambda folder: BertConfig(intermediate_size=8, **SMALL).save_pretrained(folder),
        "embeddings.LayerNorm.bias', or have it in another shape",
    ),
    "code of its own": (own_code, "contains custom code"),
    "no weights": (gone(WEIGHTS), NO_WEIGHTS),
    "only a pickle": (only_pickle, NO_WEIGHTS),
    "weights cut short": (cut(WEIGHTS, -100), NOT_LOADED),
    "weights of no size": (cut(WEIGHTS, 0), NOT_LOADED),
    "a pointer to weights": (text(WEIGHTS, "version https://git-lfs.example/v1\n"), NOT_LOADED),
    "a part lost": (a_part_lost, NOT_LOADED),
    "a weight lost": (weights(lambda w: w.pop(GATE) is None or w), LOST_GATE),
    "a weight cut": (weights(lambda w: w | {GATE: w[GATE][:-1].clone()}), LOST_GATE),
    "a weight that is NaN": (weights(lambda w: w | {GATE: w[GATE] * torch.nan}), "not finite: "),
    "no tokenizer": (several(gone(TOKENIZER), gone(TOKENS)), "its tokenizer has no vocabulary"),
    "a tokenizer cut short": (cut(TOKENIZER, 100), NO_FOLDER),
    "a tokenizer that is a list": (text(TOKENIZER, "[]"), NO_FOLDER),
    "settings that are a list": (text(TOKENS, "[]"), NO_FOLDER),
    "no pad token": (settings(TOKENS, pad_token=None), "has no pad token: set tokenizer.pad_token"),
    "a new pad token": (settings(TOKENS, pad_token="<new>"), "has 100 tokens, its model only 99"),
    "little room": (settings(CONFIG, max_position_embeddings=20), " tokens, but"),
}
NO_END = several(gone(OWN), settings(TOKENS, eos_token=None), settings(CONFIG, eos_token_id=None))
WINDOW = settings(CONFIG, use_sliding_window=True, sliding_window=8)
STUDENTS = {  # no matter in a teacher
    "no end token": (NO_END, "has no end token: set tokenizer.eos_token and save it again"),
    "an end that is no token": (
        settings(OWN, eos_token_id="x"),
        " cannot generate here: TypeError",
    ),
    "a window": (WINDOW, "attends to the last 8 tokens only"),
}


@pytest.mark.parametrize("case", [*MODELS, *STUDENTS])
def test_models(case, tmp_path, tiny_model, quiet):
    spoil, says = (MODELS | STUDENTS)[case]
    folder = tmp_path / "spoilt"
    shutil.copytree(tiny_model, folder)
    spoil(folder)
    for look in (train.check_model, train.check_teacher):
        if look is train.check_teacher and case in STUDENTS:
            look(str(folder), 36)
            continue
        with pytest.raises(ValueError) as error:
            look(str(folder), 36)
        assert str(folder) in str(error.value) and says in str(error.value)
    assert not (folder / "RUN").exists()


def test_a_folder_with_code_that_is_not_needed_runs_none_of_it(tmp_path, tiny_model):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    own_code(folder)
    settings(CONFIG, model_type="qwen3")(folder)
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "own.py", folder / "custom_generate/generate.py")
    torch.save({"a": Touch(folder / "RUN")}, folder / "pytorch_model.bin")
    train.check_model(str(folder), 36)
    train.Generator(str(folder), torch.device("cpu"), train.AutoTokenizer.from_pretrained(folder))
    assert not (folder / "RUN").exists()


BROKEN = ["{% for m in", "{{ raise_exception('no') }}", "{{ messages[9].content }}"]


@pytest.mark.parametrize("template", BROKEN)
def test_chat_templates(template, tmp_path, tiny_model):
    shutil.copytree(tiny_model, tmp_path / "model")
    settings(TOKENS, chat_template=template)(tmp_path / "model")
    tokenizer = train.AutoTokenizer.from_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="the tokenizer cannot make a prompt: "):
        train.PromptEncoder.of(parse("--chat_template"), tokenizer)


# ---- run folders


def open_run(folder, *flags, model, data):
    config = train.parse(command(folder, *flags, model=model, data=data))
    run = RunFolder(config, train.Layout(config), {})
    try:
        return run.open()
    finally:
        if hasattr(run, "locked"):
            os.close(run.locked)


@pytest.fixture
def there(tiny_model, tiny_data):
    return {"model": tiny_model, "data": tiny_data}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_model, tiny_data):
    """A run of two steps, the teacher in its process, with a checkpoint at each."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    flags = ("--steps", 2, "--checkpoint_every", 1, "--max_completion_tokens", 32)
    run(folder, *flags, model=tiny_model, data=tiny_data)
    return folder


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("file", "file is a file; choose a folder"),
        ("file/run", r"cannot be used \(Not a directory\): choose another"),
        ("a" * 300, r"cannot be used \(File name too long\): choose another"),
        ("", "the folder is not empty and holds no run; choose another"),
        ("link", r"cannot be used \(File exists\): choose another"),
    ],
)
def test_out(name, says, tmp_path, there):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=says):
        open_run(tmp_path / name, **there)
    assert contents(tmp_path) == before


def lines(name, change):
    """Another list of lines in place of the lines of a log."""

    def spoil(run):
        (run / name).write_text("".join(change((run / name).read_text().splitlines(keepends=True))))

    return spoil


def in_each_checkpoint(spoil):
    return lambda run: [spoil(folder) for folder in (run / "checkpoints").iterdir()]


def forge(folder):
    """As somebody else may have made it: code in sampler.pt, with its digest in the manifest."""
    torch.save(Touch(folder.parents[1] / "RUN"), folder / "sampler.pt")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sampler.pt"] = digest(folder / "sampler.pt")
    (folder / "manifest.json").write_text(json.dumps(manifest))


DAMAGED, PUT_BACK = "config.json is damaged (", "put it back, or choose another --out"
LOST = "no checkpoint there is intact; to start again choose another"
DELETE = "(Weights only load failed"
METRICS, SELECTIONS = "metrics.jsonl", "selections.jsonl"
LACKS_STEP = "metrics.jsonl lacks a step before 2: " + PUT_BACK
RUNS = {
    "a config cut short": (cut(CONFIG, 50), DAMAGED),
    "a config that is a list": (text(CONFIG, "[1]"), DAMAGED),
    "a config that is no text": (lambda run: (run / CONFIG).write_bytes(b"\xff\xfe"), DAMAGED),
    "a folder of older code": (
        settings(CONFIG, reward=None),
        "was made by another version of this code (reward is not in it): choose another --out",
    ),
    "a damaged line": (lines(METRICS, lambda rows: ["{\n", *rows]), "metrics.jsonl, line 1: dama"),
    "a line that is a number": (
        lines(METRICS, lambda rows: ["3\n", *rows]),
        "metrics.jsonl is damaged: " + PUT_BACK,
    ),
    "a gap": (lines(METRICS, lambda rows: [rows[0], rows[2]]), LACKS_STEP),
    "a line twice": (lines(METRICS, lambda rows: [*rows[:2], *rows[1:]]), LACKS_STEP),
    "no metrics": (gone(METRICS), LACKS_STEP),
    "a damaged selection": (
        lines(SELECTIONS, lambda rows: ["{\n", *rows]),
        "selections.jsonl, line 1: damaged",
    ),
    "a selection of no step": (
        lines(SELECTIONS, lambda rows: ["{}\n", *rows]),
        "selections.jsonl is damaged: " + PUT_BACK,
    ),
    "no checkpoint intact": (in_each_checkpoint(cut("sampler.pt", -7)), LOST),
    "no teacher": (in_each_checkpoint(lambda folder: shutil.rmtree(folder / "teacher")), LOST),
    "code in sampler.pt": (in_each_checkpoint(forge), "delete it to go on from the one before it"),
}


@pytest.mark.parametrize("case", RUNS)
def test_runs(case, whole, tmp_path, there):
    spoil, says = RUNS[case]
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    spoil(folder)
    before = contents(folder)
    settings("config.json", out=str(folder))  # another place does not matter
    with pytest.raises(ValueError) as error:
        open_run(folder, "--steps", 3, **there)
    assert says in str(error.value) and "\n" not in str(error.value)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--seed 1", "another configuration: seed 0 there, 1 here"),
        ("--sampler softmax", "configuration: sampler 'goldilocks' there, 'softmax' here"),
        (
            "--epsilon 0.3 --kl_coef 0.1",
            "configuration: kl_coef 0.0 there, 0.1 here; epsilon 0.2 there, 0.3 here",
        ),
        ("--steps 1", "--steps 1: the run in .* is at step 2 already"),
        ("--lr_schedule linear", "lr_schedule 'constant' there, 'linear' here"),
    ],
)
def test_another_run_in_the_folder(flags, says, whole, there):
    with pytest.raises(ValueError, match=says):
        open_run(whole, *flags.split(), **there)


def test_other_steps_where_the_rate_depends_on_them(whole, tmp_path, there):
    shutil.copytree(whole, tmp_path / "run")
    settings(CONFIG, lr_schedule="linear")(tmp_path / "run")
    with pytest.raises(ValueError, match="another configuration: steps 2 there, 3 here"):
        open_run(tmp_path / "run", "--lr_schedule", "linear", "--steps", 3, **there)


def test_data_that_has_changed(whole, tmp_path, there):
    shutil.copytree(there["data"], tmp_path / "data")
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "data/train.jsonl"
    settings(CONFIG, train_data=str(path))(tmp_path / "run")
    flags = ("--steps", 2, "--train_data", path)
    assert open_run(tmp_path / "run", *flags, **there) == 2
    path.write_text(path.read_text().replace("What is 20", "How much is 20"))
    with pytest.raises(ValueError, match="another configuration: train_data_crc32"):
        open_run(tmp_path / "run", *flags, **there)


def test_a_folder_that_another_job_writes_to(whole, there):
    """It is not even read: what is there may change at any moment."""
    config = train.parse(command(whole, **there))
    other = RunFolder(config, train.Layout(config), {})
    other.lock()
    with pytest.raises(ValueError, match="another job is writing there; end it, or choose another"):
        open_run(whole, "--seed", 1, **there)
    os.close(other.locked)
    assert open_run(whole, "--steps", 2, **there) == 2


# ---- train.py whole


def test_a_bad_folder_is_refused_and_left_alone(whole, there):
    says = "belongs to another configuration: seed 0 there, 1 here"
    refused(whole.parent, "--seed", 1, says=says, **there)


@pytest.mark.parametrize(
    ("flags", "statuses", "says"),
    [
        # All find it, and rank 0 says so; torchrun ends the others.
        (("--teacher_ranks", 2), [2, -15], "leaves no student"),
        (("--train_data", "a\nb.jsonl"), [2, 2], "a b.jsonl: no such data file"),
        (("--sampler", "uniform", "--max_prompt_tokens", 12), [2, 2], "fit the prompt limit"),
    ],
)
def test_many_ranks_say_it_once(flags, statuses, says, tmp_path, there):
    ended = launch(tmp_path / "run", *flags, ranks=2, **there)
    assert ended.statuses == statuses
    assert_one_line("error: " + ended.err.partition("error: ")[2].rstrip("\n") + "\n", says)


@pytest.mark.slow
def test_the_line_from_the_shell(tmp_path, there):
    (tmp_path / "bad.jsonl").write_text("{\n")
    flags = ("--val_data", tmp_path / "bad.jsonl")
    succeeded, said = shell(command(tmp_path / "run", *flags, **there))
    assert not succeeded and not (tmp_path / "run").exists()
    assert_one_line(said, "bad.jsonl, line 1: not JSON")
