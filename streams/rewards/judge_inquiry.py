"""Which judges a trajectory still needs, and what their answers make: the pure frame around whoever asks them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.judge_question import Question, questions
from headrace.streams.rewards.judge_verdict import Answer, verdict
from headrace.streams.rewards.spec import JudgedTerm, RewardSpec, Verdict


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What one component of one trajectory asks."""

    term: JudgedTerm
    """The component."""
    questions: list[Question]
    """One a rubric; empty where there is nothing to judge."""


def inquiries(spec: RewardSpec, trajectory: Trajectory, known: Mapping[str, Verdict]) -> list[Inquiry]:
    """One for each judged component without a value among the ``known`` verdicts, by name of the component."""
    return [
        Inquiry(term, questions(term.judge, trajectory))
        for term in spec.judges
        if term.name not in known or known[term.name].value is None
    ]


def verdicts(asked: Iterable[Inquiry], answers: Iterator[Answer]) -> dict[str, Verdict]:
    """The verdicts on what was ``asked``, by component. Takes an answer a question, in order."""
    return {
        inquiry.term.name: verdict(inquiry.term.judge, [next(answers) for _ in inquiry.questions]) for inquiry in asked
    }
