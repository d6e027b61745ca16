"""Controls the environment of a reward: clock, time zone, and the global random generators."""

import os
import random
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import time_machine


@dataclass(frozen=True, slots=True)
class Setting:
    """The environment in which a component is called."""

    unix_s: float = 1_700_000_000.0
    """The clock, which does not advance."""
    timezone: str = "UTC0"
    """The time zone, in POSIX form."""
    seed: int = 1
    """Seed of the global random generators before every call."""


AS_IT_COMES = Setting()
ELSEWHEN = Setting(unix_s=1_737_123_456.789, timezone="XXX-5:45")
OTHER_SEED = Setting(seed=2)


@contextmanager
def world(setting: Setting) -> Iterator[None]:
    """Context with the clock, the time zone and the random generators of ``setting``; all are restored on exit."""
    state, timezone = random.getstate(), os.environ.get("TZ")
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    os.environ["TZ"] = setting.timezone
    time.tzset()
    try:
        with time_machine.travel(setting.unix_s, tick=False):
            yield
    finally:
        if timezone is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = timezone
        time.tzset()
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def seed_by(seed: int, trajectory_id: str) -> None:
    """Seed the global generators for a call on this trajectory.

    The seed depends on the trajectory, so that the order of calls does not matter and random values still vary.
    """
    number = zlib.crc32(f"{seed}/{trajectory_id}".encode())
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number)
