-- `scheduled_hour` is the hour on the timetable, local time of New York.
CREATE MATERIALIZED VIEW delay_by_carrier_hour
COMMENT 'Delay at departure and arrival by day, hour and carrier'
AS SELECT
  d.flight_date,
  d.scheduled_hour,
  d.carrier,
  a.name AS airline,
  d.scheduled,
  d.departed,
  d.arrived,
  d.departure_delay_minutes,
  d.arrival_delay_minutes,
  CAST(CAST(d.departure_delay_minutes AS DECIMAL(18, 4)) / nullif(d.departures_with_delay, 0)
    AS DECIMAL(12, 2)) AS mean_departure_delay,
  CAST(CAST(d.arrival_delay_minutes AS DECIMAL(18, 4)) / nullif(d.arrivals_with_delay, 0)
    AS DECIMAL(12, 2)) AS mean_arrival_delay
FROM (
  SELECT
    flight_date,
    scheduled_hour,
    carrier,
    sum(scheduled) AS scheduled,
    sum(departed) AS departed,
    sum(arrived) AS arrived,
    coalesce(sum(departure_delay), 0) AS departure_delay_minutes,
    coalesce(sum(arrival_delay), 0) AS arrival_delay_minutes,
    count(departure_delay) AS departures_with_delay,
    count(arrival_delay) AS arrivals_with_delay
  FROM flights
  GROUP BY flight_date, scheduled_hour, carrier
) d
LEFT JOIN airlines a ON a.carrier = d.carrier;
