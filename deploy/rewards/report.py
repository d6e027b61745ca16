"""Reward specs and the results of checking them, as text."""

import textwrap
from collections.abc import Iterable, Sequence

from headrace.streams.rewards.check import CheckRow, Report
from headrace.streams.rewards.check_declared import about
from headrace.streams.rewards.finding import Finding
from headrace.streams.rewards.schedule import Schedule
from headrace.streams.rewards.spec import JudgedTerm, RewardSpec, Term

WIDTH = 110


def spec_text(spec: RewardSpec) -> str:
    """Returns the description of ``spec``: its components, their weights and what they measure."""
    facts = [f"combined by {spec.combine.__name__}"]
    if spec.maximum is not None:
        facts.append(f"at most {spec.maximum:g}")
    if spec.feedback_window_ms:
        facts.append(f"waits {spec.feedback_window_ms / 1000:g} s for feedback")
    rows = [("component", "weight", "what it measures")]
    rows += [(_marked(term), _weight(term), about(term) or "(no docstring)") for term in spec.terms]
    return f"{spec.label}: {', '.join(facts)}\n\n{_table(rows)}{_weights_by_version(spec)}"


def report_text(report: Report) -> str:
    """Returns the report of a check: values, then errors and warnings."""
    oldest, newest = report.versions
    lines = [
        f"{report.spec} on {report.samples} trajectories, policy versions {oldest} to {newest}, "
        f"{report.ms:.3g} ms per trajectory"
    ]
    if report.groups:
        lines.append(f"groups: {report.groups}, of which {report.equal_groups} have no variance and thus no gradient")
    if report.left_out:
        lines.append(f"left out because they are not scored: {_counts(report.left_out)}")
    titles = ("component", "weight", "min", "mean", "max", "without a value")
    rows = [titles, *(_row(row) for row in report.rows)]
    lines += ["", _table(rows).rstrip(), ""]
    lines += [_finding(finding) for finding in report.findings]
    warnings = len(report.findings) - report.wrong
    verdict = f"{_count(report.wrong, 'error')}, {_count(warnings, 'warning')}" if report.findings else "no errors"
    return "\n".join([*lines, f"{report.spec}: {verdict}"])


def _row(row: CheckRow) -> tuple[str, ...]:
    values = row.values
    shown = (f"{min(values):.4g}", f"{sum(values) / len(values):.4g}", f"{max(values):.4g}") if values else ("–",) * 3
    return (row.name, row.weight, *shown, _counts(row.unscored))


def _finding(finding: Finding) -> str:
    head = f"{'ERROR' if finding.wrong else 'WARN '}  {finding.component or 'total'}: {finding.says}"
    if finding.trajectory:
        head += f" (trajectory {finding.trajectory})"
    return "\n".join(
        [
            *textwrap.wrap(head, WIDTH, subsequent_indent=" " * 7),
            *textwrap.wrap(finding.do, WIDTH, initial_indent=" " * 7, subsequent_indent=" " * 7),
            "",
        ]
    )


def _marked(term: Term | JudgedTerm) -> str:
    if isinstance(term, JudgedTerm):
        return f"{term.name} (judge)"
    return f"{term.name} (feedback)" if term.takes_feedback else term.name


def _weight(term: Term | JudgedTerm) -> str:
    return str(term.weight) if isinstance(term.weight, Schedule) else f"{term.weight:g}"


def _weights_by_version(spec: RewardSpec) -> str:
    annealed = [(term, term.weight) for term in spec.terms if isinstance(term.weight, Schedule)]
    if not annealed:
        return ""
    ends = {version for _, weight in annealed for version in (weight.since, weight.until)}
    middles = {(weight.since + weight.until) // 2 for _, weight in annealed}
    versions = sorted({0} | ends | middles)
    titles = ("weight at version", *map(str, versions))
    rows = [(term.name, *(f"{weight.at(version):.4g}" for version in versions)) for term, weight in annealed]
    return f"\n{_table([titles, *rows])}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in counts.items())


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Returns ``rows`` as aligned columns; the last column wraps."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    indent = 2 + sum(width + 2 for width in widths)
    return "".join(f"{line}\n" for row in rows for line in _lines(row, widths, indent))


def _lines(row: Sequence[str], widths: Iterable[int], indent: int) -> list[str]:
    start = "  " + "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False))
    return textwrap.wrap(row[-1], WIDTH, initial_indent=start, subsequent_indent=" " * indent) or [start.rstrip()]
