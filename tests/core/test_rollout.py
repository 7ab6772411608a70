"""rollout.py: prompts, tokens and log-probs of tiny models, against a naive loop."""

import json
import shutil
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from tokenizers.normalizers import Lowercase, Replace
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from grpo import Completion
from plumbing.batches import collate
from plumbing.config import PROMPT_FOOTER, PROMPT_HEADER, Config
from plumbing.errors import NonFiniteError
from plumbing.metrics import completion_metrics
from plumbing.models import recompute_activations
from rollout import Generator, Policy, PromptEncoder
from tests.helpers.checks import rejected
from tests.helpers.files import change
from tests.helpers.groups import completion, group
from tests.helpers.models import FAMILIES, save_tiny_model

CPU = torch.device("cpu")
PAD = 0  # of the tiny tokenizer
EOS = 1
QUESTIONS = ["a", "What is 3 + 4?", "hello world", "zz\nzz"]
QUESTIONS += ["One, two, three, four, five, six, seven: how many?"]


def make_generator(folder) -> Generator:
    return Generator.load(str(folder), CPU, AutoTokenizer.from_pretrained(folder))


def copy_with(folder: Path, target: Path, **generation_settings) -> Path:
    """Copy a model directory, with other settings in its generation_config.json."""
    shutil.copytree(folder, target)
    change(target / "generation_config.json", **generation_settings)
    return target


@pytest.fixture(scope="module")
def generator(tiny_model):
    return make_generator(tiny_model)


@pytest.fixture(scope="module")
def prompts(generator):
    """Prompts of 1 to 50 tokens."""
    return [generator.tokenizer(question).input_ids for question in QUESTIONS]


def test_a_prompt_is_header_blank_line_question_blank_line_footer(generator):
    encode = PromptEncoder(Config(), generator.tokenizer)
    expected = f"{PROMPT_HEADER}\n\nWhat is\n1 + 1?\n\n{PROMPT_FOOTER}"
    assert encode.text("What is\n1 + 1?") == expected
    assert generator.tokenizer.decode(encode("What is\n1 + 1?")) == expected


def test_an_empty_part_of_a_prompt_leaves_no_blank_lines(generator):
    config = Config(prompt_header="H", prompt_footer="")
    encode = PromptEncoder(config, generator.tokenizer)
    assert encode.text("What is\n1 + 1?") == "H\n\nWhat is\n1 + 1?"


@pytest.fixture
def opening_tokenizer(tiny_model):
    """A tokenizer that puts <unk>, token 2, before every text, and has a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    opening = TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 2)])
    tokenizer._tokenizer.post_processor = opening
    tokenizer.chat_template = "<unk>[{{ messages[0].role }}]{{ messages[0].content }}"
    tokenizer.chat_template += "{% if add_generation_prompt %}[assistant]{% endif %}"
    return tokenizer


def test_a_prompt_begins_with_the_tokenizers_opening_token(opening_tokenizer):
    encode = PromptEncoder(Config(prompt_header="", prompt_footer=""), opening_tokenizer)
    one = opening_tokenizer.convert_tokens_to_ids("1")
    assert encode("1") == [2, one]


def test_a_chat_template_replaces_the_tokenizers_opening_token(opening_tokenizer):
    config = Config(prompt_header="H", prompt_footer="", chat_template=True)
    ids = PromptEncoder(config, opening_tokenizer)("12")
    text = opening_tokenizer.decode(ids)
    assert text == "<unk>[user]H\n\n12[assistant]"  # no second <unk>


@pytest.mark.parametrize(
    ("template", "before"), [("$A <eos>", []), ("<eos> $A", [EOS]), ("<unk> $A <eos> <pad>", [2])]
)
def test_special_tokens_stand_before_a_prompt_only(template, before, tiny_model):
    """A prompt that ended in the end token would have nothing to continue."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    plain = tokenizer("12").input_ids
    specials = [("<pad>", PAD), ("<eos>", EOS), ("<unk>", 2)]
    own = TemplateProcessing(single=template, special_tokens=specials)
    tokenizer._tokenizer.post_processor = own
    encode = PromptEncoder(Config(prompt_header="", prompt_footer=""), tokenizer)
    assert encode("12") == before + plain


