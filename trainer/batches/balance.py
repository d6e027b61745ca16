"""Load balancing: assigns sequences to ranks, so that no rank waits long for another. Pure and deterministic.

    costs   9 7 6 5 4         rank 0   9 5      14
                              rank 1   7 6 4    17

Every rank computes the same assignment from the same batch, without communication. Axis legend: S sequences.
"""

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.trainer.batches.packing import Ints, plan_passes


def sequence_costs(lengths_S: Ints, crossover: float) -> NDArray[np.float64]:
    """Returns the (S,) cost of each sequence, in tokens of a short one: length · (1 + length / ``crossover``).

    The cost of linear layers grows with the tokens, that of attention with the tokens and their context. ``crossover``
    is the length, in tokens, at which both cost the same.
    """
    return lengths_S * (1 + lengths_S / crossover)


def assign_items(costs: Sequence[float] | NDArray[np.float64], ranks: int) -> list[list[int]]:
    """Returns the items of each of ``ranks`` ranks, ascending.

    Longest processing time first (Graham 1969): the costliest item goes first, each to the rank with the least load.
    The largest load is at most 4/3 of the optimum, and exceeds the mean by less than one item. Ties go to the lower
    index and the lower rank.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0.0, rank) for rank in range(ranks)]
    for item in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        load, rank = heapq.heappop(loads)
        shares[rank].append(item)
        heapq.heappush(loads, (load + float(costs[item]), rank))
    return [sorted(share) for share in shares]


def plan_ranks(
    lengths_S: Ints, max_tokens: int, ranks: int, *, crossover: float, owners: Ints | None = None
) -> list[list[list[int]]]:
    """Returns the passes of each rank, made by :func:`plan_passes` from its share; every rank has the same number.

    A layer's weights are gathered from all ranks whenever it computes, so a rank without work left runs empty passes.
    With ``owners`` (S,), all sequences of one owner are in one pass of one rank.
    """
    if ranks == 1:
        return [plan_passes(lengths_S, max_tokens, owners)]
    costs: NDArray[Any] = sequence_costs(lengths_S, crossover)
    units = [[sequence] for sequence in range(len(lengths_S))]
    if owners is not None:
        numbers, owner_S = np.unique(owners, return_inverse=True)
        units = [np.flatnonzero(owner_S == number).tolist() for number in range(len(numbers))]
        costs = np.bincount(owner_S, weights=costs, minlength=len(numbers))
    planned = []
    for share in assign_items(costs, ranks):
        mine = np.asarray([sequence for unit in share for sequence in units[unit]], np.int64)
        passes = plan_passes(lengths_S[mine], max_tokens, None if owners is None else owners[mine])
        planned.append([mine[chosen].tolist() for chosen in passes])
    most = max(len(passes) for passes in planned)
    return [passes + [[]] * (most - len(passes)) for passes in planned]
