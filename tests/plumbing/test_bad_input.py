"""Bad input that whole runs are given: one line with the problem and the remedy, nothing written.

test_command_line.py has flags alone, test_models.py models, test_run_dir.py run directories.
"""

import gzip
import json
import math
import signal
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

import train
from plumbing.data.problems import Problems
from plumbing.distributed import shutdown
from plumbing.run.directory import RunDir
from tests.helpers.checks import rejected
from tests.helpers.ranks import command, contents, launch, one_rank


@pytest.fixture
def quiet(capsys):
    """Begin as train.py does; nothing may be printed."""
    shutdown.begin_process()
    yield
    assert capsys.readouterr() == ("", "")


CHECKED = {
    "--sampler static --column lvl": "no column 'lvl'; it has ",
    "--candidates 100": "has 400 problems, and one step draws 600",
    "--max_completion_tokens 5000": "a row may take 5032: lower --max_prompt_tokens",
    # Before missing data are downloaded.
    "--max_prompt_tokens 1 --train_data data/math/train.jsonl": "1: must be above 1",
    "--chat_template": "cannot make a prompt of '' with --chat_template: ValueError",
    "--prompt_header \udcff": "cannot make a prompt of '': ",  # bytes that are not UTF-8
    "--train_data none.jsonl": "none.jsonl: no such data file (--train_data, --val_data)",
    "--val_data LICENSE": "LICENSE: expected a .jsonl or .parquet file",
    "--model nowhere/no": "'nowhere/no' is no Hugging Face model directory or hub id: ",
    "--teacher_model nowhere/no": "'nowhere/no' is no Hugging Face model directory or hub id: ",
}


@pytest.mark.parametrize("flags", CHECKED)
def test_flags_are_checked_against_files_before_the_first_step(flags, tmp_path, halfway, quiet):
    words = command(tmp_path / "run", *flags.split(" "), data=halfway)
    config = train.parse(words)
    with rejected(CHECKED[flags]):
        train.check(config, RunDir(config, one_rank(), {}))
    assert contents(tmp_path) == {}


def test_a_sampler_without_pools_needs_no_candidates(tmp_path, halfway, quiet):
    """Of 400 problems knapsack draws 60 a step; others would draw 8 times as many."""
    config = train.parse(command(tmp_path / "run", data=halfway))
    config = replace(config, sampler="knapsack", prompts_per_step=60, candidates=8)
    assert train.check(config, RunDir(config, one_rank(), {})) == 0


def row(problem="q", answer="1"):
    return json.dumps({"problem": problem, "expected_answer": answer}).encode() + b"\n"


GOOD = row("What is 1 + 1?", "2") * 400
NOT_JSON = "damaged ("
BAD = "the field '{}' must be text that is not blank, or a number"
PROBLEM, ANSWER = BAD.format("problem"), BAD.format("expected_answer")
UNUSED = [b"null", b"1", b'"a"', b"[1]", b'{"a": 1}', b'{"b": [0.5]}', b'"\\ud800"', b"NaN"]
DATA = {  # what follows 400 good rows, or the whole file if it begins with `=`; the error
    "nothing": (b"=", "the file is empty"),
    "a line cut short": (b"\n" + row()[:-9], f"line 402: {NOT_JSON}"),
    "a table in one object": (b'={"data": [' + row().strip() + b"]}", "lacks the field 'problem'"),
    "a blank": (row("\u00a0\t"), f"line 401: {PROBLEM}, not '"),
    "a missing answer": (
        b'{"problem": "q"}',
        "line 401: lacks the field 'expected_answer' (it has: problem)",
    ),
    "Latin-1": (row("?").replace(b"?", b"\xe9"), f"line 401: {NOT_JSON}"),
    "half a surrogate pair": (row("?").replace(b"?", b"\\ud800"), "surrogate pair"),
    "JSON in a .parquet": (row(), "cannot be read as parquet: Parq"),
    "a field twice": (
        row().replace(b"{", b'{"problem": "a", '),
        "line 401: the field 'problem' occurs twice",
    ),
    "a bool": (row("q", True), f"line 401: {ANSWER}, not True (a bool)"),
    "a null": (row("q", None), f"line 401: {ANSWER}, not None (a NoneType)"),
    "a list": (row(["q"]), f"line 401: {PROBLEM}, not ['q'] (a list)"),
    "not a number": (row("q", math.nan), f"line 401: {ANSWER}, not nan (nan, which is not finite"),
    "an infinity": (row("q", -math.inf), f"line 401: {ANSWER}, not -inf"),
    "an error after blank lines": (b"\n \n" + row(""), f"line 403: {PROBLEM}, not ''"),
    "an error in the 8,501st line": (row() * 8100 + row(""), f"line 8501: {PROBLEM}, not ''"),
    "a list in a line": (b"[1]\n", "line 401: a list, no object such as {"),
    "an indented object": (b'={\n "problem": "q"\n}', f"line 1: {NOT_JSON}"),
    "UTF-16": (b"=" + GOOD.decode().encode("utf-16"), "is UTF-16: convert it with iconv"),
    "gzip": (b"=" + gzip.compress(GOOD), "is compressed with gzip: decompress it with gunzip"),
    "zstd": (b"=\x28\xb5\x2f\xfd", "is compressed with zstd: decompress it with unzstd"),
    "a table of.csv": (b"=problem,expected_answer\nq,1\n", "is a CSV file; convert it: pandas"),
    "an LFS pointer": (b"=version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    "blank lines only": (b"=\n\n", "has no rows"),
    # Accepted
    "a date": (b"=" + row("q", "2024-01-01") * 400, None),
    "long numbers": (row("q", 10**33 + 1), None),
    "a late field of other types": (b"".join(b'{"u": %s,' % x + row()[1:] for x in UNUSED), None),
    "a byte order mark": (b"=\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n"), None),
    "a JSON list": (b"=" + json.dumps([json.loads(row())] * 400).encode(), None),
    "numbers": (b"=" + row("q", 3) + row("q", 0.5) * 400, None),
    "a number among texts": (row("q", 2), None),
    "a long line": (row("x" * 20_000_000, "2"), None),
    "an escaped NUL": (row("q", "a\0b"), None),
}


@pytest.mark.parametrize("case", DATA)
def test_a_bad_data_file_is_rejected_with_its_first_bad_line(case, tmp_path, quiet):
    path, (rows, message) = tmp_path / f"bad.{case.partition('.')[2] or 'jsonl'}", DATA[case]
    path.write_bytes(rows[1:] if rows[:1] == b"=" else GOOD + rows)
    with rejected(message) if message else nullcontext():
        assert len(Problems(path)) >= 400


ON_ALL_RANKS = {  # the flags, the error
    "--teacher_ranks 2": "must be below 2, the number of ranks",
    "--train_data a\nb.jsonl": "error: a b.jsonl: no such data file",
    "--sampler uniform --max_prompt_tokens 9": "fit --max_prompt_tokens",
}


@pytest.mark.parametrize("flags", ON_ALL_RANKS)
def test_an_error_on_all_ranks_is_printed_once(flags, tmp_path, halfway):
    def print_late(rank):  # torchrun may end the rank that prints before it has printed
        print_error = shutdown.print_error
        shutdown.print_error = lambda error: (time.sleep(0.3), print_error(error))

    inputs = {"ranks": 2, "data": halfway, "before": print_late}
    ended = launch(tmp_path / "run", *flags.split(" "), **inputs)
    assert 2 in ended.statuses
    assert {*ended.statuses} <= {2, -signal.SIGTERM}
    assert ended.err.count("error: ") == ended.err.count(ON_ALL_RANKS[flags]) == 1
