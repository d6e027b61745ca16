"""The files that Grafana reads: dashboards, and provisioning of the data source, the dashboards and the alert rules.

    DIR/dashboards/headrace-overview.json …            one file a dashboard
    DIR/provisioning/datasources/headrace.yaml         Grafana's GF_PATHS_PROVISIONING is DIR/provisioning
    DIR/provisioning/dashboards/headrace.yaml
    DIR/provisioning/alerting/headrace.yaml

The YAML files contain JSON, which is YAML.
"""

import json
from collections.abc import Mapping
from typing import Any

from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.grafana import alert_rules, datasource
from headrace.deploy.grafana.dashboards import SHOWN, dashboard


def files(dashboards_path: str) -> Mapping[str, str]:
    """Returns all files by their paths in the folder; ``dashboards_path``: where Grafana finds DIR/dashboards."""
    pages = {page.path: page for page in PAGES}
    contents: dict[str, dict[str, Any]] = {
        f"dashboards/{shown.uid}.json": dashboard(shown, pages[shown.path]) for shown in SHOWN if shown.path in pages
    }
    contents["provisioning/datasources/headrace.yaml"] = datasource.provisioning()
    contents["provisioning/dashboards/headrace.yaml"] = _provider(dashboards_path)
    contents["provisioning/alerting/headrace.yaml"] = alert_rules.provisioning()
    return {path: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for path, content in contents.items()}


def _provider(path: str) -> dict[str, Any]:
    provider = {
        "name": "headrace",
        "orgId": 1,
        "folder": alert_rules.FOLDER,
        "folderUid": "headrace",
        "type": "file",
        "disableDeletion": False,
        "allowUiUpdates": False,
        "options": {"path": path},
    }
    return {"apiVersion": 1, "providers": [provider]}
