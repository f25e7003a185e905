-- Reports of one flight, whatever their order, folded into one row. The three counts are 0 or 1;
-- they are counts and not flags so that a report delivered twice would show in every total.
CREATE MATERIALIZED VIEW flights
COMMENT 'One row per flight with what is known about it so far'
AS SELECT
  flight_date,
  carrier,
  flight,
  origin,
  dest,
  scheduled_departure,
  scheduled_hour,
  max(tailnum) AS tailnum,
  max(distance_miles) AS distance_miles,
  count(CASE WHEN kind = 'scheduled' THEN 1 END) AS scheduled,
  count(CASE WHEN kind = 'departed' THEN 1 END) AS departed,
  count(CASE WHEN kind = 'arrived' THEN 1 END) AS arrived,
  max(CASE WHEN kind = 'departed' THEN delay_minutes END) AS departure_delay,
  max(CASE WHEN kind = 'arrived' THEN delay_minutes END) AS arrival_delay,
  max(air_minutes) AS air_minutes
FROM events
GROUP BY flight_date, carrier, flight, origin, dest, scheduled_departure, scheduled_hour;
