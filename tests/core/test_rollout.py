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

from plumbing.batches import collate
from plumbing.config import PROMPT_FOOTER, PROMPT_HEADER, Config
from plumbing.errors import NonFiniteError
from rollout import Generator, Policy, PromptEncoder, Rollouts
from tests.helpers.checks import rejected
from tests.helpers.files import change
from tests.helpers.models import FAMILIES

CPU = torch.device("cpu")
PAD, EOS = 0, 1  # of the tiny tokenizer
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
    paper = f"{PROMPT_HEADER}\n\nWhat is\n1 + 1?\n\n{PROMPT_FOOTER}"
    for parts, text in {(): paper, ("H", ""): "H\n\nWhat is\n1 + 1?"}.items():
        flags = dict(zip(("prompt_header", "prompt_footer"), parts, strict=False))
        encode = PromptEncoder(Config(**flags), generator.tokenizer)
        assert encode.text("What is\n1 + 1?") == text
        assert generator.tokenizer.decode(encode("What is\n1 + 1?")) == text


def test_a_chat_template_replaces_the_tokenizers_opening_token(tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    own = TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 2)])
    tokenizer._tokenizer.post_processor = own
    config = Config(prompt_header="", prompt_footer="")
    assert PromptEncoder(config, tokenizer)("12")[:2] == [2, tokenizer.convert_tokens_to_ids("1")]
    tokenizer.chat_template = "<unk>[{{ messages[0].role }}]{{ messages[0].content }}"
    tokenizer.chat_template += "{% if add_generation_prompt %}[assistant]{% endif %}"
    config = Config(prompt_header="H", prompt_footer="", chat_template=True)
    ids = PromptEncoder(config, tokenizer)("12")
    assert tokenizer.decode(ids) == "<unk>[user]H\n\n12[assistant]"  # no second <unk>


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
    with rejected("cannot make a prompt of '2 + x': TemplateError: no x"):
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


def naive(lm, stop_ids, prompt, temperature, max_new_tokens, seed, row) -> tuple[list, list]:
    """Sample by definition: one model call a token, no cache, no batch, no padding. The token is
    where the cumulative probability passes u, or at temperature 0 the likeliest."""
    stream, ids, logps = np.random.Generator(np.random.Philox(key=[seed, row])), [], []
    while len(ids) < max_new_tokens and not set(ids) & set(stop_ids):
        logits = lm(torch.tensor([prompt + ids]), use_cache=False).logits[0, -1].double()
        if not temperature:
            ids.append(logits.argmax().item())
            continue
        p = torch.softmax(logits / temperature, dim=-1)
        u = float(stream.random(dtype=np.float32))
        ids.append(next(token for token in range(len(p)) if p[: token + 1].sum() > u))
        logps.append(p[ids[-1]].log().item())
    return ids, logps


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0, 0.7])
def test_sampling_equals_a_naive_loop(tiny_family, prompts, family, temperature, tmp_path):
    """Whatever generation settings the checkpoint has."""
    own = HOSTILE | {"eos_token_id": [EOS, *range(30, 90, 6)]}
    generator = make_generator(copy_with(tiny_family(family), tmp_path / "hostile", **own))
    rows = [p for p in prompts for _ in range(3)]
    rollouts = generator.generate(rows, temperature, 20, seed=11, first_row=5)
    for b, prompt in enumerate(rows):
        ids, logps = naive(generator.lm, generator.stop_ids, prompt, temperature, 20, 11, 5 + b)
        assert rollouts.completion_ids[b] == ids
        assert rollouts.finished[b] == (ids[-1] in generator.stop_ids)
        assert rollouts.logps[b] == pytest.approx(logps, abs=2e-5)
    assert set(rollouts.finished) == {False, True} and rollouts.prompt_ids == rows


