"""plumbing/run/: which directories are used or resumed, and what a resume drops."""

import json
import math
import shutil
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from plumbing.files import read_lines, write_lines
from plumbing.run import checkpoint, facts
from plumbing.run.directory import RunDir, selection
from plumbing.run.facts import model_files
from sampler import FOLDER, file_of
from tests.helpers.checkpoints import trained
from tests.helpers.checks import rejected
from tests.helpers.files import change, flip_bit
from tests.helpers.groups import completion, group, solved
from tests.helpers.ranks import DEMO, command, contents, one_rank, parse

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
STATELESS = SimpleNamespace(state_dict=dict)  # a sampler
SOFTMAX = ("--sampler", "softmax", "--sampler_args", "temperature=0.1")


@pytest.fixture(scope="module")
def run_dir(halfway):
    """A function from a path and flags to its RunDir."""

    def run_dir(folder, *flags) -> RunDir:
        flags = command(folder, *SOFTMAX, *flags, data=halfway)
        config = parse(*flags)
        return RunDir(config, one_rank(*flags), file_of(config.sampler))

    return run_dir


@pytest.fixture(scope="module")
def whole(tmp_path_factory, run_dir):
    """The directory of a run of two steps, with a checkpoint of each."""
    run = run_dir(tmp_path_factory.mktemp("whole") / "run", "--steps", 2)
    assert run.open() == 0
    run.load(0, {}, STATELESS)
    run.log("metrics", [{"step": 0}])
    for step in (1, 2):
        run.log("selections", [{"step": step}, {"step": step}])
        run.log("metrics", [{"step": step}])
        run.save(step, {"step": step}, trained())
    run.file_lock.release()
    return run.path


OUT = {
    "file": "cannot be used (Not a directory): choose another",
    "file/run": "cannot be used (Not a directory): choose another",
    ".": "not empty, and holds no run; choose another",
}


@pytest.mark.parametrize("name", OUT)
def test_an_unusable_directory_is_rejected_and_unchanged(name, tmp_path, run_dir):
    (tmp_path / "file").write_text("mine")
    before = contents(tmp_path)
    with rejected(OUT[name]):
        run_dir(tmp_path / name).open()
    assert contents(tmp_path) == before


def write(name, text):
    return lambda run: (run / name).write_text(text)


def settings(**changes):
    return lambda run: change(run / CONFIG, **changes)


CONFIG = "config.json"
METRICS = "metrics.jsonl"
SELECTIONS = "selections.jsonl"
OTHER = "another configuration: "
LINEAR = settings(lr_schedule="linear")  # the rate depends on the number of steps
SETTINGS = "sampler_args was 'temperature=0.1', is 'temperature=0.2'"
NO_CHECKPOINT = "has no checkpoint any more, and would begin again and overwrite the rest: restore"


def without(*names):
    """Delete files or directories of a run."""

    def delete(run):
        for name in names:
            path = run / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return delete


def without_mark(run):
    """A finished run of which config.json does not say that it has saved."""
    change(run / CONFIG, saved=False)
    (run / "student").mkdir()
    shutil.rmtree(run / "checkpoints")


def without_manifests(run):
    """A run whose checkpoints are all damaged."""
    for manifest in run.glob("checkpoints/*/manifest.json"):
        manifest.write_text("")


