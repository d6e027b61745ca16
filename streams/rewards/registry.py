"""Loads reward specs: headrace's by label, a user's by entry point, module or file; and maps agents to specs.

    search@1                            one of headrace's specs
    shop or shop@2                      entry point ``shop`` of a package, in the group ``headrace.rewards``
    shop.rewards:CHECKOUT               a spec in a module that can be imported
    rewards/checkout.py:CHECKOUT        a spec in a file

Loading runs the user's code, so only an operator's settings specify what is loaded, never an event.
"""

import hashlib
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.interruptions import INTERRUPTIONS
from headrace.streams.rewards.coder import CODER, CODER_SHORT
from headrace.streams.rewards.context1 import SEARCH, SEARCH_ANNEALED, SEARCH_PRUNING, SEARCH_RECALLS
from headrace.streams.rewards.context1_program import SEARCH_PROGRAM
from headrace.streams.rewards.context1_text import SEARCH_TEXT
from headrace.streams.rewards.environment import ENVIRONMENT
from headrace.streams.rewards.outcome import OUTCOME
from headrace.streams.rewards.planted import PLANTED, PLANTED_UNANNEALED
from headrace.streams.rewards.spec import RewardSpec
from headrace.streams.rewards.swarm import ARMS, SWARM
from headrace.streams.rewards.tab import TAB

ENTRY_POINTS = "headrace.rewards"
"""Entry point group in which packages offer specs."""

SHIPPED = (
    *(OUTCOME, SEARCH, SEARCH_ANNEALED, SEARCH_RECALLS, SEARCH_PRUNING, SEARCH_PROGRAM, SEARCH_TEXT),
    *(CODER, CODER_SHORT, SWARM, *ARMS.values(), TAB, ENVIRONMENT),
    *(PLANTED, PLANTED_UNANNEALED),
)
"""Specs that come with headrace."""

OF_OUTCOME = frozenset({OUTCOME.label, ENVIRONMENT.label})
"""Labels of those that read a trajectory's outcome and nothing else of it."""

OURS: Mapping[str, RewardSpec] = {spec.label: spec for spec in SHIPPED}
"""``SHIPPED`` by label."""

ANY_AGENT = "*"
"""Key for every agent that is not listed."""


class RewardNotLoaded(ValueError):
    """The spec could not be loaded; the message gives the reason and the remedy."""


class Rewards(NamedTuple):
    """The reward spec of each agent."""

    by_agent: Mapping[str, RewardSpec]
    """Agent name → its spec."""
    default: RewardSpec
    """Spec of every other agent."""

    def of(self, trajectory: Trajectory) -> RewardSpec:
        """Returns the spec of the trajectory's agent; the default if its start is missing."""
        return self.by_agent.get(trajectory.started.agent, self.default) if trajectory.started else self.default

    @property
    def specs(self) -> tuple[RewardSpec, ...]:
        """Every spec in use, once."""
        return tuple({spec.label: spec for spec in (*self.by_agent.values(), self.default)}.values())


DEFAULTS: Mapping[str, str] = {
    "search": SEARCH.label,
    "search-program": SEARCH_PROGRAM.label,
    "search-text": SEARCH_TEXT.label,
    "environment": ENVIRONMENT.label,
    "coder": CODER.label,
    "swarm": SWARM.label,
    PLANTED.name: PLANTED.label,
    PLANTED_UNANNEALED.name: PLANTED_UNANNEALED.label,
    ANY_AGENT: OUTCOME.label,
}
"""The default specs of agents."""


def is_ours(spec: RewardSpec) -> bool:
    """Whether ``spec`` comes with headrace: its components read a trajectory's fields and do nothing else with it."""
    return OURS.get(spec.label) is spec


