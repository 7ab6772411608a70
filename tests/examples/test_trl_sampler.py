"""TRL's GRPOTrainer with our samplers, where TRL is installed: `pytest -m hour tests/examples`."""

import importlib.util
import shutil
import zlib
from types import SimpleNamespace

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from grpo import Group
from plumbing.data.problems import Problems
from plumbing.distributed.launch import Launch
from plumbing.files import read_lines, write_lines
from sampler import find_sampler
from tests.helpers.checks import rejected
from tests.helpers.groups import problems_of
from tests.helpers.ranks import after, on_ranks, parse
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
    """Build a trainer; record the problems and the rewards of each batch, and the golds."""
    from examples.trl_demo import build_trainer

    grades = Grades()
    trainer = build_trainer(config, grades)
    run = SimpleNamespace(trainer=trainer, proposed=[], observed=[], golds=grades.golds)

    def record(*_):
        run.proposed.append(problems_of(trainer.groups))
        run.observed.append([[o.reward for o in group.completions] for group in trainer.groups])

    after(trainer, "_calculate_rewards", record)
    return run


def weights(run) -> torch.Tensor:
    return parameters_to_vector(run.trainer.model.parameters())


@pytest.mark.parametrize("sampler", ["bag_of_words", "uniform"])
def test_a_resumed_run_is_bit_identical(tmp_path, halfway, sampler):
    whole = recorded(config(tmp_path / "whole", halfway, sampler))
    whole.trainer.train()
    source = tmp_path / "whole" / "checkpoint-2"
    shutil.copytree(source, tmp_path / "resumed" / "checkpoint-2")
    resumed = recorded(config(tmp_path / "resumed", halfway, sampler))
    resumed.trainer.train(resume_from_checkpoint=True)
    assert resumed.proposed == whole.proposed[2:]
    assert resumed.observed == whole.observed[2:]
    assert torch.equal(weights(resumed), weights(whole))


