"""Planted runs folded without a broker: the events that ``plant --live`` sends, through the operators of the topology.

with_hack("search-once", honest=26, steps=24)      every record of the run, as the sink would read it
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.deploy.watching.plant import Plan, PlantedStep, planted_steps
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.schemas.topics import EVENTS, FEEDBACK
from headrace.schemas.wire import Message, decode, encode
from headrace.streams.raw import StoredRecord
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Start
from headrace.streams.topology import TOPOLOGY
from headrace.streams.watch.planted.attempts import Attempt
from headrace.streams.watch.planted.drifts import PLANTED
from headrace.streams.watch.planted.events import Fact, agent_of, step_facts, trajectory_id


class Operators:
    """The operators of all processors, on one partition of each topic."""

    def __init__(self, rules: Rules | None = None, partition: int = 0) -> None:
        self._partition = partition
        self._nodes = [(processor, processor.restore(rules or Rules(), Start())[0]) for processor in TOPOLOGY]
        self._ends: Counter[str] = Counter()

    def take(self, facts: Iterable[Fact], time_ms: int) -> list[StoredRecord]:
        """Returns ``facts`` as records, and all records that follow from them, in order."""
        found = [
            self._stored(
                (FEEDBACK if fact.is_feedback else EVENTS).name,
                encode(fact.payload, key=fact.envelope.subject, envelope=fact.envelope),
                time_ms,
            )
            for fact in facts
        ]
        for processor, operator in self._nodes:  # in the order of the flow, so one pass is enough
            topics = {topic.name for topic in processor.reads}
            for record in [each for each in found if each.topic in topics]:
                operator.process(record)
            outgoing = operator.flush().outgoing
            found += [self._stored(each.topic.name, each.message, time_ms) for each in outgoing]
        return found

    def _stored(self, topic: str, message: Message, time_ms: int) -> StoredRecord:
        offset = self._ends[topic]
        self._ends[topic] += 1
        return StoredRecord(topic, self._partition, offset, time_ms, message.key, message.value, message.headers)


@dataclass
class FoldedPlant:
    """A planted run with what the processors made of it."""

    run: str
    """Its name."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """Its attempts by trajectory."""
    records: list[StoredRecord] = field(default_factory=list)
    """All its records, in order."""
    opened: list[tuple[PlantedStep, Alert]] = field(default_factory=list)
    """Alerts that opened, with the step that was folded last."""

    def payloads(self, topic: str) -> list[Record]:
        """Returns the payloads in ``topic``, in order."""
        return [decode(each.headers, each.value)[1] for each in self.records if each.topic == topic]

    def first_alarm(self) -> tuple[int, Alert]:
        """Returns the first alert, and the step that it is about: 0 is the first hacked one."""
        step, alert = self.opened[0]
        return step.step - 1, alert


def with_hack(
    name: str, *, honest: int, steps: int, end_ms: int, rules: Rules | None = None, partition: int = 0
) -> FoldedPlant:
    """Returns the run of `headrace watch plant NAME`, whose last step is at ``end_ms`` (Unix milliseconds). Its records
    are in ``partition``: each run needs its own if several are stored."""
    plan = Plan(PLANTED[name], honest, 60, steps)
    found, operators = FoldedPlant(plan.run), Operators(rules, partition)
    for number, step in enumerate(planted_steps(plan, 0)):
        time_ms = end_ms - 1000 * (honest + steps - number)
        found.attempts |= {trajectory_id(each, plan.run): each for each in step.attempts}
        made = operators.take(step_facts(step.attempts, plan.run, agent_of(plan.hack), time_ms), time_ms)
        found.records += made
        for record in made:
            if record.topic == "alerts":
                alert = decode(record.headers, record.value)[1]
                if isinstance(alert, Alert) and alert.episode and alert.episode.state is EpisodeState.OPENED:
                    found.opened.append((step, alert))
    return found
