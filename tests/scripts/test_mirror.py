"""mirror: every step is in the tracker once, whatever was torn, added or replaced."""

import sys
from unittest.mock import Mock

import pytest

from scripts import mirror
from tests.helpers.runs import STEP, make_run


def row(step, loss=1.0):
    """A step's row; even steps are evaluated."""
    return {"step": step, "loss": loss} | ({} if step % 2 else {"val_accuracy": 0.25})


def expected(step, loss=1.0):
    """What should be logged of row(step, loss)."""
    numbers = row(step, loss)
    return numbers.pop("step"), (STEP if step else {}) | numbers


@pytest.fixture
def store(monkeypatch):
    """The steps that TensorBoard has in these tests. A start empties it; close() adds "end"."""
    steps = []

    def open_fake(*_):
        steps.clear()
        return (lambda *values: steps.append(values)), (lambda: steps.append("end"))

    monkeypatch.setitem(mirror.TRACKERS, "tensorboard", open_fake)
    return steps


@pytest.fixture
def run_mirror(tmp_path):
    """A function from flags to the exit status."""
    line = [tmp_path / "run", "--out", tmp_path / "logs", "--to"]
    return lambda to, *flags: mirror.main([*map(str, line), to, *flags])


@pytest.fixture
def follow(tmp_path, store, run_mirror, monkeypatch):
    """A function that follows a run of 4 steps from before its start to Ctrl-C. It takes the run's
    rows after each time that mirror waits, and returns the steps in the store at each time."""

    def follow(*rows_of_run):
        seen = []

        def sleep(_):
            seen.append([values[0] for values in store])
            if len(seen) > len(rows_of_run):
                raise KeyboardInterrupt
            make_run(tmp_path / "run", rows_of_run[len(seen) - 1], steps=4, eval_every=2)
            with (tmp_path / "run/metrics.jsonl").open("a") as file:
                file.write('{"step": 1, "lo')  # an unfinished line

        monkeypatch.setattr(mirror.time, "sleep", sleep)
        assert run_mirror("tensorboard", "--follow") == 130
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


def test_follow_ends_with_the_run(tmp_path, store, run_mirror):
    make_run(tmp_path / "run", [*TWO, row(2)], steps=2, eval_every=2)
    assert run_mirror("tensorboard", "--follow") == 0
    assert store[-1] == "end"


def test_started_again_tensorboard_has_every_step_once(tmp_path, run_mirror):
    """At first the run is unfinished."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    rows = [row(i, 1 / (i + 1)) for i in range(61)]
    for n in (30, 61):
        make_run(tmp_path / "run", rows[:n], steps=60, eval_every=2)
        assert run_mirror("tensorboard") == 0
    events = accumulator.EventAccumulator(str(tmp_path / "logs/run"), {"scalars": 0}).Reload()
    tags = events.Tags()["scalars"]
    logged = [((event.step, tag), event.value) for tag in tags for event in events.Scalars(tag)]
    steps = [expected(step, 1 / (step + 1)) for step in range(61)]
    numbers = {(step, key): value for step, each in steps for key, value in each.items()}
    assert len(logged) == len(numbers)
    assert dict(logged) == pytest.approx(numbers)


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for W&B's package, whose server has the steps before 2."""
    fake = Mock()
    fake.init.return_value = Mock(disabled=False, starting_step=2)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_continues_a_run_and_not_another_of_its_name(tmp_path, run_mirror, wandb):
    for first in (row(0), row(0) | {"eval_s": 2.0}):
        make_run(tmp_path / "run", [first, row(1), row(2), row(3)], steps=4)
        assert run_mirror("wandb", "--project", "mine") == 0
    one, other = (call.kwargs for call in wandb.init.call_args_list)
    assert (one["project"], one["name"], one["resume"]) == ("mine", "run", "allow")
    assert one["id"] != other["id"]
    logged = [call.kwargs["step"] for call in wandb.init.return_value.log.call_args_list]
    assert logged == [2, 3] * 2


def test_a_missing_or_disabled_tracker_gets_one_line(tmp_path, run_mirror, wandb, capsys):
    make_run(tmp_path / "run", [row(0)])
    wandb.init.return_value.disabled = True
    with pytest.raises(SystemExit, match="2"):
        run_mirror("wandb")
    assert "mirror: W&B is disabled, by WANDB_MODE" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match="2"):
        patch.setitem(sys.modules, "wandb", None)
        run_mirror("wandb")
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("mirror: ")
    assert "wandb" in line


def test_what_is_no_run_gets_one_line(run_mirror, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_mirror("tensorboard")
    [line] = capsys.readouterr().err.splitlines()
    assert "not a run directory" in line
