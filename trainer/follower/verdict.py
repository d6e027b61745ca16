"""Whether a swap took: what an engine's log-probabilities say after it. Pure, over arrays.

n canary tokens; o are the trainer's log-probabilities of them under the version that was served before, t under the
new one, d = t − o; b and a are the engine's before and after the swap, each asked twice where o is known. Engine and
trainer do not compute alike: a = t + e after a good swap, where e has the standard deviation σ, 1e-6 to 1e-5 nats in
float32 and 2e-2 to 5e-2 in bfloat16. An optimiser step at a learning rate of 1e-6 moves d by 1e-5 to 1e-3: less than σ,
by orders of magnitude. No single bound on |a − t| can tell. Three questions can:

1. **Is the engine near the new version?** rms(a − t) must be within what the engine's arithmetic makes, which is known
   from the swaps before.
2. **Where does it lie between old and new?** The least-squares position p = Σ d (a − o) / Σ d² is 1 after a good swap
   and 0 after an empty one, with the standard error s = σ̂ / √(Σ d²), where σ̂ is that of the residuals about the fit. It
   is the likelihood ratio of the two for Gaussian e. The same is done with a − b in place of a − o, in which what the
   engine's arithmetic always adds cancels, and the one with the smaller s counts. Where s ≤ 0.1 the answer is
   conclusive: p must be 1, give or take 0.1 + 4 s. That refuses empty swaps at five standard errors, and those that
   left out a part which moves more than a tenth of all.
3. **Did it change at all?** Where d is too small for that: other weights round otherwise everywhere, so a good swap
   moves an engine's answers by some 0.4 σ and more, however small d is; an empty one moves them no more than asking
   again does. Per token the move |a₁ − b₂| is compared with the engine's own |b₁ − b₂|. After an empty swap either is
   as likely to be the larger, so the differences of counts D_j of the sequences have symmetric signs, and
   z = Σ D_j / √(Σ D_j²) exceeds x with a probability below exp(−x²/2), whatever the distribution of e. z ≥ 4 is
   conclusive.

An engine that repeats itself badly (it asks twice and gets answers that differ by half of σ and more) cannot be told an
empty swap at a tiny step by anybody; then the first question decides alone, and ``evidence`` says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

LogprobRows = NDArray[np.float64]
"""(S, T) log-probabilities of S sequences; NaN where a shorter sequence has ended."""

_CONCLUSIVE_S = 0.1
_SLACK = 0.1
_STANDARD_ERRORS = 4.0
_Z = 4.0
_EXACT = 5e-6
"""Nats: d below it (rms) is what the trainer's own float32 arithmetic makes of the same weights, not a direction."""
_GROWTH = 1.5
"""How much larger than before the distance from the trainer's log-probabilities may become."""
_FLOOR = 1e-3
"""Nats (rms) that mean nothing whatever was before."""
_NOISY = 0.5
"""Share of σ from which on an engine's repeated answers hide what a swap changes."""


class SwapEvidence(StrEnum):
    """What a verdict rests on."""

    POSITION = "position"
    """Where the engine lies between the old version and the new one."""
    CHANGE = "change"
    """That its answers changed; the versions are too close for more."""
    DISTANCE = "distance"
    """Its distance from the new version alone: nothing is known of the old one, or the two cannot be told apart."""


@dataclass(frozen=True, slots=True)
class SwapVerdict:
    """What is to be believed of a swap."""

    problem: str | None
    """Why it is not believed; ``None``: it is."""
    rms_error: float
    """Root mean square of a − t, in nats."""
    max_error: float
    """Largest |a − t|, in nats."""
    evidence: SwapEvidence
    """What decided."""
    position: float | None = None
    """p: 0 at the old version, 1 at the new one; ``None`` where there is no direction to measure along."""
    position_error: float | None = None
    """Its standard error s."""


def rows_of(sequences: Sequence[Sequence[float]]) -> LogprobRows:
    """``sequences`` side by side. What is not a finite number becomes infinity: NaN says that a sequence has ended, and
    is compared with nothing."""
    rows = np.full((len(sequences), max(map(len, sequences), default=0)), np.nan)
    for row, sequence in zip(rows, sequences, strict=True):
        values = np.asarray(sequence, np.float64)
        row[: len(sequence)] = np.where(np.isfinite(values), values, np.inf)
    return rows


def rms(difference: LogprobRows) -> float:
    """Root mean square; infinity where a value that is not NaN is not finite."""
    found = difference[~np.isnan(difference)]
    return float(np.sqrt(np.mean(found**2))) if len(found) and np.isfinite(found).all() else math.inf