def test_a_chat_template_may_end_in_the_end_token(tiny_model):
    """Some models were trained so: their turns end in it, the answer's begins after it."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = "{{ messages[0].content }}<eos>"
    config = Config(prompt_header="", prompt_footer="", chat_template=True)
    assert PromptEncoder(config, tokenizer)("12")[-1] == EOS


def test_a_chat_template_that_raises_names_the_question(tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = "{% if 'x' in messages[0].content %}{{ raise_exception('no x') }}"
    tokenizer.chat_template += "{% endif %}{{ messages[0].content }}"
    encode = PromptEncoder(
        Config(chat_template=True, prompt_header="", prompt_footer=""), tokenizer
    )
    assert encode("2 + 2")
    with rejected("cannot make a prompt of '2 + x' with --chat_template: TemplateError: no x"):
        encode("2 + x")


def test_a_tokenizer_that_loses_or_joins_words_is_rejected_with_the_problem(tiny_model):
    config = Config(prompt_header="", prompt_footer="")
    problems = MagicMock()
    problems.__len__.return_value = 1
    problems.question.return_value = "What is 1 2?"
    cases = {"what is 1 2?": Lowercase(), "Whatis12?": Replace(" ", "")}
    for text, normalizer in (cases | {"What is  2?": Replace("1", "")}).items():
        tokenizer = AutoTokenizer.from_pretrained(tiny_model)
        PromptEncoder(config, tokenizer).check(problems)
        tokenizer._tokenizer.normalizer = normalizer
        with rejected(f"turns 'What is 1 2?' into {text!r}: are its files missing"):
            PromptEncoder(config, tokenizer).check(problems)


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_logits_that_are_not_finite_end_the_run(temperature, tiny_model, prompts):
    """Greedy decoding would choose token 0 for ever, and sampling an index that does not exist."""
    generator = make_generator(tiny_model)
    generator.lm.model.norm.weight.data.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="token 0 of row 0 of a micro-batch"):
        generator.generate(prompts, temperature, 5, seed=0)


HOSTILE = {"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.1, "min_p": 0.5}
HOSTILE |= {"typical_p": 0.5, "epsilon_cutoff": 0.1, "repetition_penalty": 5.0}
HOSTILE |= {"no_repeat_ngram_size": 1, "min_new_tokens": 30, "forced_eos_token_id": 1}
HOSTILE |= {"suppress_tokens": list(range(3, 90)), "bad_words_ids": [[1]], "max_length": 3}


def naive(lm, stop_ids, prompt, temperature, max_new_tokens, seed, row) -> Completion:
    """Sample by definition: one model call a token, no cache, no batch, no padding. The token is
    where the cumulative probability passes u, or at temperature 0 the likeliest."""
    stream = np.random.Generator(np.random.Philox(key=[seed, row]))
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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0, 0.7])
def test_sampling_equals_a_naive_loop(tiny_family, prompts, family, temperature, tmp_path):
    """Whatever generation settings the checkpoint has."""
    own = HOSTILE | {"eos_token_id": [EOS, *range(30, 90, 6)]}
    generator = make_generator(copy_with(tiny_family(family), tmp_path / "hostile", **own))
    rows = [prompt for prompt in prompts for _ in range(3)]
    completions = generator.generate(rows, temperature, 20, seed=11, first_row=5)
    for b, prompt in enumerate(rows):
        expected = naive(generator.lm, generator.stop_ids, prompt, temperature, 20, 11, 5 + b)
        assert_same_completion(completions[b], expected)
    assert {each.finished for each in completions} == {False, True}


@pytest.fixture
def eight_rows(prompts):
    """Prompts of 8 rows, some of them the same."""
    return [prompts[i] for i in (3, 0, 4, 0, 1, 4, 2, 0)]


@pytest.mark.parametrize("cut", [1, 3])
def test_a_row_draws_the_same_tokens_in_any_batch(generator, eight_rows, cut):
    """As two ranks would share the rows, the second in micro-batches of one row."""
    whole = generator.generate(eight_rows, 1.0, 30, seed=2)
    lengths = [len(each.ids) for each in whole]
    assert min(lengths) < 9  # is dropped on the way
    assert max(lengths) == 30
    parts = generator.generate(eight_rows[:cut], 1.0, 30, seed=2)
    alone = {"max_batch_tokens": 1, "first_row": cut}
    parts += generator.generate(eight_rows[cut:], 1.0, 30, seed=2, **alone)
    for actual, expected in zip(parts, whole, strict=True):
        assert_same_completion(actual, expected)


def test_generation_leaves_torchs_random_numbers_alone(generator, eight_rows):
    before = torch.get_rng_state()
    generator.generate(eight_rows, 1.0, 5, seed=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_prompts_give_no_completions(generator):
    assert generator.generate([], 0.7, 5, seed=0) == []


@pytest.fixture
def calls(generator):
    """(rows, slots of the cache) of each call of the model."""
    calls = []

    def record(_, args, kwargs):
        mask = args[0] if kwargs["attention_mask"] is None else kwargs["attention_mask"]
        calls.append((len(args[0]), mask.shape[-1]))

    hook = generator.lm.base_model.register_forward_pre_hook(record, with_kwargs=True)
    yield calls
    hook.remove()


def test_micro_batches_use_their_bound_and_do_not_exceed_it(generator, prompts, calls):
    bound = 3 * (len(prompts[4]) + 12)
    generator.generate(prompts, 0, 12, seed=0, max_batch_tokens=bound)
    assert all(rows * slots <= bound for rows, slots in calls)
    assert max(rows for rows, _ in calls) >= 3


def test_a_group_shares_its_prompt_and_finished_rows_are_dropped(generator, prompts, calls):
    rows = [prompt for prompt in prompts for _ in range(8)]
    completions = generator.generate(rows, 5.0, 90, seed=3)
    lengths = [len(each.ids) for each in completions]
    # After t tokens; finished rows are dropped at every eighth.
    active = [sum(n > t // 8 * 8 + 1 for n in lengths) for t in range(89)]
    assert [rows for rows, _ in calls] == [5, *active]
    assert active[-1] > 0
    assert active[-1] < 0.6 * active[0]


def test_export_keeps_the_checkpoints_generation_settings(tiny_model, prompts, tmp_path):
    """Even contradictory ones, which some versions of transformers refuse to save."""
    own = {"do_sample": False, "temperature": 0.6, "top_k": 1, "eos_token_id": [EOS, 50]}
    generator = make_generator(copy_with(tiny_model, tmp_path / "own", **own))
    before = generator.generate(prompts, 0.7, 30, seed=3)
    generator.export(tmp_path / "exported")
    saved = json.loads((tmp_path / "exported/generation_config.json").read_text())
    assert {name: saved[name] for name in own} == own
    assert make_generator(tmp_path / "exported").generate(prompts, 0.7, 30, seed=3) == before


def test_the_pad_token_may_be_generated_and_may_be_eos(generator, tiny_model, prompts):
    completions = generator.generate(prompts * 64, 1.0, 30, seed=0)
    with_pad = [each.ids for each in completions if PAD in each.ids[:-1]]
    assert len(with_pad) > 0
    assert all(ids[-1] == EOS or len(ids) == 30 for ids in with_pad)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.pad_token = tokenizer.eos_token
    pad_is_eos = Generator.load(str(tiny_model), CPU, tokenizer)
    again = pad_is_eos.generate(prompts * 64, 1.0, 30, seed=0)
    assert [each.ids for each in again] == [each.ids for each in completions]


@pytest.fixture(scope="module")
def uneven():
    """12 rows of 2 to 40 tokens; prompts and completions of one token are among them."""
    rng = np.random.default_rng(0)
    rows = [([7], completion(ids=[9]))]
    for _ in range(11):
        prompt_ids = rng.integers(2, 81, rng.integers(1, 21)).tolist()
        ids = rng.integers(2, 81, rng.integers(1, 21)).tolist()
        rows.append((prompt_ids, completion(ids=ids)))
    return rows


WHOLE = [list(range(12))]
ALONE = [[b] for b in range(12)]
SOME = [[7, 0, 3], [5], [11, 1, 2, 4], [6, 10, 8, 9]]


def forward_backward(policy, rows, batches, packed=False) -> list[torch.Tensor]:
    """Return log-prob and entropy of each response token, by row, and the gradient of their sum, in
    which each row has a factor of its own. batches: the positions of their rows."""
    policy.zero_grad()
    policy.lm.set_attn_implementation("sdpa" if packed else "shared_prompts")
    by_row = {}
    for positions in batches:
        batch = collate([rows[b] for b in positions], CPU, packed)
        logp_N, entropy_N = policy(batch, 0.7)
        row_N = torch.tensor(positions)[batch.row_N]
        ((1 + row_N) * logp_N + 0.1 * entropy_N).sum().backward()
        for b in positions:
            by_row[b] = logp_N[row_N == b].detach(), entropy_N[row_N == b].detach()
    logp_N = torch.cat([by_row[b][0] for b in sorted(by_row)])
    entropy_N = torch.cat([by_row[b][1] for b in sorted(by_row)])
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    return [logp_N, entropy_N, gradient]


SPLITS = {  # micro-batches, packed
    "alone": (ALONE, False),
    "some": (SOME, False),
    "all packed": (WHOLE, True),
    "some packed": (SOME, True),
}
OTHER_FAMILIES = {  # accepted as students, too
    "gpt2": {"num_key_value_heads": None},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "gemma3_text": {"head_dim": 8},
    "llama": {},
}


def assert_same(actual, expected, tolerance=1e-11):
    """tolerance: of each number, as a share of the norm of all."""
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * b.norm().item())


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_packing_and_padding_change_no_gradient(tiny_family, uneven, family, split):
    """SDPA keeps packed rows apart by positions. tests/gpu/ has flash-attn."""
    policy = Policy.load(str(tiny_family(family)), CPU).double()
    assert not policy.packed
    expected = forward_backward(policy, uneven, WHOLE)
    assert_same(forward_backward(policy, uneven, *SPLITS[split]), expected)


@pytest.fixture(scope="module")
def groups(uneven):
    """Three groups of four completions, which share a prompt."""
    return [(uneven[4 * (b // 4)][0], each) for b, (_, each) in enumerate(uneven)]


@pytest.mark.parametrize("family", [*FAMILIES, *OTHER_FAMILIES])
def test_computing_a_groups_prompt_once_changes_no_gradient(family, groups, tmp_path):
    """Alone, each completion has its prompt to itself. RMS norms compute in float32, and here the
    gradient of a prompt passes them once, as a sum."""
    folder = save_tiny_model(tmp_path, family, **OTHER_FAMILIES.get(family, {}))
    policy = Policy.load(str(folder), CPU).double()
    expected = forward_backward(policy, groups, ALONE)
    assert_same(forward_backward(policy, groups, WHOLE), expected, 1e-7)
    assert_same(forward_backward(policy, groups, SOME), expected, 1e-7)


def test_a_prompt_shared_by_completions_is_computed_once(groups):
    prompts = {tuple(prompt) for prompt, _ in groups}
    tokens = sum(map(len, prompts)) + sum(len(each.ids) for _, each in groups)
    assert collate(groups, CPU).ids_1_T.shape == (1, tokens)


def test_recomputed_activations_change_no_gradient_of_shared_prompts(tiny_model, groups):
    policy = Policy.load(str(tiny_model), CPU).double()
    expected = forward_backward(policy, groups, WHOLE)
    recompute_activations(policy.lm)
    assert_same(forward_backward(policy, groups, WHOLE), expected)


def test_completion_metrics_by_hand():
    """Two groups, with prompts of one and two tokens; of three completions one each."""
    first = group(7, rewards=[1, 0])
    second = group(3, rewards=[0])
    second.prompt_ids = [5, 6]
    right, cut_off = first.completions
    [bad] = second.completions
    right.ids = [9, EOS]
    right.status = "correct"
    cut_off.ids = [10, 13, 14]
    cut_off.status = "no_box"
    cut_off.finished = False
    bad.status = "bad_gold"
    assert completion_metrics([first, second]) == {
        "truncated": 1 / 3,
        "no_box": 1 / 3,
        "bad_gold": 1 / 3,
        "verify_failures": 0,
        "completion_tokens": 2 + 3 + 1,
        "total_tokens": (1 + 2) + (1 + 3) + (2 + 1),
    }


@pytest.mark.parametrize("status", ["too_long", "timeout", "memory", "crash"])
def test_completions_that_could_not_be_compared_are_counted_as_failures(status):
    failed = group(7, rewards=[0, 1])
    failed.completions[0].status = status
    failed.completions[1].status = "correct"
    assert completion_metrics([failed])["verify_failures"] == 1 / 2
