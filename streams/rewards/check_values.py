"""Checks a reward's values: whether it is bounded, distinguishes attempts, follows mere length, or is slow."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import StatisticsError, correlation

from headrace.streams.rewards.check_runs import Observations
from headrace.streams.rewards.finding import CheckLimits, Finding, Problem, Sample
from headrace.streams.rewards.spec import OUT_OF_RANGE, ROUNDING, RewardSpec, Term


def value_findings(
    spec: RewardSpec, samples: Sequence[Sample], observed: Observations, limits: CheckLimits
) -> list[Finding]:
    """Returns the findings about the values of ``spec`` on ``samples``."""
    scored = [(sample, total) for sample, total in zip(samples, observed.totals, strict=True) if total is not None]
    findings = [*_range(spec, scored), *_speed(observed, limits)]
    if samples and not scored:
        reasons = ", ".join(f"{reason} {count}" for reason, count in observed.unscored["total"].most_common(3))
        findings.append(
            Finding(
                Problem.NEVER_SCORES,
                None,
                f"none of {len(samples)} trajectories has a total" + (f": {reasons}" if reasons else ""),
                samples[0].trajectory.trajectory_id,
                "Run it on trajectories of its own agent, and check the components' reasons.",
            )
        )
    if 0 < len(scored) < limits.few:
        findings.append(
            Finding(
                Problem.FEW_SAMPLES,
                None,
                f"{len(scored)} totals are too few to judge its spread, its groups and its length",
                do=f"Run it on {limits.few} trajectories or more.",
            )
        )
    if _complete(spec, samples):
        findings += _spread(scored)
        findings += _length(scored, limits)
    findings += _components(spec, samples, observed)
    return findings


def length_of(sample: Sample) -> int:
    """Returns the number of sampled tokens, or of turns if tokens were not recorded."""
    return sample.trajectory.sampled_tokens or len(sample.trajectory.turns)


def group_differences(samples: Sequence[Sample], totals: Sequence[float | None]) -> tuple[int, int]:
    """Returns the number of groups with two totals or more, and of those whose totals are equal (no gradient)."""
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for sample, total in zip(samples, totals, strict=True):
        started = sample.trajectory.started
        if started and started.group_id and total is not None:
            groups[started.group_id].append(total)
    compared = [group for group in groups.values() if len(group) > 1]
    return len(compared), sum(len(set(group)) == 1 for group in compared)


def _complete(spec: RewardSpec, samples: Sequence[Sample]) -> bool:
    """Whether the totals are as in production: with feedback if it is used, and without assumed verdicts."""
    return not spec.judges and (not spec.takes_feedback or any(sample.feedback for sample in samples))


def _range(spec: RewardSpec, scored: Sequence[tuple[Sample, float]]) -> Iterator[Finding]:
    maximum, minimum = spec.maximum, spec.minimum
    over = [each for each in scored if maximum is not None and each[1] > maximum + ROUNDING]
    if over:
        sample, total = max(over, key=lambda each: each[1])
        yield Finding(
            Problem.OVER_MAXIMUM,
            None,
            f"is {total:g} and more than its maximum of {maximum:g} on {len(over)} of {len(scored)} trajectories",
            sample.trajectory.trajectory_id,
            f"Raise the maximum, or clip the component that is too large: there is no total ({OUT_OF_RANGE}).",
        )
    under = [each for each in scored if minimum is not None and each[1] < minimum - ROUNDING]
    if under:
        sample, total = min(under, key=lambda each: each[1])
        yield Finding(
            Problem.UNDER_MINIMUM,
            None,
            f"is {total:g} and less than its minimum of {minimum:g} on {len(under)} of {len(scored)} trajectories",
            sample.trajectory.trajectory_id,
            f"Lower the minimum, or clip the component that is too small: there is no total ({OUT_OF_RANGE}).",
        )


def _speed(observed: Observations, limits: CheckLimits) -> Iterator[Finding]:
    if observed.ms > limits.ms:
        yield Finding(
            Problem.SLOW,
            None,
            f"takes {observed.ms:.3g} ms per trajectory: a process scores at most {1000 / observed.ms:.3g} per second",
            do="A reward must not do I/O: move calls to models into a judge, and load files in the module.",
        )


def _spread(scored: Sequence[tuple[Sample, float]]) -> Iterator[Finding]:
    totals = {total for _, total in scored}
    if len(scored) > 1 and len(totals) == 1:
        yield Finding(
            Problem.CONSTANT,
            None,
            f"is {totals.pop():g} on all {len(scored)} trajectories",
            scored[0][0].trajectory.trajectory_id,
            "Nothing is learnt from a reward that does not distinguish attempts.",
        )
        return
    compared, equal = group_differences([sample for sample, _ in scored], [total for _, total in scored])
    if compared and equal == compared:
        yield Finding(
            Problem.NO_DIFFERENCE_IN_GROUPS,
            None,
            f"is equal inside each of {compared} groups",
            scored[0][0].trajectory.trajectory_id,
            "Groups of equal rewards carry no gradient and are dropped: it depends on the task, not on the attempt.",
        )


def _length(scored: Sequence[tuple[Sample, float]], limits: CheckLimits) -> Iterator[Finding]:
    if len(scored) < limits.few:
        return
    lengths = [float(length_of(sample)) for sample, _ in scored]
    try:
        r = correlation(lengths, [total for _, total in scored])
    except StatisticsError:  # one of them is constant
        return
    if abs(r) > limits.correlation:
        longest = max((sample for sample, _ in scored), key=length_of)
        yield Finding(
            Problem.FOLLOWS_LENGTH,
            None,
            f"follows length: r = {r:+.2f} over {len(scored)} trajectories",
            longest.trajectory.trajectory_id,
            "The policy will learn to be " + ("long" if r > 0 else "short") + ": score each achievement only once.",
        )


def _components(spec: RewardSpec, samples: Sequence[Sample], observed: Observations) -> Iterator[Finding]:
    for term in spec.terms:
        if not isinstance(term, Term) or term.weight == 0:  # recorded only, and without effect
            continue
        if term.takes_feedback and not any(sample.feedback for sample in samples):
            continue
        values = [value for value in observed.values[term.name] if value is not None]
        if len(values) < 2 or len(set(values)) > 1:
            continue
        if values[0] == 0:
            yield Finding(
                Problem.NEVER_NONZERO,
                term.name,
                f"is 0 on all {len(values)} trajectories",
                do="Correct for a penalty that no attempt incurred; otherwise it reads data that does not exist.",
            )
        else:
            yield Finding(
                Problem.COMPONENT_CONSTANT,
                term.name,
                f"is {values[0]:g} on all {len(values)} trajectories",
                do="It shifts every reward equally, and the baseline removes that.",
            )
