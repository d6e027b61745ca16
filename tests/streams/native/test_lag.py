"""Types and fields unknown to the extension module are left to Python and counted, with the same bytes."""

import json
import os
import subprocess
import sys
from enum import StrEnum
from typing import Any, ClassVar

import pytest
from pydantic import Field, field_validator, model_validator

from headrace.schemas.events import ContextPruned, ModelCalled, ToolReturned, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.model import Part, Record
from headrace.streams.assembly import trajectory_writer
from headrace.streams.assembly.assemble import _conclude, conclude
from headrace.streams.assembly.trajectory_writer import LAG, is_left_to_python, make_writer, plainly_written
from headrace.streams.clickhouse import event_rows, trajectory_rows
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.native.shapes import UNKNOWN, NativeLag, tables_of
from headrace.streams.scoring import trajectory_summary
from tests.streams.builders import event, facts
from tests.streams.native.built import needs_speedups
from tests.streams.native.test_trajectories import history_of

beside_a_current_module = pytest.mark.skipif(
    bool(LAG) and not os.environ.get("CI"), reason=f"the module itself lags behind: {LAG}"
)

KNOWN = {"t.v1": "name part part.size", "start.v1": "*"}


class Size(Part):
    size: int = 0


class Thing(Record):
    TYPE: ClassVar[str] = "t.v1"
    name: str
    part: Size = Size()


def lag_of(*models: type[Record]) -> NativeLag:
    return tables_of(models, KNOWN)[1]


@pytest.mark.skipif(not os.environ.get("CI"), reason="a module that lags behind is a failure in CI alone")
def test_the_module_was_built_for_all_types_and_fields() -> None:
    assert SPEEDUPS is not None
    assert not LAG, f"the C++ is to be written: {LAG}"
    assert not event_rows.LAG, f"the C++ is to be written: {event_rows.LAG}"
    assert not trajectory_rows.LAG, f"the C++ is to be written: {trajectory_rows.LAG}"
    assert not trajectory_summary.LAG, f"the C++ is to be written: {trajectory_summary.LAG}"


def test_known_types_and_fields_are_no_lag() -> None:
    tables, lag = tables_of((Thing,), KNOWN)
    assert not lag
    assert str(lag) == ""
    assert [field.kind for field in tables["t.v1"]] == ["text", "part"]


def test_an_unknown_type_is_left_to_python() -> None:
    class New(Record):
        TYPE: ClassVar[str] = "new.v1"

    tables, lag = tables_of((Thing, New), KNOWN)
    assert tables.keys() == {"t.v1"}
    assert lag == NativeLag(types=frozenset({"new.v1"}))
    assert lag.holds_back("new.v1", b"{}")
    assert not lag.holds_back("t.v1", b"{}")
    assert str(lag) == "it does not know the event type new.v1"


def test_an_unknown_field_is_found_at_any_depth() -> None:
    class Larger(Size):
        colour: str = "red"

    class More(Thing):
        part: Larger = Larger()  # type: ignore[assignment]
        count: int = 0

    tables, lag = tables_of((More,), KNOWN)
    assert lag == NativeLag(fields=frozenset({("t.v1", "count"), ("t.v1", "part.colour")}))
    assert [field.kind for field in tables["t.v1"]] == ["text", "part", UNKNOWN]
    assert lag.holds_back("t.v1", b'{"name":"a","part":{"colour":"red"}}')
    assert not lag.holds_back("t.v1", b'{"name":"a"}')
    assert not lag.holds_back("other.v1", b'{"count":1}')


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def test_an_unknown_value_of_an_enum_is_left_to_python_at_any_depth() -> None:
    class Coloured(Part):
        colour: Colour = Colour.RED

    class Painted(Record):
        TYPE: ClassVar[str] = "painted.v1"
        first: Coloured = Coloured()
        second: Colour | None = None

    known = {"painted.v1": "first first.colour=red second=red|blue"}
    tables, lag = tables_of((Painted,), known)
    assert lag == NativeLag(values=frozenset({("painted.v1", "first.colour", "blue")}))
    assert str(lag) == "it does not know 'blue' as the first.colour of painted.v1"
    (first, second) = tables["painted.v1"]
    assert first.part is not None
    assert (first.part[0].choices, second.choices) == (("red",), ("red", "blue"))
    assert lag.holds_back("painted.v1", b'{"first":{"colour":"blue"}}')
    assert not lag.holds_back("painted.v1", b'{"first":{"colour":"red"}}')
    assert tables_of((Painted,), {"painted.v1": "* first.colour=red second=red|blue"})[1] == lag


