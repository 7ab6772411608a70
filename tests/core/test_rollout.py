"""rollout.py: prompts, tokens and log-probs of tiny models, against a naive loop."""

import shutil

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from grpo import Completion
from plumbing.batches import collate
from plumbing.config import PROMPT_FOOTER, PROMPT_HEADER, Config
from plumbing.decoding.chat import end_of_turn
from plumbing.errors import NonFiniteError
from plumbing.models import recompute_activations
from rollout import Generator, Policy, PromptEncoder
from tests.helpers.checks import rejected
from tests.helpers.files import change
from tests.helpers.groups import completion
from tests.helpers.models import FAMILIES, save_tiny_model
from tests.helpers.ranks import DEMO
from tests.helpers.samplers import Numbers
from verify import opened_thinking

CPU = torch.device("cpu")
EOS = 1  # of the tiny tokenizer
QUESTIONS = [
    "a",
    "What is 3 + 4?",
    "hello world",
    "zz\nzz",
    "One, two, three, four, five, six, seven: how many?",
]


def make_generator(folder) -> Generator:
    return Generator.load(str(folder), CPU, AutoTokenizer.from_pretrained(folder))


@pytest.fixture(scope="module")
def generator(tiny_model):
    return make_generator(tiny_model)


@pytest.fixture(scope="module")
def prompts(generator):
    """Prompts of 1 to 50 tokens."""
    return [generator.tokenizer(question).input_ids for question in QUESTIONS]


# Prompts


@pytest.fixture
def tokenizer(tiny_model):
    """A tokenizer that puts <unk>, token 2, before every text and <eos> after it; its chat template
    does so, too."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    specials = [("<unk>", 2), ("<eos>", EOS)]
    around = TemplateProcessing(single="<unk> $A <eos>", special_tokens=specials)
    tokenizer._tokenizer.post_processor = around
    tokenizer.chat_template = "<unk>[{{ messages[0].role }}]{{ messages[0].content }}<eos>"
    tokenizer.chat_template += "{% if add_generation_prompt %}[assistant]{% endif %}"
    return tokenizer


PROMPTS = [  # settings, and the prompt of the question "1\n2": nothing stands after it
    ({}, f"<unk>{PROMPT_HEADER}\n\n1\n2\n\n{PROMPT_FOOTER}"),
    ({"prompt_header": "H", "prompt_footer": ""}, "<unk>H\n\n1\n2"),
    (
        {"prompt_footer": "", "chat_template": True},
        f"<unk>[user]{PROMPT_HEADER}\n\n1\n2<eos>[assistant]",
    ),
]


@pytest.mark.parametrize(("settings", "prompt"), PROMPTS)
def test_a_prompt_has_header_question_and_footer_and_special_tokens_before_it(
    settings, prompt, tokenizer
):
    """A prompt that ended in the end token would have nothing to continue. A chat template replaces
    the tokenizer's special tokens."""
    encode = PromptEncoder(Config(**settings), tokenizer)
    assert tokenizer.decode(encode("1\n2")) == prompt


