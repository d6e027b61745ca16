"""Where control groups are, in both versions, and what their counters say."""

from pathlib import Path

import pytest

from headrace.agents.sandbox.cgroups import ControlGroups, Controller, Group, GroupsUnavailable, hierarchies
from headrace.agents.sandbox.protocol import Limits, Outcome

V1 = """\
24 23 0:21 / /sys/fs/cgroup ro shared:5 - tmpfs tmpfs rw
30 24 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:11 - cgroup cgroup rw,memory
31 24 0:28 /docker/9c1e /sys/fs/cgroup/pids rw,nosuid shared:12 - cgroup cgroup rw,pids
32 24 0:29 / /sys/fs/cgroup/unified rw,nosuid shared:13 - cgroup2 cgroup2 rw
"""
V2 = "30 24 0:27 / /sys/fs/cgroup rw,nosuid shared:11 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_version_1_has_a_hierarchy_for_each_controller() -> None:
    own = "5:memory:/user.slice\n4:pids:/docker/9c1e\n1:name=systemd:/\n0::/\n"
    assert hierarchies(V1, own) == {
        "memory": (Path("/sys/fs/cgroup/memory/user.slice"), 1),
        "pids": (Path("/sys/fs/cgroup/pids"), 1),
    }


def test_version_2_has_one_for_all() -> None:
    place = (Path("/sys/fs/cgroup/user.slice/a"), 2)
    assert hierarchies(V2, "0::/user.slice/a\n") == {"memory": place, "pids": place}


def test_without_control_groups_there_is_nothing() -> None:
    assert hierarchies("22 1 8:1 / / rw - ext4 /dev/sda rw\n", "") == {}


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path, (("pids.max", "processes"),), ("pids.events", "max"), Outcome.TOO_MANY_PROCESSES)


def test_a_bound_that_was_reached_is_reported_once(controller: Controller, tmp_path: Path) -> None:
    group = Group([(controller, tmp_path)])
    counter = tmp_path / "pids.events"
    counter.write_text("max 0\n")
    assert group.reached() is None
    counter.write_text("max 2\n")
    assert group.reached() is Outcome.TOO_MANY_PROCESSES
    assert group.reached() is None


def test_a_controller_that_is_not_enabled_is_an_error_with_its_name(controller: Controller) -> None:
    with pytest.raises(GroupsUnavailable, match=r"pids\.events"):
        ControlGroups([controller]).create("s1", Limits())
    assert list(controller.parent.iterdir()) == []