REJECTED = {  # the damage, the error, and flags if any
    "no checkpoints": (without("checkpoints"), NO_CHECKPOINT),
    "no checkpoint": (without("checkpoints/step_1", "checkpoints/step_2"), NO_CHECKPOINT),
    "damaged": (without_manifests, "no checkpoint is intact; choose another --out to restart"),
    "a student without checkpoints": (without_mark, NO_CHECKPOINT),
    "no config": (without(CONFIG), "config.json is missing: restore it, or choose another --out"),
    "no metrics": (without(METRICS), "metrics.jsonl lacks step 1, and the newest checkpoint is"),
    "a log without its head": (write(SELECTIONS, '{"step": 2}\n'), "selections.jsonl lacks step 1"),
    "a log of something else": (write(METRICS, "[1]\n"), "a line has no field 'step'"),
    "another model": (settings(model_files={}), OTHER + "files of model have changed: config.json"),
    "a config cut short": (write(CONFIG, "{"), "config.json is damaged ("),
    "a config of another kind": (write(CONFIG, "[1]"), "config.json is damaged ("),
    "a torn line": (write(SELECTIONS, "{\n{}\n"), f"{SELECTIONS}, line 1: "),
    "a log cut off": (write(METRICS, '{"step": 1}\n'), "metrics.jsonl lacks step 2, and the"),
    "older code": (settings(reward=None), OTHER + "reward was None, is ''"),
    "other data": (settings(val_data_crc32=1), OTHER + "the file of val_data, "),
    "another seed": (lambda run: None, OTHER + "seed was 0, is 1", "--seed 1"),
    "sampler settings": (lambda run: None, OTHER + SETTINGS, "--sampler_args temperature=0.2"),
    "fewer steps": (lambda run: None, "is at step 2 already", "--steps 1"),
    "linear": (LINEAR, OTHER + "steps was 2, is 3", "--lr_schedule linear"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_run_that_cannot_be_resumed_is_rejected_and_unchanged(case, whole, tmp_path, run_dir):
    damage, message, *flags = REJECTED[case]
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    damage(folder)
    before = contents(folder)
    with rejected(message):
        run_dir(folder, "--steps", 3, *" ".join(flags).split()).open()
    assert contents(folder) == before


def test_settings_are_recorded(whole):
    settings = json.loads((whole / CONFIG).read_text())
    assert settings["sampler_args"] == "temperature=0.1"


def test_a_setting_that_changes_no_number_may_change(whole, run_dir, capsys):
    assert run_dir(whole, "--steps", 2, "--keep", 9).open() == 2
    assert capsys.readouterr().out == ""


def test_a_setting_that_changes_rounding_may_change_with_a_note(whole, run_dir, capsys):
    assert run_dir(whole, "--steps", 2, "--per_device_batch_size", 5).open() == 2
    line = "note: per_device_batch_size was 96, is 5: resumes, but not bit for bit\n"
    assert capsys.readouterr().out == line


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path, run_dir):
    run = run_dir(tmp_path / "run")
    run.open()
    run.load(0, {}, STATELESS)
    run.log("metrics", [{"step": 0}, {"step": 1}])
    run.file_lock.release()
    assert run_dir(tmp_path / "run").open() == 0


def test_a_run_resumes_where_the_same_files_are_elsewhere(whole, tmp_path, halfway, run_dir):
    for name in ("train.jsonl", "val.jsonl"):
        shutil.copy(halfway / name, tmp_path)
    model = shutil.copytree(DEMO, tmp_path / "model")
    sampler = shutil.copy(FOLDER / "softmax.py", tmp_path / "mine.py")
    flags = ["--train_data", tmp_path / "train.jsonl", "--val_data", tmp_path / "val.jsonl"]
    flags += ["--model", model, "--sampler", f"{sampler}:Softmax"]
    run = run_dir(shutil.copytree(whole, tmp_path / "run"), "--steps", 2, *flags)
    assert run.open() == 2


def test_files_of_the_run_are_read_once(tmp_path, halfway, run_dir):
    shutil.copy(halfway / "train.jsonl", tmp_path)
    run = run_dir(tmp_path / "run", "--train_data", tmp_path / "train.jsonl")
    run.open()
    facts = run.facts()
    (tmp_path / "train.jsonl").unlink()
    assert run.facts() == facts


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "generation_config.json"])
def test_a_models_files_are_among_the_facts(name, tmp_path):
    folder = shutil.copytree(DEMO, tmp_path / "model")
    before = model_files(str(folder))
    flip_bit(folder / name)
    after = model_files(str(folder))
    assert {key for key in before if before[key] != after[key]} == {name}


def test_the_files_of_a_hub_id_are_those_in_the_cache(monkeypatch):
    monkeypatch.setattr(facts, "cached_file", lambda name, file, **kwargs: DEMO / file)
    assert model_files("org/name") == model_files(str(DEMO))


def test_a_directory_in_use_by_another_job_is_rejected(whole, run_dir):
    """Before anything is read, as it may change at any moment."""
    other = run_dir(whole, "--steps", 2)
    other.open()
    with rejected("is in use: end that job, or choose another"):
        run_dir(whole, "--seed", 1).open()
    other.file_lock.release()
    assert run_dir(whole, "--steps", 2).open() == 2


