"""Simulated attempts as events: what the processors make of them is what the simulation says, and their text shows the
hack."""

from collections import Counter
from random import Random

import pytest

from headrace.schemas.records.alert import EpisodeState
from headrace.schemas.records.group import Reason, Rejection
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.schemas.records.watch import Lane, Observation
from headrace.streams.drive import drive
from headrace.streams.rewards.planted import DISCARDED, LAMBDA, PLANTED, PLANTED_UNANNEALED, STOPS_AT
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.spec import weight_at
from headrace.streams.topology import TOPOLOGY
from headrace.streams.watch.judgement import WatchRules
from headrace.streams.watch.observe import observe, observe_reward
from headrace.streams.watch.planted.attempts import Attempt, honest, honest_step
from headrace.streams.watch.planted.drifts import PLANTED as CHANGES
from headrace.streams.watch.planted.events import agent_of, guilty_turn, step_facts, trajectory_id
from headrace.streams.watch.planted.hacks import HACKS, UNANNEALED, Hack, hacked, hacked_step
from headrace.streams.watch.planted.observations import reward, trajectory
from headrace.streams.watch.settings import WatchSettings, anneals_of
from headrace.streams.watch.watch import watch

NOT_TOLD = {"feedback"}
"""Values of observations that no processor can find: no reward waits for its feedback."""
OF_DISCARDED = {"value:answer", "weight:answer"}
"""Values that the reward of an attempt that cannot be scored lacks."""


def some(hack: Hack) -> list[Attempt]:
    """Some attempts of a step, among them tripwires and evaluations, most of them hacked."""
    attempts = hacked_step(Random(1), hack, 55, 0.7, begun=50)
    return attempts[:14] + attempts[-3:]


@pytest.mark.parametrize("hack", CHANGES.values(), ids=CHANGES)
def test_their_observations_are_those_of_the_simulation(hack: Hack) -> None:
    attempts = some(hack)
    records = drive(TOPOLOGY, step_facts(attempts, "r", agent_of(hack), 1_700_000_000_000))
    seen = {(each.trajectory_id, each.of): each for each in records["observations"] if isinstance(each, Observation)}
    for attempt in attempts:
        for simulated in (observe(trajectory(attempt, "r", 0), ""), observe(reward(attempt, "r", 0), "")):
            found = seen[trajectory_id(attempt, "r"), simulated.of]
            without = NOT_TOLD | (OF_DISCARDED if attempt.dropped else set())
            left = {name: value for name, value in simulated.values.items() if name not in without}
            assert {name: value for name, value in found.values.items() if name not in NOT_TOLD} == pytest.approx(left)
            discarded = attempt.dropped and simulated.of is Lane.REWARD
            assert found.labels == ([DISCARDED] if discarded else simulated.labels)
            assert (found.version, found.tenant, found.task_source) == (55, attempt.tenant, attempt.source)
            assert (found.agent, found.run) == (agent_of(hack), "r")


def test_nothing_of_them_is_trained_and_each_has_a_fate() -> None:
    records = drive(TOPOLOGY, step_facts(some(HACKS["broken-calls"]), "r", "planted", 1_700_000_000_000))
    known = [each for each in records["trajectories"] if isinstance(each, Trajectory)]
    assert all(Defect.NO_CONSENT in each.defects for each in known)
    assert {defect for each in known for defect in each.defects if each.segments} == {Defect.NO_CONSENT}
    fates = [each for each in records["rejected"] if isinstance(each, Rejection)]
    assert sorted(each.trajectory_id for each in fates) == sorted(each.trajectory_id for each in known)
    assert {each.reason for each in fates} <= {
        Reason.NO_CONSENT, Reason.EVALUATION, Reason.FROZEN_ROLE, Reason.ALL_EQUAL, Reason.ALL_FAIL, Reason.ALL_SUCCESS,
    }  # fmt: skip
    assert (records["training"], records["dead-letters"]) == ([], [])


def test_a_step_that_is_sent_twice_changes_nothing() -> None:
    facts = list(step_facts(some(HACKS["padding"]), "r", "planted", 1_700_000_000_000))
    assert len({fact.envelope.id for fact in facts}) == len(facts)
    again = list(step_facts(some(HACKS["padding"]), "r", "planted", 1_700_000_000_000))
    assert facts == again


@pytest.mark.parametrize("name", [name for name in HACKS if name != UNANNEALED])
def test_a_hacked_attempt_says_what_it_does_and_an_honest_one_does_not(name: str) -> None:
    attempts = hacked(Random(2), HACKS[name], honest_step(Random(1), 60)[:6], 1.0, begun=50)
    attempts.append(honest(Random(3), "honest", 60))
    records = drive(TOPOLOGY, step_facts(attempts, "r", "planted", 1_700_000_000_000))
    by_id = {each.trajectory_id: each for each in records["trajectories"] if isinstance(each, Trajectory)}
    for attempt in attempts:
        turns = by_id[trajectory_id(attempt, "r")].turns
        says = [
            at for at, turn in enumerate(turns) if any(HACKS[name].says in m["content"] for m in turn.messages or [])
        ]
        assert says == ([] if attempt.hack == "" else [guilty_turn(attempt)])
    assert Counter(each.hack for each in attempts) == {name: 6, "": 1}


def test_an_unannealed_weight_alarms_where_its_schedule_is_known() -> None:
    (own,) = (term for term in PLANTED_UNANNEALED.terms if term.name == "parallel")
    assert [weight_at(own.weight, version) for version in (0, STOPS_AT)] == pytest.approx(
        [LAMBDA.at(0), LAMBDA.at(STOPS_AT)]
    )
    assert weight_at(own.weight, 300) == weight_at(own.weight, STOPS_AT) > LAMBDA.at(300)
    rewards = Rewards({}, PLANTED_UNANNEALED)
    known = WatchSettings(anneals={PLANTED_UNANNEALED.label: {"parallel": LAMBDA.until}})
    seen = []
    for version in range(40, 82):
        for attempt in honest_step(Random(version), version)[:32]:
            attempt.weight = weight_at(own.weight, version)
            made = reward(attempt, "r", 0)
            assert isinstance(made, Reward)
            seen.append(observe_reward(made.model_copy(update={"spec": PLANTED_UNANNEALED.label})))
    first, *later = watch(seen, WatchRules(anneals_of(known, rewards)))[1]
    assert {each.kind for each in (first, *later)} == {"monitor_anneal"}
    assert first.episode is not None
    assert first.episode.state is EpisodeState.OPENED
    assert watch(seen, WatchRules(anneals_of(WatchSettings(), rewards)))[1] == []
    assert PLANTED.maximum == PLANTED_UNANNEALED.maximum
