"""plumbing/run/: which directories are used or resumed, and what a resume drops."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest

from plumbing import models
from plumbing.files import file_crc32, read_lines, write_lines
from plumbing.run import checkpoint, code
from plumbing.run.directory import RunDir
from plumbing.run.facts import differences, model_files
from scripts.study.runs import read_config
from tests.helpers.checkpoints import trained
from tests.helpers.checks import rejected
from tests.helpers.files import change, flip_bit
from tests.helpers.ranks import DEMO, command, contents, make_run_dir, parse

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
STATELESS = SimpleNamespace(state_dict=dict, load_state_dict=id)  # a sampler
SOFTMAX = ("--sampler", "softmax", "--sampler_args", "temperature=0.1")


@pytest.fixture(scope="module")
def run_dir(halfway):
    """A function from a path and flags to its RunDir."""

    def run_dir(folder, *flags) -> RunDir:
        flags = command(folder, *SOFTMAX, *flags, data=halfway)
        config = parse(*flags)
        return make_run_dir(config, *flags)

    return run_dir


@pytest.fixture(scope="module")
def whole(tmp_path_factory, run_dir):
    """The directory of a run of two steps, with a checkpoint of each."""
    flags = ("--steps", 2, "--checkpoint_every", 1)
    run = run_dir(tmp_path_factory.mktemp("whole") / "run", *flags)
    assert run.open() == 0
    run.load(0, {}, STATELESS)
    run.log("metrics", [{"step": 0}])
    for step in (1, 2):
        run.log("selections", [{"step": step}, {"step": step}])
        run.log("metrics", [{"step": step}])
        run.save(step, SimpleNamespace(state_dict=lambda step=step: {"step": step}), trained())
    run.lock.release()
    return run.path


@pytest.mark.parametrize("name", ["file", "file/run", "."])
def test_an_unusable_directory_is_rejected_and_unchanged(name, tmp_path, run_dir):
    (tmp_path / "file").write_text("mine")
    before = contents(tmp_path)
    with rejected({".": "not empty", "file": "File exists: "}.get(name, "Not a directory: ")):
        run_dir(tmp_path / name).open()
    assert contents(tmp_path) == before


CONFIG, METRICS, SELECTIONS = "config.json", "metrics.jsonl", "selections.jsonl"
OTHER = "another configuration: "
NO_CHECKPOINT = "has lost its checkpoints, and would be overwritten: restore"


def write(name, text):
    return lambda run: (run / name).write_text(text)


def settings(**changes):
    return lambda run: change(run / CONFIG, **changes)


def without_checkpoints(run):
    shutil.rmtree(run / "checkpoints")


def only_the_student(run):
    """A finished run of fewer steps than checkpoint_every, whose checkpoint was deleted."""
    change(run / CONFIG, checkpoint_every=9)
    (run / "student").mkdir()
    without_checkpoints(run)


REJECTED = {  # the damage, the error, and flags if any
    "no checkpoints": (without_checkpoints, NO_CHECKPOINT),
    "a student without checkpoints": (only_the_student, NO_CHECKPOINT),
    "no config": (lambda run: (run / CONFIG).unlink(), "not empty, and has no config.json"),
    "a config cut short": (write(CONFIG, "{"), "config.json is damaged ("),
    "a torn line": (write(METRICS, "{\n{}\n"), f"{METRICS}, line 1: "),
    "another model": (settings(model_files={"a": 1}), OTHER + "model_files was {'a': 1}, is {"),
    "other data": (settings(train_data_crc32=1), OTHER + "train_data_crc32 was 1, is "),
    "the rule of candidates until 56f0dc2": (
        settings(candidates_return=None),
        OTHER + "candidates_return was None, is 'in the next pass'",
    ),
    "another seed": (settings(), OTHER + "seed was 0, is 1", "--seed 1"),
    "fewer steps": (settings(), "is at step 2 already", "--steps 1"),
    "linear": (  # the learning rate depends on the number of steps
        settings(lr_schedule="linear"),
        OTHER + "steps was 2, is 3",
        "--lr_schedule linear",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_run_that_cannot_be_resumed_is_rejected_and_unchanged(case, whole, tmp_path, run_dir):
    damage, message, *flags = REJECTED[case]
    folder = shutil.copytree(whole, tmp_path / "run")
    damage(folder)
    before = contents(folder)
    with rejected(message):
        run_dir(folder, "--steps", 3, *" ".join(flags).split()).open()
    assert contents(folder) == before


def test_a_run_resumes_under_changed_code_only_if_that_is_allowed(whole, tmp_path, run_dir, capsys):
    """config.json keeps both versions' checksums. The next resume needs no flag."""
    folder = shutil.copytree(whole, tmp_path / "run")
    now = read_config(folder)["code"]
    then = now | {"grpo.py": 1, "samplers/softmax.py": 2}
    change(folder / CONFIG, code=then)
    before = contents(folder)
    changes = "the code has changed since: grpo.py, samplers/softmax.py; undo that, choose"
    with run_dir(folder) as run, rejected(changes):
        run.open()
    assert contents(folder) == before
    for flags in (["--allow_code_change"], []):
        run = run_dir(folder, *flags)
        assert run.open() == 2
        run.load(2, {}, Mock())
        run.lock.release()
        config = read_config(folder)
        assert config["code"] == now
        assert config["code_changes"] == [code.change(2, {"code": then}, {"code": now})]
    assert capsys.readouterr().out.count("warning: step 3 and later are of changed code: ") == 1


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path, run_dir):
    run = run_dir(tmp_path / "run")
    run.open()
    run.load(0, {}, STATELESS)
    run.log_evaluation(0, [], {"val_accuracy": 0.5})
    run.log("metrics", [{"step": 1}])
    run.lock.release()
    again = run_dir(tmp_path / "run")
    assert again.open() == 0
    again.load(0, {}, STATELESS)
    assert again.evaluation_pending(0)


