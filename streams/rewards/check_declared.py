"""Checks of a reward's declarations: docstrings, annotations, and schedules that end within the run."""

import inspect

from headrace.streams.rewards.finding import CheckLimits, Finding, Problem
from headrace.streams.rewards.schedule import Schedule, Shape
from headrace.streams.rewards.spec import JudgedTerm, RewardSpec, Term


def about(term: Term | JudgedTerm) -> str:
    """Returns the first paragraph of the component's docstring as one line; for a judge, its name and rubrics."""
    if isinstance(term, JudgedTerm):
        return f"Judge {term.judge.name}: {', '.join(rubric.name for rubric in term.judge.rubrics)}."
    paragraph = (inspect.getdoc(term.function) or "").split("\n\n")[0]
    return " ".join(paragraph.split())


def declared_findings(spec: RewardSpec, limits: CheckLimits) -> list[Finding]:
    """Returns the findings about ``spec`` that do not require running it."""
    findings: list[Finding] = []
    for term in spec.terms:
        if isinstance(term, Term):
            findings += _code_findings(term)
        if isinstance(term.weight, Schedule):
            findings += _schedule_findings(term.name, term.weight, limits.planned_versions)
    return findings


def _code_findings(term: Term) -> list[Finding]:
    findings = []
    if not about(term):
        findings.append(
            Finding(
                Problem.NO_DOCSTRING,
                term.name,
                "has no docstring",
                do="Describe in a sentence what it measures and its range: dashboards and colleagues read it.",
            )
        )
    if inspect.signature(term.function).return_annotation is inspect.Signature.empty:
        findings.append(
            Finding(
                Problem.NO_ANNOTATION,
                term.name,
                "has no return annotation",
                do="Annotate it with `-> float`, so that a type checker finds a path that returns nothing.",
            )
        )
    return findings


def _schedule_findings(name: str, weight: Schedule, planned: int | None) -> list[Finding]:
    if weight.shape is not Shape.CONSTANT and weight.first == weight.last:
        return [
            Finding(
                Problem.PLANS_NOTHING,
                name,
                f"its schedule goes from {weight.first:g} to {weight.last:g}",
                do="Give it two values, or write the weight as a number.",
            )
        ]
    if planned is not None and weight.until > planned:
        return [
            Finding(
                Problem.NEVER_REACHED,
                name,
                f"its weight is still {weight.at(planned):g} at version {planned}, the last of the run: "
                f"it reaches {weight.last:g} only at {weight.until}",
                do="End the schedule within the run: the policy learns shaping that is never annealed.",
            )
        ]
    return []
