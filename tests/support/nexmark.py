"""Nexmark: events of an auction house, and its queries as plain SQL over whole tables.

Of the 24 queries all but q12 (processing time) are here. Windows are arithmetic on timestamps: q7 and q8
round down to ten seconds, q5 puts each bid into its five hops, q11 finds the gaps between a bidder's bids.
Every ROW_NUMBER has a total order, which the published queries do not have. q14 calls a Python function.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from random import Random
from typing import Any

__all__ = ["PYTHON", "SCHEMAS", "Events", "project", "queries"]

SCHEMAS: Mapping[str, str] = {
    "person": "id LONG, name STRING, email STRING, city STRING, state STRING, date_time TIMESTAMP",
    "auction": "id LONG, item STRING, initial_bid LONG, reserve LONG, date_time TIMESTAMP, "
    "expires TIMESTAMP, seller LONG, category LONG",
    "bid": "auction LONG, bidder LONG, price LONG, channel STRING, url STRING, date_time TIMESTAMP, "
    "extra STRING",
    "side": "key LONG, value STRING",
}
"""Columns of the tables; `side` is q13's side input."""

_CYCLE = (1, 3, 46)
_FIRST_PERSON, _FIRST_AUCTION = 1000, 1190
_START = datetime(2024, 5, 1, 7, 55, 0)  # noqa: DTZ001 (written as text, read as the session's zone)
_CITIES = (("Portland", "OR"), ("Boise", "ID"), ("Oakland", "CA"), ("Reno", "NV"), ("Phoenix", "AZ"))
_CHANNELS = ("Apple", "Google", "Facebook", "Baidu", "channel-77")


class Events:
    """An endless, deterministic sequence of events: of 50 one person, three auctions, 46 bids."""

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(seed)
        self._number = 0

    def next(self, count: int) -> dict[str, list[dict[str, Any]]]:
        """The next `count` events by table. Timestamps are text."""
        rows: dict[str, list[dict[str, Any]]] = {"person": [], "auction": [], "bid": []}
        for _ in range(count):
            cycle, position = divmod(self._number, sum(_CYCLE))
            # A third of a second passes between events, and half a day after every 200.
            jumps = self._number // 200
            event_time = _START + timedelta(hours=11 * jumps, milliseconds=333 * self._number)
            if position < _CYCLE[0]:
                rows["person"].append(self._person(cycle, event_time))
            elif position < _CYCLE[0] + _CYCLE[1]:
                rows["auction"].append(self._auction(3 * cycle + position - 1, cycle, event_time))
            else:
                rows["bid"].append(self._bid(cycle, event_time))
            self._number += 1
        return rows

    @staticmethod
    def side() -> list[dict[str, Any]]:
        """Rows of the side input."""
        return [{"key": key, "value": f"v{key}"} for key in range(1050, 1250, 2)]

    def _person(self, number: int, event_time: datetime) -> dict[str, Any]:
        city, state = self._random.choice(_CITIES)
        person_id = _FIRST_PERSON + number
        return {
            "id": person_id,
            "name": f"person {person_id}",
            "email": f"{person_id}@example.org",
            "city": city,
            "state": state,
            "date_time": _text(event_time),
        }

    def _auction(self, number: int, cycle: int, event_time: datetime) -> dict[str, Any]:
        initial_bid = self._random.randint(1, 500)
        return {
            "id": _FIRST_AUCTION + number,
            "item": f"item {number}",
            "initial_bid": initial_bid,
            "reserve": initial_bid * 3,
            "date_time": _text(event_time),
            "expires": _text(event_time + timedelta(seconds=self._random.randint(2, 60))),
            "seller": self._random_person(cycle),
            "category": self._random.randint(10, 14),
        }

    def _bid(self, cycle: int, event_time: datetime) -> dict[str, Any]:
        newest_auction = 3 * cycle + 2
        channel = self._random.choice(_CHANNELS)
        query = "" if channel == "Baidu" else f"&channel_id={self._random.randint(1, 9)}"
        # Bids prefer new auctions.
        auctions_back = min(int(self._random.expovariate(0.4)), newest_auction)
        return {
            "auction": _FIRST_AUCTION + newest_auction - auctions_back,
            "bidder": self._random_person(cycle),
            "price": round(100 * 10 ** (self._random.random() * 6)),
            "channel": channel,
            "url": f"https://www.nexmark.com/{self._random.choice('abc')}/{self._random.choice('xy')}/i?q=1{query}",
            "date_time": _text(event_time),
            "extra": "".join(self._random.choices("abcd", k=12)),
        }

    def _random_person(self, cycle: int) -> int:
        return _FIRST_PERSON + self._random.randint(max(0, cycle - 8), cycle)


