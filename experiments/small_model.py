r"""A small language model, trained from nothing on the easy levels of the reasoning-gym tasks.

    python -m experiments.small_model --out models/small

It answers the same problems as a pretrained model after `cold_start`, at a hundredth of the price,
so that many seeds and samplers can be compared before the real model runs. The vocabulary is
byte-pair encoding of the problems and demonstrations; each digit is a token of its own.
"""

import random
from argparse import Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Olmo2ForCausalLM, PreTrainedTokenizerFast

from experiments.cold_start import FORMAT, add_direct, demonstrations, fit, supervised_rows
from experiments.supervised import make_olmo2
from plumbing import command_line
from plumbing.config import Config
from rollout import Policy
from scripts.analysis import one_line
from scripts.reasoning_tasks import rows

VOCABULARY = 1024
PER_LEVEL = 4000  # problems generated for each easy level
# Of the problems. prepare_data has another seed, but an easy level has so few problems (sums of two
# digits) that many are also in its validation data.
DATA_SEED = 7


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Train a byte-pair encoding in which no token has more than one digit."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d"), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<eos>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Olmo2ForCausalLM:
    """Return a fresh OLMo-2 of 3 M parameters in float32."""
    sizes = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6}
    sizes |= {"num_attention_heads": 6, "max_position_embeddings": 256}
    return make_olmo2(tokenizer, seed, **sizes)


def arguments(argv: list[str] | None) -> Namespace:
    """Parse the command line. Raises ValueError, in one line."""
    parser = command_line.Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=command_line.user_path, required=True, help="directory of the new model")
    add("--easy", type=command_line.count, default=2, help="levels that are shown [%(default)s]")
    add("--steps", type=command_line.count, default=2000, help="[%(default)s]")
    add("--batch", type=command_line.count, default=64, help="demonstrations a step [%(default)s]")
    add("--learning_rate", type=command_line.non_negative, default=2e-3, help="[%(default)s]")
    add_direct(parser)
    add("--seed", type=int, default=0, help="[%(default)s]")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    with one_line("small_model", ValueError):
        args = arguments(argv)
        Path(args.out).mkdir(parents=True, exist_ok=True)  # before the work
        rng = random.Random(args.seed)
        easy = [row for row in rows(DATA_SEED, PER_LEVEL, args.easy) if row["expected_answer"]]
        shown = demonstrations(easy, args.direct, rng)
        footer = FORMAT["prompt_footer"]
        texts = [f"{problem}\n\n{footer}{completion}" for problem, completion in shown]
        tokenizer = make_tokenizer(texts)
        model = make_model(tokenizer, args.seed)
        policy = Policy(model)
        policy.lm.set_attn_implementation("shared_prompts")
        config = Config(**FORMAT)
        encoded = supervised_rows(shown, config, tokenizer, tokenizer.eos_token_id)
        fit(policy, encoded, args.steps, args.batch, args.learning_rate, rng)
        tokenizer.save_pretrained(args.out)
        model.save_pretrained(args.out)


if __name__ == "__main__":
    main()
