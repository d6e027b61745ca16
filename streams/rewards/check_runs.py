"""Checks a reward's behaviour: whether it is deterministic, independent of its environment, and leaves its input alone.

Every component is called on every sample in four settings: unchanged; again in reverse order; with another clock and
time zone; with other random seeds. It is also called on variants of a sample that are rare in recorded runs but occur
in live traffic: no answer, no turns, a tool that never returned.
"""

import os
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import overload

from headrace.streams.interruptions import INTERRUPTIONS
from headrace.streams.rewards.check_variants import variants
from headrace.streams.rewards.check_world import AS_IT_COMES, ELSEWHEN, OTHER_SEED, Setting, seed_by, world
from headrace.streams.rewards.finding import Finding, Problem, Sample
from headrace.streams.rewards.spec import RewardSpec, Term, Unscorable, Verdict

STAND_IN = Verdict(0.5)
"""The assumed verdict of a judge: the middle of its scale."""


@dataclass(frozen=True, slots=True)
class Call:
    """The result of calling a component on a trajectory."""

    value: float | None = None
    """Its return value, if that is a number."""
    unscorable: str | None = None
    """The reason of ``Unscorable``, if it raised that."""
    error: str | None = None
    """Any other exception, with its location."""
    seconds: float = 0.0
    """Duration of the call."""


@dataclass(frozen=True, slots=True)
class Observations:
    """The results of all calls."""

    values: Mapping[str, Sequence[float | None]]
    """Component → value by sample."""
    totals: Sequence[float | None]
    """Total by sample."""
    unscored: Mapping[str, Counter[str]]
    """Component, or ``total`` → reasons for no value."""
    ms: float
    """Milliseconds per trajectory for all components; each call counts with the fastest of four, to reduce noise."""
    findings: Sequence[Finding]
    """The problems found."""


def observe(spec: RewardSpec, samples: Sequence[Sample]) -> Observations:
    """Call every component of ``spec`` on every sample in every setting."""
    with world(AS_IT_COMES):
        return _observed(spec, samples)


def _observed(spec: RewardSpec, samples: Sequence[Sample]) -> Observations:
    terms = [term for term in spec.terms if isinstance(term, Term)]
    findings = _mutations(terms, samples)
    if findings:
        # A component that changes its input would spoil the samples for others, so each call gets a separate copy.
        samples = _Copies(samples)
    calls: dict[str, list[Call]] = {}
    seconds = 0.0
    for term in terms:
        first, again, later, reseeded = passes = (
            _pass(term, samples, AS_IT_COMES),
            # Called in reverse order; the results are put back in order for the comparison.
            _pass(term, samples[::-1], AS_IT_COMES)[::-1],
            _pass(term, samples, ELSEWHEN),
            _pass(term, samples, OTHER_SEED),
        )
        calls[term.name] = first
        seconds += sum(min(call.seconds for call in of_sample) for of_sample in zip(*passes, strict=True))
        findings += _failures(term, samples, first)
        findings += _differences(term, samples, first, again, later, reseeded)
        if not any(call.error for call in first):
            # Prefer a sample with a value: an unscorable one may be just as unscorable in all variants.
            chosen = next((n for n, call in enumerate(first) if call.value is not None), 0)
            findings += _variants_that_fail(term, samples[chosen : chosen + 1])
    totals, reasons, more = _totals(spec, samples, calls)
    unscored = {name: Counter(c.unscorable for c in made if c.unscorable) for name, made in calls.items()}
    return Observations(
        values={name: [call.value for call in made] for name, made in calls.items()},
        totals=totals,
        unscored={**unscored, "total": reasons},
        ms=seconds * 1000 / len(samples) if samples else 0.0,
        findings=[*findings, *more],
    )


def _mutations(terms: Sequence[Term], samples: Sequence[Sample]) -> list[Finding]:
    found: dict[str, Finding] = {}
    for sample in samples:
        before = sample.trajectory.model_dump_json()
        copy = sample.trajectory.model_copy(deep=True)
        for term in terms:
            _call(term, Sample(copy, sample.feedback))
            if copy.model_dump_json() != before:
                copy = sample.trajectory.model_copy(deep=True)
                found[term.name] = found.get(term.name) or Finding(
                    Problem.CHANGES_TRAJECTORY,
                    term.name,
                    "changes its input trajectory",
                    sample.trajectory.trajectory_id,
                    "Copy lists and dicts before changing them: the next component gets the same trajectory.",
                )
    return list(found.values())


