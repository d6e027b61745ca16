"""``headrace sandbox`` prints what works and how fast it forks, and removes snapshots only from a store."""

import json
import tempfile
from pathlib import Path

from click.testing import CliRunner, Result

from headrace.deploy.cli import cli


def headrace(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["sandbox", *arguments])


def test_every_provider_has_a_line_and_forks_are_measured() -> None:
    shown = headrace("--rounds", "2", "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.output)
    assert [each["provider"] for each in found["providers"]] == [
        *("overlay", "runsc", "local", "e2b", "modal", "daytona")
    ]
    assert found["measured"] in {"overlay", "local"}
    assert all(0 < each["p50_ms"] <= each["p95_ms"] for each in found["ms"].values())
    assert set(found["ms"]) == {"start", "snapshot", "fork", "first command", "second command"}


def test_only_a_store_is_cleaned_and_unknown_snapshots_stop_it(tmp_path: Path) -> None:
    assert "needs --store" in headrace("--remove-unreferenced").output
    assert "is no store" in headrace("--remove-unreferenced", "--store", str(tmp_path)).output
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "snapshots").mkdir()
        keep = headrace("--remove-unreferenced", "--store", folder, "--keep", "ab12")
        assert "has no snapshot ab12" in keep.output
        assert "0 layers removed" in headrace("--remove-unreferenced", "--store", folder).output