def _text(event_time: datetime) -> str:
    return event_time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


_TEN_SECONDS = "timestamp_seconds(10 * floor(unix_seconds(date_time) / 10))"
_RANKS = """count(*) FILTER (WHERE price < 10000) AS rank1_bids,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
  count(*) FILTER (WHERE price >= 1000000) AS rank3_bids"""
_DISTINCT = ",\n  ".join(
    f"count(DISTINCT {column}){condition} AS {name}_{column}s"
    for column in ("bidder", "auction")
    for name, condition in (
        ("total", ""),
        ("rank1", " FILTER (WHERE price < 10000)"),
        ("rank2", " FILTER (WHERE price >= 10000 AND price < 1000000)"),
        ("rank3", " FILTER (WHERE price >= 1000000)"),
    )
)
_BID = "auction, bidder, price, channel, url, date_time, extra"
_TIES = "b.date_time, b.bidder, b.channel, b.url, b.extra"

_QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM @bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM @bid",
    "q2": "SELECT auction, price FROM @bid WHERE mod(auction, 123) = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM @auction a JOIN @person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": """SELECT category, avg(final) AS average FROM (
  SELECT max(b.price) AS final, a.category FROM @auction a JOIN @bid b ON a.id = b.auction
  WHERE b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category) GROUP BY category""",
    "q5": """WITH hops AS (
  SELECT auction, hop FROM @bid
  LATERAL VIEW explode(sequence(2 * floor(unix_seconds(date_time) / 2) - 8,
    2 * floor(unix_seconds(date_time) / 2), 2L)) t AS hop),
counts AS (SELECT auction, hop, count(*) AS num FROM hops GROUP BY auction, hop)
SELECT c.auction, c.num, timestamp_seconds(c.hop) AS starts FROM counts c
JOIN (SELECT hop, max(num) AS most FROM counts GROUP BY hop) m ON c.hop = m.hop AND c.num >= m.most""",
    "q6": f"""SELECT seller, id, avg(final) OVER (PARTITION BY seller ORDER BY date_time, id
  ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS average FROM (
  SELECT a.seller, a.id, b.price AS final, b.date_time, row_number() OVER (PARTITION BY a.id, a.seller
    ORDER BY b.price DESC, {_TIES}) AS place
  FROM @auction a JOIN @bid b ON a.id = b.auction
  WHERE b.date_time BETWEEN a.date_time AND a.expires) WHERE place = 1""",
    "q7": f"""SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
FROM (SELECT *, {_TEN_SECONDS} AS starts FROM @bid) b
JOIN (SELECT max(price) AS most, {_TEN_SECONDS} AS starts FROM @bid GROUP BY 2) m
  ON b.price = m.most AND b.starts = m.starts""",
    "q8": f"""SELECT p.id, p.name, p.starts FROM (
  SELECT id, name, {_TEN_SECONDS} AS starts FROM @person GROUP BY 1, 2, 3) p
JOIN (SELECT seller, {_TEN_SECONDS} AS starts FROM @auction GROUP BY 1, 2) a
  ON p.id = a.seller AND p.starts = a.starts""",
    "q9": f"""SELECT id, item, initial_bid, reserve, opened, expires, seller, category, bidder, price,
  date_time FROM (
  SELECT a.id, a.item, a.initial_bid, a.reserve, a.date_time AS opened, a.expires, a.seller, a.category,
    b.bidder, b.price, b.date_time,
    row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, {_TIES}, a.seller, a.item) AS place
  FROM @auction a JOIN @bid b ON a.id = b.auction
  WHERE b.date_time BETWEEN a.date_time AND a.expires) WHERE place = 1""",
    "q10": """SELECT auction, bidder, price, date_time, extra, date_format(date_time, 'yyyy-MM-dd') AS dt,
  date_format(date_time, 'HH:mm') AS hm FROM @bid""",
    "q11": """SELECT bidder, count(*) AS bids, min(date_time) AS starts, max(date_time) AS ends FROM (
  SELECT bidder, date_time, sum(CASE WHEN gap IS NULL OR gap > 10 THEN 1 ELSE 0 END)
    OVER (PARTITION BY bidder ORDER BY date_time RANGE UNBOUNDED PRECEDING) AS session FROM (
    SELECT bidder, date_time, unix_millis(date_time) / 1000 - unix_millis(lag(date_time)
      OVER (PARTITION BY bidder ORDER BY date_time)) / 1000 AS gap FROM @bid)) GROUP BY bidder, session""",
    "q13": """SELECT b.auction, b.bidder, b.price, b.date_time, s.value
FROM @bid b JOIN @side s ON mod(b.auction, 10000) = s.key""",
    "q15": f"""SELECT date_format(date_time, 'yyyy-MM-dd') AS day, count(*) AS total_bids, {_RANKS},
  {_DISTINCT} FROM @bid GROUP BY 1""",
    "q16": f"""SELECT channel, date_format(date_time, 'yyyy-MM-dd') AS day,
  max(date_format(date_time, 'HH:mm')) AS minute, count(*) AS total_bids, {_RANKS},
  {_DISTINCT} FROM @bid GROUP BY 1, 2""",
    "q17": f"""SELECT auction, date_format(date_time, 'yyyy-MM-dd') AS day, count(*) AS total_bids, {_RANKS},
  min(price) AS low, max(price) AS high, avg(price) AS mean, sum(price) AS total FROM @bid GROUP BY 1, 2""",
    "q18": f"""SELECT {_BID} FROM (SELECT *, row_number() OVER (PARTITION BY bidder, auction
  ORDER BY date_time DESC, price, channel, url, extra) AS place FROM @bid) WHERE place <= 1""",
    "q19": f"""SELECT {_BID}, place FROM (SELECT *, row_number() OVER (PARTITION BY auction
  ORDER BY price DESC, date_time, bidder, channel, url, extra) AS place FROM @bid) WHERE place <= 10""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, a.item, a.initial_bid,
  a.reserve, a.expires, a.seller, a.category
FROM @bid b JOIN @auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": """SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0'
  WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
  ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
