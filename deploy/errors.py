"""Errors that are shown to users."""

import errno

_PATH_ERRORS = frozenset(
    {
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS, errno.EINVAL, errno.ENODEV, errno.ENXIO),
    }
)
_SPACE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StackError(Exception):
    """An error that is shown without a traceback: a sentence or two that name the cause, the setting and the remedy."""


def path_problem(error: OSError) -> str | None:
    """Returns a sentence about the file or folder that caused ``error``; ``None`` if the cause is another."""
    if error.errno in _SPACE_ERRORS:
        where = f" at {error.filename}" if error.filename else ""
        return f"There is no disk space left{where} ({error.strerror}): free some space and run the command again."
    if error.errno in _PATH_ERRORS and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}. Check the path and this user's permissions."
    return None
