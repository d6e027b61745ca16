"""Settings of the monitors: how weights of shaping terms should decline, which alerts pause admission, and with which
run a run is compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.schedule import Schedule, linear
from headrace.streams.watch.judgement import ANY_RUN
from headrace.streams.watch.monitors import may_pause


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Settings of the monitors."""

    anneals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Reward spec → component → policy version from which its weight must be 0, for specs that have no schedule of
    their own. The weight should decline linearly from its first value."""
    pauses: tuple[str, ...] = ()
    """Monitors whose open alert pauses the admission of its agent and task source. All others only notify."""
    baselines: Mapping[str, str] = field(default_factory=dict)
    """Run → the run with whose baseline it is compared; ``*`` is every other run."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.pauses if not may_pause(name)]
        if unknown:
            raise ValueError(
                f"watch_pauses names {', '.join(unknown)}: only monitors of attempts and rewards that alarm "
                "know the task source whose admission they would pause; `headrace watch monitors` lists them"
            )
        own = [run for run, other in self.baselines.items() if not run or not other or other in (run, ANY_RUN)]
        if own:
            raise ValueError(
                f"watch_baselines is {dict(self.baselines)!r}: name another run for each run, as in "
                '{"run-b": "run-a"}, or {"*": "run-a"} for all others'
            )
        if any(until < 1 for components in self.anneals.values() for until in components.values()):
            raise ValueError(f"watch_anneals is {self.anneals!r}: a weight must be 0 from version 1 on, or later")


def declared(rewards: Rewards) -> dict[str, dict[str, Schedule]]:
    """Returns the components of ``rewards`` whose weight ends at 0, with their schedules, by spec."""
    found: dict[str, dict[str, Schedule]] = {}
    for spec in rewards.specs:
        for term in spec.terms:
            weight = term.weight
            if isinstance(weight, Schedule) and weight.last == 0 and weight.first != 0:
                found.setdefault(spec.label, {})[term.name] = weight
    return found


def anneals_of(settings: WatchSettings, rewards: Rewards) -> dict[str, dict[str, Schedule]]:
    """Returns how weights should decline, by spec and component, relative to the first: the specs' own schedules, and
    those of ``settings``, which come first."""
    own = {
        spec: {name: replace(each, first=1.0, last=0.0) for name, each in components.items()}
        for spec, components in declared(rewards).items()
    }
    for spec, components in settings.anneals.items():
        own.setdefault(spec, {}).update({name: linear(1.0, 0.0, until=until) for name, until in components.items()})
    return own
