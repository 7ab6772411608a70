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


TWO = [row(0), row(1) | {"teacher_loss": None}]


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
def follow(tmp_path, store, monkeypatch):
    """A function that follows a run of 4 steps to Ctrl-C. It takes the run's rows at each time that
    mirror looks, and returns the steps in the store after each time."""

    def follow(first, *later):
        seen = []
        written = iter(later)

        def sleep(_):
            seen.append([values[0] for values in store])
            if (rows := next(written, None)) is None:
                raise KeyboardInterrupt
            make_run(tmp_path / "run", rows, steps=4)

        monkeypatch.setattr(mirror.time, "sleep", sleep)
        make_run(tmp_path / "run", first, steps=4)
        with pytest.raises(KeyboardInterrupt):
            mirror.mirror(tmp_path / "run", "tensorboard", tmp_path, follow=True)
        return seen

    return follow


def test_follow_copies_each_step_once_when_it_is_complete(follow, store):
    """A step's evaluation may be missing until the next one has begun."""
    seen = follow([*TWO, {"step": 2, "loss": 1.0}], [*TWO, row(2), row(3)])
    assert seen == [[0, 1], [0, 1, 2]]
    assert store == [expected(0), expected(1), expected(2), "end"]


def test_follow_starts_again_when_steps_are_replaced(follow, store):
    """After step 3 the run resumes from step 1 with other losses."""
    resumed = [*TWO, row(2, 0.5), row(3, 0.5)]
    seen = follow([*TWO, row(2), row(3)], resumed[:3], resumed)
    assert seen == [[0, 1, 2], [0, 1], [0, 1, 2]]
    assert store == [expected(0), expected(1), expected(2, 0.5), "end"]


def test_follow_ends_with_the_run(tmp_path, store):
    make_run(tmp_path / "run", [*TWO, row(2)], steps=2)
    assert mirror.mirror(tmp_path / "run", "tensorboard", tmp_path, follow=True) == 3
    assert store[-2:] == [expected(2), "end"]


def test_started_again_tensorboard_has_every_step_once(tmp_path):
    """At first the run is unfinished."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    rows = [row(step, 1 / (step + 1)) for step in range(5)]
    for n in (3, 5):
        make_run(tmp_path / "run", rows[:n], steps=4)
        mirror.mirror(tmp_path / "run", "tensorboard", tmp_path / "logs", follow=False)
    events = accumulator.EventAccumulator(str(tmp_path / "logs/run"), {"scalars": 0}).Reload()
    logged = [(event.step, event.value) for event in events.Scalars("loss")]
    assert logged == [(step, pytest.approx(1 / (step + 1))) for step in range(5)]


def test_wandb_continues_a_run_and_not_another_of_its_name(tmp_path, monkeypatch):
    """Its server has the steps before 2."""
    wandb = Mock()
    wandb.init.return_value = Mock(starting_step=2)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for first in (row(0), row(0) | {"eval_s": 2.0}):
        make_run(tmp_path / "run", [first, row(1), row(2), row(3)], steps=4)
        mirror.mirror(tmp_path / "run", "wandb", tmp_path, follow=False)
    one, other = (call.kwargs for call in wandb.init.call_args_list)
    assert (one["name"], one["resume"]) == ("run", "allow")
    assert one["id"] != other["id"]
    logged = [call.kwargs["step"] for call in wandb.init.return_value.log.call_args_list]
    assert logged == [2, 3] * 2


def test_a_missing_tracker_gets_one_line(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "run", [row(0)])
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SystemExit, match="2"):
        mirror.main([str(tmp_path / "run"), "--to", "wandb"])
    assert capsys.readouterr().err.startswith("mirror: import of wandb")
