"""What a publication asks of a server: how often, in which order, and what follows if no answer comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3")
pytest.importorskip("deltalake")
pytest.importorskip("hudi")

from botocore.exceptions import ClientError
from tests.sinks.publications.crashes import CrashError
from tests.sinks.publications.toy_lake import LINES, ORDERS, ToyLake
from tests.storage.memory import WRITES, MemoryClient

from tautochrone.errors import SinkError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.sinks import open_sink
from tautochrone.sinks.common.exclusive_files import copy_objects
from tautochrone.sinks.common.object_paths import S3Path
from tautochrone.sinks.common.publication import PublicationSink

MOVED = replace(LINES, table="moved")


@pytest.fixture
def client() -> MemoryClient:
    return MemoryClient()


@pytest.fixture(params=["delta", "hudi", "paimon"])
def lake(tmp_path: Path, client: MemoryClient, request: pytest.FixtureRequest) -> ToyLake:
    lake = ToyLake(tmp_path, request.param, bucket=S3Path("s3://bucket", "lake", client))
    lake.add()
    lake.deliver()
    client.requests.clear()
    return lake


def calls_of(lake: ToyLake, sink: PublicationSink) -> dict[str, Callable[[], Any]]:
    """All that a delivery, a repair and a change of datasets call, in an order in which it works."""
    number, fence = 2, Fence(lake.fence)
    intent = lake.intent(sink, number)
    versions, chunks = lake.checkpoints[number], list[Any]()

    def write() -> None:
        chunks[:] = [
            chunk
            for version in versions.values()
            for chunk in sink.write_files(intent.transaction, version, moves_rows=True)
        ]

    return {
        "published": sink.published,
        "claim": lambda: sink.claim("lake"),
        "highest_fence": sink.highest_fence,
        "fence": lambda: sink.fence(fence),
        "recover": lambda: sink.recover([], fence),
        "changed_tables": lambda: sink.changed_tables(tuple(versions), None),
        "ensure": lambda: sink.ensure(LINES, None, (), fence),
        "begin": lambda: sink.begin(intent),
        "write_files": write,
        "prepare": lambda: sink.prepare(intent.transaction, chunks),
        "commit": lambda: sink.commit(intent.transaction, fence),
        "audit": lambda: sink.audit(LINES, CheckpointNumber(number)),
        "maintain": lambda: sink.maintain(fence),
        "damage": lambda: sink.damage(LINES, versions[LINES]),
        "begin another": lambda: sink.begin(lake.intent(sink, number + 1)),
        "abort": lambda: sink.abort(lake.intent(sink, number + 1).transaction, fence),
        "mirror_of": lambda: sink.mirror_of(LINES),
        "rename_mirror": lambda: sink.rename_mirror(LINES, MOVED),
        "drop_mirror": lambda: sink.drop_mirror(MOVED),
        "set_aside": lambda: sink.set_aside(ORDERS, fence),
    }


def error_of(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except SinkError as error:
        return error.error_class
    return None


def test_each_request_without_an_answer_fails_the_sink(lake: ToyLake, client: MemoryClient) -> None:
    """And what is called again afterwards works."""
    lake.add()
    lake.add()
    sink = lake.open()
    for name, call in calls_of(lake, sink).items():
        number = 0
        while True:
            number += 1
            client.fail_at(number)
            before = len(client.requests)
            error_class = error_of(call)
            if len(client.requests) - before < number:
                assert error_class is None, name
                break
            assert error_class == "PUBLICATION_FILE_FAILED", (name, number)
        assert number > 1 or name == "claim", name


def crash(client: MemoryClient, at: int) -> None:
    """The process ends before the n-th write from now on."""
    left = at

    def count(call: str, _key: str) -> None:
        nonlocal left
        left -= call in WRITES
        if left <= 0:
            raise CrashError

    client.before = count


def test_a_rename_that_died_leaves_nothing(lake: ToyLake, client: MemoryClient) -> None:
    """Neither a copy, nor a word that lets a later rename of the same names copy over objects of others."""
    number, is_moved = 0, False
    while not is_moved:
        number += 1
        sink = lake.open()
        crash(client, number)
        with suppress(CrashError):
            sink.rename_mirror(LINES, MOVED)
            is_moved = True
        client.before = lambda _call, _key: None
        sink = lake.open()
        sink.recover([], Fence(lake.fence))
        state = sink._states_folder.read()
        assert state.move is None
        left, right = (lake.table_folder(name).is_dir() for name in (LINES, MOVED))
        assert (left, right) == (LINES in state.heads, MOVED in state.heads)
        assert left != right
        if right:
            files = lake.checkpoints[1][LINES]
            assert sink.audit(MOVED, CheckpointNumber(1)) == sink.digest_files(files)
            sink.rename_mirror(MOVED, LINES)
    assert number > 5
    foreign = lake.table_folder(MOVED) / "data/theirs"
    foreign.put(b"theirs")
    with pytest.raises(SinkError, match="SINK_NAME_TAKEN"):
        lake.open().rename_mirror(LINES, MOVED)
    assert foreign.read_bytes() == b"theirs"


def test_the_log_is_copied_last(client: MemoryClient) -> None:
    """In the order in which it came: whoever sees a version sees its files, and those before it."""
    names = [f"_delta_log/{number:020d}.json" for number in (9, 10, 11)]
    names += ["_delta_log/_last_checkpoint", "data/a", "data/z", "zzz"]
    before, after = (S3Path("s3://bucket", name, client) for name in ("before", "after"))
    for name in names:
        (before / name).put(b"")
    copy_objects(before, after, last="_delta_log")
    copied = client.keys("copy")
    assert sorted(copied) == sorted(f"after/{name}" for name in names)
    assert copied[-4:] == [f"after/{name}" for name in names[:4]]


@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_a_file_with_another_vector_is_not_copied_again(lake: ToyLake, client: MemoryClient) -> None:
    deleted = {
        table.table: dict.fromkeys(version.deleted, frozenset({1, 2}))
        for table, version in lake.checkpoints[1].items()
    }
    lake.publish(**deleted)
    client.requests.clear()
    lake.deliver()
    assert not client.keys("copy")
    sink = lake.open()
    assert sink.audit(LINES, CheckpointNumber(2)) == sink.digest_files(lake.checkpoints[2][LINES])


def test_sizes_are_not_asked_for(lake: ToyLake, client: MemoryClient) -> None:
    """They are known of the lake's files; those of the published ones are listed."""
    lake.add()
    lake.add()
    client.requests.clear()
    lake.deliver()
    sink = lake.open()
    last = len(lake.checkpoints)
    assert sink.audit(LINES, CheckpointNumber(last)) == sink.digest_files(lake.checkpoints[last][LINES])
    headed = [key for key in client.keys("head_object") if key.endswith(".parquet")]
    # Paimon asks whether the new files of each table are there, before the snapshot names them.
    assert len(headed) == (4 if lake.format == "paimon" else 0), headed


