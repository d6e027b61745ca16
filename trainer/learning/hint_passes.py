"""The passes of hint distillation: each hinted turn once with its hint and once without.

    student   p p p A A o B B            π(B | context), with a gradient
    teacher   p p p A A h h o B B        π(B | context, hint), the same weights, without
    targets                 B B          loss + weight · mean over targets of the divergence

Both end with the turn, because later tokens do not affect its distribution. Positions count from 0 in each, so that the
turn's tokens are later by the hint's length in the teacher's sequence, as they would be if it had been sampled with the
hint. Other tokens are context in both and have no term in the loss.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.schemas.records.reward import HintRefusal
from headrace.trainer.batches.balance import plan_ranks
from headrace.trainer.batches.batch import NOTHING, Batch
from headrace.trainer.batches.packing import Ints, PackedSequences, pack
from headrace.trainer.batches.turn_hints import REFUSALS
from headrace.trainer.losses.settings import HintSettings
from headrace.trainer.parallel.policy import TrainerPolicy
from headrace.trainer.parallel.ranks import Ranks

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class HintedTurn:
    """A turn of the batch with its hint. T tokens up to the turn's end, K tokens of the hint."""

    trajectory: int
    """Number of its trajectory in the batch."""
    token_ids: Ints
    """(T,) without the hint."""
    hinted_ids: Ints
    """(T + K,) with the hint."""
    targets: Mask
    """(T,) the tokens that the turn sampled and that are trained."""
    hinted_targets: Mask
    """(T + K,) the same tokens."""

    @property
    def tokens(self) -> int:
        """Number of targets."""
        return int(self.targets.sum())


def hinted_turns(
    batch: Batch, kept_N: Mask, *, vocabulary: int, longest: int
) -> tuple[list[HintedTurn], Counter[HintRefusal]]:
    """Returns the hinted turns of ``batch`` that can be distilled, and the number of refused hints by reason.

    ``kept_N`` (N,): the tokens that are trained; others of a turn are left out. ``vocabulary`` and ``longest``: tokens
    that the model has, and that its longest sequence may have.
    """
    packed, hints = batch.packed, batch.hints
    refused = Counter({reason: int(count) for reason, count in zip(REFUSALS, hints.refused, strict=True) if count})
    turns = []
    for number in range(len(hints)):
        first, last = int(hints.firsts[number]), int(hints.lasts[number])
        hint = hints.token_ids[hints.cu_hints[number] : hints.cu_hints[number + 1]]
        start = int(packed.cu_seqlens[np.searchsorted(packed.cu_seqlens, packed.targets[first], "right") - 1])
        token_ids = packed.token_ids[start : packed.targets[last - 1] + 1]
        at = int(packed.targets[first]) - start - int(hints.gaps[number])
        targets = np.zeros(len(token_ids), bool)
        targets[packed.targets[first:last] - start] = kept_N[first:last]
        if not targets.any():
            refused[HintRefusal.MASKED] += 1
        elif hint.min() < 0 or hint.max() >= vocabulary:
            refused[HintRefusal.VOCABULARY] += 1
        elif len(token_ids) + len(hint) > longest:
            refused[HintRefusal.TOO_LONG] += 1
        else:
            turns.append(
                HintedTurn(
                    trajectory=int(batch.trajectories[first]),
                    token_ids=token_ids,
                    hinted_ids=np.insert(token_ids, at, hint),
                    targets=targets,
                    hinted_targets=np.insert(targets, at, np.zeros(len(hint), bool)),
                )
            )
    return turns, refused


def pass_costs(turns: Sequence[HintedTurn]) -> Ints:
    """Returns the tokens that each turn's passes read, teacher and student."""
    return np.asarray([len(turn.token_ids) + len(turn.hinted_ids) for turn in turns], np.int64)


def pack_turns(turns: Sequence[HintedTurn]) -> tuple[PackedSequences, PackedSequences]:
    """Returns the student's and the teacher's sequences of one pass, with the same targets; for no turn, sequences
    without a target, so that a rank without work can run the model."""
    if not turns:
        return NOTHING, NOTHING
    return (
        pack([(turn.token_ids, turn.targets) for turn in turns]),
        pack([(turn.hinted_ids, turn.hinted_targets) for turn in turns]),
    )


def distil(
    policy: TrainerPolicy, ranks: Ranks, turns: Sequence[HintedTurn], settings: HintSettings, *, max_tokens: int
) -> float:
    """Add the gradient of an update's hinted ``turns``: weight · mean of the divergence over their targets.

    Teacher and student are ``policy`` as it is before the update. A pass reads at most ``max_tokens`` tokens, or one
    turn. Returns the sum of the divergence over all targets and ranks, in nats.
    """
    if not turns:
        return 0.0
    total, tokens = 0.0, sum(turn.tokens for turn in turns)
    plan = plan_ranks(pass_costs(turns), max_tokens, ranks.count, crossover=policy.crossover)[ranks.rank]
    for number, chosen in enumerate(plan, start=1):
        plain, hinted = pack_turns([turns[each] for each in chosen])
        divergence = policy.divergence(plain, hinted, settings).sum()
        policy.backward(divergence * (settings.weight / tokens), last=number == len(plan))
        total += divergence.item()
    return float(ranks.sum(np.array([total]))[0])


def hint_metrics(
    turns: Sequence[HintedTurn], refused: Mapping[HintRefusal, int], divergence_sum: float
) -> dict[str, float]:
    """Returns the step's metrics: hinted turns and tokens, the mean divergence before each token's update, refusals.

    ``divergence_sum``: over all targets of ``turns``, in nats.
    """
    tokens = sum(turn.tokens for turn in turns)
    metrics = {"hinted_turns": float(len(turns)), "hinted_tokens": float(tokens)}
    if tokens:
        metrics["hint_kl"] = divergence_sum / tokens
    return metrics | {f"hints_refused_{reason}": float(count) for reason, count in refused.items() if count}
