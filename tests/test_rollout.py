"""rollout.py: tiny random models of the four presets' families, whose log-probs can be computed a second way."""

import functools
import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import FAMILIES, save_tiny_model
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    modeling_flash_attention_utils,
)

import grpo
import rollout
from rollout import (
    PROMPT_FOOTER,
    PROMPT_HEADER,
    Generator,
    Policy,
    PromptEncoder,
    Rollouts,
    balance,
    check_model,
    collate,
    left_pad,
    micro_batches,
    pack,
)

DEMO = Path(rollout.__file__).parent / "demo/model"
CPU = torch.device("cpu")
PAD, EOS = 0, 1  # of the tiny tokenizer
QUESTIONS = [
    "a",
    "What is 3 + 4?",
    "hello world",
    "zz\nzz",
    "One, two, three, four, five, six, seven: how many?",
]


def make_generator(folder) -> Generator:
    return Generator(str(folder), CPU, AutoTokenizer.from_pretrained(folder))


def copy_with(folder: Path, target: Path, **generation_settings) -> Path:
    """A copy of a model folder whose generation_config.json says something else."""
    shutil.copytree(folder, target)
    path = target / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | generation_settings))
    return target


@pytest.fixture(scope="module")
def qwen2(tiny_family) -> Path:
    """The folder of the model that the numbers in this file were chosen for."""
    return tiny_family("qwen2")


@pytest.fixture(scope="module")
def generator(qwen2):
    return make_generator(qwen2)


@pytest.fixture(scope="module")
def prompts(generator):
    encode = PromptEncoder(generator.tokenizer, header="", footer="")
    prompts = [encode(question) for question in QUESTIONS]
    assert [len(p) for p in prompts] == [len(q) for q in QUESTIONS]
    return prompts


@pytest.fixture(scope="module")
def sampled(generator, prompts):
    """40 completions of up to 30 tokens at temperature 0.7: some stop by themselves, some are cut."""
    rollouts = generator.generate(prompts * 8, 0.7, 30, seed=3)
    assert 5 < sum(rollouts.finished) < 35
    return rollouts


def step_logps(lm, prompt: list[int], completion: list[int], temperature: float) -> torch.Tensor:
    """log-prob of each completion token, one model call a token: no cache, no padding, no batch, all logits."""
    logps = []
    for t, token in enumerate(completion):
        logits = lm(torch.tensor([prompt + completion[:t]]), use_cache=False).logits[0, -1]
        logps.append(torch.log_softmax(logits.double() / temperature, dim=-1)[token])
    return torch.stack(logps)


def spy(monkeypatch) -> list[dict]:
    """Has the decoding loop note, for each call: its prompts, its rows, and (rows, slots) of the cache as it grows."""
    calls, decode, make_room = [], rollout.decode, rollout.Slots.make_room

    @functools.wraps(decode)
    def noted(model, input_ids, *args, prompt_B, **kwargs):
        calls.append({"prompts": input_ids, "prompt_B": prompt_B, "cache": []})
        return decode(model, input_ids, *args, prompt_B=prompt_B, **kwargs)

    def noted_room(self, rows_B, used, capacity):
        calls[-1]["cache"].append((len(rows_B), capacity))
        make_room(self, rows_B, used, capacity)

    monkeypatch.setattr(rollout, "decode", noted)
    monkeypatch.setattr(rollout.Slots, "make_room", noted_room)
    return calls


def plain_generate(lm, prompts, max_new_tokens, **settings) -> list[list[int]]:
    """What Hugging Face's own loop makes of the left-padded prompts, what follows the prompts only."""
    ids, mask = left_pad(prompts, PAD, CPU)
    out = lm.generate(
        ids, attention_mask=mask, max_new_tokens=max_new_tokens, pad_token_id=PAD, **settings
    )
    return out[:, ids.shape[1] :].tolist()


# ----------------------------------------------------------------------------------------------------
# The prompt

# As Appendix M prints it, with the breaks of its page width.
PRINTED_HEADER = r"""You are an expert problem solver. Your task is to solve the problem by
explicitly showing your detailed Chain of Thought.
You must write out your reasoning step-by-step, explaining your logic
for every calculation or deduction.
**Crucially, the final answer must be enclosed in a \boxed{...} command.**"""

PRINTED_FOOTER = r"""Strictly follow this output format:
### Step-by-Step Reasoning
<Write your detailed thought process here. Do not skip steps.>

### Final Answer
\boxed{<your final answer>}
**Important: The \boxed{...} command should only contain the final,
simplified numerical or symbolic answer, with no extra text or units.**"""


def test_header_and_footer_are_the_papers_but_for_the_page_width():
    assert PROMPT_HEADER.split() == PRINTED_HEADER.split()
    assert PROMPT_FOOTER.split() == PRINTED_FOOTER.split()
    assert [line.split()[0] for line in PROMPT_HEADER.splitlines()] == [
        "You",
        "You",
        "**Crucially,",
    ]
    starts = [line[:12] for line in PROMPT_FOOTER.splitlines()]
    assert starts == [
        "Strictly fol",
        "### Step-by-",
        "<Write your ",
        "",
        "### Final An",
        r"\boxed{<your",
        "**Important:",
    ]


def test_prompt_is_header_blank_line_question_blank_line_footer(generator):
    encode = PromptEncoder(generator.tokenizer)
    text = encode.text("What is\n1 + 1?")
    assert text == PROMPT_HEADER + "\n\nWhat is\n1 + 1?\n\n" + PROMPT_FOOTER
    assert generator.tokenizer.decode(encode("What is\n1 + 1?")) == text


@pytest.mark.parametrize(
    "header, footer, text",
    [("", "", "Q"), ("H", "", "H\n\nQ"), ("", "F", "Q\n\nF"), ("H", "F", "H\n\nQ\n\nF")],
)
def test_empty_parts_of_the_prompt_leave_no_blank_lines(generator, header, footer, text):
    assert PromptEncoder(generator.tokenizer, header, footer).text("Q") == text