def test_nothing_is_written_into_a_folder_of_another_lake(lake: ToyLake, client: MemoryClient) -> None:
    with pytest.raises(SinkError, match="SINK_DATABASE_TAKEN"):
        lake.publication().claim("another")
    assert not client.keys("put_object")


@pytest.mark.parametrize(
    "wrong",
    [{"s3.endpoint": "minio:9000"}, {"s3.region": "not a region"}, {"s3.access-key-id": "without a secret"}],
)
def test_options_that_no_client_takes_are_named(wrong: dict[str, str]) -> None:
    with pytest.raises(SinkError, match="SINK_OPTION_INVALID"):
        open_sink("mirror", "delta-publication", {"folder": "s3://bucket/d", **wrong})


@pytest.mark.parametrize(("conflicts", "is_created"), [(4, True), (5, False)])
def test_a_write_beside_another_one_is_tried_again(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch, conflicts: int, is_created: bool
) -> None:
    """Amazon's server refuses one that begins while another one is under way."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    left = conflicts

    def conflict(call: str, _key: str) -> None:
        nonlocal left
        left -= call == "put_object"
        if call == "put_object" and left >= 0:
            raise ClientError({"Error": {"Code": "ConditionalRequestConflict"}}, "PutObject")

    client.before = conflict
    path = S3Path("s3://bucket", "lake/1", client)
    if is_created:
        assert path.create(b"1")
    else:
        with pytest.raises(OSError, match="other writers"):
            path.create(b"1")
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8][:conflicts]
