"""Train the demo's model with TRL's GRPOTrainer on prompts from a sampler of this project.

    pip install -r requirements.txt trl==1.16.0
    python -m examples.trl_demo --sampler uniform           # the baseline
    python -m examples.trl_demo --sampler bag_of_words
    python -m examples.trl_demo --sampler embedded          # after python -m scripts.embed

The other flags are those of train.py that USED names. Run a command again to resume. It prints the
share of dead groups, and saves the model, which `python -m scripts.evaluate` takes. Several
processes, under torchrun, must be able to share prompts_per_step × group_size completions equally.
"""

import sys
from pathlib import Path

import pandas as pd
from transformers import AutoTokenizer

import train
from plumbing import command_line
from plumbing.config import Config
from plumbing.data.problems import Problems
from plumbing.distributed.launch import launch
from plumbing.errors import InputError
from rollout import PromptEncoder
from sampler import find_sampler
from scripts.command import exit_on_error
from verify import Verifier, opened_thinking

# The flags of train.py that this trainer uses
USED = {
    "preset",
    "seed",
    "device",
    "model",
    "train_data",
    "reward",
    "verify_workers",
    "out",
    "steps",
    "prompts_per_step",
    "group_size",
    "temperature",
    "learning_rate",
    "max_prompt_tokens",
    "max_completion_tokens",
    "prompt_header",
    "prompt_footer",
    "chat_template",
    "sampler",
    "sampler_args",
    "candidates",
    "epsilon",
    "column",
    "checkpoint_every",
    "keep",
}


def trl_config(c: Config, **changes):
    """Return TRL's GRPOConfig for a config: one update a batch, and the loss of `--loss grpo`.
    Raises InputError if the processes cannot share the completions of a step equally."""
    from trl import GRPOConfig

    rows, rest = divmod(c.prompts_per_step * c.group_size, launch().world)
    if rest:
        raise InputError("prompts_per_step x group_size: must be a multiple of the processes")
    settings = {
        "seed": c.seed,
        "max_steps": c.steps,
        "num_generations": c.group_size,
        "per_device_train_batch_size": rows,
        "max_completion_length": c.max_completion_tokens,
        "temperature": c.temperature,
        "loss_type": "grpo",
        "learning_rate": c.learning_rate,
        "lr_scheduler_type": "constant",
        "bf16": False,  # TRL's default on a CPU too, which would leave three digits
        "model_init_kwargs": {"dtype": "float32"},
        "gradient_checkpointing": False,
        "use_cpu": c.device == "cpu",
        "logging_steps": 1,
        "save_steps": c.checkpoint_every,
        "save_total_limit": c.keep,
        "report_to": "none",
    }
    return GRPOConfig(c.out, **settings | changes)


def build_trainer(c: Config, verifier: Verifier, **changes):
    """Build a trainer of the config's model, data and sampler, with `changes` of TRL's settings.
    Raises ImportError without TRL."""
    from datasets import Dataset  # a dependency of TRL

    from examples.trl_sampler import SampledTrainer, check_sampler

    check_sampler(find_sampler(c.sampler))
    problems = Problems(c.train_data, c.column)
    tokenizer = AutoTokenizer.from_pretrained(c.model)
    encode = PromptEncoder(c, tokenizer)
    index_N = list(range(len(problems)))

    def verified(completions, completion_ids, problem, **_) -> list[float]:
        """Grade as train.py does: with the special tokens, of which TRL's texts have none and some
        mark thinking, and with a mark of thinking that the prompt ends in."""
        texts = []
        for ids, index in zip(completion_ids, problem, strict=True):
            is_ended = ids[-1:] and ids[-1] in tokenizer.all_special_ids
            text = tokenizer.decode(ids[:-1] if is_ended else ids)
            texts.append(opened_thinking(encode.answer_start(problems.question(index))) + text)
        verdicts = verifier.grade(texts, *problems.golds(problem))
        return [verdict.reward for verdict in verdicts]

    prompts = [encode.text(problems.question(i)) for i in index_N]
    golds, _ = problems.golds(index_N)  # so that a resumed run is checked for other answers
    rows = Dataset.from_dict({"prompt": prompts, "problem": index_N, "gold": golds})
    sampler = train.build_sampler(c, None, problems)  # only a teacher needs a layout
    return SampledTrainer(sampler, c.model, verified, trl_config(c, **changes), rows)


def main(argv: list[str]) -> None:
    """Train, save the model in --out, and print the share of dead groups over the steps."""
    parser = command_line.Parser(__doc__)
    command_line.add_fields(parser, Config, USED)
    with exit_on_error("trl_demo"):
        given = parser.parse_args(argv)  # rejects flags that this trainer would ignore
        c = train.parse(["--preset", "demo", "--sampler", "uniform", *argv])
        if "out" not in given:
            c.out = f"runs/trl-{Path(c.sampler).name.lower()}-seed{c.seed}"
        with Verifier(workers=c.verify_workers, reward=c.reward) as verifier:
            trainer = build_trainer(c, verifier)
            trainer.train(resume_from_checkpoint=True)
    trainer.save_model(c.out)
    dead = pd.DataFrame(trainer.state.log_history).frac_reward_zero_std.dropna()
    print(f"{c.out}: {dead.mean():.1%} dead groups in {len(dead)} steps")


if __name__ == "__main__":
    main(sys.argv[1:])