def tokenizer_with_bos(folder):
    """The tiny tokenizer, made to open every text with `<unk>`, as others do with a BOS token."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<unk> $A", special_tokens=[("<unk>", 2)]
    )
    return tokenizer


def test_the_tokenizers_own_opening_token_is_kept_and_a_chat_templates_is_not_doubled(qwen2):
    tokenizer = tokenizer_with_bos(qwen2)
    assert PromptEncoder(tokenizer, "", "")("12")[:2] == [2, tokenizer.convert_tokens_to_ids("1")]
    tokenizer.chat_template = (
        "<unk>{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    ids = PromptEncoder(tokenizer, "H", "", chat_template=True)("12")
    assert ids.count(2) == 1
    assert tokenizer.decode(ids) == "<unk>[user]H\n\n12"


def test_a_chat_template_ends_with_the_assistants_turn(qwen2):
    tokenizer = AutoTokenizer.from_pretrained(qwen2)
    tokenizer.chat_template = (
        "{{ messages[0].content }}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert PromptEncoder(tokenizer, "", "F", chat_template=True).text("Q") == "Q\n\nF[assistant]"


def test_asking_for_a_chat_template_that_is_not_there_is_an_error(generator):
    with pytest.raises(ValueError, match=r"--chat_template.*no chat template"):
        PromptEncoder(generator.tokenizer, chat_template=True)


# ----------------------------------------------------------------------------------------------------
# Generation


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_completions_do_not_depend_on_left_padding_or_neighbours(
    tiny_family, prompts, family
):
    generator = make_generator(tiny_family(family))
    together = generator.generate(prompts, 0, 16, seed=0)
    alone = [generator.generate([prompt], 0, 16, seed=0) for prompt in prompts]
    assert together.completion_ids == [row.completion_ids[0] for row in alone]
    assert len(set(map(tuple, together.completion_ids))) == len(
        prompts
    )  # the model does listen to its prompt


def test_greedy_is_the_argmax_of_the_logits_at_every_step(generator, prompts):
    rollouts = generator.generate(prompts, 0, 10, seed=0)
    for prompt, completion in zip(prompts, rollouts.completion_ids, strict=True):
        for t, token in enumerate(completion):
            logits = generator.lm(torch.tensor([prompt + completion[:t]])).logits[0, -1]
            assert token == logits.argmax()


@pytest.mark.parametrize("rows_at_once", [1, 2, 3, 100])
def test_micro_batches_respect_their_bound_keep_the_order_and_the_greedy_answers(
    generator, prompts, rows_at_once, monkeypatch
):
    whole = generator.generate(prompts, 0, 12, seed=0)
    calls = spy(monkeypatch)
    bound = rows_at_once * (max(map(len, prompts)) + 12)
    split = generator.generate(prompts, 0, 12, seed=0, max_batch_tokens=bound)
    assert split == whole
    assert len(calls) > 1 or rows_at_once == 100
    assert sum(len(call["prompt_B"]) for call in calls) == len(prompts)
    assert all(rows * slots <= bound for call in calls for rows, slots in call["cache"])
    assert max(rows for call in calls for rows, _ in call["cache"]) >= min(
        rows_at_once, len(prompts)
    )  # it is also used


def test_a_prompt_that_alone_exceeds_the_bound_is_still_answered(generator, prompts):
    assert generator.generate(prompts, 0, 5, 0, max_batch_tokens=1) == generator.generate(
        prompts, 0, 5, 0
    )


def test_no_prompts_give_no_completions(generator):
    assert generator.generate([], 0.7, 5, seed=0) == Rollouts()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_token_for_token_what_plain_generate_gives(
    tiny_family, prompts, family, tmp_path
):
    """Under left padding, with three stop tokens, and whatever the checkpoint's settings ask for."""
    lm = AutoModelForCausalLM.from_pretrained(tiny_family(family))
    free = plain_generate(lm, prompts, 30, do_sample=False)
    stops = [EOS, free[0][3], free[1][9]]
    hostile = make_generator(
        copy_with(tiny_family(family), tmp_path / "hostile", **HOSTILE, eos_token_id=stops)
    )
    ours = hostile.generate(prompts, 0, 30, seed=0)
    for row, completion, finished in zip(free, ours.completion_ids, ours.finished, strict=True):
        end = next((t + 1 for t, token in enumerate(row) if token in stops), None)
        assert completion == row[:end] and finished == (end is not None)
    assert sorted(ours.finished)[0] < sorted(ours.finished)[-1]  # some stop, some are cut
    assert ours.logps == [[]] * len(prompts)


def naive(
    lm, stop_ids, prompt, temperature, max_new_tokens, seed, row
) -> tuple[list[int], list[float]]:
    """One completion by the definition: a model call a token, no cache, no batch; where the running sum passes u."""
    stream, ids, logps = np.random.Generator(np.random.Philox(key=[seed, row])), [], []
    while len(ids) < max_new_tokens and not set(ids) & set(stop_ids):
        logits = lm(torch.tensor([prompt + ids]), use_cache=False).logits[0, -1].double()
        p = torch.softmax(logits / temperature, dim=-1)
        u = float(stream.random(dtype=np.float32))
        ids.append(next(token for token in range(len(p)) if p[: token + 1].sum() > u))
        logps.append(p[ids[-1]].log().item())
    return ids, logps


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_tokens_and_logprobs_are_those_of_a_naive_loop_on_the_same_numbers(
    tiny_family, prompts, family, tmp_path
):
    stops = copy_with(tiny_family(family), tmp_path / "stops", eos_token_id=[EOS, 40, 60, 80])
    generator = make_generator(stops)
    rows = [p for p in prompts for _ in range(3)]
    rollouts = generator.generate(rows, 0.7, 20, seed=11, first_row=5)
    assert any(rollouts.finished) and not all(rollouts.finished)
    for b, prompt in enumerate(rows):
        ids, logps = naive(generator.lm, generator.stop_ids, prompt, 0.7, 20, 11, 5 + b)
        assert rollouts.completion_ids[b] == ids
        assert rollouts.logps[b] == pytest.approx(logps, abs=2e-5)


