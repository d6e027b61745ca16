"""What is missing is named with the command that mends it."""

from pathlib import Path

import pytest

from headrace.agents.sandbox.availability import available, mends
from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import ProviderUnavailable

OVERLAY = "nodev\toverlay\n\text4\n"


def settings(**values: str) -> dict[str, str]:
    return {"max_user_namespaces": "9000\n"} | values


@pytest.mark.parametrize(
    ("found", "filesystems", "expected"),
    [
        (settings(), OVERLAY, []),
        (settings(max_user_namespaces="0\n"), OVERLAY, ["sysctl -w user.max_user_namespaces=15000"]),
        (settings(unprivileged_userns_clone="0\n"), OVERLAY, ["sysctl -w kernel.unprivileged_userns_clone=1"]),
        (
            settings(apparmor_restrict_unprivileged_userns="1\n"),
            OVERLAY,
            ["sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"],
        ),
        (settings(), "\text4\n", ["modprobe overlay"]),
        ({}, OVERLAY, ["use a kernel with user namespaces (CONFIG_USER_NS)"]),
    ],
)
def test_what_forbids_a_mount_is_named(found: dict[str, str], filesystems: str, expected: list[str]) -> None:
    assert mends(lambda path: found.get(path.name), filesystems) == expected


async def test_missing_programs_are_named_with_their_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    found = {each.provider: each for each in await available(folder)}
    assert not found["overlay"].works
    assert "bwrap" in found["overlay"].message
    assert "apt-get install bubblewrap" in found["overlay"].message
    assert not found["runsc"].works
    assert "apt-get install runsc" in found["runsc"].message
    assert "NO isolation" in found["local"].message


async def test_a_provider_that_cannot_run_a_command_is_not_available(
    overlay: Overlay, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = folder / "bwrap"
    broken.write_text("#!/bin/sh\necho no user namespaces >&2\nexit 1\n")
    broken.chmod(0o755)
    folder.chmod(0o755)
    monkeypatch.setattr("headrace.agents.sandbox.confined.BWRAP", str(broken))
    with pytest.raises(ProviderUnavailable, match="no user namespaces"):
        await Overlay.create(folder / "other")
