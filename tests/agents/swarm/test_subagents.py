"""A sub-agent is asked what its prompts name together; the scripted one succeeds at its stated rate."""

from random import Random

import pytest

from headrace.agents.swarm.subagents import MAX_STEPS, Skill, SubTask, scripted_report, scripted_reports
from headrace.agents.swarm.tasks import make_task
from headrace.schemas.events import EndStatus

TASK = make_task("swarm-train-000001")
FACT = TASK.evidence[0]
REAL = SubTask("alpha", ("find", FACT.triple.relation), (FACT.triple.subject,))
JUNK = SubTask("alpha", ("find",), ("help",))
NEVER, ALWAYS = Skill(0.0, 0.0), Skill(1.0, 0.0)


@pytest.mark.parametrize(
    ("system_prompt", "prompt", "question"),
    [
        (("find", "employer"), ("ada",), ("ada", "employer")),
        (("find",), ("employer", "of", "ada"), ("ada", "employer")),
        (("employer",), ("employer", "ada"), ("ada", "employer")),
        (("find",), ("ada",), None),
        (("employer",), ("look",), None),
        (("employer",), ("ada", "bruno"), None),
        (("employer",), ("hobby", "ada"), None),
    ],
)
def test_a_question_needs_exactly_one_relation_and_one_entity(
    system_prompt: tuple[str, ...], prompt: tuple[str, ...], question: tuple[str, str] | None
) -> None:
    assert SubTask("alpha", system_prompt, prompt).question == question


def test_a_useless_sub_task_fails_at_once_whatever_the_skill() -> None:
    report = scripted_report(JUNK, TASK.corpus, 4, Random(0), ALWAYS)
    assert (report.chunk, report.status, report.steps) == (None, EndStatus.FAILED, 1)


def test_a_real_sub_task_returns_its_fact() -> None:
    report = scripted_report(REAL, TASK.corpus, 4, Random(0), ALWAYS)
    assert (report.chunk, report.status, report.steps) == (FACT, EndStatus.COMPLETED, 2)


def test_a_sub_agent_that_finds_nothing_uses_up_its_steps() -> None:
    assert scripted_report(REAL, TASK.corpus, 9, Random(0), NEVER).steps == MAX_STEPS
    report = scripted_report(REAL, TASK.corpus, 3, Random(0), NEVER)
    assert (report.status, report.steps) == (EndStatus.TURNS_EXHAUSTED, 3)


def test_too_few_steps_are_not_enough_even_for_the_skilled() -> None:
    assert scripted_report(REAL, TASK.corpus, 1, Random(0), ALWAYS).status is EndStatus.TURNS_EXHAUSTED


def test_the_success_rate_is_as_stated() -> None:
    skill = Skill()
    reports = scripted_reports([REAL] * 4000, TASK.corpus, 4, Random(0), skill)
    finished = sum(report.status is EndStatus.COMPLETED for report in reports) / len(reports)
    assert finished == pytest.approx(skill.success_rate, abs=0.02)


@pytest.mark.parametrize("rates", [(-0.1, 0.5), (0.8, 0.3)])
def test_impossible_rates_are_refused(rates: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="rates must be"):
        Skill(*rates)
