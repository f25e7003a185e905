# ruff: noqa: E501
"""Ways to change a definition, as templates: `«before|after»` is what changes.

Each case is a name and files; `defs/` is prepended to their names, and `NAME` stands for the case's name, which
is also that of its view. A case without a file name is the body of a Python file after the usual imports. A file
that does not end with `.py` or `.sql` is in the project's folder.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

import pytest

HEADER = (
    "import os\nfrom pathlib import Path\nfrom pyspark import pipelines as dp\n"
    "from pyspark.sql import functions as sf, types as st, Window\n"
)

Case = str | Mapping[str, str]


def view(body: str, before: str = "") -> str:
    """A file with the view of the case, whose function has this body."""
    function = f"\n@dp.materialized_view(name='NAME')\ndef view():\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    return textwrap.dedent(before) + function


def expression(text: str, before: str = "") -> str:
    """A view with a column over the numbers from 0 to 3."""
    return view(f"return spark.range(4).select(({text}).alias('x'))", before)


def of_udf(before: str, returns: str = "long", name: str = "f") -> str:
    """A view with a column that a function of `before` computes."""
    return view(f"return spark.range(4).select(sf.udf({name}, '{returns}')('id').alias('x'))", before)


def sql(query: str) -> Mapping[str, str]:
    return {"NAME.sql": f"CREATE MATERIALIZED VIEW NAME AS {query};"}


CHANGES: dict[str, Case] = {
    # What the query says.
    "literal": expression("sf.lit(«1|2»)"),
    "literal_type": expression("sf.concat(sf.lit(«1|1.0»).cast('string'), sf.lit('x'))"),
    "text_or_null": expression("sf.lit(«'null'|None»).cast('string')"),
    "sql_literal": sql("SELECT id + «1|2» AS x FROM range(4)"),
    "sql_filter": sql("SELECT id FROM range(4) WHERE id «>|>=» 2"),
    "column_name": sql("SELECT id AS «x|y» FROM range(4)"),
    "column_order": sql("SELECT «id, 1 AS x|1 AS x, id» FROM range(4)"),
    "column_swap": sql("SELECT «a AS x, b AS y|b AS x, a AS y» FROM VALUES (1, 2) t(a, b)"),
    "self_join_side": sql("SELECT «l|r».id FROM range(4) l LEFT JOIN range(9) r ON l.id = r.id + 1"),
    "join_type": sql("SELECT l.id FROM range(4) l «LEFT|INNER» JOIN range(2) r ON l.id = r.id"),
    "set_operation": view("return spark.range(4).«intersect|exceptAll»(spark.range(2))"),
    "distinct": view("return spark.range(4).select(sf.lit(1).alias('x'))«.distinct()|»"),
    "limit": sql("SELECT id FROM range(9) ORDER BY id LIMIT «2|3»"),
    "order_below_limit": sql("SELECT id FROM range(9) ORDER BY id «ASC|DESC» LIMIT 2"),
    "nulls_order": sql("SELECT a FROM VALUES (1), (NULL) t(a) ORDER BY a NULLS «FIRST|LAST» LIMIT 1"),
    "seed": expression("sf.rand(«1|2»)"),
    "sample_seed": view("return spark.range(99).sample(0.5, «1|2»)"),
    "range": view("return spark.range(«4|5»)"),
    "cast": expression("sf.lit(7.5).cast('«int|bigint»')"),
    "count_distinct": sql("SELECT count(«|DISTINCT »id % 2) AS n FROM range(4)"),
    "aggregate_filter": sql("SELECT count(*) FILTER (WHERE id > «1|2») AS n FROM range(4)"),
    "having": sql("SELECT id % 2 AS g, count(*) AS n FROM range(5) GROUP BY 1 HAVING count(*) > «1|2»"),
    "frame": sql("SELECT sum(id) OVER (ORDER BY id ROWS «1|2» PRECEDING) AS s FROM range(4)"),
    "partition": sql("SELECT id % 2 AS a, id % 3 AS b, count(*) OVER (PARTITION BY id % «2|3») AS n FROM range(7)"),
    "struct_field": expression("sf.to_json(sf.struct(sf.lit(1).alias('«a|b»')))"),
    "lambda": sql("SELECT transform(array(1, 2), v -> v «+|*» 2) AS x"),
    "json_schema": sql("SELECT to_json(from_json('{\"a\": 1}', '«a|b» int')) AS x"),
    "json_option": sql("SELECT from_json('{\"a\": 01}', 'a int', map('allowNumericLeadingZeros', '«true|false»')).a AS x"),
    "date_format": sql("SELECT date_format(DATE'2026-01-02', '«yyyy|MM»') AS x"),
    "pivot": sql("SELECT * FROM VALUES (1, 2), (3, 4) t(a, b) PIVOT (sum(b) AS s FOR a IN («1 AS p|3 AS p»))"),
    "grouping_sets": sql("SELECT id, count(*) AS n FROM range(3) GROUP BY «ROLLUP|CUBE»(id, id % 2)"),
    "generator": sql("SELECT x FROM range(2) LATERAL VIEW «explode|explode_outer»(IF(id = 0, array(1), array())) t AS x"),
    "subquery": sql("SELECT id FROM range(4) WHERE id IN (SELECT id * «2|3» FROM range(3))"),
    "scalar_subquery": sql("SELECT (SELECT max(id) FROM range(«4|5»)) AS x"),
    "cte": sql("WITH c AS (SELECT id FROM range(«4|5»)) SELECT count(*) AS n FROM c AS l, c AS r"),
    "null_safe": sql("SELECT (a «=|<=>» NULL) AS x FROM VALUES (1) t(a)"),
    "sql_args": view("return spark.sql('SELECT :v AS x', args={'v': «1|2»})"),
    "sql_frame": view("return spark.sql('SELECT * FROM {f}', f=spark.range(«1|2»))"),
    "union_order": view("a, b = spark.range(1), spark.range(5, 7)\nreturn «a.union(b)|b.union(b)»"),
    "partitioned": {"NAME.sql": "CREATE MATERIALIZED VIEW NAME «|PARTITIONED BY (id) »AS SELECT id FROM range(3);"},
    "declared": {"NAME.sql": "CREATE MATERIALIZED VIEW NAME («a|b») AS SELECT id FROM range(3);"},
    "interval": sql("SELECT DATE'2026-01-01' + INTERVAL «1 DAY|1 MONTH» AS x"),
    "binary": sql("SELECT hex(X'«00ff|ff00»') AS x"),
    "collation": sql("SELECT count(*) AS n FROM (SELECT DISTINCT a COLLATE «UTF8_BINARY|UTF8_LCASE» FROM VALUES ('a'), ('A') t(a))"),
    # What the plan holds and its text does not show.
    "rows": view("return spark.createDataFrame([(1, 'a'), (2, '«b|c»')], 'a int, b string')"),
    "rows_nested": view("return spark.createDataFrame([([1, «2|3»], {'a': 1.5})], 'a array<int>, b map<string, double>')"),
    "rows_of_import": view("return BASE", "BASE = spark.createDataFrame([(«1|2»,)], 'a int')"),
    "rows_pandas": view("import pandas as pd\nreturn spark.createDataFrame(pd.DataFrame({'a': [1, «2|3»]}))"),
    "rows_count": view("return spark.createDataFrame([(1,)] * «2|3», 'a int')"),
    "frame_of_import": view("return BASE.where('id > 1')", "BASE = spark.range(«4|5»)"),
    "values": sql("SELECT * FROM VALUES (1, 'a'), (2, '«b|c»') t(a, b)"),
    "view_below": {
        "NAME.sql": "CREATE TEMPORARY VIEW NAME_t AS SELECT id FROM range(«3|4»);"
        "CREATE MATERIALIZED VIEW NAME AS SELECT count(*) AS n FROM NAME_t;"
    },
    "view_below_view": {
        "NAME.sql": "CREATE TEMPORARY VIEW NAME_a AS SELECT id FROM range(«3|4»);"
        "CREATE TEMPORARY VIEW NAME_b AS SELECT * FROM NAME_a;"
        "CREATE MATERIALIZED VIEW NAME AS SELECT count(*) AS n FROM NAME_b;"
    },
    "persisted_view": {
        "NAME.sql": "CREATE VIEW NAME_v AS SELECT id FROM range(«3|4»);"
        "CREATE MATERIALIZED VIEW NAME AS SELECT count(*) AS n FROM NAME_v;"
    },
    # What a function reads while it is evaluated.
    "sql_file": {"NAME.py": view("return spark.sql(Path('NAME.txt').read_text())"),
                 "NAME.txt": "SELECT «1|2» AS x"},
    "opened_file": {"NAME.py": view("with open('NAME.txt') as f:\n    return spark.sql(f.read())"),
                    "NAME.txt": "SELECT «1|2» AS x"},
    "json_file": {"NAME.py": expression("sf.lit(json.loads(Path('NAME.json').read_text())['a'])", "import json"),
                  "NAME.json": '{"a": «1|2»}'},
    "csv_by_python": {"NAME.py": view("import csv\nreturn spark.createDataFrame([*csv.reader(open('NAME.csv'))], 'a string')"),
                      "NAME.csv": "«1|2»\n"},
    "file_of_module": {"NAME.py": expression("sf.lit(TEXT)", "TEXT = Path('NAME.txt').read_text()"), "NAME.txt": "«a|b»"},
    "environment": expression("sf.lit(os.environ['NAME'])"),
    "getenv_of_helper": {"NAME.py": expression("sf.lit(NAME_h.value())", "import NAME_h"),
                         "NAME_h.py": "import os\ndef value():\n    return os.getenv('NAME')\n"},
    "import_inside": {"NAME.py": view("from NAME_h import value\nreturn spark.range(value)"), "NAME_h.py": "value = «3|4»\n"},
    "import_inside_helper": {"NAME.py": view("return NAME_h.rows(spark)", "import NAME_h"),
                             "NAME_h.py": "def rows(spark):\n    from NAME_g import n\n    return spark.range(n)\n",
                             "NAME_g.py": "n = «3|4»\n"},
    "importlib": {"NAME.py": view("import importlib\nreturn spark.range(importlib.import_module('NAME_h').n)"),
                  "NAME_h.py": "n = «3|4»\n"},
    "executed_file": {"NAME.py": view("names = {}\nexec(Path('NAME.txt').read_text(), names)\nreturn spark.range(names['n'])"),
                      "NAME.txt": "n = «3|4»\n"},
    "class_attribute": {"NAME.py": view("return spark.range(Config.n)", "from NAME_h import Config"),
                        "NAME_h.py": "class Config:\n    n = «3|4»\n"},
    "class_method": {"NAME.py": view("return Config().rows(spark)", "from NAME_h import Config"),
                     "NAME_h.py": "class Config:\n    def rows(self, spark):\n        return spark.range(«3|4»)\n"},
    "base_class": view("return spark.range(B().n)", "class A:\n    @property\n    def n(self):\n        return «3|4»\nclass B(A):\n    pass"),
    "dataclasses": expression("sf.lit(sum(rule.n for rule in RULES))",
                              "from dataclasses import dataclass\n@dataclass\nclass Rule:\n    n: int\nRULES = [Rule(1), Rule(«2|3»)]"),
    "functions_in_dict": expression("F['a'](sf.col('id'))", "F = {'a': lambda c: c + «1|2»}"),
    "factory": expression("ADD(sf.col('id'))", "def make(n):\n    def add(c):\n        return c + n\n    return add\nADD = make(«1|2»)"),
    "default": view("return rows(spark)", "def rows(spark, n=«3|4»):\n    return spark.range(n)"),
    "partial": view("return ROWS(spark)", "from functools import partial\ndef rows(spark, n):\n    return spark.range(n)\nROWS = partial(rows, n=«3|4»)"),
    "enum": view("return spark.range(Size.A.value)", "from enum import Enum\nclass Size(Enum):\n    A = «3|4»"),
    "object_state": view("return spark.range(SIZE.n)", "class Size:\n    pass\nSIZE = Size()\nSIZE.n = «3|4»"),
    "loop": "for n in («3|4»,):\n    @dp.materialized_view(name='NAME')\n    def view():\n        return spark.range(n)\n",
    "getattr": {
        "NAME.py": view("return spark.range(getattr(NAME_h, 'n' + 'm'))", "import NAME_h"), "NAME_h.py": "nm = «3|4»\n"},
    # What is another value each time, and changes besides.
    "now_window": view("return spark.range(4).where(sf.lit(datetime.now() - timedelta(days=«7|30»)) > sf.lit(datetime(2020, 1, 1)))","from datetime import datetime, timedelta"),
    "now_udf": view("stamp = datetime.now()\nreturn spark.range(4).select(sf.udf(lambda x: x + «1|2» if stamp else 0, 'long')('id').alias('x'))","from datetime import datetime"),
    "now_rows": view("return spark.createDataFrame([(str(uuid4()), 'a'), (str(uuid4()), '«b|c»')], 'k string, v string')","from uuid import uuid4"),
    "now_below": {
        "NAME.py": "from datetime import datetime\n@dp.temporary_view(name='NAME_t')\ndef t():\n"
                   "    return spark.range(2).select(sf.lit((datetime.now() - datetime(20«20|21», 1, 1)).seconds * 0 + «1|2» + datetime.now().microsecond / 1e9).alias('a'))\n",
        "NAME.sql": "CREATE MATERIALIZED VIEW NAME AS SELECT count(a) AS n FROM NAME_t;"},
    "select_order": view("return spark.range(2).select(*[sf.lit(1).alias(c) for c in «'ab'|'ba'»])"),
    # The code that Python runs.
    "udf": of_udf("def f(x):\n    return x + «1|2»"),
    "udf_operator": of_udf("def f(x):\n    return x «+|-» 2"),
    "udf_compare": of_udf("def f(x):\n    return int(x «<|<=» 2)"),
    "udf_lambda": of_udf("f = lambda x: x + «1|2»"),
    "udf_global": of_udf("N = «1|2»\ndef f(x):\n    return x + N"),
    "udf_closure": of_udf("def make(n):\n    return lambda x: x + n\nf = make(«1|2»)"),
    "udf_helper": of_udf("def g(x):\n    return x + «1|2»\ndef f(x):\n    return g(x)"),
    "udf_module": {"NAME.py": of_udf("import NAME_h\ndef f(x):\n    return NAME_h.g(x)"),
                   "NAME_h.py": "from NAME_g import g\n", "NAME_g.py": "def g(x):\n    return x + «1|2»\n"},
    "udf_of_module": {"NAME.py": of_udf("from NAME_h import f"), "NAME_h.py": "def f(x):\n    return x + «1|2»\n"},
    "udf_default": of_udf("def f(x, n=«1|2»):\n    return x + n"),
    "udf_keyword_default": of_udf("def f(x, *, n=«1|2»):\n    return x + n"),
    "udf_parameters": of_udf("def g(«a, b|b, a»):\n    return a - b\ndef f(x):\n    return g(a=x, b=1)"),
    "udf_decorated": view("return spark.range(4).select(f('id').alias('x'))", "@sf.udf('long')\ndef f(x):\n    return x + «1|2»"),
    "udf_type": of_udf("def f(x):\n    return x + 1", returns="«long|int»"),
    "udf_class": of_udf("class F:\n    def __call__(self, x):\n        return x + «1|2»\nf = F()"),
    "udf_state": of_udf("class F:\n    def __init__(self, n):\n        self.n = n\n    def __call__(self, x):\n        return x + self.n\nf = F(«1|2»)"),
    "udf_slots": of_udf("class F:\n    __slots__ = ('n',)\n    def __call__(self, x):\n        return x + self.n\nf = F()\nf.n = «1|2»"),
    "udf_bound_method": of_udf("class F:\n    n = «1|2»\n    def g(self, x):\n        return x + self.n\nf = F().g"),
    "udf_static_method": of_udf("class F:\n    @staticmethod\n    def g(x):\n        return x + «1|2»\ndef f(x):\n    return F.g(x)"),
    "udf_class_method": of_udf("class F:\n    @classmethod\n    def g(cls, x):\n        return x + «1|2»\nf = F.g"),
    "udf_base_class": of_udf("class A:\n    def g(self, x):\n        return x + «1|2»\nclass B(A):\n    pass\ndef f(x):\n    return B().g(x)"),
    "udf_property": of_udf("class F:\n    @property\n    def n(self):\n        return «1|2»\ndef f(x):\n    return x + F().n"),
    "udf_partial": view("return spark.range(4).select(sf.udf(lambda x: P(x), 'long')('id').alias('x'))",
                        "from functools import partial\nP = partial(lambda n, x: x + n, «1|2»)"),
    "udf_dict": of_udf("F = {'a': lambda x: x + «1|2»}\ndef f(x):\n    return F['a'](x)"),
    "udf_set": of_udf("N = {1, «2|3»}\ndef f(x):\n    return int(x in N)"),
    "udf_nested_data": of_udf("N = {'a': [(1, «2|3»)]}\ndef f(x):\n    return x + N['a'][0][1]"),
    "udf_regex": of_udf("import re\nP = re.compile('«[0-9]|[1-9]»')\ndef f(x):\n    return len(P.findall(str(x)))"),
    "udf_numpy": of_udf("import numpy as np\nN = np.array([1, «2|3»])\ndef f(x):\n    return int(x + N.sum())"),
    "udf_pandas_constant": of_udf("import pandas as pd\nN = pd.DataFrame({'a': [«1|2»]})\ndef f(x):\n    return x + int(N.a.sum())"),
    "udf_decimal": of_udf("from decimal import Decimal\nN = Decimal('«1|2»')\ndef f(x):\n    return int(x + N)"),
    "udf_date": of_udf("from datetime import date\nN = date(2026, 1, «1|2»)\ndef f(x):\n    return x + N.day"),
    "udf_enum": of_udf("from enum import Enum\nclass E(Enum):\n    A = «1|2»\ndef f(x):\n    return x + E.A.value"),
    "udf_dataclass": of_udf("from dataclasses import dataclass\n@dataclass\nclass D:\n    n: int = «1|2»\ndef f(x):\n    return x + D().n"),
    "udf_named_tuple": of_udf("from collections import namedtuple\nT = namedtuple('T', 'a b')\nN = T(«1, 2|2, 1»)\ndef f(x):\n    return x + N.a"),
    "udf_nested": of_udf("def f(x):\n    def g(y):\n        return y + «1|2»\n    return g(x)"),
    "udf_recursive": of_udf("def f(x):\n    return x if x < 2 else f(x - «1|2»)"),
    "udf_mutual": of_udf("def f(x):\n    return x if x < 2 else g(x - 1)\ndef g(x):\n    return f(x) + «1|2»"),
    "udf_wrapped": of_udf("from functools import wraps\ndef plus(g):\n    @wraps(g)\n    def h(x):\n        return g(x) + «1|2»\n    return h\n@plus\ndef f(x):\n    return x"),
    "udf_exception": of_udf("def f(x):\n    try:\n        return 4 // x\n    except «ZeroDivisionError|ArithmeticError»:\n        return «1|2»"),
    "udf_branch": of_udf("def f(x):\n    if x > 1«| and x < 3»:\n        return 1\n    return 0"),
    "udf_generator": of_udf("def f(x):\n    return sum(y for y in range(x) if y != «1|2»)"),
    "udf_text": of_udf("def f(x):\n    return f'{x:«03|04»}'", returns="string"),
    "udf_import": {"NAME.py": of_udf("def f(x):\n    import sys\n    sys.path.insert(0, FOLDER)\n    from NAME_h import n\n    return x + n".replace("FOLDER", "P") ).replace("\ndef f", "\nP = str(Path('defs').resolve())\ndef f", 1)
                   if False else of_udf("P = str(Path('defs').resolve())\ndef f(x):\n    import sys\n    sys.path.insert(0, P)\n    from NAME_h import n\n    return x + n"),
                   "NAME_h.py": "n = «1|2»\n"},
    "udf_large": of_udf("N = ['%09d' % n for n in range(200000)] + ['«1|2»']\ndef f(x):\n    return int(N[-1])"),
    "udf_broadcast": of_udf("N = spark.sparkContext.broadcast([«1|2»])\ndef f(x):\n    return x + N.value[0]"),
    "udf_conditional_import": of_udf("def f(x):\n    import «math|cmath» as m\n    return int(abs(m.sqrt(x)))"),
    "pandas_udf": view("return spark.range(4).select(f('id').alias('x'))",
                       "import pandas as pd\n@sf.pandas_udf('long')\ndef f(x: pd.Series) -> pd.Series:\n    return x + «1|2»"),
    "pandas_aggregate": view("return spark.range(4).groupBy((sf.col('id') % 2).alias('g')).agg(f('id').alias('x'))",
                             "import pandas as pd\n@sf.pandas_udf('long')\ndef f(x: pd.Series) -> int:\n    return int(x.sum()) + «1|2»"),
    "arrow_udf": view("return spark.range(4).select(sf.udf(lambda x: x + «1|2», 'long', useArrow=True)('id').alias('x'))"),
    "map_in_pandas": view("return spark.range(4).mapInPandas(f, 'id long')",
                          "def f(frames):\n    for frame in frames:\n        yield frame + «1|2»"),
    "map_in_arrow": view("return spark.range(4).mapInArrow(f, 'id long')",
                         "def f(batches):\n    for batch in batches:\n        yield batch.slice(«0|1»)"),
    "apply_in_pandas": view("return spark.range(4).groupBy('id').applyInPandas(f, 'id long')",
                            "def f(frame):\n    return frame + «1|2»"),
    "cogroup": view("a = spark.range(4).groupBy('id')\nreturn a.cogroup(a).applyInPandas(f, 'id long')",
                    "def f(left, right):\n    return left + «1|2»"),
    "udtf": view("return f(sf.lit(3))", "@sf.udtf(returnType='n int')\nclass f:\n    def eval(self, n):\n        yield n + «1|2»,"),
    "data_source": view("return spark.read.format('NAME').load()",
                        "from pyspark.sql.datasource import DataSource, DataSourceReader\nclass S(DataSource):\n"
                        "    @classmethod\n    def name(cls):\n        return 'NAME'\n    def schema(self):\n        return 'a int'\n"
                        "    def reader(self, schema):\n        return R()\nclass R(DataSourceReader):\n"
                        "    def read(self, partition):\n        yield «1|2»,\nspark.dataSource.register(S)"),
    "udf_of_dict": view("return spark.range(4).select(F['a']('id').alias('x'))","F = {'a': sf.udf(lambda x: x + «1|2», 'long')}"),
    "udf_of_partial": view("return spark.range(4).select(sf.udf(partial(lambda n, x: x + n, «1|2»), 'long')('id').alias('x'))","from functools import partial"),
    "udf_in_class": view("return spark.range(4).select(F.g('id').alias('x'))","class F:\n    g = staticmethod(sf.udf(lambda x: x + «1|2», 'long'))"),
    "udf_decorator": of_udf("import functools\ndef plus(n):\n    def wrap(g):\n        @functools.wraps(g)\n        def h(*a):\n            return g(*a) + n\n        return h\n    return wrap\n@plus(«1|2»)\ndef f(x):\n    return x"),
    "udf_class_decorator": of_udf("class plus:\n    def __init__(self, g):\n        self.g = g\n    def __call__(self, x):\n        return self.g(x) + «1|2»\n@plus\ndef f(x):\n    return x"),
    "udf_metaclass": of_udf("class M(type):\n    def n(cls):\n        return «1|2»\nclass A(metaclass=M):\n    pass\ndef f(x):\n    return x + A.n()"),
    "udf_descriptor": of_udf("class D:\n    def __get__(self, o, t):\n        return «1|2»\nclass A:\n    n = D()\ndef f(x):\n    return x + A().n"),
    "udf_namespace": of_udf("from types import SimpleNamespace\nN = SimpleNamespace(a=«1|2»)\ndef f(x):\n    return x + N.a"),
    "udf_defaultdict": of_udf("from collections import defaultdict\nN = defaultdict(lambda: «1|2»)\ndef f(x):\n    return x + N['a']"),
    "udf_itemgetter": of_udf("from operator import itemgetter\nG = itemgetter(«0|1»)\ndef f(x):\n    return G((x, x + 1))"),
    "udf_slice": of_udf("S = slice(«1|2», None)\ndef f(x):\n    return sum([1, 2, 3][S]) + x"),
    "udf_path": of_udf("S = Path('/data/«1|2»')\ndef f(x):\n    return len(S.parts) + int(S.name)"),
    "udf_subclass_of_list": of_udf("class L(list):\n    def total(self):\n        return sum(self) + «1|2»\nN = L([1])\ndef f(x):\n    return N.total() + x"),
    "udf_str_subclass": of_udf("class S(str):\n    pass\nN = S('«1|2»')\ndef f(x):\n    return int(N) + x"),
    "udf_code_of_exec": view("names = {}\nexec('def f(x):\\n    return x + «1|2»', names)\nreturn spark.range(4).select(sf.udf(names['f'], 'long')('id').alias('x'))"),
    "udf_nonlocal": of_udf("def make():\n    n = «1|2»\n    def g():\n        nonlocal n\n        n += 0\n        return n\n    return g\nG = make()\ndef f(x):\n    return x + G()"),
    "udf_numpy_structured": of_udf("import numpy as np\nN = np.array([(1, «2|3»)], dtype=[('a', 'i4'), ('b', 'i4')])\ndef f(x):\n    return int(x + N['b'][0])"),
    "udf_arrow_table": of_udf("import pyarrow as pa\nN = pa.table({'a': [«1|2»]})\ndef f(x):\n    return x + N['a'][0].as_py()"),
    "udf_pickle_by_reduce": of_udf("class R:\n    def __init__(self, n):\n        self.n = n\n    def __reduce__(self):\n        return (R, (self.n,))\nN = R(«1|2»)\ndef f(x):\n    return x + N.n"),
    "pandas_iter": view("return spark.range(4).select(f('id').alias('x'))", "import pandas as pd\nfrom typing import Iterator\n@sf.pandas_udf('long')\ndef f(xs: Iterator[pd.Series]) -> Iterator[pd.Series]:\n    for x in xs:\n        yield x + «1|2»"),
    "pandas_window": view("w = Window.partitionBy()\nreturn spark.range(4).select(f('id').over(w).alias('x'))", "import pandas as pd\n@sf.pandas_udf('long')\ndef f(x: pd.Series) -> int:\n    return int(x.sum()) + «1|2»"),
    "apply_in_arrow": view("return spark.range(4).groupBy('id').applyInArrow(f, 'id long')", "def f(t):\n    return t.slice(«0|1»)"),
    "udtf_arrow": view("return f(sf.lit(3))", "@sf.udtf(returnType='n int', useArrow=True)\nclass f:\n    def eval(self, n):\n        yield n + «1|2»,"),
    "udtf_analyze": view("return f(sf.lit(3))", "from pyspark.sql.udtf import AnalyzeResult\n@sf.udtf\nclass f:\n    @staticmethod\n    def analyze(n):\n        return AnalyzeResult(schema=st.StructType([st.StructField('n', st.IntegerType())]))\n    def eval(self, n):\n        yield n + «1|2»,"),
    "udtf_terminate": view("return f(sf.lit(3))", "@sf.udtf(returnType='n int')\nclass f:\n    def eval(self, n):\n        pass\n    def terminate(self):\n        yield «1|2»,"),
    "udtf_helper": view("return f(sf.lit(3))", "def g(n):\n    return n + «1|2»\n@sf.udtf(returnType='n int')\nclass f:\n    def eval(self, n):\n        yield g(n),"),
    "data_source_helper": view("return spark.read.format('NAME').load()",
                        "from pyspark.sql.datasource import DataSource, DataSourceReader\ndef g():\n    return «1|2»\nclass S(DataSource):\n"
                        "    @classmethod\n    def name(cls):\n        return 'NAME'\n    def schema(self):\n        return 'a int'\n"
                        "    def reader(self, schema):\n        return R()\nclass R(DataSourceReader):\n"
                        "    def read(self, partition):\n        yield g(),\nspark.dataSource.register(S)"),
    "data_source_option": view("return spark.read.format('NAME').option('n', «1|2»).load()",
                        "from pyspark.sql.datasource import DataSource, DataSourceReader\nclass S(DataSource):\n"
                        "    @classmethod\n    def name(cls):\n        return 'NAME'\n    def schema(self):\n        return 'a int'\n"
                        "    def reader(self, schema):\n        return R(self.options)\nclass R(DataSourceReader):\n"
                        "    def __init__(self, o):\n        self.o = o\n    def read(self, partition):\n        yield int(self.o['n']),\nspark.dataSource.register(S)"),
    "data_source_partitions": view("return spark.read.format('NAME').load()",
                        "from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition\nclass S(DataSource):\n"
                        "    @classmethod\n    def name(cls):\n        return 'NAME'\n    def schema(self):\n        return 'a int'\n"
                        "    def reader(self, schema):\n        return R()\nclass R(DataSourceReader):\n"
                        "    def partitions(self):\n        return [InputPartition(i) for i in range(«1|2»)]\n    def read(self, partition):\n        yield 1,\nspark.dataSource.register(S)"),
    "dict_order": of_udf("N = {«'a': 1, 'b': 2|'b': 2, 'a': 1»}\ndef f(x):\n    return [*N.values()][0]"),
    "udf_closure_of_udf": view("def make(n):\n    @sf.udf('long')\n    def g(x):\n        return x + n\n    return g\nreturn spark.range(4).select(make(«1|2»)('id').alias('x'))"),
    "udf_deterministic": view("return spark.range(4).select(F('id').alias('x'))", "F = sf.udf(lambda x: x, 'long')«|.asNondeterministic()»"),
    "transform": view("return spark.range(4).transform(f)", "def f(rows):\n    return rows.where('id > «1|2»')"),
}  # fmt: skip

INPUTS: dict[str, Case] = {
    # Another input, or one that is compared.
    "csv_option": {"NAME.py": view("return spark.read.option('sep', '«,|;»').csv(str(Path('NAME.csv').resolve()))"), "NAME.csv": "1,2;3\n"},
    "csv_schema": {"NAME.py": view("return spark.read.schema('«a int, b int|b int, a int»').csv(str(Path('NAME.csv').resolve())).select('a')"),
                   "NAME.csv": "1,2\n"},
    "csv_path": {"NAME.py": view("return spark.read.csv(str(Path('NAME_«1|2».csv').resolve()))"), "NAME_1.csv": "1\n", "NAME_2.csv": "2\n"},
}  # fmt: skip

SAME: dict[str, Case] = {
    # How it is written.
    "comment": view("«|# why\n»return spark.range(3)"),
    "docstring": view("«|'''Why.'''\n»return spark.range(3)"),
    "blank_lines": "«|\n\n\n»" + view("return spark.range(3)"),
    "local_name": view("«a|b» = 3\nreturn spark.range(«a|b»)"),
    "layout": view("return spark.range(«3|\n    3,\n»)"),
    "print": view("«|print('x')\n»return spark.range(3)"),
    "function_name": "@dp.materialized_view(name='NAME')\ndef «view|rows»():\n    return spark.range(3)\n",
    "helper_moved": {"NAME.py": view("return rows(spark)", "«from NAME_h|from NAME_g» import rows"),
                     "NAME_h.py": "def rows(spark):\n    return spark.range(3)\n",
                     "NAME_g.py": "def rows(spark):\n    return spark.range(3)\n"},
    "helper_inlined": view("return «rows()|spark.range(3)»", "def rows():\n    return spark.range(3)"),
    "helper_beside": {"NAME.py": view("return rows(spark)", "from NAME_h import rows"),
                      "NAME_h.py": "def rows(spark):\n    return spark.range(3)\ndef other():\n    return «1|2»\n"},
    "constant": expression("sf.lit(«6|2 * 3»)"),
    "constant_of_environment": expression("sf.lit(«'same'|os.environ['SAME']»)"),
    "file_for_text": {"NAME.py": view("return spark.sql(«'SELECT 1 AS x'|Path('NAME.txt').read_text()»)"),
                      "NAME.txt": "SELECT 1 AS x"},
    "formatted_text": view("return spark.sql(«'SELECT 1 AS x'|f'SELECT {1} AS x'»)"),
    "sql_args": view("return spark.sql(«'SELECT 1 AS x'|'SELECT :v AS x', args={'v': 1}»)"),
    "sql_comment": sql("SELECT «|/* why */ »id FROM range(3)"),
    "sql_layout": sql("«SELECT id FROM|select\n  id\nfrom» range(3)"),
    "sql_file_moved": {"«NAME|NAME_2».sql": "CREATE MATERIALIZED VIEW NAME AS SELECT id FROM range(3);"},
    "table_alias": sql("SELECT «a|b».id FROM range(3) AS «a|b»"),
    "inner_alias": sql("SELECT x + 1 AS y FROM (SELECT id AS x FROM range(3))".replace("x", "«p|q»")),
    "subquery_layer": sql("SELECT id FROM «range(3)|(SELECT * FROM range(3))»"),
    "star": sql("SELECT «*|id» FROM range(3)"),
    "cte_name": sql("WITH «a|b» AS (SELECT id FROM range(3)) SELECT count(*) AS n FROM «a|b», «a|b» AS c"),
    "lambda_name": sql("SELECT transform(array(1, 2), «a -> a|b -> b» + 1) AS x"),
    "synonym": sql("SELECT «nvl|coalesce»(id, 1) AS x FROM range(3)"),
    "filter_or_where": view("return spark.range(3).«filter|where»('id > 1')"),
    "column_or_text": view("return spark.range(3).where(«'id > 1'|sf.col('id') > 1»)"),
    "sql_or_frame": view("return «spark.sql('SELECT id + 1 AS x FROM range(3) WHERE id > 1')|"
                         "spark.range(3).where('id > 1').select((sf.col('id') + 1).alias('x'))»"),
    "select_star": view("return spark.range(3)«|.select('*')»"),
    "alias": view("return spark.range(3)«|.alias('t')»"),
    "hint": sql("SELECT «|/*+ BROADCAST(r) */ »l.id FROM range(3) l JOIN range(3) r ON l.id = r.id"),
    "cached": view("return spark.range(3)"),
    "comment_of_view": {"NAME.sql": "CREATE MATERIALIZED VIEW NAME «|COMMENT 'why' »AS SELECT id FROM range(3);"},
    "policy": {"NAME.sql": "CREATE MATERIALIZED VIEW NAME «|TBLPROPERTIES ('pipelines.x' = 'y') »AS SELECT id FROM range(3);"},
    "temporary_view": {"NAME.sql": "«|CREATE TEMPORARY VIEW NAME_t AS SELECT id FROM range(3);»"
                       "CREATE MATERIALIZED VIEW NAME AS SELECT count(id) AS n FROM «(SELECT id FROM range(3))|NAME_t»;"},
    "temporary_view_name": {"NAME.sql": "CREATE TEMPORARY VIEW NAME_«t|u» AS SELECT id FROM range(3);"
                            "CREATE MATERIALIZED VIEW NAME AS SELECT count(*) AS n FROM NAME_«t|u»;"},
    "frame_of_import": view("return «spark.range(3)|BASE»", "BASE = spark.range(3)"),
    "row_order": view("return spark.createDataFrame([«(1,), (2,)|(2,), (1,)»], 'a int')"),
    "row_kinds": view("return spark.createDataFrame([«(1, 'a')|{'a': 1, 'b': 'a'}»], 'a int, b string')"),
    "isin": expression("sf.col('id').isin(«1, 2|2, 1»)"),
    "loop_or_not": "«|for n in (3,):\n    »@dp.materialized_view(name='NAME')\n«|    »def view():\n«|    »    return spark.range(3)\n",
    "annotations": view("return rows(3)", "def rows(n«|: int»)«| -> object»:\n    return spark.range(n)"),
    "environment_beside": expression("sf.lit(len(os.environ['NAME']))"),
    "file_beside": {"NAME.py": view("Path('NAME.txt').read_text()\nreturn spark.range(3)"), "NAME.txt": "«1|2»"},
    # What is another value each time.
    "now": expression("sf.lit(datetime.now())", "from datetime import datetime"),
    "uuid": expression("sf.lit(str(uuid4()))", "from uuid import uuid4"),
    "unseeded": expression("sf.rand()"),
    "unseeded_sql": sql("SELECT rand() AS x, uuid() AS y, randn() AS z, shuffle(array(1, 2)) AS s FROM range(3)"),
    "unseeded_sample": view("return spark.range(3).sample(0.5)"),
    "unseeded_table_sample": sql("SELECT id FROM (SELECT * FROM range(9)) TABLESAMPLE (50 PERCENT)"),
    "current_time": sql("SELECT current_timestamp() AS a, current_date() AS b, now() AS c"),
    "unstable_below": {
        "NAME.py": "from datetime import datetime\n@dp.temporary_view(name='NAME_t')\ndef t():\n"
                   "    return spark.range(2).select(sf.lit(datetime.now()).alias('a'))\n",
        "NAME.sql": "CREATE MATERIALIZED VIEW NAME AS SELECT count(a) AS n FROM NAME_t;"},
    "temporary_folder": view("return spark.createDataFrame([(len(TMP),)], 'a int')", "import tempfile\nTMP = tempfile.gettempdir()"),
    # The code that Python runs.
    "udf": of_udf("def f(x):\n    return x + 1"),
    "udf_comment": of_udf("def f(x):\n    «|# why\n    »return x + 1"),
    "udf_docstring": of_udf("def f(x):\n    «|'''Why.'''\n    »return x + 1"),
    "udf_local_name": of_udf("def f(x):\n    «a|b» = x + 1\n    return «a|b»"),
    "udf_layout": of_udf("def f(x):\n    return «x + 1|(\n        x\n        + 1\n    )»"),
    "udf_name": of_udf("def «f|g»(x):\n    return x + 1", name="«f|g»"),
    "udf_lines": of_udf("«|\n\n\n»def f(x):\n    for y in range(3):\n        x += y\n    return x"),
    "udf_folded": of_udf("def f(x):\n    return x + «3600|60 * 60»"),
    "udf_annotations": of_udf("def g(x«|: int»)«| -> int»:\n    return x + 1\ndef f(x):\n    return g(x)"),
    "udf_moved": {"NAME.py": of_udf("«def f(x):\n    return x + 1|from NAME_h import f»"),
                  "NAME_h.py": "def f(x):\n    return x + 1\n"},
    "udf_helper_moved": {"NAME.py": of_udf("from NAME_«h|g» import g\ndef f(x):\n    return g(x)"),
                         "NAME_h.py": "def g(x):\n    return x + 1\n", "NAME_g.py": "def g(x):\n    return x + 1\n"},
    "udf_module_beside": {"NAME.py": of_udf("import NAME_h\ndef f(x):\n    return NAME_h.g(x)"),
                          "NAME_h.py": "def g(x):\n    return x + 1\ndef other():\n    return «1|2»\nN = «1|2»\n"},
    "udf_unused_import": of_udf("«|import math\n»def f(x):\n    return x + 1"),
    "udf_unused_global": of_udf("N = «1|2»\ndef f(x):\n    return x + 1"),
    "udf_set_order": of_udf("N = {«'a', 'b', 'c'|'c', 'b', 'a'»}\ndef f(x):\n    return int(str(x) in N)"),
    "udf_class_comment": of_udf("class F:\n    «|'''Why.'''\n    »def __call__(self, x):\n        return x + 1\nf = F()"),
    "udf_dataclass": of_udf("from dataclasses import dataclass\n«|# why\n»@dataclass\nclass D:\n    n: int = 1\ndef f(x):\n    return x + D().n"),
    "udf_enum": of_udf("from enum import Enum\nclass E(Enum):\n    «|# why\n    »A = 1\ndef f(x):\n    return x + E.A.value"),
    "udf_numpy": of_udf("import numpy as np\n«|# why\n»N = np.array([1, 2])\ndef f(x):\n    return int(x + N.sum())"),
    "udf_imported": {"NAME.py": of_udf("P = str(Path('defs').resolve())\ndef f(x):\n    import sys\n    sys.path.insert(0, P)\n    from NAME_h import n\n    return x + n"),
                     "NAME_h.py": "«|# why\n»n = 1\n"},
    "pandas_udf": view("return spark.range(4).select(f('id').alias('x'))",
                       "import pandas as pd\n@sf.pandas_udf('long')\ndef f(x: pd.Series) -> pd.Series:\n    «|# why\n    »return x + 1"),
    "map_in_pandas": view("return spark.range(4).mapInPandas(f, 'id long')",
                          "def f(frames):\n    for «a|b» in frames:\n        yield «a|b» + 1"),
    "udtf": view("return f(sf.lit(3))", "@sf.udtf(returnType='n int')\nclass f:\n    «|# why\n    »def eval(self, n):\n        yield n + 1,"),
    # What another process, another clone and another user have otherwise.
    "set_to_list": of_udf("N = [*{'a', 'b', 'c', 'd', 'e'}]\ndef f(x):\n    return len(N) + x"),
    "set_to_dict": of_udf("N = {k: 1 for k in {'a', 'b', 'c', 'd', 'e'}}\ndef f(x):\n    return len(N) + x"),
    "set_in_text": view("names = {'a', 'b', 'c', 'd', 'e'}\nreturn spark.sql('SELECT id FROM range(3) WHERE CAST(id AS STRING) IN (' + ','.join(repr(n) for n in names) + ')')"),
    "set_of_columns": view("return spark.range(2).select(*[sf.lit(1).alias(c) for c in {'a', 'b', 'c', 'd', 'e'}])"),
    "set_isin": view("return spark.range(2).where(sf.col('id').cast('string').isin({'a', 'b', 'c', 'd', 'e'}))"),
    "set_constant": of_udf("def f(x):\n    return int(str(x) in {'a', 'b', 'c', 'd', 'e'})"),
    "set_rows": view("return spark.createDataFrame([(x,) for x in {'a', 'b', 'c', 'd'}], 'a string')"),
    "set_of_frozensets": of_udf("N = {frozenset({'a', 'b'}), frozenset({'c', 'd'})}\ndef f(x):\n    return len(N) + x"),
    "set_of_objects": of_udf("from dataclasses import dataclass\n@dataclass(frozen=True)\nclass D:\n    n: str\nN = {D('a'), D('b'), D('c')}\ndef f(x):\n    return len(N) + x"),
    "file_of_module": of_udf("HERE = Path(__file__).parent\ndef f(x):\n    return x + len(str(HERE)) * 0"),
    "file_name": of_udf("NAME_ = __file__\ndef f(x):\n    return x + len(NAME_) * 0"),
    "cwd": of_udf("NAME_ = os.getcwd()\ndef f(x):\n    return x + len(NAME_) * 0"),
    "folder_literal": view("return spark.range(2).select((sf.length(sf.lit(str(Path(__file__).parent))) * 0).alias('x'))"),
    "csv_of_module": {"NAME.py": view("return spark.read.schema('a int').csv(str(Path(__file__).parent.parent / 'NAME.csv'))"), "NAME.csv": "1\n"},
    "unreadable": of_udf("class R:\n    def __init__(self):\n        self.n = 1\n    def __setstate__(self, state):\n        import __main__\n"
                         "        if not __main__.__file__.endswith('daemon.py'):\n            raise RuntimeError('only for workers')\n"
                         "        self.n = state['n']\nN = R()\ndef f(x):\n    return x + N.n"),
    "dataclass_decorated": of_udf("from dataclasses import dataclass, field\n@dataclass(order=True, frozen=True)\nclass D:\n    n: int = 1\n    m: list = field(default_factory=list)\nN = D()\ndef f(x):\n    return x + N.n"),
    "abstract": of_udf("from abc import ABC, abstractmethod\nclass A(ABC):\n    @abstractmethod\n    def g(self): ...\nclass B(A):\n    def g(self):\n        return 1\nN = B()\ndef f(x):\n    return x + N.g()"),
    "protocol": of_udf("from typing import Protocol, Generic, TypeVar\nT = TypeVar('T')\nclass A(Protocol):\n    def g(self): ...\nclass B(Generic[T]):\n    def g(self):\n        return 1\nN: A = B[int]()\ndef f(x):\n    return x + N.g()"),
    "pandas_frame": of_udf("import pandas as pd\nN = pd.DataFrame({'a': [1], 'b': ['x']}).set_index('a')\ndef f(x):\n    return x + len(N)"),
    "random_object": of_udf("import random\nG = random.Random(1)\ndef f(x):\n    return int(x + G.random())"),
    "lambda_default_set": of_udf("def f(x, s=frozenset({'a', 'b', 'c'})):\n    return x + len(s)"),
    "udtf_set": view("return f(sf.lit(3))", "N = {'a', 'b', 'c'}\n@sf.udtf(returnType='n int')\nclass f:\n    def eval(self, n):\n        yield len(N),"),
    "udtf_analyze": view("return f(sf.lit(3))", "from pyspark.sql.udtf import AnalyzeResult\n@sf.udtf\nclass f:\n    @staticmethod\n    def analyze(n):\n        return AnalyzeResult(schema=st.StructType([st.StructField('n', st.IntegerType())]))\n    def eval(self, n):\n        yield n + 1,"),
    "now_comment": view("stamp = datetime.now()\n«|# why\n»return spark.range(4).select(sf.udf(lambda x: x + 1 if stamp else 0, 'long')('id').alias('x'))","from datetime import datetime"),
    "data_source": view("return spark.read.format('NAME').load()",
                        "from pyspark.sql.datasource import DataSource, DataSourceReader\nclass S(DataSource):\n"
                        "    «|'''Why.'''\n    »@classmethod\n    def name(cls):\n        return 'NAME'\n    def schema(self):\n        return 'a int'\n"
                        "    def reader(self, schema):\n        return R()\nclass R(DataSourceReader):\n"
                        "    def read(self, partition):\n        yield len({'a', 'b'}),\nspark.dataSource.register(S)"),
    "apply_in_pandas": view("return spark.range(4).groupBy('id').applyInPandas(f, 'id long')", "def f(frame):\n    «|# why\n    »return frame"),
}  # fmt: skip

FROM_SETS = ("set_to_list", "set_to_dict", "set_in_text", "set_of_columns")
"""Their queries are the same only where Python has the same seed of hashes."""

FEW = ("sql_file", "import_inside", "udf_module")

_ALTERNATIVES = re.compile(r"«([^«»|]*)\|([^«»]*)»", re.DOTALL)


def files_of(cases: Mapping[str, Case], *, after: bool, prefix: str = "") -> dict[str, str]:
    """The files of all cases together, before or after their change."""
    files: dict[str, str] = {}
    for case, parts in cases.items():
        named = {"NAME.py": parts} if isinstance(parts, str) else parts
        for file, text in named.items():
            file, text = (
                _ALTERNATIVES.sub(r"\2" if after else r"\1", part).replace("NAME", prefix + case)
                for part in (file, text)
            )
            is_definition = file.endswith((".py", ".sql"))
            if file.endswith(".py") and "_h.py" not in file and "_g.py" not in file:
                text = HEADER + text
            files[f"defs/{file}" if is_definition else file] = text
    return files


def environment(*, changes_after: bool, same_after: bool) -> dict[str, str]:
    """Variables with the names of the cases; a definition may look at their length."""
    values = dict.fromkeys(CHANGES, "bb" if changes_after else "aa")
    values |= {f"same_{case}": "bb" if same_after else "aa" for case in SAME}
    return {"SAME": "same", **values}


def set_environment(monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
    """Set the variables of all cases."""
    for name, value in environment(changes_after=after, same_after=after).items():
        monkeypatch.setenv(name, value)
