"""Ports are free, on the loopback interface, and remembered."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.deploy.system.ports import HOST, free_port, free_ports, is_free, remembered_ports


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_in_use_is_not_free(taken: int) -> None:
    assert not is_free(taken)
    assert is_free(free_port())


def test_several_free_ports_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.deploy.system.ports._CHOICES", range(30_000, 30_120))
    assert len(set(free_ports(60))) == 60


def test_ports_are_the_same_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "data" / "ports.json"
    ports = remembered_ports(file, ("kafka", "vllm"))
    assert len(set(ports.values())) == 2
    assert remembered_ports(file, ("vllm", "kafka")) == ports


def test_a_remembered_port_that_was_taken_since_is_replaced(tmp_path: Path, taken: int) -> None:
    file = tmp_path / "ports.json"
    file.write_text(json.dumps({"kafka": taken, "other": 1}))
    ports = remembered_ports(file, ("kafka",))
    assert ports.keys() == {"kafka"}
    assert is_free(ports["kafka"])
    assert json.loads(file.read_text()) == {"kafka": ports["kafka"], "other": 1}
