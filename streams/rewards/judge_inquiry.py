"""Determines which judges a trajectory still needs, and turns answers into verdicts. Pure; the caller does the I/O."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.judge_question import Question, questions
from headrace.streams.rewards.judge_verdict import Answer, verdict
from headrace.streams.rewards.spec import JudgedTerm, RewardSpec, Verdict


@dataclass(frozen=True, slots=True)
class Inquiry:
    """The questions of one component about one trajectory."""

    term: JudgedTerm
    """The component."""
    questions: list[Question]
    """One question per rubric; empty if there is nothing to judge."""


def inquiries(spec: RewardSpec, trajectory: Trajectory, known: Mapping[str, Verdict]) -> list[Inquiry]:
    """Returns an inquiry for each judged component without a value in the ``known`` verdicts (by component name)."""
    return [
        Inquiry(term, questions(term.judge, trajectory))
        for term in spec.judges
        if term.name not in known or known[term.name].value is None
    ]


def verdicts(asked: Iterable[Inquiry], answers: Iterator[Answer]) -> dict[str, Verdict]:
    """Returns the verdicts on the inquiries ``asked``, by component. Consumes one answer per question, in order."""
    return {
        inquiry.term.name: verdict(inquiry.term.judge, [next(answers) for _ in inquiry.questions]) for inquiry in asked
    }
