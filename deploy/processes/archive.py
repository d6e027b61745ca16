"""The archiver: copies topics into the object store as Parquet files, before retention deletes their records."""

from functools import partial
from typing import TYPE_CHECKING

from headrace.deploy.processes.process import Flow, Process

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings
    from headrace.streams.archiving.config import ArchiveConfig


def archive_config(settings: "Settings") -> "ArchiveConfig":
    """Returns the archiver's configuration."""
    from headrace.deploy.configuration.settings import configured
    from headrace.streams.archiving.config import ArchiveConfig

    return configured(
        settings,
        "archive",
        ArchiveConfig,
        bootstrap=settings.required_address("kafka"),
        store_url=settings.objects,
    )


def archive_url(given: str | None, settings: "Settings") -> str | None:
    """Returns the address of the archive that a command reads: ``given``, else that of the settings if they have
    options of the archiver; ``None``: no archive is read.
    """
    options = settings.options.get("archive")
    return given or (str(options.get("store_url") or settings.objects) if options else None)


def _run(settings: "Settings") -> int:
    from headrace.deploy.system.until_stopped import until_stopped
    from headrace.streams.archiving.archiver import run_archiver

    return until_stopped(partial(run_archiver, archive_config(settings)))


def _flow() -> Flow:
    from headrace.schemas.topics import ALERTS
    from headrace.streams.archiving.config import ARCHIVED

    return Flow(ARCHIVED, (ALERTS,))


ARCHIVE = Process(
    "archive",
    "topics → Parquet files in the object store",
    flow=_flow,
    run=_run,
    settings=("kafka", "store_url"),
    needs=("kafka",),
    wanted=lambda settings: bool(settings.options.get("archive")),
    memory_mb=300,
    configuration="headrace.streams.archiving.config:ArchiveConfig",
    configure=archive_config,
)
