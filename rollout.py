r"""From questions to completions, and from completions to the log-probs of their tokens.

`Generator` generates with Hugging Face's `generate` and the decoding loop `sample_tokens`, in
training and in evaluation. `Policy` runs the same rows through the model again for their log-probs.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

import grpo
from grpo import Completion, Group
from plumbing import logprobs
from plumbing.batches import Batch, collate, distinct, pack, pad
from plumbing.config import Config
from plumbing.data.problems import Problems
from plumbing.decoding.cache import SlotCache, attention_for
from plumbing.decoding.fused import FusedRotary, fuse_norms, varlen_works
from plumbing.decoding.graphs import Recorder
from plumbing.errors import InputError, check_finite, first_lines
from plumbing.models import Card, check_directory, check_words, load, suffix_length, trial, write


class PromptEncoder:
    """Encoder of questions as prompts: header, question, footer, joined by blank lines, or in the
    tokenizer's chat template."""

    def __init__(self, config: Config, tokenizer):
        self.config = config
        self.tokenizer = tokenizer
        self.special_tokens = not config.chat_template  # a template has its own
        # A prompt that ends in an end token would have no continuation.
        self.left_off = suffix_length(tokenizer) if self.special_tokens else 0

    def text(self, question: str) -> str:
        """Return the prompt as text."""
        parts = self.config.prompt_header, question, self.config.prompt_footer
        prompt = "\n\n".join(filter(None, parts))
        if not self.config.chat_template:
            return prompt
        messages = [{"role": "user", "content": prompt}]
        apply = self.tokenizer.apply_chat_template
        return apply(messages, tokenize=False, add_generation_prompt=True)

    def __call__(self, question: str) -> list[int]:
        """Return the prompt as token ids, with special tokens before the text only. Raises
        InputError, with the question, if the chat template or the tokenizer fails."""
        try:
            text = self.text(question)
            ids = self.tokenizer(text, add_special_tokens=self.special_tokens).input_ids
        except Exception as error:  # a chat template is a program
            reason = f"{type(error).__name__}: {first_lines(error)}"
            message = f"model {self.config.model!r} cannot make a prompt of {question!r:.80}"
            raise InputError(f"{message}: {reason}") from error
        return ids[: len(ids) - self.left_off]

    def check(self, problems: Problems, n: int = 200) -> None:
        """Raise ValueError unless the first n problems become prompts that keep their words."""
        for question in map(problems.question, range(min(n, len(problems)))):
            self(question)
            check_words(self.config.model, self.tokenizer, question)


# Generation


class Generator:
    """A copy of the policy that generates: bf16 on GPUs, fixed addresses, no FSDP hooks. lm, which
    is changed in place, needs "grouped_sdpa" attention: flash-attn takes no mask."""

    def __init__(self, lm: PreTrainedModel, tokenizer):
        self.lm = lm.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        fuse_norms(lm)
        self.fused_rotary = FusedRotary(lm)
        cuda = lm.device.type == "cuda"
        self.record = Recorder() if cuda else lambda step: step
        self.varlen = cuda and varlen_works(lm)
        self.checkpoint_settings = lm.generation_config
        lm.generation_config = GenerationConfig()
        eos = self.checkpoint_settings.eos_token_id  # None, an int or a list
        eos = eos if isinstance(eos, list) else [eos]
        # The tokens that end a completion: the checkpoint's and the tokenizer's.
        ids = {*eos, tokenizer.eos_token_id} - {None}
        self.stop_ids = sorted(i for i in ids if 0 <= i < lm.config.vocab_size)

    @classmethod
    def load(cls, name: str, device, tokenizer, dtype=torch.float32) -> "Generator":
        """Load a model directory or hub id."""
        lm = load(AutoModelForCausalLM, name, dtype, "grouped_sdpa", device)
        return cls(lm, tokenizer)

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
            torch.cuda.synchronize()  # else the next part of the step is charged for the update

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
        most `max_batch_tokens`, which bounds its key-value cache. Row b has its own random stream,
        (seed, first_row + b): but for rounding, no micro-batch or rank changes its tokens. Raises
        NonFiniteError if a token was drawn from logits that are not finite."""
        settings = self._settings(temperature, max_new_tokens)
        completions: list[Completion | None] = [None] * len(prompts)
        tokens_B = [len(prompt) + max_new_tokens for prompt in prompts]
        for rows in pack(tokens_B, max_batch_tokens):
            keys = [[seed, first_row + b] for b in rows]
            uniform_B_T = [uniform_numbers(key, max_new_tokens) for key in keys]
            prompts_B = [prompts[b] for b in rows]
            tokens_B_T, logp_B_T = self._decode(prompts_B, uniform_B_T, settings)
            logps_of_row = logp_B_T.tolist() if temperature > 0 else [[]] * len(rows)
            for b, ids, logps in zip(rows, tokens_B_T.tolist(), logps_of_row, strict=True):
                completions[b] = self._completion(ids, logps)
        return completions

    def _completion(self, ids: list[int], logps: list[float]) -> Completion:
        """Cut after the first stop token."""
        end = next((t + 1 for t, token in enumerate(ids) if token in self.stop_ids), None)
        return Completion(ids[:end], logps[:end], finished=end is not None)

    def _settings(self, temperature: float, max_new_tokens: int) -> GenerationConfig:
        """Name every setting: any other comes from the checkpoint (top-k 50, ...)."""
        sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
        return GenerationConfig(
            do_sample=temperature > 0,
            **sampling,
            repetition_penalty=1.0,
            max_new_tokens=max_new_tokens,
            eos_token_id=self.stop_ids,
            pad_token_id=self.tokenizer.pad_token_id,
            use_cache=True,
        )

    def _decode(
        self, prompts: list[list[int]], uniform_B_T: list[np.ndarray], settings: GenerationConfig
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode a micro-batch; return tokens and log-probs (B, T)."""
        device = self.lm.device
        prompts_P, prompt_B = distinct(prompts)
        ids_P_T, mask_P_T = pad(prompts_P, settings.pad_token_id, device, side="left")
        with self.fused_rotary:
            tokens_B_T, logp_B_T = self.lm.generate(
                ids_P_T,
                attention_mask=mask_P_T,
                generation_config=settings,
                synced_gpus=False,  # or it all-reduces at every token, on teacher ranks, too
                custom_generate=sample_tokens,
                prompt_B=torch.tensor(prompt_B, device=device),
                uniform_B_T=torch.tensor(np.stack(uniform_B_T), device=device),
                record=self.record,
                varlen=self.varlen,
            )
        check_finite(logp_B_T)
        return tokens_B_T, logp_B_T

    def export(self, folder: Path, card: Card | None = None) -> None:
        """Write a Hugging Face directory, with the checkpoint's generation settings and all tokens
        at which training stops. card: writes the model card, if any."""
        self.lm.save_pretrained(folder)
        write(folder, self.lm.config, self.tokenizer, self.checkpoint_settings, self.stop_ids)
        if card:
            card.write(folder, "student")


