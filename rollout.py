"""From questions to completions, and from completions to the log-probs of their tokens.

`Generator` generates with Hugging Face's `generate` and the decoding loop `sample_tokens`, in
training and in evaluation. `Policy` runs the same rows through the model again for their log-probs.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

import grpo
from grpo import Completion
from plumbing.batches import Batch, collate, cut_longest_first, distinct, pad
from plumbing.config import Config
from plumbing.data.problems import Problems
from plumbing.decoding.cache import SlotCache, attention_for
from plumbing.decoding.chat import PROBE, after, end_of_turn, render
from plumbing.decoding.graphs import GraphCapture
from plumbing.errors import check_finite
from plumbing.model_checks import (
    check_directory,
    check_head,
    check_logps,
    check_window,
    check_words,
    own_logps,
    reject_on_error,
)
from plumbing.models import load, recompute_activations, suffix_length, write


def prompt_text(config: Config, question: str) -> str:
    """Join header, question and footer, those that are not empty, with blank lines (App. M)."""
    parts = config.prompt_header, question, config.prompt_footer
    return "\n\n".join(filter(None, parts))


class PromptEncoder:
    """Encoder of questions as prompts: header, question, footer, joined by blank lines, or in the
    tokenizer's chat template."""

    def __init__(self, config: Config, tokenizer):
        self.config = config
        self.tokenizer = tokenizer
        self.special_tokens = not config.chat_template  # a template has its own
        # A prompt that ends in an end token would have no continuation.
        self.n_suffix = suffix_length(tokenizer) if self.special_tokens else 0

    @classmethod
    def load(cls, config: Config) -> "PromptEncoder":
        """Load the tokenizer of --model."""
        return cls(config, AutoTokenizer.from_pretrained(config.model))

    def text(self, question: str) -> str:
        """Return the prompt as text. Raises ValueError if the chat template loses or changes it,
        and any error of the template."""
        prompt, _ = self._render(question)
        return prompt

    def answer_start(self, question: str) -> str:
        """Return the end of the prompt, with which an answer begins: what the chat template has
        after the user's text; without a template the last word."""
        _, start = self._render(question)
        return start

    def _render(self, question: str) -> tuple[str, str]:
        """Return `text` and `answer_start`."""
        content = prompt_text(self.config, question)
        if not self.config.chat_template:
            return content, "".join(content.split()[-1:])
        prompt = render(self.tokenizer, [content], prompt=True)
        return prompt, after(prompt, content)

    def __call__(self, question: str) -> list[int]:
        """Return the prompt as token ids, with special tokens before the text only. Raises
        InputError, which quotes the question, if the tokenizer or the chat template fails."""
        with reject_on_error(self.config.model, f"cannot make a prompt of {question!r:.80}"):
            text = self.text(question)
            ids = self.tokenizer(text, add_special_tokens=self.special_tokens).input_ids
        return ids[: len(ids) - self.n_suffix]

    def check(self, problems: Problems, n: int = 1000) -> None:
        """Raise ValueError unless n problems, spread over the file, keep their words when they are
        tokenized, and the chat template leaves the longest problem and PROBE, which has all
        printable ASCII characters, unchanged."""
        for index in range(0, len(problems), math.ceil(len(problems) / n)):
            question = problems.question(index)
            self(question)
            with reject_on_error(self.config.model, "cannot be used"):
                check_words(self.tokenizer, question)
        self(max(map(problems.question, range(len(problems))), key=len))
        with reject_on_error(self.config.model, "cannot be used"):
            self.text(PROBE)


# Generation


