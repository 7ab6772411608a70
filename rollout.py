r"""From questions to completions, and from completions to the log-probs of their tokens.

`Generator` is batched Hugging Face generation with a left-padded batch and a decoding loop of its own, `decode`; it
serves training (temperature 0.7, G copies of each prompt) and greedy evaluation (temperature 0, one copy). `Policy`
runs the same rows through the model again, right-padded or packed. Nothing here knows of rewards or losses.
"""

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    Cache,
    GenerationConfig,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import is_flash_attn_2_available

import grpo
from plumbing.errors import first_lines
from plumbing.models import check_folder, load

# App. M. Lines that the print breaks only for its page width are joined.
PROMPT_HEADER = r"""You are an expert problem solver. Your task is to solve the problem by explicitly showing your detailed Chain of Thought.
You must write out your reasoning step-by-step, explaining your logic for every calculation or deduction.
**Crucially, the final answer must be enclosed in a \boxed{...} command.**"""  # noqa: E501

PROMPT_FOOTER = r"""Strictly follow this output format:
### Step-by-Step Reasoning
<Write your detailed thought process here. Do not skip steps.>

### Final Answer
\boxed{<your final answer>}
**Important: The \boxed{...} command should only contain the final, simplified numerical or symbolic answer, with no extra text or units.**"""  # noqa: E501


@dataclass
class Rollouts:
    """Completions, row by row in prompt-major order: row g of prompt i is i*G + g.

    prompt_ids and completion_ids are token id lists without padding; a completion includes its first stop token.
    finished[b] is False where the completion was cut at the token limit. logps[b] has the log-prob of each token in
    the distribution that the generator drew it from; [] if it is greedy. Records may be joined with `+`.
    """

    prompt_ids: list[list[int]] = field(default_factory=list)
    completion_ids: list[list[int]] = field(default_factory=list)
    finished: list[bool] = field(default_factory=list)
    logps: list[list[float]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.completion_ids)

    def __add__(self, other: "Rollouts") -> "Rollouts":
        return Rollouts(
            self.prompt_ids + other.prompt_ids,
            self.completion_ids + other.completion_ids,
            self.finished + other.finished,
            self.logps + other.logps,
        )

    def take(self, rows: list[int]) -> "Rollouts":
        """Some of the rows, in the order given."""
        columns = (self.prompt_ids, self.completion_ids, self.finished, self.logps)
        return Rollouts(*([column[b] for b in rows] for column in columns))

    def lengths(self) -> torch.Tensor:
        """Response tokens of each row, the stop token included: (B,) int64."""
        return torch.tensor([len(ids) for ids in self.completion_ids])

    def total_tokens(self) -> list[int]:
        """Prompt and response tokens of each row: what a forward pass costs."""
        return [len(p) + len(o) for p, o in zip(self.prompt_ids, self.completion_ids, strict=True)]

    def logps_of(self, rows_N: torch.Tensor) -> torch.Tensor:
        """`logps` laid end to end as Policy returns its own, given the row of each response token (collate's): (N,)."""
        return torch.tensor(
            [logp for b in rows_N.unique_consecutive().tolist() for logp in self.logps[b]]
        )


class PromptEncoder:
    """Question -> prompt token ids: header, blank line, question, blank line, footer (empty parts are dropped)."""

    def __init__(self, tokenizer, header=PROMPT_HEADER, footer=PROMPT_FOOTER, chat_template=False):
        if chat_template and not tokenizer.chat_template:
            raise ValueError("--chat_template: this model's tokenizer has no chat template")
        self.tokenizer, self.header, self.footer = tokenizer, header, footer
        self.chat_template = chat_template
        try:
            self("1 + 1")
        except Exception as error:  # a template is a program, and may raise anything
            raise ValueError(f"the tokenizer cannot make a prompt: {first_lines(error)}") from error

    def text(self, question: str) -> str:
        """The prompt as text."""
        prompt = "\n\n".join(part for part in (self.header, question, self.footer) if part)
        if not self.chat_template:
            return prompt
        messages = [{"role": "user", "content": prompt}]
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )

    @classmethod
    def of(cls, config, tokenizer) -> "PromptEncoder":
        """The format that train.Config asks for."""
        return cls(tokenizer, config.prompt_header, config.prompt_footer, config.chat_template)

    def __call__(self, question: str) -> list[int]:
        """The prompt as token ids; a chat template brings its own special tokens."""
        return self.tokenizer(
            self.text(question), add_special_tokens=not self.chat_template
        ).input_ids


