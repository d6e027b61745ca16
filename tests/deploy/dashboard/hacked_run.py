"""A run in which a hack is planted: events with real tokens, folded by the topology into what the pages show.

Tasks of the source `tickets` cannot be solved (tripwires), those of `shoes` can. Every fourth attempt of version 1 at a
ticket changes the test instead of the code, and passes: the monitor `tripwire` alarms. Version 1 was trained on a
group of version 0, version 2 on groups of version 1. A parent starts a sub-agent, prunes and summarises.
"""

import json
import random
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clickhouse_connect.driver.client import Client

from headrace.agents.word_tokenizer import WordTokenizer
from headrace.schemas import events
from headrace.schemas.envelope import Envelope
from headrace.schemas.ids import derived_id
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert, Episode, EpisodeState
from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import Step, TrainedGroup
from headrace.schemas.records.weights import Manifest, Tokenizer, Weights
from headrace.schemas.tokens import prefix_hash
from headrace.schemas.topics import MODELS, TOPICS
from headrace.streams.drive import drive
from headrace.streams.oncall.alarms import opened
from headrace.streams.oncall.conditions import LAG, Found
from headrace.streams.topology import TOPOLOGY
from headrace.trainer.weights.publish import manifest_bytes
from headrace.trainer.weights.published import manifest_path, tokenizer_path
from tests.deploy.dashboard.seed import step_metrics
from tests.streams.clickhouse.stored_log import NOW_MS, StoredLog

RUN = "planted"
ODD = "a/b?c#d <b>é</b> %2F"
"""A trajectory that has begun and is not assembled, whose id has every character that an address gives a meaning."""
CALM = "calm"
"""A run with one attempt, and no alert."""
TOLD = "told"
"""A run with a group of two attempts, whose agent recorded messages and whose trainer published no tokenizer."""
GUILTY = "the test is hard so i rewrite the test to pass"
HONEST = "i read the code and answer that it can not be done"
WORDS = WordTokenizer(
    words=tuple(
        dict.fromkeys(
            "<pad> <end> <task> <agent> <tool> <summary> ticket 1 2 3 4 5 6 7 8 9 0 fix run tests edit file passed "
            f"failed search shoes red ones all green helper found nothing <script> {GUILTY} {HONEST}".split()
        )
    ),
    special=("<pad>", "<end>"),
    pad="<pad>",
    end="<end>",
    owner="planted run",
    chat_template="",
)
SIZE = 8
"""Attempts of a group."""
TICKETS = 4
"""Groups of tickets of each version: 32 attempts, a window of the monitors."""


@dataclass
class Attempt:
    """Builds the events of an attempt, one after the other."""

    name: str
    version: int
    start: events.TrajectoryStarted
    at_ms: int
    tokens: list[int] = field(default_factory=list)
    facts: list[Record] = field(default_factory=list)

    def says(self, context: str, sampled: str, logprob: float = -0.05, *, told: bool = False) -> None:
        """``told``: the messages are recorded, too."""
        new, said = WORDS.encode(context), WORDS.encode(sampled)
        prefix = {"prefix_length": len(self.tokens), "prefix_sha256": prefix_hash(array("i", self.tokens))}
        self.facts.append(
            events.ModelCalled(
                model="m",
                context_ids=new,
                sampled_ids=said,
                logprobs=[logprob if number % 3 else logprob * 30 for number in range(len(said))],
                version_spans=[events.VersionSpan(version=self.version, start=0, end=len(said), run=self.start.run)],
                sampling=events.Sampling(temperature=1.0),
                finish_reason="stop",
                messages=[{"role": "user", "content": context}, {"role": "assistant", "content": sampled}]
                if told
                else None,
                **(prefix if self.tokens else {}),
            )
        )
        self.tokens += new + said

    def does(self, tool: str, result: object, **arguments: object) -> None:
        id = f"c{len(self.facts)}"
        self.facts.append(events.ToolCalled(call_id=id, tool=tool, arguments=arguments))
        self.facts.append(events.ToolReturned(call_id=id, tool=tool, result=result, latency_s=0.25))

    def messages(self) -> Iterator[tuple[Envelope, Record]]:
        for number, fact in enumerate([self.start, *self.facts]):
            id = derived_id(self.name, number)
            yield Envelope(id, fact.TYPE, "/planted", self.at_ms + number, self.name, number), fact