class Generator:
    """A copy of the policy that generates: bf16 on GPUs, fixed addresses, no FSDP hooks. lm, which
    is changed in place, needs "grouped_sdpa" attention: flash-attn takes no mask."""

    def __init__(self, lm: PreTrainedModel, tokenizer):
        self.lm = lm.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.capture = GraphCapture() if lm.device.type == "cuda" else lambda step: step
        self.stop_ids = self._find_stop_ids()
        lm.generation_config = GenerationConfig()  # the checkpoint's would fill in what is not set

    @classmethod
    def load(cls, name: str, device, tokenizer, dtype=torch.float32) -> "Generator":
        """Load a model directory or hub id."""
        lm = load(AutoModelForCausalLM, name, dtype, "grouped_sdpa", device)
        return cls(lm, tokenizer)

    def _find_stop_ids(self) -> list[int]:
        """Return the tokens that end a completion: the checkpoint's, the tokenizer's, and the one
        that ends an answer in the chat template. They end plain prompts, too: what follows is not
        of the answer."""
        eos = self.lm.generation_config.eos_token_id  # None, an int or a list
        eos = eos if isinstance(eos, list) else [eos]
        ids = {*eos, self.tokenizer.eos_token_id} - {None}
        ids |= {end_of_turn(self.tokenizer, [*ids])} - {None}
        V = self.lm.config.vocab_size
        return sorted(token for token in ids if 0 <= token < V)

    @property
    def ends(self) -> str:
        """The tokens that end a completion, as a line for the console."""
        tokens = self.tokenizer.convert_ids_to_tokens(self.stop_ids)
        return f"completions end at {' or '.join(map(repr, tokens))}"

    @torch.no_grad()
    def refresh(self, policy: "Policy") -> None:
        """Copy the policy's weights. A collective of the student ranks."""
        sharded = [module for module in policy.modules() if isinstance(module, FSDPModule)]
        for module in sharded:  # one all-gather each, in the compute dtype, not one a parameter
            module.reshard()  # weights that a forward has gathered would be old ones
            module.unshard()
        for copy, weight in zip(self.lm.parameters(), policy.lm.parameters(), strict=True):
            copy.copy_(weight)
        for module in sharded:
            module.reshard()
        if self.lm.device.type == "cuda":
            torch.cuda.synchronize()  # else its time counts in the next part of the step

    @torch.inference_mode()
    def generate(
        self,
        prompts: list[list[int]],
        temperature: float,
        max_new_tokens: int,
        seed: int,
        max_batch_tokens: int = 2**30,
        first_row: int = 0,
    ) -> list[Completion]:
        """Generate one completion for each prompt (token ids); a group repeats its prompt G times.

        temperature 0 is greedy. Rows x (longest prompt + max_new_tokens) of a micro-batch are at
        most `max_batch_tokens`, which bounds its key-value cache. A row has its own random stream,
        (seed, first_row + row): but for rounding, no micro-batch or rank changes its tokens. Raises
        NonFiniteError if a token was drawn from logits that are not finite."""
        settings = self._settings(temperature, max_new_tokens)
        completions: dict[int, Completion] = {}  # by row
        row_tokens = [len(prompt) + max_new_tokens for prompt in prompts]
        for part in cut_longest_first(row_tokens, max_batch_tokens):
            prompts_B = [prompts[row] for row in part]
            keys = [[seed, first_row + row] for row in part]
            uniform_B_T = np.stack([uniform_numbers(key, max_new_tokens) for key in keys])
            tokens_B_T, logp_B_T = self._decode(prompts_B, uniform_B_T, settings)
            ids_B = tokens_B_T.tolist()
            logps_B = logp_B_T.tolist() if temperature > 0 else [[]] * len(part)
            for row, ids, logps in zip(part, ids_B, logps_B, strict=True):
                completions[row] = self._completion(ids, logps)
        return [completions[row] for row in range(len(prompts))]

    def _completion(self, ids: list[int], logps: list[float]) -> Completion:
        """Cut after the first stop token."""
        ends = (t + 1 for t, token in enumerate(ids) if token in self.stop_ids)
        end = next(ends, None)
        return Completion(ids[:end], logps[:end], finished=end is not None)

    def _settings(self, temperature: float, max_new_tokens: int) -> GenerationConfig:
        """Return the settings of `generate`. Any other has transformers' default, such as top-k 50
        and a repetition penalty of 1."""
        sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
        return GenerationConfig(
            do_sample=temperature > 0,
            **sampling,
            max_new_tokens=max_new_tokens,
            eos_token_id=self.stop_ids,
            pad_token_id=self.tokenizer.pad_token_id,
        )

    def _decode(
        self, prompts_B: list[list[int]], uniform_B_T: np.ndarray, settings: GenerationConfig
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode a micro-batch; return tokens and log-probs (B, T)."""
        device = self.lm.device
        prompts_P, prompt_B = distinct(prompts_B)
        ids_P_T, mask_P_T = pad(prompts_P, settings.pad_token_id, device, side="left")
        tokens_B_T, logp_B_T = self.lm.generate(
            ids_P_T,
            attention_mask=mask_P_T,
            generation_config=settings,
            synced_gpus=False,  # or it all-reduces at every token, on teacher ranks, too
            custom_generate=sample_tokens,
            prompt_B=torch.tensor(prompt_B, device=device),
            uniform_B_T=torch.tensor(uniform_B_T, device=device),
            capture=self.capture,
        )
        check_finite(logp_B_T)
        return tokens_B_T, logp_B_T

    def export(self, folder: Path) -> None:
        """Write a Hugging Face directory, with the checkpoint's generation settings and all tokens
        at which training stops."""
        self.lm.save_pretrained(folder)
        write(folder, self.lm.config, self.stop_ids)


def uniform_numbers(key: list[int], n: int) -> np.ndarray:
    """Return the first n numbers, in [0, 1), of the random stream with this key."""
    exact_key = np.array(key, dtype=np.uint64)  # of a list Philox rounds large numbers
    stream = np.random.Generator(np.random.Philox(key=exact_key))
    return stream.random(n, dtype=np.float32)


def sample_tokens(
    model,
    input_ids,
    logits_processor,
    stopping_criteria,
    generation_config,
    prompt_B,
    uniform_B_T,
    capture,
    **model_inputs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode with a static key-value cache, for `generate(custom_generate=sample_tokens)`.

    input_ids are the distinct prompts, left-padded; row b continues prompt prompt_B[b] and draws
    by uniform_B_T[b]. Returns tokens (B, T) and float32 log-probs (B, T), not cut at stop tokens.

    Tokens are drawn in blocks. Between blocks, rows that have a stop token are dropped, so that A
    of the B rows remain, and the cache is enlarged. Within a block shapes and addresses stay, so
    that on a GPU `capture` makes a CUDA graph of a token: launching the kernels of 28 layers one by
    one costs 20-30 ms. Blocks are short on a CPU, where unused slots of the cache cost time at
    every token, and long on a GPU, where each needs a copy of the cache and a new graph."""
    T = generation_config.max_new_tokens
    block = 128 if input_ids.is_cuda else 8
    decoded = DecodedRows(uniform_B_T, generation_config)
    prompt_logits_P_V = last_logits(model, input_ids, **model_inputs)
    cache = SlotCache(model_inputs["past_key_values"], model_inputs["position_ids"])

    def draw(t: int, logits_A_V: torch.Tensor) -> None:
        decoded.draw(t, logits_processor(None, logits_A_V.float()))

    def step() -> torch.Tensor:
        return last_logits(model, decoded.token_A_1, **cache.inputs(model.dtype))

    draw(0, prompt_logits_P_V[prompt_B])
    cache_row_A = prompt_B  # the cache's row that each row goes on from: at first its prompt's
    for start in range(1, T, block):  # tokens 0 to start-1 are drawn; the cache lacks the last
        kept_A = decoded.keep_unfinished(start)
        if len(kept_A) == 0:
            break
        end = min(start + block, T)
        cache.keep(cache_row_A[kept_A], used=start - 1, room=end - 1)
        cache_row_A = torch.arange(len(kept_A), device=kept_A.device)
        next_logits = capture(step)  # a CUDA graph of it, or itself
        for t in range(start, end):
            draw(t, next_logits())
            cache.slot += 1
    return decoded.tokens_B_T, decoded.logp_B_T


def last_logits(model, ids, use_cache=None, logits_to_keep=None, **inputs) -> torch.Tensor:
    """Compute the logits (B, V) after these tokens. `generate` passes the unused arguments."""
    out = model.base_model(ids, use_cache=True, **inputs)
    last_B_D = out.last_hidden_state[:, -1]
    head_V_D = model.get_output_embeddings().weight
    return grpo.logits(last_B_D, head_V_D)


class DecodedRows:
    """Tokens and log-probs of all rows B so far, and which of them are being decoded: A."""

    def __init__(self, uniform_B_T: torch.Tensor, settings: GenerationConfig):
        self.uniform_B_T = uniform_B_T
        self.do_sample = settings.do_sample
        self.tokens_B_T = torch.zeros_like(uniform_B_T, dtype=torch.long)
        self.logp_B_T = torch.zeros_like(uniform_B_T)
        self.stop_ids = self.tokens_B_T.new_tensor(settings.eos_token_id)
        self.row_A = torch.arange(len(uniform_B_T), device=uniform_B_T.device)  # b of each
        self.token_A_1 = self.tokens_B_T[:, :1].clone()  # the last token of each

    def draw(self, t: int, logits_A_V: torch.Tensor) -> None:
        """Draw token t of each row that is being decoded."""
        place = self.row_A, t
        uniform_A_1 = None
        if self.do_sample:
            uniform_A_1 = self.uniform_B_T[place][:, None]
        drawn_A_1, logp_A_1 = draw_tokens(logits_A_V, uniform_A_1)
        self.tokens_B_T[place] = drawn_A_1[:, 0]
        self.logp_B_T[place] = logp_A_1[:, 0]
        self.token_A_1.copy_(drawn_A_1)  # in place: a CUDA graph reads it

    def keep_unfinished(self, t: int) -> torch.Tensor:
        """Keep the rows that have no stop token among their first t tokens; return their positions
        in the previous A."""
        tokens_A_t = self.tokens_B_T[self.row_A, :t]
        finished_A = torch.isin(tokens_A_t, self.stop_ids).any(dim=1)
        kept_A = (~finished_A).nonzero()[:, 0]
        self.row_A = self.row_A[kept_A]
        self.token_A_1 = self.token_A_1[kept_A]
        return kept_A


def draw_tokens(logits_B_V, uniform_B_1=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the token where the cumulative probability passes uniform_B_1; without it take the most
    likely one. Returns tokens (B, 1) and their log-probs (B, 1)."""
    logp_B_V = logits_B_V.log_softmax(dim=-1)
    if uniform_B_1 is None:
        drawn_B_1 = logp_B_V.argmax(dim=-1, keepdim=True)
    else:
        cumulative_B_V = logp_B_V.exp().cumsum(dim=-1)
        # It ends at exactly 1, above any uniform number.
        cumulative_B_V /= cumulative_B_V[:, -1:].clone()
        drawn_B_1 = torch.searchsorted(cumulative_B_V, uniform_B_1, right=True)
        drawn_B_1.clamp_(max=logp_B_V.shape[1] - 1)  # for NaN it is V, out of range
    return drawn_B_1, logp_B_V.gather(1, drawn_B_1)


# Log-probs of what was generated


class Policy(nn.Module):
    """A causal LM whose forward returns log-probs and entropy of response tokens, never all logits:
    the head is applied inside this root's forward, where FSDP has gathered its weight."""

    def __init__(self, lm: PreTrainedModel):
        super().__init__()
        self.lm = lm

    @classmethod
    def load(cls, name: str, device, dtype=torch.float32, trained: bool = True) -> "Policy":
        """Load a model directory or hub id; float32 if it is trained, whatever it computes in."""
        lm = load(AutoModelForCausalLM, name, dtype, attention_for(device), device)
        return cls(lm.requires_grad_(trained))

    @property
    def packed(self) -> bool:
        """Whether to pass it packed rows, which flash-attn takes."""
        return self.lm.config._attn_implementation == "flash_attention_2"

    def forward(self, batch: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute logp, entropy (N,) of the completions' tokens, row after row."""
        hidden_1_T_D = self.lm.base_model(
            batch.ids_1_T, position_ids=batch.position_1_T, use_cache=False, **batch.attention
        ).last_hidden_state
        return grpo.token_logprobs(
            hidden_1_T_D[0][batch.source_N],
            self.lm.get_output_embeddings().weight,
            batch.target_N,
            temperature,
        )


# Check of a model


def check_model(name: str, tokens: int, activation_checkpointing: bool = False) -> None:
    """Raise ValueError, in one line, unless Generator and Policy are right for the model `name`.

    Beyond check_directory's conditions it must attend to whole rows of `tokens` tokens, generate,
    have an end token, and give Generator and Policy the log-probs of its own attention and head,
    with activation_checkpointing, too."""
    lm, tokenizer = check_directory(name, tokens, AutoModelForCausalLM)
    check_window(name, lm.config, tokens)
    prompts = [tokenizer(text).input_ids for text in ("1", "1", "1 + 1")]
    with reject_on_error(name, "cannot generate here"):
        lm.set_attn_implementation("grouped_sdpa")
        if lm.config._attn_implementation != "grouped_sdpa":  # transformers only logs a warning
            raise ValueError("its attention cannot be replaced")
        generator = Generator(lm, tokenizer)
        if not generator.stop_ids:
            raise ValueError("it has no end token: set tokenizer.eos_token and save it again")
        completions = generator.generate(prompts, 1.0, 4, seed=0)
    rows = [*zip(prompts, completions, strict=True)]
    with reject_on_error(name, "cannot be trained on what it generates here"), torch.no_grad():
        batch = collate(rows, lm.device)
        lm.set_attn_implementation("shared_prompts")
        policy = Policy(lm)
        policy_logp_N, _ = policy(batch, 1.0)
        lm.set_attn_implementation("eager")
        own_logp_B = [own_logps(lm, prompt, completion.ids) for prompt, completion in rows]
    own_logp_N = torch.cat(own_logp_B)
    check_logps(name, "Generator", batch.generator_logp_N, own_logp_N)
    check_logps(name, "Policy", policy_logp_N, own_logp_N)
    with torch.no_grad():
        check_head(name, lm, prompts[-1])
    if activation_checkpointing:
        with (
            reject_on_error(name, "cannot be trained with --activation_checkpointing"),
            torch.no_grad(),
        ):
            recompute_activations(lm)
            lm.set_attn_implementation("shared_prompts")
            policy_logp_N, _ = policy(batch, 1.0)
        check_logps(name, "Policy with --activation_checkpointing", policy_logp_N, own_logp_N)
