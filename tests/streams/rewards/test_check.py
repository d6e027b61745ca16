"""Every kind of planted fault in a reward is found; a sound reward has no findings."""

import itertools
import random
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component
from headrace.schemas.records.trajectory import Defect, Trajectory, Turn
from headrace.streams.rewards.check import Report, check
from headrace.streams.rewards.check_variants import variants
from headrace.streams.rewards.context1 import SEARCH
from headrace.streams.rewards.finding import WORTH_A_LOOK, CheckLimits, Problem, Sample
from headrace.streams.rewards.judge import Judge, Rubric
from headrace.streams.rewards.outcome import OUTCOME, outcome
from headrace.streams.rewards.schedule import Schedule, linear
from headrace.streams.rewards.spec import Feedback, RewardSpec, Term, Unscorable, judged, reward
from tests.streams.attempts import attempt, shows

TASK = {"targets": ["c1", "c2"], "answer_chunks": ["c2"]}


def samples(count: int = 12) -> list[Sample]:
    """Attempts at tasks in groups of four: alternating outcomes 0 and 1, uncorrelated lengths."""
    made = []
    for number in range(count):
        turns = [shows("c1", "c2")] * (1 + number // 2 % 3)
        attempted = attempt(
            f"t{number}",
            group=f"g{number // 4}",
            outcome=float(number % 2),
            task=TASK,
            turns=turns,
            answer={"chunk_ids": ["c1"] if number % 2 else []},
            version=number,
        )
        made.append(Sample(attempted.model_copy(update={"sampled_tokens": 0, "started_ms": 1000 * number})))
    return made


def found(report: Report) -> set[tuple[Problem, str | None]]:
    return {(finding.problem, finding.component) for finding in report.findings}


def of(function: Callable[[Trajectory], float], *, weight: float | Schedule = 1.0) -> Report:
    """A check of ``function`` together with a sound component."""
    return check(RewardSpec("planted", 1, (outcome, Term("planted", function, weight))), samples())


def test_a_sound_reward_has_no_findings() -> None:
    report = check(OUTCOME, samples())
    assert (report.findings, report.wrong, report.samples, report.versions) == ((), 0, 12, (0, 11))
    assert (report.groups, report.equal_groups) == (3, 0)
    (row, total) = report.rows
    assert (row.name, row.weight, row.values) == ("outcome", "1", (0.0, 1.0) * 6)
    assert (total.name, total.values) == ("total", row.values)


counter = itertools.count()
cache: dict[str, float] = {}


def by_a_counter(trajectory: Trajectory) -> float:
    """Another value at each call."""
    return float(next(counter))


def by_a_cache(trajectory: Trajectory) -> float:
    """What the first of a group scored."""
    group = trajectory.started.group_id if trajectory.started else ""
    cache.clear() if len(cache) > 2 else None
    return cache.setdefault(str(group), float(trajectory.trajectory_id[1:]))


def by_own_generator(trajectory: Trajectory) -> float:
    """An unseeded generator."""
    return random.SystemRandom().random()


def by_the_clock(trajectory: Trajectory) -> float:
    """Older attempts are worth less."""
    return trajectory.started_ms / 1000 / time.time()


def by_the_date(trajectory: Trajectory) -> float:
    """Only this year's count."""
    return float(datetime.now().year)


def by_the_time_zone(trajectory: Trajectory) -> float:
    """The hour of the day at which it began, here."""
    return float(datetime.fromtimestamp(trajectory.started_ms / 1000).hour)


def by_chance(trajectory: Trajectory) -> float:
    """A coin."""
    return random.random()


def by_changing(trajectory: Trajectory) -> float:
    """Removes the last turn from the trajectory."""
    return float(len(trajectory.turns.pop().tools)) if trajectory.turns else 0.0


def by_raising(trajectory: Trajectory) -> float:
    """Requires a field that half of the answers lack."""
    return float(trajectory.answer["chunk_ids"][0] == "c1")


def by_leaving(trajectory: Trajectory) -> float:
    sys.exit(0)


def by_raising_without_an_answer(trajectory: Trajectory) -> float:
    """Recorded attempts all have an answer."""
    return float(len(trajectory.answer["chunk_ids"]))


def by_dividing(trajectory: Trajectory) -> float:
    """Infinite where there are no tokens."""
    return float("inf") if trajectory.outcome else 1.0


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (by_a_counter, Problem.NOT_DETERMINISTIC),
        (by_a_cache, Problem.NOT_DETERMINISTIC),
        (by_own_generator, Problem.NOT_DETERMINISTIC),
        (by_the_clock, Problem.READS_CLOCK),
        (by_the_date, Problem.READS_CLOCK),
        (by_the_time_zone, Problem.READS_CLOCK),
        (by_chance, Problem.READS_RANDOM),
        (by_changing, Problem.CHANGES_TRAJECTORY),
        (by_raising, Problem.RAISES),
        (by_leaving, Problem.RAISES),
        (by_raising_without_an_answer, Problem.RAISES),
        (by_dividing, Problem.NOT_FINITE),
        (lambda trajectory: 0.0, Problem.NEVER_NONZERO),
        (lambda trajectory: 0.5, Problem.COMPONENT_CONSTANT),
        (lambda trajectory: trajectory.outcome, Problem.NO_DOCSTRING),
        (lambda trajectory: trajectory.outcome, Problem.NO_ANNOTATION),
    ],
)
def test_a_faulty_component_is_found_and_named(function: Callable[[Trajectory], float], problem: Problem) -> None:
    report = of(function)
    assert (problem, "planted") in found(report)
    assert not {component for _, component in found(report)} & {"outcome"}, "the sound one beside it is left in peace"
    (finding, *_) = [each for each in report.findings if each.problem is problem]
    assert finding.do
    assert finding.wrong == (problem not in WORTH_A_LOOK)
    if finding.wrong:
        assert finding.trajectory is not None


