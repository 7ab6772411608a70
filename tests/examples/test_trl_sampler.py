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
    sampler = trainer.sampler
    run = SimpleNamespace(trainer=trainer, proposed=[], observed=[], golds=grades.golds)
    propose, observe = sampler.propose, sampler.observe

    def record_proposal(n):
        groups = propose(n)
        run.proposed.append([group.problem for group in groups])
        return groups

    def record_observation(groups):
        run.observed.append([[o.reward for o in group.completions] for group in groups])
        observe(groups)

    sampler.propose, sampler.observe = record_proposal, record_observation
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


def test_a_checkpoint_without_the_samplers_state_is_rejected(tmp_path, data):
    recorded(config(tmp_path / "run", data, "uniform", steps=2)).trainer.train()
    (tmp_path / "run" / "checkpoint-2" / "sampler.pt").unlink()
    trainer = recorded(config(tmp_path / "run", data, "uniform")).trainer
    with pytest.raises(FileNotFoundError, match=r"sampler\.pt"):
        trainer.train(resume_from_checkpoint=True)


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


def test_several_micro_batches_and_updates_share_a_proposal(tmp_path, data):
    run = recorded(config(tmp_path, data, "uniform"))
    args = run.trainer.args
    args.per_device_train_batch_size, args.steps_per_generation = 6, 2
    run.trainer._train_batch_size = 6
    run.trainer.train()  # 4 updates of half a batch
    assert len(run.proposed) == 2
    assert len(run.observed) == 2


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
    trainer.sampler.predict = lambda index_N: np.where(np.equal(index_N, index_N[0]), 0.1, 0.5)
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


def test_a_flag_that_the_trainer_is_not_given_is_rejected(capsys):
    from examples import trl_demo

    assert trl_demo.main(["--kl_coef", "0.1"]) == 2
    assert capsys.readouterr().err.startswith("error: --kl_coef: not used here; the flags are")


def test_the_demo_prints_the_share_of_dead_groups(tmp_path, data, capfd):
    from examples import trl_demo

    small = ["--steps", "2", "--prompts_per_step", "3", "--group_size", "4"]
    small += ["--train_data", str(data / "train.jsonl"), "--out"]
    for sampler in ("trl", "bag_of_words"):
        out = str(tmp_path / sampler)
        assert trl_demo.main(["--sampler", sampler, *small, out]) == 0
        assert f"{out}: " in capfd.readouterr().out
        assert (tmp_path / sampler / "model.safetensors").is_file()
