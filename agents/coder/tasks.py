"""Verified tasks over random repositories: some functions are broken or deleted and have to be repaired.

    coder-train-000017      repair charge fee        charge (billing.py) has a wrong operator, fee (stock.py) is missing

A task is a function of its id; ``coder-heldout-n4-000003`` also fixes the number of functions to repair. What a
function shall compute decides its split by a hash, so no held-out specification is ever asked for in training.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from random import Random
from typing import Any

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.grading import passed
from headrace.agents.coder.repository import Line, Repository, signature
from headrace.agents.coder.specification import CALLS, NUMBERS, Specification, body, draw, mutant, value
from headrace.agents.coder.trusted_run import run_trusted

SIZE_WEIGHTS = {1: 0.4, 2: 0.3, 3: 0.2, 4: 0.1}
"""Share of tasks by number of functions to repair."""
LARGEST = 10
"""Largest number of functions to repair."""
DELETED_SHARE = 0.5
"""Share of the functions to repair that are deleted; the others contain a mistake."""
CONSTANTS_IN_USE = 4
INTACT = 2
"""Functions of a repository that need no repair, in addition to those that do."""
CHECK_INPUTS, VERDICT_INPUTS = 6, 8
INPUTS = range(-12, 31)

_DRAWS = 100
_TASK_ID = re.compile(r"coder-(train|heldout)(?:-n(\d{1,2}))?-(\d{6,9})")


class Split(StrEnum):
    """Use of a task."""

    TRAIN = "train"
    HELD_OUT = "heldout"


class Breakage(StrEnum):
    """What is wrong with a function."""

    BUG = "bug"
    DELETED = "deleted"


class UnverifiedTask(ValueError):
    """A task whose reference fails, whose broken state passes, or whose mutant is equivalent to the original."""


@dataclass(frozen=True)
class Task:
    """A broken repository, and the data that the verdict needs and the sandbox must not see."""

    task_id: str
    broken: Repository
    """What the model gets."""
    reference: Repository
    """Never leaves this process."""
    specifications: Mapping[str, Specification]
    """Function → what it shall compute, in the order of the files."""
    paths: Mapping[str, str]
    """Function → its file."""
    constants: Mapping[str, int]
    breakages: Mapping[str, Breakage]
    """Functions to repair, in the order of the prompt, which is that of the files."""
    check_inputs: tuple[int, ...]
    """Inputs of the tests that ``run_tests`` runs."""
    verdict_inputs: tuple[int, ...]
    """Inputs of the tests that decide the outcome; none is a check input or occurs in ``tests.py``."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Functions to repair."""
        return tuple(self.breakages)

    @property
    def prompt(self) -> tuple[str, ...]:
        """What the model is asked: ``repair charge fee``."""
        return ("repair", *self.targets)

    @cached_property
    def intact(self) -> tuple[str, ...]:
        """Functions whose tests pass in the broken repository."""
        return tuple(name for name in self.specifications if name not in self.breakages)

    def expected(self, inputs: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Return what each function shall return at each of ``inputs``."""
        return {
            name: tuple(value(spec, x, self.constants) for x in inputs) for name, spec in self.specifications.items()
        }

    def calls(self) -> dict[str, list[str]]:
        """Return file → the functions to call in it."""
        calls: dict[str, list[str]] = {}
        for name, path in self.paths.items():
            calls.setdefault(path, []).append(name)
        return calls

    @property
    def facts(self) -> dict[str, Any]:
        """Data in ``trajectory.started`` for rewards and analysis; the model does not see it."""
        return {
            "targets": list(self.targets),
            "breakages": [str(kind) for kind in self.breakages.values()],
            "size": len(self.targets),
            "files": len({self.paths[name] for name in self.targets}),
            "split": _TASK_ID.fullmatch(self.task_id)[1],  # type: ignore[index]  # make_task checked the id
        }


def task_id(split: Split, number: int, size: int | None = None) -> str:
    """Return the id of a task; raise ``ValueError`` for a number outside [0, 10⁹) or a size outside [1, 10]."""
    if not 0 <= number < 10**9:
        raise ValueError(f"task number {number} is outside [0, 1000000000)")
    if size is None:
        return f"coder-{split}-{number:06d}"
    if not 1 <= size <= LARGEST:
        raise ValueError(f"size {size} is outside [1, {LARGEST}]: it is the number of functions to repair")
    return f"coder-{split}-n{size}-{number:06d}"


@lru_cache(maxsize=512)  # the attempts of a group share one task
def make_task(identifier: str) -> Task:
    """Return the task ``identifier``, which is the same on every machine. Raises ``ValueError`` for an invalid id."""
    match = _TASK_ID.fullmatch(identifier)
    if match is None or not 1 <= int(match[2] or 1) <= LARGEST:
        raise ValueError(f"{identifier!r} is not a task id such as coder-train-000017 or coder-heldout-n4-000003")
    # A string is hashed by SHA-512: stable across Python versions and unrelated for neighbouring ids.
    rng = Random(f"headrace/{identifier}")
    size = int(match[2]) if match[2] else rng.choices(list(SIZE_WEIGHTS), weights=list(SIZE_WEIGHTS.values()))[0]
    for _ in range(_DRAWS):
        task = _draw(identifier, Split(match[1]), size, rng)
        try:
            verify(task)
        except UnverifiedTask:  # an equivalent mutant, most often: another draw replaces it
            continue
        return task
    raise RuntimeError(f"none of {_DRAWS} draws for {identifier} is a valid task")


def verify(task: Task) -> None:
    """Check ``task`` by running its reference and its broken repository. Raises ``UnverifiedTask``.

    The reference returns what the specifications ask for. In the broken repository each function to repair fails the
    checks and the verdict, so that no mutant is equivalent; the other functions pass. The verdict has an input on
    either side of a number that bounds x, so that it tells the function from x and from the number.
    """
    for name in task.targets:
        spec = task.specifications[name]
        number = task.constants[spec.constant]
        if spec.operation in CALLS and not min(task.verdict_inputs) < number < max(task.verdict_inputs):
            raise UnverifiedTask(f"the verdict on {name} has inputs on one side of {number} only: others would pass")
    for inputs in (task.check_inputs, task.verdict_inputs):
        expected = task.expected(inputs)
        if wrong := set(expected) - passed(run_trusted(task.reference, task.calls(), inputs), expected):
            raise UnverifiedTask(f"the reference of {', '.join(sorted(wrong))} does not do what it shall")
        right = passed(run_trusted(task.broken, task.calls(), inputs), expected)
        if unbroken := right & set(task.targets):
            raise UnverifiedTask(f"{', '.join(sorted(unbroken))} passes its tests unrepaired: the mutant is equivalent")
        if lost := set(task.intact) - right:
            raise UnverifiedTask(f"{', '.join(sorted(lost))} fails without being broken")


def outcome(task: Task, right: Collection[str]) -> float:
    """Return the verdict if the results of the functions ``right`` are right at ``task.verdict_inputs``; in [0, 1].

    The share of repaired functions, minus the same share for each intact function that fails now; not below 0.
    """
    regressions = sum(name not in right for name in task.intact)
    return max(0.0, (sum(name in right for name in task.targets) - regressions) / len(task.targets))


def _draw(identifier: str, split: Split, size: int, rng: Random) -> Task:
    names = rng.sample(words.FUNCTIONS, size + INTACT)
    paths = {name: rng.choice(words.FILES[: 2 + size // 3]) for name in names}
    names.sort(key=lambda name: words.FILES.index(paths[name]))  # stable: within a file, the random order stays
    to_repair = set(rng.sample(names, size))
    targets = [name for name in names if name in to_repair]
    constants = dict(
        zip(rng.sample(words.CONSTANTS, CONSTANTS_IN_USE), rng.sample(NUMBERS, CONSTANTS_IN_USE), strict=True)
    )
    specifications: dict[str, Specification] = {}
    for name in names:
        held_out = split is Split.HELD_OUT and name in to_repair
        # Each constant has operations of both splits, so this ends.
        while (spec := draw(rng, tuple(constants))).is_held_out is not held_out:
            pass
        specifications[name] = spec
    breakages = {name: Breakage.DELETED if rng.random() < DELETED_SHARE else Breakage.BUG for name in targets}
    inputs = rng.sample(INPUTS, CHECK_INPUTS + VERDICT_INPUTS)
    reference = _repository(names, specifications, paths, constants, inputs[:CHECK_INPUTS], rng)
    broken = reference
    for name, breakage in breakages.items():
        if breakage is Breakage.DELETED:
            broken = broken.without(paths[name], name)
        else:
            spec = specifications[name]
            broken = broken.edited(paths[name], name, mutant(spec.operation, constants[spec.constant], rng))
    checks, verdict = tuple(inputs[:CHECK_INPUTS]), tuple(inputs[CHECK_INPUTS:])
    return Task(identifier, broken, reference, specifications, paths, constants, breakages, checks, verdict)


def _repository(
    names: Sequence[str],
    specifications: Mapping[str, Specification],
    paths: Mapping[str, str],
    constants: Mapping[str, int],
    inputs: Sequence[int],
    rng: Random,
) -> Repository:
    files: dict[str, tuple[Line, ...]] = {path: () for path in words.FILES if path in paths.values()}
    for name in names:
        spec = specifications[name]
        code = body(spec.operation, constants[spec.constant])
        files[paths[name]] += (("#", name, ":", *spec.words), (*signature(name), *code))
    files[words.CONSTANTS_FILE] = tuple((name, str(number)) for name, number in constants.items())
    repository = Repository(files)
    # The visible tests: one example, whose numbers have words. Its names are the repository's functions.
    examples: list[Line] = []
    for name in rng.sample(list(names), len(names)):
        [result] = run_trusted(repository, {paths[name]: [name]}, inputs[:1])[name]
        if isinstance(result, int) and 0 <= result <= 100 and inputs[0] >= 0:
            examples.append(("assert", name, "(", str(inputs[0]), ")", "==", str(result)))
            break
    return Repository({**files, words.TESTS_FILE: tuple(examples)})
