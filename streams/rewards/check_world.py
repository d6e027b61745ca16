"""The world around a reward, held still or moved: clock, time zone, and the global random generators."""

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
    """The world that a component is called in."""

    unix_s: float = 1_700_000_000.0
    """The clock, which stands still."""
    timezone: str = "UTC0"
    """The time zone, in POSIX form."""
    seed: int = 1
    """Seed of the global random generators before every call."""


AS_IT_COMES = Setting()
ELSEWHEN = Setting(unix_s=1_737_123_456.789, timezone="XXX-5:45")
OTHER_SEED = Setting(seed=2)


@contextmanager
def world(setting: Setting) -> Iterator[None]:
    """The clock, the time zone and the random generators of ``setting``; all are put back."""
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

    By trajectory, so that the order of the calls makes no difference, and yet chance does not look like a constant.
    """
    number = zlib.crc32(f"{seed}/{trajectory_id}".encode())
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number)
