-- The weather in the hour of the timetable's departure. A flight changes its row when the report
-- for its hour comes in after it, or when it is reported again.
CREATE TEMPORARY VIEW flights_in_weather AS
SELECT
  f.origin,
  CASE
    WHEN w.origin IS NULL THEN 'no report'
    WHEN w.precip > 0 AND w.temp <= 32 THEN 'snow or ice'
    WHEN w.precip > 0 THEN 'rain'
    WHEN w.visib < 3 THEN 'fog'
    WHEN w.wind_speed >= 25 THEN 'strong wind'
    ELSE 'fair'
  END AS conditions,
  f.scheduled,
  f.departed,
  f.arrived,
  f.departure_delay,
  f.arrival_delay
FROM flights f
LEFT JOIN weather w
  ON w.origin = f.origin AND w.observed_at = date_trunc('HOUR', f.scheduled_departure);

CREATE MATERIALIZED VIEW delay_by_weather
COMMENT 'Delay by airport of departure and weather'
AS SELECT
  origin,
  conditions,
  sum(scheduled) AS scheduled,
  sum(departed) AS departed,
  sum(arrived) AS arrived,
  sum(scheduled) - sum(departed) AS not_departed,
  coalesce(sum(departure_delay), 0) AS departure_delay_minutes,
  coalesce(sum(arrival_delay), 0) AS arrival_delay_minutes,
  count(CASE WHEN departure_delay >= 60 THEN 1 END) AS departed_an_hour_late
FROM flights_in_weather
GROUP BY origin, conditions;
