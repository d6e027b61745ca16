"""Kinds of faults, and their schedule from a seed. Pure: no process is touched here."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """A kind of fault."""

    KILL = "kill"
    """SIGKILL of a worker, which is restarted."""
    TERM = "term"
    """SIGTERM of a worker, which is restarted."""
    FREEZE = "freeze"
    """SIGSTOP of a worker until others have its partitions, then SIGCONT: a zombie."""
    CUT = "cut"
    """A worker's connections are reset; it may reconnect immediately."""
    STALL = "stall"
    """A worker's connections stay open and transfer nothing."""
    REFUSE = "refuse"
    """A worker's connections are reset and new ones refused."""
    REBALANCE = "rebalance"
    """One more worker joins, and leaves again."""
    BROKER_KILL = "broker-kill"
    """SIGKILL of the broker, which is restarted on the same data."""
    BROKER_TERM = "broker-term"
    """SIGTERM of the broker, which is restarted on the same data."""


BROKER_KINDS = frozenset({Kind.BROKER_KILL, Kind.BROKER_TERM})

_HOLD_S = {
    Kind.KILL: (0.0, 4.0),
    Kind.TERM: (0.0, 2.0),
    Kind.FREEZE: (11.0, 16.0),
    Kind.CUT: (0.0, 0.0),
    Kind.STALL: (2.0, 15.0),
    Kind.REFUSE: (1.0, 8.0),
    Kind.REBALANCE: (4.0, 10.0),
    Kind.BROKER_KILL: (0.0, 2.0),
    Kind.BROKER_TERM: (0.0, 2.0),
}
"""Shortest and longest duration. A freeze must outlast the session timeout of 10 s; a stall may."""

_WEIGHT = {Kind.KILL: 4, Kind.CUT: 3}
"""Weight with which a kind is drawn after every kind came once; 2 by default."""

_BROKER_PAUSES = 6
"""Number of gaps between workers' faults for which the broker is left alone."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One scheduled fault."""

    kind: Kind
    """What."""
    after_s: float
    """Seconds after the fault before it."""
    hold_s: float
    """How long it lasts."""
    choice: float
    """In [0, 1): selects among the workers that have no fault by then."""


def worker_faults(seed: int, *, gap_s: float = 2.5) -> Iterator[Fault]:
    """An endless sequence of worker faults, ``gap_s`` apart on average: every kind once, then at random.

    A freeze comes first, as it takes the longest.
    """
    chance = random.Random(f"workers-{seed}")
    kinds = [kind for kind in Kind if kind not in BROKER_KINDS]
    others = [kind for kind in kinds if kind is not Kind.FREEZE]
    chance.shuffle(others)
    for kind in (Kind.FREEZE, *others):
        yield _fault(kind, chance, gap_s)
    weights = [_WEIGHT.get(kind, 2) for kind in kinds]
    while True:
        yield _fault(chance.choices(kinds, weights)[0], chance, gap_s)


def broker_faults(seed: int, *, gap_s: float = 2.5) -> Iterator[Fault]:
    """An endless sequence of broker faults, one after several worker faults, each kind in turn."""
    chance = random.Random(f"broker-{seed}")
    kinds = sorted(BROKER_KINDS)
    chance.shuffle(kinds)
    while True:
        for kind in kinds:
            fault = _fault(kind, chance, gap_s)
            yield replace(fault, after_s=fault.after_s + _BROKER_PAUSES * gap_s)


def _fault(kind: Kind, chance: random.Random, gap_s: float) -> Fault:
    return Fault(kind, min(3 * gap_s, chance.expovariate(1 / gap_s)), chance.uniform(*_HOLD_S[kind]), chance.random())
