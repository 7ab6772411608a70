"""mirror: each number once in the tracker's store, whatever was killed, torn, added or made again.

What holds for every tracker is tested on a list that stands for the store; TensorBoard's files and
trackio's SQLite file are read as those two read them, where the packages are installed.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from unittest.mock import MagicMock, create_autospec

import pytest
from filelock import FileLock

from plumbing.files import read_lines, write_lines
from scripts import mirror
from tests.helpers.models import ROOT
from tests.helpers.ranks import contents
from tests.helpers.runs import STEP, make_run

SAMPLE = {
    "step": 2,
    "problem": 7,
    "status": "wrong",
    "prompt": "1 | 2",
    "completion": " *3*\n<eos>",
}
VERDICTS = [{"status": s, "tokens": n} for n, s in enumerate(("correct", "wrong", "wrong", "odd"))]
SHARES = {f"val_status/{status}": 0.0 for status in mirror.STATUSES}
SHARES |= {"val_status/correct": 0.25, "val_status/wrong": 0.5, "val_status/odd": 0.25}


class Killed(Exception):
    """As by -9: nothing is handed over or closed."""


class Recorder(mirror.Tracker):
    """A tracker whose store is a list, and which dies when it should write record `dies_at`."""

    def __init__(self, store, dies_at=None):
        self.store, self.dies_at, self.closed = store, dies_at, False
        self.held, self.config = defaultdict(set), {}

    def read(self):
        for step, values in self.store:
            for key in values:
                self.held[key].add(step)

    def open(self, config):
        self.config = config

    def write(self, step, values):
        if len(self.store) == self.dies_at:
            raise Killed
        self.store.append((step, values))

    def close(self):
        self.closed = True


def look(folder, store, **how):
    """One look at the folder by a tracker that starts anew."""
    tracker = Recorder(store, **how)
    tracker.read()
    return mirror.mirror(folder, tracker, follow=False)


def with_evaluation(folder, *rows, **config):
    """A run with those rows, samples of step 2 and the same evaluation at every step."""
    make_run(folder, rows, **config)
    write_lines(folder / "samples.jsonl", [SAMPLE])
    for row in rows:
        write_lines(folder / "evals" / f"step_{row['step']}.jsonl", VERDICTS)
    return folder


def test_what_is_logged_by_hand(tmp_path):
    rows = {"step": 0, "val_accuracy": 0.25}, {"step": 1, "teacher_loss": None}, {"step": 2}
    store = []
    assert look(with_evaluation(tmp_path / "run", *rows), store) == 3
    table = {key: value for key, value in SAMPLE.items() if key != "step"}
    first = {"val_accuracy": 0.25, "val_tokens": 1.5} | SHARES
    assert store == [(0, first), (1, STEP), (2, STEP | {"samples": [table]})]


def test_killed_at_any_record_it_neither_repeats_nor_leaves_out(tmp_path):
    rows = [{"step": step, "val_accuracy": step / 10} for step in range(6)]
    folder, whole = with_evaluation(tmp_path / "run", *rows), []
    look(folder, whole)
    for first in range(6):
        for second in range(first, 6):
            store = []
            for dies_at in (first, second):
                with pytest.raises(Killed):
                    look(folder, store, dies_at=dies_at)
            look(folder, store)
            assert store == whole
            assert look(folder, store) == 0


def test_a_torn_line_is_left_and_an_added_evaluation_logged_at_its_step(tmp_path):
    folder, store = with_evaluation(tmp_path / "run", {"step": 0}, {"step": 1}), []
    log = folder / "metrics.jsonl"
    text = log.read_text()
    log.write_text(text[:-3])
    assert look(folder, store) == 0  # step 0 has no number yet
    log.write_text(text)
    assert look(folder, store) == 1
    write_lines(log, [row | {"val_accuracy": 0.5} for row in read_lines(log)])
    assert look(folder, store) == 2
    added = {"val_accuracy": 0.5, "val_tokens": 1.5} | SHARES
    assert store == [(1, STEP), (0, added), (1, added)]


def test_steps_made_again_stay_as_they_were(tmp_path):
    """The run is killed after step 3 and goes on from its checkpoint of step 1."""
    folder, store = make_run(tmp_path / "run", [{"step": s, "loss": s / 1} for s in range(4)]), []
    look(folder, store)
    again = [{"step": s, "loss": s + 0.5 * (s > 1)} for s in range(6)]
    for there in (2, 3, 6):
        make_run(folder, again[:there])
        look(folder, store)
    assert [(step, values["loss"]) for step, values in store] == [
        (0, 0), (1, 1), (2, 2), (3, 3), (4, 4.5), (5, 5.5)
    ]  # fmt: skip


def run_main(*argv):
    return mirror.main([*map(str, argv), "--to", "trackio"])


@pytest.fixture
def recorder(monkeypatch, tmp_path):
    """What `--to trackio` is in these tests."""
    tracker = Recorder([])
    tracker.place, tracker.name = tmp_path / "store", "run"
    monkeypatch.setitem(mirror.TRACKERS, "trackio", lambda *_: tracker)
    return tracker


def test_follow_from_before_the_run_until_it_is_finished(tmp_path, monkeypatch, recorder):
    """The last step counts when it is evaluated, and it is the last by what config.json then says:
    the run is ended and goes on with more steps."""
    folder = tmp_path / "run"

    def log(*rows, steps):
        make_run(folder, rows, steps=steps)

    def tear():
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 1, "lo')

    end = {"step": 2, "val_accuracy": 0.5}
    happens = iter(
        [
            lambda: None,
            lambda: log(steps=2),
            lambda: log({"step": 0}, steps=2),
            tear,
            lambda: log({"step": 0}, {"step": 1}, {"step": 2}, steps=2),
            lambda: log({"step": 0}, {"step": 1}, end, steps=3),
            lambda: log({"step": 0}, {"step": 1}, end, end | {"step": 3}, steps=3),
        ]
    )
    monkeypatch.setattr(mirror.time, "sleep", lambda _: next(happens)())
    assert run_main(folder, "--follow") == 0
    assert next(happens, None) is None and recorder.closed
    added = {"val_accuracy": 0.5}
    assert recorder.store == [(1, STEP), (2, STEP), (2, added), (3, STEP | added)]


def test_interrupted_it_closes_the_tracker(tmp_path, monkeypatch, recorder):
    make_run(tmp_path / "run", [{"step": 1}], steps=2)
    monkeypatch.setattr(mirror.time, "sleep", MagicMock(side_effect=KeyboardInterrupt))
    assert run_main(tmp_path / "run", "--follow") == 130
    assert recorder.closed and recorder.store == [(1, STEP)]


def test_bad_input_is_one_line_and_the_run_is_not_touched(tmp_path, monkeypatch, capsys, recorder):
    folder = make_run(tmp_path / "run", [{"step": 1}])
    before = contents(folder)

    def refused(*argv):
        with pytest.raises(SystemExit, match="2"):
            run_main(*argv)
        said = capsys.readouterr().err
        assert said.startswith("mirror: ") and said.count("\n") == 1
        assert contents(folder) == before and not recorder.store
        return said

    assert "not a run folder" in refused(tmp_path)
    recorder.config = mirror.analysis.read_config(folder) | {"seed": 1, "steps": 9, "_own": 1}
    assert "another configuration (seed): choose another --name" in refused(folder)
    recorder.config = {}
    with FileLock(tmp_path / "store" / "run-trackio-mirror.lock"):
        assert "could not be acquired" in refused(folder)
    monkeypatch.setitem(mirror.TRACKERS, "trackio", mirror.Trackio)
    monkeypatch.setitem(sys.modules, "trackio", None)
    assert refused(folder).endswith(": pip install trackio\n")


def numbers(store):
    """(step, key, value) of what is no table."""
    return [(step, *kv) for step, values in store for kv in values.items() if kv[0] != "samples"]


def assert_same(found, expected):
    """Each number once, as 32 bits have it."""
    assert len(found) == len(expected)
    by_key = {(step, key): value for step, key, value in expected}
    assert {(step, key): value for step, key, value in found} == pytest.approx(by_key)


def in_tensorboard(folder):
    """(step, key, value) of each scalar, samples, configurations, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    store = EventAccumulator(str(folder), {"scalars": 0, "tensors": 0})
    store.Reload()
    scalars = [
        (e.step, tag, e.value) for tag in store.Tags()["scalars"] for e in store.Scalars(tag)
    ]
    texts = [store.Tensors(f"{key}/text_summary") for key in ("samples", "config")]
    samples, configs = ([e.tensor_proto.string_val[0].decode() for e in each] for each in texts)
    return scalars, samples, [json.loads(config) for config in configs]


