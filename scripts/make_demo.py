"""Makes `demo/` from nothing: a tiny base model and graded problems, a miniature of the paper's setting.

A problem starts at a three-digit number and applies a chain of words to it. Every word stands for a rule, and
a solution writes out, for each word, the rule and the number it gives:

    Start at 473. Apply molo bami.     ->     473 molo roll 734 bami rise 845 \\boxed{845}

The base model is trained on *noisy* demonstrations: each word is read rightly at its own rate, from nearly
always to nearly never, and otherwise by one wrong habit. So the model knows every rule in latent form, as a
pretrained model does, and p(problem) = product of the rates of its words: smooth, and readable from the text.

    python scripts/make_demo.py --out demo --seed 0
"""

import argparse
import itertools
import json
import math
import random
import re
import time
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast

TEMPERATURE = 0.7  # the rates below hold when sampling at this temperature
GROUP_SIZE = 16
FOOTER = "Solution:"  # the student's prompt is the question, a blank line, the footer
LENGTHS = (1, 2, 3, 4, 5, 6)  # words in a problem: one of these
TRAIN, VALIDATION = 16_000, 360

# A rule moves the digits (output j is input digit source[j]), then adds to each, counting 9, 1, 2 past nine.
# Digits are 1 to 9, so equal numbers are equal texts.
RULES = {
    "roll": ((1, 2, 0), (0, 0, 0)),
    "back": ((2, 0, 1), (0, 0, 0)),
    "flip": ((2, 1, 0), (0, 0, 0)),
    "swap": ((1, 0, 2), (0, 0, 0)),
    "tail": ((0, 2, 1), (0, 0, 0)),
    "rise": ((0, 1, 2), (1, 1, 1)),
    "fall": ((0, 1, 2), (8, 8, 8)),
    "leap": ((0, 1, 2), (4, 4, 4)),
    "head": ((0, 1, 2), (3, 0, 0)),
    "core": ((0, 1, 2), (0, 5, 0)),
    "foot": ((0, 1, 2), (0, 0, 2)),
    "ends": ((0, 1, 2), (6, 0, 6)),
}
# 48 invented words of one token each.
WORDS = [
    a + b
    for a in ("ba", "do", "fe", "gi", "la", "mo", "ve", "ze")
    for b in ("lo", "mi", "nu", "ra", "sev", "ta")
]
# Rates at TEMPERATURE: log-odds fall from nearly always to nearly never; the power < 1 lengthens the tail.
BEST, WORST, POWER = 0.998, 0.002, 0.75


def make_skills(seed, best=BEST, worst=WORST, power=POWER):
    """Word -> (its rule, its wrong habit, its rate of the rule at TEMPERATURE)."""
    rng = random.Random(seed)
    high, low = torch.tensor([best, worst], dtype=torch.float64).logit()
    rates = (
        high + (low - high) * torch.linspace(0, 1, len(WORDS), dtype=torch.float64) ** power
    ).sigmoid()
    words = rng.sample(WORDS, len(WORDS))
    return {
        w: (*rng.sample(sorted(RULES), 2), rate)
        for w, rate in zip(words, rates.tolist(), strict=True)
    }


def apply_rule(rule, state):
    """The three-digit state (a string) after a rule (a key of RULES)."""
    source, add = RULES[rule]
    return "".join(str((int(state[s]) - 1 + a) % 9 + 1) for s, a in zip(source, add, strict=True))


def question(state, words):
    """The problem's text."""
    return f"Start at {state}. Apply {' '.join(words)}."


def parse(problem):
    """(state, words) of a problem's text: the inverse of `question`."""
    state, words = re.fullmatch(r"Start at (\d+)\. Apply ([a-z ]+)\.", problem).groups()
    return state, words.split()


def solution(state, words, rules):
    """The written solution that reads words[i] as rules[i]; it follows the prompt directly."""
    text = f" {state}"
    for word, rule in zip(words, rules, strict=True):
        state = apply_rule(rule, state)
        text += f" {word} {rule} {state}"
    return rf"{text} \boxed{{{state}}}"


def boxed(text):
    """Content of the last box of a completion, or None."""
    found = re.findall(r"\\boxed\{(\d*)\}", text)
    return found[-1] if found else None


def solve(problem, skills):
    """The gold answer, a string of three digits."""
    state, words = parse(problem)
    return boxed(solution(state, words, [skills[w][0] for w in words]))


