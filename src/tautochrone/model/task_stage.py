"""Staging rows that Spark's tasks write themselves."""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.model.lake import Fork, LakeTable, Rows, Staged
from tautochrone.model.task_writer import TaskWriter

__all__ = ["TaskStage"]


@dataclass(frozen=True, slots=True)
class TaskStage:
    """Stages rows that tasks write themselves: see `LakeTable.stage_task_files`."""

    table: LakeTable
    fork: Fork
    writer: TaskWriter

    def __call__(self, files: Rows) -> Staged:
        return self.table.stage_task_files(self.fork, self.writer, files)
