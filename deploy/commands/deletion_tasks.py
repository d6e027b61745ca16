"""``headrace deletion-tasks``: generate tasks that delete a function of the standard library, checked by its tests."""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import click

from headrace.deploy.errors import StackError
from headrace.deploy.terminal import print_line


@click.command()
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File of JSON lines.")
@click.option(
    "--module", "modules", multiple=True, metavar="NAME", help="Module; repeatable. Default: fourteen of them."
)
@click.option(
    "--per-module", type=click.IntRange(1), default=8, show_default=True, help="Functions to try in each module."
)
def command(out: Path, modules: tuple[str, ...], per_module: int) -> None:
    """Delete functions of the standard library and keep those deletions that its own tests notice.

    A deletion is a task if the module passes its tests twice alike, some of them fail without the function, and others
    still pass. Every run is in a sandbox that shows neither the original nor its bytecode; it needs overlay
    (apt-get install bubblewrap). The sources are under the PSF licence.
    """
    from headrace.agents.coder.deletion.installation import MODULES, NoSuchModule, installation
    from headrace.agents.sandbox.protocol import ProviderUnavailable

    if out.exists():
        raise StackError(f"--out {out} exists: name a new file, or remove it")
    try:
        installed = [installation(module) for module in modules or MODULES]
    except NoSuchModule as error:
        raise StackError(f"--module: {error}") from error
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