def test_a_type_with_an_unknown_default_is_left_to_python() -> None:
    class Painted(Record):
        TYPE: ClassVar[str] = "painted.v1"
        colour: Colour = Colour.BLUE

    assert tables_of((Painted,), {"painted.v1": "colour=red"})[1] == NativeLag(types=frozenset({"painted.v1"}))
    assert tables_of((Painted,), {"painted.v1": "colour"})[1] == NativeLag(types=frozenset({"painted.v1"}))


@pytest.mark.parametrize("annotation", [tuple[int, int], int | str, dict[str, float], list[float], set[str]])
def test_a_type_with_an_unreadable_field_is_left_to_python_unless_the_field_is_new(annotation: Any) -> None:
    class Odd(Record):
        TYPE: ClassVar[str] = "t.v1"
        name: annotation

    class New(Thing):
        odd: annotation

    assert lag_of(Odd) == NativeLag(types=frozenset({"t.v1"}))
    assert lag_of(New) == NativeLag(fields=frozenset({("t.v1", "odd")}))


def test_a_type_with_an_unknown_bound_is_left_to_python() -> None:
    class Even(Record):
        TYPE: ClassVar[str] = "t.v1"
        name: int = Field(multiple_of=2)

    assert lag_of(Even) == NativeLag(types=frozenset({"t.v1"}))


def test_a_type_with_an_unknown_validator_is_left_to_python() -> None:
    class Checked(Thing):
        @field_validator("name")
        @classmethod
        def lower(cls, name: str) -> str:
            return name.lower()

    class Agreeing(Thing):
        @model_validator(mode="after")
        def agree(self) -> "Agreeing":
            return self

    class Prepared(Thing):
        @model_validator(mode="before")
        @classmethod
        def prepare(cls, value: Any) -> Any:
            return value

    for model in (Checked, Agreeing, Prepared):
        assert lag_of(model) == NativeLag(types=frozenset({"t.v1"}))


def test_a_start_is_read_if_all_its_fields_are_readable() -> None:
    class Start(Record):
        TYPE: ClassVar[str] = "start.v1"
        anything: dict[str, Any] = {}

    class Odd(Start):
        pair: tuple[int, int] = (0, 0)

    assert not lag_of(Start)
    assert lag_of(Odd) == NativeLag(types=frozenset({"start.v1"}))


def without(model: type[Record], field: str = "") -> dict[str, str]:
    """The tables of a module that was built before ``model``, or before a field of it."""
    known = dict(SPEEDUPS.EVENT_FIELDS)
    names = known.pop(model.TYPE).split()
    return known | {model.TYPE: " ".join(name for name in names if name != field)} if field else known


def lag_without(model: type[Record], field: str) -> NativeLag:
    """What the module of :func:`without` lacks."""
    return NativeLag(fields=frozenset({(model.TYPE, field)})) if field else NativeLag(types=frozenset({model.TYPE}))


OLDER_MODULES = {
    "a type": (ContextPruned, ""),
    "the start": (TrajectoryStarted, ""),
    "the model's calls": (ModelCalled, ""),
    "a field": (TrajectoryEnded, "error"),
    "a part's field": (ModelCalled, "sampling.top_p"),
}


