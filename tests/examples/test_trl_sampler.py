"""TRL's GRPOTrainer with our samplers, where TRL is installed: `pytest -m hour tests/examples`."""

import importlib.util
import shutil
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector as vector

from plumbing.data.problems import Problems
from sampler import find_sampler
from tests.helpers.checks import rejected
from tests.helpers.ranks import on_ranks, parse
from verify import Verdict

TRL = importlib.util.find_spec("trl")
if TRL:
    from trl import GRPOTrainer
pytestmark = [
    pytest.mark.hour,
    pytest.mark.skipif(not TRL, reason="needs TRL: pip install trl==1.16.0"),
    pytest.mark.filterwarnings("ignore"),  # about settings that transformers has renamed
]


class Grades:
    """Replaces the Verifier: about every second text is right. Keeps the answers it is given."""

    def __init__(self):
        self.golds = []

    def grade(self, completions, golds, extras):
        self.golds.append(golds)
        right = [zlib.crc32(text.encode()) % 2 for text in completions]
        return [Verdict(float(r), "") for r in right]


def config(out, data, sampler, **flags):
    """Return the demo's settings for small steps. flags: others of train.py."""
    flags = {"steps": 4, "prompts_per_step": 3, "group_size": 4, "checkpoint_every": 2} | flags
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    data = "--train_data", data / "train.jsonl"
    return parse("--preset", "demo", "--sampler", sampler, "--out", out, *data, *words)


def recorded(config) -> SimpleNamespace:
    """Build a trainer; record the problems of each proposal and the groups of each observation."""
    from examples.trl_demo import build_trainer

    grades = Grades()
    trainer = build_trainer(config, grades)
    run = SimpleNamespace(trainer=trainer, proposed=[], observed=[], golds=grades.golds)
    cls = type(trainer.sampler)

    class Recorder(cls):
        def propose(self, P):
            groups = super().propose(P)
            run.proposed.append([group.problem for group in groups])
            return groups

        def observe(self, groups):
            run.observed.append([[o.reward for o in group.completions] for group in groups])
            super().observe(groups)

    trainer.sampler.__class__ = Recorder
    return run


@pytest.fixture(scope="module")
def data(halfway, tmp_path_factory):
    """The directory of a data file with embeddings."""
    from scripts import embed

    folder = tmp_path_factory.mktemp("embedded")
    shutil.copy(halfway / "train.jsonl", folder)
    model = config(folder, folder, "uniform").model
    embed.main([model, "--data", str(folder / "train.jsonl"), "--max_prompt_tokens", "32"])
    return folder


samplers = pytest.mark.parametrize("sampler", ["bag_of_words", "embedded", "uniform"])


@samplers
def test_a_resumed_run_is_bit_identical(tmp_path, data, sampler):
    whole = recorded(config(tmp_path / "whole", data, sampler))
    whole.trainer.train()
    source = tmp_path / "whole" / "checkpoint-2"
    shutil.copytree(source, tmp_path / "resumed" / "checkpoint-2")
    resumed = recorded(config(tmp_path / "resumed", data, sampler))
    resumed.trainer.train(resume_from_checkpoint=True)
    assert resumed.proposed == whole.proposed[2:]
    assert resumed.observed == whole.observed[2:]
    weights, expected = (vector(run.trainer.model.parameters()) for run in (resumed, whole))
    assert torch.equal(weights, expected)


