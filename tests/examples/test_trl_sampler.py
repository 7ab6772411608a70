"""TRL's GRPOTrainer with our samplers, where TRL is installed: `pytest -m hour tests/examples`."""

import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from grpo import Group
from plumbing.data.problems import Problems
from plumbing.distributed.launch import Launch
from plumbing.errors import InputError
from plumbing.files import read_lines, write_lines
from plumbing.run import checkpoint
from tests.helpers import ranks
from tests.helpers.checks import rejected
from tests.helpers.groups import problems_of
from tests.helpers.ranks import after, on_ranks, parse

TRL = importlib.util.find_spec("trl")
pytestmark = [
    pytest.mark.hour,
    pytest.mark.skipif(not TRL, reason="needs TRL: pip install trl==1.16.0"),
    pytest.mark.filterwarnings("ignore"),  # about settings that transformers has renamed
]


class Grades(ranks.Grades):
    """Keeps the completions and the reference answers it is given."""

    def __init__(self):
        self.texts = []
        self.golds = []

    def grade(self, completions, golds, extras):
        self.texts.append(completions)
        self.golds.append(golds)
        return super().grade(completions, golds, extras)


def config(out, data, sampler, **changes):
    """Return the demo's settings for small steps. changes: other settings."""
    flags = "--preset demo --steps 4 --prompts_per_step 3 --group_size 4 --checkpoint_every 2"
    paths = "--out", out, "--train_data", data / "train.jsonl"
    return replace(parse(*flags.split(), "--sampler", sampler, *paths), **changes)


def recorded(config) -> SimpleNamespace:
    """Build a trainer; record the problems and the rewards of each batch, and the golds."""
    from examples.trl_demo import build_trainer

    grades = Grades()
    trainer = build_trainer(config, grades)
    run = SimpleNamespace(
        trainer=trainer, proposed=[], observed=[], golds=grades.golds, texts=grades.texts
    )

    def record(*_):
        run.proposed.append(problems_of(trainer.groups))
        run.observed.append([[o.reward for o in group.completions] for group in trainer.groups])

    after(trainer, "_calculate_rewards", record)
    return run


def weights(run) -> torch.Tensor:
    return parameters_to_vector(run.trainer.model.parameters())


def test_a_resumed_run_is_bit_identical(tmp_path, halfway):
    whole = recorded(config(tmp_path / "whole", halfway, "bag_of_words"))
    whole.trainer.train()
    resumed = recorded(config(tmp_path / "resumed", halfway, "bag_of_words"))
    resumed.trainer.train(resume_from_checkpoint=tmp_path / "whole" / "checkpoint-2")
    assert resumed.proposed == whole.proposed[2:]
    assert resumed.observed == whole.observed[2:]
    assert torch.equal(weights(resumed), weights(whole))


@pytest.fixture
def stopped(tmp_path, halfway):
    """A trainer whose checkpoint-4, the last, has the sampler's state and TRL's."""
    run = recorded(config(tmp_path / "run", halfway, "bag_of_words"))
    folder = tmp_path / "run/checkpoint-4"
    folder.mkdir()
    state = {"facts": run.trainer.facts, "state": run.trainer.sampler.state_dict()}
    (folder / "sampler.pt").write_bytes(checkpoint.pack(state))
    (folder / "trainer_state.json").write_text('{"global_step": 4, "max_steps": 4}')
    return run.trainer


def test_a_resume_with_other_settings_is_rejected_also_of_a_finished_run(
    stopped, tmp_path, halfway
):
    other = recorded(config(tmp_path / "run", halfway, "noisy_and", seed=1, temperature=0.5))
    differences = (
        "sampler was 'BagOfWords', is 'NoisyAnd'; sampler_numbers was .*; seed was 0, is 1"
    )
    with pytest.raises(InputError, match=f"checkpoint-4 is of another run: {differences}"):
        other.trainer.train(resume_from_checkpoint=True)
    with rejected("checkpoint-4: the run has finished"):
        stopped.train(resume_from_checkpoint=True)


def test_a_model_without_a_checkpoint_is_not_trained_again(tmp_path, halfway):
    trainer = recorded(config(tmp_path, halfway, "uniform")).trainer
    (tmp_path / "model.safetensors").touch()
    with rejected("has a model, but no checkpoint"):
        trainer.train(resume_from_checkpoint=True)


