"""The events of a snapshot beside what is known of their keys."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from tautochrone.model.names import quoted
from tautochrone.runtime.refresh.snapshot_events import key_not_unique
from tautochrone.runtime.refresh.task import RefreshTask
from tautochrone.spark.execute.merge_events import DELETED, SEQUENCE, EventMerge, all_equal, prefixed

__all__ = ["after_known", "require_unknown"]

_FOLLOWING = "following"


def require_unknown(merge: EventMerge, new_keys: DataFrame, state: DataFrame, task: RefreshTask) -> None:
    """Refuse a snapshot in which a second row of a key came.

    Args:
        new_keys: the keys that the snapshot before must not have.
        state: the rows of these keys.

    Raises:
        RefreshError: `AUTO_CDC_SNAPSHOT_KEY_NOT_UNIQUE`.
    """
    renamed = zip(merge.columns.keys, merge.keys, strict=True)
    came = new_keys.select(*(sf.col(quoted(key)).alias(f"e_{name}") for key, name in renamed))
    last = state.groupBy(*merge.keys).agg(sf.max_by(DELETED, SEQUENCE).alias(DELETED))
    known = last.where(~sf.col(DELETED)).select(*prefixed("s", merge.keys))
    twice = came.join(known, all_equal(merge.keys), "left_semi").limit(1).collect()
    if twice:
        raise key_not_unique(dict(zip(merge.columns.keys, twice[0], strict=True)), task)


def after_known(folded: DataFrame, state: DataFrame) -> DataFrame:
    """The events of a snapshot, later than all that is known of their keys.

    The clock of a new owner may be behind that of the last one.
    """
    following = sf.expr(f"max({SEQUENCE}) + INTERVAL '0.001' SECOND").alias(_FOLLOWING)
    joined = folded.crossJoin(sf.broadcast(state.agg(following)))
    return joined.withColumn(SEQUENCE, sf.greatest(SEQUENCE, _FOLLOWING)).drop(_FOLLOWING)
