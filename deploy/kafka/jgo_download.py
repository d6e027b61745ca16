"""Downloads Maven artifacts and their dependencies with the package jgo, without Java: the program of a child process.

python -m headrace.deploy.kafka.jgo_download REPOSITORY FOLDER GROUP:NAME:VERSION …
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.deploy.terminal import print_redacted

_TIMEOUT_S = 60
_SCOPES = ("compile", "runtime")


def download(repository: Path, folder: Path, artifacts: Sequence[str]) -> None:
    """Download into ``repository``, then move the jars into ``folder``, which is created last.

    Raises ``requests.RequestException`` or ``OSError`` if the download fails, ``RuntimeError`` for an artifact that
    does not exist.
    """
    from jgo.maven import Dependency, MavenContext

    context = MavenContext(repo_cache=repository, timeout=_TIMEOUT_S)
    wanted = []
    for artifact in artifacts:
        group, name, version = artifact.split(":")
        wanted.append(Dependency(context.project(group, name).at_version(version).artifact()))
    named, others = context.resolver.resolve(wanted)
    jars = [each.artifact.resolve() for each in (*named, *(each for each in others if each.scope in _SCOPES))]
    folder.mkdir()
    for jar in jars:
        jar.rename(folder / jar.name)


def main() -> int:
    """Run :func:`download` with the arguments of the command line; prints an error as one sentence."""
    from requests import RequestException

    repository, folder, *artifacts = sys.argv[1:]
    try:
        download(Path(repository), Path(folder), artifacts)
    except (RequestException, OSError, RuntimeError) as error:
        print_redacted(f"{type(error).__name__}: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