def test_completions_are_graded_with_the_thinking_that_the_prompt_opens(tmp_path, halfway):
    """TRL's own texts lack special tokens. The end token alone is no part of the answer."""
    run = recorded(config(tmp_path, halfway, "uniform", prompt_footer="<think>"))
    [verified] = run.trainer.reward_funcs
    tokenizer = run.trainer.processing_class
    ids = [tokenizer.unk_token_id, *tokenizer("7", add_special_tokens=False).input_ids]
    ids.append(tokenizer.eos_token_id)
    verified(completions=["7"], completion_ids=[ids], problem=[0])
    assert run.texts == [[f"<think>{tokenizer.decode(ids[:-1])}"]]
    assert tokenizer.unk_token in run.texts[0][0]


def test_fewer_rows_than_a_batch_are_rejected(tmp_path, halfway):
    write_lines(tmp_path / "train.jsonl", read_lines(halfway / "train.jsonl")[:2])
    with rejected("2 rows, a batch takes 3 prompts"):
        recorded(config(tmp_path / "run", tmp_path, "uniform"))


def test_completions_that_the_processes_cannot_share_equally_are_rejected(
    tmp_path, halfway, monkeypatch
):
    from examples import trl_demo

    monkeypatch.setattr(trl_demo, "launch", lambda: Launch(4, 0, 0))
    with rejected("must be a multiple of the processes"):
        trl_demo.trl_config(config(tmp_path, halfway, "uniform", prompts_per_step=5, group_size=2))


def test_evaluation_does_not_ask_the_sampler(tmp_path, halfway):
    from examples.trl_demo import build_trainer

    trainer = build_trainer(config(tmp_path, halfway, "uniform"), Grades())
    trainer.evaluate(trainer.train_dataset.select(range(8)))
    assert not hasattr(trainer, "groups")


@pytest.mark.parametrize("sampler", ["goldilocks", "speed"])
def test_a_sampler_with_a_teacher_or_rounds_is_rejected(tmp_path, halfway, sampler):
    with rejected("has a teacher network or rounds"):
        recorded(config(tmp_path, halfway, sampler))


def test_groups_of_unlike_sizes_are_rejected(tmp_path, halfway):
    trainer = recorded(config(tmp_path, halfway, "uniform")).trainer
    trainer.sampler.propose = lambda P: [Group(problem, 3 + problem) for problem in range(P)]
    with rejected("groups of [3, 4, 5]"):
        trainer.train()


def test_rewards_outside_of_0_to_1_are_rejected(tmp_path, halfway):
    """Those of the first batch are within, of the second not."""
    run = recorded(config(tmp_path, halfway, "uniform"))
    rewards = iter([0.5, 1.5])
    run.trainer.reward_funcs[0] = lambda completions, **_: [next(rewards)] * len(completions)
    with rejected("not all in [0, 1]"):
        run.trainer.train()
    assert run.observed == [[[0.5] * 4] * 3]


def recorded_on_a_rank(out, data):
    run = recorded(config(out, data, "bag_of_words"))
    run.trainer.train()
    records = [None, None]
    torch.distributed.all_gather_object(records, (run.proposed, run.observed, run.golds))
    return records, run.trainer.state.log_history


def test_two_processes_train_on_the_proposals_and_the_sampler_sees_their_rewards(tmp_path, halfway):
    """Both propose and observe alike, and each has half of the rows."""
    records, log = on_ranks(2, tmp_path, recorded_on_a_rank, tmp_path / "run", halfway)
    (proposed, observed, golds), (*alike, golds_1) = records
    assert alike == [proposed, observed]
    problems = Problems(halfway / "train.jsonl")
    for indices, half, half_1 in zip(proposed, golds, golds_1, strict=True):
        assert half + half_1 == [gold for gold in problems.golds(indices)[0] for _ in range(4)]
    rows = [row for row in log if "reward" in row]
    for row, rewards in zip(rows, observed, strict=True):
        assert row["reward"] == pytest.approx(sum(map(sum, rewards)) / 12)
        dead = sum(len(set(group)) == 1 for group in rewards)
        assert row["frac_reward_zero_std"] == pytest.approx(dead / 3)


def test_the_demo_trains_a_model_once(tmp_path, halfway, capfd):
    from examples import trl_demo

    flags = "--steps 2 --prompts_per_step 3 --group_size 4 --sampler bag_of_words"
    flags += f" --train_data {halfway}/train.jsonl --out {tmp_path}"
    trl_demo.main(flags.split())
    assert capfd.readouterr().out.endswith(" dead groups in 2 steps\n")
    assert (tmp_path / "model.safetensors").exists()
    with pytest.raises(SystemExit):
        trl_demo.main(flags.split())
    assert "checkpoint-2: the run has finished" in capfd.readouterr().err
