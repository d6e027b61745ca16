"""Packing: sequences of different lengths laid end to end on one token axis, with no padding between them.

Axis legend: S sequences, T tokens of all sequences, N target tokens (whose log-probability is computed).

    sequences  a b c | d e           token_ids     a b c d e
    targets        c |   e           position_ids  0 1 2 0 1
                                     cu_seqlens    0 3 5        targets 2 4
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class PackedSequences:
    """Sequences on one token axis."""

    token_ids: Ints
    """(T,) tokens of all sequences."""
    position_ids: Ints
    """(T,) position of each token in its own sequence, from 0."""
    cu_seqlens: Ints
    """(S + 1,) sequence s occupies ``[cu_seqlens[s], cu_seqlens[s + 1])``."""
    targets: Ints
    """(N,) ascending indices into the token axis; never the first of a sequence, which has no context."""
    temperatures: Floats
    """(N,) temperature at which each target was sampled, above 0; its logits are divided by it."""

    @property
    def lengths(self) -> Ints:
        """(S,) tokens of each sequence."""
        return np.diff(self.cu_seqlens)


def pack(sequences: Iterable[tuple[ArrayLike, ArrayLike]], temperatures: ArrayLike | None = None) -> PackedSequences:
    """Lay ``(token ids, mask)`` pairs end to end; the mask's ones are the targets.

    ``temperatures`` (N,) are those of the targets, above 0; by default all are 1. Raises ``ValueError`` if there is no
    sequence, if one is empty, if its mask has another length, if its first token is a target (it has no context), or if
    there is not one temperature for each target.
    """
    token_ids, masks = [], []
    for number, (ids, mask) in enumerate(sequences):
        ids_T, mask_T = np.asarray(ids, np.int64), np.asarray(mask, bool)
        if ids_T.ndim != 1 or not len(ids_T) or mask_T.shape != ids_T.shape:
            raise ValueError(f"sequence {number}: {ids_T.shape} token ids with a mask of {mask_T.shape}")
        if mask_T[0]:
            raise ValueError(f"sequence {number}: its first token is a target and has no context")
        token_ids.append(ids_T)
        masks.append(mask_T)
    if not token_ids:
        raise ValueError("there is no sequence to pack")
    lengths = [len(ids_T) for ids_T in token_ids]
    targets = np.flatnonzero(np.concatenate(masks)).astype(np.int64)
    temperatures_N = np.ones(len(targets), np.float32) if temperatures is None else np.asarray(temperatures, np.float32)
    if temperatures_N.shape != targets.shape or not (temperatures_N > 0).all():
        raise ValueError(f"{temperatures_N.shape} temperatures for {len(targets)} targets: each must have one, above 0")
    return PackedSequences(
        token_ids=np.concatenate(token_ids),
        position_ids=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
        cu_seqlens=np.cumsum([0, *lengths], dtype=np.int64),
        targets=targets,
        temperatures=temperatures_N,
    )


def select(packed: PackedSequences, sequences: Sequence[int]) -> tuple[PackedSequences, Ints]:
    """Returns some of the sequences, in the given order, and the indices of their targets on the N axis."""
    token_ids, position_ids, targets, kept = [], [], [], []
    start = 0
    for sequence in sequences:
        low, high = int(packed.cu_seqlens[sequence]), int(packed.cu_seqlens[sequence + 1])
        first, last = np.searchsorted(packed.targets, (low, high))
        token_ids.append(packed.token_ids[low:high])
        position_ids.append(packed.position_ids[low:high])
        targets.append(packed.targets[first:last] - low + start)
        kept.append(np.arange(first, last, dtype=np.int64))
        start += high - low
    of_targets = np.concatenate(kept)
    chosen = PackedSequences(
        token_ids=np.concatenate(token_ids),
        position_ids=np.concatenate(position_ids),
        cu_seqlens=np.cumsum([0, *(len(ids) for ids in token_ids)], dtype=np.int64),
        targets=np.concatenate(targets),
        temperatures=packed.temperatures[of_targets],
    )
    return chosen, of_targets


def plan_passes(lengths: Sequence[int] | Ints, max_tokens: int, owners: Ints | None = None) -> list[list[int]]:
    """Divide sequences into passes (micro-batches) of at most ``max_tokens`` tokens, which bounds memory.

    Longest first, so that a pass has similar lengths. A sequence longer than ``max_tokens`` has a pass of its own. With
    ``owners`` (S,), all sequences of one owner are in one pass, and an owner of more than ``max_tokens`` has its own.
    """
    if owners is not None:
        numbers, owner = np.unique(owners, return_inverse=True)
        totals = np.bincount(owner, weights=lengths, minlength=len(numbers)).astype(np.int64)
        of_owner = [np.flatnonzero(owner == number).tolist() for number in range(len(numbers))]
        return [
            [sequence for number in each for sequence in of_owner[number]] for each in plan_passes(totals, max_tokens)
        ]
    passes: list[list[int]] = []
    room = 0
    for sequence in sorted(range(len(lengths)), key=lambda index: (-int(lengths[index]), index)):
        length = int(lengths[sequence])
        if not passes or length > room:
            passes.append([])
            room = max_tokens
        passes[-1].append(sequence)
        room -= length
    return passes


def plan_buckets(lengths: Sequence[int] | Ints, fill: float) -> list[list[int]]:
    """Divide sequences into buckets of similar length: in each, the shortest has at least ``fill`` of the longest.

    Longest first. For attention kernels that need a rectangle: at most 1 − ``fill`` of it is padding.
    """
    buckets: list[list[int]] = []
    longest = 0
    for sequence in sorted(range(len(lengths)), key=lambda index: (-int(lengths[index]), index)):
        if not buckets or lengths[sequence] < fill * longest:
            buckets.append([])
            longest = int(lengths[sequence])
        buckets[-1].append(sequence)
    return buckets
