"""Refused definitions: the class, the location and the hint."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError
from tautochrone.model.names import TableName

from .conftest import ProjectMaker

pytestmark = pytest.mark.spark

Name = Callable[[str], TableName]
MV = "CREATE MATERIALIZED VIEW"


@pytest.mark.parametrize(
    ("text", "error_class", "line", "words"),
    [
        ("\nSELECT 1", "PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR", 2, "Unsupported plan Project"),
        (
            "CREATE TABLE t AS SELECT 1",
            "PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR",
            1,
            "CreateTableAsSelect",
        ),
        ("INSERT INTO t SELECT 1", "PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR", 1, "InsertIntoStatement"),
        ("DROP TABLE t", "PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR", 1, "DropTable"),
        ("SET a", "PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR", 1, "without value"),
        (
            "CREATE FLOW f AS INSERT INTO t SELECT 1",
            "PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR",
            1,
            "by name",
        ),
        (
            f"{MV} m PARTITIONED BY (years(a)) AS SELECT 1 a",
            "PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR",
            1,
            "partitioning transform",
        ),
        (f"{MV} m AS\nSELECT a b\nc FROM x", "PARSE_SYNTAX_ERROR", 3, "'c'"),
        (f"\n{MV} m AS SELECT\n  id,\n  nme FROM RANGE(3)", "UNRESOLVED_COLUMN.WITH_SUGGESTION", 4, "nme"),
        (
            f"{MV} orders AS SELECT 1 a;\n{MV} m AS\nSELECT * FROM oders",
            "TABLE_OR_VIEW_NOT_FOUND",
            3,
            "orders?",
        ),
        (
            f"{MV} m AS SELECT 1 a;\nCREATE STREAMING TABLE M",
            "PIPELINE_DUPLICATE_IDENTIFIERS.OUTPUT",
            2,
            "a.sql:1",
        ),
        (
            f"{MV} default.eu__totals AS SELECT 1 a;\n{MV} default__eu.totals AS SELECT 1 a",
            "STATE_NAME_TAKEN",
            2,
            "default__eu__totals",
        ),
        (
            f"{MV} a AS SELECT * FROM b;\n{MV} b AS SELECT * FROM c;\n"
            "CREATE TEMPORARY VIEW c AS SELECT * FROM a",
            "CIRCULAR_DEPENDENCY",
            3,
            "lake.default.a",
        ),
        (f"{MV} a AS SELECT * FROM a", "CIRCULAR_DEPENDENCY", 1, "lake.default.a"),
        (
            "CREATE STREAMING TABLE s AS SELECT * FROM RANGE(1)",
            "INVALID_FLOW_QUERY_TYPE.BATCH_RELATION_FOR_STREAMING_TABLE",
            1,
            "STREAM",
        ),
        (
            f"\n{MV} m AS SELECT * FROM STREAM src",
            "INVALID_FLOW_QUERY_TYPE.STREAMING_RELATION_FOR_MATERIALIZED_VIEW",
            2,
            "lake.default.m",
        ),
        (
            "CREATE VIEW v AS SELECT * FROM STREAM src",
            "INVALID_FLOW_QUERY_TYPE.STREAMING_RELATION_FOR_PERSISTED_VIEW",
            1,
            "lake.default.v",
        ),
        (
            "CREATE STREAMING TABLE trget;\n"
            "CREATE FLOW f AS INSERT INTO target BY NAME SELECT * FROM STREAM src",
            "FLOW_TARGET_NOT_FOUND",
            2,
            "trget?",
        ),
        ("CREATE STREAMING TABLE s (a INT)", "PIPELINE_DATASET_WITHOUT_FLOW", 1, "lake.default.s"),
        (
            f"{MV} m AS SELECT 1 a;\nCREATE FLOW f AS INSERT INTO m BY NAME SELECT 2 a",
            "MATERIALIZED_VIEW_WITH_MULTIPLE_QUERIES",
            2,
            "a.sql:1",
        ),
        (
            "CREATE STREAMING TABLE s AS SELECT id FROM STREAM src;\nCREATE STREAMING TABLE t;\n"
            "CREATE FLOW f AS INSERT INTO s BY NAME SELECT id FROM STREAM src;\n"
            "CREATE FLOW f AS INSERT INTO t BY NAME SELECT id FROM STREAM src",
            "PIPELINE_DUPLICATE_IDENTIFIERS.FLOW",
            4,
            "a.sql:3",
        ),
        (f"\n{MV} m USING parqet AS SELECT 1 a", "UNSUPPORTED_TABLE_FORMAT", 2, "parquet?"),
        (f"USE other.db;\n{MV} m AS SELECT 1 a", "SEVERAL_CATALOGS", 1, "write names with three parts"),
        (
            f"SET CATALOG other;\n{MV} m AS SELECT 1 a",
            "SEVERAL_CATALOGS",
            1,
            "other is not in the pipeline's",
        ),
        (f"{MV} m AS SELECT INTERVAL 1 DAY i", "UNSUPPORTED_COLUMN_TYPE", 1, "interval day"),
        (f"{MV} m (a STRING) AS SELECT 1 a", "USER_SPECIFIED_AND_INFERRED_SCHEMA_NOT_COMPATIBLE", 1, "int"),
        (f"{MV} m PARTITIONED BY (b) AS SELECT 1 a", "COLUMN_NOT_DEFINED_IN_TABLE", 1, "b"),
        (
            "CREATE STREAMING TABLE s;\nCREATE FLOW f AS INSERT INTO s BY NAME SELECT id FROM STREAM src;\n"
            "CREATE FLOW g AS INSERT INTO s BY NAME SELECT v AS id FROM STREAM src",
            "UNABLE_TO_INFER_PIPELINE_TABLE_SCHEMA",
            3,
            "string",
        ),
        ("CREATE TEMPORARY VIEW v AS SELECT 1 a", "RUN_EMPTY_PIPELINE", None, "only temporary views (v)"),
        ("-- nothing", "RUN_EMPTY_PIPELINE", None, "1 file that matches defines nothing"),
        (
            f"{MV} m AS SELECT 1 b, make_interval(1) a",
            "UNSUPPORTED_COLUMN_TYPE",
            1,
            "no type for a (interval)",
        ),
        (f"{MV} orders AS SELECT * FROM order", "TABLE_OR_VIEW_NOT_FOUND", 1, "is called default.order."),
        (f"{MV} m AS SELECT * FROM SRC", "TABLE_OR_VIEW_NOT_FOUND", 1, "only upper and lower case differ"),
        (
            f"SET spark.sql.catalogImplementation=hive;\n{MV} m AS SELECT 1 a",
            "CANNOT_MODIFY_STATIC_CONFIG",
            2,
            "--conf",
        ),
    ],
)
def test_sql(
    project: ProjectMaker, name: Name, text: str, error_class: str, line: int | None, words: str
) -> None:
    project.external[name("src")] = StructType.fromDDL("id bigint, v string")
    error = project.sql_error(text)
    assert error.error_class == error_class, error.render()
    if line:
        assert error.location == f"defs/a.sql:{line}"
    assert words in error.render()
    assert "\n+-" not in error.message


def test_all_errors_are_told_at_once(project: ProjectMaker) -> None:
    files = {
        "defs/a.sql": f"{MV} a AS SELECT nme FROM RANGE(3);\n{MV} b AS SELECT * FROM a;\n"
        f"{MV} c AS SELECT * FROM nothing;\n{MV} d AS SELECT 1 x",
    }
    error = project.error(files)
    # `b` only reads what has an error.
    assert [error.location, *(other.location for other in error.others)] == ["defs/a.sql:1", "defs/a.sql:3"]
    assert "nothing" in error.render()
    error = project.error({"defs/a.sql": "SELECT 1", "defs/b.py": "x = undefined_name"})
    assert [error.location, *(other.location for other in error.others)] == ["defs/a.sql:1", "defs/b.py:1"]


@pytest.mark.parametrize(
    ("body", "error_class", "line", "words"),
    [
        ("import nothing_like_this", "USER_CODE_FAILED", 2, "PYTHONPATH"),
        ("def f(:\n    pass", "PYTHON_SYNTAX_ERROR", 2, "SyntaxError"),
        ("x = undefined_name", "USER_CODE_FAILED", 2, "undefined_name"),
        (
            "spark.conf.set('a', 'b')",
            "SESSION_MUTATION_IN_DECLARATIVE_PIPELINE.SET_RUNTIME_CONF",
            2,
            "spark_conf",
        ),
        (
            "spark.range(1).createOrReplaceTempView('v')",
            "SESSION_MUTATION_IN_DECLARATIVE_PIPELINE.CREATE_OR_REPLACE_TEMP_VIEW",
            2,
            "@temporary_view",
        ),
        (
            "spark.sql('CREATE TABLE x AS SELECT 1')",
            "UNSUPPORTED_PIPELINE_SPARK_SQL_COMMAND",
            2,
            "decorators",
        ),
        (
            "@dp.materialized_view\ndef m():\n    return spark.table('nothing')",
            "TABLE_OR_VIEW_NOT_FOUND",
            4,
            "nothing",
        ),
        (
            "@dp.materialized_view\ndef m():\n    frame = spark.range(1)\n    return frame.select('idd')",
            "UNRESOLVED_COLUMN.WITH_SUGGESTION",
            5,
            "idd",
        ),
        (
            "@dp.materialized_view\ndef m():\n    return spark.range(spark.range(3).count())",
            "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION",
            4,
            "must not run",
        ),
        ("@dp.materialized_view\ndef m():\n    spark.range(3)", "FLOW_WITHOUT_DATAFRAME", 2, "NoneType"),
        ("@dp.materialized_view\ndef m():\n    return 1 / 0", "USER_CODE_FAILED", 4, "ZeroDivisionError"),
        (
            "@dp.materialized_view(format='kafka')\ndef m():\n    return spark.range(3)",
            "UNSUPPORTED_TABLE_FORMAT",
            2,
            "kafka",
        ),
        (
            "@dp.materialized_view(name='my-view')\ndef m():\n    return spark.range(3)",
            "INVALID_IDENTIFIER",
            2,
            "backticks",
        ),
        (
            "@dp.materialized_view(name='`a.b`')\ndef m():\n    return spark.range(3)",
            "INVALID_IDENTIFIER",
            2,
            "another character",
        ),
        (
            "@dp.temporary_view(name='a.b')\ndef m():\n    return spark.range(3)",
            "MULTIPART_TEMPORARY_VIEW_NAME_NOT_SUPPORTED",
            2,
            "a.b",
        ),
        (
            "@dp.materialized_view(spark_conf={'spark.sql.warehouse.dir': '/x'})\n"
            "def m():\n    return spark.range(3)",
            "CANNOT_MODIFY_STATIC_CONFIG",
            2,
            "--conf",
        ),
    ],
)
def test_python(project: ProjectMaker, body: str, error_class: str, line: int, words: str) -> None:
    error = project.python_error(body)
    assert error.error_class == error_class, error.render()
    assert error.location == f"defs/a.py:{line}"
    assert words in error.render()


def test_files_and_settings(project: ProjectMaker) -> None:
    error = project.error({"defs/README.md": "x"})
    assert error.error_class == "PIPELINE_UNSUPPORTED_DEFINITIONS_FILE_EXTENSION"
    assert error.location == "defs/README.md"


def test_static_setting_in_the_spec(project: ProjectMaker) -> None:
    error = project.error(
        {"defs/a.sql": f"{MV} m AS SELECT 1 a"}, "configuration:\n  spark.sql.catalogImplementation: hive\n"
    )
    assert error.error_class == "CANNOT_MODIFY_STATIC_CONFIG"


def test_catalog_of_the_spec(project: ProjectMaker) -> None:
    definition = {"defs/a.sql": f"{MV} m AS SELECT 1 a"}
    assert project.error(definition, "catalog: other\n").error_class == "CATALOG_NOT_FOUND"
    graph = project.graph(definition, "catalog: spark_catalog\ndatabase: silver\n")
    assert [str(table) for table in graph.order] == ["lake.silver.m"]


def test_a_failed_load_leaves_the_session_alone(project: ProjectMaker) -> None:
    with pytest.raises(DefinitionError):
        project.load({"defs/a.py": "raise KeyError('x')"}, "configuration:\n  my.own: '1'\n")
    assert project.spark.conf.get("my.own", None) is None
    project.spark.conf.set("my.own", "2")
    project.spark.conf.unset("my.own")
    assert project.spark.range(2).count() == 2