def allowed_error(before: float, *, tolerance: float, noise: float) -> float:
    """Largest distance (rms) to be believed after a swap that began at the distance ``before``, of whose old version
    nothing is known: it must also bring the engine at least half of the way, down to ``noise``."""
    return min(tolerance, max(noise, before / 2))


def judge_swap(
    new: LogprobRows,
    before: Sequence[LogprobRows],
    after: Sequence[LogprobRows],
    *,
    old: LogprobRows | None,
    exact: bool,
    usual: float | None,
    tolerance: float,
    noise: float,
) -> SwapVerdict:
    """What to believe of a swap to the version whose log-probabilities are ``new``.

    ``before`` and ``after`` are what the engine answered, once or twice. ``old`` is the version that it verifiably
    served before, ``None`` where that is not known; its weights differ from the new ones. ``exact`` says that old and
    new are exact to float32. ``usual`` is the distance (rms) that the engine had from versions before, if known;
    ``tolerance`` bounds it in any case.
    """
    last = np.mean(after, axis=0)
    distance, largest = rms(last - new), float(np.nanmax(np.abs(last - new), initial=0.0))
    if not math.isfinite(distance):
        return SwapVerdict("the engine's log-probabilities are not numbers", distance, math.inf, SwapEvidence.DISTANCE)
    if old is None:
        allowed = allowed_error(rms(before[0] - new), tolerance=tolerance, noise=noise)
    else:
        allowed = tolerance if usual is None else min(tolerance, max(_FLOOR, _GROWTH * usual))
    if distance > allowed:
        problem = (
            f"after the swap the engine's log-probabilities differ by {distance:.3g} nats (root mean square) from the "
            f"trainer's, before it by {rms(before[0] - new):.3g}; allowed are {allowed:.3g} (see canary_tolerance)"
        )
        return SwapVerdict(problem, distance, largest, SwapEvidence.DISTANCE)
    if old is None:
        return SwapVerdict(None, distance, largest, SwapEvidence.DISTANCE)
    position, error = _position(new, old, np.mean(before, axis=0), last) if exact else (None, None)
    figures = (distance, largest)
    if position is not None and error is not None and error <= _CONCLUSIVE_S:
        misplaced = None
        if abs(position - 1) > _SLACK + _STANDARD_ERRORS * error:
            misplaced = (
                f"after the swap the engine's log-probabilities lie {position:.3g} of the way from the version before "
                f"to this one, where 1 was expected, with a standard error of {error:.2g}"
            )
        return SwapVerdict(misplaced, *figures, SwapEvidence.POSITION, position, error)
    same = exact and rms(new - old) < _EXACT / 2
    if same or len(before) < 2 or len(after) < 2:
        return SwapVerdict(None, *figures, SwapEvidence.DISTANCE, position, error)
    if _changed(before, after):
        return SwapVerdict(None, *figures, SwapEvidence.CHANGE, position, error)
    if max(rms(before[0] - before[1]), rms(after[0] - after[1])) > _NOISY * distance:
        return SwapVerdict(None, *figures, SwapEvidence.DISTANCE, position, error)
    problem = "after the swap the engine answers as before it, and the weights are others"
    return SwapVerdict(problem, *figures, SwapEvidence.CHANGE, position, error)


def _position(
    new: LogprobRows, old: LogprobRows, before: LogprobRows, after: LogprobRows
) -> tuple[float | None, float | None]:
    """p and s by the better of the two ways; ``None`` where old and new are the same."""
    there = ~np.isnan(new)
    d = (new - old)[there]
    length = float(d @ d)
    if math.sqrt(length / max(len(d), 1)) < _EXACT:
        return None, None
    found = []
    for moved in ((after - old)[there], (after - before)[there]):
        p = float(d @ moved) / length
        residual = moved - p * d
        found.append((float(np.sqrt(residual @ residual / max(len(d) - 1, 1) / length)), p))
    s, p = min(found)
    return p, s


def _changed(before: Sequence[LogprobRows], after: Sequence[LogprobRows]) -> bool:
    """Whether the answers after the swap differ from those before it by more than the engine's answers ever do."""
    itself = np.abs(before[0] - before[1])
    if not np.nanmax(itself, initial=0.0) and not np.nanmax(np.abs(after[0] - after[1]), initial=0.0):
        return bool(np.nanmax(np.abs(after[0] - before[1]), initial=0.0) > 0)
    larger = np.nansum(np.sign(np.abs(after[0] - before[1]) - itself), axis=1)
    scale = math.sqrt(float(larger @ larger))
    return scale > 0 and float(larger.sum()) / scale >= _Z