@needs_speedups
@beside_a_current_module
@pytest.mark.parametrize(("model", "field"), OLDER_MODULES.values(), ids=OLDER_MODULES)
def test_an_older_module_leaves_new_types_to_python_and_writes_the_rest(
    model: type[Record], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, lag = make_writer(without(model, field))
    assert lag == lag_without(model, field)
    monkeypatch.setattr(trajectory_writer, "_WRITER", writer)
    monkeypatch.setattr(trajectory_writer, "LAG", lag)
    whole = facts("ask", "tool", "ask", "prune", "ask")
    histories = {
        True: history_of([event("s1", number, fact) for number, fact in enumerate(whole)]),
        False: history_of(
            [event("s1", number, fact) for number, fact in enumerate(each for each in whole if type(each) is not model)]
        ),
    }
    for has_it, history in histories.items():
        assert conclude(history) == _conclude(history)
        assert is_left_to_python(history) == has_it
        assert (plainly_written(history) is None) == has_it


@needs_speedups
@beside_a_current_module
def test_an_event_without_the_new_field_is_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, lag = make_writer(without(TrajectoryEnded, "error"))
    monkeypatch.setattr(trajectory_writer, "_WRITER", writer)
    monkeypatch.setattr(trajectory_writer, "LAG", lag)
    for value, is_fallback in ((b'{"answer":1}', False), (b'{"answer":1,"error":"x"}', True)):
        history = history_of([event("s1", 0, TrajectoryEnded(), value=value)])
        assert (plainly_written(history) is None) == is_left_to_python(history) == is_fallback
        assert conclude(history) == _conclude(history)


OLDER_VALUES = {
    "the role": (TrajectoryStarted, "role", "frozen"),
    "a tool's status": (ToolReturned, "status", "error"),
    "an end": (TrajectoryEnded, "status", "failed"),
}


@needs_speedups
@beside_a_current_module
@pytest.mark.parametrize(("model", "field", "value"), OLDER_VALUES.values(), ids=OLDER_VALUES)
def test_an_older_module_leaves_new_values_of_an_enum_to_python(
    model: type[Record], field: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = dict(SPEEDUPS.EVENT_FIELDS)
    names = [name for name in known[model.TYPE].split() if not name.startswith(f"{field}=")]
    (values,) = set(known[model.TYPE].split()) - set(names)
    others = [each for each in values.partition("=")[2].split("|") if each != value]
    writer, lag = make_writer(known | {model.TYPE: " ".join([*names, f"{field}={'|'.join(others)}"])})
    assert lag == NativeLag(values=frozenset({(model.TYPE, field, value)}))
    monkeypatch.setattr(trajectory_writer, "_WRITER", writer)
    monkeypatch.setattr(trajectory_writer, "LAG", lag)
    for given, is_fallback in ((others[0], False), (value, True)):
        payload = {"task_id": "a", "agent": "a", "call_id": "c", "tool": "t", field: given}
        number = 0 if model is TrajectoryStarted else 1
        changed = event("s1", number, model(**{name: payload[name] for name in payload if name in model.model_fields}))
        before = [event("s1", 0, TrajectoryStarted(task_id="a", agent="a"))] if number else []
        history = history_of([*before, changed])
        assert (plainly_written(history) is None) == is_left_to_python(history) == is_fallback
        assert conclude(history) == _conclude(history)


PLANTED = """
import json, sys
from typing import Any
if sys.argv[2] == "without":
    sys.modules["headrace.streams.native.speedups"] = None
from headrace.schemas import events
from headrace.schemas.records import trajectory, reference

def planted(room: Any, model: type, **fields: Any) -> None:
    namespace = {"__module__": model.__module__, "__annotations__": {name: kind for name, (kind, _) in fields.items()}}
    namespace |= {name: value for name, (_, value) in fields.items()}
    made = type(model)(model.__name__, (model,), namespace)
    setattr(room, model.__name__, made)
    events.FACTS = tuple(made if each is model else each for each in events.FACTS)

match sys.argv[1]:
    case "type":
        events.ContextPruned.TYPE = "headrace.context.pruned.v9"
    case "field":
        planted(events, events.ToolReturned, retries=(int, 0))
    case "odd field":
        planted(events, events.ToolReturned, pair=(tuple[int, int], (1, 2)))
    case "trajectory":
        planted(trajectory, trajectory.Trajectory, colour=(str, "blue"))
    case "defect":
        from enum import StrEnum
        trajectory.Defect = StrEnum("Defect", {each.name: each.value for each in trajectory.Defect} | {"NEW": "new"})

from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.assembly.trajectory_writer import LAG
from tests.streams.builders import log, session
assembly = PartitionAssembly.resume(FoldLimits(), None, [], position=0, output_end=0)
plain = session("s2", "ask", "ask")
for _ in assembly.take_all(log([*session("s1", "ask", "tool", "prune", "ask"), *plain])):
    pass
sent = [(each.topic.name, each.message.value.decode(), repr(each.message.headers)) for each in assembly.pending]
print(json.dumps([sent, assembly.native_fallbacks, str(LAG)]))
"""


@needs_speedups
@beside_a_current_module
@pytest.mark.parametrize(
    ("what", "fallbacks", "why"),
    [
        ("nothing", 0, ""),
        ("type", 1, "it does not know the event type headrace.context.pruned.v9"),
        ("field", 1, "it does not know the field retries of headrace.tool.returned.v1"),
        ("odd field", 1, "it does not know the field pair of headrace.tool.returned.v1"),
        ("trajectory", 2, "trajectories have other fields than it was built for, the first of them colour"),
        ("defect", 2, "it does not know when a trajectory has the defect new"),
    ],
)
def test_the_assembler_starts_with_a_module_that_lags_behind(what: str, fallbacks: int, why: str) -> None:
    def run(module: str) -> list[Any]:
        command = [sys.executable, "-c", PLANTED, what, module]
        found: list[Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return found

    sent, counted, said = run("with")
    assert (counted, said) == (fallbacks, why)
    assert [topic for topic, _, _ in sent] == ["trajectories"] * 2
    assert run("without") == [sent, 0, ""]
    assert ('"colour":"blue"' in sent[0][1]) == (what == "trajectory")
