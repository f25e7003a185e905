-- What the charts are made of. The sink `dashboard` mirrors it in ClickHouse; readers of Delta and Hudi
-- read it at the same checkpoints, over the same files.
CREATE MATERIALIZED VIEW departures
COMMENT 'Departures and minutes of delay by day, hour and airport'
TBLPROPERTIES ('tautochrone.sinks' = 'dashboard', 'tautochrone.publish' = 'delta, hudi')
AS SELECT
  flight_date,
  scheduled_hour,
  origin,
  sum(departed) AS departed,
  coalesce(sum(departure_delay), 0) AS delay_minutes
FROM flights
GROUP BY flight_date, scheduled_hour, origin;
