"""Texts as vectors of a pretrained encoder (`isonomy.data.encoder`), computed once and cached.

The encoder is public and fixed. Each client encodes its own texts, nothing is fitted to the data of
any client, and no client reports anything about its texts. (TF-IDF, in `isonomy.data.text`, needs
counts of words from every client.)

Vectors are kept in the data cache, in one file for each encoder (the SHA-256 of its weights and
tokenizer) and maximum length. A record of the file holds the SHA-256 of a text, its vector and a
check sum, so a text is encoded once, whatever data set, client or split it is in. Records are
appended batch by batch: an interrupted encoding continues where it ended. A damaged record is
ignored, and its text encoded again. Vectors that were computed in other batches or on another
machine may differ in the last digits.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.data import encoder as encoders
from isonomy.data.download import fetch
from isonomy.data.encoder import SIZE, TOKENIZER, WEIGHTS, Encoder
from isonomy.errors import DataError

VECTORS = "vectors of texts"  # the name under which progress is reported
BATCH = 64  # texts at a time, of similar length
_RECORD = np.dtype([("text", "V32"), ("vector", "<f4", SIZE), ("check", "<u4")])
_Known = dict[bytes, NDArray[np.float32]]


def encode(
    texts: Sequence[str], length: int, progress: fetch.Progress | None = None
) -> tuple[NDArray[np.float32], str]:
    """Return the vectors of texts [texts, 384], and where the encoder's files came from.

    Texts that are not in the cache are encoded and added to it; the encoder is loaded only then.
    """
    keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    path = cache_file(length)
    known = _read(path)
    origin = ""
    if not all(key in known for key in keys):
        encoder, origin = encoders.load(progress)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path):
                known = _read(path)  # another process may have encoded them meanwhile
                new = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
                known |= _encode(new, encoder, length, path, progress)
        except OSError as error:
            raise DataError(
                f"cannot write to the data folder {path.parent} ({error.strerror or error}); set "
                "ISONOMY_DATA to a writable folder."
            ) from error
    return np.stack([known[key] for key in keys]), origin


def encode_uncached(texts: Sequence[str], length: int) -> NDArray[np.float32]:
    """Return the vectors of texts [texts, 384]; neither read from the cache nor added to it."""
    encoder, _ = encoders.load()
    tokens = encoder.tokens(texts, length)
    out = np.empty((len(texts), SIZE), np.float32)
    for rows in _batches(tokens):
        out[rows] = encoder.vectors([tokens[row] for row in rows]).numpy()
    return out


def _batches(tokens: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield rows of texts of similar length, shortest first."""
    order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
    for start in range(0, len(order), BATCH):
        yield order[start : start + BATCH]


def cache_file(length: int) -> Path:
    """Return the file in the cache that holds the vectors of texts with this maximum length."""
    both = f"{WEIGHTS.sha256} {TOKENIZER.sha256}"
    name = hashlib.sha256(both.encode()).hexdigest()[:16]
    return fetch.folder() / f"sentences-{name}-{length}.bin"


def _encode(
    texts: dict[bytes, str],
    encoder: Encoder,
    length: int,
    path: Path,
    progress: fetch.Progress | None,
) -> _Known:
    """Encode texts, shortest first, and append each batch to the file."""
    tokens = encoder.tokens(list(texts.values()), length)
    keys = list(texts)
    known: _Known = {}
    with path.open("ab") as out:
        for rows in _batches(tokens):
            records = np.zeros(len(rows), _RECORD)
            records["text"] = np.array([keys[row] for row in rows], "V32")
            records["vector"] = encoder.vectors([tokens[row] for row in rows]).numpy()
            records["check"] = _checks(records)
            out.write(records.tobytes())
            out.flush()
            known |= _as_dict(records)
            if progress:
                size = 4 * SIZE
                progress(VECTORS, len(known) * size, len(keys) * size)
    return known


def _read(path: Path) -> _Known:
    """Return the vectors in the file; incomplete and damaged records are left out."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise DataError(
            f"cannot read {path} ({error.strerror}); make it readable, or delete it so that the "
            "texts are encoded again."
        ) from error
    whole = len(content) // _RECORD.itemsize
    records = np.frombuffer(content, _RECORD, whole)
    return _as_dict(records[records["check"] == _checks(records)])


def _as_dict(records: NDArray[np.void]) -> _Known:
    keys = (key.tobytes() for key in records["text"])
    return dict(zip(keys, records["vector"], strict=True))


def _checks(records: NDArray[np.void]) -> NDArray[np.uint32]:
    """Return the check sum of each record: the CRC-32 of its text's hash and its vector."""
    size = _RECORD.itemsize - 4
    content = records.tobytes()
    starts = range(0, len(content), _RECORD.itemsize)
    return np.array([zlib.crc32(content[at : at + size]) for at in starts], np.uint32)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file so that one process at a time appends to it, where the system supports it.

    Half a record at its end, which a killed process left, is cut off.
    """
    with path.open("ab") as lock:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        size = os.fstat(lock.fileno()).st_size
        lock.truncate(size - size % _RECORD.itemsize)
        yield