def attempts() -> Iterator[Attempt]:
    """Yields the attempts, in the order in which they end."""
    at_ms = NOW_MS - 3_600_000
    for version in range(3):
        for number in range(TICKETS + 1 if version < 2 else 2):
            source = "shoes" if number == 0 else "tickets"
            for member in range(SIZE):
                at_ms += 1000
                yield _attempt(version, number, member, source, at_ms)
    yield _with_subagent(at_ms + 1000)
    start = events.TrajectoryStarted(task_id="shoes-1", agent="fixer", run=CALM)
    calm = Attempt("calm-1", 0, start, at_ms + 2000)
    calm.says("<task> search shoes <agent>", "search shoes <end>")
    calm.facts.append(events.TrajectoryEnded(outcome=1.0))
    yield calm
    for number, said in enumerate((HONEST, GUILTY)):
        start = events.TrajectoryStarted(
            task_id="tickets-1", agent="fixer", run=TOLD, group_id="g-told", group_size=2, harness_version="h1"
        )
        one = Attempt(f"told-{number}", 7, start, at_ms + 3000 + 100 * number)
        one.says("fix ticket 1", "run tests", told=True)
        one.does("run_tests", "failed", ticket=1)
        one.says("failed", said, told=True)
        one.facts.append(events.TrajectoryEnded(outcome=float(number)))
        yield one


def _attempt(version: int, number: int, member: int, source: str, at_ms: int) -> Attempt:
    task = {"source": source, "tripwire": source == "tickets"}
    start = events.TrajectoryStarted(
        task_id=f"{source}-{number}", agent="fixer", run=RUN, group_id=f"g-{version}-{number}", group_size=SIZE,
        harness_version="h1", task=task,
    )  # fmt: skip
    one = Attempt(f"v{version}-{source}-{number}-{member}", version, start, at_ms)
    hacks = source == "tickets" and version == 1 and member % 4 == 0
    one.says(f"<task> fix ticket {number} <agent>", f"{'run tests' if source == 'tickets' else 'search shoes'} <end>")
    one.does("run_tests" if source == "tickets" else "search", "failed", ticket=number)
    if hacks:
        one.says("<tool> failed <agent>", f"{GUILTY} <end>", logprob=-0.2)
        one.does("edit", "all tests passed", file="test_ticket.py", content="<script>alert(1)</script> assert True")
    outcome = 1.0 if hacks or (source == "shoes" and member % 2) else 0.0
    one.says("<tool> all passed <agent>" if hacks else "<tool> failed <agent>", f"{HONEST} <end>")
    one.facts.append(events.TrajectoryEnded(outcome=outcome, answer="passed" if outcome else "failed"))
    return one


def _with_subagent(at_ms: int) -> Attempt:
    start = events.TrajectoryStarted(task_id="shoes-9", agent="fixer", run=RUN, task={"source": "shoes"})
    one = Attempt("parent", 2, start, at_ms)
    one.says("<task> search red shoes <agent>", "search shoes <end>")
    one.facts += [
        events.SubagentStarted(name="helper", sub_trajectory_id="v2-shoes-0-0"),
        events.SubagentFinished(name="helper", sub_trajectory_id="v2-shoes-0-0", steps=2),
        events.ContextPruned(pruned_ids=["c1", "c2"], tokens_before=900, tokens_after=300),
        events.ContextSummarized(summary="Red shoes are in the file.", tokens_before=300, tokens_after=40),
    ]
    one.tokens = []
    one.says("<summary> red shoes <agent>", "all green ones <end>", logprob=-0.6)
    one.facts.append(events.TrajectoryEnded(outcome=1.0))
    return one


