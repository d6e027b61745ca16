"""How many small mistakes in the losses, folds, groups and admission would a test notice? Makes some, and counts.

    python -m tests.mutation [--count 50] [--seed 0] [--only losses,fold] [--out FILE]

Each mutant changes one line in a copy of the tree; the tests of its area then run in the copy, those without servers. A
mutant that no test notices is printed: kill it with a test, or see that it changes nothing.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutation.mutants import Mutant, draw, places_in

ROOT = Path(__file__).parents[2]
LIMIT_S = 600
"""Of the tests of one mutant: one that never ends is noticed, too."""


@dataclass(frozen=True, slots=True)
class Area:
    """Files, and the tests that should notice a mistake in them."""

    files: tuple[str, ...]
    """Patterns from the root of the tree."""
    tests: tuple[str, ...]
    """Files or folders."""


AREAS = {
    "losses": Area(("trainer/losses/*.py",), ("tests/trainer/losses",)),
    "batches": Area(
        ("trainer/batches/*.py",), ("tests/trainer/batches", "tests/trainer/learning", "tests/trainer/model")
    ),
    "admission": Area(("trainer/admission/*.py",), ("tests/trainer/admission", "tests/trainer/test_gather.py")),
    "fold": Area(("streams/assembly/*.py",), ("tests/streams/assembly", "tests/streams/native")),
    "groups": Area(("streams/grouping/*.py",), ("tests/streams/grouping", "tests/streams/test_drive.py")),
    "feedback": Area(("streams/scoring/*.py",), ("tests/streams/scoring", "tests/streams/test_drive.py")),
}
_SHELLS = ("worker.py", "assembler.py", "partition_runner.py", "partition_reader.py", "intake.py", "decider.py")
"""Ends of names of files that only speak to Kafka: their tests need one."""


def main() -> None:
    """Draw mutants, run their tests, print what survived; exits 1 where anything did."""
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
        for name in chosen:
            _run(copy, AREAS[name], "the tests fail without a mutant")
        for number, mutant in enumerate(drawn, start=1):
            begun = time.monotonic()
            killed = _killed(copy, mutant)
            print(
                f"{number}/{len(drawn)} {mutant.place.path}:{mutant.place.line} {'killed' if killed else 'SURVIVED'} "
                f"({time.monotonic() - begun:.0f} s)",
                flush=True,
            )
            outcomes.append({**asdict(mutant.place), "diff": mutant.diff, "killed": killed})
    survived = [each for each in outcomes if not each["killed"]]
    for each in survived:
        print(f"\n{each['path']}:{each['line']} ({each['operator']})\n{each['diff']}")
    print(f"\n{len(outcomes) - len(survived)} of {len(outcomes)} killed")
    if options.out:
        options.out.write_text(json.dumps({"seed": options.seed, "of": len(places), "outcomes": outcomes}, indent=1))
    sys.exit(bool(survived))


def _files(area: Area) -> list[str]:
    found = (path for pattern in area.files for path in ROOT.glob(pattern))
    return sorted(str(path.relative_to(ROOT)) for path in found if not path.name.endswith(_SHELLS))


def _copy_of_tree(copy: Path) -> Path:
    """What git tracks or would, the built native module, and this environment by a link."""
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
    return copy


def _killed(copy: Path, mutant: Mutant) -> bool:
    area = next(area for area in AREAS.values() if mutant.place.path in _files(area))
    place = copy / mutant.place.path
    original = place.read_text()
    place.write_text(mutant.code)
    try:
        return _failure(copy, area) is not None
    finally:
        place.write_text(original)


def _run(copy: Path, area: Area, what: str) -> None:
    if (failure := _failure(copy, area)) is not None:
        raise SystemExit(f"{what}:\n{failure}")


def _failure(copy: Path, area: Area) -> str | None:
    """What the tests of ``area`` print where one fails or they never end; ``None`` where all pass."""
    command = [
        sys.executable, "-m", "pytest", *area.tests, "-x", "-q", "--no-header", "-p", "no:cacheprovider",
        "-m", "not kafka and not clickhouse and not vllm and not browser and not s3 and not slow",
    ]  # fmt: skip
    told = {"PYTHONPATH": f"{copy / 'src'}", "PYTHONDONTWRITEBYTECODE": "1", "CI": ""}
    try:
        done = subprocess.run(
            command, cwd=copy, env=os.environ | told, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_S} s"
    return None if done.returncode == 0 else done.stdout[-3000:] + done.stderr[-1000:]


if __name__ == "__main__":
    main()
