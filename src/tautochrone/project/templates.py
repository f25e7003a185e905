"""The sample project that `taut init` writes: a streaming table with a source, and a view over it.

It has the layout of `spark-pipelines init`, and runs there when `storage` is changed to a `file:` URI; here
it is relative, so that a copy of the project does not use the original's storage. Spark's own sample has no
source, so its second run could not show an incremental refresh.
"""

from __future__ import annotations

from pathlib import Path

from tautochrone.errors import SpecError

__all__ = ["init_project"]

_SPEC = """\
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""

_ORDERS = '''\
"""Orders as they arrive: every file in the folder `orders` is taken in once."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
FOLDER = Path(__file__).resolve().parents[1] / "orders"


@dp.table
def orders() -> DataFrame:
    return spark.readStream.schema("id INT, product STRING, price DECIMAL(9,2)").json(str(FOLDER))
'''

# Without the policy so small a view would be recomputed: that is cheaper, but shows nothing.
_SALES = """\
-- The policy says: follow the change, even while computing everything is cheaper.
CREATE MATERIALIZED VIEW sales
TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')
AS SELECT product, count(*) AS sold, sum(price) AS revenue
FROM orders
GROUP BY product;
"""

_FIRST_ORDERS = """\
{"id": 1, "product": "tea", "price": 3.50}
{"id": 2, "product": "coffee", "price": 4.20}
{"id": 3, "product": "tea", "price": 3.50}
"""


def init_project(folder: Path, name: str) -> Path:
    """Write the sample as `folder/name` and return that path.

    Raises:
        SpecError: PROJECT_ALREADY_EXISTS, the directory exists.
    """
    project = folder / name
    if project.exists():
        raise SpecError(
            "PROJECT_ALREADY_EXISTS",
            f"Directory `{name}` already exists.",
            hint="Choose a different name or remove the existing directory.",
            location=str(project),
        )
    storage = project / "pipeline-storage"
    for part in (storage, project / "transformations", project / "orders"):
        part.mkdir(parents=True)
    files = {
        "spark-pipeline.yml": _SPEC.format(name=name, storage=storage.name),
        "transformations/orders.py": _ORDERS,
        "transformations/sales.sql": _SALES,
        "orders/1.json": _FIRST_ORDERS,
    }
    for path, text in files.items():
        (project / path).write_text(text, encoding="utf-8")
    return project