CHANGED = {  # templates that lose or change a part of a text
    "takes parts": "{% for part in m.content %}{% if part.type %}{{ part.text }}{% endif %}"
    "{% endfor %}",
    "shortens": "{{ m.content[:400] }}",
    "one line": "{{ m.content.split() | join(' ') }}",
    "HTML": "{{ m.content | e }}",
    "constant": "{{ 'Hello' }}",
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_chat_template_that_loses_or_changes_the_problem_is_rejected(case, tokenizer):
    """The 20 problems are small numbers, which only the first and the last template lose."""
    tokenizer.chat_template = "{% set m = messages[0] %}[user]" + CHANGED[case] + "[assistant]"
    config = Config(chat_template=True, prompt_header="", prompt_footer="")
    problems = Numbers(20)
    if case == "shortens":  # the longest, which is not among the first
        problems.question = lambda index: "1" * (500 if index == 13 else 1)
    with rejected("chat template leaves out the problem's text"):
        PromptEncoder(config, tokenizer).check(problems)


def test_a_chat_template_may_trim_a_problem(tokenizer):
    tokenizer.chat_template = "[user]{{ messages[0].content | trim }}[assistant]"
    encode = PromptEncoder(
        Config(chat_template=True, prompt_header="", prompt_footer=""), tokenizer
    )
    encode.check(Numbers(20))
    assert encode.text(" 1\n2 \n") == "[user]1\n2[assistant]"


STARTS = {  # the end of a prompt, and the mark of thinking that it opens
    "[assistant]": "",
    "[assistant]<think>\n": "<think>",
    "[assistant]<think>\n\n</think>\n\n": "",
    "[assistant]<think>\nOkay, ": "<think>",
    "[THINK]": "[THINK]",
    "<|channel|>analysis<|message|>": "<|channel|>analysis",
    "<seed:think>": "<seed:think>",
}


@pytest.mark.parametrize("start", STARTS)
def test_the_mark_of_thinking_that_a_prompt_opens(start, tokenizer):
    """Marks in the problem or the instructions open nothing."""
    template = "[user]{{ messages[0].content }}<eos>{% if add_generation_prompt %}START{% endif %}"
    tokenizer.chat_template = template.replace("START", start)
    settings = {"prompt_header": "Begin with <think>.", "chat_template": True}
    encode = PromptEncoder(Config(prompt_footer="Now <think>", **settings), tokenizer)
    assert encode.answer_start("<think> 1") == "<eos>" + start
    assert opened_thinking(encode.answer_start("<think> 1")) == STARTS[start]


@pytest.mark.parametrize(
    ("footer", "mark"), [("Assistant: <think>\n", "<think>"), ("In <think> and </think> tags", "")]
)
def test_a_footer_may_open_thinking(footer, mark, tokenizer):
    encode = PromptEncoder(Config(prompt_footer=footer), tokenizer)
    assert opened_thinking(encode.answer_start("<think>")) == mark


# Generation

END = 99  # of the tokens that `ending` adds: <end>, <next>, and blanks
TURNS = {  # how a template renders a turn, and the tokens that end a completion
    "{{ m.content }}<end>\n": [EOS, END],
    "  {{ m.content | trim }}  <end>\n": [EOS, END],
    "{{ m.content }}<eos>": [EOS],
    "{{ m.content }}<end><eos>": [EOS],
    "{{ m.content }}<unk>": [EOS, 2],
    "<next>{{ m.content }}": [EOS, END + 1],  # the next turn's token is this one's end
    "{{ m.content }}\n": [EOS],
    "{{ m.content if m.role == 'user' else raise_exception('no') }}": [EOS],
    "{{ m.content if m.role == 'user' or not loop.last else raise_exception('no') }}<end>": [
        EOS,
        END,
    ],
    "{{ m.content if m.role == 'user' }}<end>": [EOS],
}


@pytest.mark.parametrize("turn", TURNS)
def test_the_token_that_ends_an_answer_in_the_chat_template_ends_a_completion(turn, tmp_path):
    """It is the tokenizer's end token in no case but the third and the fourth."""
    save_tiny_model(tmp_path, vocab_size=END + 3)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == END
    tokenizer.add_tokens(["<end>", "<next>", "  "])
    tokenizer.chat_template = "{% for m in messages %}" + turn + "{% endfor %}"
    generator = Generator.load(str(tmp_path), CPU, tokenizer)
    assert generator.stop_ids == TURNS[turn]
    assert generator.ends.startswith("completions end at '<eos>'")
    assert generator.ends.count("' or '") == len(TURNS[turn]) - 1


def test_text_that_the_tokenizer_does_not_know_ends_no_completion():
    """The demo's has no token for a line break, and reads it as <unk>."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    assert tokenizer("\n", add_special_tokens=False).input_ids == [tokenizer.unk_token_id]
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    assert end_of_turn(tokenizer, []) is None


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_logits_that_are_not_finite_end_the_run(temperature, tiny_model, prompts):
    """Greedy decoding would choose token 0 for ever, and sampling an index that does not exist."""
    generator = make_generator(tiny_model)
    generator.lm.model.norm.weight.data.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="logits are not finite"):
        generator.generate(prompts, temperature, 5, seed=0)


HOSTILE = {
    "do_sample": True,
    "temperature": 0.1,
    "top_k": 1,
    "top_p": 0.1,
    "min_p": 0.5,
    "typical_p": 0.5,
    "epsilon_cutoff": 0.1,
    "repetition_penalty": 5.0,
    "no_repeat_ngram_size": 1,
    "min_new_tokens": 30,
    "forced_eos_token_id": 1,
    "suppress_tokens": list(range(3, 90)),
    "bad_words_ids": [[1]],
    "max_length": 3,
    "eos_token_id": [EOS, *range(30, 90, 6)],
}


def naive(lm, stop_ids, prompt, temperature, max_new_tokens, seed, row) -> Completion:
    """Sample by definition: one model call a token, no cache, no batch, no padding. The token is
    where the cumulative probability passes u, or at temperature 0 the likeliest."""
    stream = np.random.Generator(np.random.Philox(key=seed + (row << 64)))
    ids = []
    logps = []
    while len(ids) < max_new_tokens and not set(ids) & set(stop_ids):
        logits = lm(torch.tensor([prompt + ids]), use_cache=False).logits[0, -1].double()
        if temperature == 0:
            ids.append(logits.argmax().item())
            continue
        p = torch.softmax(logits / temperature, dim=-1)
        u = float(stream.random(dtype=np.float32))
        token = next(token for token in range(len(p)) if p[: token + 1].sum() > u)
        ids.append(token)
        logps.append(p[token].log().item())
    return Completion(ids, logps, finished=ids[-1] in stop_ids)


def assert_same_completion(actual: Completion, expected: Completion):
    """Compare two completions, their log-probs up to float32 rounding."""
    assert actual.ids == expected.ids
    assert actual.finished == expected.finished
    assert actual.logps == pytest.approx(expected.logps, abs=2e-5)


SAMPLED = [
    *((family, 0.7, "<pad>") for family in FAMILIES),
    ("qwen3", 0, "<pad>"),
    ("qwen3", 0.7, "<eos>"),
]


@pytest.mark.parametrize(("family", "temperature", "pad"), SAMPLED)
def test_sampling_equals_a_naive_loop(tiny_family, prompts, family, temperature, pad, tmp_path):
    """Whatever generation settings the checkpoint has, and if it pads with an end token."""
    folder = shutil.copytree(tiny_family(family), tmp_path / "hostile")
    change(folder / "generation_config.json", **HOSTILE)
    generator = make_generator(folder)
    generator.tokenizer.pad_token = pad
    rows = [prompt for prompt in prompts for _ in range(3)]
    seed = 2**64 - 17  # of 64 bits: as a float it would be rounded
    completions = generator.generate(rows, temperature, 20, seed, first_row=5)
    for b, prompt in enumerate(rows):
        expected = naive(generator.lm, generator.stop_ids, prompt, temperature, 20, seed, 5 + b)
        assert_same_completion(completions[b], expected)
    assert {each.finished for each in completions} == {False, True}


@pytest.mark.parametrize("cut", [1, 3])
def test_a_row_draws_the_same_tokens_in_any_batch(generator, prompts, cut):
    """As two ranks would share the rows, the second in micro-batches of one row."""
    eight_rows = [prompts[i] for i in (3, 0, 4, 0, 1, 4, 2, 0)]
    whole = generator.generate(eight_rows, 1.0, 30, seed=2)
    lengths = [len(each.ids) for each in whole]
    assert min(lengths) < 9  # is dropped on the way
    assert max(lengths) == 30
    parts = generator.generate(eight_rows[:cut], 1.0, 30, seed=2)
    alone = {"max_batch_tokens": 1, "first_row": cut}
    parts += generator.generate(eight_rows[cut:], 1.0, 30, seed=2, **alone)
    for actual, expected in zip(parts, whole, strict=True):
        assert_same_completion(actual, expected)


def test_no_prompts_give_no_completions(generator):
    assert generator.generate([], 0.7, 5, seed=0) == []


@pytest.fixture
def rows_of_calls(generator):
    """The number of rows in each call of the model."""
    rows = []
    model = generator.lm.base_model
    hook = model.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    yield rows
    hook.remove()


def test_a_micro_batch_has_as_many_rows_as_its_bound_allows(generator, prompts, rows_of_calls):
    bound = 3 * (len(prompts[4]) + 12)
    generator.generate(prompts, 0, 12, seed=0, max_batch_tokens=bound)
    assert max(rows_of_calls) == 3


def test_a_group_shares_its_prompt_and_finished_rows_are_dropped(generator, prompts, rows_of_calls):
    completions = generator.generate(
        [prompt for prompt in prompts for _ in range(8)], 5.0, 90, seed=3
    )
    lengths = [len(each.ids) for each in completions]
    # After t tokens; finished rows are dropped at every eighth.
    active = [sum(n > t // 8 * 8 + 1 for n in lengths) for t in range(89)]
    assert rows_of_calls == [5, *active]
    assert 0 < active[-1] < 0.6 * active[0]


# Log-probs of what was generated


@pytest.fixture(scope="module")
def rows():
    """12 rows, of which four share a prompt, with 1 to 20 tokens of prompt and of completion."""
    rng = np.random.default_rng(0)
    rows = []
    for prompt_tokens in (1, 7, 20):
        prompt_ids = rng.integers(2, 81, prompt_tokens).tolist()
        for tokens in (1, *rng.integers(2, 21, 3)):
            ids = rng.integers(2, 81, tokens).tolist()
            rows.append((prompt_ids, completion(ids=ids)))
    return rows


WHOLE = [list(range(12))]
ALONE = [[b] for b in range(12)]
SOME = [[7, 0, 3], [5], [11, 1, 2, 4], [6, 10, 8, 9]]


def load_policy(folder) -> Policy:
    return Policy.load(str(folder), CPU).double()


def gradient(policy, rows, batches, packed=False) -> torch.Tensor:
    """Return the gradient of the sum of all log-probs and entropies, in which each row has a factor
    of its own. batches: the positions of their rows."""
    policy.zero_grad()
    policy.lm.set_attn_implementation("sdpa" if packed else "shared_prompts")
    for positions in batches:
        batch = collate([rows[b] for b in positions], CPU, packed)
        logp_N, entropy_N = policy(batch, 0.7)
        row_N = torch.tensor(positions)[batch.row_N]
        ((1 + row_N) * logp_N + 0.1 * entropy_N).sum().backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


def assert_same(actual, expected):
    """RMS norms compute in float32, and the gradient of a prompt passes them once, as a sum."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-7 * expected.norm().item())


@pytest.mark.parametrize("family", FAMILIES)
def test_computing_a_groups_prompt_once_changes_no_gradient(tiny_family, rows, family):
    """Alone, each completion has its prompt to itself."""
    policy = load_policy(tiny_family(family))
    expected = gradient(policy, rows, ALONE)
    assert_same(gradient(policy, rows, WHOLE), expected)
    assert_same(gradient(policy, rows, SOME), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_packing_and_padding_change_no_gradient(tiny_family, rows, family):
    """SDPA keeps packed rows apart by positions. tests/gpu/ has flash-attn."""
    policy = load_policy(tiny_family(family))
    assert not policy.packed
    expected = gradient(policy, rows, ALONE)
    assert_same(gradient(policy, rows, WHOLE, packed=True), expected)
    assert_same(gradient(policy, rows, SOME, packed=True), expected)


def test_recomputed_activations_change_no_gradient_of_shared_prompts(tiny_model, rows):
    policy = load_policy(tiny_model)
    expected = gradient(policy, rows, WHOLE)
    recompute_activations(policy.lm)
    assert_same(gradient(policy, rows, WHOLE), expected)