def in_trackio(folder):
    """The same in trackio's file."""
    with sqlite3.connect(folder / "goldilocks-rl.db") as store:
        rows = store.execute("SELECT step, metrics FROM metrics WHERE run_name = 'run'").fetchall()
        configs = store.execute("SELECT config FROM configs").fetchall()
    rows = [(step, json.loads(values)) for step, values in rows]
    samples = [values["samples"]["_value"] for _, values in rows if "samples" in values]
    return numbers(rows), samples, [json.loads(config) for (config,) in configs]


def test_tensorboard_goes_on_where_its_file_is_torn(tmp_path):
    pytest.importorskip("tensorboard")
    rows = [{"step": step, "loss": 1 / (step + 1), "val_accuracy": 0.5} for step in range(5)]
    folder, whole = with_evaluation(tmp_path / "run", *rows), []
    rows = read_lines(folder / "metrics.jsonl")
    look(folder, whole)
    for cut in (1, 30, 400, 10_000):
        command = [str(folder), "--to", "tensorboard", "--out", str(tmp_path / f"cut {cut}")]
        write_lines(folder / "metrics.jsonl", rows[:3])
        mirror.main(command)
        (file,) = tmp_path.glob(f"cut {cut}/run/events*")
        file.write_bytes(file.read_bytes()[:-cut])
        write_lines(folder / "metrics.jsonl", rows)
        for _ in range(2):
            mirror.main(command)
        found, samples, (config,) = in_tensorboard(file.parent)
        assert_same(found, numbers(whole))
        assert samples == ["Problem 7: wrong\n\n    1 | 2 *3*\n    <eos>"]
        assert config == mirror.analysis.read_config(folder)