def test_a_row_draws_the_same_tokens_whichever_rows_are_beside_it(generator, prompts):
    rows = [prompts[i] for i in (3, 0, 4, 0, 1, 4, 2, 0)]
    whole = generator.generate(rows, 1.0, 30, seed=2)
    assert min(whole.lengths()) < 9 and max(whole.lengths()) == 30  # some are dropped on the way
    for cut in (1, 3):  # as two ranks would share them, and in micro-batches of one row
        parts = generator.generate(rows[:cut], 1.0, 30, seed=2) + generator.generate(
            rows[cut:], 1.0, 30, seed=2, max_batch_tokens=1, first_row=cut
        )
        assert parts.completion_ids == whole.completion_ids and parts.finished == whole.finished
        for one, other in zip(parts.logps, whole.logps, strict=True):
            assert one == pytest.approx(other, abs=2e-5)


def test_each_prompt_is_read_once_for_its_group_and_finished_rows_leave_the_batch(
    generator, prompts, monkeypatch
):
    calls = spy(monkeypatch)
    rollouts = generator.generate([p for p in prompts for _ in range(8)], 0.7, 60, seed=3)
    (call,) = calls
    longest_first = sorted(range(5), key=lambda i: -len(prompts[i]))
    mask = left_pad([prompts[i] for i in longest_first], PAD, CPU)[1]
    assert [ids[m.bool()].tolist() for ids, m in zip(call["prompts"], mask, strict=True)] == [
        prompts[i] for i in longest_first
    ]
    assert call["prompt_B"].tolist() == [i for i in range(5) for _ in range(8)]
    unfinished = [sum(n > t + 1 for n in rollouts.lengths().tolist()) for t in range(0, 59, 8)]
    slots = [
        len(prompts[4]) + min(t + 8, 59) for t in range(0, 59, 8)
    ]  # the last token drawn needs none
    assert call["cache"] == list(zip(unfinished, slots, strict=True))
    assert 0 < unfinished[-1] < 0.6 * unfinished[0]


def test_the_seed_decides_the_tokens_and_the_global_generator_is_left_alone(generator, prompts):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    first = generator.generate(prompts, 1.0, 12, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)  # whatever else was drawn in between
    assert generator.generate(prompts, 1.0, 12, seed=5) == first
    assert generator.generate(prompts, 1.0, 12, seed=6).completion_ids != first.completion_ids


def test_copies_of_one_prompt_get_different_completions(generator, prompts):
    group = generator.generate([prompts[1]] * 8, 1.0, 12, seed=0).completion_ids
    assert len(set(map(tuple, group))) == 8


def test_prompts_are_not_changed_and_come_back_with_the_completions(generator, prompts):
    before = [list(p) for p in prompts]
    assert generator.generate(prompts, 0.7, 5, seed=0, max_batch_tokens=60).prompt_ids == before
    assert prompts == before


def chi_square(counts, probability) -> tuple[float, int]:
    """Pearson's statistic, cells below 5 expected pooled into one, and its degrees of freedom."""
    expected = probability * counts.sum()
    small = expected < 5
    observed = torch.cat([counts[~small], counts[small].sum()[None]])
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    return ((observed - expected) ** 2 / expected).sum().item(), len(observed) - 1


def test_second_tokens_have_the_frequencies_that_follow_their_first(generator, prompts):
    rollouts = generator.generate([prompts[2]] * 6000 + [prompts[1]], 0.7, 2, seed=0)
    firsts = torch.tensor([ids[0] for ids in rollouts.completion_ids[:6000]])
    first = torch.bincount(firsts).argmax().item()
    seconds = [ids[1] for ids in rollouts.completion_ids[:6000] if ids[0] == first and len(ids) > 1]
    logits = generator.lm(torch.tensor([prompts[2] + [first]])).logits[0, -1].double()
    counts = torch.bincount(torch.tensor(seconds), minlength=99).double()
    statistic, freedom = chi_square(counts, torch.softmax(logits / 0.7, dim=-1))
    assert len(seconds) > 500 and freedom > 10
    assert statistic < freedom + 3.5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_sampled_tokens_have_the_frequencies_of_softmax_of_logits_over_temperature(
    generator, prompts, temperature
):
    n, prompt = 6000, prompts[2]
    # Neighbours with a longer prompt, so that the rows that are counted are left-padded.
    rollouts = generator.generate([prompt] * n + [prompts[1]], temperature, 1, seed=0)
    counts = torch.bincount(torch.tensor(rollouts.completion_ids[:n])[:, 0], minlength=99).double()
    logits = generator.lm(torch.tensor([prompt])).logits[0, -1].double()
    statistic, freedom = chi_square(counts, torch.softmax(logits / temperature, dim=-1))
    assert freedom > 20
    assert statistic < freedom + 3.5 * (2 * freedom) ** 0.5
    for other in (
        0.9 * temperature,
        1.1 * temperature,
    ):  # the same count tells a temperature 10% off
        statistic, _ = chi_square(counts, torch.softmax(logits / other, dim=-1))
        assert statistic > freedom + 3.5 * (2 * freedom) ** 0.5


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
    "suppress_tokens": list(range(3, 90)),
    "begin_suppress_tokens": [1, 5],
    "bad_words_ids": [[1]],
    "forced_eos_token_id": 1,
    "exponential_decay_length_penalty": [1, 9.0],
    "max_length": 3,
}


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_nothing_in_the_checkpoints_generation_settings_leaks_into_ours(
    generator, qwen2, prompts, temperature, tmp_path, monkeypatch
):
    hostile = make_generator(copy_with(qwen2, tmp_path / "hostile", **HOSTILE))
    expected = generator.generate(prompts * 4, temperature, 30, seed=3)
    ends = [
        len(ids)
        for ids, finished in zip(expected.completion_ids, expected.finished, strict=True)
        if finished
    ]
    assert min(ends) < 30 and len(ends) < len(
        expected
    )  # EOS before min_new_tokens, and none forced at the limit
    assert hostile.generate(prompts * 4, temperature, 30, seed=3) == expected


