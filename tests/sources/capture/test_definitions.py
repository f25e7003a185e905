"""Names of captured tables are joined from several: two captures of one project may give one name."""

from __future__ import annotations

import pytest
from tests.support.harness import Pipeline

from tautochrone.errors import DefinitionError
from tautochrone.sources.capture.definitions import dataset_name

pytestmark = pytest.mark.spark

DEFINITIONS = """
    from tautochrone.sources.capture.definitions import define_log, define_table

    for capture, dataset in {captures!r}:
        define_log(capture, f"log_{{capture}}", "the log", None)
        define_table(
            dataset, log_table=f"{{capture}}_log", relation="of the capture " + capture, keys=["id"],
            columns=["columns['id'] AS id"], comment="", invalid=[], invalid_values="fail", properties={{}},
        )
"""


@pytest.mark.parametrize(
    "captures",
    [
        # The second has a table of the name of the first's, of the log of the first, and of its own log.
        [("a", dataset_name("a", "b", "c")), ("a_b", dataset_name("a_b", "C"))],
        [("a_b", dataset_name("a_b", "c")), ("a", dataset_name("a", "b_log"))],
        [("a", dataset_name("a", "b.log")), ("a_b", dataset_name("a_b", "c"))],
    ],
)
def test_two_captures_that_give_one_name_are_refused(
    pipeline: Pipeline, captures: list[tuple[str, str]]
) -> None:
    pipeline.write("definitions/p.py", DEFINITIONS.format(captures=captures))
    with pytest.raises(DefinitionError) as refused:
        pipeline.run()
    assert refused.value.error_class == "PIPELINE_DUPLICATE_IDENTIFIERS.OUTPUT"
    assert "capture" in str(refused.value.hint)