FROM @bid WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> ''
  OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
  split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM @bid""",
    "q23": """SELECT b.auction, b.price, p.name, p.state, a.id, a.category, b.date_time
FROM @bid b JOIN @person p ON b.bidder = p.id JOIN @auction a ON a.seller = b.bidder""",
}

PYTHON = """
from pyspark import pipelines as dp
from pyspark.sql import functions as sf

@sf.udf("long")
def count_char(text, char):
    return None if text is None else text.count(char)

@dp.materialized_view(table_properties=@PROPERTIES@)
def q14():
    price = sf.expr("0.908 * price")
    hour = sf.hour("date_time")
    kind = sf.when(hour.between(8, 18), "dayTime").when((hour <= 6) | (hour >= 20), "nightTime")
    return spark.table("@PREFIX@bid").where((price > 1000000) & (price < 50000000)).select(
        "auction", "bidder", price.alias("price"), kind.otherwise("otherTime").alias("bid_time_type"),
        "date_time", "extra", count_char("extra", sf.lit("c")).alias("c_counts"))
"""


def queries(prefix: str = "") -> dict[str, str]:
    """The SQL queries over tables named `prefix` + person, auction, bid, side."""
    return {name: text.replace("@", prefix) for name, text in _QUERIES.items()}


def project(prefix: str = "", policy: str | None = None) -> dict[str, str]:
    """Definition files: all queries as materialized views, q14 in Python."""
    key = "tautochrone.refresh-policy"
    clause = "" if policy is None else f" TBLPROPERTIES ('{key}' = '{policy}')"
    views = [
        f"CREATE MATERIALIZED VIEW {name}{clause} AS\n{query};\n" for name, query in queries(prefix).items()
    ]
    properties = {} if policy is None else {key: policy}
    python = PYTHON.replace("@PROPERTIES@", repr(properties)).replace("@PREFIX@", prefix)
    return {"nexmark.sql": "\n".join(views), "q14.py": python}
