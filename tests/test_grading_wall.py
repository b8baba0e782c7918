"""What crosses the wall, what does not, and what the grader makes of a worker that lies."""

import os
import struct
import sys
import threading
import time
from array import array
from collections import deque

import pytest

from course.engine.block_pool import BlockPool, OutOfBlocks
from course.grading import outcomes
from course.grading.near import known_class
from course.grading.wall import lockdown
from course.grading.wall.peer import Peer
from course.grading.wall.wire import MAX_CASE, Channel, Gone, Uncrossable
from course.practice.guard import Unusable


class Far(Peer):
    """A worker in a thread of this process, serving one object."""

    def __init__(self, channel, answer):
        super().__init__(channel, guarded=False, find_class=known_class)
        self.answer = answer

    def _done(self, message):
        if message["do"] == "case":
            self.reset()
            self.mine[0] = self.answer
            return None
        return super()._done(message)


def ends():
    read, back = os.pipe()
    there, write = os.pipe()
    return Channel(read, write), Channel(there, back)


@pytest.fixture
def across():
    """across(object) -> a stand-in for it, from the other side of two pipes."""
    opened = []

    def make(answer):
        near, far = ends()
        opened.extend([near, far])
        peer = Peer(near, guarded=True, find_class=known_class)
        server = Far(far, answer)

        def serve():
            try:
                while True:
                    message = far.receive()
                    server._heed(message)
                    server._serve(message)
            except (Gone, OSError):
                pass

        threading.Thread(target=serve, daemon=True).start()
        near.deadline = time.monotonic() + 20
        peer.ask("case")
        return peer.decode({"ref": 0, "kind": "builtins:object", "text": "the answer"})

    yield make
    for channel in opened[::2]:
        os.close(channel.write)


VALUES = (
    None, True, 3, -(2**70), 0.5, float("inf"), "ünï \ud800", b"\x00\xff", (1, (2, [3])), [1, [2]],
    {"a": 1, (1, 2): [3]}, {1, 2}, frozenset({3}), range(1, 9, 2), array("i", [1, -2]),
    slice(1, None), [], {}, (),
)  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_come_back_as_they_went(across, value):
    assert across(lambda given: given)(value) == value
    assert type(across(lambda given: given)(value)) is type(value)


def test_nan_and_numbers_of_numpy(across):
    import numpy as np

    echo = across(lambda given: given)
    assert echo(float("nan")) != echo(float("nan"))
    for value in (np.int64(4), np.float32(0.5), np.bool_(True)):
        assert type(echo(value)) is type(value)
        assert echo(value) == value
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert (echo(array) == array).all()
    assert echo(array).dtype == array.dtype


def test_tensors_keep_strides_and_dtype_and_what_is_written_into_them(across):
    torch = pytest.importorskip("torch")

    def write(given):
        given[0, 1] = 7
        return given.stride(), given.dtype

    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.bool):
        tensor = torch.zeros(3, 2, dtype=dtype).t()
        stride, told = across(write)(tensor)
        assert (stride, told) == ((1, 2), dtype)
        assert tensor[0, 1] == torch.tensor(7).to(dtype)
        assert tensor.sum() == tensor[0, 1]


def test_containers_are_one_thing_on_both_sides(across):
    kept = []

    def keep(given):
        kept.append(given)
        given.append(1)
        return given

    answer = across(keep)
    mine = []
    back = answer(mine)
    assert back is mine
    assert mine == [1]
    mine.append("from here")
    assert answer(mine) == [1, "from here", 1]
    assert kept[0] is kept[1]

    class Lender:
        def __init__(self):
            self.ids = [1, 2]

        def lend(self):
            return self.ids

        def count(self):
            return len(self.ids)

    lender = across(Lender)()
    lent = lender.lend()
    lent.append(-7)
    assert lender.count() == 3  # it gave away its own list, and that shows


def test_errors_come_as_the_nearest_kind_that_both_know(across):
    class Mine(OutOfBlocks):
        pass

    def fail(kind):
        raise {"mine": Mine, "key": KeyError, "exit": SystemExit}[kind]("why")

    answer = across(fail)
    with pytest.raises(OutOfBlocks, match="why") as caught:
        answer("mine")
    assert caught.value.told["type"].endswith("Mine")
    with pytest.raises(KeyError):
        answer("key")
    with pytest.raises(Exception, match="why") as caught:
        answer("exit")
    assert not isinstance(caught.value, SystemExit)


