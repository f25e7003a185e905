"""Which tables are delivered to which sinks, and what is refused before a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tautochrone.errors import DefinitionError, SettingsError
from tautochrone.model.definitions import Dataset, DatasetKind, OtherFormats, SourceLocation
from tautochrone.model.names import TableName
from tautochrone.model.sink import PUBLICATIONS, DeliveryPolicy
from tautochrone.project.definitions import Sink
from tautochrone.project.settings import SinkSettings, load_settings, with_publications
from tautochrone.project.sinks import PUBLISH_PROPERTY, SINKS_PROPERTY, sink_declarations
from tautochrone.project.spec import load_spec

HERE = SourceLocation("pipeline.py", 3)
MIRROR, ARCHIVE = SinkSettings(format="toy"), SinkSettings(format="toy", policy=DeliveryPolicy.HOLD_BACK)


def name(text: str) -> TableName:
    return TableName("lake", ("default",), text)


def dataset(text: str, kind: DatasetKind = DatasetKind.STREAMING_TABLE, **properties: str) -> Dataset:
    return Dataset(name=name(text), kind=kind, location=HERE, properties=properties)


def named(text: str, sinks: str, kind: DatasetKind = DatasetKind.STREAMING_TABLE) -> Dataset:
    return dataset(text, kind, **{SINKS_PROPERTY: sinks})


def created(text: str, format_name: str = "toy", **options: str) -> Sink:
    return Sink(name=name(text), format=format_name, options=options, location=HERE)


def declared(
    datasets: list[Dataset],
    sinks: list[Sink] | None = None,
    settings: dict[str, SinkSettings] | None = None,
    flows: dict[str, list[TableName | None]] | None = None,
) -> dict[str, Any]:
    definitions: Any = SimpleNamespace(
        datasets={entry.name: entry for entry in datasets}, sinks={sink.name: sink for sink in sinks or []}
    )

    def flows_of(target: TableName) -> list[Any]:
        listed = (flows or {}).get(target.table, [])
        flow = SimpleNamespace(location=HERE, name="flow", target=target)
        return [SimpleNamespace(flow=flow, passes_on=source) for source in listed]

    graph: Any = SimpleNamespace(flows_of=flows_of)
    declarations = sink_declarations(definitions, graph, settings or {}, lambda text: text == "toy")
    return {sink.name: sink for sink in declarations}


def test_the_property_and_append_flows_feed_one_list() -> None:
    declarations = declared(
        [named("orders", "mirror, archive"), dataset("lines")],
        [created("mirror", url="x")],
        {"archive": ARCHIVE},
        {"mirror": [name("lines")]},
    )
    mirror, archive = declarations["mirror"], declarations["archive"]
    assert mirror.tables == (name("lines"), name("orders"))
    assert mirror.insert_only == {name("lines")}
    assert mirror.options == {"url": "x"}
    assert (archive.tables, archive.policy) == ((name("orders"),), DeliveryPolicy.HOLD_BACK)


def test_a_table_that_is_fed_both_ways_is_delivered_with_all_changes() -> None:
    declarations = declared(
        [named("orders", "mirror")], [created("mirror")], {}, {"mirror": [name("orders")]}
    )
    assert not declarations["mirror"].insert_only


def test_a_section_adds_to_a_created_sink() -> None:
    settings = {"mirror": SinkSettings(options={"url": "y"}, key=("id",), attempts=5)}
    declarations = declared([named("orders", "mirror")], [created("mirror", url="x", more="z")], settings)
    assert declarations["mirror"].options == {"url": "y", "more": "z"}
    assert (declarations["mirror"].key, declarations["mirror"].attempts) == (("id",), 5)


def test_formats_without_adapter_are_left_out() -> None:
    assert not declared([dataset("orders")], [created("out", "console")], {}, {"out": [None]})


@pytest.mark.parametrize(
    ("error_class", "arguments"),
    [
        ("SINK_NOT_DECLARED", ([named("orders", "mirror")],)),
        ("SINK_NOT_DECLARED", ([named("orders", "mirror")], [], {"mirror": SinkSettings()})),
        ("SINK_DECLARED_TWICE", ([named("o", "m")], [created("m")], {"m": SinkSettings(format="other")})),
        ("SINK_FLOW_TRANSFORMS", ([dataset("o")], [created("m")], {}, {"m": [None]})),
        ("SINK_SOURCE_EXTERNAL", ([dataset("o")], [created("m")], {}, {"m": [name("theirs")]})),
        ("INVALID_SINKS", ([named("orders", "mirror,,")], [created("mirror")])),
        ("INVALID_SINKS", ([named("o", "mirror", DatasetKind.TEMPORARY_VIEW)], [created("mirror")])),
        ("INVALID_SINKS", ([dataset("orders", **{"tautochrone.sink": "mirror"})], [created("mirror")])),
        ("INVALID_SINKS", ([dataset("orders", **{PUBLISH_PROPERTY: "delta, lance"})],)),
        ("INVALID_SINKS", ([dataset("orders", **{"tautochrone.publishh": "delta"})],)),
        ("INVALID_SINKS", ([dataset("o", DatasetKind.TEMPORARY_VIEW, **{PUBLISH_PROPERTY: "delta"})],)),
    ],
)
def test_refusals(error_class: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(DefinitionError) as refused:
        declared(*arguments)
    assert refused.value.error_class == error_class


DELTA, HUDI, PAIMON = PUBLICATIONS.values()


@pytest.mark.parametrize(
    ("formats", "other_formats", "published"),
    [
        ((), OtherFormats.MAP, {DELTA: {"orders"}, HUDI: {"orders"}}),
        (("hudi",), OtherFormats.MAP, {DELTA: {"orders"}, HUDI: {"orders", "lines", "sums"}}),
        (
            ("paimon",),
            OtherFormats.MAP,
            {DELTA: {"orders"}, HUDI: {"orders"}, PAIMON: {"orders", "lines", "sums"}},
        ),
        ((), OtherFormats.PUBLISH, {DELTA: {"orders", "lines"}, HUDI: {"orders"}}),
    ],
)
def test_publications_take_tables_that_ask_or_all(
    formats: tuple[str, ...], other_formats: OtherFormats, published: dict[str, set[str]]
) -> None:
    settings = with_publications(
        {DELTA: SinkSettings(attempts=7)}, formats, other_formats, "/storage", {"s3.region": "r"}
    )
    datasets = [
        dataset("orders", **{PUBLISH_PROPERTY: "hudi, delta"}),
        replace(dataset("lines"), format="delta"),
        dataset("sums"),
        dataset("view", DatasetKind.TEMPORARY_VIEW),
    ]
    declarations = declared(datasets, [], settings)
    assert {sink: {t.table for t in each.tables} for sink, each in declarations.items()} == published
    assert declarations[DELTA].options == {"folder": "/storage/publications/delta"}
    assert (declarations[DELTA].attempts, declarations[DELTA].insert_only) == (7, frozenset())


def test_tables_are_published_in_formats_that_exist() -> None:
    with pytest.raises(SettingsError, match="lance"):
        with_publications({}, ["delta", "lance"], OtherFormats.MAP, "/storage", {})


def test_a_publication_on_s3_has_the_options_of_the_lake(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorage: storage\nlibraries: []\n")
    (tmp_path / "tautochrone.toml").write_text(
        '[lake.options]\ntype = "rest"\nuri = "http://x"\n"client.region" = "r"\n"s3.endpoint" = "e"\n'
        '[spark.conf]\n"spark.hadoop.fs.s3a.access.key" = "k"\n'
        '"spark.hadoop.fs.s3a.path.style.access" = "true"\n'
        '[sinks.delta-publication.options]\nfolder = "s3a://b/c"\n"s3.endpoint" = "other"\n'
    )
    sinks = load_settings(load_spec(tmp_path / "spark-pipeline.yml"), environment={}).sinks
    assert sinks[DELTA].options == {
        "folder": "s3a://b/c",
        "s3.endpoint": "other",
        "s3.access-key-id": "k",
        "s3.region": "r",
        "s3.path-style-access": "true",
    }
    assert sinks[HUDI].options == {"folder": f"{tmp_path}/storage/publications/hudi"}


def test_publications_are_in_the_storage_on_s3(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorage: s3a://b/shop\nlibraries: []\n")
    (tmp_path / "tautochrone.toml").write_text(
        '[meta]\nurl = "http://x"\n[lake.options]\ntype = "rest"\nuri = "http://x"\n"s3.region" = "r"\n'
    )
    sinks = load_settings(load_spec(tmp_path / "spark-pipeline.yml"), environment={}).sinks
    assert sinks[DELTA].options == {"folder": "s3a://b/shop/publications/delta", "s3.region": "r"}


def test_sections_of_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorage: storage\nlibraries: []\n")
    (tmp_path / "tautochrone.toml").write_text(
        '[sinks.mirror]\nformat = "toy"\nkey = ["id"]\npolicy = "skip_with_alarm"\nattempts = 2\n'
        'catch_up = "2h"\n[sinks.mirror.options]\nurl = "here"\n"a.b" = 3\n'
    )
    settings = load_settings(load_spec(tmp_path / "spark-pipeline.yml"), environment={})
    assert settings.sinks["mirror"] == SinkSettings(
        format="toy",
        options={"url": "here", "a.b": "3"},
        key=("id",),
        policy=DeliveryPolicy.SKIP_WITH_ALARM,
        attempts=2,
        catch_up_ms=7_200_000,
        origin="tautochrone.toml:2",
    )
