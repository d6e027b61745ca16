"""Reading a small file whose path an operator gave: a pipe, a device or a huge file must not hold the gateway."""

import os
import stat
from pathlib import Path


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return what is in the file ``path``.

    Raises ``OSError`` if it cannot be read, is no regular file (reading a pipe may not end), or is larger than
    ``most_bytes``.
    """

    def without_waiting(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)

    with open(path, "rb", opener=without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a regular file")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(f"it is larger than {most_bytes:,} bytes")
    return content