def test_a_component_that_reads_the_clock_is_not_also_reported_as_random() -> None:
    assert found(of(by_the_clock)) == {(Problem.READS_CLOCK, "planted")}
    assert found(of(by_chance)) == {(Problem.READS_RANDOM, "planted")}


def test_a_component_that_writes_does_not_spoil_the_samples() -> None:
    tried = samples()
    before = [sample.trajectory.model_dump_json() for sample in tried]
    check(RewardSpec("planted", 1, (Term("planted", by_changing, 1.0), outcome)), tried)
    assert [sample.trajectory.model_dump_json() for sample in tried] == before


def test_clock_time_zone_and_generators_are_restored() -> None:
    random.seed(7)
    expected = [random.random(), random.random()]
    random.seed(7)
    assert random.random() == expected[0]
    started = time.time()
    check(RewardSpec("planted", 1, (Term("planted", by_chance, 1.0),)), samples())
    assert random.random() == expected[1]
    assert 0 <= time.time() - started < 600
    assert datetime.now().astimezone().utcoffset() == datetime.fromtimestamp(started).astimezone().utcoffset()


def test_the_line_of_an_error_is_named() -> None:
    (finding,) = [each for each in of(by_raising).findings if each.problem is Problem.RAISES]
    assert "6 of 12" in finding.says
    assert "IndexError" in finding.says
    assert "test_check.py:" in finding.says


class TestTotal:
    @staticmethod
    def of(function: Callable[[Trajectory], float], **fields: object) -> Report:
        spec = RewardSpec("planted", 1, (Term("planted", function, 1.0),), **fields)  # type: ignore[arg-type]
        return check(spec, samples())

    def test_over_its_maximum(self) -> None:
        report = self.of(lambda trajectory: 3.0 * (trajectory.outcome or 0.0), maximum=2.0)
        (finding,) = [each for each in report.findings if each.problem is Problem.OVER_MAXIMUM]
        assert finding.says == "is 3 and more than its maximum of 2 on 6 of 12 trajectories"
        assert (Problem.OVER_MAXIMUM, None) not in found(check(OUTCOME, samples()))

    def test_under_its_minimum(self) -> None:
        report = self.of(lambda trajectory: -3.0 * (trajectory.outcome or 0.0), minimum=-2.0)
        (finding,) = [each for each in report.findings if each.problem is Problem.UNDER_MINIMUM]
        assert finding.says == "is -3 and less than its minimum of -2 on 6 of 12 trajectories"

    def test_constant(self) -> None:
        assert (Problem.CONSTANT, None) in found(self.of(lambda trajectory: 1.0))

    def test_no_difference_inside_any_group(self) -> None:
        report = self.of(lambda trajectory: float(trajectory.started.group_id[1:]))  # type: ignore[union-attr,index]
        assert (Problem.NO_DIFFERENCE_IN_GROUPS, None) in found(report)
        assert (report.groups, report.equal_groups) == (3, 3)
        assert (Problem.CONSTANT, None) not in found(report)

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_follows_length_either_way(self, sign: float) -> None:
        report = self.of(lambda trajectory: sign * len(trajectory.turns) + 0.1 * (trajectory.outcome or 0.0))
        assert (Problem.FOLLOWS_LENGTH, None) in found(report)

    def test_never_scores(self) -> None:
        def never(trajectory: Trajectory) -> float:
            """Is unscorable each time."""
            raise Unscorable("no_price")

        report = self.of(never)
        (finding,) = [each for each in report.findings if each.problem is Problem.NEVER_SCORES]
        assert finding.says == "none of 12 trajectories has a total: no_price 12"
        assert report.rows[0].unscored == {"no_price": 12}

    def test_slow(self) -> None:
        def waits(trajectory: Trajectory) -> float:
            """Calls a judge."""
            time.sleep(0.003)
            return trajectory.outcome or 0.0

        (finding,) = [each for each in self.of(waits).findings if each.problem is Problem.SLOW]
        assert finding.says.startswith("takes ")

    def test_a_failing_combination_is_found(self) -> None:
        def absent(components: dict[str, Component]) -> float:
            return components["absent"].value

        report = self.of(lambda trajectory: trajectory.outcome or 0.0, combine=absent)
        assert (Problem.RAISES, None) in found(report)

    def test_too_few_samples_are_reported(self) -> None:
        assert found(check(OUTCOME, samples(4))) == {(Problem.FEW_SAMPLES, None)}
        assert found(check(OUTCOME, [])) == {(Problem.NO_SAMPLES, None)}