def uniform_numbers(key: list[int], n: int) -> np.ndarray:
    """Return the first n numbers, in [0, 1), of the random stream with this key."""
    stream = np.random.Generator(np.random.Philox(key=key))
    return stream.random(n, dtype=np.float32)


def sample_tokens(
    model,
    input_ids,
    logits_processor,
    stopping_criteria,
    generation_config,
    prompt_B,
    uniform_B_T,
    record,
    varlen,
    **model_inputs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode with a static key-value cache, for `generate(custom_generate=sample_tokens)`.

    input_ids are the distinct prompts, left-padded; row b continues prompt prompt_B[b] and draws
    by uniform_B_T[b]. Returns tokens (B, T) and float32 log-probs (B, T), not cut at stop tokens.

    The cache grows by blocks of tokens, or with `varlen`, where unused slots cost nothing, at once.
    When it grows, or a quarter of its rows are left, finished rows are dropped. Until then shapes
    and addresses stay, so that on a GPU `record` captures a CUDA graph: launching the kernels of 28
    layers one by one costs 20-30 ms a token."""
    cuda = input_ids.is_cuda
    T = generation_config.max_new_tokens
    block = T if varlen else 256 if cuda else 8
    check_every = 64 if cuda else 8  # to look for finished rows, the loop waits for the device
    rows = DecodedRows(uniform_B_T, generation_config)
    logits_B_V = last_logits(model, input_ids, **model_inputs)[prompt_B]
    prompts = model_inputs["past_key_values"]
    cache = SlotCache(prompts, model_inputs["position_ids"], prompt_B, varlen)

    def step() -> torch.Tensor:
        return last_logits(model, rows.token_B_1, **cache.inputs(model.dtype))

    next_logits = step  # or a CUDA graph of it
    for t in range(T):
        rows.draw(t, logits_processor(None, logits_B_V.float()))
        if t + 1 == T:
            break
        cache.slot += 1
        if t % check_every == 0:
            finished = rows.finished(t)
            active = (~finished).nonzero()[:, 0]
            if not len(active):
                break
            if t % block == 0 or len(active) <= len(finished) / 4:
                end_of_block = t - t % block + block
                rows.keep(active)
                cache.keep(active, t, room=min(end_of_block, T - 1))
                next_logits = record(step)
            else:
                cache.ignore(finished, t)
        logits_B_V = next_logits()
    return rows.tokens_B_T, rows.logp_B_T


def last_logits(model, ids, use_cache=None, logits_to_keep=None, **inputs) -> torch.Tensor:
    """Compute the logits (B, V) after these tokens. `generate` passes the unused arguments."""
    hidden_B_T_D = model.base_model(ids, use_cache=True, **inputs).last_hidden_state
    weight_V_D = model.get_output_embeddings().weight
    return logprobs.logits(hidden_B_T_D[:, -1], weight_V_D)


class DecodedRows:
    """Tokens and log-probs of all B rows so far, and the positions of those that are `live`: still
    decoded, in the order of the cache."""

    def __init__(self, uniform_B_T: torch.Tensor, settings: GenerationConfig):
        self.uniform_B_T = uniform_B_T
        self.do_sample = settings.do_sample
        self.tokens_B_T = torch.zeros_like(uniform_B_T, dtype=torch.long)
        self.logp_B_T = torch.zeros_like(uniform_B_T)
        self.stop_ids = self.tokens_B_T.new_tensor(settings.eos_token_id)
        self.live = torch.arange(len(uniform_B_T), device=uniform_B_T.device)
        self.token_B_1 = self.tokens_B_T[:, :1].clone()  # the last of each live row

    def draw(self, t: int, logits_B_V: torch.Tensor) -> None:
        """Draw token t of each live row."""
        uniform_B_1 = self.uniform_B_T[self.live, t, None] if self.do_sample else None
        drawn_B_1, logp_B_1 = draw_tokens(logits_B_V, uniform_B_1)
        self.tokens_B_T[self.live, t] = drawn_B_1[:, 0]
        self.logp_B_T[self.live, t] = logp_B_1[:, 0]
        self.token_B_1.copy_(drawn_B_1)  # in place: a CUDA graph reads it

    def finished(self, t: int) -> torch.Tensor:
        """Return which live rows have a stop token among tokens 0 to t."""
        tokens_B_t = self.tokens_B_T[self.live, : t + 1]
        return torch.isin(tokens_B_t, self.stop_ids).any(dim=1)

    def keep(self, active: torch.Tensor) -> None:
        """Drop all live rows but the active ones."""
        self.live = self.live[active]
        self.token_B_1 = self.token_B_1[active]


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
        drawn_B_1.clamp_(max=logp_B_V.shape[1] - 1)  # of NaN it is V: an error that stops a GPU
    return drawn_B_1, logp_B_V.gather(1, drawn_B_1)


def completion_metrics(groups: list[Group]) -> dict[str, float]:
    """Compute shares of a step's completions, and token counts, for metrics.jsonl."""
    completions = [completion for group in groups for completion in group.completions]
    B = len(completions)
    status_of = Counter(completion.status for completion in completions)
    failures = sum(status_of[status] for status in ("too_long", "timeout", "memory", "crash"))
    prompt_tokens = sum(len(group.prompt_ids) * len(group.completions) for group in groups)
    completion_tokens = sum(len(completion.ids) for completion in completions)
    return {
        "truncated": sum(not completion.finished for completion in completions) / B,
        "no_box": status_of["no_box"] / B,
        "bad_gold": status_of["bad_gold"] / B,
        "verify_failures": failures / B,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


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


# Checks of a model


def own_logps(lm, prompt_ids: list[int], completion: Completion) -> torch.Tensor:
    """Compute log-probs of a completion's tokens by the model's own attention and head."""
    ids_1_T = torch.tensor([prompt_ids + completion.ids], device=lm.device)
    logits_T_V = lm(ids_1_T).logits[0]
    logp_T_V = logits_T_V.float().log_softmax(-1)
    n = len(prompt_ids)
    target_N_1 = ids_1_T[0, n:, None]
    logp_N_1 = logp_T_V[n - 1 : -1].gather(1, target_N_1)
    return logp_N_1[:, 0]


def check_model(name: str, tokens: int) -> None:
    """Raise ValueError, in one line, unless Generator and Policy are right for the model `name`.

    Beyond check_directory's conditions it must attend to whole rows of `tokens` tokens, generate,
    have an end token, and give Generator and Policy the log-probs of its own attention and head."""
    lm, tokenizer = check_directory(name, tokens, AutoModelForCausalLM)
    if tokens > (window := getattr(lm.config, "sliding_window", None) or tokens):
        limit = f"attends to the last {window} tokens only"
        raise ValueError(f"{name!r} {limit}, a row may take {tokens}")
    prompts = [tokenizer(text).input_ids for text in ("1", "1", "1 + 1")]
    with trial(name, "cannot generate here"):
        lm.set_attn_implementation("grouped_sdpa")
        if lm.config._attn_implementation != "grouped_sdpa":  # transformers only logs a warning
            raise ValueError("its attention cannot be replaced")
        generator = Generator(lm, tokenizer)
        if not generator.stop_ids:
            raise ValueError("it has no end token: set tokenizer.eos_token and save it again")
        completions = generator.generate(prompts, 1.0, 4, seed=0)
    with trial(name, "cannot be trained on what it generates here"), torch.no_grad():
        lm.set_attn_implementation("shared_prompts")
        rows = [*zip(prompts, completions, strict=True)]
        batch = collate(rows, lm.device)
        policy_logp_N = Policy(lm)(batch, 1.0)[0]
        lm.set_attn_implementation("eager")
        own_logp_N = torch.cat([own_logps(lm, *row) for row in rows])
    for path, logp_N in (("Generator", batch.generator_logp_N), ("Policy", policy_logp_N)):
        if not (gap := (logp_N - own_logp_N).abs().max().item()) < 0.01:
            cause = "it may cap, scale or bias its logits, or attend in its own way"
            raise ValueError(f"model {name!r}: {path}'s log-probs are off by {gap:.2g}: {cause}")
