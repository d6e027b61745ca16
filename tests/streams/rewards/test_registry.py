"""A spec is found by label, entry point, module or file; the error for a missing one contains the fix."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.streams.rewards.coder import CODER
from headrace.streams.rewards.context1 import SEARCH
from headrace.streams.rewards.context1_program import SEARCH_PROGRAM
from headrace.streams.rewards.context1_text import SEARCH_TEXT
from headrace.streams.rewards.environment import ENVIRONMENT
from headrace.streams.rewards.outcome import OUTCOME
from headrace.streams.rewards.planted import PLANTED, PLANTED_UNANNEALED
from headrace.streams.rewards.registry import (
    OURS,
    SHIPPED,
    RewardNotLoaded,
    Rewards,
    load_spec,
    offered,
    parse_rewards,
)
from headrace.streams.rewards.spec import RewardSpec
from headrace.streams.rewards.swarm import SWARM
from tests.streams.attempts import attempt

USER_PACKAGE = Path(__file__).parents[2] / "data" / "user_rewards"
USER_FILE = USER_PACKAGE / "table_rewards.py"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's package as pip would install it: its module on the path, its entry point in its metadata."""
    metadata = tmp_path / "table_rewards-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: table-rewards\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[headrace.rewards]\n"
        "tables = table_rewards:TABLES\n"
        "gone = table_rewards:NOTHING\n"
        "broken = no_such_package:SPEC\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(USER_PACKAGE)
    yield tmp_path
    sys.modules.pop("table_rewards", None)


@pytest.mark.parametrize("label", OURS)
def test_shipped_specs_are_found_by_label(label: str) -> None:
    assert load_spec(label) is OURS[label]
    assert load_spec(label).label == label


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("text", ["tables", "tables@1", "table_rewards:TABLES"])
def test_a_users_spec_is_found_by_entry_point_label_or_module(text: str) -> None:
    assert load_spec(text).label == "tables@1"
    assert load_spec(text) is load_spec("tables")


def test_a_users_spec_is_found_in_its_file_and_loaded_once() -> None:
    text = f"{USER_FILE}:TABLES"
    assert load_spec(text).label == "tables@1"
    assert load_spec(text) is load_spec(text)


@pytest.mark.usefixtures("installed")
def test_package_specs_are_listed_without_loading_them() -> None:
    assert {"tables", "gone", "broken"} <= {entry.name for entry in offered()}
    assert "table_rewards" not in sys.modules


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("serach@1", r"no reward 'serach@1': choose from outcome@1, search@1.*module:NAME"),
        ("tables@2", "names 0 specs; entry points of that name have tables@1"),
        ("gone", "loading entry point table_rewards:NOTHING raised AttributeError"),
        ("broken", "loading entry point no_such_package:SPEC raised ModuleNotFoundError"),
        ("no_such_package:SPEC", "Is its package installed in this environment"),
        ("table_rewards:NOTHING", "is nothing, not a RewardSpec: the module has TABLES"),
        ("table_rewards:expected_tools", "is a Term, not a RewardSpec: the module has TABLES"),
        ("table_rewards:", "'' after the colon is not a Python name"),
        ("nowhere/rewards.py:SPEC", "there is no file nowhere/rewards.py"),
    ],
)
def test_a_spec_that_cannot_be_loaded_reports_cause_and_fix(text: str, problem: str) -> None:
    with pytest.raises(RewardNotLoaded, match=problem):
        load_spec(text)


def test_a_file_that_ends_as_a_program_does_is_an_error_and_can_be_interrupted(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    for end in ("raise SystemExit(0)", "raise SystemExit(0)", "raise KeyboardInterrupt", "raise SystemExit(0)"):
        file.write_text(f"{end}\n")
        expected = KeyboardInterrupt if "Keyboard" in end else RewardNotLoaded
        with pytest.raises(expected):
            load_spec(f"{file}:SPEC")


def test_a_file_that_raises_is_an_error_with_its_cause_and_can_be_loaded_once_repaired(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("1 / 0\n")
    with pytest.raises(RewardNotLoaded, match="ZeroDivisionError") as caught:
        load_spec(f"{file}:SPEC")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    file.write_text("from headrace.streams.rewards.outcome import OUTCOME as SPEC\n")
    assert load_spec(f"{file}:SPEC") is OUTCOME


def test_two_files_with_one_name_are_two_modules(tmp_path: Path) -> None:
    specs = []
    for folder, version in (("a", 1), ("b", 2)):
        file = tmp_path / folder / "mine.py"
        file.parent.mkdir()
        file.write_text(
            "from headrace.streams.rewards.outcome import outcome\n"
            "from headrace.streams.rewards.spec import RewardSpec\n"
            f"SPEC = RewardSpec('mine', {version}, (outcome,))\n"
        )
        specs.append(load_spec(f"{file}:SPEC").label)
    assert specs == ["mine@1", "mine@2"]


def test_an_agent_has_its_spec_and_any_other_the_default() -> None:
    rewards = parse_rewards({"tables": f"{USER_FILE}:TABLES", "*": "search@2"})
    assert [rewards.of(attempt("t", agent=agent)).label for agent in ("tables", "search", "anybody")] == [
        "tables@1",
        "search@1",
        "search@2",
    ]
    assert rewards.of(attempt("t", started=False)).label == "search@2"
    labels = {"tables@1", "search@1", "search@4", "search-text@1", "coder@1", "swarm@1", "environment@1", "search@2"}
    assert {spec.label for spec in rewards.specs} == labels | {"planted@1", "planted-unannealed@1"}


def test_no_two_shipped_specs_have_one_label() -> None:
    assert len(OURS) == len(SHIPPED)


def test_without_a_setting_our_agents_have_their_reward_and_others_their_outcome() -> None:
    agents = {"search": SEARCH, "search-program": SEARCH_PROGRAM, "search-text": SEARCH_TEXT}
    agents |= {"coder": CODER, "swarm": SWARM, "environment": ENVIRONMENT}
    simulated = {"planted": PLANTED, "planted-unannealed": PLANTED_UNANNEALED}
    assert parse_rewards({}) == Rewards({**agents, **simulated}, OUTCOME)


def test_two_specs_with_one_label_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.py"
    file.write_text(
        "from headrace.streams.rewards.outcome import outcome\n"
        "from headrace.streams.rewards.spec import RewardSpec\n"
        "SPEC = RewardSpec('outcome', 1, (outcome,), maximum=5.0)\n"
    )
    with pytest.raises(RewardNotLoaded, match="agent 'mine': another spec also has the label outcome@1"):
        parse_rewards({"mine": f"{file}:SPEC"})
    assert isinstance(parse_rewards({"mine": "outcome@1"}).default, RewardSpec)


def test_every_shipped_spec_has_a_label_of_its_own() -> None:
    assert len(OURS) == len(SHIPPED)
