"""RQ's wire format, as stock RQ writes and reads it."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Callable

import pytest
from rq.serializers import JSONSerializer

from dispatcher.core.event import MAX_EVENT_BYTES, Event
from dispatcher.core.states import Leased, Undecodable
from dispatcher.errors import InvalidEvent
from dispatcher.store.intake import FUNCTION, open_envelope, seal
from dispatcher.store.script_rows import read

EVENT = Event("errors", "disk full & <hot>", channel="#ops", labels={"host": "db1"})


def job_data(function: str = FUNCTION, *args: object) -> bytes:
    return json.dumps([function, None, list(args), {}]).encode()


def test_stock_rq_reads_what_we_seal() -> None:
    function, instance, arguments, keywords = JSONSerializer.loads(seal(EVENT).encode())  # type: ignore[no-untyped-call] # RQ's
    assert (function, instance, keywords) == (FUNCTION, None, {})
    assert Event.from_payload(arguments[0]) == EVENT


def test_a_job_of_stock_rq_opens_compressed_or_not() -> None:
    data = JSONSerializer.dumps((FUNCTION, None, ({"category": "errors", "text": "x"},), {}))  # type: ignore[no-untyped-call] # RQ's
    assert open_envelope("j", data) == Event("errors", "x")
    assert open_envelope("j", zlib.compress(data)) == Event("errors", "x")


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        raise AssertionError("nothing is ever pickled or unpickled here")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "job data is not JSON at character 2: Expecting property name enclosed in double quotes"),
        (b"\xff\xfe", "job data is not JSON at character 1: Expecting value"),
        (b"\x00\xd8\x00\xd8\x01", "job data is not UTF-8, expected JSON"),
        (b"\x80", "job data is pickled, expected JSON"),
        (b"[\xff]", "job data is not UTF-8, expected JSON"),
        (b"[" * 100_000, "job data is nested too deeply"),
        (b"1" * 5_000, "job data holds a number of more than 4300 digits"),
        (b"x\x9cgarbage", "job data begins like zlib's, but cannot be decompressed; expected JSON"),
        (pickle.dumps(("os.system", None, ("true",), {})), "job data is pickled, expected JSON"),
        (job_data("os.system", "true"), f"names the function 'os.system'; this worker runs only {FUNCTION}"),
        (job_data(FUNCTION), "other arguments than one event"),
        (job_data(FUNCTION, {}, {}), "other arguments than one event"),
        (json.dumps([FUNCTION, None, [{}], {"a": 1}]).encode(), "other arguments than one event"),
        (b"7", "not RQ's list"),
        (job_data(FUNCTION, {"category": "errors"}), "text is missing"),
        (job_data(FUNCTION, {"category": "errors", "text": "x", "id": "other"}), "pass job_id='other' to enqueue"),
        (job_data(FUNCTION, {"category": "errors", "text": "x" * MAX_EVENT_BYTES}), "expected at most 262144"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_undecodable_job_data_is_refused_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        open_envelope("job-1", data)
    assert message in str(caught.value)


def test_job_data_that_is_small_only_while_it_is_compressed_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="larger than"):
        open_envelope("job-1", zlib.compress(job_data(FUNCTION, {"category": "errors", "text": "x" * 50_000_000})))


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\U0001f525"])
@pytest.mark.parametrize("pack", [bytes, zlib.compress], ids=["plain", "compressed"])
def test_send_and_a_worker_take_events_of_the_same_size_however_they_are_written(
    letter: str, pack: Callable[[bytes], bytes]
) -> None:
    left = MAX_EVENT_BYTES - len(b'{"category":"errors","text":""}')
    count, rest = divmod(left, len(letter.encode()))
    for more in (0, 1):
        event = Event("errors", letter * count + (rest + more) * "x")
        payload = {"category": "errors", "text": event.text}
        jobs = [
            job_data(FUNCTION, payload),
            job_data(FUNCTION, {"v": 1, **payload}),
            f'["{FUNCTION}",null,[{json.dumps(payload, separators=(",", ":"), ensure_ascii=False)}],{{}}]'.encode(),
        ]
        if more:
            with pytest.raises(InvalidEvent, match=r"^event is 262145 bytes as JSON, expected at most 262144$"):
                seal(event)
            for data in jobs:
                with pytest.raises(InvalidEvent, match=r"^event is 262145 bytes as JSON, expected at most 262144$"):
                    open_envelope("job-1", pack(data))
        else:
            assert {open_envelope("job-1", pack(data)).text for data in [seal(event).encode(), *jobs]} == {event.text}


def test_blocks_are_measured_as_the_text_is() -> None:
    block = {"type": "section", "text": {"type": "plain_text", "text": "\u00e9" * 100_000}}
    event = Event("errors", blocks=[block])
    assert open_envelope("job-1", seal(event).encode()) == event


def test_a_record_becomes_the_event_under_lease() -> None:
    header = b'{"seq":7,"seen":"1700000000000001","attempt":2,"unknown":1,"held":true,"channel":"#was"}'
    item = read("job-1", header + b"\n" + seal(EVENT).encode())
    assert item == Leased("job-1", EVENT, 7, 1_700_000_000_000_001, attempt=2, unknown=1, held=True, channel="#was")


def test_a_record_without_payload_has_expired() -> None:
    item = read("job-1", b'{"seq":7,"seen":"1"}\n')
    assert isinstance(item, Undecodable)
    assert item.reason == "expired"
