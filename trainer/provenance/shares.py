"""Shares: how the tokens of one or many steps divide by task, agent, tenant and so on. Pure.

In each dimension every token counts once, also tokens whose records have expired: shares always sum to 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.schemas.records.step import Step
from headrace.trainer.provenance.contributions import GONE, Contribution, Dimension


@dataclass(slots=True)
class Amount:
    """Amounts of which shares are computed."""

    tokens: int = 0
    """Tokens trained."""
    trajectories: int = 0
    """Trajectories of these tokens."""


@dataclass(frozen=True, slots=True)
class Share:
    """One value of a dimension."""

    key: str
    """The value."""
    tokens: int
    """Tokens trained."""
    trajectories: int
    """Trajectories of these tokens."""
    share: float
    """Share of all tokens, in [0, 1]."""


@dataclass(slots=True)
class Shares:
    """Sums contributions, step by step; holds an entry for each value of each dimension, but no contributions."""

    total: Amount = field(default_factory=Amount)
    """Total of all steps."""
    by: dict[Dimension, dict[str, Amount]] = field(default_factory=lambda: {each: {} for each in Dimension})
    """Dimension → value → amount."""

    def add(self, step: Step, contributions: Iterable[Contribution]) -> Amount:
        """Add the contributions to ``step``; returns their amount.

        The tokens of trajectories whose records are missing are the step's own count less the known tokens; without a
        count they are 0.
        """
        amount, unknown = Amount(), 0
        for each in contributions:
            tokens = each.tokens or 0
            amount.tokens += tokens
            amount.trajectories += 1
            unknown += each.tokens is None
            for dimension, key in each.labels.items():
                self._count(dimension, key, tokens, 1)
        if unknown:
            rest = max(0, int(step.metrics.get("tokens_trained", 0)) - amount.tokens)
            amount.tokens += rest
            for dimension in Dimension:
                self._count(dimension, GONE, rest, 0)
        self.total.tokens += amount.tokens
        self.total.trajectories += amount.trajectories
        return amount

    def table(self, dimension: Dimension) -> list[Share]:
        """Returns the values of a dimension, largest first; equal ones in the order of their names."""
        whole = self.total.tokens
        rows = [
            Share(key, each.tokens, each.trajectories, each.tokens / whole if whole else 0.0)
            for key, each in self.by[dimension].items()
        ]
        return sorted(rows, key=lambda row: (-row.tokens, row.key))

    def _count(self, dimension: Dimension, key: str, tokens: int, trajectories: int) -> None:
        amount = self.by[dimension].setdefault(key, Amount())
        amount.tokens += tokens
        amount.trajectories += trajectories
