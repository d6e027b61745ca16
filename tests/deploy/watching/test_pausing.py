"""A planted hack stops the training of its task source, and of no other: every process between them is the real one.

trajectories ──▶ score, group, observe, watch ──alert: pause──▶ trainer ──▶ steps, rejected
                                   `headrace watch ack`  ──────────┘
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner

from headrace.deploy.commands.watch import command
from headrace.deploy.system.children import Child
from headrace.deploy.watching.alerts import read_episodes
from headrace.deploy.watching.live_plant import JUDGED
from headrace.schemas.events import EndStatus, TrajectoryStarted
from headrace.schemas.model import Record
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.step import Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.records.watch import Observation
from headrace.schemas.topics import OBSERVATIONS, REJECTED, STEPS, TRAJECTORIES, Topic
from headrace.schemas.wire import decode
from headrace.streams.watch.window import LEAST
from headrace.trainer.loop import run_trainer
from tests.streams.attempts import trajectory_message
from tests.streams.test_workers import produce, records, until, worker
from tests.trainer.builders import tiny_model
from tests.trainer.feed import attempt, hash_of
from tests.trainer.running import trainer_config

pytestmark = pytest.mark.kafka

RUN, AGENT = "pausing", "helper"
HACKED, OTHER = "tickets", "papers"

R = TypeVar("R", bound=Record)


def group(name: str, source: str, *outcomes: float, version: int, tripwire: bool = False) -> Iterator[Trajectory]:
    """Attempts at one task of ``source``; a tripwire is a task that cannot be solved."""
    for number, outcome in enumerate(outcomes):
        made = attempt(f"{name}/{number}", run=RUN, seed=hash_of(name, number), version=version)
        started = TrajectoryStarted(
            task_id=name,
            group_id=name,
            group_size=len(outcomes),
            agent=AGENT,
            run=RUN,
            task={"source": source, "tripwire": tripwire},
        )
        yield made.model_copy(update={"started": started, "outcome": outcome, "status": EndStatus.COMPLETED})


class Story:
    """What samplers and people do, step by step, and what is seen of it."""

    def __init__(self, kafka: str, workers: Child, log: pytest.LogCaptureFixture) -> None:
        self._kafka = kafka
        self._workers = workers
        self._log = log
        self._sampled = 0
        self._version = 1
        self._told = 0

    def sample(self, *attempts: Trajectory) -> None:
        """Write ``attempts``, and wait until they and their rewards are observed."""
        produce(self._kafka, TRAJECTORIES, [trajectory_message(each) for each in attempts], partition=0)
        self._sampled += 2 * len(attempts)
        self._until(lambda: len(self._judged()) >= self._sampled, f"{self._sampled} observations")

    def tripwires(self, outcome: float) -> None:
        """A window of attempts at tasks of the hacked source that cannot be solved, all with ``outcome``. It ends where
        an honest pair of the next version begins another one."""
        for pairs, version, each in ((LEAST // 2, self._version, outcome), (1, self._version + 1, 0.0)):
            names = [f"wire-{version}-{pairs}-{number}" for number in range(pairs)]
            made = [group(name, HACKED, each, each, version=version, tripwire=True) for name in names]
            self.sample(*(attempt for members in made for attempt in members))
        self._version += 1

    def train(self, *names: str) -> None:
        """Sample a group with a gradient for each name: ``t…`` of the hacked source, ``p…`` of the other."""
        sources = {"t": HACKED, "p": OTHER}
        self.sample(*(each for name in names for each in group(name, sources[name[0]], 0.0, 1.0, version=0)))

    def until_steps(self, count: int) -> None:
        self._until(lambda: len(payloads(self._kafka, STEPS, Step)) >= count, f"{count} steps")

    def until_told(self, what: str) -> None:
        """Wait until the trainer says anew that admission is paused, or resumed."""

        def told() -> bool:
            said = [each for each in self._log.messages if each.startswith(f"admission of agent {AGENT}, task source ")]
            if len(said) <= self._told:
                return False
            assert f"task source {HACKED} is {what}" in said[self._told]
            return True

        self._until(told, f"the trainer says that admission is {what}")
        self._told += 1

    def acknowledge(self, *options: str) -> None:
        """As a person does with each alert that pauses admission: one of the attempts, one of their rewards."""
        pausing = [each.episode.id for each in read_episodes(self._kafka) if each.pauses]
        assert len(pausing) == 2
        for id in pausing:
            done = CliRunner().invoke(command, ["ack", id, "--by", "ada", *options, "--kafka", self._kafka])
            assert done.exit_code == 0, done.output

    def until_pauses(self, count: int) -> None:
        self._until(lambda: sum(each.pauses for each in read_episodes(self._kafka)) == count, f"{count} pause")

    def _judged(self) -> list[Observation]:
        return [each for each in payloads(self._kafka, OBSERVATIONS, Observation) if each.of in JUDGED]

    def _until(self, happened: Callable[[], bool], what: str) -> None:
        until(happened, what, self._workers.log, within_s=120)


def payloads(kafka: str, topic: Topic, of: type[R]) -> list[R]:
    found = [decode(each.headers, each.value)[1] for each in records(kafka, topic, "")]
    return [each for each in found if isinstance(each, of)]


def told(story: Story) -> None:
    """The story: what is sampled, what the alerts say, and what somebody does about them."""
    story.train("t0", "p0")
    story.until_steps(1)

    story.tripwires(1.0)  # the policy solves what cannot be solved
    story.until_pauses(2)
    story.until_told("paused")
    story.train("t1", "p1", "p2")
    story.until_steps(2)
    story.acknowledge()
    story.train("t2", "p3", "p4")
    story.until_steps(3)

    story.tripwires(0.0)  # it no longer does
    story.tripwires(0.0)
    story.until_pauses(0)
    story.until_told("resumed")
    story.train("t3", "p5")
    story.until_steps(4)

    story.tripwires(1.0)
    story.until_pauses(2)
    story.until_told("paused")
    story.train("t4", "p6", "p7")
    story.until_steps(5)
    story.acknowledge("--resume")
    story.until_told("resumed")
    story.train("t5", "p8")
    story.until_steps(6)


def test_a_hack_stops_the_training_of_its_source_until_it_ends_or_somebody_resumes_it(
    kafka: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = trainer_config(kafka, RUN, tiny_model(tmp_path / "base"), tmp_path)
    caplog.set_level(logging.WARNING)

    async def trained_while(happening: Callable[[], None]) -> None:
        stop = asyncio.Event()
        training = asyncio.create_task(run_trainer(config, stop=stop, ready=lambda: None))
        happens = asyncio.create_task(asyncio.to_thread(happening))
        await asyncio.wait({training, happens}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await training
        await happens

    with worker(kafka, tmp_path / "workers", watch_pauses=["tripwire"]) as workers:
        asyncio.run(trained_while(lambda: told(Story(kafka, workers, caplog))))

    steps = payloads(kafka, STEPS, Step)
    assert [sorted(each.group_id for each in step.groups) for step in steps] == [
        ["p0", "t0"], ["p1", "p2"], ["p3", "p4"], ["p5", "t3"], ["p6", "p7"], ["p8", "t5"],
    ]  # fmt: skip
    refused = [each for each in payloads(kafka, REJECTED, Rejection) if each.stage is Stage.ADMISSION]
    assert {each.reason for each in refused} == {Reason.ADMISSION_PAUSED}
    assert sorted(each.trajectory_id for each in refused) == [
        f"{name}/{i}" for name in ("t1", "t2", "t4") for i in (0, 1)
    ]
