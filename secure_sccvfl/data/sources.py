"""The table of a party: a CSV or parquet file, or the result of a SQL script, read by its owner alone.

All are read in batches, of which only the wanted columns are kept. So memory grows with records times wanted columns,
and not with the size of the file. CSV cells are text. Parquet files and SQL results keep compact types (text as
categories) until a column is used.

A SQL script (`bank.sql`, extra `duckdb`) ends with one SELECT; statements before it attach databases or create
secrets. It runs with the rights of its owner's process, in a database in memory. File names are relative to the
script's folder. No extension is installed. What does not fit into memory goes to encrypted temporary files.
"""

from __future__ import annotations

import gzip
import tempfile
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from secure_sccvfl.data.features import DataError, cut, short

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 1 << 20
"""Cells of a batch."""
SQL_MEMORY = "512MiB"
"""What the SQL engine may take before it writes temporary files; SET memory_limit in a script changes it."""
_NAMES = "columns"


def open_table(
    path: Path, owner: str, ids: Sequence[str] = (), wanted: Collection[str] | None = None
) -> pd.DataFrame:
    """A table. ids: columns of ids, which become text; the header of a CSV file shows by them what separates columns.

    wanted: the only other columns to keep, in their own types; None keeps all, as text.
    """
    batches = [*open_batches(path, owner, ids, wanted)]
    names = batches[0].attrs[_NAMES]
    table = pd.DataFrame(
        {name: _joined([batch.pop(name) for batch in batches]) for name in [*batches[0]]}, copy=False
    )
    table.attrs[_NAMES] = names
    return table


def open_batches(
    path: Path, owner: str, ids: Sequence[str] = (), wanted: Collection[str] | None = None
) -> Iterator[pd.DataFrame]:
    """The rows of the same table in order, in one batch or more; the index of each counts the table's rows from 0."""
    keep, start = None if wanted is None else {*ids, *wanted}, 0
    for batch, names in _READERS.get(path.suffix, _csv)(path, owner, ids, keep):
        texts = names if keep is None else [name for name in ids if name in batch]
        frame = batch.astype(dict.fromkeys(texts, "string"))
        frame.index = pd.RangeIndex(start, start := start + len(batch))
        frame.attrs[_NAMES] = names
        yield frame


def _joined(parts: list[pd.Series]) -> pd.Series:
    if isinstance(parts[0].dtype, pd.CategoricalDtype):
        return pd.Series(pd.api.types.union_categoricals(parts))
    return pd.concat(parts)


def all_names(table: pd.DataFrame) -> list[str]:
    """The columns of the file that a table was read from, except its index."""
    return [str(name) for name in table.attrs.get(_NAMES, table.columns) if name != table.index.name]


def column_names(table: pd.DataFrame) -> str:
    names = all_names(table)
    return ", ".join(map(short, names[:12])) + (", ..." if len(names) > 12 else "")


def _kept(names: list[str], keep: Collection[str] | None) -> list[str]:
    """The names to keep; the first one if there is none, so that the table has its number of records."""
    return [name for name in names if keep is None or name in keep] or names[:1]


def is_csv(path: Path) -> bool:
    """Whether a table is a CSV file, whose rows have a fixed order: that of a SQL script's result may change."""
    return path.suffix not in _READERS


Batches = Iterator[tuple[pd.DataFrame, list[str]]]
"""The kept columns of some rows, and the names of all columns; at least once."""


def _csv(path: Path, owner: str, ids: Sequence[str], keep: Collection[str] | None) -> Batches:
    """Cells as they are. A row with more cells than the header is refused: pandas would shift its columns."""
    how: dict[str, Any] = {"dtype": "string", "keep_default_na": False, "index_col": False, "encoding": "utf-8-sig"}
    try:
        how["sep"] = _separator(path, ids)
        head = pd.read_csv(path, header=None, nrows=1, **how).iloc[0]
        if head.duplicated().any():
            raise DataError(f"{owner}: {path.name!r} has two columns named {cut(head[head.duplicated()].iloc[0])}")
        with pd.read_csv(path, chunksize=_rows(list(head)), **how) as file:
            while (batch := _next(file)) is not None:
                yield batch[_kept(list(batch), keep)], list(batch)
    except pd.errors.EmptyDataError:
        raise DataError(f"{owner}: {path.name!r} is empty") from None
    except UnicodeDecodeError:
        raise DataError(f"{owner}: {path.name!r} is not text in UTF-8; save it so") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        raise DataError(
            f"{owner}: {path.name!r}: a row has more cells than the header, or a quote is not closed"
        ) from None


