-- The data has only departures from New York, so the leg before is the aircraft's last departure
-- from there; a day later the delay has been slept off. The flight's whole key breaks ties.
CREATE TEMPORARY VIEW rotations AS
SELECT
  tailnum,
  scheduled_departure,
  departure_delay,
  lag(scheduled_departure) OVER aircraft AS previous_departure,
  lag(arrival_delay) OVER aircraft AS previous_arrival_delay
FROM flights
WHERE tailnum IS NOT NULL AND departed > 0
WINDOW aircraft AS (
  PARTITION BY tailnum ORDER BY scheduled_departure, flight_date, carrier, flight, origin
);

CREATE MATERIALIZED VIEW late_aircraft
COMMENT 'Aircraft whose late arrival made their next departure late'
AS SELECT
  k.tailnum,
  p.manufacturer,
  p.model,
  p.year AS built,
  k.knock_ons,
  k.inherited_minutes,
  k.worst_departure_delay,
  k.latest
FROM (
  SELECT
    tailnum,
    count(*) AS knock_ons,
    sum(least(previous_arrival_delay, departure_delay)) AS inherited_minutes,
    max(departure_delay) AS worst_departure_delay,
    max(scheduled_departure) AS latest
  FROM rotations
  WHERE previous_arrival_delay >= 15
    AND departure_delay >= 15
    AND scheduled_departure <= previous_departure + INTERVAL 24 HOURS
  GROUP BY tailnum
) k
LEFT JOIN planes p ON p.tailnum = k.tailnum;
