"""What is kept of one key between windows, and how it is stored.

key  k·1f0c…       {"key": ["attempt", "r", "search", "", ""], "window": 41, "charts": {"talks": {"mean": 0.02, …}}, …}
row  r·1f0c…·9be1…  an observation of the open window
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from pydantic import TypeAdapter

from headrace.schemas.records.alert import AdmissionOrder
from headrace.streams.watch.chart import Chart
from headrace.streams.watch.offsets import Offset
from headrace.streams.watch.shares import Shares
from headrace.streams.watch.window import Key, Row

REMEMBERED = 1024
"""Observations of a key that are remembered, so that one that is sent twice counts once."""
HISTORY = 64
"""Windows of which version and time are kept, to say since when something has changed."""
MAX_CHARTED_COMPONENTS = 16
"""Most components of a key that have a chart."""


class Opened(NamedTuple):
    """An open episode."""

    id: str
    """Its id."""
    window: int
    """Window that opened it."""
    since_version: int | None
    """Version of the window in which the evidence began to grow."""
    since_ms: int
    """Time of that window, Unix milliseconds."""
    examples: tuple[str, ...]
    """Trajectories that show it best, of the window that opened it."""
    admission: AdmissionOrder = AdmissionOrder.NONE
    """What its newest alert asks the trainer to do."""


class Began(NamedTuple):
    """When a window began."""

    window: int
    """Its number."""
    version: int | None
    """Its oldest policy version."""
    time_ms: int
    """Time of its first observation, Unix milliseconds."""


@dataclass(frozen=True, slots=True)
class KeyState:
    """State of one key after its last complete window."""

    key: Key
    """The key."""
    touched_ms: int = 0
    """Stream time of its last complete window, or of its first observation; of too many keys the oldest is dropped."""
    window: int = 0
    """Number of complete windows."""
    charts: dict[str, Chart] = field(default_factory=dict)
    """Chart by monitor."""
    adaptive: dict[str, list[float]] = field(default_factory=dict)
    """ADWIN's window by monitor."""
    shares: dict[str, Shares] = field(default_factory=dict)
    """Usual shares of labels by monitor."""
    offsets: dict[str, dict[str, Offset]] = field(default_factory=dict)
    """Offsets of difficulties, by the name of the value."""
    rests: dict[str, float] = field(default_factory=dict)
    """What the reward pays besides a component, by component: a moving mean, of windows without evidence about it."""
    pinned_rests: dict[str, float] = field(default_factory=dict)
    """The same, as a mean of the windows of the component's baseline, for a run that is compared with this one."""
    samples: dict[str, list[float]] = field(default_factory=dict)
    """Values of single trajectories in the baseline, by name."""
    sampled_from: int | None = None
    """Window from which they are taken, if they were begun anew; ``None``: from the first, or from another run."""
    first_weights: dict[str, float] = field(default_factory=dict)
    """First weight of each component that should decline."""
    tripwire: float = 0.0
    """Logarithm of the evidence of tripwires."""
    episodes: dict[str, Opened] = field(default_factory=dict)
    """Open episode by monitor."""
    history: list[Began] = field(default_factory=list)
    """The last windows."""
    remembered: list[str] = field(default_factory=list)
    """Identities of the last observations of complete windows."""
    baseline_of: str = ""
    """The run whose baseline it began with; empty if it learnt, or learns, one of its own."""


class StoredRow(NamedTuple):
    """A row of an open window, as it is stored."""

    key: str
    """Digest of its key."""
    identity: str
    """Tells it from all others of the key."""
    row: Row
    """The row."""


_STATES = TypeAdapter(KeyState)
_ROWS = TypeAdapter(StoredRow)


def digest(*parts: str) -> str:
    """Returns 64 bits of a hash of ``parts``, as hexadecimal digits. They are separated by U+001F, and U+001E is put
    before each of the two within a part, so that no other parts give the same text."""
    quoted = (part.replace("\x1e", "\x1e\x1e").replace("\x1f", "\x1e\x1f") for part in parts)
    return blake2b("\x1f".join(quoted).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def key_entry(state: KeyState) -> tuple[bytes, bytes]:
    """Returns the record of the state topic for ``state``."""
    return state_name(state.key), _STATES.dump_json(state, exclude_defaults=True)


def row_entry(stored: StoredRow) -> tuple[bytes, bytes]:
    """Returns the record of the state topic for a row of an open window."""
    return row_name(stored.key, stored.identity), _ROWS.dump_json(stored)


def state_name(key: Key) -> bytes:
    """Returns the key of the state topic's record for ``key``."""
    return f"k{digest(*key)}".encode()


def row_name(key: str, identity: str) -> bytes:
    """Returns the key of the state topic's record for a row; ``key`` is the digest of its key."""
    return f"r{key}{identity}".encode()


def decoded(name: bytes, value: bytes) -> KeyState | StoredRow:
    """Returns an entry of the state topic. Raises ``ValueError``."""
    if name.startswith(b"k"):
        return _STATES.validate_json(value)
    if name.startswith(b"r"):
        return _ROWS.validate_json(value)
    raise ValueError(f"the state of watch has no entries like {name[:20]!r}")