class Generator:
    """A plain copy of the policy that generates: bf16 on GPUs, no FSDP hook at every token, fixed addresses."""

    def __init__(self, name: str, device, tokenizer):
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        # Not flash-attn: it cannot take the mask of `decode`, whose slots are free, used or padding.
        self.lm = (
            load(AutoModelForCausalLM, name, dtype, "grouped_sdpa")
            .to(device)
            .eval()
            .requires_grad_(False)
        )
        self.graph = device.type == "cuda"  # whether `decode` records its steps as CUDA graphs
        self.recorder = Recorder() if self.graph else None
        self.tokenizer = tokenizer
        self.own_settings, self.lm.generation_config = self.lm.generation_config, GenerationConfig()
        self.stop_ids = stop_ids(self.own_settings, tokenizer)

    @torch.no_grad()
    def refresh(self, policy: "Policy") -> None:
        """Copies the policy's sharded masters, parameter by parameter. A collective of the student ranks."""
        for copy, master in zip(self.lm.parameters(), policy.lm.parameters(), strict=True):
            copy.copy_(master.to(copy.dtype).full_tensor())

    @torch.no_grad()
    def checksum(self) -> int:
        """A number that two copies of the same weights have in common."""
        bits = {2: torch.int16, 4: torch.int32}
        sums = [p.view(bits[p.element_size()]).sum(dtype=torch.int64) for p in self.lm.parameters()]
        return zlib.crc32(torch.stack(sums).cpu().numpy())

    @torch.no_grad()
    def generate(
        self,
        prompts: list[list[int]],
        temperature: float,
        max_new_tokens: int,
        seed: int,
        max_batch_tokens: int = 2**30,
        first_row: int = 0,
    ) -> Rollouts:
        """One completion for each prompt (token ids), in order; repeat a prompt G times for a group of G.

        temperature 0 is greedy. Prompts are taken in order of length, in micro-batches whose rows x (longest prompt +
        max_new_tokens) stay under `max_batch_tokens`, the bound on the key-value cache. Row b draws from its own random
        stream, (seed, first_row + b): which rows share a micro-batch or a rank does not change its tokens, but for the
        rounding of the logits. The global random state is not used.
        """
        device, pad_id = self.lm.device, self.tokenizer.pad_token_id
        # Every setting is named: one left out is taken from the checkpoint (top-k 50, repetition penalty, ...).
        sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
        config = GenerationConfig(
            do_sample=temperature > 0,
            **sampling,
            repetition_penalty=1.0,
            max_new_tokens=max_new_tokens,
            eos_token_id=self.stop_ids,
            pad_token_id=pad_id,
            use_cache=True,
        )
        completions, logps, finished = ([None] * len(prompts) for _ in range(3))
        for rows in pack(
            range(len(prompts)), [len(p) + max_new_tokens for p in prompts], max_batch_tokens
        ):
            number = {}  # the distinct prompts of the micro-batch, in order
            prompt_B = torch.tensor(
                [number.setdefault(tuple(prompts[b]), len(number)) for b in rows], device=device
            )
            ids_P_T, mask_P_T = left_pad([list(prompt) for prompt in number], pad_id, device)
            streams = [
                np.random.Generator(np.random.Philox(key=[seed, first_row + b])) for b in rows
            ]
            uniform_B_T = np.stack(
                [stream.random(max_new_tokens, dtype=np.float32) for stream in streams]
            )
            # synced_gpus would all-reduce on the world group every token, where the teacher ranks never come.
            tokens_B_T, logp_B_T = self.lm.generate(
                ids_P_T,
                attention_mask=mask_P_T,
                generation_config=config,
                synced_gpus=False,
                custom_generate=decode,
                prompt_B=prompt_B,
                uniform_B_T=torch.tensor(uniform_B_T, device=device),
                record=self.recorder.record if self.graph else lambda step: step,
            )
            for b, ids, row_logps in zip(rows, tokens_B_T.tolist(), logp_B_T.tolist(), strict=True):
                end = next((t + 1 for t, token in enumerate(ids) if token in self.stop_ids), None)
                completions[b], finished[b] = ids[:end], end is not None
                logps[b] = row_logps[:end] if temperature > 0 else []
        return Rollouts(prompts, completions, finished, logps)

    def export(self, folder) -> None:
        """Writes a Hugging Face folder, with the generation settings that the checkpoint came with."""
        self.lm.save_pretrained(folder)
        # As text: save_pretrained of some versions refuses settings that contradict each other, after days of training.
        (Path(folder) / "generation_config.json").write_text(self.own_settings.to_json_string())
        self.tokenizer.save_pretrained(folder)


