"""Scripted episodes for supervised training before reinforcement learning. The script knows the specifications and
makes frequent mistakes on purpose.

A model that imitates them can call the tools, look up constants and write functions, but is sloppy: it guesses numbers,
writes wrong operators, submits untested work, and forgets in its summaries what it looked up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.harness import Done, Harness, Limits, Observation, TestRun
from headrace.agents.coder.specification import body, mutant
from headrace.agents.coder.tasks import Split, Task, make_task, task_id
from headrace.agents.coder.trusted_run import run_trusted


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Probabilities of the demonstrator's mistakes, each at its own decision."""

    no_todo: float = 0.4
    """Works without a to-do list; decided once per episode."""
    forget_done: float = 0.3
    """Does not mark a repaired function as done."""
    guess_constants: float = 0.7
    """Writes a guessed number instead of looking up a constant; decided at each turn while a constant is unknown."""
    wrong_body: float = 0.15
    """Writes a function with a mistake."""
    stop_early: float = 0.3
    """Submits with functions unrepaired, decided after each repair."""
    submit_untested: float = 0.6
    """Submits without running the tests."""
    ignore_failures: float = 0.6
    """Submits although tests fail."""
    forget_constants: float = 0.5
    """Omits from a summary what it looked up."""
    exit_early: float = 0.03
    """Writes a function that ends the process with exit code 0."""
    edit_tests: float = 0.02
    """Edits the tests instead of a function."""
    repeat: float = 0.05
    """Runs the tests again without a change."""
    malformed: float = 0.02
    """Emits tokens that are not a call."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A context that only grew, with the tokens to imitate; axis T tokens."""

    token_ids: tuple[int, ...]
    """(T,)"""
    mask: tuple[int, ...]
    """(T,) 1 on tokens that the demonstrator chose, 0 on tokens that it read."""


LOOK_UP_ONE = 0.15
"""Probability of looking up one constant with grep instead of reading the file of constants."""

HELD_OUT_FIRST = 999_000_000
"""First training task that is never imitated: demonstrations from here on measure the held-out loss."""


def demonstrate(
    task: Task, rng: Random, mistakes: Mistakes | None = None, limits: Limits | None = None
) -> list[Demonstration]:
    """Return one scripted episode as sequences to imitate: one, plus one for every summary that replaced it."""
    harness = Harness(task, limits)
    script = Script(harness, rng, mistakes or Mistakes())
    examples: list[Demonstration] = []
    token_ids = list(harness.observe())
    mask = [0] * len(token_ids)
    while True:
        sampled = words.encode_words((*script.choose(), words.END))
        token_ids += sampled
        mask += [1] * len(sampled)
        step = harness.act(sampled)
        if isinstance(step, TestRun):
            step = harness.tested(run_trusted(harness.repository, step.calls, step.inputs))
        if isinstance(step, Done):
            examples.append(Demonstration(tuple(token_ids), tuple(mask)))
            return examples
        script.see(step)
        if step.summarized:
            examples.append(Demonstration(tuple(token_ids), tuple(mask)))
            token_ids, mask = [], []
        token_ids += step.ids
        mask += [0] * len(step.ids)


def demonstrations(first: int, count: int, mistakes: Mistakes | None = None) -> Iterator[list[Demonstration]]:
    """Yield scripted episodes of ``count`` training tasks from number ``first`` on, one per task."""
    for number in range(first, first + count):
        identifier = task_id(Split.TRAIN, number)
        yield demonstrate(make_task(identifier), Random(f"demonstration/{identifier}"), mistakes)


