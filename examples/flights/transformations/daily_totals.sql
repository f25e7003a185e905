-- Counted straight from the reports, past `flights`: sums over delay_by_carrier_hour or over
-- delay_by_weather give the same numbers only when all tables stand at one instant.
CREATE MATERIALIZED VIEW daily_totals
COMMENT 'Reports and minutes of delay by day and airport'
AS SELECT
  flight_date,
  origin,
  count(*) AS events,
  count(CASE WHEN kind = 'scheduled' THEN 1 END) AS scheduled,
  count(CASE WHEN kind = 'departed' THEN 1 END) AS departed,
  count(CASE WHEN kind = 'arrived' THEN 1 END) AS arrived,
  coalesce(sum(CASE WHEN kind = 'departed' THEN delay_minutes END), 0) AS departure_delay_minutes,
  coalesce(sum(CASE WHEN kind = 'arrived' THEN delay_minutes END), 0) AS arrival_delay_minutes
FROM events
GROUP BY flight_date, origin;
