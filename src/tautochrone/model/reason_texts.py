"""What each code of a reason says to people, made from the reason's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tautochrone.model.reason_codes import ReasonCode

__all__ = ["COMPUTED_FROM", "TEXTS"]


def _unversioned_text(params: Mapping[str, Any]) -> str:
    return f"it reads {', '.join(params['sources'])}, which has no versions"


_PARTS_OF_DEFINITIONS = {
    "query": "its query",
    "functions": "the code of functions in its query",
    "settings": "settings that may change its rows, or its expectations",
    "inputs": "the types of columns that it reads",
}


def _definition_text(params: Mapping[str, Any]) -> str:
    parts = " and ".join(_PARTS_OF_DEFINITIONS[part] for part in params["parts"])
    return f"the definition changed: {parts}" if parts else "the definition changed"


def _costs_text(params: Mapping[str, Any]) -> str:
    moved = [_changed_share(**table) for table in params["changed"]]
    moved += [f"{clock} went on" for clock in params["clocks"]]
    ways = ", ".join(
        f"{way} {params[f'{way}_ms'] / 1000:.1f} s {'measured' if params[f'{way}_measured'] else 'expected'}"
        for way in ("incremental", "full")
    )
    policy = params.get("policy")
    policy_text = f"its refresh policy is {policy}; " if policy else ""
    return f"{policy_text}{', '.join(moved)}; {ways}"


def _changed_share(table: str, changed_rows: int | None, rows: int | None) -> str:
    if changed_rows is None or rows is None:
        return f"{table} changed"
    share = 100 * min(1.0, changed_rows / max(rows, changed_rows, 1))
    text = "less than 0.01" if 0 < share < 0.01 else f"{share:.2g}" if share < 10 else f"{share:.0f}"
    return f"{text} % of {table} changed"


def _unfinished_text(params: Mapping[str, Any]) -> str:
    owner = params["waits_for"]
    waits = "" if owner is None else f", and waits for job {owner}"
    return f"job {params['job']} is at work on checkpoint {params['checkpoint']}{waits}"


def _retention_text(params: Mapping[str, Any]) -> str:
    return (
        f"older than {params['keep_ms'] / 1000:g} s or closer than {params['spacing_ms'] / 1000:g} s to "
        f"another, and not among the newest {params['keep_last']}"
    )


def _unreferenced_text(params: Mapping[str, Any]) -> str:
    return f"nothing refers to them, and they are older than {params['older_than_ms'] / 3_600_000:g} h"


def _copied_again_text(params: Mapping[str, Any]) -> str:
    return f"copied again from the database: {', '.join(params['relations'])}"


def _settings_text(params: Mapping[str, Any]) -> str:
    return f"the table has settings of its own for Parquet: {', '.join(params['settings'])}"


def _kept_log_text(params: Mapping[str, Any]) -> str:
    bound = params["bound_mb"]
    limit = "and nothing bounds it" if bound is None else f"of {bound} MB, then it loses its log"
    return (
        f"the replication slot {params['slot']} keeps {params['kept_mb']} MB of the database's log, {limit}"
    )


def _awaited_text(params: Mapping[str, Any]) -> str:
    seconds = params["seconds"]
    age = "" if seconds is None else f", open for {seconds} s"
    return (
        f"tables are copied when the transactions that write have ended: {params['transaction']} of "
        f"{params['session']}{age}"
    )


TEXTS: Mapping[ReasonCode, str | Callable[[Mapping[str, Any]], str]] = {
    ReasonCode.UNKNOWN: "{text}",
    ReasonCode.FIRST_BUILD: "first build",
    ReasonCode.DEFINITION_CHANGED: _definition_text,
    ReasonCode.BUILD_APPLIED: "plan {plan} was applied: its rows were built at checkpoint {checkpoint}",
    ReasonCode.BUILT_OVER_NO_ROWS: (
        "{table} is new: views were built over no rows of it, and follow its rows once the plan is applied"
    ),
    ReasonCode.TABLE_TO_CREATE: "its table is created, and its flows begin",
    ReasonCode.DEFINITION_UNCHANGED: "its definition is the same",
    ReasonCode.FLOWS_GO_ON: (
        "its flows go on from their positions with the new query; rows that are there stay as they are"
    ),
    ReasonCode.DATASET_NOT_DEFINED: "no definition of the job has it any more: its table stays as it is",
    ReasonCode.FLOW_BEGINS: "{table} has no position of it: it reads its source from the beginning",
    ReasonCode.FLOW_POSITION_LOST: (
        "no flow of this name writes {table} any more, so nothing reads on from where it stands"
    ),
    ReasonCode.RUN_WILL_REFUSE: "the next run refuses it: {error_class}",
    ReasonCode.SINK_BEGINS: "it is delivered to for the first time: all rows are sent",
    ReasonCode.SINK_SENT_WHOLE: "all rows of {tables} are sent",
    ReasonCode.SINK_GETS_CHANGES: "it gets what changes in {tables}",
    ReasonCode.SINK_UNCHANGED: "nothing that it shows changes",
    ReasonCode.FULL_REFRESH_REQUESTED: "a full refresh was asked for",
    ReasonCode.POLICY_IS_FULL: "its refresh policy is full",
    ReasonCode.NO_INPUT_CHANGED: "no input changed",
    ReasonCode.NO_NEW_ROWS: "its inputs brought no rows",
    ReasonCode.INPUTS_APPENDED: "its inputs were appended to",
    ReasonCode.EVENTS_MERGED: "the events of its input were merged by key",
    ReasonCode.INVALID_VALUES_NULL: (
        "rows that have NULL for a value that the type of its column does not have: {rows}, such as {example}"
    ),
    ReasonCode.EVENTS_SET_ASIDE: (
        "{events:#event} without a key or sequence value not merged; {table} keeps what is not merged"
    ),
    ReasonCode.LATE_EVENTS_REFUSED: (
        "events that came later than the table remembers deletions, and were refused: {events}, all before "
        "{horizon}"
    ),
    ReasonCode.NO_EVENTS_OF_KEYS: "its input got no event that changes a row",
    ReasonCode.ROWS_ADDED_TO_LINEAR_QUERY: "rows were only added to inputs of a linear query",
    ReasonCode.ESTIMATED_COSTS: _costs_text,
    ReasonCode.COMPARED_FOR_READERS: "rows that stay are no change for the views that read it ({readers})",
    ReasonCode.FEW_INPUT_ROWS: "its inputs hold few rows",
    ReasonCode.COMMITTED_BEFORE_CRASH: "committed by the run before",
    ReasonCode.ADOPTED: "taken over: {proof}",
    ReasonCode.NODE_RULE: "{rule}",
    ReasonCode.INCREMENTAL_FAILED: "following the change failed: {message}",
    ReasonCode.REMOVED_ROWS_NOT_STORED: (
        "following the change failed: of the rows that the view should lose ({rows}) it holds only {stored}"
    ),
    ReasonCode.UNSUPPORTED_QUERY: "{detail}",
    ReasonCode.NODE_NEEDS_MODE: "{node} needs {mode}: {cause}",
    ReasonCode.NOT_LINEAR: "{operator}",
    ReasonCode.NOT_DETERMINISTIC: "{function} returns other values each time",
    ReasonCode.TARGET_NOT_PRODUCTION: "target {target} is not marked as production",
    ReasonCode.SINKS_DISABLED: "sinks_enabled is false in target {target}",
    ReasonCode.ROOTS_PIN_LOST: "the pin in the other target's store has ended: {cause}",
    ReasonCode.ROOTS_OF_TARGET: "target {target} does not ingest them, it reads those of target {source}",
    ReasonCode.UNVERSIONED_SOURCE: _unversioned_text,
    ReasonCode.NEW_INPUT: "{input} is a new input",
    ReasonCode.INPUT_TYPES_CHANGED: "columns that it reads have other types than before",
    ReasonCode.PROJECT_MOVED: "the project is in another folder, and its path is in the query",
    ReasonCode.FILE_COLUMNS_CHANGED: "{input} have other columns or types than before",
    ReasonCode.FILES_NOT_TAKEN_IN: "the rows of {input} could not be taken in: {text}",
    ReasonCode.COLUMN_NOT_COMPARABLE: "column {column} cannot be compared",
    ReasonCode.STATE_MISSING: "the view has no state {state} yet",
    ReasonCode.STATE_NOT_IN_PLAN: "its plan no longer has the state {state}",
    ReasonCode.STATE_TABLE_GONE: "its state {state} is gone",
    ReasonCode.STATE_FORMAT_DIFFERS: "its state {state} was written by another release, or of other types",
    ReasonCode.VIOLATIONS_NOT_COUNTED: "the rows that violate {expectations} were never counted",
    ReasonCode.STATE_EXPIRED: "the version of its state {state} that belongs to its rows is expired",
    ReasonCode.MANY_EVENTS: (
        "{rows} events are more than the {limit} that the driver holds: executors compute their rows"
    ),
    ReasonCode.VERY_MANY_EVENTS: "{rows} events are more than the {limit} whose keys the driver orders",
    ReasonCode.LONG_EVENTS: "its events have {characters} characters, more than the {limit} on the driver",
    ReasonCode.LOG_ROWS_NOT_HELD: (
        "{rows} new rows of its log are too many for the driver: executors compute its own"
    ),
    ReasonCode.LOG_NOT_APPENDED: "rows were dropped from its log meanwhile",
    ReasonCode.EVENTS_NOT_COUNTED: "nobody knows how many events its input got before they are read",
    ReasonCode.TABLE_WITHOUT_KEY: "it has no key: rows are compared as a whole, by Spark",
    ReasonCode.TABLE_TRUNCATED: "an event removes all rows of the table",
    ReasonCode.ROWS_COPIED: "copied rows are among the events",
    ReasonCode.EVENTS_BESIDE_FILES: "some of its changes are in files, and others in the log",
    ReasonCode.TEXTS_READ_BY_SPARK: "values of its rows are of types, or in forms, that Spark reads only",
    ReasonCode.SEVERAL_COPIES: "its rows were copied several times",
    ReasonCode.MANY_EVENTS_AFTER_COPY: "{rows} events are not copied rows, more than the {limit} of a lookup",
    ReasonCode.VALUES_LEFT_UNCHANGED: "an event leaves a value of its row unchanged and does not have it",
    ReasonCode.VALUES_INVALID: "an event has a value that the type of its column does not have",
    ReasonCode.EVENT_WITHOUT_SEQUENCE: "an event has NULL in {column}, which orders events",
    ReasonCode.EVENTS_OF_EQUAL_SEQUENCE: "two events have the same place in the order of events",
    ReasonCode.EVENTS_NOT_DETERMINISTIC: (
        "the flow's query returns other values each time, so its rows cannot be computed twice"
    ),
    ReasonCode.COLUMN_COMPARED_BY_SPARK: "values of {column}, of type {type}, are compared by Spark only",
    ReasonCode.MANY_ROWS_CHANGED: "{rows} rows were added or removed, more than {limit}",
    ReasonCode.ROWS_CARRIED_OVER: "rows that did not change were written into other files",
    ReasonCode.KEY_COLUMN_NOT_IN_TABLE: "the table has no column {column}",
    ReasonCode.KEY_COLUMN_NOT_IN_FILE: "{file} has no column {column}, or no ids of columns",
    ReasonCode.KEYS_IN_MANY_FILES: (
        "{files} data files may have rows of the keys, more than the {limit} that the driver reads"
    ),
    ReasonCode.KEYS_IN_LARGE_REMOTE_FILES: (
        "the data files that may have rows of the keys are on other storage and have {bytes} bytes, more "
        "than the {limit} that the driver fetches"
    ),
    ReasonCode.KEY_COLUMNS_LARGE: (
        "the columns of the key have more bytes than the {limit} that the driver reads"
    ),
    ReasonCode.ROWS_DELETED_BY_VALUE: "rows of {file} were deleted by their values",
    ReasonCode.MANY_ROWS_DELETED: (
        "{rows} rows of {file} are deleted, more than the {limit} whose positions the driver reads"
    ),
    ReasonCode.CHANGE_IN_MANY_FILES: (
        "the change is in {files} data files, more than the {limit} that the driver reads"
    ),
    ReasonCode.CHANGE_IN_LARGE_FILES: (
        "the data files of the change have more bytes than the {limit} that the driver reads"
    ),
    ReasonCode.CHANGE_IN_LARGE_REMOTE_FILES: (
        "the data files of the change are on other storage and have {bytes} bytes, more than the {limit} "
        "that the driver fetches"
    ),
    ReasonCode.CHANGED_ROWS_LARGE: "the changed rows have more bytes than {limit}",
    ReasonCode.COLUMN_READ_BY_SPARK: "values of {column} in {source} are of a type that Spark reads only",
    ReasonCode.READ_MANY_ROWS: "{table} has more than the {limit} rows that the driver reads",
    ReasonCode.ROWS_NOT_COUNTED: "nobody knows how many rows {table} has",
    ReasonCode.KEYS_LOOKED_UP: "rows of {table} are looked up by the keys of the change",
    ReasonCode.RESULT_NOT_COUNTED: "a result may have more than the {limit} rows that the driver holds",
    ReasonCode.READ_ROWS_LARGE: "rows of {table} have more bytes than the {limit} that the driver reads",
    ReasonCode.READ_IN_MANY_SPLITS: (
        "{table} is read in {splits} parts, more than the {limit} that the driver reads"
    ),
    ReasonCode.READ_NOT_SIMPLE: "the rows are not those of one table: the read has {part}",
    ReasonCode.READ_FAILED: "the driver could not read {table}: {text}",
    ReasonCode.ROWS_OF_OTHER_TYPES: "{column} is stored with another type than its new rows have",
    ReasonCode.ROWS_NOT_STORED_ALIKE: "{rows:#row} to be removed: not stored with the same bytes",
    ReasonCode.OPERATOR_OF_JOBS: "the plan has {operator}",
    ReasonCode.SEVERAL_TASKS: "the plan has {tasks} tasks",
    ReasonCode.RESULT_LARGE: "the result has more bytes than the {limit} that the driver computes",
    ReasonCode.COMPUTING_FAILED: "the driver could not compute it: {text}",
    ReasonCode.FILE_NOT_READ: "the driver could not read {file}: {text}",
    ReasonCode.FILES_TAKEN: "its version {version} may have taken them already",
    ReasonCode.ROWS_NOT_ON_DRIVER: "its rows are computed by executors, or need a cast or a check",
    ReasonCode.STORAGE_NOT_LOCAL: "its data files are not on this machine, but in {location}",
    ReasonCode.TABLE_ENCRYPTED: "the table has the property {property}",
    ReasonCode.TABLE_PARTITIONED: "the table has partitions",
    ReasonCode.TABLE_SORTED: "the table has a sort order",
    ReasonCode.PARQUET_SETTINGS: _settings_text,
    ReasonCode.FILE_FORMAT_OF_SPARK: "its data files are {format}",
    ReasonCode.COLUMNS_OF_ROWS_DIFFER: "its rows do not have the table's columns",
    ReasonCode.COLUMN_WRITTEN_BY_SPARK: "values of {column} are of a type that Spark writes only",
    ReasonCode.VALUES_CAST_BY_SPARK: "its rows do not have the table's types: {text}",
    ReasonCode.SERVICE_DID_NOT_ANSWER: "the service at {uri} did not answer: {error_class}",
    ReasonCode.RUN_HAS_OTHER_DEFINITIONS: (
        "what runs at {uri} was started with other definitions or settings than this command reads"
    ),
    ReasonCode.TABLE_UNCHANGED: "{table} did not change",
    ReasonCode.NO_ROWS_MOVED: "no commit to {table} moved rows",
    ReasonCode.TABLE_APPENDED: "{table} was only appended to",
    ReasonCode.COLUMNS_ADDED: "columns were added to {table}",
    ReasonCode.ROWS_OVERWRITTEN: "{table} was overwritten",
    ReasonCode.ROWS_DELETED: "{table} was deleted from",
    ReasonCode.COLUMN_REPLACED: (
        "column {column} of {table} was dropped and added again, or took another one's name"
    ),
    ReasonCode.COLUMN_WITH_DEFAULT: (
        "column {column} of {table} was added with a default, which all older rows have now"
    ),
    ReasonCode.TABLE_ROLLED_BACK: (
        "version {version} is not in the history of {table}: it was replaced, as when its columns change, "
        "or rolled back"
    ),
    ReasonCode.FOREIGN_FILES_GONE: (
        "{files} data files that left {table} are removed from their storage, so the rows that went with "
        "them cannot be read"
    ),
    ReasonCode.VERSION_EXPIRED: "version {version} of {table} is gone: expired, or the table was replaced",
    ReasonCode.HISTORY_EXPIRED: "what came to {table} after version {version} is expired",
    ReasonCode.TIME_MOVED: "{clock} is another one",
    ReasonCode.REFRESH_FAILED: "{text}",
    ReasonCode.WAITS_FOR_INPUT: "waits for {input}: {cause}",
    ReasonCode.INPUT_UNREADABLE: "{text}",
    ReasonCode.WAITS_FOR_BULK: ("waits for the bulk of {relation}, or until the log has passed it"),
    ReasonCode.LOG_READ_AS_A_WHOLE: "{reader} needs all rows of {log}",
    ReasonCode.LOG_READER_NOT_BUILT: "{reader}, which reads {log}, is not built yet",
    ReasonCode.LOG_RETENTION: "rows are older than the log's retention, {retention}",
    ReasonCode.ROWS_CHANGED_WITHOUT_LOG: "{relation} {change}, which the log of the database does not show",
    ReasonCode.TABLES_COPIED_AGAIN: _copied_again_text,
    ReasonCode.LOG_LACKS_ROWS: "{relation} is built anew, and old changes of it were dropped from the log",
    ReasonCode.COLUMNS_CHANGED_AT_SOURCE: "{relation} has other columns since {position}: they are ignored",
    ReasonCode.TABLE_SET_ASIDE: "{relation} is set aside, and the others go on. {text} ({error}). {hint}",
    ReasonCode.SERVER_HAS_SAME_TRANSACTIONS: "{server} has before {position} of its log what the lake has",
    ReasonCode.LOG_KEPT_AT_SOURCE: _kept_log_text,
    ReasonCode.TRANSACTION_OPEN_AT_SOURCE: (
        "transaction {transaction} of the database is open for {seconds} s: the server keeps {kept_mb} MB of "
        "its log, and reads it again in each round"
    ),
    ReasonCode.COPY_WAITS_FOR_TRANSACTION: _awaited_text,
    ReasonCode.UPSTREAM_HAS_NO_VERSION: "job {job} has no version of it",
    ReasonCode.LEFT_TO_BE_REBUILT: "{cause}",
    ReasonCode.NO_VERSION_AT_CHECKPOINT: "{table} has no version for this checkpoint",
    ReasonCode.UNCHANGED_SINCE_LAST_RUN: "definitions, settings and sources are those of the last run",
    ReasonCode.UNCHANGED_WITH_SINKS: (
        "definitions, settings and sources are those of the last run, and sinks show its checkpoint: rows "
        "were compared in tables of up to {rows:#row}"
    ),
    ReasonCode.SINK_NOT_AT_REST: "sink {sink} is left to Spark: {cause}",
    ReasonCode.CODE_MAY_READ: "{position}: what `{what}` gives is known only when definitions are evaluated",
    ReasonCode.SOURCE_NOT_WATCHED: "{source}: whether it has news is known only to Spark",
    ReasonCode.FIRST_BATCHES: "the first one waits at most {wait_s:g} s for the first rows of {flows}",
    ReasonCode.JOBS_AT_WORK: (
        "they still work on it; jobs that share tables have one open checkpoint at a time"
    ),
    ReasonCode.SINK_LACKS_CHECKPOINT: "sink {sink} does not have the last one: {cause}",
    ReasonCode.CHECKPOINT_OPENED_BY_OTHERS: "{text}",
    ReasonCode.WAITS_FOR_VERSION: "it has no version for this checkpoint yet",
    ReasonCode.ROOT_NOT_IN_CUT: "its cut has no version of {table}, which the project has now",
    ReasonCode.ROOT_REPLACED: "its cut has a version of {table} from before it was emptied or replaced",
    ReasonCode.JOB_TAKES_NO_PART: "job {job}, whose tables this job reads, takes no part in it",
    ReasonCode.GIVEN_UP_BY_OTHERS: "{text}",
    ReasonCode.BREAKS_INVARIANTS: (
        "it breaks invariants; readers see the previous checkpoint until the data changes"
    ),
    ReasonCode.ADOPTION_INTERRUPTED: (
        "an earlier adoption ended before it was complete, and tables moved since"
    ),
    ReasonCode.JOB_SKIPPED_CHECKPOINT: "job {job} skipped checkpoint {checkpoint}",
    ReasonCode.JOB_NOT_RUNNING: "job {job} isn't running and has still to do checkpoint {checkpoint}",
    ReasonCode.JOB_UNFINISHED: _unfinished_text,
    ReasonCode.SOURCE_NOT_OBSERVED: (
        "checkpoint {checkpoint} may lack what was there of {table}: job {job} has not looked at it since"
    ),
    ReasonCode.INVARIANT_BROKEN: "{text}",
    ReasonCode.JOB_AWAY: "job {job} isn't running",
    ReasonCode.PATIENCE_USED_UP: "other jobs take longer than run.patience",
    ReasonCode.CHECKPOINT_STATE: "it is {state}",
    ReasonCode.CLAUSE_IGNORED: "{clause} of {statement} has no effect here",
    ReasonCode.EXPECTATION_NOT_COUNTED: (
        "the rows of {dataset} that violate {expectations} are not counted: it is a view and holds no rows"
    ),
    ReasonCode.OTHER_ENGINE: "{part} belongs to another table format; the pipeline's tables are Iceberg",
    ReasonCode.SESSION_CATALOG_NOT_USED: (
        "it is about Spark's own catalog; the pipeline's tables are in its lake catalog"
    ),
    ReasonCode.CATALOG_SET_ELSEWHERE: "[lake.options] configures this catalog",
    ReasonCode.CATALOG_CACHE_NOT_USED: "a cache would hide what other writers commit",
    ReasonCode.CONNECT_NOT_USED: "the run starts a Spark of its own, without Spark Connect",
    ReasonCode.JAR_PROVIDED: "{part} is already there, in the version that this release was tested with",
    ReasonCode.TABLE_FORMAT_MAPPED: (
        "the definition asks for {format}; all tables of a pipeline are written in {lake_format}"
    ),
    ReasonCode.CATALOG_MAPPED: (
        "the databases of the catalog {catalog} are in the catalog {lake_catalog}, as {catalog}.…"
    ),
    ReasonCode.FOLDER_HALF_WRITTEN: "a process ended while it wrote the folder anew",
    ReasonCode.FOLDER_MISSING: "the folder is gone or empty",
    ReasonCode.FOLDER_OF_ANOTHER_QUERY: "the folder belongs to another query",
    ReasonCode.FOLDER_BEHIND: "the folder is behind: batch {folder_batch}, the table has {table_batch}",
    ReasonCode.FOLDER_AHEAD: "the folder is ahead: batch {folder_batch}, the table has {table_batch}",
    ReasonCode.FOLDER_OFFSETS_DIFFER: "the folder holds other offsets for batch {batch}",
    ReasonCode.FOLDER_LACKS_COMMIT: "the folder misses the commit of batch {batch}",
    ReasonCode.BATCH_ALREADY_IN_TABLE: "batch {batch} is in the table and will be recognised",
    ReasonCode.FIRST_BATCH_INTERRUPTED: "its first batch was being planned when the process ended",
    ReasonCode.TABLE_HAS_NO_POSITION: (
        "the table has no positions of this flow, the folder holds batch {folder_batch}"
    ),
    ReasonCode.FOLDER_COPIED: (
        "no folder can be renamed here: {files:#file} of {bytes:#byte} copied from {path}"
    ),
    ReasonCode.POSITIONS_PROVE_BATCH: "its positions prove that the table has it",
    ReasonCode.STREAM_FROM_NEWEST_VERSION: (
        "their versions cannot be followed from the oldest (expired, or rows went away): the stream "
        "begins with all rows of the newest"
    ),
    ReasonCode.RECORD_FAILED: "[{error_class}] {text}",
    ReasonCode.BATCH_NOT_IN_TABLE: "{table} has not the batch that it belongs to; its source is read again",
    ReasonCode.PREPARED_ON_OLDER_VERSION: "main moved since it was prepared; its source is read again",
    ReasonCode.FILES_UNCHECKED: "what its file sources skip cannot be told: {text}",
    ReasonCode.READER_LEAVES_OUT_ROWS: "{option} = {value} leaves out {input}, or rows of them, unseen",
    ReasonCode.MALFORMED_NOT_COUNTED: "{text}",
    ReasonCode.FILES_NOT_READ_AGAIN: "its files could not be read again to name them: {text}",
    ReasonCode.LINES_NOT_KNOWN: "the line of {records:#record} is not known: {text}",
    ReasonCode.RECORDS_GONE: (
        "up to {records:#record} of partition {partition} went away before they were read, and the reader's "
        "failOnDataLoss = false goes on without them"
    ),
    ReasonCode.TOPIC_RECREATED: (
        "Kafka gives another id; the new topic is taken in from its beginning, the rows of the old one stay"
    ),
    ReasonCode.TOPIC_IDS_REFUSED: "{text}; a topic that is deleted and created again goes unnoticed",
    ReasonCode.RESTART_WAIT_OVER: "{wait_s:g} s have passed since it failed",
    ReasonCode.JOB_HAS_RUNNING_OWNER: "{text}",
    ReasonCode.LEASE_NOT_RENEWED: "{text}",
    ReasonCode.ROWS_AND_POSITIONS_DROPPED: (
        "its rows and positions were dropped; streaming tables that read it need one too"
    ),
    ReasonCode.TABLE_KEEPS_COLUMNS: (
        "the capture ignores new columns (schema_changes='ignore'); those that are gone are NULL in new rows"
    ),
    ReasonCode.COLUMNS_IN_DEFINITION: "its definition has new columns; older rows have NULL there",
    ReasonCode.CATALOG_WITHOUT_VIEWS: (
        "the catalog stores no views; the pipeline's own queries can still read it"
    ),
    ReasonCode.SINK_WITHOUT_FLOW: "no flow writes it, and no dataset names it",
    ReasonCode.STORE_WAS_EMPTY: "the store was empty, but the tables name checkpoints",
    ReasonCode.NO_EVENT_TIME: "tables without '{property}' are taken as they are",
    ReasonCode.SOURCE_FAR_BEHIND: (
        "{behind} is further behind than run.align allows: an older version of {root} is shown until it "
        "has come nearer"
    ),
    ReasonCode.SOURCE_TIME_UNKNOWN: (
        "its job has not looked yet how far {behind} has come: {root} stays where it is until then"
    ),
    ReasonCode.TAG_FAILED: "{text}",
    ReasonCode.SINK_CANNOT_DROP: "stays: this format of sinks cannot drop it, or the settings do not have "
    "the sink any more; drop it there",
    ReasonCode.SINK_NOT_DECLARED: "no definition of the job names it any more",
    ReasonCode.SINK_FAILED_TOO_OFTEN: "its policy is skip_with_alarm; the next delivery catches up",
    ReasonCode.TRANSACTION_UNFINISHED: "its transaction had no known end",
    ReasonCode.SINK_HAS_NO_ROWS: "the sink has nothing of it yet",
    ReasonCode.CHANGES_UNKNOWN: "{text}",
    ReasonCode.COLUMNS_CHANGED_SINCE: "the table no longer has the columns {columns} of that version",
    ReasonCode.SINK_TABLE_MISSING: "somebody dropped or renamed it in the sink",
    ReasonCode.PUBLISHED_FILES_DIFFER: "its files are not those that were published",
    ReasonCode.PUBLISHED_LOG_DAMAGED: "{text}",
    ReasonCode.SINK_TABLE_UNRECORDED: "the sink does not say which rows it shall have",
    ReasonCode.SINK_TABLE_ALTERED: "somebody altered it in the sink, so its rows cannot be compared",
    ReasonCode.SINK_TABLE_REBUILT: "columns changed their type or went: {columns}",
    ReasonCode.SINK_KEY_CHANGED: "its key was {before}, and is {after} now",
    ReasonCode.SINK_ROWS_DIFFER: "somebody changed it in the sink: it has {rows:#row}, and not the same as "
    "the {recorded} that were delivered",
    ReasonCode.SINK_HISTORY_OLD: "older checkpoints than {oldest} are no longer kept by the sink",
    ReasonCode.SINK_CHECKPOINT_NOT_SHOWN: "the sink does not show checkpoint {checkpoint}: it keeps the "
    "newest rows only, was given several checkpoints at once, or gave this one up; compared is checkpoint "
    "{shown}, which its readers see",
    ReasonCode.SINK_CHECKPOINT_OF_ANOTHER_STORE: "the checkpoint {checkpoint} that the sink has is that of "
    "an older copy or another store; compared is checkpoint {shown}, which its readers see",
    ReasonCode.SINK_RECORDS_REMOVED: "Kafka removed records of the partitions {partitions} of {topic} that "
    "checkpoint {checkpoint} had",
    ReasonCode.SINK_SERVER_AWAY: "{text}",
    ReasonCode.SINK_SECRETS_CHANGED: "its log-in was refused, and a file of its options has changed",
    ReasonCode.SINK_PARTS_UNMERGED: "a partition of {table} in {server} has {parts} unmerged parts, more "
    "than {limit}",
    ReasonCode.SINK_STATEMENTS_RUNNING: "of an earlier try {statements:#statement} still running in {server}",
    ReasonCode.SINK_ROWS_COUNTED: "every insert was answered: the rows of each were counted",
    ReasonCode.SINK_ROWS_HASHED_FIRST: "the first rows that a run sends are compared by their hashes, the "
    "others are counted",
    ReasonCode.SINK_ROWS_HASHED_AGAIN: "the table was staged before in this transaction: all rows are "
    "compared by their hashes",
    ReasonCode.SINK_ROWS_HASHED_COMPOSITES: "{columns} have arrays, maps or structs: all rows are compared "
    "by their hashes",
    ReasonCode.SINK_ROWS_HASHED_WITHOUT_TLS: "the connection has no TLS, which would find changed bytes: all "
    "rows are compared by their hashes",
    ReasonCode.SINK_ROWS_HASHED_BY_OPTION: "the option compare = hash: all rows are compared by their hashes",
    ReasonCode.TRANSACTION_PARTICIPANT_SLOW: "the participant {participant} has not answered for {seconds} "
    "s, in transaction {transaction}",
    ReasonCode.TRANSACTION_HAD_ENDED: "the transaction was {state} when something was staged for it",
    ReasonCode.CHECKPOINT_RETENTION: _retention_text,
    ReasonCode.VERSIONS_NOT_NEEDED: "no checkpoint, pin, tag or refresh needs them",
    ReasonCode.SMALL_FILES: "at least {min_files} small files, or a file of which half is deleted",
    ReasonCode.COMPACTION_FAILED: "{text}",
    ReasonCode.FILES_UNREFERENCED: _unreferenced_text,
    ReasonCode.ORPHAN_SEARCH_FAILED: "{text}",
    ReasonCode.BUDGET_USED_UP: "the budget of {budget_ms} ms is used up",
    ReasonCode.TRIED_AGAIN_LATER: "it is tried again later",
    ReasonCode.ROWS_EQUAL_QUERY: "its rows equal its query",
    ReasonCode.POSITIONS_AGREE: "folders and table agree: {batches}",
    ReasonCode.REBUILD_REQUESTED: "a rebuild was requested: the next run computes it",
    ReasonCode.INPUT_IS_REBUILT: "it reads {input}: the next run computes it",
    ReasonCode.ADOPTION_REFUSED: "{text}",
    ReasonCode.ALREADY_OWNED: "its tables are its own already",
    ReasonCode.LEFT_TO_PROJECT_OF_JOB: (
        "only the project of its job can complete it; no checkpoint is opened before that"
    ),
    ReasonCode.TABLE_DROPPED: "{text}",
    ReasonCode.OLD_DATA_KEPT: (
        "the next run computes the reverted tables again; the old data is kept until it is confirmed"
    ),
    ReasonCode.JOB_STOPPED: (
        "its process ({process}) ended without saying so, or cannot reach the store, since {since}"
    ),
    ReasonCode.RUN_FAILED: "its last run ended with an error at {at}: {text}",
    ReasonCode.FLOW_FAILED: "flow {flow} fails (failures in a row: {attempts}): {text}",
    ReasonCode.CHECKPOINT_TAKES_LONG: "checkpoint {checkpoint} is open since {since}; usual are {usual_s} s",
    ReasonCode.ROWS_LATE: "it may lack what came since {since}",
    ReasonCode.SINK_LATE: "it lacks a checkpoint published at {since}, after {failures} failed tries {text}",
    ReasonCode.SINK_NEEDS_ATTENTION: "trying again cannot help: {text}",
    ReasonCode.LOG_RETAINED: "the database keeps {kept_mb} MB of its log for {reader}",
    ReasonCode.LOG_LOST: "the database removed log that {reader} needs",
    ReasonCode.LOG_EXPIRES: "log from {reader} on is not read yet, and the database, which keeps it for "
    "{kept_h} hours, may remove it from {at} on",
    ReasonCode.BAD_RECORDS_CAME: "{records:#bad record} set aside in {table}, the last at {at}: {text}",
    ReasonCode.DISK_SPACE_LOW: "{free_mb} of {total_mb} MB are free where the storage is ({path})",
    ReasonCode.TRANSACTION_UNSETTLED: "its decision ({state}) could not be carried out: {text}",
    ReasonCode.NOTHING_SINCE_LAST_RUN: "nothing came since the last run",
    ReasonCode.FILES_SINCE_LAST_RUN: "files came or changed since the last run, in {folders}",
    ReasonCode.RECORDS_SINCE_LAST_RUN: "up to {records:#record} came since the last run, into {topics}",
    ReasonCode.LOG_SINCE_LAST_RUN: "up to {bytes:#byte} of log came since the last run, in the database of "
    "the capture {capture}",
    ReasonCode.NEWS_NOT_KNOWN: "what came since the last run is not known without a run: {cause}",
}
"""Templates of parameters, or functions of them. `SEVERAL` is made of the texts of its parts."""

COMPUTED_FROM: Mapping[ReasonCode, frozenset[str]] = {
    ReasonCode.SEVERAL: frozenset({"reasons"}),
    ReasonCode.TABLES_COPIED_AGAIN: frozenset({"relations"}),
    ReasonCode.COPY_WAITS_FOR_TRANSACTION: frozenset({"transaction", "session", "seconds"}),
    ReasonCode.LOG_KEPT_AT_SOURCE: frozenset({"slot", "kept_mb", "bound_mb"}),
    ReasonCode.UNVERSIONED_SOURCE: frozenset({"sources"}),
    ReasonCode.DEFINITION_CHANGED: frozenset({"parts"}),
    ReasonCode.PARQUET_SETTINGS: frozenset({"settings"}),
    ReasonCode.ESTIMATED_COSTS: frozenset(
        {"changed", "clocks", "incremental_ms", "incremental_measured", "full_ms", "full_measured"}
    ),
    ReasonCode.JOB_UNFINISHED: frozenset({"job", "checkpoint", "waits_for"}),
    ReasonCode.CHECKPOINT_RETENTION: frozenset({"keep_ms", "spacing_ms", "keep_last"}),
    ReasonCode.FILES_UNREFERENCED: frozenset({"older_than_ms"}),
}
"""The parameters of texts that a function makes."""