@dataclass(slots=True)
class Script:
    """The demonstrator: what it remembers of the context, and its next turn."""

    harness: Harness
    rng: Random
    errs: Mistakes
    known: dict[str, int] = field(default_factory=dict)
    """Constants whose value is in the context."""
    open: list[str] = field(default_factory=list)
    """Functions that it still wants to repair, in order."""
    lists: bool = False
    """Whether it keeps a to-do list."""
    found: str = ""
    """The function that the last result showed."""
    tick: str = ""
    """A function to mark as done next."""
    tested: bool = False
    """Whether tests ran since the last edit."""

    def __post_init__(self) -> None:
        self.open = list(self.harness.task.targets)
        self.lists = self.rng.random() >= self.errs.no_todo

    def see(self, observation: Observation) -> None:
        """Take in the result of the turn."""
        self.found = ""
        match observation.tool:
            case words.READ if observation.arguments.get("path") == words.CONSTANTS_FILE:
                self.known = dict(self.harness.task.constants)
            case words.GREP if observation.error_class is None:
                pattern = observation.arguments["pattern"]
                if pattern in self.harness.task.constants:
                    self.known[pattern] = self.harness.task.constants[pattern]
                else:
                    self.found = pattern
            case words.RUN_TESTS:
                self.tested = True
                failed = observation.result["failed"]
                if self.rng.random() >= self.errs.ignore_failures:
                    self.open = [name for name in self.harness.task.targets if name in failed]
        if observation.summarized is not None:
            kept = observation.summarized.summary.split()
            self.known = {name: number for name, number in self.known.items() if name in kept}
            self.tested = False

    def choose(self) -> Sequence[str]:
        """Return the words of the next turn, without ``<end>``."""
        errs, rng, harness = self.errs, self.rng, self.harness
        if harness.summary_due:
            return self._summary()
        if rng.random() < errs.malformed:
            return rng.choice(((words.GREP, "return"), (words.READ, "charge"), (words.EDIT, "orders.py"), ("passed",)))
        if self.lists and not harness.todo.items:
            return (words.TODO_ADD, *harness.task.targets)
        if self.tick:
            name, self.tick = self.tick, ""
            return (words.TODO_DONE, name)
        if self.open:
            return self._repair(self.open[0])
        if self.tested:
            return (words.RUN_TESTS,) if rng.random() < errs.repeat else (words.SUBMIT,)
        return (words.SUBMIT,) if rng.random() < errs.submit_untested else (words.RUN_TESTS,)

    def _repair(self, name: str) -> Sequence[str]:
        task, errs, rng = self.harness.task, self.errs, self.rng
        spec = task.specifications[name]
        unknown = [constant for constant in spec.constants if constant not in self.known]
        looks_up = not unknown or rng.random() >= errs.guess_constants
        if unknown and looks_up and (self.found == name or not self.known):
            return (words.GREP, unknown[0]) if rng.random() < LOOK_UP_ONE else (words.READ, words.CONSTANTS_FILE)
        if self.found != name:
            return (words.GREP, name)
        self.open.remove(name)
        self.tested = False
        if self.lists and rng.random() >= errs.forget_done:
            self.tick = name if name in self.harness.todo.open else ""
        if self.open and rng.random() < errs.stop_early:
            self.open, self.tested = [], True
        chance = rng.random()
        if chance < errs.exit_early:
            return (words.EDIT, task.paths[name], name, ":", "exit", "(", "0", ")")
        if chance < errs.exit_early + errs.edit_tests:
            return (words.EDIT, words.TESTS_FILE, name, ":", "return", "0")
        constants = {**{each: rng.randrange(2, 10) for each in spec.constants}, **self.known}
        wrong = rng.random() < errs.wrong_body
        code = mutant(spec, constants, rng) if wrong else body(spec, constants)
        thought = [word for each in spec.constants for word in (each, str(constants[each]))]
        return (words.THINK, *thought, words.EDIT, task.paths[name], name, ":", *code)

    def _summary(self) -> Sequence[str]:
        """Return the looked-up constants and, without a to-do list, what is still open."""
        known = {} if self.rng.random() < self.errs.forget_constants else self.known
        text = [word for name, number in known.items() for word in (name, str(number))]
        rest = () if self.harness.todo.items else ("todo", *self.open)
        room = self.harness.limits.sampled_tokens - 1
        return (*text, *rest)[:room]