def pass_rate(problem, skills):
    """p of one completion at TEMPERATURE by design: the product of the rates of its words."""
    return math.prod(skills[w][2] for w in parse(problem)[1])


def errors_can_cancel(state, words, skills):
    """Whether some choice of wrong habits still ends at the right answer: then p is no plain product."""
    right, wrong = state, set()
    for rule, habit, _ in (skills[w] for w in words):
        wrong = {apply_rule(r, s) for s in wrong for r in (rule, habit)} | {
            apply_rule(habit, right)
        }
        right = apply_rule(rule, right)
    return right in wrong


def draw(rng, skills, lengths=LENGTHS):
    """One (state, words): a length of `lengths`, then words without repetition and digits uniform."""
    length = rng.choice(lengths)
    while True:
        words = rng.sample(WORDS, length)
        state = "".join(rng.choices("123456789", k=3))
        if not errors_can_cancel(state, words, skills):
            return state, words


def make_problems(count, skills, seed, lengths=LENGTHS):
    """`count` distinct rows: problem, expected_answer, length in words, difficulty = -log2 p in bits."""
    rng, rows = random.Random(seed + 1), {}
    while len(rows) < count:
        problem = question(*draw(rng, skills, lengths))
        rows[problem] = {
            "problem": problem,
            "expected_answer": solve(problem, skills),
            "length": len(parse(problem)[1]),
            "difficulty": round(-math.log2(pass_rate(problem, skills)), 2),
        }
    return list(rows.values())


