"""A trial of a loaded model: packed sequences must get the log-probabilities that the plain model gives each alone.

Unsupported features of an architecture (a recurrent state, other positions, scaled logits) would not fail but train on
wrong log-probabilities. Three short sequences detect them in two forward passes.
"""

import numpy as np
import torch
from transformers import PreTrainedModel

from headrace.trainer.batches.packing import Ints, pack
from headrace.trainer.model import attention
from headrace.trainer.model.architectures import UnsupportedModel, position_limit
from headrace.trainer.model.logprobs import token_logprobs

_LENGTHS = (5, 17, 11)
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3}
"""Nats on any token: rounding stays far below it, while a token that attends to another sequence exceeds it."""


@torch.no_grad()
def try_packing(model: PreTrainedModel) -> None:
    """Compare packed log-probabilities with those of ``model``'s own forward pass, sequence by sequence.

    Raises :class:`UnsupportedModel` if they differ, or if a packed pass fails.
    """
    random = np.random.default_rng(0)
    vocabulary = int(model.config.get_text_config().vocab_size)
    lengths = [min(length, position_limit(model.config)) for length in _LENGTHS]
    sequences = [random.integers(0, vocabulary, length) for length in lengths]
    expected = _alone(model, sequences)
    if not expected.isfinite().all():
        raise UnsupportedModel("its log-probabilities are not finite")
    try:
        packed = pack([(ids, [0] + [1] * (len(ids) - 1)) for ids in sequences])
        found = token_logprobs(model, packed).logprobs
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UnsupportedModel(f"it cannot be computed on packed sequences: {error}") from error
    difference = (found - expected).abs().max().item()
    if not difference <= _TOLERANCE[model.dtype]:
        raise UnsupportedModel(
            f"log-probabilities of packed sequences differ from those of each alone by up to {difference:.3g} nats: "
            "something besides causal attention mixes tokens, or changes the logits"
        )


def _alone(model: PreTrainedModel, sequences: list[Ints]) -> torch.Tensor:
    """Returns the (N,) log-probability of every token after the first of each sequence, by the plain model."""
    device = next(model.parameters()).device
    model.set_attn_implementation("eager")
    try:
        tables = [
            model(torch.from_numpy(ids)[None].to(device), use_cache=False).logits[0, :-1].float().log_softmax(-1)
            for ids in sequences
        ]
    finally:
        model.set_attn_implementation(attention.NAME)
    rows = zip(tables, sequences, strict=True)
    return torch.cat([table.gather(1, torch.from_numpy(ids[1:, None]).to(device))[:, 0] for table, ids in rows])
