"""A panel's result as a file: CSV or Parquet."""

import csv
import io
from enum import StrEnum

from headrace.deploy.dashboard.panel import Columns

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class FileFormat(StrEnum):
    """The format of a file."""

    CSV = "csv"
    """Text that a spreadsheet would read as a formula has an apostrophe before it."""
    PARQUET = "parquet"
    """Columns with their types; texts as they are."""


MEDIA_TYPES = {FileFormat.CSV: "text/csv; charset=utf-8", FileFormat.PARQUET: "application/vnd.apache.parquet"}


def to_file(columns: Columns, file_format: FileFormat) -> bytes:
    """Returns ``columns`` as a file; missing values are empty fields in CSV and null in Parquet."""
    return _csv(columns) if file_format is FileFormat.CSV else _parquet(columns)


def _csv(columns: Columns) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _cell(value: object) -> object:
    # The text may be what a model or a user said, and a spreadsheet would run it.
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _parquet(columns: Columns) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    held = io.BytesIO()
    parquet.write_table(pa.table(columns), held)
    return held.getvalue()
