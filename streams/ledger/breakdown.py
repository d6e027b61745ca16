"""The ledger by version, reason, task, step, stage or agent: trained, rejected and pending trajectories of each key."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from headrace.streams.ledger.account import Account

UNKNOWN = "unknown"
"""Key of trajectories whose version, task or agent is in no record."""
NONE = "none"
"""Key of trajectories without a step, or without a reason."""


class By(StrEnum):
    """The key by which trajectories are counted."""

    VERSION = "version"
    """Oldest policy version among its tokens."""
    REASON = "reason"
    """Why it was rejected."""
    TASK = "task"
    """Task."""
    STEP = "step"
    """The ``run/step`` that trained it."""
    STAGE = "stage"
    """Its stage: open, unscored, ungrouped, untrained, trained, or the stage that rejected it."""
    AGENT = "agent"
    """Agent."""


@dataclass(slots=True)
class BreakdownRow:
    """Counts of trajectories with one key."""

    trained: int = 0
    rejected: int = 0
    pending: int = 0


def breakdown(accounts: Iterable[Account], by: By) -> dict[str, BreakdownRow]:
    """Returns key → counts, in the order of the keys; each column sums up to the ledger's total of that name.

    If an account has two steps or two rejections, which is a contradiction, the first counts.
    """
    key_of = _KEYS[by]
    rows: dict[str, BreakdownRow] = defaultdict(BreakdownRow)
    for account in accounts:
        row = rows[key_of(account)]
        row.trained += bool(account.steps)
        row.rejected += bool(account.rejections)
        row.pending += account.pending is not None
    return {key: rows[key] for key in sorted(rows, key=_order)}


def _stage(account: Account) -> str:
    if account.pending:
        return account.pending
    return "trained" if account.steps else account.rejections[0][0]


_KEYS: dict[By, Callable[[Account], str]] = {
    By.VERSION: lambda account: UNKNOWN if account.version is None else str(account.version),
    By.REASON: lambda account: account.rejections[0][1] if account.rejections else NONE,
    By.TASK: lambda account: account.task or UNKNOWN,
    By.STEP: lambda account: account.steps[0] if account.steps else NONE,
    By.STAGE: _stage,
    By.AGENT: lambda account: account.agent or UNKNOWN,
}


def _order(key: str) -> tuple[str, int, str]:
    """Sorts numbers by value, also after a slash as in ``run/12``."""
    head, slash, tail = key.rpartition("/")
    return (head + slash, int(tail), "") if tail.isdecimal() else (key, 0, key)