def test_a_row_draws_the_same_tokens_in_any_batch(generator, prompts):
    rows, before = [prompts[i] for i in (3, 0, 4, 0, 1, 4, 2, 0)], torch.get_rng_state()
    whole = generator.generate(rows, 1.0, 30, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert min(whole.lengths()) < 9 and max(whole.lengths()) == 30  # some are dropped on the way
    for cut in (1, 3):  # as two ranks would share them, and in micro-batches of one row
        first = generator.generate(rows[:cut], 1.0, 30, seed=2)
        alone = {"max_batch_tokens": 1, "first_row": cut}
        parts = first + generator.generate(rows[cut:], 1.0, 30, seed=2, **alone)
        assert parts.completion_ids == whole.completion_ids and parts.finished == whole.finished
        for one, other in zip(parts.logps, whole.logps, strict=True):
            assert one == pytest.approx(other, abs=2e-5)
    assert generator.generate([], 0.7, 5, seed=0) == Rollouts()


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
    rollouts = generator.generate([p for p in prompts for _ in range(8)], 5.0, 90, seed=3)
    # After t tokens; finished rows are dropped at every eighth.
    active = [sum(n > t // 8 * 8 + 1 for n in rollouts.lengths().tolist()) for t in range(89)]
    assert [rows for rows, _ in calls] == [5, *active] and 0 < active[-1] < 0.6 * active[0]


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
    completions = generator.generate(prompts * 64, 1.0, 30, seed=0).completion_ids
    inside = [ids for ids in completions if PAD in ids[:-1]]
    assert inside and all(ids[-1] == EOS or len(ids) == 30 for ids in inside)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.pad_token = tokenizer.eos_token
    again = Generator.load(str(tiny_model), CPU, tokenizer).generate(prompts * 64, 1.0, 30, seed=0)
    assert again.completion_ids == completions


@pytest.fixture(scope="module")
def uneven() -> Rollouts:
    """12 rows of 2 to 40 tokens; prompts and completions of one token are among them."""
    rng = np.random.default_rng(0)
    lengths = (1, *rng.integers(1, 21, 11)), (1, *rng.integers(1, 21, 11))
    prompts, completions = ([rng.integers(2, 81, n).tolist() for n in ns] for ns in lengths)
    return Rollouts(prompts, completions, [True] * 12, [[]] * 12)


WHOLE, ALONE = [list(range(12))], [[b] for b in range(12)]
SOME = [[7, 0, 3], [5], [11, 1, 2, 4], [6, 10, 8, 9]]


def forward_backward(policy, rollouts, batches, packed, pad_id) -> list[torch.Tensor]:
    """Return log-prob and entropy of each response token, by row, and the gradient of their sum."""
    policy.zero_grad()
    columns = []
    for rows in batches:
        batch = collate(rollouts, rows, pad_id, CPU, packed)
        logp_N, entropy_N = policy(batch, 0.7)
        ((1 + batch.row_N) * logp_N + 0.1 * entropy_N).sum().backward()
        columns.append((batch.row_N, logp_N.detach(), entropy_N.detach()))
    rows_N, logp_N, entropy_N = (torch.cat(column) for column in zip(*columns, strict=True))
    order = rows_N.argsort(stable=True)
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    return [logp_N[order], entropy_N[order], gradient]


@pytest.mark.parametrize("family", FAMILIES)
def test_packing_and_padding_change_no_gradient(tiny_family, uneven, family):
    """SDPA keeps packed rows apart by positions. tests/gpu/ has flash-attn."""
    policy = Policy.load(str(tiny_family(family)), CPU).double()
    assert not policy.packed
    expected = forward_backward(policy, uneven, WHOLE, packed=False, pad_id=PAD)
    splits = (ALONE, False, PAD), (SOME, False, 60), (WHOLE, True, PAD), (SOME, True, PAD)
    for batches, packed, pad_id in splits:
        actual = forward_backward(policy, uneven, batches, packed, pad_id)
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11 * b.norm().item())


def test_a_problem_has_one_group_over_rounds():
    """Two rounds; problem 7 is in both, with one completion and then with two."""
    first = Rollouts([[8], [5, 6]], [[9, EOS], [12]], [True, False], [[-0.1, -0.2], [-0.6]])
    first.problems, first.rewards, first.statuses = [7, 3], [1.0, 0.0], ["correct", "no_box"]
    second = Rollouts([[8], [8]], [[10, 13, EOS], [14]], [True, False], [[-0.3] * 3, [-0.4]])
    second.problems, second.rewards, second.statuses = [7, 7], [1.0, 0.0], ["correct", "wrong"]
    both = first + second
    assert both.lengths().tolist() == [2, 1, 3, 1] and both.total_tokens() == [3, 3, 4, 2]
    assert both.groups() == [[0, 2, 3], [1]]
    o = both.outcomes(step=5)
    assert (o.step, o.index_N.tolist(), o.completions_N.tolist()) == (5, [7, 3], [3, 1])
    assert o.successes_N.tolist() == [2, 0] and o.tokens_N.tolist() == [6, 1]
    assert o.truncated_N.tolist() == [1, 1] and o.index_N.dtype == o.successes_N.dtype == np.int64
    assert Rollouts().groups() == [] == Rollouts().outcomes(5).index_N.tolist()
    metrics = both.metrics()
    assert metrics["truncated"] == 1 / 2 and metrics["no_box"] == 1 / 4
    assert metrics["completion_tokens"] == 7 and metrics["total_tokens"] == 12
