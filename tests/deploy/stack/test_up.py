"""``headrace up`` as a user runs it, with a real Kafka: Ctrl-C, SIGTERM and SIGKILL leave no process behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.kafka

ONLY_KAFKA = "clickhouse,vllm,assemble,workers,sink,trainer,follower,dashboard"
HEADRACE = (sys.executable, "-m", "headrace.deploy.cli")


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HEADRACE, *arguments], capture_output=True, text=True, check=False, timeout=120)


def status(data: Path) -> dict[str, object]:
    shown = headrace("status", "--json", "--data", str(data))
    return json.loads(shown.stdout) if shown.stdout else {}


def eventually(holds: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture
def up(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run ``headrace up`` in the foreground until it is ready."""
    argv = [*HEADRACE, "up", "--data", str(tmp_path), "--without", ONLY_KAFKA]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert eventually(lambda: bool(status(tmp_path).get("ready")) or process.poll() is not None)
            assert process.poll() is None, process.stdout and process.stdout.read()
            yield process
        finally:
            process.kill()


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    members = psutil.Process(process.pid).children(recursive=True)
    assert any("kafka.Kafka" in member.cmdline() for member in members)
    return members


def nothing_left(members: list[psutil.Process]) -> bool:
    return eventually(lambda: not any(member.is_running() for member in members), 10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_stops_it_cleanly_and_leaves_no_process(
    up: subprocess.Popen[str], number: signal.Signals, tmp_path: Path
) -> None:
    members = family(up)
    up.send_signal(number)
    output, _ = up.communicate(timeout=60)
    assert up.returncode == 0, output
    assert "  kafka " in output
    assert "Traceback" not in output
    assert nothing_left(members)
    assert "No stack runs" in headrace("status", "--data", str(tmp_path)).stderr


def test_sigkill_of_the_command_leaves_no_process_and_a_usable_folder(
    up: subprocess.Popen[str], tmp_path: Path
) -> None:
    members = family(up)
    up.kill()
    up.wait()
    assert nothing_left(members)
    again = headrace("up", "--detach", "--data", str(tmp_path), "--without", ONLY_KAFKA)
    assert again.returncode == 0, again.stdout + again.stderr
    assert headrace("down", "--data", str(tmp_path)).returncode == 0


def test_a_background_stack_is_shown_and_stopped_from_another_shell(tmp_path: Path) -> None:
    begun = headrace("up", "--detach", "--data", str(tmp_path), "--without", ONLY_KAFKA)
    assert begun.returncode == 0, begun.stdout + begun.stderr
    try:
        shown = status(tmp_path)
        assert shown["kafka"] == shown["parts"]["kafka"]["address"]  # type: ignore[index]
        assert (shown["clickhouse"], shown["vllm"], shown["dashboard"]) == (None, None, None)
        assert "events: What agents did." in headrace("topics", "--create", "--data", str(tmp_path)).stdout
        second = headrace("up", "--detach", "--data", str(tmp_path), "--without", ONLY_KAFKA)
        assert second.returncode == 1
        assert f"A stack already runs on {tmp_path}" in second.stderr
        supervisor = psutil.Process(int(str(shown["pid"])))
        members = supervisor.children(recursive=True)
    finally:
        ended = headrace("down", "--data", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert nothing_left([supervisor, *members])


def test_a_failed_start_in_the_background_reports_the_reason(tmp_path: Path) -> None:
    begun = headrace("up", "--detach", "--data", str(tmp_path / "a,b"), "--without", ONLY_KAFKA)
    assert begun.returncode == 1
    assert begun.stderr.startswith("Error: Kafka does not support a comma")
    assert "choose another folder with --data" in begun.stderr
    assert "Traceback" not in begun.stdout + begun.stderr


def test_a_start_in_the_background_continues_the_run_of_the_folder(tmp_path: Path) -> None:
    def start(*options: str) -> tuple[str, object]:
        begun = headrace("up", "--detach", "--data", str(tmp_path), "--without", ONLY_KAFKA, *options)
        assert begun.returncode == 0, begun.stdout + begun.stderr
        run = status(tmp_path)["run"]
        assert headrace("down", "--data", str(tmp_path)).returncode == 0
        return begun.stdout, run

    output, run = start("--run", "first")
    assert (run, "run first" in output) == ("first", False)
    output, run = start()
    assert (run, output.count("Continuing run first")) == ("first", 1)
    output, run = start("--run", "second")
    assert (run, output.count("The last run on this folder was first; this start is of run second")) == ("second", 1)


def test_a_signal_during_the_start_leaves_no_process(tmp_path: Path) -> None:
    argv = [*HEADRACE, "up", "--data", str(tmp_path), "--without", ONLY_KAFKA]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            supervisor = psutil.Process(process.pid)
            assert eventually(lambda: len(supervisor.children(recursive=True)) >= 2, 30)
            members = supervisor.children(recursive=True)
            os.kill(process.pid, signal.SIGINT)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert nothing_left(members)


@pytest.mark.parametrize("name", ["größer-данные-日本", "with a space", "x" * 200])
def test_any_folder_name_and_locale_work(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "C")
    monkeypatch.setenv("LC_ALL", "C")
    data = tmp_path / name
    for _ in range(2):  # the first start formats the folder, the second reuses it
        begun = headrace("up", "--detach", "--data", str(data), "--without", ONLY_KAFKA)
        assert begun.returncode == 0, begun.stdout + begun.stderr
        assert "events: What agents did." in headrace("topics", "--create", "--data", str(data)).stdout
        assert headrace("down", "--data", str(data)).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (data / "kafka" / "log" / "events-0").is_dir()


def test_a_data_folder_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    begun = headrace("up", "--detach", "--data", str(tmp_path / "link"), "--without", ONLY_KAFKA)
    assert begun.returncode == 0, begun.stdout + begun.stderr
    assert headrace("down", "--data", str(tmp_path / "there")).returncode == 0
    assert (tmp_path / "there" / "kafka" / "log" / "events-0").is_dir()
