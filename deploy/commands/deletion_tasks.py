"""``headrace deletion-tasks``: generate tasks that delete a function of a module, checked by the module's tests."""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.errors import StackError
from headrace.deploy.terminal import print_line

if TYPE_CHECKING:
    from headrace.agents.coder.deletion.installation import Installation


@click.command()
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File of JSON lines.")
@click.option(
    "--module",
    "modules",
    multiple=True,
    metavar="NAME",
    help="Module of the standard library; repeatable. Default: fourteen of them, if no package is named.",
)
@click.option("--package", "packages", multiple=True, metavar="NAME", help="Pinned package; repeatable; by pip.")
@click.option(
    "--sdists",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of source distributions; what is missing is downloaded into it. Else a temporary one.",
)
@click.option(
    "--per-module", type=click.IntRange(1), default=8, show_default=True, help="Functions to try in each module."
)
def command(
    out: Path, modules: tuple[str, ...], packages: tuple[str, ...], sdists: Path | None, per_module: int
) -> None:
    """Delete functions of modules and keep those deletions that the modules' own tests notice.

    A deletion is a task if the module passes its tests twice alike, some of them fail without the function, and others
    still pass. Every run is in a sandbox that shows neither the original nor its bytecode; it needs overlay
    (apt-get install bubblewrap). Sources of the standard library are under the PSF licence. Packages (jsonpointer,
    more-itertools) are source distributions of one version and SHA-256, under their own licences.
    """
    from headrace.agents.coder.deletion.installation import MODULES, NoSuchModule, installation
    from headrace.agents.sandbox.protocol import ProviderUnavailable

    if out.exists():
        raise StackError(f"--out {out} exists: name a new file, or remove it")
    try:
        installed = [installation(module) for module in modules or (() if packages else MODULES)]
    except NoSuchModule as error:
        raise StackError(f"--module: {error}") from error
    installed += _of_packages(packages, sdists)
    counts: Counter[str] = Counter()

    async def generate() -> list[str]:
        from headrace.agents.coder.deletion.features import features
        from headrace.agents.coder.deletion.tasks import DeletionTask, chosen, suite_of, verified
        from headrace.agents.sandbox.overlay import Overlay

        lines: list[str] = []
        with tempfile.TemporaryDirectory(prefix="headrace-sandboxes-") as folder:
            provider = await Overlay.create(Path(folder))
            try:
                for each in installed:
                    kept = len(lines)
                    tried = chosen(features(each.source), per_module)
                    reference = await suite_of(provider, each, each.source)
                    for feature in tried:
                        found = await verified(provider, each, feature, reference)
                        counts["kept" if isinstance(found, DeletionTask) else str(found)] += 1
                        if isinstance(found, DeletionTask):
                            lines.append(found.line())
                    print_line(
                        f"{each.module}: {len(lines) - kept} of {len(tried)} deletions are tasks, "
                        f"{len(reference.passed)} tests"
                    )
            finally:
                provider.close()
        return lines

    try:
        lines = asyncio.run(generate())
    except ProviderUnavailable as error:
        raise StackError(f"deletion tasks need the sandbox provider overlay: {error}") from error
    out.write_text("".join(f"{line}\n" for line in lines))
    reasons = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    print_line(f"{out}: {len(lines)} tasks ({reasons})")


def _of_packages(names: tuple[str, ...], sdists: Path | None) -> "list[Installation]":
    """Modules of the packages ``names``, whose source distributions are in ``sdists`` or fetched."""
    from headrace.agents.coder.deletion.installation import NoSuchModule
    from headrace.agents.coder.deletion.packages import PACKAGES, PackageUnusable, fetch, installations

    if unknown := [name for name in names if name not in PACKAGES]:
        raise StackError(f"--package {unknown[0]}: choose from {', '.join(PACKAGES)}")
    with tempfile.TemporaryDirectory(prefix="headrace-sdists-") as folder:
        try:
            return [
                installed
                for name in names
                for installed in installations(
                    PACKAGES[name], fetch(PACKAGES[name], sdists or Path(folder)).read_bytes()
                )
            ]
        except (PackageUnusable, NoSuchModule) as error:
            raise StackError(f"--package: {error}") from error