def _next(file: Iterator[pd.DataFrame]) -> pd.DataFrame | None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return next(file, None)


def _separator(path: Path, ids: Sequence[str]) -> str:
    """What stands between the columns of a CSV file: by it the header has the id column, or the most columns."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
        head = next(iter(file), "").rstrip("\r\n")
    cells = {mark: [cell.strip().strip('"') for cell in head.split(mark)] for mark in (",", ";", "\t")}
    return max(cells, key=lambda mark: (any(name in cells[mark] for name in ids[:1]), len(cells[mark])))


def _parquet(path: Path, owner: str, ids: Sequence[str], keep: Collection[str] | None) -> Batches:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"{owner}: {path.name!r}: install the extra `parquet` to read it, or save it as CSV"
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            names = file.schema_arrow.names
            columns = _kept(names, keep)
            for batch in _frames(file.iter_batches(_rows(columns), columns=columns), file.schema_arrow, columns, ids):
                yield batch, names
    except ValueError:
        raise DataError(f"{owner}: {path.name!r} is not a parquet file") from None


def _sql(path: Path, owner: str, ids: Sequence[str], keep: Collection[str] | None) -> Batches:
    try:
        import duckdb
        import pyarrow as pa
    except ImportError:
        raise DataError(f"{owner}: {path.name!r}: install the extra `duckdb` to run it") from None
    spoken = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)  # others may quote a secret
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "memory_limit": SQL_MEMORY,
            "temp_directory": folder,
            "temp_file_encryption": "true",
            "file_search_path": str(path.parent.resolve()),
            "autoinstall_known_extensions": "false",
        }
        try:
            with duckdb.connect(config=settings) as database:
                *before, last = database.extract_statements(path.read_text(encoding="utf-8-sig")) or [None]
                if last is None or last.type != duckdb.StatementType.SELECT:
                    raise DataError(f"{owner}: {path.name!r} must end with a SELECT")
                for statement in before:
                    database.execute(statement)
                result = database.sql(last.query)
                columns = _kept(result.columns, keep)
                batches = result.select(*map(duckdb.ColumnExpression, columns)).to_arrow_reader(_rows(columns))
                for batch in _frames(batches, batches.schema, columns, ids):
                    yield batch, result.columns
        except (duckdb.Error, pa.ArrowException) as error:
            why = f": {short(str(error).splitlines()[0])}" if isinstance(error, spoken) else "; try it in DuckDB"
            raise DataError(f"{owner}: {path.name!r} fails ({type(error).__name__}){why}") from None


def _rows(columns: list[str]) -> int:
    return max(1, BATCH // max(1, len(columns)))


def _frames(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, columns: list[str], ids: Sequence[str]
) -> Iterator[pd.DataFrame]:
    """Each batch, and one without rows if there is none: text as categories, decimals as floats, except in ids."""
    import pyarrow as pa
    from pyarrow import types

    fields = []
    for field in (schema.field(name) for name in columns):
        kind = field.type
        if field.name not in ids and (types.is_string(kind) or types.is_large_string(kind)):
            kind = pa.dictionary(pa.int32(), pa.string())
        elif field.name not in ids and types.is_decimal(kind):
            kind = pa.float64()
        fields.append(pa.field(field.name, kind))
    compact, batch = pa.schema(fields), None
    for batch in batches:
        yield batch.select(columns).cast(compact).to_pandas(ignore_metadata=True, date_as_object=False)
    if batch is None:
        yield compact.empty_table().to_pandas(ignore_metadata=True, date_as_object=False)


_READERS = {".parquet": _parquet, ".sql": _sql}
"""By suffix; all other files are CSV."""
