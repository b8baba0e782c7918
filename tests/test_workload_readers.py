"""course/workload/readers.py: what it reads, and how it says what it cannot read."""

import gzip
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.workload.readers import (
    TraceError,
    read_azure_csv,
    read_lengths_csv,
    read_mooncake_jsonl,
    read_sharegpt_csv,
    read_trace,
)
from course.workload.requests import WorkloadRequest

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:04.0781490,110,27
"""
MOONCAKE = """\
{"timestamp": 1000, "input_length": 1025, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 4500, "input_length": 512, "output_length": 1, "hash_ids": [0]}
"""
SHAREGPT = """\
num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio
74,918,992,0.0806100217864923
290,905,1195,0.3204419889502762
"""
LENGTHS = "prompt,output\n7,21\n3,24\n"


@pytest.fixture
def write(tmp_path):
    def write(text, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_azure(write):
    requests = read_azure_csv(write(AZURE))
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [
        (4808, 10),
        (3180, 8),
        (110, 27),
    ]
    assert [r.arrival_s for r in requests] == [0.0, 0.052, 60.098189]
    assert requests[0].prefix_hashes is None


def test_azure_2024_has_a_time_zone_and_further_columns(write):
    text = (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,0,2162,5\n"
        "2024-05-10 02:00:01.009930+02:00,1,2399,6\n"
    )
    requests = read_azure_csv(write(text))
    assert [r.arrival_s for r in requests] == [0.0, 1.0]
    assert requests[1].prompt_tokens == 2399


def test_rows_out_of_order_are_sorted_and_ties_keep_their_order(write):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 00:00:09,1,1\n2023-11-16 00:00:02,2,2\n2023-11-16 00:00:09,3,3\n"
    )
    requests = read_azure_csv(write(text))
    assert [(r.arrival_s, r.prompt_tokens) for r in requests] == [(0, 2), (7, 1), (7, 3)]


def test_mooncake(write):
    assert read_mooncake_jsonl(write(MOONCAKE)) == [
        WorkloadRequest(0.0, 1025, 5, (0, 1, 2)),
        WorkloadRequest(3.5, 512, 1, (0,)),
    ]


def test_mooncake_with_other_blocks_and_without_hashes(write):
    text = '{"timestamp": 0, "input_length": 33, "output_length": 5, "hash_ids": [5, 6, 7]}\n'
    assert read_mooncake_jsonl(write(text), block_tokens=16)[0].prefix_hashes == (5, 6, 7)
    # only full blocks hashed
    text = '{"timestamp": 0, "input_length": 33, "output_length": 5, "hash_ids": [5, 6]}\n'
    assert read_mooncake_jsonl(write(text), block_tokens=16)[0].prefix_hashes == (5, 6)
    text = '{"timestamp": 0, "input_length": 33, "output_length": 5}\n'
    assert read_mooncake_jsonl(write(text))[0].prefix_hashes is None


def test_sharegpt(write):
    assert read_sharegpt_csv(write(SHAREGPT)) == [
        WorkloadRequest(0.0, 74, 918),
        WorkloadRequest(0.0, 290, 905),
    ]


@pytest.mark.parametrize("text", [LENGTHS, "7,21\n3,24\n", "7, 21 \n\n3.0,24\n\n", "7,21\r\n3,24"])
def test_two_columns_with_or_without_a_header(write, text):
    assert read_lengths_csv(write(text)) == [
        WorkloadRequest(0.0, 7, 21),
        WorkloadRequest(0.0, 3, 24),
    ]


READERS = {
    "azure": (read_azure_csv, AZURE),
    "mooncake": (read_mooncake_jsonl, MOONCAKE),
    "sharegpt": (read_sharegpt_csv, SHAREGPT),
    "lengths": (read_lengths_csv, LENGTHS),
}
each_reader = pytest.mark.parametrize(("reader", "text"), READERS.values(), ids=READERS)


@each_reader
def test_gzip_bom_line_ends_and_a_name_as_text_make_no_difference(write, reader, text):
    expected = reader(write(text))
    packed = gzip.compress(text.encode())
    assert reader(write(packed, "trace.csv.gz")) == expected
    assert reader(write(packed, "no_suffix")) == expected
    assert reader(str(write(b"\xef\xbb\xbf" + text.encode()))) == expected
    assert reader(write(text.replace("\n", "\r\n"))) == expected
    assert reader(write("\n" + text.replace("\n", "\n\n"))) == expected


@each_reader
def test_read_trace_tells_formats_apart(write, reader, text):
    assert read_trace(write(text)) == reader(write(text))
    assert read_trace(write(gzip.compress(text.encode()))) == reader(write(text))


@each_reader
def test_limit(write, reader, text):
    assert len(reader(write(text), 1)) == 1
    assert reader(write(text), 99) == reader(write(text))
    assert reader(write(text), 1)[0].prompt_tokens == reader(write(text))[0].prompt_tokens
    with pytest.raises(ValueError, match="limit is 0"):
        reader(write(text), 0)


@each_reader
def test_limit_does_not_look_at_what_follows(write, reader, text):
    assert len(reader(write(text + "broken,,,\n"), 1)) == 1


@each_reader
@pytest.mark.parametrize("empty", ["", "\n \n", "\ufeff"])
def test_empty_files(write, reader, text, empty):
    with pytest.raises(TraceError, match=r"trace\.csv (is empty|has no rows)"):
        reader(write(empty))
    with pytest.raises(TraceError):
        read_trace(write(empty))
    with pytest.raises(TraceError):
        reader(write(gzip.compress(empty.encode())))


@pytest.mark.parametrize("name", ["azure", "sharegpt", "lengths"])
def test_a_header_alone(write, name):
    reader, text = READERS[name]
    with pytest.raises(TraceError, match="no rows"):
        reader(write(text.splitlines()[0]))


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "nowhere.csv")


def test_the_wrong_format_names_the_column_that_is_missing(write):
    with pytest.raises(TraceError, match=r"line 1: expected the column num_prefill_tokens once"):
        read_sharegpt_csv(write(AZURE))
    with pytest.raises(TraceError, match=r"line 1: expected the column TIMESTAMP once"):
        read_azure_csv(write(LENGTHS))
    with pytest.raises(TraceError, match=r"line 1: expected 2 columns .* found 3"):
        read_lengths_csv(write(AZURE))
    with pytest.raises(TraceError, match=r"line 1: this is not a JSON object"):
        read_mooncake_jsonl(write(AZURE))
    twice = "num_prefill_tokens,num_decode_tokens,num_decode_tokens\n1,2,3\n"
    with pytest.raises(TraceError, match=r"expected the column num_decode_tokens once"):
        read_sharegpt_csv(write(twice))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16 18:17:03,0,10", "ContextTokens is 0: expected 1"),
        ("2023-11-16 18:17:03,-5,10", "ContextTokens is -5: expected 1"),
        ("2023-11-16 18:17:03,5,0", "GeneratedTokens is 0: expected 1"),
        ("2023-11-16 18:17:03,5.5,10", "ContextTokens is '5.5', not a whole number"),
        ("2023-11-16 18:17:03,abc,10", "ContextTokens is 'abc', not a whole number"),
        ("2023-11-16 18:17:03,,10", "ContextTokens is '', not a whole number"),
        ("2023-11-16 18:17:03,nan,10", "ContextTokens is 'nan', not a whole number"),
        ("2023-11-16 18:17:03,1e3,10", "ContextTokens is '1e3', not a whole number"),
        ("2023-11-16 18:17:03,1_000,10", "ContextTokens is '1_000', not a whole number"),
        ("2023-11-16 18:17:03,٣,10", "ContextTokens is '٣', not a whole number"),
        ("2023-11-16 18:17:03,999999999999,10", "ContextTokens is 999999999999: expected 1 to"),
        ("2023-11-16 18:17:03," + "9" * 5000 + ",10", "not a whole number"),
        ("yesterday,5,10", "TIMESTAMP is 'yesterday', not a date and time"),
        ("2023-13-16 18:17:03,5,10", "not a date and time"),
        (",5,10", "TIMESTAMP is '', not a date and time"),
        ("2023-11-16 18:17:03,5", "2 values under 3 columns"),
        ("2023-11-16 18:17:03,5,10,6", "4 values under 3 columns"),
        ('2023-11-16 18:17:03,5,"10', "not a row of CSV"),
    ],
)
def test_a_malformed_row_is_named_by_its_line(write, row, message):
    with pytest.raises(TraceError) as error:
        read_azure_csv(write(AZURE + "\n" + row + "\n"))
    assert str(error.value).startswith("trace.csv, line 6: ")
    assert message in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("[1, 2]", "expected a JSON object with timestamp, input_length, output_length"),
        ("7", "expected a JSON object with"),
        ('{"timestamp": 0, "input_length": 5}', "expected a JSON object with"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 5}', "input_length is 0"),
        ('{"timestamp": 0, "input_length": 5, "output_length": -1}', "output_length is -1"),
        ('{"timestamp": 0, "input_length": true, "output_length": 1}', "input_length is True"),
        ('{"timestamp": 0, "input_length": null, "output_length": 1}', "input_length is None"),
        ('{"timestamp": -3, "input_length": 5, "output_length": 1}', "timestamp is -3"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 1}', "timestamp is nan"),
        ('{"timestamp": "x", "input_length": 5, "output_length": 1}', "timestamp is 'x'"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1', "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        (
            '{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1, 2, 3]}',
            "3 hash_ids for a prompt of 513 tokens: expected 2",
        ),
        (
            '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [-1]}',
            "hash_ids is not a list of whole numbers",
        ),
        (
            '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": 3}',
            "hash_ids is not a list of whole numbers",
        ),
    ],
)
def test_a_malformed_json_line_is_named_by_its_number(write, row, message):
    with pytest.raises(TraceError) as error:
        read_mooncake_jsonl(write(MOONCAKE + row + "\n"))
    assert str(error.value).startswith("trace.csv, line 3: ")
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["sharegpt", "lengths"])
def test_a_malformed_row_without_times_is_named_too(write, name):
    reader, text = READERS[name]
    row = {"sharegpt": "5,-2,3,0", "lengths": "5,-2"}[name]
    with pytest.raises(TraceError, match=r"trace\.csv, line 4: .* is -2: expected 1"):
        reader(write(text + row))


def test_a_first_row_that_is_half_a_header_is_not_swallowed(write):
    with pytest.raises(TraceError, match=r"line 1: prompt is 'x7'"):
        read_lengths_csv(write("x7,21\n3,24\n"))


@each_reader
def test_damaged_files(write, reader, text):
    packed = gzip.compress((text * 50).encode(), mtime=0)
    for broken in (packed[: len(packed) // 2], packed[:-4], packed[:20] + b"????" + packed[24:]):
        with pytest.raises(TraceError, match=r"trace\.csv, line \d+: "):
            reader(write(broken))
    with pytest.raises(TraceError, match="not readable as UTF-8"):
        reader(write(text.encode() + b"\xff\xfe,\xff\n"))


@each_reader
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_the_bytes_they_are_read_or_refused_with_a_name(write, reader, text, data):
    raw = text.encode()
    position = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(position, min(len(raw), position + 6)))
    raw = raw[:position] + data.draw(st.binary(max_size=6)) + raw[end:]
    for read in (reader, read_trace):
        try:
            requests = read(write(raw))
        except TraceError as error:
            message = str(error)
        else:
            message = None
            assert requests
            assert all(r.prompt_tokens >= 1 and r.output_tokens >= 1 for r in requests)
            times = [r.arrival_s for r in requests]
            assert times == sorted(times)
            assert times[0] == 0
        assert message is None or re.match(r"trace\.csv(, line \d+:| is empty| has )", message)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**7), st.integers(1, 3000), st.integers(1, 3000)),
        min_size=1,
        max_size=20,
    )
)
def test_what_was_written_is_read(write, rows):
    rows = sorted(rows, key=lambda row: row[0])
    start = rows[0][0]
    expected = [(round((t - start) / 1000, 6), p, o) for t, p, o in rows]
    lines = [
        json.dumps({"timestamp": t, "input_length": p, "output_length": o}) for t, p, o in rows
    ]
    got = read_trace(write("\n".join(lines)))
    assert [(round(r.arrival_s, 6), r.prompt_tokens, r.output_tokens) for r in got] == expected
    got = read_trace(write("\n".join(f"{p},{o}" for _, p, o in rows)))
    assert [(r.prompt_tokens, r.output_tokens) for r in got] == [(p, o) for _, p, o in rows]
