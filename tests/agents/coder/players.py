"""What the tests of the coder share: tasks, and players that write given or flawless turns."""

from collections.abc import Callable
from random import Random

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.demonstrations import Mistakes, Script
from headrace.agents.coder.harness import Done, Harness, Limits, TestRun
from headrace.agents.coder.specification import body
from headrace.agents.coder.tasks import Split, Task, make_task, task_id
from headrace.agents.coder.trusted_run import run_trusted

FLAWLESS = Mistakes(**dict.fromkeys(Mistakes.__dataclass_fields__, 0.0))
TESTS = TestRun  # a name that pytest does not collect


def training_task(number: int = 0, size: int | None = None) -> Task:
    """Return a training task."""
    return make_task(task_id(Split.TRAIN, number, size))


def repair(task: Task, name: str) -> str:
    """Return the call that repairs a function."""
    spec = task.specifications[name]
    code = " ".join(body(spec.operation, task.constants[spec.constant]))
    return f"edit {task.paths[name]} {name} : {code} <end>"


def act(harness: Harness, *lines: str) -> object:
    """Apply turns given as text, with tests run in this process; return the last step."""
    step: object = None
    for line in lines:
        step = harness.act(words.encode(line))
        if isinstance(step, TestRun):
            step = harness.tested(run_trusted(harness.repository, step.calls, step.inputs))
    return step


def play(
    task: Task,
    *,
    mistakes: Mistakes = FLAWLESS,
    limits: Limits | None = None,
    seed: int = 0,
    each: Callable[[Harness, list[int]], None] = lambda harness, sampled: None,
) -> tuple[Harness, Done, list[list[int]]]:
    """Play the demonstrator's script to the end; return the harness, the end, and the sampled turns."""
    harness = Harness(task, limits)
    script, turns = Script(harness, Random(seed), mistakes), []
    while True:
        sampled = words.encode_words((*script.choose(), words.END))
        turns.append(sampled)
        each(harness, sampled)
        step = harness.act(sampled)
        if isinstance(step, TestRun):
            step = harness.tested(run_trusted(harness.repository, step.calls, step.inputs))
        if isinstance(step, Done):
            return harness, step, turns
        script.see(step)
