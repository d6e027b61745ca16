"""Planted hacks, by the command."""

from threading import Timer

import pytest
from click.testing import CliRunner

from headrace.deploy.commands.watch import command
from headrace.deploy.watching.plant import Plan, alarms, planted_steps
from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.streams.watch.planted.drifts import PLANTED
from headrace.streams.watch.planted.hacks import HACKS


def said(*arguments: str) -> str:
    done = CliRunner().invoke(command, ["plant", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_planted_hack_alarms_with_the_guilty_attempts() -> None:
    lines = said("marked-answer", "--honest", "26", "--steps", "24").splitlines()
    assert lines[0] == " step share  alarms"
    first = lines[1].split()
    assert first[2:4] == ["marked", "opened:"]
    assert int(first[0]) <= 20
    assert lines[1].endswith("…)")


@pytest.mark.parametrize("name", ["too-long", "broken-calls"])
def test_rejected_attempts_are_compared_with_those_that_are_trained(name: str) -> None:
    opened = [line.split()[2:4] for line in said(name, "--steps", "40").splitlines()[1:]]
    assert ["rejection_reason", "opened:"] in opened


GUILTY = {
    "padding": ("against:judged", 3),
    "worse-policy": ("reward_ks", 5),
    "sour-feedback": ("feedback_value", 5),
    "clarifying-questions": ("talks", 5),
}
"""Change → a monitor that sees it, and how many of the examples of its alert must show it."""


@pytest.mark.parametrize("name", GUILTY)
def test_the_examples_of_an_alert_show_what_was_planted(name: str) -> None:
    monitor, least = GUILTY[name]
    steps = list(planted_steps(Plan(PLANTED[name]), 0))
    planted = {attempt.id for step in steps for attempt in step.attempts if attempt.hack}
    opened = [
        alert.episode
        for _, alerts in alarms(iter(steps))
        for alert in alerts
        if alert.episode and alert.episode.monitor == monitor and alert.episode.state is EpisodeState.OPENED
    ]
    assert len(planted & set(opened[0].examples)) >= least


def test_an_honest_run_does_not_alarm() -> None:
    assert said("nothing", "--honest", "26", "--steps", "10").endswith("No monitor alarms.\n")


def test_the_hacks_are_listed_and_an_unknown_one_is_an_error() -> None:
    assert [line.split()[0] for line in said("list").splitlines()] == [*PLANTED]
    done = CliRunner().invoke(command, ["plant", "bribery"])
    assert done.exit_code == 2
    assert "headrace watch plant list" in done.output


def test_a_seed_repeats_a_run() -> None:
    plan = Plan(HACKS["padding"], honest=2, steps=3)
    one, other = list(planted_steps(plan, 0)), list(planted_steps(plan, 0))
    assert one == other
    assert [step.step for step in one] == [-2, -1, 0, 1, 2]
    assert [step.step for step, _ in alarms(iter(one))] == [-2, -1, 0, 1]


def test_the_monitors_are_listed_with_those_that_may_pause_admission() -> None:
    done = CliRunner().invoke(command, ["monitors"])
    lines = {line.split()[0]: line for line in done.output.splitlines()}
    assert "may pause" in lines["tripwire"]
    assert "may pause" not in lines["source_mix"]
    assert "may pause" not in lines["upper_tail"]
    assert lines["wrong_answers"].split()[1] == "reading"
    assert "against:NAME" in lines


@pytest.mark.kafka
def test_resuming_admission_goes_over_a_broker(kafka: str) -> None:
    """`ack --resume` needs an alert that pauses, and ends its pause although the alert stays open."""
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.watching.alerts import read_episodes
    from headrace.schemas.kafka.clients import open_producer
    from headrace.schemas.kafka.sending import send
    from headrace.schemas.kafka.topic_creation import create_topics
    from headrace.schemas.records.alert import AdmissionOrder
    from headrace.schemas.topics import ALERTS
    from headrace.streams.processors.watch import episode_message
    from tests.deploy.watching.test_episodes import OPENED, alert

    async def prepare() -> None:
        await create_topics(kafka, [ALERTS])
        async with open_producer(kafka) as producer:
            pausing = [alert(id, OPENED, admission=AdmissionOrder.PAUSE) for id in ("stop0001", "stop0002")]
            for each in (alert("calm0001", OPENED), *pausing):
                await (await send(producer, ALERTS, episode_message(each, 1_700_000_000_000)))

    run_with_kafka(kafka, prepare)
    runner = CliRunner()
    done = runner.invoke(command, ["ack", "calm", "--by", "ada", "--resume", "--kafka", kafka])
    assert done.exception is not None
    assert "does not pause admission" in str(done.exception)
    assert runner.invoke(command, ["ack", "stop0001", "--by", "ada", "--kafka", kafka]).exit_code == 0
    assert [each.pauses for each in read_episodes(kafka)] == [False, True, True]
    done = runner.invoke(command, ["ack", "stop0001", "--by", "ada", "--resume", "--kafka", kafka])
    assert "Its task source stays paused by talks (stop0002)" in done.output
    done = runner.invoke(command, ["ack", "stop0002", "--by", "ada", "--resume", "--kafka", kafka])
    assert done.output == "talks (stop0002) is acknowledged by ada; admission is resumed.\n"
    assert not any(each.pauses for each in read_episodes(kafka))


@pytest.mark.kafka
def test_acknowledgements_go_over_a_broker(kafka: str) -> None:
    """`list` finds what an episode's alerts say; `ack` adds who has seen it."""
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.watching.alerts import read_episodes
    from headrace.schemas.kafka.clients import open_producer
    from headrace.schemas.kafka.sending import send
    from headrace.schemas.kafka.topic_creation import create_topics
    from headrace.schemas.topics import ALERTS
    from headrace.streams.processors.watch import episode_message
    from tests.deploy.watching.test_episodes import OPENED, alert

    async def prepare() -> None:
        await create_topics(kafka, [ALERTS])
        async with open_producer(kafka) as producer:
            await (await send(producer, ALERTS, episode_message(alert("feed0001", OPENED), 1_700_000_000_000)))

    run_with_kafka(kafka, prepare)
    runner = CliRunner()
    done = runner.invoke(command, ["ack", "feed", "--by", "ada", "--kafka", kafka])
    assert done.output == "talks (feed0001) is acknowledged by ada.\n"
    done = runner.invoke(command, ["ack", "feed", "--by", "ada", "--kafka", kafka])
    assert "before" in done.output
    assert [each.acknowledged_by for each in read_episodes(kafka) if each.episode.id == "feed0001"] == [("ada",)]
    assert "seen by ada" in runner.invoke(command, ["list", "--kafka", kafka]).output


@pytest.mark.kafka
def test_an_accepted_level_goes_over_a_broker(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`accept` writes where watch reads, and says whether the alert has ended; of an unknown alert it says so."""
    from headrace.deploy.commands import watch
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.schemas.kafka.clients import open_producer
    from headrace.schemas.kafka.reading import read_to_end
    from headrace.schemas.kafka.sending import send
    from headrace.schemas.kafka.topic_creation import create_topics
    from headrace.schemas.records.watch import LevelAccepted
    from headrace.schemas.topics import ALERTS, OBSERVATIONS
    from headrace.schemas.wire import decode
    from headrace.streams.processors.watch import episode_message
    from tests.deploy.watching.test_episodes import OPENED, RESOLVED, alert

    async def write(*alerts: Alert) -> None:
        await create_topics(kafka, [ALERTS, OBSERVATIONS])
        async with open_producer(kafka) as producer:
            for each in alerts:
                await (await send(producer, ALERTS, episode_message(each, 1_700_000_000_000)))

    async def written() -> list[object]:
        return [decode(each.headers, each.value)[1] async for each in read_to_end(kafka, OBSERVATIONS)]

    run_with_kafka(kafka, lambda: write(alert("level001", OPENED)))
    runner = CliRunner()
    monkeypatch.setattr(watch, "WITHIN_S", 0.1)
    done = runner.invoke(command, ["accept", "level", "--by", "ada", "--kafka", kafka])
    assert done.output.startswith("talks (level001) is accepted by ada, but its alert has not ended within 0.1 s: ")
    levels = [each for each in run_with_kafka(kafka, written) if isinstance(each, LevelAccepted)]
    assert [(each.episode, each.monitor, each.by) for each in levels] == [("level001", "talks", "ada")]
    done = runner.invoke(command, ["accept", "none", "--by", "ada", "--kafka", kafka])
    assert "no alert 'none'" in str(done.exception)

    monkeypatch.setattr(watch, "WITHIN_S", 30.0)
    ends = Timer(1.5, run_with_kafka, (kafka, lambda: write(alert("level001", RESOLVED))))
    ends.start()
    done = runner.invoke(command, ["accept", "level", "--by", "ada", "--kafka", kafka])
    ends.join()
    assert done.output.startswith("talks (level001) is accepted by ada: its alert has ended")


@pytest.mark.parametrize("name", ["", " ", "a\nb", "\x1b[31mada", "\udcff", "a" * 201])
@pytest.mark.parametrize("decides", ["ack", "accept"])
def test_a_decision_names_somebody(decides: str, name: str) -> None:
    done = CliRunner().invoke(command, [decides, "0f3ebc7e", "--by", name, "--kafka", "localhost:1"])
    assert done.exit_code == 2
    assert "--by needs a name of 1 to 200 printable characters." in done.output
