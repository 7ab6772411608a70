"""mirror: every step is in the tracker once, whatever was torn, added or replaced."""

import sys
from unittest.mock import Mock

import pytest
from filelock import FileLock

from plumbing.files import write_lines
from scripts import mirror
from tests.helpers.ranks import contents
from tests.helpers.runs import STEP, make_run

SAMPLE = {"problem": 7, "status": "wrong", "prompt": "1 | 2", "completion": " *3*\n<eos>"}
VERDICTS = [{"status": s, "tokens": n} for n, s in enumerate(("correct", "wrong", "wrong", "odd"))]
SHARES = {f"val_status/{status}": 0.0 for status in mirror.STATUSES} | {"val_tokens": 1.5}
SHARES |= {"val_status/correct": 0.25, "val_status/wrong": 0.5, "val_status/odd": 0.25}
EVALUATED = {"val_accuracy": 0.25} | SHARES


def write_run(folder, *rows, **config):
    """A run with those rows, a sample of step 2, and verdicts for every step."""
    make_run(folder, rows, **{"eval_every": 2} | config)
    write_lines(folder / "samples.jsonl", [{"step": 2} | SAMPLE])
    for row in rows:
        write_lines(folder / "evals" / f"step_{row['step']}.jsonl", VERDICTS)
    return folder


def row(step, loss=1.0):
    """A step's row; even steps are evaluated."""
    return {"step": step, "loss": loss} | ({} if step % 2 else {"val_accuracy": 0.25})


def expected(step, loss=1.0):
    """What should be logged of row(step, loss)."""
    numbers = (STEP if step else {}) | {"loss": loss} | ({} if step % 2 else EVALUATED)
    return step, numbers, [SAMPLE] if step == 2 else []


@pytest.fixture
def store(monkeypatch):
    """The steps that `--to trackio` has in these tests. A start empties it; close() adds "end"."""
    steps = []

    def open_fake(out, project, name, config):
        steps.clear()
        return (lambda *values: steps.append(values)), (lambda: steps.append("end"))

    monkeypatch.setitem(mirror.TRACKERS, "trackio", open_fake)
    return steps


@pytest.fixture
def run_mirror(tmp_path):
    """A function from flags to the exit status; --to is trackio by default."""
    line = [tmp_path / "run", "--to", "trackio", "--out", tmp_path / "logs"]
    return lambda *flags: mirror.main([*map(str, line), *flags])


@pytest.fixture
def follow(tmp_path, store, run_mirror, monkeypatch):
    """A function that follows a run of 4 steps from before its start to Ctrl-C. It takes the run's
    rows after each time that mirror waits, and returns the steps in the store at each time."""

    def follow(*rows_of_run):
        seen = []

        def sleep(_):
            seen.append([step for step, _, _ in store])
            if len(seen) > len(rows_of_run):
                raise KeyboardInterrupt
            write_run(tmp_path / "run", *rows_of_run[len(seen) - 1], steps=4)
            with (tmp_path / "run/metrics.jsonl").open("a") as file:
                file.write('{"step": 1, "lo')  # an unfinished line

        monkeypatch.setattr(mirror.time, "sleep", sleep)
        assert run_mirror("--follow") == 130
        return seen

    return follow


TWO = [row(0), row(1) | {"teacher_loss": None}]


def test_follow_copies_each_step_once_it_is_complete(follow, store):
    """Step 2 waits for its evaluation."""
    seen = follow([*TWO, {"step": 2, "loss": 1.0}], [*TWO, row(2), row(3)])
    assert seen == [[], [0, 1], [0, 1, 2, 3]]
    assert store == [expected(0), expected(1), expected(2), expected(3), "end"]


def test_follow_starts_again_when_steps_are_replaced(follow, store):
    """After step 3 the run resumes from step 1 with other losses."""
    resumed = [*TWO, row(2, 0.5), row(3, 0.5)]
    seen = follow([*TWO, row(2), row(3)], resumed[:3], resumed)
    assert seen == [[], [0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3]]
    assert store == [expected(0), expected(1), expected(2, 0.5), expected(3, 0.5), "end"]


