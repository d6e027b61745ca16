"""Log-probabilities from a linear head, in float32, without holding the logits of all tokens.

    log p = z_label − logsumexp(z),   z = h·Wᵀ / τ,   ∂/∂(h·Wᵀ) = g (onehot(label) − softmax(z)) / τ

τ is the temperature at which the token was sampled, one per row: training uses the sampled distribution.

Only one chunk of logits exists at a time, in forward and in backward, which computes it again: the logits of 32 k
tokens with a 150 k vocabulary would be 20 GB. The gradient overwrites the chunk's probabilities.

Axis legend: N tokens, H hidden width, V vocabulary.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable


def head_logprobs(
    hidden_NH: torch.Tensor,
    labels_N: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None = None,
    temperatures_N: torch.Tensor | None = None,
    *,
    max_logits: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the (N,) float32 log-probability of each label, differentiable, and the (N,) float32 entropy in nats,
    not.

    ``labels_N`` (N,) int64; ``temperatures_N`` (N,) float32, above 0, by which each row of logits is divided, in
    float32 as in vLLM and TRL; default 1. At most ``max_logits`` logits, and at least those of one token, are in memory
    at a time, in two copies. 16-bit weights are multiplied without conversion and summed in float32: 16-bit sums in the
    head are a known source of mismatch between trainer and engine.
    """
    logprobs_N, entropy_N = _HeadLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_NH, labels_N, weight_VH, bias_V, temperatures_N, max_logits
    )
    return logprobs_N, entropy_N


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        labels_N: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        temperatures_N: torch.Tensor | None,
        max_logits: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = max(1, max_logits // len(weight_VH))
        logprobs_N = torch.empty(len(labels_N), dtype=torch.float32, device=hidden_NH.device)
        entropy_N = torch.empty_like(logprobs_N)
        product = Product(hidden_NH, weight_VH)
        # A single chunk need not be computed again in backward.
        keep, kept = rows >= len(labels_N) and any(ctx.needs_input_grad), None
        for chunk in chunks_of(len(labels_N), rows):
            scores = tempered_log_softmax(product, chunk, bias_V, temperatures_N)
            logprobs_N[chunk] = scores.gather(1, labels_N[chunk, None])[:, 0]
            probabilities = scores.exp()
            # A batched dot product: an element-wise product would need another chunk of memory.
            entropy_N[chunk] = -torch.bmm(probabilities[:, None], scores[:, :, None])[:, 0, 0]
            kept = probabilities if keep else None
            del scores, probabilities
        ctx.save_for_backward(hidden_NH, labels_N, weight_VH, bias_V, temperatures_N)
        ctx.probabilities, ctx.rows = kept, rows
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient_N = gradients[0]
        hidden_NH, labels_N, weight_VH, bias_V, temperatures_N = ctx.saved_tensors
        if temperatures_N is not None:
            gradient_N = gradient_N / temperatures_N  # with respect to the undivided logits
        kept, ctx.probabilities = ctx.probabilities, None
        product = Product(hidden_NH, weight_VH)
        wants_hidden, _, wants_weight, wants_bias, _, _ = ctx.needs_input_grad
        by_hidden = torch.empty_like(hidden_NH) if wants_hidden else None
        by_weight = torch.zeros_like(weight_VH, dtype=torch.float32) if wants_weight else None
        by_bias = torch.zeros_like(bias_V, dtype=torch.float32) if wants_bias else None
        for chunk in chunks_of(len(labels_N), ctx.rows):
            by_logits = tempered_log_softmax(product, chunk, bias_V, temperatures_N).exp_() if kept is None else kept
            by_logits.mul_(-gradient_N[chunk, None])
            by_logits.scatter_add_(1, labels_N[chunk, None], gradient_N[chunk, None])
            if by_hidden is not None:
                by_hidden[chunk] = product.by_hidden(by_logits).to(by_hidden.dtype)
            if by_weight is not None:
                product.add_by_weight(by_weight, by_logits, chunk)
            if by_bias is not None:
                by_bias += by_logits.sum(0)
            del by_logits
        return (
            by_hidden,
            None,
            None if by_weight is None else by_weight.to(weight_VH.dtype),
            None if by_bias is None else by_bias.to(bias_V.dtype),
            None,
            None,
        )


class Product:
    """hidden · weightᵀ chunk by chunk, and its gradients; sums are float32 for all types of factors."""

    def __init__(self, hidden_NH: torch.Tensor, weight_VH: torch.Tensor) -> None:
        """Of hidden states and the head's weight."""
        # Tensor cores multiply 16-bit factors exactly and sum in float32; on other devices the factors are widened.
        sixteen = weight_VH.dtype in (torch.bfloat16, torch.float16) and hidden_NH.dtype == weight_VH.dtype
        self._mixed = weight_VH.is_cuda and sixteen
        self._hidden_NH = hidden_NH
        self._weight_VH = weight_VH if self._mixed else weight_VH.float()

    def logits(self, chunk: slice) -> torch.Tensor:
        """Returns (n, V) float32."""
        if self._mixed:
            return torch.mm(self._hidden_NH[chunk], self._weight_VH.t(), out_dtype=torch.float32)
        return torch.mm(self._hidden_NH[chunk].float(), self._weight_VH.t())

    def by_hidden(self, by_logits: torch.Tensor) -> torch.Tensor:
        """Returns the (n, H) gradient with respect to the hidden states; ``by_logits`` (n, V) float32."""
        if self._mixed:
            return torch.mm(by_logits.to(self._weight_VH.dtype), self._weight_VH, out_dtype=torch.float32)
        return torch.mm(by_logits, self._weight_VH)

    def add_by_weight(self, by_weight_VH: torch.Tensor, by_logits: torch.Tensor, chunk: slice) -> None:
        """Add the chunk's gradient with respect to the weight to ``by_weight_VH`` (V, H) float32."""
        hidden = self._hidden_NH[chunk]
        if self._mixed:
            by_weight_VH += torch.mm(by_logits.to(hidden.dtype).t(), hidden, out_dtype=torch.float32)
        else:
            by_weight_VH.addmm_(by_logits.t(), hidden.float())


def tempered_log_softmax(
    product: Product, chunk: slice, bias_V: torch.Tensor | None, temperatures_N: torch.Tensor | None
) -> torch.Tensor:
    """Returns (n, V) float32 log-probabilities of a chunk's rows, each at its temperature."""
    logits = product.logits(chunk)
    if bias_V is not None:
        logits += bias_V
    if temperatures_N is not None:
        logits /= temperatures_N[chunk, None]
    return torch.log_softmax(logits, -1)


def chunks_of(count: int, rows: int) -> list[slice]:
    """Returns slices of at most ``rows`` that cover ``count``."""
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]
