"""Composer's nonlinear length cost: an additional turn costs much in a short attempt and little in a long one.

    C(x) = ((1 + k·x)^(1 − q) − 1) / (k·(1 − q))        q → 1: ln(1 + k·x) / k

The cost is increasing and concave in x, a weighted sum of the trajectory's lengths. k, q and the weights are not
published, so they must be given. The six lengths are Composer's: tokens of thinking, of calls, of what was read and of
answers, and the numbers of calls and turns. Thinking is known where an agent records it with its calls
(``thinking_tokens``); otherwise it counts as part of the call.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.spec import Term, Unscorable, Weight

NO_TOKEN_COUNTS = "no_token_counts"
"""Reason for no cost: tokens have a weight but were not recorded. Assuming 0 would reward not recording them."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of a trajectory, or the weight of each length."""

    thinking_tokens: float = 0.0
    """Tokens sampled before tool calls as thinking about them, where the agent distinguishes them."""
    acting_tokens: float = 0.0
    """The other tokens sampled in turns with tool calls: the calls, and thinking that is not distinguished."""
    answer_tokens: float = 0.0
    """Tokens sampled in turns without tool calls: thinking and messages, including the final one."""
    read_tokens: float = 0.0
    """Context tokens after the first sampled one of a segment: tool outputs and user messages, with template tokens. A
    rewritten context (summary, prune) and what a fork begins with are not counted twice."""
    tool_calls: float = 0.0
    """Tool calls."""
    turns: float = 0.0
    """Model calls, plus one if a tool was called before the first."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name} is {value}: a length or its weight must be finite and not negative")

    @property
    def in_tokens(self) -> bool:
        """Whether any length in tokens is not 0."""
        return bool(self.thinking_tokens or self.acting_tokens or self.answer_tokens or self.read_tokens)


def measured(trajectory: Trajectory) -> Lengths:
    """Returns the lengths of ``trajectory``; those in tokens are 0 if no token ids were recorded."""
    thinking = [sum(use.thinking_tokens or 0 for use in turn.tools) for turn in trajectory.turns]
    # Recorded by the agent: never more than was sampled.
    thinking = [min(tokens, turn.sampled_tokens) for tokens, turn in zip(thinking, trajectory.turns, strict=True)]
    return Lengths(
        thinking_tokens=sum(thinking),
        acting_tokens=sum(turn.sampled_tokens for turn in trajectory.turns if turn.tools) - sum(thinking),
        answer_tokens=sum(turn.sampled_tokens for turn in trajectory.turns if not turn.tools),
        read_tokens=sum(_read(segment.loss_mask) for segment in trajectory.segments),
        tool_calls=sum(len(turn.tools) for turn in trajectory.turns),
        turns=len(trajectory.turns),
    )


def weighted(lengths: Lengths, weights: Lengths) -> float:
    """Returns x = Σ weight · length."""
    return math.fsum(weight * length for weight, length in zip(astuple(weights), astuple(lengths), strict=True))


def length_cost(x: float, *, k: float, q: float) -> float:
    """Returns C_{k,q}(x) for x ≥ 0, k > 0, q ≥ 0; accurate also near q = 1, where the formula divides by zero."""
    if not (0 <= x < math.inf and 0 < k < math.inf and 0 <= q < math.inf):
        raise ValueError(f"x is {x}, k {k} and q {q}: finite x ≥ 0, k > 0 and q ≥ 0 are needed")
    grown = math.log1p(k * x)
    exponent = (1 - q) * grown
    # (1 + kx)^(1−q) − 1 is expm1(exponent); expm1(a)/a → 1 gives the limit for q → 1.
    return grown / k * (math.expm1(exponent) / exponent if exponent else 1.0)


def length_penalty(*, weights: Lengths, k: float, q: float, weight: Weight, name: str = "length_cost") -> Term:
    """Returns the cost as a component; ``weight`` is negative for a penalty.

    Unscorable (``no_token_counts``) if tokens have a weight and the trajectory has no token ids.
    """
    length_cost(0.0, k=k, q=q)  # raises here for invalid settings, and not at each trajectory

    def cost(trajectory: Trajectory) -> float:
        """Composer's length cost, from 0 up; increasing and concave."""
        if weights.in_tokens and not trajectory.segments:
            raise Unscorable(NO_TOKEN_COUNTS)
        return length_cost(weighted(measured(trajectory), weights), k=k, q=q)

    return Term(name, cost, weight)


def _read(loss_mask: Sequence[int]) -> int:
    """Returns the number of context tokens after the first sampled one."""
    try:
        first = loss_mask.index(1)
    except ValueError:
        return 0
    return len(loss_mask) - first - sum(loss_mask)