def test_a_kill_between_the_samplers_state_and_trls_files_loses_one_checkpoint(
    tmp_path, halfway, monkeypatch
):
    whole = recorded(config(tmp_path / "whole", halfway, "bag_of_words"))
    whole.trainer.train()
    killed = recorded(config(tmp_path / "run", halfway, "bag_of_words")).trainer
    save = GRPOTrainer._save_checkpoint

    def kill(self, *arguments):
        if self.state.global_step == 4:
            raise KeyboardInterrupt
        save(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(GRPOTrainer, "_save_checkpoint", kill)
        killed.train()
    assert [p.name for p in (tmp_path / "run/checkpoint-4").iterdir()] == ["sampler.pt"]
    resumed = recorded(config(tmp_path / "run", halfway, "bag_of_words"))
    resumed.trainer.train(resume_from_checkpoint=True)
    assert resumed.proposed == whole.proposed[2:]


def test_a_finished_run_has_nothing_left_to_do(tmp_path, halfway):
    first = recorded(config(tmp_path, halfway, "uniform", steps=2))
    first.trainer.train()
    again = recorded(config(tmp_path, halfway, "uniform", steps=2))
    again.trainer.train(resume_from_checkpoint=True)
    assert again.proposed == []
    assert again.trainer.state.log_history == first.trainer.state.log_history[:2]  # not the times
    assert torch.equal(weights(again), weights(first))


def test_a_resume_with_another_sampler_or_other_rows_is_rejected(tmp_path, halfway):
    recorded(config(tmp_path / "run", halfway, "uniform", steps=2)).trainer.train()
    with rejected("checkpoint-2 is of another run (began with {'sampler': 'Uniform', "):
        noisy_and = recorded(config(tmp_path / "run", halfway, "noisy_and")).trainer
        noisy_and.train(resume_from_checkpoint=True)
    other = first_rows(halfway, tmp_path, 399)
    with rejected("checkpoint-2 is of another run"):
        trainer = recorded(config(tmp_path / "run", other, "uniform")).trainer
        trainer.train(resume_from_checkpoint=True)


def first_rows(halfway, folder, n):
    """Write a data file of n rows in the folder."""
    write_lines(folder / "train.jsonl", read_lines(halfway / "train.jsonl")[:n])
    return folder


def test_fewer_rows_than_a_batch_are_rejected(tmp_path, halfway):
    with rejected("train_dataset has 2 rows, and a batch takes 3 prompts"):
        recorded(config(tmp_path / "run", first_rows(halfway, tmp_path, 2), "uniform"))


def test_completions_that_the_processes_cannot_share_equally_are_rejected(
    tmp_path, halfway, monkeypatch
):
    from examples import trl_demo

    monkeypatch.setattr(trl_demo, "launch", lambda: Launch(world=4))
    with rejected("5 x 2 completions for 4 processes: must divide evenly"):
        trl_demo.trl_config(config(tmp_path, halfway, "uniform", prompts_per_step=5, group_size=2))


def test_trl_trains_on_the_proposals_and_the_sampler_sees_their_rewards(tmp_path, halfway):
    run = recorded(config(tmp_path, halfway, "bag_of_words", steps=2))
    run.trainer.train()
    problems = Problems(halfway / "train.jsonl")
    for indices, golds in zip(run.proposed, run.golds, strict=True):
        assert golds == [gold for gold in problems.golds(indices)[0] for _ in range(4)]
    log = [row for row in run.trainer.state.log_history if "reward" in row]
    for row, observed in zip(log, run.observed, strict=True):
        assert row["reward"] == pytest.approx(sum(map(sum, observed)) / 12)
        dead = sum(len(set(rewards)) == 1 for rewards in observed)
        assert row["frac_reward_zero_std"] == pytest.approx(dead / 3)


def test_evaluation_does_not_ask_the_sampler(tmp_path, halfway):
    from examples.trl_demo import build_trainer

    trainer = build_trainer(config(tmp_path, halfway, "uniform"), Grades())
    trainer.evaluate(trainer.train_dataset.select(range(8)))
    assert not hasattr(trainer, "groups")


@pytest.mark.parametrize("sampler", ["goldilocks", "greso"])
def test_a_sampler_with_a_teacher_or_rounds_is_rejected(tmp_path, halfway, sampler):
    with rejected(f"sampler {find_sampler(sampler).__name__}: has a teacher network or rounds"):
        recorded(config(tmp_path, halfway, sampler))


def test_groups_of_unlike_sizes_are_rejected(tmp_path, halfway):
    trainer = recorded(config(tmp_path, halfway, "uniform")).trainer
    trainer.sampler.propose = lambda P: [Group(problem, 3 + problem) for problem in range(P)]
    with rejected("groups of [3, 4, 5], TRL needs 3 groups of 4"):
        trainer.train()


def test_rewards_other_than_0_and_1_are_rejected(tmp_path, halfway):
    trainer = recorded(config(tmp_path, halfway, "uniform")).trainer
    trainer.reward_funcs[0] = lambda completions, **_: [0.5] * len(completions)
    with rejected("not 0 or 1"):
        trainer.train()


def recorded_on_a_rank(out, data):
    run = recorded(config(out, data, "bag_of_words"))
    run.trainer.train()
    records = [None, None]
    torch.distributed.all_gather_object(records, (run.proposed, run.observed, run.golds))
    return records


def test_two_processes_propose_and_observe_alike_and_share_the_rows(tmp_path, halfway):
    records = on_ranks(2, tmp_path, recorded_on_a_rank, tmp_path / "run", halfway)
    (proposed, observed, golds), (proposed_1, observed_1, golds_1) = records
    assert len(proposed) == 4
    assert proposed == proposed_1
    assert observed == observed_1
    problems = Problems(halfway / "train.jsonl")
    for indices, half, half_1 in zip(proposed, golds, golds_1, strict=True):
        assert half + half_1 == [gold for gold in problems.golds(indices)[0] for _ in range(4)]


@pytest.mark.parametrize("sampler", ["uniform", "bag_of_words"])
def test_the_demo_run_again_prints_the_same_share_of_dead_groups(tmp_path, halfway, capfd, sampler):
    from examples import trl_demo

    flags = ["--steps", "2", "--prompts_per_step", "3", "--group_size", "4", "--sampler", sampler]
    flags += ["--train_data", str(halfway / "train.jsonl"), "--out", str(tmp_path / "run")]
    lines, models = set(), set()
    for _ in range(2):
        assert trl_demo.main(flags) == 0
        lines.add(capfd.readouterr().out.splitlines()[-1])
        models.add((tmp_path / "run" / "model.safetensors").read_bytes())
    [line] = lines
    assert line.endswith(" dead groups in 2 steps")
    assert len(models) == 1
