"""Alerts of a follower."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headrace.schemas.ids import derived_id
from headrace.schemas.records.alert import Alert, Severity
from headrace.trainer.follower.config import FollowerConfig

CANARY_MISMATCH = "canary_mismatch"
WEIGHTS_UNUSABLE = "weights_unusable"
SWAP_REFUSED = "swap_refused"
NO_GOOD_VERSION = "no_good_version"
WEIGHTS_UNTRUSTED = "weights_untrusted"
WEIGHTS_GAP = "weights_gap"
WEIGHTS_MISSING = "weights_missing"
ENGINE_FAILING = "engine_failing"
ENGINE_TAKEN = "engine_taken"
STORE_FAILING = "store_failing"
"""Kinds of alerts that a follower raises."""


def follower_alert(
    config: FollowerConfig,
    kind: str,
    message: str,
    severity: Severity,
    details: Mapping[str, Any] = MappingProxyType({}),
) -> Alert:
    """Returns the alert of the follower with ``config``; ``details`` are added to the engine's name."""
    return Alert(
        run=config.run,
        source=f"follower {config.engine}",
        kind=kind,
        severity=severity,
        message=message,
        details={"engine": config.engine, **details},
    )


def record_alert_id(kind: str, config: FollowerConfig, place: str) -> str:
    """Returns the ID of the alert about the record at ``place`` of the log, the same after a restart."""
    return derived_id(Alert.TYPE, kind, config.run, config.engine, place)
