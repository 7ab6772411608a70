"""mirror: every step is in the tracker once, whatever was torn, added or replaced."""

import sys
from contextlib import contextmanager
from unittest.mock import MagicMock, Mock

import pytest

from plumbing.files import write_lines
from scripts import mirror
from tests.helpers.runs import make_run


def row(step, loss=1.0):
    """A step's row; even steps are evaluated."""
    return {"step": step, "loss": loss} | ({} if step % 2 else {"val_accuracy": 0.25})


def test_follow_copies_each_step_and_again_if_it_is_replaced(tmp_path, monkeypatch):
    """A run of 4 steps. After step 3 it resumes from step 1 with other losses."""
    looks = iter([[1, 2, 3, 4], [1, 2, 5], [1, 2, 5, 6, 7]])  # losses when mirror looks
    store = {}
    seen = []

    @contextmanager
    def fake(*_):
        store.clear()
        yield lambda numbers, step: store.update({step: numbers["loss"]})

    def grow(_):
        seen.append([*store.values()])
        rows = [row(step, loss) for step, loss in enumerate(next(looks))]
        make_run(tmp_path / "run", rows, steps=4)

    monkeypatch.setitem(mirror.TRACKERS, "tensorboard", fake)
    monkeypatch.setattr(mirror.time, "sleep", grow)
    grow(0)
    assert mirror.mirror(tmp_path / "run", "tensorboard", tmp_path, follow=True) == 5
    assert [*seen, [*store.values()]] == [[], [1, 2, 3, 4], [1, 2, 5], [1, 2, 5, 6, 7]]


def test_started_again_tensorboard_has_every_value_once(tmp_path, monkeypatch):
    """The file of the start before is deleted. A number that is None is left out."""
    tensorboard = MagicMock()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    make_run(tmp_path / "run", [row(0) | {"entropy": None}], steps=4)
    write_lines(before := tmp_path / "logs/run/events.out.tfevents.7.mirror", [])
    mirror.mirror(tmp_path / "run", "tensorboard", tmp_path / "logs", follow=False)
    assert not before.exists()
    writer = tensorboard.SummaryWriter.return_value.__enter__.return_value
    values = [call.args for call in writer.add_scalar.call_args_list]
    assert values == [("loss", 1.0, 0), ("val_accuracy", 0.25, 0)]


@pytest.fixture
def wandb(monkeypatch):
    """Replaces W&B's library."""
    wandb = Mock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return wandb


def test_a_step_waits_for_its_evaluation_because_wandb_replaces_none(tmp_path, wandb):
    """Step 2 is logged, then evaluated. The next look begins after the last step copied."""
    run = wandb.init.return_value
    run.starting_step = 0
    for evaluated in ({}, {"val_accuracy": 0.25}):
        rows = [row(0), row(1), {"step": 2} | evaluated]
        make_run(tmp_path / "run", rows, steps=4, eval_every=2)
        mirror.mirror(tmp_path / "run", "wandb", tmp_path, follow=False)
        run.starting_step = 1 + run.log.call_args.kwargs["step"]
    accuracy = {c.kwargs["step"]: c.args[0].get("val_accuracy") for c in run.log.call_args_list}
    assert accuracy == {0: 0.25, 1: None, 2: 0.25}


def test_wandb_continues_a_run_and_not_another_of_its_name(tmp_path, wandb):
    """Its server has the steps before 2."""
    run = wandb.init.return_value
    run.starting_step = 2
    for seconds in (1.0, 2.0):
        rows = [row(step) | {"eval_s": seconds} for step in range(4)]
        make_run(tmp_path / "run", rows, steps=4)
        mirror.mirror(tmp_path / "run", "wandb", tmp_path, follow=False)
    one, other = (call.kwargs["id"] for call in wandb.init.call_args_list)
    assert one != other
    assert [call.kwargs["step"] for call in run.log.call_args_list] == [2, 3] * 2
