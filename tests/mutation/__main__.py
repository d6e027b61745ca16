"""Mutation testing of losses, folds, groups and admission: how many small mistakes do tests detect?

    python -m tests.mutation [--count 50] [--seed 0] [--only losses,fold] [--out FILE]

Each mutant changes one line in a copy of the tree; then the tests of its area that need no server run in the copy. A
mutant that no test detects is printed: kill it with a new test, or verify that it changes nothing.
"""

import argparse
import compileall
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutation.mutants import Mutant, draw, places_in

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Area:
    """Files, and the tests that should detect a mistake in them."""

    files: tuple[str, ...]
    """Patterns from the root of the tree."""
    tests: tuple[str, ...]
    """Files or folders."""


AREAS = {
    "losses": Area(("trainer/losses/*.py",), ("tests/trainer/losses",)),
    "batches": Area(
        ("trainer/batches/*.py",),
        ("tests/trainer/batches", "tests/trainer/learning", "tests/trainer/model/test_isolation.py"),
    ),
    "admission": Area(("trainer/admission/*.py",), ("tests/trainer/admission", "tests/trainer/steps/test_gather.py")),
    "fold": Area(("streams/assembly/*.py",), ("tests/streams/assembly", "tests/streams/native")),
    "groups": Area(("streams/grouping/*.py",), ("tests/streams/grouping", "tests/streams/test_drive.py")),
    "feedback": Area(("streams/scoring/*.py",), ("tests/streams/scoring", "tests/streams/test_drive.py")),
    "runtime": Area(
        ("streams/runtime/runtime.py", "streams/processors/score.py", "streams/processors/group.py"),
        (
            "tests/streams/runtime/test_runtime.py",
            "tests/streams/test_drive.py",
            "tests/streams/dead_letters",
            "tests/fuzz",
        ),
    ),
    "watch": Area(
        ("streams/watch/*.py", "streams/processors/watch.py", "streams/processors/observe.py"),
        ("tests/streams/watch", "tests/streams/processors/test_watch.py"),
    ),
    "oncall": Area(
        ("streams/oncall/*.py", "streams/notifying/*.py"), ("tests/streams/oncall", "tests/streams/notifying")
    ),
    "archive": Area(
        ("schemas/archive/*.py", "streams/archiving/*.py"), ("tests/schemas/archive", "tests/streams/archiving")
    ),
    "sdk": Area(
        (
            "agents/sender.py",
            "agents/outbox.py",
            "agents/delivery.py",
            "agents/spool*.py",
            "agents/left_behind.py",
            "agents/counters.py",
        ),
        (
            "tests/agents/test_spool.py",
            "tests/agents/test_spool_frames.py",
            "tests/agents/test_outbox.py",
            "tests/agents/test_delivery.py",
            "tests/agents/test_delivery_doubts.py",
            "tests/agents/test_sender.py",
            "tests/agents/test_sdk_process.py",
            "tests/agents/test_counters.py",
            "tests/agents/test_left_behind.py",
            "tests/agents/test_reentry.py",
            "tests/agents/test_fork.py",
            "tests/agents/test_client_log.py",
        ),
    ),
    "gateway": Area(
        (
            "agents/gateway/canonical.py",
            "agents/gateway/continuation.py",
            "agents/gateway/nodes.py",
            "agents/gateway/record.py",
            "agents/gateway/session_grants.py",
            "agents/gateway/session_identity.py",
            "agents/gateway/sessions.py",
            "agents/gateway/splice.py",
            "agents/gateway/tenants.py",
            "agents/gateway/terms.py",
        ),
        (
            "tests/agents/gateway/test_access.py",
            "tests/agents/gateway/test_beside_the_main.py",
            "tests/agents/gateway/test_canonical.py",
            "tests/agents/gateway/test_capture.py",
            "tests/agents/gateway/test_continuation.py",
            "tests/agents/gateway/test_nodes.py",
            "tests/agents/gateway/test_record.py",
            "tests/agents/gateway/test_retries.py",
            "tests/agents/gateway/test_session_identity.py",
            "tests/agents/gateway/test_sessions.py",
            "tests/agents/gateway/test_splice.py",
            "tests/agents/gateway/test_terms.py",
            "tests/agents/gateway/test_gateway_sessions.py",
        ),
    ),
    "pages": Area(
        (
            "deploy/dashboard/sharing.py",
            "deploy/dashboard/selection.py",
            "deploy/dashboard/export.py",
            "deploy/dashboard/acknowledging.py",
            "deploy/transcript/*.py",
            "deploy/watching/*.py",
        ),
        (
            "tests/deploy/dashboard/test_sharing.py",
            "tests/deploy/dashboard/test_selection.py",
            "tests/deploy/dashboard/test_export.py",
            "tests/deploy/dashboard/test_acknowledging.py",
            "tests/deploy/transcript",
            "tests/deploy/watching",
        ),
    ),
}
RUN_LAST = ("test_references", "test_restart")
"""Tests that first spend a minute on something else."""
NOT_RUN = ("test_memory",)
"""Tests that measure sixteen processes, to verify the constants of the fold's memory estimate; they take minutes."""
_KAFKA_FILES = (
    "assembler.py", "partition_runner.py", "partition_reader.py", "intake.py", "in_flight.py",
    "recovered_outputs.py", "undecided_dead_letters.py", "lost_offset.py",
)  # fmt: skip
"""Suffixes of files that only talk to Kafka: their tests need a broker."""