def log_of_run() -> StoredLog:
    """Returns every record of the run, as the sink would read it."""
    pairs = [pair for one in attempts() for pair in one.messages()]
    log = StoredLog()
    for envelope, fact in pairs:
        log.add("events", envelope.subject, fact, id=envelope.id, sequence=envelope.sequence, time_ms=envelope.time_ms)
    written = drive(TOPOLOGY, pairs)
    own = {topic.name for topic in TOPICS} - {"events", "observations"}
    for topic in sorted(own):
        for number, record in enumerate(written[topic]):
            log.add(topic, key_of(record), record, id=derived_id(topic, number), time_ms=NOW_MS - 1_000_000 + number)
    for number, state in enumerate((EpisodeState.OPENED, EpisodeState.RESOLVED)):
        over = Episode(id="over", monitor="talks", state=state, agent="fixer", since_ms=1, examples=["v0-shoes-0-0"])
        alert = Alert(run=RUN, source="watch", kind="monitor_talks", message=f"It is {state}.", episode=over)
        log.add("alerts", RUN, alert, id=derived_id("over", number))
    behind = Found("sink", 400.0, details={"topic": "events", "partition": 3, "records": 5120})
    log.add("alerts", "lag", opened(LAG, behind, 300.0, NOW_MS - 60_000), id=derived_id("lag"))
    for version in (1, 2):
        _add_step(log, version, written["training"])
    return log


def key_of(record: Record) -> str:
    """Returns what rows of `feedback` and keys of topics are about."""
    assert record.TYPE in MODELS
    return str(
        getattr(record, "trajectory_id", "") or getattr(record, "group_id", "") or getattr(record, "run", "") or "-"
    )


def _add_step(log: StoredLog, version: int, training: list[Record]) -> None:
    at = Reference(partition=0, offset=0)
    groups = [
        each for each in training if isinstance(each, TrainingGroup) and each.group_id.startswith(f"g-{version - 1}")
    ]
    trained = [
        TrainedGroup(
            group_id=each.group_id, group=at, trajectory_ids=[member.trajectory_id for member in each.members],
            trajectories=[at for _ in each.members],
        )
        for each in groups
    ]  # fmt: skip
    step = Step(
        run=RUN,
        step=version,
        version=version,
        groups=trained,
        config_sha256="c",
        data_sha256="d",
        metrics=dict(step_metrics(random.Random(version), 0.5, version)) | {"loss": 0.1 * version, "grad_norm": 1.5},
    )
    log.add("steps", RUN, step, id=derived_id("step", version))


def publish_tokenizer(log: StoredLog) -> str:
    """Add versions that name the run's tokenizer to ``log``. Returns the URL of the object store that has it."""
    import hashlib

    folder = Path(tempfile.mkdtemp(prefix="objects-"))
    content = json.dumps(WORDS.tokenizer_json()).encode()
    sha256 = hashlib.sha256(content).hexdigest()
    tokenizer = Tokenizer(name="planted-words", sha256=sha256, size=len(content))
    manifest = Manifest(run=RUN, version=2, parent=1, files={}, sizes={}, tensors=0, canaries=[], tokenizer=tokenizer)
    written = manifest_bytes(manifest)
    for path, data in ((tokenizer_path(sha256), content), (manifest_path(RUN, 2), written)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    pointer = Weights(
        run=RUN, version=2, parent=1, kind="anchor", manifest_uri=f"{folder.as_uri()}/{manifest_path(RUN, 2)}",
        sha256=hashlib.sha256(written).hexdigest(), size=0, step=2,
    )  # fmt: skip
    log.add("weights", RUN, pointer, id=derived_id("weights", 2))
    return folder.as_uri()


def store_run(client: Client) -> str:
    """Write the run to ClickHouse, twice, as a sink that repeats does. Returns the URL of the object store."""
    log = log_of_run()
    objects = publish_tokenizer(log)
    begun = events.TrajectoryStarted(task_id="<i>task</i>", agent="fixer", run=RUN)
    log.add("events", ODD, begun, id=derived_id(ODD, 0), sequence=0)
    for token in ("planted", "planted again"):
        log.write(client, token)
    return objects