def test_the_far_side_calls_back_what_it_was_handed(across):
    pool = BlockPool(4)

    def use(handed):
        ids = handed.allocate(3)
        try:
            handed.allocate(9)
        except OutOfBlocks:
            return ids, handed.num_free, len(handed.free_blocks)

    ids, free, listed = across(use)(pool)
    assert (len(ids), free, listed) == (3, 1, 1)
    assert pool.num_free == 1
    assert next(across(lambda items: items)(iter([5, 6]))) == 5


@pytest.mark.parametrize(
    "name", ["__class__", "__init__", "__dict__", "_ref_counts", "__globals__", "__reduce__"]
)
def test_private_names_of_what_it_was_handed_are_closed(across, name):
    def reach(handed):
        peer = object.__getattribute__(handed, "_peer")
        number = object.__getattribute__(handed, "_number")
        return peer.ask("get", on=number, **{"with": [name]})

    with pytest.raises(AttributeError):
        across(reach)(BlockPool(4))


def test_functions_that_were_handed_can_be_called_and_nothing_else(across):
    assert across(lambda call: call(2))(lambda n: n + 1) == 3
    with pytest.raises(AttributeError):
        across(lambda call: call.anything)(lambda n: n)


def test_data_of_the_courses_objects_can_be_set_and_its_methods_not(across):
    from course.engine.request import Request, RequestStatus
    from course.engine.sampling_params import SamplingParams

    def use(request, waiting):
        request.num_computed_tokens = 3
        request.status = RequestStatus.PREEMPTED
        waiting.appendleft(request)
        return waiting.pop()

    request, other = (Request(name, [1, 2], SamplingParams()) for name in "ab")
    waiting = deque([other])
    assert across(use)(request, waiting) is other
    assert list(waiting) == [request]
    assert (request.num_computed_tokens, request.status) == (3, RequestStatus.PREEMPTED)
    for name, value in (("num_free", 1), ("ref_count", len), ("new", 1), ("num_blocks", len)):
        pool = BlockPool(4)
        with pytest.raises(AttributeError):
            across(lambda pool, name=name, value=value: setattr(pool, name, value))(pool)


@pytest.mark.parametrize(
    "value", [os, sys.__stderr__, object(), type], ids=["module", "file", "object", "type"]
)
def test_what_is_not_the_courses_is_not_handed_over(across, value):
    answer = across(lambda given: None)
    with pytest.raises(Uncrossable):
        answer(value)


def raw(*messages: bytes, numbered: bool = True):
    """A guarded peer whose other side wrote these bytes already."""
    near, far = ends()
    for turn, message in enumerate(messages, 1):
        message = message.replace(b"{", b'{"to": %d, ' % turn, 1) if numbered else message
        os.write(far.write, struct.pack("<I", len(message)) + message)
    near.deadline = time.monotonic() + 2
    return Peer(near, guarded=True, find_class=known_class), far


LIES = (
    b"", b"[]", b"7", b"nonsense", b'{"ok": NaN}', b'{"neither": 1}', b'{"ok": {"same": 9}}',
    b'{"ok": {"yours": 5}}', b'{"ok": {"n": 4, "list": 7}}', b'{"ok": {"n": "4", "list": []}}',
    b'{"ok": {"class": "os:system"}}', b'{"ok": {"class": "builtins:eval"}}',
    b'{"ok": {"record": {}, "of": "course.engine.block_pool:BlockPool"}}',
    b'{"ok": {"member": "x", "of": "builtins:dict"}}', b'{"ok": {"torch": "load"}}',
    b'{"ok": {"n": 4, "ndarray": {"dtype": "|O", "shape": [1], "data": "AAAAAAAAAAA="}}}',
    b'{"ok": {"n": 4, "ndarray": {"dtype": "<f4", "shape": [999999999], "data": ""}}}',
    b'{"ok": {"r": [0, 1, 0]}}', b'{"ok": {"n": 4, "Tensor": {"torch": "float64", "shape": [1], '
    b'"stride": [1], "data": "AAAA"}}}',
    b'{"ok": {"scalar": "V999999999", "data": ""}}', b'{"ok": {"t": 5}}', b'{"bad": 5, "ok": 1}',
    b'{"changes": 5, "ok": 1}', b'{"changes": [[1]], "ok": 1}', b'{"changes": [[[], 2]], "ok": 1}',
    b'{"ok": {"ref": 4, "kind": "a:\\u0000", "text": "x"}}', b'{"ok": ' + b"[" * 5000,
    b'{"ok": ' + b'{"t":[' * 200 + b"1" + b"]}" * 200 + b"}",
    b'{"ok": {"f": "1e999"}}', b'{"ok": {"set": [{"n": 4, "list": []}]}}',
    b'{"notes": [[[]]], "bad": {"kinds": [5], "where": {"line": "x"}}}',
)  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
def test_a_worker_that_lies_is_gone_or_raises_nothing_new(lie):
    peer, _ = raw(lie)
    with pytest.raises((Gone, Exception)) as caught:
        peer.ask("case")
    assert isinstance(caught.value, Gone) or hasattr(caught.value, "told"), caught.value