DYING = """
import os, signal, sys, time
from scripts import mirror

tracker = mirror.TRACKERS[sys.argv[3]]
write = tracker.write

def dying(self, step, values):
    if step == 30:
        time.sleep(1.5)  # trackio stores what it was given twice a second
    if step == 35:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, step, values)

tracker.write = dying
mirror.main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["tensorboard", "trackio"])
def test_a_process_killed_with_9_goes_on(tmp_path, tracker):
    """Processes of their own: the first is killed when a part is stored and a part is not."""
    pytest.importorskip(tracker)
    read = {"tensorboard": in_tensorboard, "trackio": in_trackio}[tracker]
    rows = [{"step": step, "loss": 1 / (step + 1), "val_accuracy": 0.5} for step in range(60)]
    folder, whole = with_evaluation(tmp_path / "run", *rows), []
    look(folder, whole)
    command = [folder, "--to", tracker, "--out", tmp_path / "logs"]
    how = {"cwd": ROOT, "env": os.environ | {"TRACKIO_DIR": str(tmp_path / "logs/run")}}
    died = subprocess.run([sys.executable, "-c", DYING, *command], **how)
    assert died.returncode == -signal.SIGKILL
    there = {step for step, *_ in read(tmp_path / "logs/run")[0]}
    assert set(range(30)) <= there <= set(range(35))
    subprocess.run([sys.executable, "-m", "scripts.mirror", *command], **how, check=True)
    found, samples, (config,) = read(tmp_path / "logs/run")
    assert_same(found, numbers(whole))
    assert len(samples) == 1
    assert mirror.analysis.read_config(folder).items() <= config.items()


def test_wandb_by_its_signatures(tmp_path, monkeypatch):
    """Its server is a list here; the first start is killed at step 2."""
    wandb = pytest.importorskip("wandb")
    from wandb.apis.public import runs

    folder = with_evaluation(tmp_path / "run", *({"step": step, "loss": 1.0} for step in range(4)))
    run, there = create_autospec(wandb.Run), create_autospec(runs.Run)
    init, api = create_autospec(wandb.init, return_value=run), create_autospec(wandb.Api)
    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb, "Api", api)
    monkeypatch.setattr(wandb, "Table", lambda dataframe: dataframe.to_dict("records"))
    api().run.side_effect = runs.RunNotFoundError
    rows = []
    run.log.side_effect = lambda row: rows.append(row) if row["step"] < 2 else sys.exit(9)
    command = [str(folder), "--to", "wandb", "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match="9"):
        mirror.main(command)
    there.config = init.call_args.kwargs["config"]
    there.scan_history.return_value = [
        {"unknown": None, "_step": i} | r for i, r in enumerate(rows)
    ]
    api().run.side_effect, api().run.return_value = None, there
    run.log.side_effect = rows.append
    mirror.main(command)
    assert "config" not in init.call_args.kwargs
    assert [(row["step"], row["loss"]) for row in rows] == [(step, 1.0) for step in range(4)]
    assert [row["problem"] for row in rows[2]["samples"]] == [7]
