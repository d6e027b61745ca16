"""The divergence between two policies' next-token distributions, from a linear head, without the logits of all tokens.

    forward   KL(t ‖ s) = Σ_v t (log t − log s)      ∂/∂z_s = (s − t) / τ
    reverse   KL(s ‖ t) = Σ_v s (log s − log t)      ∂/∂z_s = s (log s − log t − KL) / τ

s and t are the student's and the teacher's distributions, softmax(z / τ) of their logits; only the student has a
gradient. As in ``head.py``, one chunk of logits exists at a time, here of both, and backward computes it again.

Axis legend: N tokens, H hidden width, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from headrace.trainer.batches.packing import PackedSequences
from headrace.trainer.losses.settings import HintDirection
from headrace.trainer.model.head import Product, chunks_of, tempered_log_softmax
from headrace.trainer.model.logprobs import most_logits, target_hidden


def token_divergence(
    model: PreTrainedModel,
    packed: PackedSequences,
    teacher_NH: torch.Tensor,
    *,
    direction: HintDirection,
    temperature: float,
    max_logits: int | None = None,
) -> torch.Tensor:
    """Returns the (N,) float32 divergence at each target of ``packed``, in nats, differentiable by the student.

    ``teacher_NH`` (N, H): the teacher's :func:`target_hidden`, of the same model, without a gradient.
    """
    hidden_NH = target_hidden(model, packed)
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    most = most_logits(hidden_NH.device) if max_logits is None else max_logits
    return head_divergence(
        hidden_NH, teacher_NH, head.weight, head.bias, direction=direction, temperature=temperature, max_logits=most
    )


def head_divergence(
    hidden_NH: torch.Tensor,
    teacher_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None = None,
    *,
    direction: HintDirection,
    temperature: float,
    max_logits: int,
) -> torch.Tensor:
    """Returns the (N,) float32 divergence of each row's distributions, in nats; see the module."""
    divergence_N: torch.Tensor = _HeadDivergence.apply(  # type: ignore[no-untyped-call]
        hidden_NH, teacher_NH.detach(), weight_VH, bias_V, direction, temperature, max_logits
    )
    return divergence_N


class _HeadDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        teacher_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        direction: HintDirection,
        temperature: float,
        max_logits: int,
    ) -> torch.Tensor:
        ctx.rows = max(1, max_logits // (2 * len(weight_VH)))
        ctx.direction, ctx.temperature = direction, temperature
        ctx.save_for_backward(hidden_NH, teacher_NH, weight_VH, bias_V)
        divergence_N = torch.empty(len(hidden_NH), dtype=torch.float32, device=hidden_NH.device)
        for chunk, student_nV, teacher_nV in _chunks(ctx, hidden_NH, teacher_NH, weight_VH, bias_V):
            divergence_N[chunk] = _divergence(student_nV, teacher_nV, direction)
        return divergence_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient_N = gradients[0] / ctx.temperature  # with respect to the undivided logits
        hidden_NH, teacher_NH, weight_VH, bias_V = ctx.saved_tensors
        product = Product(hidden_NH, weight_VH)
        wants_hidden, _, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        by_hidden = torch.empty_like(hidden_NH) if wants_hidden else None
        by_weight = torch.zeros_like(weight_VH, dtype=torch.float32) if wants_weight else None
        by_bias = torch.zeros_like(bias_V, dtype=torch.float32) if wants_bias else None
        for chunk, student_nV, teacher_nV in _chunks(ctx, hidden_NH, teacher_NH, weight_VH, bias_V):
            student = student_nV.exp()
            if ctx.direction is HintDirection.FORWARD:
                by_logits = student - teacher_nV.exp()
            else:
                whole = _divergence(student_nV, teacher_nV, ctx.direction)
                by_logits = student * (student_nV - teacher_nV - whole[:, None])
            by_logits *= gradient_N[chunk, None]
            if by_hidden is not None:
                by_hidden[chunk] = product.by_hidden(by_logits).to(by_hidden.dtype)
            if by_weight is not None:
                product.add_by_weight(by_weight, by_logits, chunk)
            if by_bias is not None:
                by_bias += by_logits.sum(0)
        return (
            by_hidden,
            None,
            None if by_weight is None else by_weight.to(weight_VH.dtype),
            None if by_bias is None else by_bias.to(bias_V.dtype),
            None,
            None,
            None,
        )


def _chunks(
    ctx: Any, hidden_NH: torch.Tensor, teacher_NH: torch.Tensor, weight_VH: torch.Tensor, bias_V: torch.Tensor | None
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Yield chunks with the (n, V) log-probabilities of student and teacher."""
    student, teacher = Product(hidden_NH, weight_VH), Product(teacher_NH, weight_VH)
    temperatures_N = None
    if ctx.temperature != 1:
        temperatures_N = torch.full((len(hidden_NH),), ctx.temperature, device=hidden_NH.device)
    for chunk in chunks_of(len(hidden_NH), ctx.rows):
        yield (
            chunk,
            tempered_log_softmax(student, chunk, bias_V, temperatures_N),
            tempered_log_softmax(teacher, chunk, bias_V, temperatures_N),
        )


def _divergence(student_nV: torch.Tensor, teacher_nV: torch.Tensor, direction: HintDirection) -> torch.Tensor:
    """Returns (n,) KL of rows of log-probabilities; rounding may not make it negative."""
    first, second = (teacher_nV, student_nV) if direction is HintDirection.FORWARD else (student_nV, teacher_nV)
    return (first.exp() * (first - second)).sum(-1).clamp_(min=0)
