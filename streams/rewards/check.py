"""Checks whether a reward is fit to train on: runs a spec on recorded trajectories and reports its problems.

    Finding(Problem.READS_CLOCK, "recency", "gave 0.2, and 0.0 with the clock elsewhere", trajectory="6f1…", do="…")

A reward is computed again at every replay, on another machine, a year later, so it must be a function of the trajectory
alone. It must also distinguish attempts, or nothing is learnt from it. The checks: ``check_declared`` (declarations in
the code), ``check_runs`` (behaviour when called), ``check_values`` (the resulting values).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.check_declared import declared_findings
from headrace.streams.rewards.check_runs import Observations, observe
from headrace.streams.rewards.check_values import group_differences, value_findings
from headrace.streams.rewards.finding import CheckLimits, Finding, Problem, Sample
from headrace.streams.rewards.incomplete import hiding_defect
from headrace.streams.rewards.spec import NOT_JUDGED, JudgedTerm, RewardSpec, newest_version


@dataclass(frozen=True, slots=True)
class CheckRow:
    """Values of one component over all samples."""

    name: str
    """Component, or ``total``."""
    weight: str
    """Its weight; a schedule as text."""
    values: tuple[float, ...]
    """Its values, in the order of the samples that have one."""
    unscored: dict[str, int]
    """Samples without a value, by reason."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check."""

    spec: str
    """Label of the spec."""
    samples: int
    """Trajectories that it was run on."""
    left_out: dict[str, int]
    """Trajectories that no spec can score, by defect."""
    versions: tuple[int, int]
    """Oldest and newest policy version of the samples."""
    groups: int
    """Groups with two totals or more."""
    equal_groups: int
    """Those whose totals are all equal, which carry no gradient."""
    ms: float
    """Milliseconds per trajectory for all components."""
    rows: tuple[CheckRow, ...]
    """Components in order, and the total."""
    findings: tuple[Finding, ...] = field(default=())
    """Errors first, then warnings."""

    @property
    def wrong(self) -> int:
        """Findings that should keep the spec out of a training run."""
        return sum(finding.wrong for finding in self.findings)


def check(spec: RewardSpec, samples: Sequence[Sample], limits: CheckLimits | None = None) -> Report:
    """Run ``spec`` on ``samples``, several times each, and report its problems.

    Changes the process's clock, time zone and random seeds while it runs and restores them, so it must not run in a
    server. Judges are not called: their components get a value from the middle of the scale.
    """
    limits = limits or CheckLimits()
    asked = [sample for sample in samples if hiding_defect(sample.trajectory) is None]
    left_out = Counter(defect.value for sample in samples if (defect := hiding_defect(sample.trajectory)) is not None)
    observed = observe(spec, asked)
    findings = [
        *declared_findings(spec, limits),
        *observed.findings,
        *value_findings(spec, asked, observed, limits),
    ]
    if not asked:
        findings.append(
            Finding(
                Problem.NO_SAMPLES,
                None,
                "there was no trajectory to run it on",
                do="Name a file of recorded runs, or the Kafka whose `trajectories` to use.",
            )
        )
    groups, equal_groups = group_differences(asked, observed.totals)
    return Report(
        spec=spec.label,
        samples=len(asked),
        left_out=dict(left_out),
        versions=_versions(asked),
        groups=groups,
        equal_groups=equal_groups,
        ms=observed.ms,
        rows=_rows(spec, observed),
        findings=tuple(sorted(findings, key=lambda finding: not finding.wrong)),
    )


def _versions(samples: Sequence[Sample]) -> tuple[int, int]:
    trajectories: list[Trajectory] = [sample.trajectory for sample in samples]
    versions = [newest_version(trajectory) for trajectory in trajectories]
    return min(versions, default=0), max(versions, default=0)


def _rows(spec: RewardSpec, observed: Observations) -> tuple[CheckRow, ...]:
    rows = []
    for term in spec.terms:
        weight = f"{term.weight:g}" if isinstance(term.weight, int | float) else str(term.weight)
        if isinstance(term, JudgedTerm):
            rows.append(CheckRow(term.name, weight, (), {NOT_JUDGED: len(observed.totals)}))
        else:
            values = tuple(value for value in observed.values[term.name] if value is not None)
            rows.append(CheckRow(term.name, weight, values, dict(observed.unscored[term.name])))
    totals = tuple(total for total in observed.totals if total is not None)
    return (*rows, CheckRow("total", "", totals, dict(observed.unscored["total"])))
