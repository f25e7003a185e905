-- Ties are broken by the destination's code, so the same flights always give the same ten.
CREATE MATERIALIZED VIEW worst_routes
COMMENT 'The ten routes of each airport that arrive latest, among those flown ten times or more'
AS SELECT
  r.origin,
  r.place,
  r.dest,
  p.name AS destination,
  r.arrived,
  r.arrival_delay_minutes,
  r.mean_arrival_delay
FROM (
  SELECT
    *,
    row_number() OVER (PARTITION BY origin ORDER BY mean_arrival_delay DESC, dest) AS place
  FROM (
    SELECT
      origin,
      dest,
      count(arrival_delay) AS arrived,
      sum(arrival_delay) AS arrival_delay_minutes,
      CAST(CAST(sum(arrival_delay) AS DECIMAL(18, 4)) / count(arrival_delay)
        AS DECIMAL(12, 2)) AS mean_arrival_delay
    FROM flights
    WHERE arrival_delay IS NOT NULL
    GROUP BY origin, dest
    HAVING count(arrival_delay) >= 10
  )
) r
LEFT JOIN airports p ON p.faa = r.dest
WHERE r.place <= 10;