def test_an_answer_to_no_question_or_another_is_an_end():
    for message, numbered in ((b'{"ok": 2}', False), (b'{"to": 2, "ok": 2}', False)):
        peer, _ = raw(message, numbered=numbered)
        with pytest.raises(Gone, match="answers no question"):
            peer.ask("case")


def test_more_than_was_asked_for_and_too_much_is_an_end():
    peer, _ = raw(b'{"ok": 1}', b'{"ok": 2}')
    assert peer.ask("case") == 1
    with pytest.raises(Gone, match="without being asked"):
        peer.ask("case")
    near, far = ends()
    os.write(far.write, struct.pack("<I", 2**31))
    near.deadline = time.monotonic() + 2
    with pytest.raises(Gone, match="are allowed"):
        near.receive()
    near, far = ends()
    near.deadline = time.monotonic() + 5
    near.received = MAX_CASE
    os.write(far.write, struct.pack("<I", 1) + b"1")
    with pytest.raises(Gone, match="for one case"):
        near.receive()


def test_waiting_ends_even_when_there_is_always_something_to_read():
    near, far = ends()
    near.deadline = time.monotonic() - 1
    os.write(far.write, struct.pack("<I", 1) + b"1")
    with pytest.raises(Gone, match="in time"):
        near.receive()


def test_values_that_grow_when_they_are_looked_at_are_not():
    value = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(Unusable, match="too large"):
        outcomes.weigh(value)
    outcomes.weigh([[1] * 1000] * 50)


@pytest.mark.parametrize(
    "told",
    [
        None, 5, "", "[]", "{}", '{"value": {"$array": {}}}', '{"value": {"$other": 5}}',
        '{"value": {"$tuple": 5}}', '{"value": {"$unknown": 5}}', '{"not_run": "no GPU"}',
        '{"skipped": "x"}', '{"value": 1, "error": {}}', '{"value": ' + "[" * 100 + "]" * 100 + "}",
        '{"value": {"$dict": [[1]]}}', '{"value": {"$float": "x"}}', "[" * 10_000,
    ],
)  # fmt: skip
def test_an_outcome_that_a_worker_made_up_is_of_no_use(told):
    assert "unusable" in outcomes.well_formed(told)


def test_outcomes_that_are_ones_stay():
    for told in ('{"value": [1, {"$tuple": [2]}]}', '{"unwritten": "4.1: write x"}'):
        assert "unusable" not in outcomes.well_formed(told)
    error = outcomes.well_formed('{"error": {"type": "E", "message": "m", "line": 3, "more": "x"}}')
    assert error["error"]["line"] == 3
    assert "more" not in error["error"]


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is of Linux")
def test_the_filter_is_well_formed():
    for machine in lockdown.ARCHITECTURES:
        program = lockdown._program(machine)
        assert len(program) < 4096
        for place, instruction in enumerate(program):
            code, then, otherwise, _ = struct.unpack("HBBI", instruction)
            if code & 0x07 == 0x05:  # a jump
                assert place + 1 + max(then, otherwise) < len(program)
        assert struct.unpack("HBBI", program[-1])[0] == 0x06
