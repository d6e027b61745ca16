"""The dashboards have the types of Grafana's published schema."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.deploy.grafana.files import files
from tests.built import by_npm
from tests.needs import needs

HERE = Path(__file__).parent / "types"
pytestmark = needs("npm")

_OPTIONS = {
    "trend": "trend/panelcfg/x/TrendPanelCfg_types.gen",
    "timeseries": "timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen",
    "barchart": "barchart/panelcfg/x/BarChartPanelCfg_types.gen",
    "table": "table/panelcfg/x/TablePanelCfg_types.gen",
    "stat": "stat/panelcfg/x/StatPanelCfg_types.gen",
}
"""Type of a panel → the module with the type of its options."""


def program(dashboards: list[dict[str, object]]) -> str:
    """A program in TypeScript whose types hold if and only if those of the dashboards do."""
    lines = [(HERE / "loose.ts").read_text()]
    for name, module in _OPTIONS.items():
        lines.append(
            f'import type {{ Options as Options_{name} }} from "@grafana/schema/dist/esm/raw/composable/{module}";'
        )
    for number, each in enumerate(dashboards):
        lines.append(f"export const dashboard_{number}: Loose<Dashboard> = {json.dumps(each)};")
        for panel in each["panels"]:  # type: ignore[attr-defined]
            if panel["type"] != "row":
                name = f"options_{number}_{panel['id']}"
                lines.append(f"export const {name}: Loose<Options_{panel['type']}> = {json.dumps(panel['options'])};")
    return "\n".join(lines) + "\n"


def compiled(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    installed = by_npm(HERE, "grafana-types")
    (folder / "dashboards.ts").write_text(text)
    shutil.copy(HERE / "tsconfig.json", folder)
    (folder / "node_modules").symlink_to(installed / "node_modules")
    (folder / "package.json").write_text('{"type": "module"}')
    argv = [str(installed / "bin" / "node"), str(installed / "node_modules" / "typescript" / "bin" / "tsc")]
    return subprocess.run([*argv, "-p", str(folder)], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def dashboards() -> list[dict[str, object]]:
    return [json.loads(content) for path, content in files("/x").items() if path.startswith("dashboards/")]


def test_dashboards_have_the_types_of_the_schema(dashboards: list[dict[str, object]], tmp_path: Path) -> None:
    done = compiled(program(dashboards), tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("field", "value"), [("uid", 7), ("templating", {"list": [{"name": "run", "type": "wrong"}]}), ("panels", 3)]
)
def test_a_wrong_type_is_noticed(
    dashboards: list[dict[str, object]], tmp_path: Path, field: str, value: object
) -> None:
    changed = {**dashboards[0], field: value}
    done = compiled(f"{program([])}export const changed: Loose<Dashboard> = {json.dumps(changed)};\n", tmp_path)
    assert done.returncode != 0
    assert "error TS" in done.stdout
