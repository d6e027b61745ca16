"""Is a reward fit to train on? A spec is run on recorded trajectories, and what is wrong with it is said.

    Finding(Problem.READS_CLOCK, "recency", "gave 0.2, and 0.0 with the clock elsewhere", trajectory="6f1…", do="…")

A reward is asked again at every replay, on another machine, a year later: so it must be a function of the trajectory
and nothing else. And it must tell attempts apart, or nothing is learnt from it. What is looked at:
``check_declared`` (what the code says of itself), ``check_runs`` (what it does when it is called), ``check_values``
(what comes out).
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
    """One component over all samples."""

    name: str
    """Component, or ``total``."""
    weight: str
    """Its weight, a schedule in words."""
    values: tuple[float, ...]
    """Its values where it has one, in the order of the samples."""
    unscored: dict[str, int]
    """Samples without a value, by reason."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found."""

    spec: str
    """Label of the spec."""
    samples: int
    """Trajectories it was run on."""
    left_out: dict[str, int]
    """Trajectories that no spec is asked about, by defect."""
    versions: tuple[int, int]
    """Oldest and newest policy version of the samples."""
    groups: int
    """Groups with two totals or more."""
    equal_groups: int
    """Those of them whose totals are all equal: they carry no gradient."""
    ms: float
    """Milliseconds a trajectory, all components."""
    rows: tuple[CheckRow, ...]
    """Components in order, and the total."""
    findings: tuple[Finding, ...] = field(default=())
    """What is wrong, then what is worth a look."""

    @property
    def wrong(self) -> int:
        """Findings that should keep the spec out of a training run."""
        return sum(finding.wrong for finding in self.findings)


def check(spec: RewardSpec, samples: Sequence[Sample], limits: CheckLimits | None = None) -> Report:
    """Run ``spec`` on ``samples``, several times each, and say what is wrong with it.

    Sets the process's clock, time zone and random seeds while it runs, and puts them back: not for a server. Judges
    are not asked: their components stand in with a middle value.
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
                "there was no trajectory to try it on",
                do="Name a file of recorded runs, or the Kafka whose `trajectories` it is to be tried on.",
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