def test_an_unfinished_run_is_copied_as_far_as_it_is(tmp_path, store, run_mirror):
    write_run(tmp_path / "run", *TWO, steps=4)
    assert run_mirror() == 0
    assert store == [expected(0), expected(1), "end"]


def test_follow_ends_with_the_run(tmp_path, store, run_mirror):
    write_run(tmp_path / "run", *TWO, row(2), steps=2)
    assert run_mirror("--follow") == 0
    assert store == [expected(0), expected(1), expected(2), "end"]


def test_a_second_mirror_of_the_run_gets_one_line(tmp_path, run_mirror, capsys):
    write_run(tmp_path / "run", row(0))
    with FileLock(tmp_path / "logs" / "run-trackio-mirror.lock"), pytest.raises(SystemExit):
        run_mirror()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("mirror: ")
    assert "could not be acquired" in line


def test_a_missing_tracker_gets_one_line(tmp_path, run_mirror, monkeypatch, capsys):
    before = contents(write_run(tmp_path / "run", row(0)))
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(SystemExit, match="2"):
        run_mirror()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("mirror: ")
    assert line.endswith(": pip install trackio")
    assert contents(tmp_path / "run") == before


def test_a_loop_of_links_is_no_run(tmp_path, run_mirror, capsys):
    (tmp_path / "run").symlink_to(tmp_path / "run")
    with pytest.raises(SystemExit, match="2"):
        run_mirror()
    error = capsys.readouterr().err
    assert error.startswith("mirror: ")
    assert error.count("\n") == 1


def test_started_again_tensorboard_has_every_step_once(tmp_path, run_mirror, capsys):
    """At first the run is unfinished. With other settings it then does not replace the copy."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    rows, run, logs = [row(i, 1 / (i + 1)) for i in range(61)], tmp_path / "run", tmp_path / "logs"
    for n in (30, 61):
        write_run(run, *rows[:n], steps=60)
        assert run_mirror("--to", "tensorboard") == 0
    events = accumulator.EventAccumulator(str(logs / "run"), {"scalars": 0, "tensors": 0})
    tags = events.Reload().Tags()["scalars"]
    logged = [(event.step, tag, event.value) for tag in tags for event in events.Scalars(tag)]
    assert [text.step for text in events.Tensors("samples/text_summary")] == [2]
    steps = [expected(step, 1 / (step + 1)) for step in range(61)]
    numbers = {(step, key): value for step, each, _ in steps for key, value in each.items()}
    assert len(logged) == len(numbers)
    assert {(step, key): value for step, key, value in logged} == pytest.approx(numbers)
    make_run(run, rows, seed=1)
    with pytest.raises(SystemExit, match="2"):
        run_mirror("--to", "tensorboard")
    assert capsys.readouterr().err.endswith("(seed): choose another --name\n")


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for W&B's package, whose server has no step yet."""
    fake = Mock()
    fake.init.return_value = Mock(disabled=False, starting_step=0)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_reads_its_own_variables(tmp_path, run_mirror, wandb, monkeypatch):
    """The mode is W&B's to choose: `init` gets none."""
    write_run(tmp_path / "run", row(0))
    variables = {"PROJECT": "p", "NAME": "n", "RUN_ID": "id", "DIR": str(tmp_path / "d")}
    for name, value in variables.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    assert mirror.main([str(tmp_path / "run"), "--to", "wandb"]) == 0
    given = wandb.init.call_args.kwargs
    assert "mode" not in given
    wanted = {"project": "p", "name": "n", "id": "id", "dir": tmp_path / "d"}
    assert {name: given[name] for name in wanted} == wanted
    assert run_mirror("--to", "wandb", "--project", "mine", "--name", "run") == 0
    given = wandb.init.call_args.kwargs
    assert (given["project"], given["name"], given["dir"]) == ("mine", "run", tmp_path / "logs")


def test_a_disabled_wandb_copies_nothing_and_gets_one_line(tmp_path, run_mirror, wandb, capsys):
    write_run(tmp_path / "run", row(0))
    wandb.init.return_value.disabled = True
    with pytest.raises(SystemExit, match="2"):
        run_mirror("--to", "wandb")
    assert "W&B is disabled, by WANDB_MODE or its settings" in capsys.readouterr().err