def make_tokenizer():
    """One token a word, a rule, a digit; decoding gives the text back exactly."""
    pieces = ["Start at", ". Apply", ".", "\n\n", FOOTER, " ", r" \boxed{", "}", *"0123456789"]
    pieces += [f" {w}" for w in (*WORDS, *RULES)]
    vocabulary = {piece: i for i, piece in enumerate(["<pad>", "<eos>", "<unk>", *pieces])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    pattern = "|".join(re.escape(piece) for piece in sorted(pieces, key=len, reverse=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer, seed, hidden=96, layers=3):
    """A fresh tiny OLMo-2 in float32 (AutoTokenizer leaves its tokenizer as saved; Qwen2's it rebuilds)."""
    torch.manual_seed(seed)
    config = Olmo2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Olmo2ForCausalLM(config)


def demonstration(rng, skills, lengths=LENGTHS):
    """Prompt + noisy solution + EOS. Sampling at T takes odds to odds^(1/T): the demonstrations undo that."""
    state, words = draw(rng, skills, lengths)
    rules = []
    for rule, habit, rate in (skills[w] for w in words):
        odds = (rate / (1 - rate)) ** TEMPERATURE
        rules.append(rule if rng.random() < odds / (1 + odds) else habit)
    return f"{question(state, words)}\n\n{FOOTER}{solution(state, words, rules)}<eos>"


def train_base(
    model,
    tokenizer,
    skills,
    seed,
    steps,
    lengths=LENGTHS,
    batch_size=64,
    learning_rate=6e-3,
    warmup=100,
):
    """Supervised training on fresh noisy demonstrations; the loss is on the completion alone."""
    rng = random.Random(seed + 2)
    footer = tokenizer.convert_tokens_to_ids(FOOTER)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(  # a linear rise, then a linear fall to zero
        optimizer, lambda t: min((t + 1) / warmup, (steps - t) / max(steps - warmup, 1))
    )
    start = time.time()
    for step in range(1, steps + 1):
        texts = [demonstration(rng, skills, lengths) for _ in range(batch_size)]
        # Padding on the right: under causal attention no earlier token sees it, so no mask is needed.
        tokens = tokenizer(
            texts, padding=True, padding_side="right", return_tensors="pt"
        ).input_ids  # (B, T)
        in_completion = (tokens == footer).cumsum(1).bool() & (tokens != footer)
        labels = tokens.masked_fill(~in_completion | (tokens == tokenizer.pad_token_id), -100)
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(
                f"base {step}/{steps}  loss {loss.item():.4f}  {time.time() - start:.0f} s",
                flush=True,
            )


def complete(model, tokenizer, problems, temperature=0.0, rows=512, max_new_tokens=64):
    """One completion text per problem (EOS and padding removed); temperature 0 is greedy."""
    settings = {"do_sample": False}
    if temperature > 0:
        settings = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    texts = []
    for i in range(0, len(problems), rows):
        prompts = [f"{p}\n\n{FOOTER}" for p in problems[i : i + rows]]
        batch = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
        out = model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            max_new_tokens=max_new_tokens,
            **settings,
        )
        texts += tokenizer.batch_decode(
            out[:, batch.input_ids.shape[1] :], skip_special_tokens=True
        )
    return texts


def graded(model, tokenizer, rows, copies, temperature, max_new_tokens=64):
    """Whether each of `copies` completions of each problem is right: (P, copies) of 0. and 1."""
    asked = [row for row in rows for _ in range(copies)]
    problems = [row["problem"] for row in asked]
    texts = complete(model, tokenizer, problems, temperature, max_new_tokens=max_new_tokens)
    right = [
        float(boxed(text) == row["expected_answer"]) for text, row in zip(texts, asked, strict=True)
    ]
    return torch.tensor(right).view(-1, copies)


def readability(train, validation, skills):
    """R^2 on validation of log-odds of p fitted (ridge, on training problems) to which words a problem has."""

    def features(rows):
        words = [parse(row["problem"])[1] for row in rows]
        x = torch.tensor([[1.0, *(float(w in ws) for w in WORDS)] for ws in words])
        return x, torch.tensor([pass_rate(row["problem"], skills) for row in rows]).logit()

    (x, y), (x_val, y_val) = features(train), features(validation)
    ridge = torch.linalg.solve(x.T @ x + 0.1 * torch.eye(x.shape[1]), x.T @ y)
    return 1 - ((x_val @ ridge - y_val).var() / y_val.var()).item()


def measure(model, tokenizer, validation, seed):
    """The base model on validation problems, all and by length and difficulty: name -> column -> number."""
    torch.manual_seed(seed)
    p_hat = graded(model, tokenizer, validation, GROUP_SIZE, TEMPERATURE).mean(1)
    greedy = graded(model, tokenizer, validation, 1, 0.0)[:, 0]
    length, bits = (
        torch.tensor([row[key] for row in validation]) for key in ("length", "difficulty")
    )
    where = {"all": length > 0} | {f"{n} words": length == n for n in LENGTHS}
    edges = [0, 0.1, 0.5, 1, 2, 4, 8, 16, 99]
    where |= {f"{a:g}-{b:g} bits": (bits >= a) & (bits < b) for a, b in itertools.pairwise(edges)}
    columns = {
        "p_designed": bits.neg().exp2(),
        "p_sampled": p_hat,
        "all_wrong": (p_hat == 0).float(),
        "all_right": (p_hat == 1).float(),
        "greedy": greedy,
    }
    return {
        name: {"problems": int(rows.sum())}
        | {c: round(v[rows].mean().item(), 4) for c, v in columns.items()}
        for name, rows in where.items()
    }


def main():
    """Make the folder, then print the table of statistics."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder to write (default: demo)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of rates, problems and training (default: 0)"
    )
    parser.add_argument(
        "--steps", type=int, default=1500, help="supervised steps of the base (default: 1500)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order, whatever the machine's cores; about four minutes

    skills = make_skills(args.seed)
    rows = make_problems(TRAIN + VALIDATION, skills, args.seed)
    validation, train = rows[:VALIDATION], rows[VALIDATION:]
    args.out.mkdir(parents=True, exist_ok=True)
    for name, part in ("train", train), ("val", validation):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (args.out / f"{name}.jsonl").write_text(text, encoding="utf-8")

    tokenizer = make_tokenizer()
    model = make_model(tokenizer, args.seed)
    train_base(model, tokenizer, skills, args.seed, args.steps)
    model.save_pretrained(args.out / "model")
    tokenizer.save_pretrained(args.out / "model")

    report = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "temperature": TEMPERATURE,
        "group_size": GROUP_SIZE,
        "r2_log_odds_from_words": round(readability(train, validation, skills), 4),
        "validation": measure(model.eval(), tokenizer, validation, args.seed),
        "skills": {w: [rule, habit, round(rate, 4)] for w, (rule, habit, rate) in skills.items()},
    }
    (args.out / "statistics.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print({key: value for key, value in report.items() if not isinstance(value, dict)})
    print(f"{'':12s}" + "".join(f"{column:>12s}" for column in report["validation"]["all"]))
    for name, row in report["validation"].items():
        print(f"{name:12s}" + "".join(f"{value:12.4g}" for value in row.values()))


if __name__ == "__main__":
    main()