def stop_ids(settings: GenerationConfig, tokenizer) -> list[int]:
    """The tokens that end a completion: those of the checkpoint, one or a list, and the tokenizer's."""
    eos = settings.eos_token_id
    return sorted({*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id} - {None})


class Slots(Cache):
    """A key-value cache with room for the tokens of a block, each written into its slot: nothing is concatenated.

    `layers` are those of the cache that the prompts were read into; it takes them over.
    """

    def __init__(self, layers: list):
        super().__init__(layers=layers)

    def make_room(self, rows_B: torch.Tensor, used: int, capacity: int) -> None:
        """Keeps these rows (in this order, repeated as asked) and their first `used` slots of now `capacity`."""
        self.slot = torch.tensor([used], device=rows_B.device)  # where the next token goes
        for layer in self.layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)[:, :, :used]
                new = old.new_empty(len(rows_B), old.shape[1], capacity, old.shape[3])
                torch.index_select(old, 0, rows_B, out=new[:, :, :used])
                new[:, :, used:] = (
                    0  # a masked slot has weight 0, and 0 times what was in memory may be NaN
                )
                setattr(layer, name, new)

    def update(self, keys, values, layer_idx, *args, **kwargs):
        """Called by each attention layer with the keys and values of one token a row; returns those of all slots.

        Of all, not of the used ones: those are no contiguous tensor, and a CPU takes twice as long to read them.
        """
        layer = self.layers[layer_idx]
        return layer.keys.index_copy_(2, self.slot, keys), layer.values.index_copy_(
            2, self.slot, values
        )