@pytest.mark.parametrize(
    "setting", ["top_k", "repetition_penalty", "min_new_tokens", "suppress_tokens"]
)
def test_each_of_those_settings_would_have_changed_the_tokens(qwen2, prompts, setting, tmp_path):
    """The control: plain `generate` on such a checkpoint does what its settings say."""
    drawn = []
    for folder in (qwen2, copy_with(qwen2, tmp_path / "one", **{setting: HOSTILE[setting]})):
        torch.manual_seed(3)
        lm = AutoModelForCausalLM.from_pretrained(folder)
        top_k = {} if setting == "top_k" else {"top_k": 0}
        drawn.append(plain_generate(lm, prompts * 4, 30, do_sample=True, temperature=0.7, **top_k))
    assert drawn[0] != drawn[1]


def test_export_keeps_the_checkpoints_own_settings_and_generation_goes_on_as_before(
    qwen2, prompts, tmp_path
):
    own = {"do_sample": True, "top_k": 1, "min_new_tokens": 25, "eos_token_id": [EOS, 50]}
    generator = make_generator(copy_with(qwen2, tmp_path / "own", **own))
    before = generator.generate(prompts * 4, 0.7, 30, seed=3)
    generator.export(tmp_path / "exported")
    saved = GenerationConfig.from_pretrained(tmp_path / "exported").to_dict()
    assert {key: saved[key] for key in own} == own
    exported = make_generator(tmp_path / "exported")
    assert exported.stop_ids == [EOS, 50]
    assert exported.generate(prompts * 4, 0.7, 30, seed=3) == before
    assert generator.generate(prompts * 4, 0.7, 30, seed=3) == before


def test_a_checkpoint_whose_settings_contradict_each_other_can_be_exported(qwen2, tmp_path):
    """do_sample false beside a temperature is common on the hub; releases differ in whether they save it."""
    generator = make_generator(
        copy_with(qwen2, tmp_path / "odd", do_sample=False, temperature=0.6, top_p=0.9)
    )
    generator.export(tmp_path / "exported")
    assert make_generator(tmp_path / "exported").stop_ids == [EOS]


def test_a_completion_ends_with_its_first_stop_token_or_is_cut_at_the_limit(sampled):
    for ids, finished in zip(sampled.completion_ids, sampled.finished, strict=True):
        assert ids.count(EOS) == finished
        assert finished == (ids[-1] == EOS)
        assert finished or len(ids) == 30
    assert len({len(ids) for ids in sampled.completion_ids}) > 5


def test_a_completion_that_stops_at_the_very_limit_is_not_called_cut(generator, sampled, prompts):
    b = max(
        (b for b in range(len(sampled)) if sampled.finished[b]),
        key=lambda b: len(sampled.completion_ids[b]),
    )
    limit = len(sampled.completion_ids[b])
    again = generator.generate(prompts * 8, 0.7, limit, seed=3)
    assert again.completion_ids[b] == sampled.completion_ids[b] and again.finished[b]
    shorter = generator.generate(prompts * 8, 0.7, limit - 1, seed=3)
    assert shorter.completion_ids[b] == sampled.completion_ids[b][:-1] and not shorter.finished[b]


@pytest.mark.parametrize("as_list", [True, False])
def test_every_stop_token_of_the_checkpoint_and_the_tokenizers_own_end_a_completion(
    generator, qwen2, prompts, as_list, tmp_path
):
    free = generator.generate(prompts, 0, 16, seed=0).completion_ids
    stop = free[1][4]  # a token that greedy decoding is known to produce
    assert stop not in free[1][:4] and stop != EOS
    settings = {"eos_token_id": [stop, 97] if as_list else stop}
    stopping = make_generator(copy_with(qwen2, tmp_path / "stops", **settings))
    assert stopping.stop_ids == sorted({EOS, stop, 97} if as_list else {EOS, stop})
    rollouts = stopping.generate(prompts, 0, 16, seed=0)
    assert rollouts.completion_ids[1] == free[1][:5] and rollouts.finished[1]
    for ids, whole in zip(rollouts.completion_ids, free, strict=True):
        ends = [t + 1 for t, token in enumerate(whole) if token in stopping.stop_ids]
        assert ids == whole[: ends[0] if ends else None]


def test_a_pad_token_that_the_model_samples_is_a_token_like_any_other(generator, sampled):
    # "<pad>" in the middle of a completion does not end it, and trailing padding is not part of it.
    inside = [
        ids
        for ids in generator.generate(sampled.prompt_ids * 8, 1.0, 30, seed=0).completion_ids
        if PAD in ids
    ]
    assert inside and any(ids.index(PAD) < len(ids) - 1 for ids in inside)
    assert all(ids[-1] == EOS or len(ids) == 30 for ids in inside)


