"""Every command rejects bad input with one line and exit status 2, and changes no file."""

import sys
from pathlib import Path

import pytest

from plumbing.files import file_crc32, write_lines
from scripts import embed, evaluate, memory, replay, report
from scripts.study import __main__ as study
from tests.helpers.files import change
from tests.helpers.ranks import DEMO, contents
from tests.helpers.runs import GOLDILOCKS, make_run

CASES = [
    (report, "uniform goldilocks other_data", "differ in val_data_crc32: run one again"),
    (report, "uniform uniform", "two runs of 'uniform' have the same seed"),
    (report, "uniform goldilocks damaged", "never evaluated"),
    (report, "uniform new", "a run was not evaluated after a step: nothing can be compared yet"),
    (report, "torn_metrics", "metrics.jsonl, line 1: damaged"),
    (study, "plan.toml --epsilon 0", "--epsilon 0: a plan has these flags"),
    (embed, f"{DEMO} --data data.jsonl", "has room for 128 tokens, and a row may take 1024"),
    (evaluate, f"{DEMO} --k 4", "--k 4: greedy samples are all the same; give --temperature"),
    (evaluate, f"{DEMO} --preset demo --data empty.jsonl", "empty.jsonl: has no rows"),
    (evaluate, "goldilocks --data data.jsonl", "model 'goldilocks/student' cannot be used"),
    (evaluate, "changed --preset demo", "changed is a run and has settings already"),
    (evaluate, "changed/student", "data.jsonl has changed since the run"),
    (replay, "later_version --step 1", "another version of this code (epsilon is not in its con"),
    (replay, "goldilocks --step 1", "has 6 student ranks: torchrun --nproc_per_node 6"),
    (memory, "--model nowhere", "model 'nowhere' cannot be used"),
]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A directory with runs, some of which are damaged or do not go together."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "1")
    write_lines(Path("data.jsonl"), [{"problem": "1?", "expected_answer": "1"}])
    data = {
        "train_data": "data.jsonl",
        "val_data": "data.jsonl",
        "train_data_crc32": file_crc32(Path("data.jsonl")),
        "val_data_crc32": 1,
        "student_ranks": 1,
    }
    evaluated = {"verdicts": [[0], [1]]}
    for name, changes in {
        "uniform": evaluated,
        "goldilocks": evaluated | GOLDILOCKS,
        "changed": evaluated | {"train_data_crc32": 1},
        "other_data": evaluated | {"val_data_crc32": 2, "seed": 1},
        "damaged": {"rows": [{"step": 1}], "seed": 1},
        "new": {"verdicts": [[0]], "sampler": "sec"},
        "torn_metrics": {},
        "later_version": {},
    }.items():
        make_run(Path(name), **data | changes)
    Path("empty.jsonl").touch()
    Path("changed/student").symlink_to(DEMO)
    Path("torn_metrics/metrics.jsonl").write_text('oops\n{"step": 1}\n')
    change(Path("later_version/config.json"), epsilon=None)


@pytest.mark.parametrize(("script", "flags", "message"), CASES)
def test_one_line_says_what_is_wrong(script, flags, message, runs, capsys, monkeypatch):
    before = contents(Path())
    monkeypatch.setattr(sys, "argv", [script.__name__, *flags.split()])
    with pytest.raises(SystemExit, match="2"):
        sys.exit(script.main())
    out, err = capsys.readouterr()
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err
    assert contents(Path()) == before
    assert not out
