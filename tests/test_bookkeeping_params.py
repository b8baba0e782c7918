"""Bad input: sampling parameters, requests, limits (faults 32-35, and their kinds)."""

import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from course.engine.request import Request, RequestStatus
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler_types import SchedulerConfig

NAN, INF = float("nan"), float("inf")

BAD = [
    *[("max_tokens", v, "0 or more") for v in (-1, 1.0, "8", None, True, NAN, [3])],
    *[("temperature", v, "0 or more") for v in (-0.1, NAN, INF, -INF, "1", None, True, 1j)],
    *[("top_k", v, "0 or more") for v in (-1, 0.5, NAN, None, False, "5")],
    *[("top_p", v, "over 0, up to 1") for v in (0, 0.0, -0.5, 1.01, NAN, INF, None, "1", True)],
    *[("min_tokens", v, r"0 to max_tokens \(16\)") for v in (-1, 17, 1.5, None, True)],
    *[("n", v, "1 or more") for v in (0, -1, 1.0, None, True, "2")],
    *[("seed", v, "0 to 9223372036854775807") for v in (-1, 2**63, 0.0, "1", True)],
    *[("ignore_eos", v, "True or False") for v in (0, 1, None, "yes")],
    *[
        ("stop_token_ids", v, "0 to 4294967295")
        for v in (5, None, "12", [-1], [2**32], [1.0], [True], ["a"], [None], {3: 4})
    ],
    *[("stop", v, "none of them empty") for v in (5, None, "", [""], ["a", ""], [3], b"x", [b"x"])],
]


@pytest.mark.parametrize(("name", "value", "wanted"), BAD, ids=lambda value: repr(value)[:20])
def test_a_value_out_of_range_is_named_with_its_range(name, value, wanted):
    with pytest.raises(ValueError, match=rf"(?s){name}.*{wanted}") as error:
        SamplingParams(**{name: value})
    if isinstance(value, int | float | str) and value != "":
        assert str(value) in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("max_tokens", 0, 0),
        ("max_tokens", np.int32(3), 3),
        ("temperature", 0, 0.0),
        ("temperature", 2, 2.0),
        ("temperature", np.float32(0.5), 0.5),
        ("temperature", Fraction(1, 2), 0.5),
        ("top_p", 1, 1.0),
        ("top_p", 1e-9, 1e-9),
        ("top_k", 10**6, 10**6),
        ("min_tokens", 16, 16),
        ("seed", 0, 0),
        ("seed", 2**63 - 1, 2**63 - 1),
        ("seed", None, None),
        ("stop_token_ids", [5, np.int64(6)], (5, 6)),
        ("stop_token_ids", {7}, (7,)),
        ("stop_token_ids", range(2), (0, 1)),
        ("stop_token_ids", iter([5, 6]), (5, 6)),
        ("stop", "end", ("end",)),
        ("stop", ["a", "bc"], ("a", "bc")),
        ("n", np.uint8(4), 4),
    ],
)
def test_a_value_in_range_is_kept_as_a_plain_one(name, value, kept):
    params = SamplingParams(**{name: value})
    assert getattr(params, name) == kept
    assert type(getattr(params, name)) is type(kept)
    assert hash(params) == hash(SamplingParams(**{name: kept}))


def test_a_decimal_is_no_number_to_python():
    with pytest.raises(ValueError, match="temperature is Decimal"):
        SamplingParams(temperature=Decimal("0.5"))  # type: ignore[arg-type]


def test_params_do_not_change():
    with pytest.raises(AttributeError):
        SamplingParams().n = 2  # type: ignore[misc]


@pytest.mark.parametrize("bad", [-1, 2**32, 1.5, NAN, None, "a", [1]], ids=repr)
def test_prompt_ids(bad):
    with pytest.raises(ValueError, match=r"at position 1 of the prompt.*0 to 4294967295"):
        Request("r", [3, bad], SamplingParams())


def test_request_arguments():
    with pytest.raises(ValueError, match="request_id is 5"):
        Request(5, [1], SamplingParams())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="params is 16"):
        Request("r", [1], 16)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="extra_key is 1"):
        Request("r", [1], SamplingParams(), extra_key=1)  # type: ignore[arg-type]


def test_a_request_keeps_its_own_copy_of_the_prompt():
    prompt = np.arange(3)
    request = Request("r", prompt, SamplingParams())
    prompt[0] = 99
    assert request.token_ids == [0, 1, 2]
    assert {type(token) for token in request.token_ids} == {int}
    assert request.status is RequestStatus.WAITING
    assert (request.output_token_ids, request.num_output_tokens) == ([], 0)
    request.prompt_token_ids.append(5)
    request.output_token_ids.append(5)
    assert request.num_tokens == request.num_prompt_tokens == 3
    request.token_ids.append(7)
    assert (request.prompt_token_ids, request.output_token_ids) == ([0, 1, 2], [7])
    assert repr(request) == "Request('r', waiting, 3 prompt + 1 output tokens, 0 computed)"


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_model_len"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, NAN], ids=repr)
def test_scheduler_limits(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*an integer, 1 or more"):
        SchedulerConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 8, name: value})


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_chunked_prefill_is_yes_or_no(value):
    with pytest.raises(ValueError, match="chunked_prefill is"):
        SchedulerConfig(4, 8, chunked_prefill=value)


def test_the_bookkeeping_needs_neither_torch_nor_triton():
    code = """
import sys
from course.engine import (BlockPool, blocks_needed, slot_mapping, hash_blocks, PrefixCache,
    SamplingParams, Request, RequestStatus, KVManager, SlabKVManager, Scheduler, SchedulerConfig)
heavy = {"torch", "triton", "transformers", "matplotlib"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
