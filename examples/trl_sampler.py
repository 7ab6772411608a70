"""Let TRL's GRPOTrainer draw its training prompts from a sampler of this project.

    trainer = SampledTrainer(sampler, model, reward, GRPOConfig(...), train_dataset)
    trainer.train(resume_from_checkpoint=True)

examples/trl_demo.py is a whole script. The sampler proposes at each batch that TRL generates, and
observes its rewards. Each process of accelerate or torchrun holds a replica, which proposes the
same problems, takes its share, and observes the rewards of all. TRL's checkpoints hold its state.

Some samplers need this project's train.py and are rejected: those with a teacher network, which
learns on ranks of its own while the student trains (goldilocks), with further rounds in a step
(speed), or with groups of unlike sizes (knapsack).
"""

import json
import pickle
import zlib
from pathlib import Path

from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOTrainer

from grpo import Completion
from plumbing.errors import InputError, first_lines
from plumbing.files import write_atomic
from plumbing.run import checkpoint
from plumbing.run.facts import CANDIDATES, differences
from sampler import Sampler, check_proposals

STATE = "sampler.pt"  # the first file of a checkpoint
TRL_STATE = "trainer_state.json"  # the last
WEIGHTS = "model.safetensors"  # of a finished run whose checkpoints were deleted
SETTINGS = (  # of TRL's, what a step depends on
    "seed",
    "num_generations",
    "generation_batch_size",
    "num_iterations",
    "max_completion_length",
    "temperature",
    "loss_type",
    "scale_rewards",
    "beta",
    "learning_rate",
    "max_grad_norm",
)


def check_sampler(cls: type[Sampler]) -> None:
    """Raise InputError if samplers of this class need train.py."""
    if cls.uses_teacher or cls.has_own_rounds():
        name = cls.__name__
        raise InputError(f"sampler {name}: has a teacher network or rounds: use train.py")


def numbers(sampler: Sampler) -> dict[str, int | float]:
    """Return the numbers among a new sampler's attributes: its settings, and counts of 0."""
    return {name: x for name, x in vars(sampler).items() if isinstance(x, int | float)}


class SampledTrainer(GRPOTrainer):
    """GRPOTrainer with a sampler of problems, which are the rows of train_dataset. The first reward
    function must return rewards in [0, 1]. A run resumes only with the sampler, the rows and the
    SETTINGS that it began with. The methods with an underscore are internal ones of TRL 1.16.0 and
    transformers 5.
    """

    def __init__(self, sampler: Sampler, *arguments, **keywords):
        check_sampler(type(sampler))
        super().__init__(*arguments, **keywords)
        self.sampler = sampler
        self.n = self.args.generation_batch_size // self.num_generations
        n_rows = len(self.train_dataset)
        if n_rows < self.n:  # TRL would train nothing and report no error
            raise InputError(f"train_dataset has {n_rows} rows, a batch takes {self.n} prompts")
        rows = json.dumps(list(self.train_dataset), default=str)
        self.facts = {
            "sampler": type(sampler).__name__,
            "sampler_numbers": numbers(sampler),
            "rows": zlib.crc32(rows.encode()),
        }
        self.facts |= CANDIDATES
        self.facts |= {name: getattr(self.args, name) for name in SETTINGS}

    def train(self, resume_from_checkpoint: bool | str | None = None, **keywords):
        """Train as TRL does. True resumes from the newest checkpoint in output_dir, or starts anew
        without one. Raises InputError if it is of another run or cannot be resumed, or if the run
        has finished."""
        folder = resume_from_checkpoint
        if folder is True:
            output_dir = Path(self.args.output_dir)
            folder = get_last_checkpoint(output_dir)
            if not folder and (output_dir / WEIGHTS).exists():
                raise InputError(f"{output_dir} has a model, but no checkpoint: use another")
        if folder:
            self.load_sampler(Path(folder))
        return super().train(folder and str(folder), **keywords)

    def load_sampler(self, folder: Path) -> None:
        """Load the sampler's state from a checkpoint. A run that was killed while it saved may have
        left one without TRL_STATE."""
        try:
            saved = checkpoint.unpack((folder / STATE).read_bytes())
            state = json.loads((folder / TRL_STATE).read_text())
        except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
            reason = first_lines(error)
            raise InputError(f"{folder} cannot be resumed ({reason}): delete it") from error
        if changes := differences(saved["facts"], self.facts):
            raise InputError(
                f"{folder} is of another run: {'; '.join(changes)}; undo that, or use another "
                "output_dir"
            )
        steps = self.args.max_steps
        if steps <= 0:  # not given
            steps = state["max_steps"]
        if state["global_step"] >= steps:
            raise InputError(f"{folder}: the run has finished")  # TRL would train one step more
        self.sampler.load_state_dict(saved["state"])

    def _save_checkpoint(self, model, trial) -> None:
        """Write the sampler's state before TRL's files, of which TRL_STATE is the last."""
        if self.is_world_process_zero():
            state = {
                "facts": self.facts,
                "state": self.sampler.state_dict(),
            }
            folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
            (folder / TRL_STATE).unlink(missing_ok=True)
            write_atomic(folder / STATE, checkpoint.pack(state))
        super()._save_checkpoint(model, trial)

    def _generate_and_score_completions(self, inputs: list[dict]):
        """Replace this process's share of a batch, a row for each completion, by proposals."""
        if self.model.training:  # evaluation has its own prompts
            problem_B = self.propose()
            first = self.accelerator.process_index * len(inputs)
            own_B = problem_B[first : first + len(inputs)]
            inputs = [self.train_dataset[problem] for problem in own_B]
        return super()._generate_and_score_completions(inputs)

    def propose(self) -> list[int]:
        """Return the problem of each completion of the next batch, of all processes."""
        self.groups = self.sampler.propose(self.n)
        check_proposals(self.groups, len(self.train_dataset))
        G = self.num_generations
        sizes = [group.size for group in self.groups]
        if sizes != [G] * self.n:
            raise InputError(f"the sampler proposes groups of {sizes}, which TRL cannot take")
        problem_B = []
        for group in self.groups:
            problem_B += [group.problem] * G
        return problem_B

    def _calculate_rewards(self, *arguments):
        """Let the sampler observe the rewards of all processes, and return them: completions by
        functions."""
        rewards_B_R = super()._calculate_rewards(*arguments)
        if self.model.training:
            rewards_P_G = rewards_B_R[:, 0].reshape(len(self.groups), -1)
            for group, rewards_G in zip(self.groups, rewards_P_G.tolist(), strict=True):
                if not all(0 <= reward <= 1 for reward in rewards_G):  # false for NaN, too
                    raise InputError(
                        f"problem {group.problem}: rewards {rewards_G}, not all in [0, 1]"
                    )
                group.completions = [
                    Completion([], [], finished=True, reward=reward) for reward in rewards_G
                ]
            self.sampler.observe(self.groups)
        return rewards_B_R
