"""Scripted episodes for supervised training before reinforcement learning. The script knows the specifications and
decides badly on purpose.

    grep charge / # rate 3 edit billing.py charge : return x * 3 / submit        guessed, untested, and the first of two

A model that imitates them can call the tools, look up constants, note their numbers and write functions; its decisions
are sloppy: it guesses numbers, submits untested work and stops early. What it writes once it has looked a number up is
right, so a reward has decisions to lift. That a number is guessed is imitated, and which number is not: random numbers
would hide the rule by which looked-up ones are copied. A number is noted in a thought as soon as it was looked up: a
small model copies over a short distance after a tenth of the training that it needs to find a number by its name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.harness import Done, Harness, Limits, Observation, TestRun
from headrace.agents.coder.specification import NUMBERS, body
from headrace.agents.coder.tasks import Split, Task, make_task, task_id
from headrace.agents.coder.trusted_run import run_trusted


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Probabilities of the demonstrator's mistakes, each at its own decision."""

    no_todo: float = 0.4
    """Works without a to-do list; decided once per episode. For a single function there never is a list."""
    forget_done: float = 0.3
    """Does not mark a repaired function as done."""
    guess: float = 0.7
    """Writes a guessed number instead of looking the constant up."""
    stop_early: float = 0.35
    """Submits with functions unrepaired, decided after each repair."""
    submit_untested: float = 0.6
    """Submits without running the tests."""
    ignore_failures: float = 0.6
    """Submits although tests fail."""
    forget_open: float = 0.3
    """Omits from a summary which functions are still open, and begins with the first again. A to-do list is not lost,
    because the harness keeps it."""
    exit_early: float = 0.02
    """Writes a function that ends the process with exit code 0."""
    edit_tests: float = 0.01
    """Edits the tests instead of a function."""
    repeat: float = 0.05
    """Runs the tests again without a change."""
    malformed: float = 0.015
    """Emits tokens that are not a call."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A context that only grew, with the tokens to imitate; axis T tokens."""

    token_ids: tuple[int, ...]
    """(T,)"""
    mask: tuple[int, ...]
    """(T,) 1 on tokens that the demonstrator chose, 0 on tokens that it read and on numbers that it guessed."""


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
        mask += [int(place not in script.guessed) for place in range(len(sampled))]
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
    """The demonstrator: what it remembers of the context, and its next turn. It decides by what the context shows, so
    that each decision can be learnt."""

    harness: Harness
    rng: Random
    errs: Mistakes
    open: list[str] = field(default_factory=list)
    """Functions that it still wants to repair, in order."""
    lists: bool = False
    """Whether it keeps a to-do list."""
    found: str = ""
    """The function whose lines it looked up last."""
    number: int | None = None
    """The number of that function's constant, once looked up."""
    tick: str = ""
    """A function to mark as done next."""
    tested: bool = False
    """Whether tests ran since the last edit."""
    guessed: frozenset[int] = frozenset()
    """Places in the chosen words of numbers that it guessed."""

    def __post_init__(self) -> None:
        self.open = list(self.harness.task.targets)
        self.lists = self.rng.random() >= self.errs.no_todo and len(self.open) > 1

    def see(self, observation: Observation) -> None:
        """Take in the result of the turn."""
        task = self.harness.task
        match observation.tool:
            case words.GREP if observation.error_class is None:
                pattern = observation.arguments["pattern"]
                if pattern in task.constants:
                    self.number = task.constants[pattern]
                else:
                    self.found, self.number = pattern, None
            case words.RUN_TESTS:
                self.tested = True
                failed = observation.result["failed"]
                if self.rng.random() >= self.errs.ignore_failures:
                    self.open = [name for name in task.targets if name in failed]
        if observation.summarized is not None:
            summary = observation.summarized.summary.split()
            self.found, self.tested = "", False
            if summary[:1] != [words.DONE]:
                self.tick = ""
            if self.harness.todo.items:
                self.open = [name for name in self.harness.todo.open if name != self.tick]
            elif not summary:
                self.open = list(task.targets)

    def choose(self) -> Sequence[str]:
        """Return the words of the next turn, without ``<end>``."""
        errs, rng, harness = self.errs, self.rng, self.harness
        self.guessed = frozenset()
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
        if self.found != name:
            return (words.GREP, name)
        spec = task.specifications[name]
        if self.number is None and rng.random() >= errs.guess:
            return (words.GREP, spec.constant)
        number, self.number = self.number, None
        self.found = ""
        self.open.remove(name)
        self.tested = False
        if name in self.harness.todo.open and rng.random() >= errs.forget_done:
            self.tick = name
        if self.open and rng.random() < errs.stop_early:
            self.open, self.tested = [], True
        chance = rng.random()
        if chance < errs.exit_early:
            return (words.EDIT, task.paths[name], name, ":", "exit", "(", "0", ")")
        if chance < errs.exit_early + errs.edit_tests:
            return (words.EDIT, words.TESTS_FILE, name, ":", "return", "0")
        if number is None:
            number = rng.choice(NUMBERS)
            self.guessed = frozenset({2})
        thought = (words.THINK, spec.constant, str(number))
        return (*thought, words.EDIT, task.paths[name], name, ":", *body(spec.operation, number))

    def _summary(self) -> Sequence[str]:
        """Return what the state does not have: which functions are open, or which one is to be marked as done; nothing
        if it forgets."""
        if self.rng.random() < self.errs.forget_open:
            return ()
        if self.harness.todo.items:
            return (words.DONE, self.tick) if self.tick else ()
        return (words.TODO, *self.open) if self.open else (words.DONE,)