class _Copies(Sequence[Sample]):
    """Samples that are copied on each access."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> "_Copies": ...

    def __getitem__(self, index: int | slice) -> "Sample | _Copies":
        if isinstance(index, slice):
            return _Copies(self._samples[index])
        sample = self._samples[index]
        return Sample(sample.trajectory.model_copy(deep=True), sample.feedback)


def _pass(term: Term, samples: Sequence[Sample], setting: Setting) -> list[Call]:
    """Call ``term`` once per sample, in order."""
    with world(setting):
        return [_call(term, sample, setting.seed) for sample in samples]


def _call(term: Term, sample: Sample, seed: int = 1) -> Call:
    seed_by(seed, sample.trajectory.trajectory_id)
    started = time.perf_counter()
    try:
        value = term(sample.trajectory, sample.feedback)
        seconds = time.perf_counter() - started
        # Raises unless the value is a number for a spec: numpy numbers are, None and text are not.
        isfinite(value)
        return Call(value=float(value), seconds=seconds)
    except Unscorable as error:
        return Call(unscorable=error.reason, seconds=time.perf_counter() - started)
    except INTERRUPTIONS:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, which this check must find
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Call(error=f"{type(error).__name__}({error}) at {os.path.basename(frame.filename)}:{frame.lineno}")


def _failures(term: Term, samples: Sequence[Sample], calls: Sequence[Call]) -> Iterator[Finding]:
    raised = [(sample, call) for sample, call in zip(samples, calls, strict=True) if call.error]
    if raised:
        sample, call = raised[0]
        yield Finding(
            Problem.RAISES,
            term.name,
            f"raises on {len(raised)} of {len(samples)} trajectories: {call.error}",
            sample.trajectory.trajectory_id,
            f"Such trajectories get no total ({term.name}_raised). Score mistakes of the policy as 0; raise "
            "Unscorable('why') if the task itself lacks the required data.",
        )
    odd = [s for s, call in zip(samples, calls, strict=True) if call.value is not None and not isfinite(call.value)]
    if odd:
        yield Finding(
            Problem.NOT_FINITE,
            term.name,
            f"is NaN or infinite on {len(odd)} of {len(samples)} trajectories",
            odd[0].trajectory.trajectory_id,
            "Look for a division by zero; such trajectories get no total.",
        )


def _differences(
    term: Term,
    samples: Sequence[Sample],
    first: Sequence[Call],
    again: Sequence[Call],
    later: Sequence[Call],
    reseeded: Sequence[Call],
) -> Iterator[Finding]:
    # Only the first kind is reported: a component that differs between two equal calls differs in other settings too.
    for problem, second, where, do in (
        (
            Problem.NOT_DETERMINISTIC,
            again,
            "when it was called again, in another order",
            "Look for a private random generator, a cache, or a variable outside the function that it changes.",
        ),
        (
            Problem.READS_CLOCK,
            later,
            "with another clock and time zone",
            "Use the trajectory's own times (started_ms, ended_ms): a replay next year must give the same value.",
        ),
        (
            Problem.READS_RANDOM,
            reseeded,
            "with another random seed",
            "Derive random choices from the trajectory_id: a replay must give the same value.",
        ),
    ):
        for sample, one, other in zip(samples, first, second, strict=True):
            if not _same(one, other):
                says = f"gave {_shown(one)}, and {_shown(other)} {where}"
                yield Finding(problem, term.name, says, sample.trajectory.trajectory_id, do)
                return


def _variants_that_fail(term: Term, samples: Sequence[Sample]) -> Iterator[Finding]:
    for sample in samples:
        for kind, variant in variants(sample.trajectory):
            failed = _call(term, Sample(variant, sample.feedback))
            if failed.error or (failed.value is not None and not isfinite(failed.value)):
                yield Finding(
                    Problem.RAISES if failed.error else Problem.NOT_FINITE,
                    term.name,
                    f"on the same trajectory {kind}: {failed.error or failed.value}",
                    sample.trajectory.trajectory_id,
                    "Live traffic contains such trajectories: decide how to score them.",
                )
                return


def _totals(
    spec: RewardSpec, samples: Sequence[Sample], calls: Mapping[str, Sequence[Call]]
) -> tuple[list[float | None], Counter[str], list[Finding]]:
    verdicts = {term.name: STAND_IN for term in spec.judges}
    unbounded = replace(spec, maximum=None, minimum=None)  # totals out of bounds must be visible
    totals: list[float | None] = []
    reasons: Counter[str] = Counter()
    findings: list[Finding] = []
    for number, sample in enumerate(samples):
        if any(made[number].error for made in calls.values()):
            totals.append(None)
            continue
        seed_by(AS_IT_COMES.seed, sample.trajectory.trajectory_id)
        scored = unbounded.score(sample.trajectory, sample.feedback, verdicts)
        totals.append(scored.total)
        if scored.unscored:
            reasons[scored.unscored] += 1
        if scored.unscored in ("combine_raised", "total_not_finite") and not findings:
            findings.append(
                Finding(
                    Problem.RAISES if scored.unscored == "combine_raised" else Problem.NOT_FINITE,
                    None,
                    f"combining the components fails: {scored.unscored}",
                    sample.trajectory.trajectory_id,
                    "It must give a finite number for any values of the components.",
                )
            )
    return totals, reasons, findings


def _same(one: Call, other: Call) -> bool:
    # NaN equals NaN here, and the location of an error does not matter.
    return _shown(one) == _shown(other) or (one.error is not None and other.error is not None)


def _shown(call: Call) -> str:
    return repr(call.value) if call.value is not None else call.unscorable or f"an error ({call.error})"
