"""plumbing/run/checkpoint.py: bit-exact resume, damage, kills and full disks at a checkpoint."""

import json
import resource
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from plumbing.errors import Fault, InputError
from plumbing.run import checkpoint
from plumbing.run.checkpoint import TrainedModel
from tests.helpers.checkpoints import trained
from tests.helpers.files import flip_bit
from tests.helpers.ranks import make_run_dir, one_rank, parse

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def run(tmp_path):
    """A run directory with checkpoints 1, 2, 3."""
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, one_rank(), trained(), {"step": step}, keep=3)
    return tmp_path


@pytest.mark.parametrize("first", [["used"], []], ids=["after an update", "before any"])
def test_parameters_without_a_gradient_resume_bit_for_bit(first, tmp_path):
    """One gets its first gradient after the checkpoint, as an expert may that no token chose; one
    never gets any. A Teacher may have had no update yet. Saving changes nothing either: torch steps
    an optimizer without state to save it."""

    def student() -> TrainedModel:
        model = torch.nn.ParameterDict({name: torch.ones(2) for name in ("used", "late", "idle")})
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return TrainedModel(model, optimizer, checksum=lambda: 1, export=None)

    def step(trained_model: TrainedModel, *names: str) -> None:
        sum((trained_model.model[name] ** 2).sum() for name in names).backward()
        trained_model.optimizer.step()
        trained_model.optimizer.zero_grad()

    whole, saved, resumed = student(), student(), student()
    if first:
        step(whole, *first)
        step(saved, *first)
    checkpoint.save(tmp_path, 1, one_rank(), {"student": saved}, {}, keep=1)
    folder = checkpoint.directory(tmp_path, 1)
    checkpoint.load_models(folder, None, {"student": resumed})
    for trained_model in (whole, saved, resumed):
        step(trained_model, "used", "late")
    for trained_model in (saved, resumed):
        for name, weight in whole.model.items():
            assert torch.equal(trained_model.model[name], weight)


def test_a_samplers_state_that_cannot_be_saved_ends_the_run_before_the_first_step(tmp_path):
    sampler = SimpleNamespace(state_dict=lambda: {"rule": lambda: 0})
    config = parse("--preset", "demo", "--sampler", "uniform", "--out", tmp_path / "run")
    with pytest.raises(AttributeError, match="lambda"):
        make_run_dir(config).load(0, {}, sampler)


DAMAGE = {"student/.metadata": flip_bit, "sampler.pt": Path.unlink, "manifest.json": flip_bit}


@pytest.mark.parametrize("file", DAMAGE)
def test_a_damaged_checkpoint_is_detected_and_the_previous_one_used(file, run, capsys):
    assert checkpoint.latest_valid_checkpoint(run) == 3
    assert checkpoint.latest_valid_checkpoint(run, before=3) == 2
    DAMAGE[file](checkpoint.directory(run, 3) / file)
    assert checkpoint.latest_valid_checkpoint(run) == 2
    assert capsys.readouterr().out.count("step_3 is damaged") == 1
    for step in (1, 2):
        DAMAGE[file](checkpoint.directory(run, step) / file)
    with pytest.raises(InputError, match=r"no checkpoint is intact$"):
        checkpoint.latest_valid_checkpoint(run)


def test_a_manifest_without_a_ranks_file_is_no_checkpoint(run):
    """As one was whose first rank could not yet see the others' files."""
    folder = checkpoint.directory(run, 3)
    file = folder / "manifest.json"
    whole = json.loads(file.read_text())
    assert "student/__0_0.distcp" in whole
    for missing in ("student/__0_0.distcp", "student/.metadata"):
        file.write_text(json.dumps({name: whole[name] for name in whole if name != missing}))
        assert not checkpoint.is_intact(folder)
    file.write_text(json.dumps(whole))
    assert checkpoint.is_intact(folder)


def test_each_rank_lists_the_files_that_it_wrote(tmp_path):
    """Rank 1 of 2 students, whose disk shows a file of rank 0 and another rank's."""
    layout = one_rank()
    layout.rank = layout.rank_in_role = 1
    layout.first = False
    listed = []
    layout.gather_world = lambda mine: listed.append(mine) or [mine]

    def save(state, checkpoint_id, process_group):
        checkpoint_id.mkdir(parents=True)
        for name in (".metadata", "__0_0.distcp", "__1_0.distcp", "__1_1.distcp", "__10_0.distcp"):
            (checkpoint_id / name).write_text(name)

    with patch.object(checkpoint.dcp, "save", save):
        checkpoint.save(tmp_path, 1, layout, trained(), {}, keep=1)
    _, part, _ = listed  # between the replicas' checksums and the barrier
    assert sorted(part) == ["student/__1_0.distcp", "student/__1_1.distcp"]


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(run):
    """Else a moment's failure of a network disk would cost the newest one."""
    error = OSError(5, "Input/output error")
    with (
        patch.object(checkpoint, "file_crc32", side_effect=error),
        pytest.raises(OSError, match="5"),
    ):
        checkpoint.latest_valid_checkpoint(run)


def test_loaded_optimizers_keep_the_learning_rates_that_they_were_built_with(tmp_path):
    """Flags that were changed in config.json, as troubleshooting.md tells."""
    models = trained()
    checkpoint.save(tmp_path, 1, one_rank(), models, {}, keep=1)
    [settings] = models["student"].optimizer.param_groups
    settings["lr"] = 0.125
    checkpoint.load_models(checkpoint.directory(tmp_path, 1), None, models)
    assert models["student"].optimizer.param_groups[0]["lr"] == 0.125


def test_a_checkpoint_that_cannot_be_deleted_yet_is_deleted_the_next_time(run):
    """NFS keeps a file that another process reads, and its directory."""
    with patch("os.rmdir", side_effect=OSError("not empty")):
        checkpoint.keep_only(run, [3])
    assert len(checkpoint.steps(run)) == 3
    checkpoint.keep_only(run, [3])
    assert [path.name for path in run.glob("*/*")] == ["step_3"]


def test_a_later_checkpoint_that_a_resume_could_not_delete_costs_no_valid_one(run):
    """The newest checkpoint was damaged, and its directory is still there."""
    checkpoint.directory(run, 3).rename(checkpoint.directory(run, 9))
    checkpoint.save(run, 4, one_rank(), trained(), {}, keep=1)
    assert checkpoint.steps(run) == [4]


def test_the_rows_of_a_checkpoint_are_on_disk_before_it_is_valid(run):
    """Otherwise a power cut may leave a checkpoint, and logs that lack its last steps."""
    log = run / "metrics.jsonl"
    log.touch()
    was_valid = {}

    def sync(path):
        was_valid.setdefault(path, checkpoint.directory(run, 4).exists())

    with patch.object(checkpoint, "sync", sync):
        checkpoint.save(run, 4, one_rank(), trained(), {}, keep=3)
    assert was_valid[log] is False
    assert was_valid[checkpoint.directory(run, 4).parent] is True


def test_a_full_disk_is_a_fault_that_costs_no_checkpoint(run):
    """A limit on the size of files acts like a disk with no room for more."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limit[1]))
        with pytest.raises(Fault, match="step_4 cannot be written"):
            checkpoint.save(run, 4, one_rank(), trained(width=300), {}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    names = [path.name for path in (run / "checkpoints").iterdir()]
    assert sorted(names) == ["step_1", "step_2", "step_3", "step_4.tmp"]
    checkpoint.keep_only(run, [1, 2, 3])  # as a resume does
    assert not (run / "checkpoints" / "step_4.tmp").exists()
