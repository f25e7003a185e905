"""The spec, the project's files, the command line."""

from __future__ import annotations

from pyspark.pipelines import init_cli
from tests.compatibility.construct import SPEC, Construct

from .common import HEAD, NUMBERS

ONE = "CREATE MATERIALIZED VIEW a AS SELECT 1 AS x"
TOP = "name: shop\nstorage: file://@PROJECT@/storage\n"


def _spec(
    name: str, title: str, spec: str, *datasets: str, files: dict[str, str] | None = None, **more: object
) -> Construct:
    return Construct(f"spec_{name}", title, files or {"definitions/a.sql": ONE}, datasets, spec=spec, **more)  # type: ignore[arg-type]


def _libraries(*patterns: str) -> str:
    return TOP + "libraries:\n" + "".join(f"  - glob:\n      include: {pattern}\n" for pattern in patterns)


CONSTRUCTS = [
    _spec(
        "init",
        "the project of `spark-pipelines init`",
        init_cli.SPEC.replace("{{ name }}", "shop").replace("{{ storage_root }}", "file://@PROJECT@/storage"),
        "example_python_materialized_view",
        "example_sql_materialized_view",
        files={
            "transformations/example_python_materialized_view.py": init_cli.PYTHON_EXAMPLE,
            "transformations/example_sql_materialized_view.sql": init_cli.SQL_EXAMPLE,
        },
    ),
    _spec(
        "nested",
        "nested folders below `**`",
        SPEC,
        "a",
        "b",
        files={
            "definitions/x/y/a.sql": ONE,
            "definitions/z/b.py": HEAD + "\n@dp.materialized_view\ndef b():\n    return spark.table('a')\n",
        },
    ),
    _spec(
        "single_file",
        "a glob that is one file",
        _libraries("definitions/a.sql"),
        "a",
        files={"definitions/a.sql": ONE, "definitions/b.sql": "no SQL at all"},
    ),
    _spec(
        "two_globs",
        "several globs",
        _libraries("one/**", "two/b.sql"),
        "a",
        "b",
        files={"one/a.sql": ONE, "two/b.sql": "CREATE MATERIALIZED VIEW b AS SELECT * FROM a"},
    ),
    _spec(
        "overlapping_globs",
        "globs that name the same file twice",
        _libraries("one/**", "one/a.sql"),
        "a",
        files={"one/a.sql": ONE},
    ),
    _spec("glob_star", "a glob `definitions/*.sql`", _libraries("definitions/*.sql"), "a"),
    _spec("glob_deep", "a glob `definitions/**/*.sql`", _libraries("definitions/**/*.sql"), "a"),
    _spec("no_match", "a glob without a file", _libraries("nothing/**"), files={"definitions/a.sql": ONE}),
    _spec("no_libraries", "a spec without `libraries`", TOP),
    _spec(
        "schema_alias",
        "`schema:` instead of `database:`",
        SPEC + "schema: silver\n",
        "silver.a",
        prepare=("CREATE DATABASE silver",),
    ),
    _spec(
        "database",
        "`database:` of the spec",
        SPEC + "database: silver\n",
        "silver.a",
        prepare=("CREATE DATABASE silver",),
    ),
    _spec(
        "configuration",
        "`configuration:` with a SQL setting",
        SPEC + "configuration:\n  spark.sql.session.timeZone: Asia/Tokyo\n",
        "a",
        files={"definitions/a.sql": "CREATE MATERIALIZED VIEW a AS SELECT current_timezone() AS z"},
    ),
    _spec(
        "configuration_number",
        "`configuration:` with a number as value",
        SPEC + "configuration:\n  spark.sql.shuffle.partitions: 3\n",
        "a",
    ),
    _spec("configuration_list", "`configuration:` that is a list", SPEC + "configuration: [a]\n", "a"),
    _spec("unknown_field", "an unknown field", SPEC + "owner: me\n", "a"),
    _spec("no_name", "a spec without `name`", SPEC.replace("name: shop\n", ""), "a"),
    _spec(
        "no_storage", "a spec without `storage`", SPEC.replace("storage: file://@PROJECT@/storage\n", ""), "a"
    ),
    _spec("bad_yaml", "a spec that is no YAML", SPEC + "  : [\n", "a"),
    _spec(
        "other_files",
        "another kind of file below the glob",
        SPEC,
        "a",
        files={"definitions/a.sql": ONE, "definitions/notes.txt": "notes"},
    ),
    _spec(
        "empty_files",
        "empty definition files",
        SPEC,
        "a",
        files={
            "definitions/a.sql": ONE,
            "definitions/b.sql": "",
            "definitions/c.py": "",
            "definitions/d.sql": "-- nothing\n",
        },
    ),
    _spec("no_dataset", "files that define nothing", SPEC, files={"definitions/b.py": "x = 1\n"}),
    _spec("dry_run", "`dry-run`", SPEC, files={"definitions/a.sql": NUMBERS}, command="dry-run"),
    _spec(
        "dry_run_mistake",
        "`dry-run` of a query with a mistake",
        SPEC,
        files={"definitions/a.sql": "CREATE MATERIALIZED VIEW a AS SELECT b FROM (SELECT 1 AS a)"},
        command="dry-run",
    ),
    _spec(
        "private_modules",
        "files below the glob whose names begin with `_`",
        SPEC,
        "a",
        files={"definitions/_a.sql": ONE},
    ),
    _spec(
        "full_refresh_unknown",
        "`--full-refresh` of an unknown table",
        SPEC,
        arguments=("--full-refresh", "nothing"),
    ),
    _spec(
        "conflicting_options",
        "`--full-refresh-all` with `--refresh`",
        SPEC,
        "a",
        arguments=("--full-refresh-all", "--refresh", "a"),
    ),
]
