"""Verified questions over a corpus of real text, as lines of JSON.

    {"task_id": "text-heldout-3f9a…", "question": "What is …?", "answer": "5", "hops": […], "targets": ["d0963-1", …],
     "answer_chunks": ["d2207-3"], "distractors": ["d0112"], "provenance": {"generator": "text-1", …}}

The model sees the question only. A hash of the question decides its split, as for the questions of the small world.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.agents.search.tasks import Split, split_of
from headrace.agents.search.text.candidates import Candidate, Hop
from headrace.agents.search.text.verify import Check, Corpus, normalised, verify

GENERATOR = "text-1"
"""Version of the generator and its checks, in the provenance of every task."""


class NoTasks(ValueError):
    """A file is not one of tasks; the message names the line."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a task comes from."""

    generator: str
    """Version of the generator and its checks."""
    explorer: str
    """What proposed the question: ``syntax-tree``, or ``model:NAME``."""
    documents: str
    """SHA-256 of the corpus's ``documents.jsonl``."""
    checks: tuple[str, ...]
    """Checks that it passed."""


@dataclass(frozen=True, slots=True)
class TextTask:
    """A question, its evidence, and where it comes from."""

    task_id: str
    question: str
    answer: str
    hops: tuple[Hop, ...]
    targets: tuple[str, ...]
    """Ids of the chunks that hold the evidence."""
    answer_chunks: tuple[str, ...]
    """Ids of the chunks with the last hop's evidence."""
    distractors: tuple[str, ...]
    """Ids of documents that look like evidence."""
    provenance: Provenance

    @property
    def split(self) -> Split:
        """Use of the task, by the hash of its question."""
        return split_of(self.question.split())

    @property
    def facts(self) -> dict[str, Any]:
        """Data in ``trajectory.started`` for the reward and for analysis."""
        return {
            "targets": list(self.targets),
            "answer_chunks": list(self.answer_chunks),
            "hops": len(self.hops),
            "split": str(self.split),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON values."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return content

    @classmethod
    def from_json(cls, content: Any) -> "TextTask":
        """Read :meth:`to_json`. Raises :class:`NoTasks`."""
        try:
            hops = tuple(
                Hop(
                    str(hop["subject"]),
                    tuple(map(str, hop["cues"])),
                    str(hop["value"]),
                    str(hop["doc_id"]),
                    tuple(map(str, hop["quotes"])),
                )
                for hop in content["hops"]
            )
            names = ("targets", "answer_chunks", "distractors")
            targets, answer_chunks, distractors = (tuple(map(str, content[name])) for name in names)
            origin = content["provenance"]
            provenance = Provenance(
                str(origin["generator"]),
                str(origin["explorer"]),
                str(origin["documents"]),
                tuple(map(str, origin["checks"])),
            )
            task_id, question, answer = (str(content[name]) for name in ("task_id", "question", "answer"))
        except (KeyError, TypeError) as error:
            raise NoTasks(f"not a task: {error!r}") from error
        return cls(task_id, question, answer, hops, targets, answer_chunks, distractors, provenance)


def task_of(candidate: Candidate, corpus: Corpus, documents: str) -> TextTask:
    """Return ``candidate`` as a task. ``documents``: SHA-256 of the corpus.

    Raises ``ValueError`` if it fails a check.
    """
    if failures := verify(candidate, corpus):
        raise ValueError(f"not verified: {failures[0].detail}")
    chunks = [
        [chunk.chunk_id for quote in hop.quotes if (chunk := corpus.chunk_with(hop.doc_id, normalised(quote)))]
        for hop in candidate.hops
    ]
    digest = hashlib.sha256(candidate.question.encode()).hexdigest()[:16]
    return TextTask(
        task_id=f"text-{split_of(candidate.question.split())}-{digest}",
        question=candidate.question,
        answer=candidate.answer,
        hops=candidate.hops,
        targets=tuple(dict.fromkeys(chunk_id for hop in chunks for chunk_id in hop)),
        answer_chunks=tuple(dict.fromkeys(chunks[-1])),
        distractors=candidate.distractors,
        provenance=Provenance(GENERATOR, candidate.explorer, documents, tuple(str(check) for check in Check)),
    )


@dataclass(frozen=True)
class TextTasks:
    """Tasks by number, for samplers: those of a split in the order of their ids, over and over."""

    by_split: Mapping[Split, tuple[TextTask, ...]]
    levels: tuple[str, ...]
    """Numbers of hops that occur, few first: difficulties, easy to hard."""

    @classmethod
    def of(cls, tasks: Iterable[TextTask]) -> "TextTasks":
        """Sort ``tasks`` by split."""
        kept = sorted(tasks, key=lambda task: task.task_id)
        by_split = {split: tuple(task for task in kept if task.split is split) for split in Split}
        return cls(by_split, tuple(str(hops) for hops in sorted({len(task.hops) for task in kept})))

    def training(self, number: int, level: int | None = None) -> TextTask:
        """Return a training task; with ``level`` one of ``levels[level]`` hops. Raises :class:`NoTasks`."""
        tasks = self.by_split[Split.TRAIN]
        if level is not None:
            if not 0 <= level < len(self.levels):
                raise NoTasks(f"there is no level {level}: the tasks have {', '.join(self.levels)} hops")
            tasks = tuple(task for task in tasks if str(len(task.hops)) == self.levels[level])
        return _numbered(tasks, number, "training")

    def held_out(self, number: int) -> TextTask:
        """Return a held-out task. Raises :class:`NoTasks`."""
        return _numbered(self.by_split[Split.HELD_OUT], number, "held-out")


def _numbered(tasks: tuple[TextTask, ...], number: int, use: str) -> TextTask:
    if not tasks:
        raise NoTasks(f"there are no {use} tasks: generate more with `headrace tasks`")
    return tasks[number % len(tasks)]


def write_tasks(tasks: Iterable[TextTask], path: Path) -> None:
    """Write one task per line."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(task.to_json(), ensure_ascii=False) + "\n" for task in tasks)


def read_tasks(path: Path) -> tuple[TextTask, ...]:
    """Read what :func:`write_tasks` wrote. Raises :class:`NoTasks`, which names the line."""
    tasks = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                tasks.append(TextTask.from_json(json.loads(line)))
            except ValueError as error:  # also broken JSON
                raise NoTasks(f"{path}:{number}: {error}") from error
    return tuple(tasks)