@pytest.fixture(scope="module")
def pad_is_eos(qwen2, tmp_path_factory):
    """The tiny model with a tokenizer whose pad token is its EOS token, as many base models have it."""
    folder = tmp_path_factory.mktemp("pad") / "eos"
    shutil.copytree(qwen2, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    return folder


def test_where_pad_is_eos_completions_are_the_same_and_eos_is_learned_from(
    pad_is_eos, sampled, prompts
):
    generator = make_generator(pad_is_eos)
    assert generator.tokenizer.pad_token_id == EOS
    assert generator.generate(prompts * 8, 0.7, 30, seed=3) == sampled
    b = sampled.finished.index(True)
    rows_N, ids_B_T, response_B_T, _ = collate(sampled, [b, 0], EOS, CPU)
    assert ids_B_T[0][response_B_T[0]].tolist() == sampled.completion_ids[b]  # its last is the EOS
    assert (rows_N == b).sum() == len(sampled.completion_ids[b])


# ----------------------------------------------------------------------------------------------------
# The way back: log-probs


def policy_logps(
    policy, rollouts, rows, temperature=0.7, pad_id=PAD, packed=False
) -> dict[int, torch.Tensor]:
    """Policy's log-probs of some rows in one batch, cut apart by row."""
    rows_N, *inputs = collate(rollouts, rows, pad_id, CPU, packed)
    logp_N, _ = policy(*inputs, temperature)
    return {b: logp_N[rows_N == b] for b in rows}


@pytest.fixture(scope="module")
def policy(qwen2):
    return Policy(str(qwen2), CPU).double()


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_logprobs_are_those_of_the_distribution_that_was_sampled(
    tiny_family, prompts, family
):
    folder = tiny_family(family)
    generator, policy = make_generator(folder), Policy(str(folder), CPU)
    rollouts = generator.generate(prompts * 2, 0.7, 12, seed=1)
    rows = list(range(len(rollouts)))
    logps = policy_logps(policy, rollouts, rows)
    for b in rows:
        # (1) those of the distribution that the generator drew from; (2) those of the bare model, one call a token
        torch.testing.assert_close(logps[b], torch.tensor(rollouts.logps[b]), rtol=0, atol=2e-5)
        single = step_logps(
            policy.lm, rollouts.prompt_ids[b], rollouts.completion_ids[b], 0.7
        ).float()
        torch.testing.assert_close(logps[b], single, rtol=0, atol=2e-5)
        assert len(logps[b]) == len(rollouts.completion_ids[b])
    rows_N, *inputs = collate(rollouts, [4, 1, 7], PAD, CPU)
    together, _ = policy(*inputs, 0.7)
    torch.testing.assert_close(rollouts.logps_of(rows_N), together, rtol=0, atol=2e-5)


def test_eos_has_a_logprob_too(policy, sampled):
    b = max(
        (b for b in range(len(sampled)) if sampled.finished[b]),
        key=lambda b: len(sampled.completion_ids[b]),
    )
    (logp,) = policy_logps(policy, sampled, [b]).values()
    expected = step_logps(policy.lm, sampled.prompt_ids[b], sampled.completion_ids[b], 0.7)
    assert sampled.completion_ids[b][-1] == EOS and len(logp) == len(sampled.completion_ids[b])
    torch.testing.assert_close(logp[-1], expected[-1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_do_not_depend_on_right_padding_or_neighbours(tiny_family, sampled, family):
    policy = Policy(str(tiny_family(family)), CPU).double()
    rows = [3, 0, 11, 9, 24]
    assert (
        len({total for b, total in enumerate(sampled.total_tokens()) if b in rows}) > 2
    )  # so there is padding
    together = policy_logps(policy, sampled, rows)
    other_pad = policy_logps(policy, sampled, rows, pad_id=60)
    for b in rows:
        (alone,) = policy_logps(policy, sampled, [b]).values()
        torch.testing.assert_close(together[b], alone, rtol=0, atol=1e-10)
        torch.testing.assert_close(other_pad[b], alone, rtol=0, atol=1e-10)


@pytest.fixture(scope="module")
def uneven() -> Rollouts:
    """12 rows of 2 to 40 tokens, prompts and completions of a single token among them; more than the demo's 128."""
    rng = np.random.default_rng(0)
    prompts, completions = (
        [rng.integers(2, 81, n).tolist() for n in (1, *rng.integers(1, 21, 11))] for _ in range(2)
    )
    rollouts = Rollouts(prompts, completions, [True] * 12, [[]] * 12)
    assert sum(rollouts.total_tokens()) > 200 and min(map(len, completions[1:])) < 3
    return rollouts


SPLITS = [
    [list(range(12))],
    [[b] for b in range(12)],
    [[7, 0, 3], [5], [11, 1, 2, 4], [6, 10, 8, 9]],
]


def forward_backward(policy, rollouts, batches, packed) -> list[torch.Tensor]:
    """log-prob and entropy of each response token in order of rows, and the gradient of a loss with both in it."""
    policy.zero_grad()
    advantage_B, columns = torch.linspace(-1, 2, len(rollouts), dtype=torch.float64), []
    for rows in batches:
        rows_N, *inputs = collate(rollouts, rows, PAD, CPU, packed)
        columns.append((rows_N, *policy(*inputs, 0.7)))
        _, logp_N, entropy_N = columns[-1]
        bonus = {"entropy_N": entropy_N, "entropy_coef": 0.1}
        loss, _ = grpo.policy_loss(
            logp_N, logp_N.detach(), advantage_B[rows_N], torch.ones_like(logp_N), **bonus
        )
        loss.backward()
    rows_N, logp_N, entropy_N = (
        torch.cat(column).detach() for column in zip(*columns, strict=True)
    )
    order = rows_N.argsort(stable=True)
    return [
        logp_N[order],
        entropy_N[order],
        torch.cat([p.grad.flatten() for p in policy.parameters()]),
    ]


def assert_same(actual: list[torch.Tensor], expected: list[torch.Tensor]):
    """In float64, where all that differs is the order of sums."""
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11 * b.norm().item())


@pytest.mark.parametrize("family", [*FAMILIES, "demo"])
def test_packed_rows_have_the_logprobs_entropies_and_gradient_of_padded_ones(
    tiny_family, uneven, family
):
    """Through SDPA, for which transformers makes a mask of the positions."""
    policy = Policy(str(DEMO if family == "demo" else tiny_family(family)), CPU).double()
    expected = forward_backward(policy, uneven, SPLITS[0], packed=False)
    for split in SPLITS:
        assert_same(forward_backward(policy, uneven, split, packed=True), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_packed_row_sees_another(tiny_family, uneven, family):
    policy = Policy(str(tiny_family(family)), CPU)
    before = policy_logps(policy, uneven, [3, 8, 5], packed=True)
    other = uneven.take(range(12))
    other.prompt_ids[8] = [t + 1 for t in uneven.prompt_ids[8]]
    other.completion_ids[8] = [t + 1 for t in uneven.completion_ids[8]]
    after = policy_logps(policy, other, [3, 8, 5], packed=True)
    assert torch.equal(after[3], before[3]) and torch.equal(
        after[5], before[5]
    )  # what is masked has weight 0 exactly
    assert not torch.allclose(after[8], before[8])


@pytest.fixture
def flash_attention(monkeypatch) -> list[list[int]]:
    """Plain attention in the place of flash-attn, and the list of where its rows began and ended at each call."""
    calls = []

    def varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
    ):
        """(total tokens, heads, D) each; row i is from cu_seqlens[i] to cu_seqlens[i + 1]."""
        assert causal and not dropout_p and torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert max_seqlen_q == max_seqlen_k == cu_seqlens_q.diff().max()
        calls.append(cu_seqlens_q.tolist())
        rows = zip(
            *(x.transpose(0, 1).split(cu_seqlens_q.diff().tolist(), dim=1) for x in (q, k, v)),
            strict=True,
        )
        how = {"is_causal": True, "scale": softmax_scale, "enable_gqa": True}
        return torch.cat(
            [scaled_dot_product_attention(*row, **how) for row in rows], dim=1
        ).transpose(0, 1)

    def one(q, k, v, dropout_p, softmax_scale, causal):
        ends, most = torch.tensor([0, q.shape[1]]), q.shape[1]
        return varlen(q[0], k[0], v[0], ends, ends, most, most, dropout_p, softmax_scale, causal)[
            None
        ]

    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    monkeypatch.setattr(
        modeling_flash_attention_utils,
        "_lazy_imports",
        lambda *_, **__: (one, varlen, None, None, None),
    )
    return calls


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_cuts_packed_rows_apart_for_flash_attention(
    tiny_family, uneven, family, flash_attention
):
    policy = Policy(str(tiny_family(family)), CPU).double()
    assert not policy.packed
    expected = forward_backward(policy, uneven, SPLITS[0], policy.packed)
    assert flash_attention == []
    policy.lm.config._attn_implementation = "flash_attention_2"
    assert policy.packed
    for split in SPLITS:
        assert_same(forward_backward(policy, uneven, split, policy.packed), expected)
        tokens_B = uneven.total_tokens()
        ends = [np.cumsum([0, *(tokens_B[b] for b in rows)]).tolist() for rows in split]
        assert flash_attention == [e for e in ends for _ in range(2)]  # two layers
        flash_attention.clear()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_those_of_the_plain_model(tiny_family, sampled, family):
    """Every parameter's gradient, tied embeddings included, against all logits and autograd through log_softmax."""
    policy = Policy(str(tiny_family(family)), CPU).double()
    _, ids_B_T, response_B_T, position_1_T = collate(sampled, [3, 0, 11], PAD, CPU)
    logp_N, entropy_N = policy(ids_B_T, response_B_T, position_1_T, 0.7)
    (logp_N.sum() + entropy_N.sum()).backward()
    actual = {name: p.grad.clone() for name, p in policy.lm.named_parameters()}

    policy.zero_grad()
    log_p = torch.log_softmax(policy.lm(ids_B_T).logits[:, :-1] / 0.7, dim=-1)
    chosen = log_p.gather(2, ids_B_T[:, 1:, None])[..., 0]
    entropy = -(log_p.exp() * log_p).sum(dim=-1)
    ((chosen + entropy) * response_B_T[:, 1:]).sum().backward()
    for name, p in policy.lm.named_parameters():
        torch.testing.assert_close(actual[name], p.grad, rtol=1e-8, atol=1e-8, msg=name)
    assert all(g.abs().max() > 1e-6 for g in actual.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reads_and_writes_text_one_token_a_character(tiny_family, family):
    tokenizer = AutoTokenizer.from_pretrained(tiny_family(family))
    for text in QUESTIONS:
        ids = tokenizer(text).input_ids
        assert len(ids) == len(text) and tokenizer.decode(ids) == text


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_parts_that_training_names(tiny_family, family):
    policy = Policy(str(tiny_family(family)), CPU)
    lm = policy.lm
    assert len(lm.model.layers) == 2  # what FSDP wraps
    assert lm.lm_head.weight.shape == (99, 32) and getattr(lm.lm_head, "bias", None) is None
    tied = lm.lm_head.weight is lm.model.embed_tokens.weight
    assert tied == FAMILIES[family][1]["tie_word_embeddings"]
    assert all(p.dtype == torch.float32 and p.requires_grad for p in policy.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_train_mode_has_no_dropout(sampled, tmp_path, family):
    """Checkpoints may come with dropout: in train mode it would part the ratio from 1 before the first update."""
    dropout = {"attention_dropout": 0.5}
    if family == "phi3":
        dropout |= {"resid_pdrop": 0.5, "embd_pdrop": 0.5}
    policy = Policy(str(save_tiny_model(tmp_path / family, family, **dropout)), CPU)
    expected = policy_logps(policy, sampled, [0])[0]
    assert torch.equal(policy_logps(policy.train(), sampled, [0])[0], expected)


def test_a_generator_and_a_policy_of_one_folder_hold_the_same_parameters_in_the_same_order(
    tiny_family,
):
    """What `refresh` relies on when it copies parameter by parameter."""
    for family in FAMILIES:
        generator, policy = (
            make_generator(tiny_family(family)),
            Policy(str(tiny_family(family)), CPU),
        )
        pairs = zip(generator.lm.named_parameters(), policy.lm.named_parameters(), strict=True)
        assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)
        assert not any(p.requires_grad for p in generator.lm.parameters())


# ----------------------------------------------------------------------------------------------------
# Records, batches and shares

ROLLOUTS = Rollouts(
    [[5, 6], [7], [8, 9, 10]],
    [[11, EOS], [12, 13, EOS], [14]],
    [True, True, False],
    [[-0.1, -0.2], [-0.3, -0.4, -0.5], [-0.6]],
)


def test_rollouts_add_and_take_keep_rows_together():
    swapped = Rollouts(
        [[8, 9, 10], [5, 6]], [[14], [11, EOS]], [False, True], [[-0.6], [-0.1, -0.2]]
    )
    assert ROLLOUTS.take([2, 0]) == swapped
    assert ROLLOUTS.take([0]) + ROLLOUTS.take([1, 2]) == ROLLOUTS
    assert sum((ROLLOUTS.take([b]) for b in range(3)), Rollouts()) == ROLLOUTS
    assert len(ROLLOUTS) == 3
    assert ROLLOUTS.lengths().tolist() == [2, 3, 1]
    assert ROLLOUTS.total_tokens() == [4, 4, 4]
    expected = torch.tensor([-0.6, -0.3, -0.4, -0.5])
    assert torch.equal(ROLLOUTS.logps_of(torch.tensor([2, 1, 1, 1])), expected)


def test_left_pad_by_hand():
    ids, mask = left_pad([[5, 6, 7], [8]], PAD, CPU)
    assert ids.tolist() == [[5, 6, 7], [PAD, PAD, 8]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize("pad_id", [PAD, EOS])
def test_collate_by_hand(pad_id):
    rollouts = Rollouts([[5, 6, 7], [8]], [[9, EOS], [10, EOS]], [True, True])
    rows_N, ids_B_T, response_B_T, position_1_T = collate(rollouts, [1, 0], pad_id, CPU)
    assert ids_B_T.tolist() == [[8, 10, EOS, pad_id, pad_id], [5, 6, 7, 9, EOS]]
    assert response_B_T.long().tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 1, 1]]
    assert position_1_T.tolist() == [[0, 1, 2, 3, 4]]  # of both rows
    assert rows_N.tolist() == [1, 1, 0, 0]  # aligned with the mask, read row by row


def test_packed_collate_by_hand():
    rollouts = Rollouts([[5, 6, 7], [8], [11]], [[9, EOS], [10, EOS], [12]], [True, True, False])
    rows_N, ids_1_T, response_1_T, position_1_T = collate(
        rollouts, [1, 0, 2], PAD, CPU, packed=True
    )
    assert ids_1_T.tolist() == [[8, 10, EOS, 5, 6, 7, 9, EOS, 11, 12]]
    assert response_1_T.long().tolist() == [
        [0, 1, 1, 0, 0, 0, 1, 1, 0, 1]
    ]  # no row's first token: none precedes it
    assert position_1_T.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4, 0, 1]]
    assert rows_N.tolist() == [1, 1, 0, 0, 2]