@pytest.mark.parametrize(
    ("until", "planned", "problems"),
    [
        (200, None, set()),
        (200, 200, set()),
        (200, 199, {(Problem.NEVER_REACHED, "planted")}),
    ],
)
def test_a_weight_schedule_must_finish_within_the_run(
    until: int, planned: int | None, problems: set[tuple[Problem, str]]
) -> None:
    spec = RewardSpec("planted", 1, (Term("planted", outcome.function, linear(0.3, 0.0, until=until)),))
    assert found(check(spec, samples(), CheckLimits(planned_versions=planned))) == problems


def test_a_schedule_between_equal_values_is_a_finding() -> None:
    assert found(of(outcome.function, weight=linear(0.3, 0.3, until=9))) == {(Problem.PLANS_NOTHING, "planted")}  # type: ignore[arg-type]


def test_unscorable_samples_are_left_out_and_counted() -> None:
    torn = Sample(attempt("torn", outcome=1.0, defects=[Defect.MISSING_EVENTS]))
    report = check(OUTCOME, [*samples(), torn])
    assert (report.samples, report.left_out) == (12, {"missing_events": 1})


def test_judges_are_not_called_and_their_placeholder_makes_no_findings() -> None:
    judge = Judge("helpful", (Rubric("task", "Done?"),), model="any")
    report = check(RewardSpec("judged", 1, (judged("helpful", judge, weight=1.0),)), samples())
    assert report.findings == ()
    assert report.rows[0].unscored == {"not_judged": 12}
    assert report.rows[-1].values == (0.5,) * 12


def test_components_that_take_feedback_get_it_and_its_absence_is_no_finding() -> None:
    @reward(weight=1.0)
    def kept(trajectory: Trajectory, feedback: Sequence[Feedback]) -> float:
        """The last word."""
        return feedback[-1].value if feedback else 0.0

    spec = RewardSpec("kept", 1, (kept,))
    assert found(check(spec, samples())) == set()
    feedback = Feedback("f", "kept", 0.5, 1, Reference(partition=0, offset=0))
    assert found(check(spec, [Sample(sample.trajectory, [feedback]) for sample in samples()])) == {
        (Problem.CONSTANT, None),
        (Problem.COMPONENT_CONSTANT, "kept"),
    }


def test_our_search_reward_withstands_every_variant() -> None:
    wrong = {each.problem for each in check(SEARCH, samples()).findings if each.wrong}
    assert wrong == set()


def test_variants_differ_from_their_original() -> None:
    plain = samples()[1].trajectory
    kinds = dict(variants(plain))
    assert len(kinds) == 6
    assert all(variant != plain for variant in kinds.values())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_pure_bounded_function_is_never_reported_as_faulty(outcomes: list[float]) -> None:
    tried = [
        Sample(attempt(f"t{n}", outcome=value, turns=[Turn(sampled_tokens=1)])) for n, value in enumerate(outcomes)
    ]
    problems = {problem for problem, _ in found(check(OUTCOME, tried, CheckLimits(ms=1e9)))}
    assert problems <= {
        Problem.CONSTANT,
        Problem.NO_DIFFERENCE_IN_GROUPS,
        Problem.COMPONENT_CONSTANT,
        Problem.NEVER_NONZERO,
        Problem.FEW_SAMPLES,
    }
