"""Columns of tables that are in memory, from pyarrow, which is needed for these alone.

pandas and polars frames and Hugging Face data sets are converted to arrow tables first.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.core.values import Coded, Frame, Opaque, Plain, Values
from isonomy.errors import ConfigError, missing_extra


def pyarrow(what: str = "a table in memory") -> Any:
    """Return the package; raises ConfigError if it is not installed."""
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        raise ConfigError(missing_extra(what, "pyarrow", "arrow")) from None


def is_arrow(data: Any) -> bool:
    """Whether an object is of pyarrow's classes; does not import it."""
    return type(data).__module__.partition(".")[0] == "pyarrow"


def frame_of(table: Any) -> Frame:
    """Convert an arrow table."""
    return Frame({name: from_arrow(table.column(name)) for name in table.column_names})


def from_arrow(values: Any) -> Values:
    """Convert an arrow array, in one piece or in several; raises ValueError if it is damaged.

    >>> import pyarrow as pa
    >>> from_arrow(pa.array(["a", None, "a"])).listed()
    ['a', None, 'a']
    """
    pa = pyarrow()
    values.validate(full=True)
    if isinstance(values, pa.ChunkedArray):
        if pa.types.is_dictionary(values.type):
            values = values.unify_dictionaries()
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # an older pyarrow, or no chunks
            values = pa.concat_arrays(values.chunks) if values.chunks else pa.array([], values.type)
    kind, is_of = values.type, pa.types
    if is_of.is_dictionary(kind) and not is_of.is_string(kind.value_type):
        values = values.dictionary_decode()
        kind = values.type
    if values.null_count == len(values) or is_of.is_null(kind):
        return Opaque(len(values), "empty")
    if is_of.is_boolean(kind):
        found = _plain(values.cast(pa.int8()))
        return Plain(found.values.astype(np.bool_), found.null)
    if is_of.is_decimal(kind):
        return _plain(values.cast(pa.float64()))
    if is_of.is_integer(kind) or is_of.is_floating(kind):
        return _plain(values)
    if is_of.is_temporal(kind):
        return Opaque(len(values), "time")
    if not is_of.is_dictionary(kind) and not is_of.is_string(kind):
        try:
            values = values.cast(pa.string())
        except pa.ArrowException:
            return Opaque(len(values), "other")
    coded = values if is_of.is_dictionary(kind) else values.dictionary_encode()
    indices = _plain(coded.indices.cast(pa.int32()))
    codes = indices.values if indices.null is None else np.where(indices.null, -1, indices.values)
    texts = coded.dictionary.to_pylist()
    if None in texts:  # a missing value of the dictionary
        there = np.array([*(-1 if word is None else at for at, word in enumerate(texts)), -1])
        codes, texts = there[codes], [word or "" for word in texts]
    return Coded(codes.astype(np.int32), texts)


def _plain(values: Any) -> Plain:
    """The numbers of an arrow array; its `to_numpy` would import pandas, if it is installed."""
    valid, data = values.buffers()
    kind, part = values.type.to_pandas_dtype(), slice(values.offset, values.offset + len(values))
    found: NDArray[Any] = np.frombuffer(b"" if data is None else data, kind)[part]
    if not values.null_count:
        return Plain(found)
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[part]
    return Plain(found, ~bits.astype(np.bool_))