@pytest.mark.parametrize("packed", [False, True])
def test_micro_batches_of_all_ranks_hold_every_row_once_within_the_budget(uneven, packed):
    tokens_B, held, room = uneven.total_tokens(), [], 0
    for rank in range(3):
        batches, idle = micro_batches(uneven, list(range(12)), rank, 3, 60, PAD, CPU, packed)
        assert not idle and (
            len(batches) == 2 if packed else len(batches) > 2
        )  # each rank has 69 to 76 tokens
        for rows_N, ids_B_T, _, _ in batches:
            held += rows_N.unique_consecutive().tolist()
            room += ids_B_T.numel()
            assert ids_B_T.numel() <= 60 and (len(ids_B_T) == 1 or not packed)
    assert sorted(held) == list(range(12))
    assert room == sum(tokens_B) if packed else room > sum(tokens_B)


def test_balance_by_hand():
    # 9 -> rank 0; 7 -> rank 1; 6 -> rank 1 (7 < 9); 5 -> rank 0 (9 < 13); 2 -> rank 1 (13 < 14)
    assert balance([0, 1, 2, 3, 4], [5, 9, 7, 2, 6], 2) == [[1, 0], [2, 4, 3]]
    assert balance([3], [5, 9, 7, 2], 3) == [[3], [], []]