def decode(
    model,
    input_ids,
    logits_processor,
    stopping_criteria,
    generation_config,
    prompt_B,
    uniform_B_T,
    record,
    **model_inputs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loop behind `generate(custom_generate=decode)`: tokens (B, T) and their log-probs (B, T), float32.

    input_ids are the distinct prompts, left-padded, each read once; row b continues number prompt_B[b]. Its token t is
    where the running sum of the probabilities passes uniform_B_T[b, t], or without do_sample the most likely one. What
    follows a row's first stop token means nothing: the caller cuts it.

    The key-value cache grows by a block of tokens at a time. It is copied then, so that is when the
    rows that are finished are dropped, and the only time that the loop waits for the device. On a GPU
    a block's shapes and addresses stay the same, and `record` makes one CUDA graph of them: launching
    28 layers kernel by kernel costs 20-30 ms a token.
    """
    cuda, T, prompt_T = input_ids.is_cuda, generation_config.max_new_tokens, input_ids.shape[1]
    block = 256 if cuda else 8
    stop_ids = input_ids.new_tensor(generation_config.eos_token_id)
    tokens_B_T = input_ids.new_zeros(len(prompt_B), T)
    logp_B_T = torch.zeros_like(tokens_B_T, dtype=torch.float32)
    rows = torch.arange(len(prompt_B), device=input_ids.device)  # those that go on
    # Slots to the left of their prompts (B, 1).
    pad = (prompt_T - 1 - model_inputs["position_ids"][:, -1:])[prompt_B]
    token = torch.empty_like(pad)  # their last
    logits = model(input_ids, **model_inputs).logits[:, -1][prompt_B]
    cache = Slots(model_inputs["past_key_values"].layers)
    kept = prompt_B  # where `rows` are in the cache

    def step() -> torch.Tensor:
        """Logits after `token`, which goes into the cache's next slot. The rows' positions count from their prompts."""
        slots = torch.arange(capacity, device=pad.device)
        mask = torch.where((slots >= pad) & (slots <= cache.slot), 0.0, -torch.inf).to(model.dtype)
        inputs = {
            "attention_mask": mask[:, None, None],
            "position_ids": cache.slot - pad,
            "past_key_values": cache,
        }
        return model(token, **inputs, use_cache=True).logits[:, -1]

    for t in range(T):
        logp = torch.log_softmax(logits_processor(None, logits.float()), dim=-1)
        if generation_config.do_sample:
            cumulative = logp.exp().cumsum(dim=-1)
            cumulative /= cumulative[:, -1:].clone()  # ends at 1 exactly; a uniform number is less
            drawn = torch.searchsorted(cumulative, uniform_B_T[rows, t, None], right=True)
        else:
            drawn = logp.argmax(dim=-1, keepdim=True)
        tokens_B_T[rows, t], logp_B_T[rows, t] = drawn[:, 0], logp.gather(1, drawn)[:, 0]
        token.copy_(drawn)
        if t + 1 == T:
            break
        if t % block:
            cache.slot += 1
        else:
            going = ~torch.isin(tokens_B_T[rows, : t + 1], stop_ids).any(dim=1)
            rows, pad, token, kept = rows[going], pad[going], token[going], kept[going]
            if not len(rows):
                break
            capacity = prompt_T + min(t + block, T - 1)
            capacity += -capacity % 16 if cuda else 0  # else SDPA copies the mask at every call
            cache.make_room(kept, prompt_T + t, capacity)
            kept = torch.arange(len(rows), device=rows.device)
            forward = record(step)
        logits = forward()
    return tokens_B_T, logp_B_T


class HostReads(TorchDispatchMode):
    """Counts where the host waits for numbers on the device, or hands it some: a CUDA graph cannot
    hold that. It sees what PyTorch's operators say of themselves, and copies between devices."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aten, out = torch.ops.aten, func(*args, **(kwargs or {}))
        if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_):
            waits = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        elif func.overloadpacket in (aten._to_copy, aten.copy_):
            waits = len({x.device.type for x in (*args, out) if isinstance(x, torch.Tensor)}) > 1
        else:
            tags = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
            waits = any(tag in func.tags for tag in tags)
        self.count += waits
        return out


class Recorder:
    """Makes CUDA graphs of decoding steps, one after the other: one stream, one pool of memory."""

    def __init__(self):
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """`step` as its kernels on their addresses, launched at once; `step` itself where the host
        has a part in it, as in some rotary embeddings. Running it twice must do no harm."""
        self.stream.wait_stream(torch.cuda.current_stream())
        # Libraries allocate and choose kernels at their first use: not while recording.
        with torch.cuda.stream(self.stream), HostReads() as reads:
            step()
        torch.cuda.current_stream().wait_stream(self.stream)
        if reads.count:
            return step
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            out = step()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay


