"""How statements are written, and sent, so that they mean the same on every server.

Names and texts are quoted as ClickHouse spells them. What a statement means must not depend on what a user's
profile says either: ClickHouse applies the settings of a user's profile to every statement of the user, and
some of them change what a statement stores or answers, without an error. So every statement is sent with
settings of its own:

- `OWN`: those that make our reading of the server's settings true, or of which we need a certain value;
- of every other setting that the profile changes, the server's default, unless it is one of `_LIMITS`: limits
  that an operator sets on purpose. A statement beyond one of them is refused; it never gets another meaning.

A server that does not let its user set one of them is refused (`SINK_SETTING_REFUSED`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tautochrone.errors import SinkError

__all__ = [
    "OWN",
    "defaults_of_profile_settings",
    "name_sql",
    "setting_refused_error",
    "text_sql",
    "unknown_setting",
]


def name_sql(name: str) -> str:
    """A name, quoted.

    Example:
        >>> name_sql("a`b")
        '`a\\\\`b`'
    """
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def text_sql(value: str) -> str:
    """A string literal.

    Example:
        >>> text_sql("it's")
        "'it\\\\'s'"
    """
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


_OVERFLOWS = ("read", "group_by", "sort", "result", "timeout", "set", "join", "transfer", "distinct")
OWN: Mapping[str, str] = {
    # A limit on rows or time would answer a part of the rows as if it were all of them.
    **{f"{kind}_overflow_mode": "throw" for kind in _OVERFLOWS},
    "read_overflow_mode_leaf": "throw",
    "timeout_overflow_mode_leaf": "throw",
    "limit": "0",
    "offset": "0",
    "partial_result_on_first_cancel": "0",
    "throw_on_max_partitions_per_insert_block": "1",
    # Rows would be left out.
    "additional_result_filter": "",
    "filter": "",
    "page": "0",
    "additional_table_filters": "{}",
    "apply_deleted_mask": "1",
    "apply_patch_parts": "1",
    "final": "0",
    "ignore_cold_parts_seconds": "0",
    "enable_parallel_replicas": "0",
    "max_parallel_replicas": "1",
    "parallel_replica_offset": "0",
    "prefer_warmed_unmerged_parts_seconds": "0",
    "skip_unavailable_shards": "0",
    # Rows would be added, or an answer be an older one, or none.
    "discard_query_data": "0",
    "extremes": "0",
    "run_query_in_background": "0",
    "use_query_cache": "0",
    # Aggregates, comparisons and names would mean something else.
    "aggregate_functions_null_for_empty": "0",
    "cast_keep_nullable": "0",
    "dialect": "clickhouse",
    "implicit_table_at_top_level": "",
    "empty_result_for_aggregation_by_empty_set": "0",
    "empty_result_for_aggregation_by_constant_keys_on_empty_set": "1",
    "enable_positional_arguments": "1",
    "group_by_use_nulls": "0",
    "join_use_nulls": "0",
    "prefer_column_name_to_alias": "0",
    "session_timezone": "",
    "short_circuit_function_evaluation": "enable",
    "transform_null_in": "0",
    # Columns would get another type, or be split.
    "data_type_default_nullable": "0",
    "flatten_nested": "1",
    # Statements that use no index would be refused.
    "force_index_by_date": "0",
    "force_primary_key": "0",
    # An insert would be answered before it is stored, left out as a repeated one, or lose broken rows.
    "async_insert": "0",
    "implicit_transaction": "0",
    "input_format_allow_errors_num": "0",
    "input_format_allow_errors_ratio": "0",
    "insert_deduplicate": "0",
    "insert_deduplication_token": "",
    "insert_quorum": "0",
    "wait_for_async_insert": "1",
    # A change of tables would be answered before it is done, or be left out.
    "alter_sync": "1",
    "create_if_not_exists": "0",
    "ignore_drop_queries_probability": "0",
    "mutations_sync": "2",
    "replace_running_query": "0",
    # Columns and their order would be other ones.
    "order": "",
    "select": "",
    "sort": "",
    # An answer is read as it is written, and an error is one by its status.
    "format": "",
    "framing_output_format": "None",
    "http_write_exception_in_output_format": "0",
    "input_format": "",
    "output_format": "",
    "output_format_native_encode_types_in_binary_format": "0",
    "output_format_json_array_of_rows": "0",
    "output_format_json_escape_forward_slashes": "1",
    "output_format_json_quote_64bit_integers": "0",
    "output_format_json_quote_decimals": "0",
    "output_format_json_quote_denormals": "0",
    "output_format_json_validate_utf8": "0",
    "wait_end_of_query": "1",
    # The first question of all would be refused, or not be answered.
    "interactive_delay": "100000",
    "make_distributed_plan": "0",
    "query_plan_max_optimizations_to_apply": "10000",
}
"""What is sent with every statement, as far as the server knows it."""

_LIMITS = re.compile(
    r"readonly|allow_ddl|allow_introspection_functions|allow_python_table_function|max_parser_.*|database|workload|priority|load_balancing"
    r"|(max|min)_(un|os_)?(tracked_)?(memory|cpu|threads|insert_threads|final_threads|execution|estimated"
    r"|concurrent|sessions|network|query_size|ast|expanded_ast|subquery|analyze|columns_to_read|temporary"
    r"|partitions|result|rows_to|bytes_to|rows_in_(set|join|distinct)|bytes_in_(set|join|distinct)"
    r"|bytes_before_external|bytes_ratio_before_external|(remote|local)_(read|write)|free_disk).*"
    r"|memory_.*|reserve_memory|queue_max_wait_ms|(connect|receive|send|http_\w+)_timeout(_ms)?"
    r"|log_.*|query_profiler_.*|opentelemetry_.*|os_thread.*|send_logs_.*"
    r"|(force|ignore)_data_skipping_indices"
)
"""Settings that say how much a statement may use, who may do what, and what is logged of it. The two
that name indexes cannot be set to none: a statement is refused then, or slower."""

_CODE = re.compile(r"[Cc]ode: (\d+)")
_UNKNOWN, _CONSTRAINT = "115", "452"

_HAS_DEFAULT_SQL = (
    "SELECT toUInt32(count()) FROM system.columns "
    "WHERE database = 'system' AND table = 'settings' AND name = 'default'"
)


def defaults_of_profile_settings(
    subject: str, run_query: Callable[[str], list[list[Any]]], sent: Mapping[str, str]
) -> dict[str, str]:
    """The server's defaults of the settings that the profile of a user changes.

    Args:
        subject: of whom errors speak, such as `Sink mirror`.
        run_query: with the settings `sent`; gives the rows.
        sent: settings that are left out.

    Raises:
        SinkError: `SINK_SETTING_REFUSED`, an old server does not tell the default of one.
    """
    ((has_default,),) = run_query(_HAS_DEFAULT_SQL)
    default = "default" if has_default else "''"
    # In one row: as several ones they could be a part of them without a sign of it.
    ((changed,),) = run_query(f"SELECT groupArray([name, {default}]) FROM system.settings WHERE changed")
    settings = {name: value for name, value in changed if name not in sent and not _LIMITS.fullmatch(name)}
    if settings and not has_default:
        names = ", ".join(sorted(settings))
        raise SinkError(
            "SINK_SETTING_REFUSED",
            f"{subject}: the profile of its user changes {names}, and this version of ClickHouse does not "
            "tell what the server's defaults are",
            hint="Give it a user whose profile leaves these settings alone, or a newer server.",
            parameters={"setting": names},
            sqlstate="55000",
        )
    return settings


def unknown_setting(answer: str, sent: Mapping[str, str]) -> str | None:
    """The setting that an older server does not know, and so cannot have changed; None for another answer."""
    return _setting_named_in(answer, sent) if _code(answer) == _UNKNOWN else None


def setting_refused_error(subject: str, answer: str, sent: Mapping[str, str]) -> SinkError | None:
    """The error of an answer that says that the user may not set a setting; None for any other answer."""
    name = _setting_named_in(answer, sent)
    if _code(answer) != _CONSTRAINT or name is None:
        return None
    return SinkError(
        "SINK_SETTING_REFUSED",
        f"{subject}: ClickHouse does not let its user set {name} = {sent[name] or repr('')}, without which "
        f"statements could mean something else: {answer[:1000]}",
        hint=f"Take the constraint on {name} off the profile of the user, or let it allow this value, or log "
        "in as another user.",
        parameters={"setting": name},
        sqlstate="55000",
    )


def _code(answer: str) -> str:
    match = _CODE.search(answer)
    return match[1] if match else ""


def _setting_named_in(answer: str, sent: Mapping[str, str]) -> str | None:
    """Which of the settings that were sent an answer names first."""
    words: Iterator[str] = (match[0] for match in re.finditer(r"\w+", answer))
    return next((word for word in words if word in sent), None)