@pytest.mark.parametrize("ranks", [6, 8])
@pytest.mark.parametrize("live", [48, 96, 288])
def test_ranks_carry_equal_tokens_within_5_percent(ranks, live):
    """Prompts of 80 to 400 tokens, completions log-normal around 700 of which some are cut at 2,048."""
    for seed in range(20):
        rng = np.random.default_rng([seed, live])
        tokens = (
            (rng.integers(80, 400, live) + np.minimum(rng.lognormal(6.5, 0.6, live), 2048))
            .astype(int)
            .tolist()
        )
        loads = [
            sum(tokens[b] for b in share) for share in balance(list(range(live)), tokens, ranks)
        ]
        assert max(loads) <= 1.05 * sum(tokens) / ranks


def test_pack_by_hand():
    # longest first; every row is padded to the first of its batch: [9], then 7 + 7, then 3 + 3 + 3
    assert pack([0, 1, 2, 3, 4, 5], [3, 9, 7, 3, 6, 2], 14) == [[1], [2, 4], [0, 3, 5]]
    assert pack([0, 1], [20, 30], 14) == [[1], [0]]  # rows longer than the budget go alone
    assert pack([], [], 14) == []
    # 6 is at least 0.75 of 8 and 5 is not; of 5 it is 4 that is, and 3 that is not
    assert pack([0, 1, 2, 3, 4, 5], [8, 6, 5, 4, 3, 8], 100, shortest=0.75) == [
        [0, 5, 1],
        [2, 3],
        [4],
    ]
    # packed, a row counts what it has: 9 + 7, then 6 + 3 + 3 + 2; and it may be as short as it likes
    assert pack([0, 1, 2, 3, 4, 5], [3, 9, 7, 3, 6, 2], 16) == [[1], [2, 4], [0, 3, 5]]
    assert pack([0, 1, 2, 3, 4, 5], [3, 9, 7, 3, 6, 2], 16, shortest=0.75, packed=True) == [
        [1, 2],
        [4, 0, 3, 5],
    ]


row_tokens = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(row_tokens, st.integers(1, 8))
def test_balance_gives_every_row_to_one_rank_and_loads_differ_by_one_row_at_most(tokens, n):
    shares = balance(list(range(len(tokens))), tokens, n)
    assert sorted(b for share in shares for b in share) == list(range(len(tokens)))
    loads = [sum(tokens[b] for b in share) for share in shares]
    assert len(shares) == n and max(loads) - min(loads) <= max(tokens)


