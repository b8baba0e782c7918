"""Readers for public trace formats. Each gives a list of WorkloadRequest, in order of arrival.

| format | columns or keys | times |
| --- | --- | --- |
| Azure CSV (2023, 2024) | TIMESTAMP, ContextTokens, GeneratedTokens | date and time |
| Mooncake JSONL | timestamp, input_length, output_length, hash_ids | milliseconds |
| ShareGPT-style CSV | num_prefill_tokens, num_decode_tokens | none |
| two-column CSV | prompt and output length, with or without a header | none |

Plain text or gzip, told apart by content. Whatever is wrong with a file raises TraceError, which
names the file and the line.
"""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TypeVar

from course.workload.requests import WorkloadRequest

MOONCAKE_BLOCK_TOKENS = 512
# No request is this long. A number above it is an id or a time in the wrong column.
MAX_TOKENS = 10**8

Row = TypeVar("Row")
AnyPath = str | PathLike[str]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# time in the unit of the file, prompt, output, hashes
_Timed = tuple[float, int, int, tuple[int, ...] | None]
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?", re.ASCII)


class TraceError(ValueError):
    """A trace file that cannot be read as what it was taken for."""


def read_trace(path: AnyPath, limit: int | None = None) -> list[WorkloadRequest]:
    """Read any of the formats above, told apart by the first line; at most ``limit`` requests."""
    first = next((text for _, text in _lines(path)), "")
    names = {name.strip().lower() for name in first.split(",")}
    if first.lstrip().startswith("{"):
        return read_mooncake_jsonl(path, limit)
    if {"timestamp", "contexttokens"} & names:
        return read_azure_csv(path, limit)
    if {"num_prefill_tokens", "num_decode_tokens"} & names:
        return read_sharegpt_csv(path, limit)
    return read_lengths_csv(path, limit)


def read_azure_csv(path: AnyPath, limit: int | None = None) -> list[WorkloadRequest]:
    """Azure's LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens.

    Times are seconds after the earliest request.
    """
    rows = _columns(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), limit)
    timed: list[_Timed] = []
    for line, (when, prompt, output) in rows:
        tokens = _tokens(path, line, "ContextTokens", prompt)
        generated = _tokens(path, line, "GeneratedTokens", output)
        timed.append((_microseconds(path, line, when), tokens, generated, None))
    return _in_order(timed, 1_000_000)


def read_mooncake_jsonl(
    path: AnyPath, limit: int | None = None, block_tokens: int = MOONCAKE_BLOCK_TOKENS
) -> list[WorkloadRequest]:
    """Mooncake's traces: one JSON object a line, with a hash for each prefix block.

    ``block_tokens`` is the length that one hash stands for (512 in Mooncake's own traces); the
    last block of a prompt may be partly filled. Times are seconds after the earliest request.
    """
    timed: list[_Timed] = []
    for line, text in _first(_lines(path), limit):
        try:
            row = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise _error(path, line, f"this is not a JSON object: {error}") from None
        keys = ("timestamp", "input_length", "output_length")
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing:
            raise _error(path, line, f"expected a JSON object with {', '.join(keys)}")
        prompt = _tokens(path, line, "input_length", row["input_length"])
        output = _tokens(path, line, "output_length", row["output_length"])
        when = row["timestamp"]
        if isinstance(when, bool) or not isinstance(when, int | float) or not 0 <= when < 1e15:
            raise _error(path, line, f"timestamp is {when!r}, not a number of milliseconds")
        hashes = _hashes(path, line, row.get("hash_ids"), prompt, block_tokens)
        timed.append((when, prompt, output, hashes))
    if not timed:
        raise TraceError(f"{_name(path)} is empty: expected one JSON object a line.")
    return _in_order(timed, 1_000)


def read_sharegpt_csv(path: AnyPath, limit: int | None = None) -> list[WorkloadRequest]:
    """Lengths as Vidur and Sarathi-Serve publish them: num_prefill_tokens, num_decode_tokens.

    Further columns are ignored. There are no times: every request arrives at 0.
    """
    names = ("num_prefill_tokens", "num_decode_tokens")
    rows = _columns(path, names, limit)
    return [_without_time(path, line, names, row) for line, row in rows]


def read_lengths_csv(path: AnyPath, limit: int | None = None) -> list[WorkloadRequest]:
    """Two columns, prompt and output length. A first line without any digit is a header."""
    requests = [
        _without_time(path, line, ("prompt", "output"), row)
        for line, row in _first(_two_columns(path), limit)
    ]
    if not requests:
        raise TraceError(f"{_name(path)} has no rows: expected prompt and output length on each.")
    return requests


