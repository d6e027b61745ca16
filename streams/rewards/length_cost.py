"""Composer's nonlinear length cost: a turn more costs much in a short answer and little in a long one.

    C(x) = ((1 + k·x)^(1 − q) − 1) / (k·(1 − q))        q → 1: ln(1 + k·x) / k

Increasing and concave in x, a weighted sum of what the trajectory is long in. k, q and the weights are not
published: name yours. A trajectory does not tell thinking from a tool call: sampled in one turn, they share a weight.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.spec import Term, Unscorable, Weight

NO_TOKEN_COUNTS = "no_token_counts"
"""Why there is no cost where tokens have a weight and were not recorded: guessing 0 would reward not recording."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a trajectory is long in: counts of one, or the weight of each."""

    acting_tokens: float = 0.0
    """Tokens sampled in turns that call tools: thinking and the calls."""
    answer_tokens: float = 0.0
    """Tokens sampled in turns that call none: thinking and messages, the final one among them."""
    read_tokens: float = 0.0
    """Context tokens that came after the first sampled one: tool outputs and what users said, with the template's. A
    context that was rewritten (summary, prune) is not counted a second time."""
    tool_calls: float = 0.0
    """Tool calls."""
    turns: float = 0.0
    """Model calls, and one more where a tool was called before the first."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name} is {value}: a length or its weight is finite and not negative")

    @property
    def in_tokens(self) -> bool:
        """Whether any tokens are in it."""
        return bool(self.acting_tokens or self.answer_tokens or self.read_tokens)


def measured(trajectory: Trajectory) -> Lengths:
    """The lengths of ``trajectory``; those in tokens are 0 where no token ids were recorded."""
    return Lengths(
        acting_tokens=sum(turn.sampled_tokens for turn in trajectory.turns if turn.tools),
        answer_tokens=sum(turn.sampled_tokens for turn in trajectory.turns if not turn.tools),
        read_tokens=sum(_read(segment.loss_mask) for segment in trajectory.segments),
        tool_calls=sum(len(turn.tools) for turn in trajectory.turns),
        turns=len(trajectory.turns),
    )


def weighted(lengths: Lengths, weights: Lengths) -> float:
    """x = Σ weight · length."""
    return math.fsum(weight * length for weight, length in zip(astuple(weights), astuple(lengths), strict=True))


def length_cost(x: float, *, k: float, q: float) -> float:
    """C_{k,q}(x) for x ≥ 0, k > 0, q ≥ 0; exact to rounding at and around q = 1, where the formula divides by zero."""
    if x < 0 or k <= 0 or q < 0:
        raise ValueError(f"x is {x}, k {k} and q {q}: x ≥ 0, k > 0 and q ≥ 0 are needed")
    grown = math.log1p(k * x)
    exponent = (1 - q) * grown
    # (1 + kx)^(1−q) − 1 is expm1(exponent); expm1(a)/a → 1 takes the limit without a case of its own.
    return grown / k * (math.expm1(exponent) / exponent if exponent else 1.0)


def length_penalty(*, weights: Lengths, k: float, q: float, weight: Weight, name: str = "length_cost") -> Term:
    """The cost as a component; ``weight`` is negative for a penalty.

    Unscorable (``no_token_counts``) where tokens have a weight and the trajectory has no token ids.
    """
    length_cost(0.0, k=k, q=q)  # wrong settings are said here, and not at each trajectory

    def cost(trajectory: Trajectory) -> float:
        """Composer's length cost, from 0 up; increasing and concave."""
        if weights.in_tokens and not trajectory.segments:
            raise Unscorable(NO_TOKEN_COUNTS)
        return length_cost(weighted(measured(trajectory), weights), k=k, q=q)

    return Term(name, cost, weight)


def _read(loss_mask: Sequence[int]) -> int:
    """Context tokens after the first sampled one."""
    try:
        first = loss_mask.index(1)
    except ValueError:
        return 0
    return len(loss_mask) - first - sum(loss_mask)