@given(row_tokens, st.integers(1, 120), st.booleans())
def test_pack_keeps_every_row_and_the_budget_and_opens_no_batch_too_many(tokens, budget, packed):
    def room(batch):
        lengths = [tokens[b] for b in batch]
        return sum(lengths) if packed else len(lengths) * max(lengths)

    batches = pack(list(range(len(tokens))), tokens, budget, packed=packed)
    assert sorted(b for batch in batches for b in batch) == list(range(len(tokens)))
    assert all(room(batch) <= budget or len(batch) == 1 for batch in batches)
    for batch, following in pairwise(batches):  # the next batch's first row did not fit
        assert room(batch + following[:1]) > budget


def training_gradient(
    policy, rollouts, rewards_P_G, loss, ranks, budget, drop_dead=True, packed=False
):
    """The gradient of one step as train.py computes it, the ranks one after another in this process."""
    advantage_B = grpo.group_advantages(rewards_P_G).flatten()
    weight_B = grpo.row_weights(rollouts.lengths().reshape(rewards_P_G.shape), loss).flatten()
    rows = advantage_B.nonzero()[:, 0].tolist() if drop_dead else list(range(len(rollouts)))
    tokens_B = rollouts.total_tokens()
    policy.zero_grad()
    for share in balance(rows, tokens_B, ranks):
        for batch in pack(share, tokens_B, budget, packed=packed):
            rows_N, *inputs = collate(rollouts, batch, PAD, CPU, packed)
            logp_N, _ = policy(*inputs, 0.7)
            value, _ = grpo.policy_loss(
                logp_N, logp_N.detach(), advantage_B[rows_N], weight_B[rows_N]
            )
            value.backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize("loss", grpo.LOSSES)
def test_the_gradient_of_a_step_does_not_depend_on_ranks_micro_batches_or_dropping_dead_rows(
    policy, sampled, loss
):
    rollouts = sampled.take(list(range(24)))
    rewards = torch.zeros(6, 4, dtype=torch.float64)
    rewards[0, 1] = rewards[2, 0] = rewards[2, 3] = rewards[3, 2] = 1
    rewards[4] = 1  # group 4 is all right, groups 1 and 5 all wrong
    expected = training_gradient(
        policy, rollouts, rewards, loss, ranks=1, budget=10**6, drop_dead=False
    )
    assert expected.norm() > 1e-2
    for ranks, budget in [(1, 10**6), (1, 1), (2, 100), (3, 200), (6, 90), (8, 1), (13, 150)]:
        for packed in (False, True):
            actual = training_gradient(
                policy, rollouts, rewards, loss, ranks, budget, packed=packed
            )
            torch.testing.assert_close(
                actual, expected, rtol=0, atol=1e-10 * expected.norm().item()
            )
    order = [
        4 * i + g for i in (3, 0, 5, 1, 4, 2) for g in (2, 0, 3, 1)
    ]  # groups, and rows inside them, shuffled
    shuffled = rewards.flatten()[order].reshape(6, 4)
    actual = training_gradient(policy, rollouts.take(order), shuffled, loss, ranks=3, budget=120)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10 * expected.norm().item())


# ----------------------------------------------------------------------------------------------------
# check_model: one line for what would otherwise go wrong minutes later


def refused(folder, tokens=10) -> str:
    """The message with which check_model refuses a folder; it must be one line and name the folder."""
    with pytest.raises(ValueError) as error:
        check_model(str(folder), tokens)
    message = str(error.value)
    assert str(folder) in message and "\n" not in message
    return message


@pytest.mark.parametrize("family", FAMILIES)
def test_check_model_accepts_every_family_up_to_its_last_position(tiny_family, family):
    check_model(str(tiny_family(family)), 4096)
    assert "4097 tokens" in refused(tiny_family(family), 4097)


def test_check_model_refuses_what_is_not_there(tmp_path):
    assert "is no folder and cannot be had from the hub" in refused(tmp_path / "nowhere")


def test_check_model_refuses_a_folder_without_a_model(tmp_path):
    assert "is no Hugging Face model folder" in refused(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["{", "{}", None], ids=["cut", "empty", "missing"])
@pytest.mark.parametrize("family", FAMILIES)
def test_check_model_refuses_a_folder_with_a_broken_or_missing_file(
    tiny_family, tmp_path, family, file, content
):
    shutil.copytree(tiny_family(family), tmp_path / "broken")
    path = tmp_path / "broken" / file
    path.unlink() if content is None else path.write_text(content)
    assert "is no Hugging Face model folder" in refused(tmp_path / "broken")


def test_check_model_refuses_a_window_that_is_shorter_than_a_row(tiny_family, tmp_path):
    """The decoding loop shows every token all earlier ones."""
    shutil.copytree(tiny_family("phi3"), tmp_path / "window")
    path = tmp_path / "window" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sliding_window": 64}))
    check_model(str(tmp_path / "window"), 64)
    assert "attends to the last 64 tokens only" in refused(tmp_path / "window", 65)


def test_check_model_refuses_an_unknown_architecture(qwen2, tmp_path):
    shutil.copytree(qwen2, tmp_path / "new")
    (tmp_path / "new" / "config.json").write_text('{"model_type": "unheard_of"}')
    assert "unheard_of" in refused(tmp_path / "new")


def test_check_model_refuses_a_folder_without_weights(qwen2, tmp_path):
    shutil.copytree(qwen2, tmp_path / "light", ignore=shutil.ignore_patterns("*.safetensors"))
    assert "has no weights" in refused(tmp_path / "light")


def test_check_model_refuses_a_tokenizer_without_a_pad_token(qwen2, tmp_path):
    shutil.copytree(qwen2, tmp_path / "padless")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "padless")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "padless")
    assert "has no pad token" in refused(tmp_path / "padless")


def test_check_model_refuses_a_tokenizer_with_more_tokens_than_the_model(tmp_path):
    save_tiny_model(tmp_path / "small", vocab_size=90)
    assert "has 99 tokens, its model only 90" in refused(tmp_path / "small")