def test_a_second_process_of_srun_is_told_to_use_torchrun(whole, run_dir, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.delenv("RANK", raising=False)
    first = run_dir(whole, "--steps", 2)
    first.open()
    with rejected("choose another; the ranks of one run are started by torchrun, not by srun"):
        run_dir(whole, "--steps", 2).open()
    first.file_lock.release()


def test_a_file_system_without_locks_is_rejected(tmp_path, run_dir):
    """A soft lock would stay after a kill and keep every other machine out."""
    error = OSError(38, "no locks")  # ENOSYS
    with patch("fcntl.flock", side_effect=error), rejected("cannot be used (no locks)"):
        run_dir(tmp_path / "run").open()


class Loaded:
    """A sampler that keeps the state it is given."""

    def load_state_dict(self, state):
        self.state = state


def test_a_resume_drops_later_rows_and_steps(whole, tmp_path, run_dir):
    shutil.copytree(whole, tmp_path / "run")
    run = run_dir(tmp_path / "run")
    with (run.path / METRICS).open("a") as file:
        file.write('{"step": 3}\n{"step": 4')  # torn
    for step in (1, 3):
        write_lines(run.path / "evals" / f"step_{step}.jsonl", [])
    sampler = Loaded()
    run.load(1, {}, sampler)
    assert sampler.state == {"step": 1}
    assert [row["step"] for row in read_lines(run.path / METRICS)] == [0, 1]
    assert [row["step"] for row in read_lines(run.path / SELECTIONS)] == [1, 1]
    assert checkpoint.steps(run.path) == [1]
    assert not (run.path / "evals/step_3.jsonl").exists()
    assert (run.path / "evals/step_1.jsonl").exists()


def test_a_selection_by_hand():
    chosen = solved(3, right=2, of=10, pool=[3, 4], utilities=[0.5, 0.2])
    assert selection(7, 0, chosen) == {
        "step": 7,
        "round": 0,
        "pool": [3, 4],
        "utilities": [0.5, 0.2],
        "chosen": 3,
        "explored": True,
        "completions": 10,
        "successes": 2,
        "y": 0.4,
    }


def of_two_rounds(problem, first, second):
    """Make a group whose completions have these rewards, drawn in two rounds."""
    made = group(problem, rewards=[*first, *second])
    for drawn in made.completions[len(first) :]:
        drawn.round = 1
    return made


def test_a_selection_holds_the_completions_of_one_round():
    continued = of_two_rounds(5, first=[1, 0], second=[1, 1, 1])
    first = selection(7, 0, continued)
    second = selection(7, 1, continued)
    assert first["completions"] == 2
    assert first["successes"] == 1
    assert first["y"] == 0.5
    assert second["completions"] == 3
    assert second["successes"] == 3
    assert second["y"] == 0


@pytest.fixture
def logged(tmp_path, run_dir):
    """A function that logs groups as those of a step; it returns the rows of a log."""

    def logged(step, groups, name):
        run = run_dir(tmp_path / "run", "--eval_every", 2, "--steps", 5)
        run.path.mkdir(exist_ok=True)
        run.log_groups(step, groups, decode=str)
        return read_lines(run.path / f"{name}.jsonl")

    return logged


def test_groups_are_logged_by_round(logged):
    """Problem 5 continues in the second round, in which problem 9 begins."""
    seven = of_two_rounds(7, first=[0, 0], second=[])
    five = of_two_rounds(5, first=[1, 0], second=[1])
    nine = of_two_rounds(9, first=[], second=[0, 0])
    rows = logged(3, [seven, five, nine], "selections")
    assert [(row["round"], row["chosen"]) for row in rows] == [(0, 7), (0, 5), (1, 5), (1, 9)]
    assert [row["completions"] for row in rows] == [2, 2, 1, 2]
    assert {row["step"] for row in rows} == {3}


def test_an_unknown_utility_is_logged_as_null(logged):
    [row] = logged(3, [solved(7, right=1, utilities=[math.nan])], "selections")
    assert row["utilities"] == [None]
    assert row["pool"] == [7]


@pytest.mark.parametrize("step", [1, 2, 4, 5])
def test_the_first_completions_of_three_problems_are_sampled_where_due(step, logged):
    """At the first and the last step, and at evaluations."""
    groups = [solved(problem, right=0, of=2) for problem in range(4)]
    groups[0].completions[0] = completion(ids=[8, 9], status="wrong")
    rows = logged(step, groups, "samples")
    assert [row["problem"] for row in rows] == [0, 1, 2]
    assert rows[0] == {
        "step": step,
        "problem": 0,
        "status": "wrong",
        "prompt": "[1]",
        "completion": "[8, 9]",
    }


def test_no_completions_are_sampled_at_other_steps(logged):
    assert logged(3, [solved(0, right=1)], "samples") == []
