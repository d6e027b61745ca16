"""A gateway keeps its id over restarts, and no two processes have the same."""

from pathlib import Path

import pytest

from headrace.agents.gateway.restore.fold import SOURCES
from headrace.agents.gateway.restore.instance import InstanceUnusable, take_instance


def test_the_id_stays_and_is_of_one_process_at_a_time(tmp_path: Path) -> None:
    first, second = take_instance(tmp_path), take_instance(tmp_path)
    assert first.id != second.id
    assert first.source == SOURCES + first.id
    first.release()
    again = take_instance(tmp_path)
    assert again.id == first.id
    again.release()
    second.release()
    assert (tmp_path / "gateway-0.id").stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_never_written_gets_an_id(tmp_path: Path) -> None:
    (tmp_path / "gateway-0.id").touch()
    instance = take_instance(tmp_path)
    instance.release()
    assert (tmp_path / "gateway-0.id").read_text() == instance.id


@pytest.mark.parametrize("content", ["not an id", "0190f2c0-7c1b-7e0a-9d55-0f4be0d1a2b3\nmore"])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "gateway-0.id").write_text(content)
    with pytest.raises(InstanceUnusable, match="remove it"):
        take_instance(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "gateway-0.id").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InstanceUnusable, match="cannot be read or made"):
        take_instance(tmp_path)