def _name(path: AnyPath) -> str:
    return Path(path).name


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _error(path: AnyPath, line: int, message: str) -> TraceError:
    return TraceError(f"{_name(path)}, line {line}: {message}.")


def _first(rows: Iterator[Row], limit: int | None) -> Iterator[Row]:
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}: read at least 1 request, or None for all.")
    return islice(rows, limit)


def _lines(path: AnyPath) -> Iterator[tuple[int, str]]:
    """(line number, text) of the lines that are not blank, whether the file is gzip or not."""
    with Path(path).open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    number = 0
    try:
        opener = gzip.open if is_gzip else open
        with opener(path, "rt", encoding="utf-8-sig", newline=None) as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, text
    except UnicodeDecodeError:
        raise _error(path, number + 1, "not readable as UTF-8 text") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _error(path, number + 1, f"the gzip data is damaged ({error})") from None


def _rows(path: AnyPath) -> Iterator[tuple[int, list[str]]]:
    for line, text in _lines(path):
        try:
            # a trace has one request a line, so a quote left open spoils only its own line
            yield line, next(csv.reader([text], strict=True))
        except csv.Error as error:
            raise _error(path, line, f"this is not a row of CSV ({error})") from None


def _two_columns(path: AnyPath) -> Iterator[tuple[int, list[str]]]:
    for index, (line, row) in enumerate(_rows(path)):
        if len(row) != 2:
            message = f"expected 2 columns (prompt, output), found {len(row)}: {_shown(row)}"
            raise _error(path, line, message)
        if index or any(character.isdigit() for cell in row for character in cell):
            yield line, row


def _columns(path: AnyPath, names: Sequence[str], limit: int | None) -> list[tuple[int, list[str]]]:
    """(line number, values of the named columns) of each row, found by the header."""
    rows = _rows(path)
    header_line, header = next(rows, (0, None))
    if header is None:
        raise TraceError(f"{_name(path)} is empty: expected the columns {', '.join(names)}.")
    header = [name.strip() for name in header]
    if missing := [name for name in names if header.count(name) != 1]:
        raise _error(
            path, header_line, f"expected the column {missing[0]} once, found {_shown(header)}"
        )
    places = [header.index(name) for name in names]
    found = []
    for line, row in _first(rows, limit):
        if len(row) != len(header):
            shown = _shown(row)
            raise _error(path, line, f"{len(row)} values under {len(header)} columns: {shown}")
        found.append((line, [row[place] for place in places]))
    if not found:
        raise TraceError(f"{_name(path)} has a header and no rows.")
    return found


def _without_time(
    path: AnyPath, line: int, names: Sequence[str], row: Sequence[str]
) -> WorkloadRequest:
    prompt, output = (_tokens(path, line, n, v) for n, v in zip(names, row, strict=True))
    return WorkloadRequest(0.0, prompt, output)


def _tokens(path: AnyPath, line: int, name: str, value: object) -> int:
    if isinstance(value, str):
        text = value.strip()
        # 74.0 is how spreadsheets write 74; 74.5 is no number of tokens
        number = int(text.split(".")[0]) if _WHOLE.fullmatch(text) and len(text) < 30 else None
    else:
        number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if number is None:
        raise _error(path, line, f"{name} is {_shown(value)}, not a whole number of tokens")
    if not 1 <= number <= MAX_TOKENS:
        raise _error(path, line, f"{name} is {number}: expected 1 to {MAX_TOKENS:,} tokens")
    return number


def _microseconds(path: AnyPath, line: int, text: str) -> int:
    """Microseconds since 1970 as a whole number; a time without a zone is taken as UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        shown = _shown(text)
        raise _error(path, line, f"TIMESTAMP is {shown}, not a date and time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _hashes(
    path: AnyPath, line: int, value: object, prompt: int, block_tokens: int
) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(
        type(number) is int and number >= 0 for number in value
    ):
        raise _error(path, line, "hash_ids is not a list of whole numbers from 0 up")
    blocks = -(-prompt // block_tokens)
    if len(value) not in (blocks, prompt // block_tokens):
        raise _error(
            path,
            line,
            f"{len(value)} hash_ids for a prompt of {prompt} tokens: expected {blocks}, "
            f"one for each {block_tokens}",
        )
    return tuple(value)


def _in_order(timed: list[_Timed], units_per_second: int) -> list[WorkloadRequest]:
    start = min(row[0] for row in timed)
    timed.sort(key=lambda row: row[0])  # stable: requests of one moment keep their order
    return [
        WorkloadRequest((when - start) / units_per_second, prompt, output, hashes)
        for when, prompt, output, hashes in timed
    ]
