"""Staging rows that Spark's tasks write themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tautochrone.model.lake import Fork, LakeTable, Rows, Staged
from tautochrone.model.task_writer import TaskWriter

__all__ = ["TaskStage"]


@dataclass(frozen=True, slots=True)
class TaskStage:
    """Stages rows that tasks write themselves: see `LakeTable.stage_task_files`.

    Attributes:
        copies: by relation, what writes copied rows into files of another table. The rows that are staged
            name these files (`model.copied_files`), which belong to no version of that table yet.
    """

    table: LakeTable
    fork: Fork
    writer: TaskWriter
    copies: Mapping[str, TaskWriter] = field(default_factory=dict)

    def __call__(self, files: Rows) -> Staged:
        return self.table.stage_task_files(self.fork, self.writer, files)
