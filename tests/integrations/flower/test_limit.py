"""A reply is measured while Flower's own grid fetches it over HTTP: before its bytes are read or repeated."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id, get_object_tree
from flwr.superlink.grid.http_grid import HttpGrid

from signfade.integrations.flower.exchange import Largest, SizeLimit, TooLarge


class Link(BaseHTTPRequestHandler):
    """As much of a SuperLink as fetching one reply needs."""

    messages: PullAppMessagesResponse
    objects: dict[str, bytes]
    written: list[int]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        call = self.path.rpartition("/")[2]
        if call == "pull-messages":
            answer: Any = self.messages
        elif call == "pull-object":
            content = self.objects[PullObjectRequest.FromString(body).object_id]
            answer = PullObjectResponse(object_found=True, object_available=True, object_content=content)
        else:
            answer = ConfirmMessageReceivedResponse()
        data = answer.SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        try:
            for start in range(0, len(data), 1 << 16):
                self.written.append(self.wfile.write(data[start : start + (1 << 16)]))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def link() -> Iterator[Any]:
    handler = type("OneLink", (Link,), {"written": [], "objects": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    grid = HttpGrid(f"127.0.0.1:{server.server_port}", insecure=True, token="none")
    grid._run = SimpleNamespace(run_id=1)  # type: ignore[assignment]
    yield SimpleNamespace(handler=handler, grid=grid)
    grid.close()
    server.shutdown()
    thread.join()
    server.server_close()


def offer(link: Any, content: RecordDict) -> None:
    """Let the link have one reply."""
    order = Message(RecordDict(), dst_node_id=7, message_type="train")
    order.metadata.__dict__["_message_id"] = "order"
    reply = Message(content, reply_to=order)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    link.handler.messages = PullAppMessagesResponse(
        messages_list=[message_to_proto(remove_content_from_message(reply))],
        message_object_trees=[get_object_tree(reply)],
    )
    link.handler.objects = {id: part.deflate() for id, part in get_all_nested_objects(reply).items()}


def fetched(link: Any, most: Largest | None) -> list[Message]:
    with SizeLimit().on(link.grid, most):
        return list(link.grid.pull_messages(["order"]))


def packet(size: int) -> RecordDict:
    return RecordDict({"signfade": ConfigRecord({"packet": bytes(size)})})


def test_what_fits_is_fetched(link: Any) -> None:
    content = packet(1000)
    content["arrays"] = ArrayRecord({"mean": Array(np.arange(5.0)), "variance": Array(np.ones(5))})
    offer(link, content)
    for most in (Largest(20_000, arrays=2), None):
        [reply] = fetched(link, most)
        assert reply.content["signfade"]["packet"] == bytes(1000)
        assert reply.content["arrays"]["mean"].numpy().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_large_object_is_not_read(link: Any) -> None:
    offer(link, packet(1000))
    [old] = [id for id, data in link.handler.objects.items() if data.startswith(b"ConfigRecord ")]
    link.handler.objects[old] = bytes(100_000_000)  # Flower would take a minute to make such a record
    with pytest.raises(TooLarge, match="its reply has more than 20000 bytes"):
        fetched(link, Largest(20_000))
    assert sum(link.handler.written) < 20_000_000  # what fits into buffers of the two ends


def test_many_small_objects_are_a_large_reply(link: Any) -> None:
    arrays = ArrayRecord({f"a{k}": Array(np.full(100, float(k))) for k in range(100)})
    offer(link, RecordDict({"arrays": arrays}))
    with pytest.raises(TooLarge, match="its reply has more than 50000 bytes"):
        fetched(link, Largest(50_000, arrays=1000))


def test_more_arrays_than_the_model_has_are_refused(link: Any) -> None:
    arrays = ArrayRecord({f"a{k}": Array(np.full(100, float(k))) for k in range(5)})
    offer(link, RecordDict({"arrays": arrays}))
    assert fetched(link, Largest(50_000, arrays=5))
    with pytest.raises(TooLarge, match="its reply has more than 4 arrays"):
        fetched(link, Largest(50_000, arrays=4))


def test_an_array_that_repeats_its_chunk_is_refused(link: Any) -> None:
    """Twenty kilobytes that would become ten megabytes when decoded."""
    offer(link, RecordDict({"arrays": ArrayRecord({"a": Array(np.ones(1000))})}))
    parts = link.handler.objects
    [old] = [id for id, data in parts.items() if data.startswith(b"Array ")]
    head, _, body = parts[old].partition(b"\0")
    words = json.loads(body) | {"arraychunk_ids": [0] * 1200}
    repeated = json.dumps(words).encode()
    grown = b" ".join([*head.split(b" ")[:2], str(len(repeated)).encode()]) + b"\0" + repeated
    assert get_object_id(grown) != old
    parts[old] = grown  # nobody on the way checks that an object is what its number says
    with pytest.raises(TooLarge, match="its reply has more than 1 arrays"):
        fetched(link, Largest(50_000, arrays=1))