def attend(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """transformers' SDPA, but that one query token a row reads keys and values where they are.

    query (B, H, T, D), key and value (B, H_kv, S, D). SDPA needs as many heads on both sides where
    there is a mask, and transformers 5.17 copies the keys and values of the whole cache for that, at
    every token. The heads that share a key are H / H_kv rows of queries to it as well.
    """
    B, H, T, D = query.shape
    if T > 1:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    query = query.reshape(B, key.shape[1], -1, D)
    out = scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
    return out.reshape(B, 1, H, value.shape[-1]), None


AttentionInterface.register("grouped_sdpa", attend)
AttentionMaskInterface.register("grouped_sdpa", sdpa_mask)


def attention_for(device) -> str:
    """flash-attn where it is installed and can run, else PyTorch's own."""
    return "flash_attention_2" if device.type == "cuda" and is_flash_attn_2_available() else "sdpa"


def check_model(name: str, tokens: int) -> None:
    """Raises ValueError, in one line, unless Generator and Policy are right for the model `name`.

    Beyond what check_folder asks for it must see whole rows of `tokens` tokens, have an end token,
    generate, and give the same log-probs in Generator, in Policy and by its own attention and head:
    a model with capped or scaled logits, say, does not.
    """
    lm, tokenizer = check_folder(name, tokens, AutoModelForCausalLM)
    if tokens > (window := getattr(lm.config, "sliding_window", None) or tokens):
        raise ValueError(
            f"{name!r} attends to the last {window} tokens only, a row may take {tokens}"
        )
    cpu, prompts = torch.device("cpu"), [tokenizer(text).input_ids for text in ("1", "1", "1 + 1")]
    doing = "generate"
    try:
        ends = stop_ids(lm.generation_config, tokenizer)
        rollouts = Generator(name, cpu, tokenizer).generate(prompts, 1.0, 4, seed=0)
        doing = "be trained on what it generates"
        rows_N, *inputs = collate(rollouts, [0, 1, 2], tokenizer.pad_token_id, cpu)
        with torch.no_grad():
            logp_N = Policy(name, cpu)(*inputs, 1.0)[0]
            rows = zip(prompts, rollouts.completion_ids, strict=True)
            own_N = torch.cat([own_logps(lm, *row) for row in rows])
    except Exception as error:  # in a library's code anything may be raised
        why = f"{type(error).__name__}: {first_lines(error)}"
        raise ValueError(f"model {name!r} cannot {doing} here: {why}") from error
    for what, logps_N in (("Generator", rollouts.logps_of(rows_N)), ("Policy", logp_N)):
        if not (gap := (logps_N - own_N).abs().max().item()) < 0.01:
            why = "it may cap, scale or bias its logits, or attend in a way of its own"
            raise ValueError(f"model {name!r}: {what}'s log-probs are off by {gap:.2g}: {why}")
    if not ends:
        advice = "set tokenizer.eos_token and save it again"
        raise ValueError(f"model {name!r} has no end token: {advice}")


def own_logps(lm, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """log-probs of a completion by a model's own forward, a row alone, at temperature 1: (T,)."""
    logits_T_V = lm(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float()
    return logits_T_V.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def left_pad(rows: list[list[int]], pad_id: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token id lists -> ids (B, T) padded on the left, and the attention mask (B, T) of 0 and 1."""
    T = max(len(row) for row in rows)
    ids = torch.tensor([[pad_id] * (T - len(row)) + row for row in rows], device=device)
    mask = torch.tensor([[0] * (T - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


# ----------------------------------------------------------------------------------------------------
# The way back: log-probs of what was generated


class Policy(nn.Module):
    """A causal LM whose forward is what GRPO needs: log-probs and entropy of response tokens, never all logits.

    The head is applied inside this root's forward, where FSDP has its weight whole.
    """

    def __init__(self, name: str, device):
        super().__init__()
        lm = load(AutoModelForCausalLM, name, torch.float32, attention_for(device))
        self.lm = lm.to(device)

    @property
    def packed(self) -> bool:
        """Whether to give it packed rows: flash-attn reads each alone, SDPA would compute what a mask then hides."""
        return self.lm.config._attn_implementation == "flash_attention_2"

    def forward(
        self, ids_B_T, response_B_T, position_1_T, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What collate makes of some rows -> logp, entropy (N,) in row order.

        Padding comes after every real token, so the causal mask alone hides it. Packed rows are kept apart by positions
        that begin again: transformers heeds them in a batch of one, without attention mask and cache.
        """
        hidden_B_T_D = self.lm.base_model(
            ids_B_T, position_ids=position_1_T, use_cache=False
        ).last_hidden_state
        predicted_B_T = response_B_T[
            :, 1:
        ]  # the token at t is predicted from the hidden state at t - 1
        return grpo.token_logprobs(
            hidden_B_T_D[:, :-1][predicted_B_T],
            self.lm.get_output_embeddings().weight,
            ids_B_T[:, 1:][predicted_B_T],
            temperature,
        )


def collate(rollouts: Rollouts, rows: list[int], pad_id: int, device, packed: bool = False):
    """Rows -> (row number of each response token (N,), ids (B, T), mask of response tokens (B, T), positions (1, T)).

    Rows are right-padded or, `packed`, laid end to end as one (B = 1) with positions that begin at 0 in each. The mask
    covers every token of the completion, its stop token included, even where pad and EOS are one token.
    """
    full = [torch.tensor(rollouts.prompt_ids[b] + rollouts.completion_ids[b]) for b in rows]
    positions = [torch.arange(len(ids)) for ids in full]
    responses = [t >= len(rollouts.prompt_ids[b]) for b, t in zip(rows, positions, strict=True)]
    if packed:
        ids_B_T, response_B_T, position_1_T = (
            torch.cat(parts)[None] for parts in (full, responses, positions)
        )
    else:
        ids_B_T, response_B_T = pad_sequence(full, True, pad_id), pad_sequence(responses, True)
        position_1_T = max(positions, key=len)[None]
    rows_N = torch.tensor([b for b in rows for _ in rollouts.completion_ids[b]])
    return rows_N, ids_B_T.to(device), response_B_T.to(device), position_1_T.to(device)


def micro_batches(
    rollouts: Rollouts,
    rows: list[int],
    rank: int,
    ranks: int,
    budget: int,
    pad_id: int,
    device,
    packed,
):
    """This rank's share of `rows` as collated micro-batches of at most `budget` tokens, and whether it has none.

    FSDP needs every rank in backward: one without a share gets the shortest row, to be given weight 0.
    """
    tokens_B = rollouts.total_tokens()
    mine = balance(rows, tokens_B, ranks)[rank]
    idle = not mine
    # Padding costs as much as tokens do; another micro-batch costs little.
    batches = pack(mine or [tokens_B.index(min(tokens_B))], tokens_B, budget, 0.75, packed)
    return [collate(rollouts, batch, pad_id, device, packed) for batch in batches], idle


def balance(rows: list[int], tokens_B: list[int], n: int) -> list[list[int]]:
    """Shares rows out over n ranks so that their tokens are nearly equal: longest first, to the emptiest rank."""
    shares, load = [[] for _ in range(n)], [0] * n
    for b in sorted(rows, key=lambda b: (-tokens_B[b], b)):
        r = load.index(min(load))
        shares[r].append(b)
        load[r] += tokens_B[b]
    return shares


def pack(
    rows: Iterable[int], tokens_B: list[int], budget: int, shortest=0.0, packed=False
) -> list[list[int]]:
    """Cuts rows, longest first, into micro-batches of at most `budget` tokens (a single row may exceed it).

    Unless `packed`, padding counts as tokens, and no row is shorter than the share `shortest` of its micro-batch's
    longest, so no more than the rest is padding.
    """
    batches, longest, taken = [], 0, 0  # of the last batch: its longest row, and what it holds
    for b in sorted(rows, key=lambda b: (-tokens_B[b], b)):
        takes = tokens_B[b] if packed else longest
        if batches and taken + takes <= budget and takes * shortest <= tokens_B[b]:
            batches[-1].append(b)
            taken += takes
        else:
            batches.append([b])
            longest = taken = tokens_B[b]
    return batches
