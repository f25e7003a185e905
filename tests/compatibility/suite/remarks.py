"""Why a construct is not the same, or what else a reader should know."""

from __future__ import annotations

_ANALYSIS = (
    "Spark Connect must ask its server for the columns, which a query function may not; here they are known"
)
_NAMES = "Spark's own catalog takes letters, digits and `_` only"
_SETTINGS = "Spark analyses the query with the settings of the run and only executes it with these; here they count for both"
_LEGACY = "the same sentence; Spark gives it no class of its own"
_REBUILT = (
    "Spark does not run the reader in this run, and its next run fails or never ends; "
    "taut runs it, and the error has the command that rebuilds the readers"
)
_SCHEMA = "Spark's tests create the schema; taut creates what is not there"

REMARKS: dict[str, str] = {
    "sql_comment_on_view": "Spark's grammar has no comments of columns without types here",
    "sql_clustered": "Spark 4.1 refuses its own clause in SQL; in Python it takes it",
    "sql_backticks": _NAMES,
    "python_name": _NAMES,
    "sql_use_schema": "the names that follow are resolved there",
    "sql_set": _SETTINGS,
    "sql_set_for_what_follows": _SETTINGS,
    "python_spark_conf": _SETTINGS,
    "sql_small_integers": "Iceberg has no such types: the columns are INT",
    "sql_interval": "Iceberg has no type for intervals: write the number of days, or a text",
    "sql_or_replace": "the statement of [Databricks](databricks.md)",
    "sql_two_catalogs": "as both are configured; with `mapped_catalogs` they are databases of the lake ([Catalogs](catalogs.md#datasets-in-several-catalogs))",
    "sql_time_travel": "a query reads each table at its checkpoint",
    "sql_external_table": "the table becomes a root of the pipeline: each checkpoint reads one version",
    "sql_schema_in_name": _SCHEMA,
    "python_schema_struct": "declared NOT NULL, but the query's column may be NULL: the table takes the query's",
    "python_schema_more": "the column that the query lacks is NULL, as Spark does it for formats that take it",
    "python_sibling_import": "the folder of the file is on `sys.path` while it is imported",
    "python_columns_of_frame": _ANALYSIS,
    "python_grouped_sum": _ANALYSIS,
    "python_pivot": _ANALYSIS,
    "python_cache": _ANALYSIS,
    "python_apply_in_pandas": _ANALYSIS,
    "python_map_in_pandas": "Spark Connect asks its server while it builds the query, which a query function may not",
    "python_create_dataframe": "a schema as text is parsed by Spark Connect's server, which a query function may not ask",
    "stream_static_join": "a schema as text is parsed by Spark Connect's server, which a query function may not ask",
    "python_rdd": "Spark runs in the process of taut",
    "python_global_spark": "taut defines it in every definition file",
    "stream_once": "an argument of [Databricks](databricks.md); Python refuses it in Spark",
    "stream_infer": _LEGACY,
    "stream_append_flows_parquet": (
        "Spark keeps one log of batches in the folder of a Parquet table, and two flows overwrite each other's batches: "
        "rows are lost. Here all rows are written"
    ),
    "stream_sql_flows": "the columns have the order of one of the flows, which in Spark is not always the first",
    "stream_full_refresh_of_source": _REBUILT,
    "stream_full_refresh_of_source_iceberg": _REBUILT,
    "sink_two_flows": "Spark keeps one log of batches in the folder, and the flows overwrite each other's batches",
    "stream_over_view": "Spark rewrites the view in every run and the stream reads all its rows again; here it reads what changed",
    "stream_flow_to_view": "Spark compares the columns of the two flows first",
    "sink_no_path": _LEGACY,
    "sink_unknown_format": "`taut dry-run` refuses it before anything runs, as `SINK_FORMAT_UNKNOWN`",
    "sink_kafka_columns": "the same sentence; taut names the flow",
    "sink_batch": "Spark fails with a ClassCastException",
    "spec_overlapping_globs": "a file that several globs name is read once",
    "spec_full_refresh_unknown": "Spark completes without a word",
    "spec_bad_yaml": "Python's exception in Spark",
    "refused_argument_type": "a number as the value of a property is written as its text",
    "refused_no_frame": "Python's exception in Spark",
    "refused_returns_none": "Python's exception in Spark",
    "refused_sink_name": "Spark takes the name for a table without a flow",
    "refused_cycle": _LEGACY,
    "refused_self": _LEGACY,
    "refused_self_stream": _LEGACY,
    "refused_duplicate_columns": "Spark's sentence is that of the writer of Parquet files",
    "refused_python_syntax": "Python's exception in Spark",
}