def main() -> None:
    """Draw mutants, run their tests, print survivors; exits with 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=50, help="mutants, over all areas by their lines")
    parser.add_argument("--seed", type=int, default=0, help="another one draws others")
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(AREAS)}")
    parser.add_argument("--out", type=Path, help="file for the outcomes, as JSON")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(AREAS)
    if unknown := set(chosen) - AREAS.keys():
        parser.error(f"there is no area {', '.join(sorted(unknown))}: there are {', '.join(AREAS)}")
    places = [place for name in chosen for path in _files(AREAS[name]) for place in places_in(ROOT, path)]
    drawn = draw(ROOT, places, options.count, options.seed)
    print(f"{len(drawn)} mutants, of {len(places)} possible changes", flush=True)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        copy = _copy_of_tree(Path(folder) / "tree")
        tests = _Tests(copy)
        for number, mutant in enumerate(drawn, start=1):
            begun = time.monotonic()
            by = tests.detected_by(mutant)
            fate = f"noticed by {by}" if by else "SURVIVED"
            where = f"{mutant.place.path}:{mutant.place.line}"
            print(f"{number}/{len(drawn)} {where} {fate} ({time.monotonic() - begun:.0f} s)", flush=True)
            outcomes.append({**asdict(mutant.place), "diff": mutant.diff, "detected_by": by})
            if options.out:
                told = {"seed": options.seed, "of": len(places), "outcomes": outcomes}
                options.out.write_text(json.dumps(told, indent=1))
        tests.end()
    survived = [each for each in outcomes if not each["detected_by"]]
    for each in survived:
        print(f"\n{each['path']}:{each['line']} ({each['operator']})\n{each['diff']}")
    print(f"\n{len(outcomes) - len(survived)} of {len(outcomes)} noticed")
    sys.exit(bool(survived))


def _files(area: Area) -> list[str]:
    found = (path for pattern in area.files for path in ROOT.glob(pattern))
    return sorted(str(path.relative_to(ROOT)) for path in found if not path.name.endswith(_KAFKA_FILES))


def _copy_of_tree(copy: Path) -> Path:
    """Copy the files that git tracks or would track and the built native module, and link this environment."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    built = [str(path.relative_to(ROOT)) for path in ROOT.glob("streams/native/*.so")]
    for name in [*names, *built]:
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    # Checked by their contents, not by time and size: a mutant may have the same as what it came from.
    compileall.compile_dir(copy, quiet=2, workers=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return copy


class _Tests:
    """Runs tests in the copy, each time in a fork of one process (``forked.py``)."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy
        self._sound: set[str] = set()  # files that pass without a mutant, of those that were run
        told = {"PYTHONPATH": str(copy / "src"), "CI": "", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.forked"], cwd=copy, env=os.environ | told,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def detected_by(self, mutant: Mutant) -> str | None:
        """The test file of its area that detects ``mutant``; ``None`` if none does.

        Raises ``SystemExit`` if that file also fails without the mutant.
        """
        area = next(area for area in AREAS.values() if mutant.place.path in _files(area))
        place = self._copy / mutant.place.path
        original = place.read_text()
        place.write_text(mutant.code)
        try:
            output = self._failure(self._ordered(area, first=place.stem))
        finally:
            place.write_text(original)
        if output is None:
            return None
        named = re.search(r"^(?:FAILED|ERROR) ([^:\s]+)", output, re.MULTILINE)
        if named is None:
            return "(ended without a result)"
        file = named[1]
        if file not in self._sound:
            if (failure := self._failure([file])) is not None:
                raise SystemExit(f"{file} fails without a mutant:\n{failure}")
            self._sound.add(file)
        return file

    def _failure(self, files: list[str]) -> str | None:
        """Output of the tests in ``files`` if one fails or they never end; ``None`` if all pass."""
        arguments = [
            *files, "-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider",
            "--hypothesis-profile=unshrunk",
            "-m", "not kafka and not clickhouse and not vllm and not browser and not s3 and not slow",
        ]  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return None if answer["code"] == 0 else f"exit {answer['code']}\n{answer['output']}"

    def _ordered(self, area: Area, first: str) -> list[str]:
        """The test files, those named after ``first`` first and those that start other programs last."""
        found = []
        for name in area.tests:
            path = self._copy / name
            found += [path] if path.is_file() else sorted(path.rglob("test_*.py"))
        found = [path for path in found if path.stem not in NOT_RUN]
        found.sort(key=lambda path: (path.stem != f"test_{first}", path.stem in RUN_LAST))
        return [str(path.relative_to(self._copy)) for path in found]

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


if __name__ == "__main__":
    main()
