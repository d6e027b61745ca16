"""Files of an operator: what is no file, or too large, ends a start with an error instead of holding it."""

import os
from pathlib import Path

import pytest

from headrace.agents.gateway.gateway import SECRET_BYTES, GatewayUnusable, signing_secret
from headrace.agents.gateway.regular_file import read_regular


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10)
    assert read_regular(file, 10) == b"x" * 10
    with pytest.raises(OSError, match="larger than 9 bytes"):
        read_regular(file, 9)


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"not a regular file|directory"):
            read_regular(path, 10)


def test_the_secret_is_made_once(tmp_path: Path) -> None:
    secret = signing_secret(tmp_path / "state")
    assert len(secret) == SECRET_BYTES
    assert signing_secret(tmp_path / "state") == secret
    assert (tmp_path / "state" / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("length", [0, SECRET_BYTES - 1, SECRET_BYTES + 1])
def test_a_secret_of_another_length_is_refused(length: int, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s" * length)
    with pytest.raises(GatewayUnusable, match="restore it, or remove it"):
        signing_secret(tmp_path)


def test_a_secret_that_is_a_pipe_does_not_hold_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "secret")
    with pytest.raises(GatewayUnusable, match="not a regular file"):
        signing_secret(tmp_path)


def test_a_folder_that_takes_no_secret_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GatewayUnusable, match=r"Make the folder writable.*--data") as error:
        signing_secret(tmp_path / "file" / "gateway")
    assert "remove it" not in str(error.value), "there is no secret to remove"