def test_a_run_resumes_where_the_same_files_are_elsewhere(whole, tmp_path, halfway, run_dir):
    for name in ("train.jsonl", "val.jsonl"):
        shutil.copy(halfway / name, tmp_path)
    model = shutil.copytree(DEMO, tmp_path / "model")
    flags = f"--steps 2 --train_data {tmp_path}/train.jsonl --val_data {tmp_path}/val.jsonl"
    flags = f"{flags} --model {model} --teacher_model {model}"
    run = run_dir(shutil.copytree(whole, tmp_path / "run"), *flags.split())
    assert run.open() == 2


def test_the_checksum_of_data_is_that_of_the_rows_in_memory(tmp_path, halfway, run_dir):
    """The file is changed while models load. A resume would train on other rows."""
    data = shutil.copy(halfway / "train.jsonl", tmp_path)
    run = run_dir(tmp_path / "run", "--train_data", data)
    before = file_crc32(Path(data))
    flip_bit(Path(data))
    run.open()
    run.load(0, {}, STATELESS)
    assert read_config(run.path)["train_data_crc32"] == before


def test_the_checksum_of_a_model_is_that_before_it_loads(tmp_path, run_dir):
    """So a resume with files that were changed meanwhile is rejected, and not taken for the same
    run."""
    model = shutil.copytree(DEMO, tmp_path / "model")
    run = run_dir(tmp_path / "run", "--model", model)
    before = model_files(str(model))
    run.open()
    flip_bit(model / "model.safetensors")
    run.load(0, {}, STATELESS)
    assert read_config(run.path)["model_files"] == before


def test_a_samplers_file_may_move_but_its_class_counts():
    """Whether the file has changed its checksum tells."""
    moved = [{"sampler": f"{folder}/mine.py:Softmax"} for folder in ("a", "b")]
    assert differences(*moved) == []
    [difference] = differences(moved[0], {"sampler": "a/mine.py:Other"})
    assert difference == "sampler was 'mine.py:Softmax', is 'mine.py:Other'"


def test_a_models_files_are_among_the_facts(tmp_path):
    folder = shutil.copytree(DEMO, tmp_path / "model")
    before = model_files(str(folder))
    names = {"model.safetensors", "tokenizer.json", "generation_config.json"}
    for name in names:
        flip_bit(folder / name)
    after = model_files(str(folder))
    assert {key for key in before if before[key] != after[key]} == names


def test_the_fact_of_a_hub_id_is_its_commit(tmp_path, monkeypatch):
    """The cache may have some of its files only."""
    write_lines(tmp_path / "snapshots/0a1b2c/config.json", [])
    file = tmp_path / "snapshots/0a1b2c/config.json"
    monkeypatch.setattr(models, "cached_file", lambda name, what, **kwargs: str(file))
    assert model_files("org/name") == {"commit": "0a1b2c"}


# The lock, and disks that cannot do everything


def test_a_directory_in_use_by_another_job_is_rejected(whole, run_dir):
    """Before anything is read, as it may change at any moment."""
    other = run_dir(whole, "--steps", 2)
    assert other.open() == 2
    with rejected("is in use by another job"):
        run_dir(whole, "--seed", 1).open()
    other.lock.release()


def test_a_run_whose_files_appear_before_the_lock_is_resumed(whole, tmp_path, run_dir):
    """Another job's, which had not begun when this one looked, and has ended since."""
    run = run_dir(tmp_path / "run", "--steps", 2)

    def acquire(timeout):
        shutil.copytree(whole, run.path, dirs_exist_ok=True)

    run.lock = SimpleNamespace(acquire=acquire)
    assert run.open() == 2


def test_a_file_system_without_locks_is_rejected(tmp_path, run_dir):
    """A soft lock would stay after a kill and keep every other machine out."""
    error = OSError(errno.ENOLCK, "No locks available")
    with patch("fcntl.flock", side_effect=error), rejected("or has no locks ("):
        run_dir(tmp_path / "run").open()


# Resuming


def test_a_resume_drops_later_rows_and_steps(whole, tmp_path, run_dir):
    shutil.copytree(whole, tmp_path / "run")
    run = run_dir(tmp_path / "run")
    with (run.path / METRICS).open("a") as file:
        file.write('{"step": 3}\n{"step": 4')  # torn
    for step in (1, 3):
        write_lines(run.path / "evals" / f"step_{step}.jsonl", [])
    sampler = Mock()
    run.load(1, {}, sampler)
    sampler.load_state_dict.assert_called_once_with({"step": 1})
    assert [row["step"] for row in read_lines(run.path / METRICS)] == [0, 1]
    assert [row["step"] for row in read_lines(run.path / SELECTIONS)] == [1, 1]
    assert checkpoint.steps(run.path) == [1]
    assert not (run.path / "evals/step_3.jsonl").exists()
    assert (run.path / "evals/step_1.jsonl").exists()