def interrupted(config):
    """Train, and kill the run while it saves its second checkpoint, before TRL's files."""
    trainer = recorded(config).trainer
    save = GRPOTrainer._save_checkpoint

    def kill(self, *arguments):
        if self.state.global_step == 4:
            raise KeyboardInterrupt
        save(self, *arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(GRPOTrainer, "_save_checkpoint", kill)
        trainer.train()


def test_a_kill_between_the_samplers_state_and_trls_files_loses_one_checkpoint(tmp_path, data):
    whole = recorded(config(tmp_path / "whole", data, "bag_of_words"))
    whole.trainer.train()
    interrupted(config(tmp_path / "run", data, "bag_of_words"))
    assert [p.name for p in (tmp_path / "run/checkpoint-4").iterdir()] == ["sampler.pt"]
    resumed = recorded(config(tmp_path / "run", data, "bag_of_words"))
    resumed.trainer.train(resume_from_checkpoint=True)
    assert resumed.proposed == whole.proposed[2:]


def test_a_checkpoint_that_another_trainer_made_is_rejected(tmp_path, data):
    trainer = recorded(config(tmp_path / "run", data, "uniform", steps=2)).trainer
    trainer.train()
    (tmp_path / "run" / "checkpoint-2" / "sampler.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"sampler\.pt"):
        trainer.train(resume_from_checkpoint=True)


def test_a_finished_run_has_nothing_left_to_do(tmp_path, data):
    first = recorded(config(tmp_path, data, "uniform", steps=2))
    first.trainer.train()
    again = recorded(config(tmp_path, data, "uniform", steps=2))
    again.trainer.train(resume_from_checkpoint=True)
    assert again.proposed == []
    assert again.trainer.state.log_history == first.trainer.state.log_history[:2]  # not the times
    weights, expected = (vector(run.trainer.model.parameters()) for run in (again, first))
    assert torch.equal(weights, expected)


OTHERS = {
    "sampler": {"sampler": "noisy_and"},
    "rows": {"data": "other"},
    "group_size": {"group_size": 3},
    "temperature": {"temperature": 1.0},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_resume_with_another_sampler_data_or_setting_is_rejected(name, tmp_path, data):
    recorded(config(tmp_path / "run", data, "bag_of_words", steps=2)).trainer.train()
    lines = (data / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.jsonl").write_text("".join([*lines[1:], lines[0]]))
    changed = {"sampler": "bag_of_words"} | OTHERS[name]
    folder = tmp_path / "other" if changed.pop("data", "") else data
    trainer = recorded(config(tmp_path / "run", folder, **changed)).trainer
    with rejected(f"checkpoint-2 is of other settings ({name} "):
        trainer.train(resume_from_checkpoint=True)


def test_fewer_rows_than_a_batch_are_rejected(tmp_path, data):
    (tmp_path / "few").mkdir()
    lines = (data / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "few" / "train.jsonl").write_text("".join(lines[:2]))
    with rejected("train_dataset has 2 rows, and a batch takes 3 prompts"):
        recorded(config(tmp_path / "run", tmp_path / "few", "uniform"))


def test_completions_that_the_processes_cannot_share_equally_are_rejected(
    tmp_path, data, monkeypatch
):
    from examples.trl_demo import settings

    torchrun = {"WORLD_SIZE": "4", "RANK": "0", "LOCAL_RANK": "0"}
    torchrun |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    with rejected("5 x 2 completions for 4 processes: must divide evenly"):
        settings(config(tmp_path, data, "uniform", prompts_per_step=5, group_size=2))


def test_trl_trains_on_the_proposals_and_the_sampler_sees_their_rewards(tmp_path, data):
    run = recorded(config(tmp_path, data, "bag_of_words", steps=2))
    run.trainer.train()
    problems = Problems(data / "train.jsonl")
    for indices, golds in zip(run.proposed, run.golds, strict=True):
        assert golds == [gold for gold in problems.golds(indices)[0] for _ in range(4)]
    log = [row for row in run.trainer.state.log_history if "reward" in row]
    for row, observed in zip(log, run.observed, strict=True):
        assert row["reward"] == pytest.approx(sum(map(sum, observed)) / 12)
        dead = sum(len(set(rewards)) == 1 for rewards in observed)
        assert row["frac_reward_zero_std"] == pytest.approx(dead / 3)


def test_evaluation_does_not_ask_the_sampler(tmp_path, data):
    run = recorded(config(tmp_path, data, "uniform"))
    run.trainer.evaluate(run.trainer.train_dataset.select(range(8)))
    assert run.golds
    assert run.proposed == []
    assert run.observed == []


@pytest.mark.parametrize("sampler", ["goldilocks", "greso"])
def test_a_sampler_with_a_teacher_or_rounds_is_rejected(tmp_path, data, sampler):
    with rejected(f"sampler {find_sampler(sampler).__name__}: has a teacher network or rounds"):
        recorded(config(tmp_path, data, sampler))


def test_groups_of_unlike_sizes_are_rejected(tmp_path, data):
    trainer = recorded(config(tmp_path, data, "knapsack")).trainer
    cls = type(trainer.sampler)
    patch = {"predict": lambda _, index: np.where(np.equal(index, index[0]), 0.1, 0.5)}
    trainer.sampler.__class__ = type("Unlike", (cls,), patch)
    with rejected("TRL needs 3 groups of 4"):
        trainer.train()


def test_rewards_other_than_0_and_1_are_rejected(tmp_path, data):
    trainer = recorded(config(tmp_path, data, "uniform")).trainer
    trainer.reward_funcs[0] = lambda completions, **_: [0.5] * len(completions)
    with rejected("not 0 or 1"):
        trainer.train()


def recorded_on_a_rank(out, data):
    run = recorded(config(out, data, "bag_of_words"))
    run.trainer.train()
    records = [None, None]
    torch.distributed.all_gather_object(records, (run.proposed, run.observed, run.golds))
    return records


def test_two_processes_propose_and_observe_alike_and_share_the_rows(tmp_path, data):
    records = on_ranks(2, tmp_path, recorded_on_a_rank, tmp_path / "run", data)
    (proposed, observed, golds), (proposed_1, observed_1, golds_1) = records
    assert len(proposed) == 4
    assert proposed == proposed_1
    assert observed == observed_1
    problems = Problems(data / "train.jsonl")
    for indices, half, half_1 in zip(proposed, golds, golds_1, strict=True):
        assert half + half_1 == [gold for gold in problems.golds(indices)[0] for _ in range(4)]


@pytest.mark.parametrize("sampler", ["trl", "bag_of_words"])
def test_the_demo_run_again_prints_the_same_share_of_dead_groups(tmp_path, data, capfd, sampler):
    from examples import trl_demo

    flags = ["--steps", "2", "--prompts_per_step", "3", "--group_size", "4", "--sampler", sampler]
    flags += ["--train_data", str(data / "train.jsonl"), "--out", str(tmp_path / "run")]
    lines, models = set(), set()
    for _ in range(2):
        assert trl_demo.main(flags) == 0
        lines.add(capfd.readouterr().out.splitlines()[-1])
        models.add((tmp_path / "run" / "model.safetensors").read_bytes())
    [line] = lines
    assert line.endswith(" dead groups in 2 steps")
    assert len(models) == 1
