-- One row per airport and hour, in the units of the source (°F, miles an hour, inches, miles).
-- The anemometer at Newark once claimed a thousand miles an hour: such a speed is no speed.
CREATE STREAMING TABLE weather
COMMENT 'Hourly weather at the origin airports'
AS SELECT
  origin,
  observed_at,
  temp,
  precip,
  visib,
  CASE WHEN wind_speed <= 200 THEN wind_speed END AS wind_speed,
  pressure
FROM STREAM weather_reports;
