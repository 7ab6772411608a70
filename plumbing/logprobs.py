"""Log-probs and entropies of tokens without all their logits at once."""

import functools
from contextlib import contextmanager, nullcontext

import torch


class TokenLogprobs(torch.autograd.Function):
    """log π(y) and entropy of softmax(h Wᵀ / τ), a part at a time; backward recomputes it.

    With z = h Wᵀ / τ and p = softmax(z):

        ∂ log p_y / ∂z = e_y - p,   ∂H / ∂z = -p ⊙ (log p + H)

    Forward takes chunks of tokens with the whole vocabulary. Backward takes chunks, a quarter as
    large, of the vocabulary with all tokens: ∂W then needs no accumulator."""

    @staticmethod
    def forward(ctx, hidden_N_D, weight_V_D, targets_N, temperature, chunk):
        logp = []
        entropy = []
        normaliser = []
        hidden_parts = hidden_N_D.split(chunk)
        target_parts = targets_N.split(chunk)
        for h, y in zip(hidden_parts, target_parts, strict=True):
            z = logits(h, weight_V_D).div_(temperature)  # (chunk, V)
            normaliser.append(z.logsumexp(dim=-1))
            log_p = z.log_softmax(dim=-1)
            logp_n_1 = log_p.gather(1, y[:, None])
            logp.append(logp_n_1[:, 0])
            p = log_p.exp()
            p_log_p = log_p.mul_(p)
            minus_entropy_n = p_log_p.sum(dim=-1)
            entropy.append(-minus_entropy_n)
        entropy_N = torch.cat(entropy)
        normaliser_N = torch.cat(normaliser)
        ctx.save_for_backward(hidden_N_D, weight_V_D, targets_N, normaliser_N, entropy_N)
        ctx.set_materialize_grads(False)  # None, not zeros, for an output that the loss ignores
        ctx.temperature = temperature
        vocabulary = len(weight_V_D)
        ctx.chunk_logits = chunk * vocabulary // 4
        return torch.cat(logp), entropy_N

    @staticmethod
    def backward(ctx, grad_logp_N, grad_entropy_N):
        hidden_N_D, weight_V_D, targets_N, normaliser_N, entropy_N = ctx.saved_tensors
        if grad_logp_N is None:
            grad_logp_N = torch.zeros_like(entropy_N)
        # The sum over the vocabulary stays in float32: hundreds of bf16 additions lose bits.
        grad_hidden = torch.zeros_like(hidden_N_D, dtype=entropy_N.dtype)
        grad_weight = torch.empty_like(weight_V_D)
        tokens = len(targets_N)
        chunk = max(1, ctx.chunk_logits // tokens)
        if chunk > 64:
            chunk -= chunk % 64  # cuBLAS is slow with rows that are not aligned
        start = 0  # the chunk's first token of the vocabulary
        weight_parts = weight_V_D.split(chunk)
        grad_parts = grad_weight.split(chunk)
        for w, grad_w in zip(weight_parts, grad_parts, strict=True):
            z = logits(hidden_N_D, w).div_(ctx.temperature)  # (N, chunk)
            log_p = z.sub_(normaliser_N[:, None])
            grad_z = _minus_p_terms(log_p, entropy_N, grad_logp_N, grad_entropy_N)
            target_N = targets_N - start
            _add_at_targets(grad_z, target_N, grad_logp_N)
            grad_z.div_(ctx.temperature)
            grad_z = grad_z.to(w.dtype)
            torch.mm(grad_z.T, hidden_N_D, out=grad_w)
            grad_hidden += grad_z @ w
            start += chunk
        grad_hidden = grad_hidden.to(hidden_N_D.dtype)
        return grad_hidden, grad_weight, None, None, None


def _minus_p_terms(log_p, entropy_N, grad_logp_N, grad_entropy_N):
    """Compute -p ⊙ (∂L/∂logp + ∂L/∂H · (log p + H)) in place of log_p (N, chunk)."""
    grad_logp_N_1 = grad_logp_N[:, None]
    if grad_entropy_N is None:
        p = log_p.exp_()
        return p.mul_(-grad_logp_N_1)
    p = log_p.exp()
    terms = log_p.add_(entropy_N[:, None])
    terms.mul_(grad_entropy_N[:, None])
    terms.add_(grad_logp_N_1)
    return terms.mul_(p).neg_()


def _add_at_targets(grad_z, target_N, grad_logp_N) -> None:
    """Add e_y · ∂L/∂logp to grad_z (N, chunk); a target outside the chunk adds 0."""
    last = grad_z.shape[1] - 1
    in_chunk_N = (target_N >= 0) & (target_N <= last)
    column_N_1 = target_N.clamp(0, last)[:, None]
    grad_N = grad_logp_N * in_chunk_N
    grad_z.scatter_add_(1, column_N_1, grad_N[:, None])


def logits(hidden_N_D: torch.Tensor, weight_V_D: torch.Tensor) -> torch.Tensor:
    """Compute hidden Wᵀ (N, V) in at least float32. bf16 would round 16.06 to 16, for example."""
    dtype = torch.promote_types(hidden_N_D.dtype, torch.float32)
    weight_D_V = weight_V_D.T
    if hidden_N_D.dtype == dtype:
        return hidden_N_D @ weight_D_V
    if _mm_returns(dtype, hidden_N_D.dtype, hidden_N_D.device):
        return torch.mm(hidden_N_D, weight_D_V, out_dtype=dtype)
    return _logits_by_parts(hidden_N_D, weight_V_D, dtype)


def _logits_by_parts(hidden_N_D, weight_V_D, dtype: torch.dtype) -> torch.Tensor:
    """Cast some of the weight's rows at a time, few enough for a processor's cache: in decoding, a
    cast of all of them would take longer than the product."""
    rows = 1024
    hidden = hidden_N_D.to(dtype)
    logits_N_V = hidden.new_empty(len(hidden), len(weight_V_D))
    logits_parts = logits_N_V.split(rows, dim=1)
    weight_parts = weight_V_D.split(rows)
    are_bf16 = hidden_N_D.dtype == weight_V_D.dtype == torch.bfloat16
    with _bf16_products() if are_bf16 else nullcontext():
        for logits_N_v, weight_v_D in zip(logits_parts, weight_parts, strict=True):
            weight_D_v = weight_v_D.T.to(dtype)
            torch.mm(hidden, weight_D_v, out=logits_N_v)
    return logits_N_V


@contextmanager
def _bf16_products():
    """Let a processor multiply float32 matrices by its bf16 instructions, if it has any. Of values
    that were bf16 before a cast the products are exact; they are summed in float32."""
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


@functools.cache
def _mm_returns(dtype: torch.dtype, operands: torch.dtype, device: torch.device) -> bool:
    """Whether a device can multiply matrices of dtype `operands` into `dtype`."""
    x = torch.zeros(8, 8, dtype=operands, device=device)
    try:
        product = torch.mm(x, x, out_dtype=dtype)
    except RuntimeError:  # NotImplementedError is one
        return False
    return product.dtype == dtype
