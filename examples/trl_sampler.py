"""Let TRL's GRPOTrainer draw its training prompts from a sampler of this project.

    trainer = SampledTrainer(sampler, model, reward, GRPOConfig(...), train_dataset)
    trainer.train(resume_from_checkpoint=...)

examples/trl_demo.py is a whole script. The sampler proposes at each batch that TRL generates, and
observes its rewards. Each process of accelerate or torchrun holds a replica, which proposes the
same problems, takes its share, and observes the rewards of all. TRL's checkpoints hold its state.

Some samplers need this project's train.py and are rejected: those with a teacher network, which
learns on ranks of its own while the student trains (goldilocks), with further rounds in a step
(greso), or with groups of unlike sizes (knapsack).
"""

from pathlib import Path

from transformers import TrainerCallback
from trl import GRPOTrainer

from grpo import Completion
from plumbing.errors import InputError
from plumbing.plugins import check_proposals
from plumbing.run import checkpoint
from sampler import Sampler


class SampledTrainer(GRPOTrainer):
    """GRPOTrainer with a sampler of problems, which are the rows of train_dataset. The first reward
    function must return 0 or 1. The two methods are internal ones of TRL 1.16.0."""

    def __init__(self, sampler: Sampler, *arguments, **keywords):
        if sampler.uses_teacher or sampler.chooses_groups():
            name = type(sampler).__name__
            raise InputError(f"sampler {name}: has a teacher network or rounds: use train.py")
        super().__init__(*arguments, **keywords)
        self.sampler = sampler
        self.add_callback(SamplerState(sampler))

    def _generate_and_score_completions(self, inputs: list[dict]):
        """Replace this process's share of a batch, a row for each completion, by proposals."""
        if self.model.training:  # evaluation has its own prompts
            n = self.args.generation_batch_size // self.num_generations
            self.groups = self.sampler.propose(n)
            check_proposals(self.groups, len(self.train_dataset))
            sizes = [group.size for group in self.groups]
            if sizes != [self.num_generations] * n:
                wanted = f"{n} groups of {self.num_generations}"
                raise InputError(f"the sampler proposes groups of {sizes}, TRL needs {wanted}")
            rows = [self.train_dataset[g.problem] for g in self.groups for _ in range(g.size)]
            first = self.accelerator.process_index * len(inputs)
            inputs = rows[first : first + len(inputs)]
        return super()._generate_and_score_completions(inputs)

    def _calculate_rewards(self, *arguments):
        """Return the rewards of all processes, completions by functions, after the sampler."""
        rewards_B_R = super()._calculate_rewards(*arguments)
        if self.model.training:
            rewards_P_G = rewards_B_R[:, 0].reshape(len(self.groups), -1).tolist()
            for group, rewards_G in zip(self.groups, rewards_P_G, strict=True):
                if not set(rewards_G) <= {0, 1}:
                    raise InputError(f"problem {group.problem}: rewards {rewards_G}, not 0 or 1")
                group.completions = [Completion([], [], True, reward=r) for r in rewards_G]
            self.sampler.observe(self.groups)
        return rewards_B_R


class SamplerState(TrainerCallback):
    """Writes the sampler's state into each checkpoint, and loads it from the one in output_dir that
    TRL resumes."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler

    def on_save(self, args, state, control, **_):
        if state.is_world_process_zero:
            file_of(args, state).write_bytes(checkpoint.pack(self.sampler.state_dict()))

    def on_train_begin(self, args, state, control, **_):
        if state.global_step:
            self.sampler.load_state_dict(checkpoint.unpack(file_of(args, state)))


def file_of(args, state) -> Path:
    return Path(args.output_dir, f"checkpoint-{state.global_step}", "sampler.pt")