def load_spec(text: str) -> RewardSpec:
    """Load the spec that ``text`` names, in one of the four forms above.

    Raises :class:`RewardNotLoaded`; its cause is the exception that importing a user's module raised, if any.
    """
    if text in OURS:
        return OURS[text]
    source, colon, name = text.rpartition(":")
    if not colon:
        return _offered(text)
    if not name.isidentifier():
        raise RewardNotLoaded(f"{text!r}: {name!r} after the colon is not a Python name: use {source}:NAME")
    module = _file_module(text, Path(source)) if source.endswith(".py") else _imported(text, source)
    return _checked(text, getattr(module, name, None), module)


def parse_rewards(specs: Mapping[str, str]) -> Rewards:
    """Load specs given as agent name → text, with ``*`` for any other agent; ``DEFAULTS`` apply to the rest.

    Raises :class:`RewardNotLoaded`, also if two different specs have the same label, which records could not
    distinguish.
    """
    loaded = {agent: load_spec(text) for agent, text in {**DEFAULTS, **specs}.items()}
    by_label: dict[str, RewardSpec] = {}
    for agent, spec in loaded.items():
        if by_label.setdefault(spec.label, spec) != spec:
            raise RewardNotLoaded(f"agent {agent!r}: another spec also has the label {spec.label}: change a version")
    default = loaded.pop(ANY_AGENT)
    return Rewards(loaded, default)


def offered() -> tuple[EntryPoint, ...]:
    """Returns the entry points of specs in installed packages, by name. Loads nothing."""
    return tuple(sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name))


def _offered(text: str) -> RewardSpec:
    name = text.partition("@")[0]
    entries = [entry for entry in offered() if entry.name in (text, name)]
    if not entries:
        known = ", ".join([*OURS, *(entry.name for entry in offered())])
        raise RewardNotLoaded(
            f"no reward {text!r}: choose from {known}. For your own reward use module:NAME or path/to/file.py:NAME, "
            f"or install a package with an entry point in the group {ENTRY_POINTS}"
        )
    found = [_loaded(text, entry) for entry in entries]
    matching = [spec for spec in found if "@" not in text or spec.label == text]
    if len(matching) != 1:
        labels = ", ".join(spec.label for spec in found)
        raise RewardNotLoaded(f"{text!r} names {len(matching)} specs; entry points of that name have {labels}")
    return matching[0]


def _loaded(text: str, entry: EntryPoint) -> RewardSpec:
    try:
        value = entry.load()
    except INTERRUPTIONS:
        raise
    except BaseException as error:  # a user's module may raise anything, and end as a program does
        raise RewardNotLoaded(f"{text!r}: loading entry point {entry.value} raised {error!r}") from error
    return _checked(f"{entry.name} = {entry.value}", value)


def _imported(text: str, name: str) -> ModuleType:
    try:
        return import_module(name)
    except INTERRUPTIONS:
        raise
    except BaseException as error:  # a user's module may raise anything, and end as a program does
        raise RewardNotLoaded(
            f"{text!r}: importing {name} raised {error!r}. Is its package installed in this environment?"
        ) from error


def _file_module(text: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise RewardNotLoaded(f"{text!r}: there is no file {path} (paths are relative to {Path.cwd()})")
    # The name contains a hash of the path: files of equal names become different modules, and no file is loaded twice.
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"headrace_reward_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    described = spec_from_file_location(name, path)
    if described is None or described.loader is None:
        raise RewardNotLoaded(f"{text!r}: {path} cannot be read as a Python module")
    module = module_from_spec(described)
    sys.modules[name] = module
    try:
        described.loader.exec_module(module)
    except BaseException as error:  # a user's module may raise anything, and end as a program does
        del sys.modules[name]
        if isinstance(error, INTERRUPTIONS):
            raise
        raise RewardNotLoaded(f"{text!r}: running {path} raised {error!r}") from error
    return module


def _checked(text: str, value: Any, module: ModuleType | None = None) -> RewardSpec:
    if isinstance(value, RewardSpec):
        return value
    names = sorted(name for name, each in vars(module).items() if isinstance(each, RewardSpec)) if module else []
    raise RewardNotLoaded(
        f"{text!r} is {'nothing' if value is None else f'a {type(value).__name__}'}, not a RewardSpec"
        + (f": the module has {', '.join(names)}" if names else "")
    )
