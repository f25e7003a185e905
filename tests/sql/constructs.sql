-- name | what it is | worst mode that a refresh may have. The first word of the name is its chapter.

-- linear_filter | projection, filter, CASE, casts | incremental
SELECT id, CASE WHEN x > 5 THEN 'big' WHEN x IS NULL THEN 'none' ELSE g END AS size, CAST(d AS
  DECIMAL(38,4)) AS d FROM src.a WHERE x <> 3 OR x IS NULL;

-- linear_union | UNION ALL | incremental
SELECT id, k, g FROM src.a UNION ALL SELECT id, k, s FROM src.b UNION ALL SELECT id, k, g FROM src.a
  WHERE x > 0;

-- linear_explode | LATERAL VIEW explode | incremental
SELECT k, w, item FROM src.c LATERAL VIEW explode(list) t AS item;

-- linear_posexplode | LATERAL VIEW OUTER posexplode | incremental
SELECT k, place, item FROM src.c LATERAL VIEW OUTER posexplode(list) t AS place, item;

-- linear_lateral | LATERAL subquery | incremental
SELECT c.k, c.w, t.item, t.twice FROM src.c, LATERAL (SELECT explode(list) AS item, c.z * 2 AS twice) t;

-- linear_values | VALUES as a table | incremental
SELECT id, v.name FROM src.a JOIN (VALUES (1, 'one'), (2, 'two'), (3, NULL)) AS v(k, name) ON a.k = v.k;

-- join_inner | inner join | incremental
SELECT a.id, b.id AS bid, a.g, b.s FROM src.a a JOIN src.b b ON a.k = b.k;

-- join_theta | join without equality | incremental
SELECT a.id, b.id AS bid FROM src.a a JOIN src.b b ON a.x < b.y - 10 AND a.k <> b.k;

-- join_cross | cross join | incremental
SELECT a.id, c.w FROM src.a a CROSS JOIN src.c c WHERE a.x > 11;

-- join_self | self join | incremental
SELECT l.id, r.id AS other FROM src.a l JOIN src.a r ON l.k = r.k AND l.id < r.id;

-- join_null_safe | join by `<=>` | incremental
SELECT a.id, b.id AS bid FROM src.a a JOIN src.b b ON a.k <=> b.k AND a.g <=> b.s;

-- join_left | LEFT OUTER JOIN with a residual condition | incremental
SELECT a.id, a.k, b.id AS bid FROM src.a a LEFT JOIN src.b b ON a.k = b.k AND b.y > a.x;

-- join_right | RIGHT OUTER JOIN | incremental
SELECT a.id, b.id AS bid, b.s FROM src.a a RIGHT JOIN src.b b ON a.k = b.k AND a.g = b.s;

-- join_full | FULL OUTER JOIN | incremental
SELECT a.id, b.id AS bid, a.g, b.s FROM src.a a FULL OUTER JOIN src.b b ON a.k = b.k AND a.g = b.s;

-- join_full_nested | FULL OUTER JOINs nested | incremental
SELECT a.id, b.id AS bid, c.w FROM src.a a FULL JOIN src.b b ON a.k = b.y FULL JOIN src.c c ON
  coalesce(a.k, b.k) = c.k;

-- join_left_theta | outer join without equality | incremental
SELECT c.k, c.w, b.id FROM src.c c LEFT JOIN src.b b ON c.z > b.y + 9;

-- join_chain | four joins of three kinds | incremental
SELECT a.id, b.id AS bid, c.w, d.g FROM src.a a JOIN src.b b ON a.k = b.k LEFT JOIN src.c c ON b.y = c.z
  JOIN src.a d ON d.id = b.id;

-- subquery_exists | EXISTS | incremental
SELECT id, g FROM src.a WHERE EXISTS (SELECT 1 FROM src.b WHERE b.k = a.k AND b.y > a.x);

-- subquery_not_exists | NOT EXISTS | incremental
SELECT id, g FROM src.a WHERE NOT EXISTS (SELECT 1 FROM src.b WHERE b.k = a.k AND b.s = a.g);

-- subquery_exists_or | EXISTS under OR | incremental
SELECT id FROM src.a WHERE x > 12 OR EXISTS (SELECT 1 FROM src.b WHERE b.k = a.k) OR NOT EXISTS (SELECT
  1 FROM src.c WHERE c.k = a.k);

-- subquery_exists_alone | EXISTS without correlation | incremental
SELECT id, g FROM src.a WHERE EXISTS (SELECT k, y FROM src.b WHERE y >= 12 AND s = 'p' LIMIT 2);

-- subquery_not_exists_alone | NOT EXISTS without correlation, as a value and under OR | incremental
SELECT id, NOT EXISTS (SELECT 1 FROM src.b GROUP BY k HAVING count(*) > 6) AS few FROM src.a WHERE x > 9 OR
  NOT EXISTS (SELECT 1 FROM src.b WHERE y = 14 UNION ALL SELECT 2 FROM src.c WHERE z = 13);

-- subquery_exists_limited | EXISTS with a LIMIT of its own | incremental
SELECT id FROM src.a WHERE EXISTS (SELECT 1 FROM src.b WHERE b.k = a.k LIMIT 1);

-- subquery_constant | scalar subquery of a constant with LIMIT 1 | incremental
SELECT k, w, coalesce((SELECT 1 FROM src.b WHERE y = 15 LIMIT 1), 0) AS some FROM src.c;

-- subquery_in | IN with NULLs | incremental
SELECT id FROM src.a WHERE k IN (SELECT y FROM src.b WHERE s <> 'q');

-- subquery_not_in | NOT IN with NULLs | incremental
SELECT id FROM src.a WHERE x NOT IN (SELECT y FROM src.b WHERE id % 5 = 0);

-- subquery_not_in_correlated | NOT IN, correlated, with NULLs | incremental
SELECT id FROM src.a WHERE x NOT IN (SELECT y FROM src.b WHERE b.k = a.k);

-- subquery_in_select | IN as a value | incremental
SELECT id, k IN (SELECT k FROM src.c WHERE z > 3) AS there FROM src.a WHERE k IS NOT NULL;

-- subquery_scalar | scalar subquery, uncorrelated | incremental
SELECT id, x, (SELECT max(z) FROM src.c) AS top FROM src.a WHERE x >= (SELECT avg(y) FROM src.b);

-- subquery_scalar_correlated | scalar subquery, correlated | incremental
SELECT id, (SELECT sum(y) FROM src.b WHERE b.k = a.k) AS total FROM src.a;

-- subquery_scalar_count | correlated COUNT, 0 without rows | incremental
SELECT id, (SELECT count(*) FROM src.b WHERE b.k = a.k) AS n FROM src.a WHERE (SELECT count(*) FROM
  src.c WHERE c.k = a.k) < 3;

-- subquery_having | scalar subquery in HAVING | incremental
SELECT k, count(*) AS n FROM src.a GROUP BY k HAVING count(*) >= (SELECT avg(n) FROM (SELECT count(*) AS
  n FROM src.b GROUP BY k));

-- subquery_summed | scalar subquery in an aggregate's argument | incremental
SELECT k, sum(x - (SELECT min(y) FROM src.b)) AS s, count(*) FILTER (WHERE x > (SELECT avg(y) FROM
  src.b)) AS n FROM src.a GROUP BY k;

-- subquery_key | scalar subquery in GROUP BY | incremental
SELECT x > (SELECT avg(y) FROM src.b) AS big, (SELECT max(y) FROM src.b) AS top, count(*) AS n FROM
  src.a GROUP BY x > (SELECT avg(y) FROM src.b), (SELECT max(y) FROM src.b);

-- subquery_share | scalar subquery beside an aggregate | incremental
SELECT k, count(*) / (SELECT count(*) FROM src.a) AS share, max(x) > (SELECT avg(y) FROM src.b) AS big
  FROM src.a GROUP BY k;

-- subquery_distinct | scalar subquery below DISTINCT, ROLLUP | incremental
SELECT k, g, count(DISTINCT x + (SELECT min(z) FROM src.c)) AS n FROM src.a GROUP BY ROLLUP (k, g);

-- subquery_on | scalar subquery in the condition of an outer join | incremental
SELECT a.id, b.s FROM src.a FULL JOIN src.b ON a.k = b.k AND a.x > (SELECT avg(z) FROM src.c);

-- subquery_windowed | scalar subquery in a window function | incremental
SELECT id, rank() OVER (PARTITION BY k ORDER BY x - (SELECT max(y) FROM src.b), id) + (SELECT count(*)
  FROM src.c) AS r FROM src.a;

-- subquery_exploded | scalar subquery in explode | incremental
SELECT id, explode(array(x, (SELECT max(y) FROM src.b))) AS e FROM src.a;

-- subquery_ordered | scalar subquery in ORDER BY … LIMIT | incremental
SELECT id, x FROM src.a ORDER BY x * (SELECT min(y) FROM src.b) DESC, id LIMIT 5;

-- time_filter | now() in WHERE | incremental
SELECT id, day FROM src.a WHERE day < now() AND pmod(timestampdiff(DAY, day, now()), 3) > 0;

-- time_select | now() in SELECT | incremental
SELECT id, now() AS at, timestampdiff(DAY, day, localtimestamp()) AS days FROM src.a;

-- time_group | current_date() in aggregates and GROUP BY | incremental
SELECT pmod(datediff(current_date(), day), 5) AS age, count(*) AS n, sum(CASE WHEN day < current_date()
  THEN x END) AS s FROM src.a GROUP BY pmod(datediff(current_date(), day), 5);

-- time_beside | now() beside aggregates | incremental
SELECT g, count(*) AS n, now() AS at, max(day) < current_date() AS past FROM src.a GROUP BY g;

-- time_join | current_date() in the condition of an outer join | incremental
SELECT a.id, b.s, current_timestamp() AS at FROM src.a LEFT JOIN src.b ON a.k = b.k AND
  pmod(datediff(current_date(), a.day), 3) > 0;

-- set_union | UNION | incremental
SELECT k, g FROM src.a UNION SELECT k, s FROM src.b;

-- set_except | EXCEPT | incremental
SELECT k, g FROM src.a EXCEPT SELECT k, s FROM src.b;

-- set_except_all | EXCEPT ALL | incremental
SELECT k FROM src.a EXCEPT ALL SELECT k FROM src.b;

-- set_intersect | INTERSECT | incremental
SELECT k, g FROM src.a INTERSECT SELECT k, s FROM src.b;

-- set_intersect_all | INTERSECT ALL | incremental
SELECT g FROM src.a INTERSECT ALL SELECT s FROM src.b;

-- set_distinct | DISTINCT | incremental
SELECT DISTINCT g, day FROM src.a;

-- set_nested | set operations nested | incremental
(SELECT k FROM src.a EXCEPT SELECT k FROM src.b) UNION ALL (SELECT y FROM src.b INTERSECT SELECT x FROM
  src.a);

-- top_limit | ORDER BY … LIMIT | incremental
SELECT id, x, g FROM src.a ORDER BY x DESC, id, g, k, d, day LIMIT 5;

-- top_offset | ORDER BY … LIMIT … OFFSET | incremental
SELECT id, y FROM src.b ORDER BY y NULLS LAST, id, k, s LIMIT 4 OFFSET 3;

-- top_below | LIMIT below a join | incremental
SELECT t.id, b.id AS bid FROM (SELECT id, k FROM src.a ORDER BY x, id, k LIMIT 6) t JOIN src.b b ON t.k
  = b.k;

-- top_order | ORDER BY without LIMIT, with a subquery | incremental
SELECT id, x FROM src.a WHERE x > 2 ORDER BY x * (SELECT max(y) FROM src.b), g;

-- top_uncut | LIMIT that removes no row | incremental
SELECT x > 3 AS big, count(*) AS n FROM src.a GROUP BY x > 3 LIMIT 3;

-- top_rows | QUALIFY by ROW_NUMBER | incremental
SELECT * FROM (SELECT id, g, x, row_number() OVER (PARTITION BY g ORDER BY x DESC, id) AS place FROM
  src.a) WHERE place <= 2;

-- top_rank | QUALIFY by RANK with ties | incremental
SELECT * FROM (SELECT id, g, x, rank() OVER (PARTITION BY g ORDER BY x) AS place FROM src.a) WHERE place
  = 1;

-- group_counts | COUNT(*), COUNT(x), SUM of nothing | incremental
SELECT g, count(*) AS n, count(x) AS known, sum(x) AS total, count_if(x > 3) AS many FROM src.a GROUP BY
  g;

-- group_avg | AVG | incremental
SELECT k, avg(x) AS mean, avg(d) AS mean_d FROM src.a GROUP BY k;

-- group_scalar | aggregate without GROUP BY | incremental
SELECT count(*) AS n, sum(z) AS total, min(w) AS first, max(k) AS last FROM src.c WHERE z > 2;

-- group_min_max | MIN and MAX when the extremum goes | incremental
SELECT k, min(x) AS low, max(x) AS high, min(g) AS first, max(day) AS latest FROM src.a GROUP BY k;

-- group_filter | aggregates with FILTER | incremental
SELECT g, sum(x) FILTER (WHERE k > 3) AS some, count(*) FILTER (WHERE x IS NULL) AS none FROM src.a
  GROUP BY g;

-- group_having | HAVING | incremental
SELECT k, sum(x) AS total FROM src.a GROUP BY k HAVING sum(x) > 10 AND count(*) > 1;

-- group_distinct | COUNT(DISTINCT) | incremental
SELECT g, count(DISTINCT k) AS n FROM src.a GROUP BY g;

-- group_distinct_several | several COUNT(DISTINCT) | incremental
SELECT g, count(DISTINCT k) AS ks, count(DISTINCT x) AS xs, sum(DISTINCT x) AS total, count(*) AS n FROM
  src.a GROUP BY g;

-- group_distinct_whole | COUNT(DISTINCT) beside other aggregates, over all rows | incremental
SELECT count(*) AS n, count(DISTINCT k) AS ks, sum(DISTINCT x + 1) FILTER (WHERE x > 2) AS total,
  count(DISTINCT g, k) AS pairs, max(x) AS most FROM src.a;

-- group_names | columns called like ours | incremental
SELECT k AS weight, count(*) AS run, sum(x) AS taut_sum, max(id) AS newest, min(x) AS __taut_row FROM src.a
  GROUP BY k;

-- group_mark | a column called like the mark of DISTINCT | incremental
SELECT g, sum(knownnullable) AS total, count(knownnullable) AS n FROM (SELECT g, k AS knownnullable FROM src.a
  UNION ALL SELECT s, k FROM src.b) GROUP BY g;

-- group_distinct_filter | COUNT(DISTINCT) with FILTER | incremental
SELECT g, count(DISTINCT k) FILTER (WHERE x > 2) AS some, count(DISTINCT k) FILTER (WHERE x <= 2) AS
  others, count(DISTINCT day) AS days FROM src.a GROUP BY g;

-- group_distinct_constant | DISTINCT of constants | incremental
SELECT k, count(DISTINCT 1) AS one, count(DISTINCT x, 3) AS xs, sum(DISTINCT 3) FILTER (WHERE x > 9) AS three,
  count(DISTINCT x, NULL) AS none FROM src.a GROUP BY k;

-- group_distinct_constant_whole | DISTINCT of a constant, over all rows | incremental
SELECT count(DISTINCT 'a') AS one, sum(DISTINCT 2) AS two, count(DISTINCT z, 1) AS zs FROM src.c WHERE z > 13;

-- group_decimal | SUM and AVG of decimals up to (38, x) | incremental
SELECT g, sum(d) AS total, sum(CAST(d AS DECIMAL(38,6))) AS wide, sum(d * d) AS squares, avg(CAST(d AS
  DECIMAL(30,10))) AS mean FROM src.a GROUP BY g;

-- group_decimal_wide | SUM and AVG of DECIMAL(38,18) | incremental
SELECT g, sum(CAST(d AS DECIMAL(38,18)) / 7) AS s, avg(CAST(d AS DECIMAL(38,18)) * 3) AS a, count(*) AS n,
  max(CAST(d AS DECIMAL(38,18))) AS most FROM src.a GROUP BY g;

-- group_filter_guards | FILTER that keeps a function from failing | incremental
SELECT k, sum(12 DIV x) FILTER (WHERE x <> 0) AS s, max(CAST(g AS INT)) FILTER (WHERE g RLIKE '^[0-9]+$')
  AS most FROM src.a GROUP BY k;

-- group_float | SUM, AVG and extrema of doubles | incremental
SELECT k, sum(f) AS total, avg(f) AS mean, min(f) AS low, max(f) AS high FROM src.c GROUP BY k;

-- group_by_float | GROUP BY a double (NaN, -0.0) | incremental
SELECT f, count(*) AS n FROM src.c GROUP BY f;

-- group_stddev | STDDEV, VARIANCE of whole numbers and decimals | incremental
SELECT g, stddev(x) AS s, var_pop(k) AS v, var_samp(d) AS w, stddev_pop(d) FILTER (WHERE x > 3) AS some,
  variance(DISTINCT x) AS once FROM src.a GROUP BY g;

-- group_stddev_float | STDDEV, VARIANCE of doubles and bigints | incremental
SELECT k, stddev_pop(f) AS s, var_samp(z) AS v FROM src.c GROUP BY k;

-- group_covar | COVAR | incremental
SELECT g, covar_samp(x, k) AS c, covar_pop(x, k) AS p FROM src.a GROUP BY g;

-- group_regr_rounded | REGR whose result is rounded | diff
SELECT g, round(regr_slope(x, k), 6) AS s FROM src.a GROUP BY g;

-- group_regr_sums | REGR_SXX, REGR_SYY over all rows | incremental
SELECT regr_sxx(x, k) AS xs, regr_syy(x, k) AS ys, regr_sxx(d, x) FILTER (WHERE k > 1) AS ds FROM src.a;

-- group_bool | BOOL_AND, BOOL_OR | incremental
SELECT g, bool_and(x > 0) AS all_of, bool_or(x > 9) AS any_of FROM src.a GROUP BY g;

-- group_bits | BIT_AND, BIT_OR, BIT_XOR | incremental
SELECT g, bit_and(x) AS a, bit_or(x) FILTER (WHERE k > 1) AS o, bit_xor(CAST(k AS BIGINT)) AS x FROM src.a
  GROUP BY g;

-- group_collect | COLLECT_LIST, COLLECT_SET | incremental
SELECT g, sort_array(collect_list(x)) AS xs, array_sort(collect_set(k)) AS ks,
  size(array_distinct(collect_list(x))) AS n FROM src.a GROUP BY g;

-- group_lengths | length of LISTAGG and COLLECT_LIST | incremental
SELECT k, length(listagg(g, ', ')) AS letters, size(collect_list(x)) AS n, octet_length(string_agg(DISTINCT g))
  AS bytes FROM src.a GROUP BY k;

-- group_string | string aggregates | incremental
SELECT k, array_join(sort_array(collect_list(g)), '-') AS word, listagg(CAST(id AS STRING), ',') WITHIN
  GROUP (ORDER BY id) AS ids FROM src.a GROUP BY k;

-- group_median | MEDIAN, PERCENTILE | incremental
SELECT g, median(x) AS middle, mode() WITHIN GROUP (ORDER BY x) AS often, percentile(x, 0.9) AS high,
  percentile_disc(0.5) WITHIN GROUP (ORDER BY x) AS disc FROM src.a GROUP BY g;

-- group_max_by | MAX_BY, MIN_BY with a total order | incremental
SELECT k, max_by(id, struct(x, id)) AS best, min_by(g, struct(day, id, g)) AS first FROM src.a GROUP BY
  k;

-- group_sets | GROUPING SETS | incremental
SELECT g, k, grouping_id(g, k) AS level, sum(x) AS total FROM src.a GROUP BY GROUPING SETS ((g), (k),
  (g, k), ());

-- group_rollup | ROLLUP | incremental
SELECT g, day, count(*) AS n, min(x) AS low FROM src.a GROUP BY ROLLUP (g, day);

-- group_cube | CUBE with COUNT(DISTINCT) | incremental
SELECT g, k, count(DISTINCT x) AS xs FROM src.a GROUP BY CUBE (g, k);

-- group_pivot | PIVOT | incremental
SELECT * FROM (SELECT k, g, x FROM src.a) PIVOT (sum(x) AS total FOR g IN ('p', 'q', 'r'));

-- group_key_picked | FIRST, COLLECT_LIST, MAX_BY of the group's own key | incremental
SELECT k, first(k) AS low, last(k + 1) AS next, collect_list(k) AS list, max_by(k, x) AS best FROM src.a
  GROUP BY k;

-- nested_aggregates | aggregate of an aggregate | incremental
SELECT n, count(*) AS groups, max(total) AS best FROM (SELECT k, count(*) AS n, sum(x) AS total FROM
  src.a GROUP BY k) GROUP BY n;

-- nested_three | three aggregates deep | incremental
SELECT max(groups) AS most FROM (SELECT n, count(*) AS groups FROM (SELECT g, day, count(*) AS n FROM
  src.a GROUP BY g, day) GROUP BY n);

-- nested_join | join of aggregates | incremental
SELECT l.k, l.n, r.total FROM (SELECT k, count(*) AS n FROM src.a GROUP BY k) l FULL JOIN (SELECT k,
  sum(y) AS total FROM src.b GROUP BY k) r ON l.k = r.k;

-- nested_same | aggregate joined to its own input | incremental
SELECT a.id, a.x - t.mean AS off FROM src.a a JOIN (SELECT g, avg(x) AS mean FROM src.a GROUP BY g) t ON
  a.g = t.g;

-- nested_max_row | rows of the group's maximum | incremental
SELECT id, k, x FROM src.a WHERE x = (SELECT max(x) FROM src.a m WHERE m.k = a.k);

-- window_ranks | ROW_NUMBER, RANK, NTILE | incremental
SELECT id, g, row_number() OVER w AS n, dense_rank() OVER (PARTITION BY g ORDER BY x) AS r, ntile(2)
  OVER w AS half FROM src.a WINDOW w AS (PARTITION BY g ORDER BY x, id, k, d, day);

-- window_best | the best of each group, ties included | incremental
SELECT * FROM (SELECT id, g, x, rank() OVER (PARTITION BY g ORDER BY x DESC) AS r FROM src.a) WHERE r <= 2;

-- window_levels | rank among the siblings of a ROLLUP | incremental
SELECT sum(x) AS t, k, g, grouping(k) + grouping(g) AS level, rank() OVER (PARTITION BY grouping(k) +
  grouping(g), CASE WHEN grouping(g) = 0 THEN k END ORDER BY sum(x) DESC) AS r FROM src.a GROUP BY
  ROLLUP (k, g);

-- window_same | groups ranked by their own key | incremental
SELECT * FROM src.a WHERE k IN (SELECT k FROM (SELECT k AS k, rank() OVER (PARTITION BY k ORDER BY
  sum(y) DESC) AS r FROM src.b GROUP BY k) WHERE r <= 5);

-- window_lag | LAG, LEAD, FIRST_VALUE | incremental
SELECT id, lag(x) OVER w AS before, lead(x, 2, -1) OVER w AS after, first_value(id) OVER w AS first FROM
  src.a WINDOW w AS (PARTITION BY k ORDER BY day, id, x, g, d);

-- window_running | running sum, ROWS frame | incremental
SELECT id, sum(x) OVER (PARTITION BY g ORDER BY id, x, k, d, day) AS running, max(x) OVER (PARTITION BY
  g ORDER BY id, x, k, d, day ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS near FROM src.a;

-- window_range | RANGE frame | incremental
SELECT id, count(*) OVER (PARTITION BY k ORDER BY x RANGE BETWEEN 2 PRECEDING AND CURRENT ROW) AS close
  FROM src.a;

-- window_value | FIRST_VALUE, LAST_VALUE, NTH_VALUE of the order itself | incremental
SELECT id, first_value(x) OVER w AS low, last_value(x) OVER w AS high, nth_value(x, 2) OVER w AS next FROM
  src.a WINDOW w AS (PARTITION BY k ORDER BY x);

-- window_two | windows by different partitions | incremental
SELECT id, sum(x) OVER (PARTITION BY g) AS of_g, count(*) OVER (PARTITION BY k) AS of_k FROM src.a;

-- window_middle | aggregate over window over join | incremental
SELECT g, sum(place) AS places, count(*) AS n FROM (SELECT a.g, row_number() OVER (PARTITION BY a.k
  ORDER BY b.y, a.id, b.id, a.g) AS place FROM src.a a JOIN src.b b ON a.k = b.k) WHERE place < 4 GROUP BY
  g;

-- window_over_aggregate | window over an aggregate | incremental
SELECT g, day, sum(n) OVER (PARTITION BY g ORDER BY day) AS running FROM (SELECT g, day, count(*) AS n
  FROM src.a GROUP BY g, day);

-- window_share | share of the partition's total | incremental
SELECT id, k, x * 100 / nullif(sum(x) OVER (PARTITION BY k), 0) AS percent FROM src.a WHERE x > 0;

-- window_first | first rows by ROW_NUMBER without PARTITION BY | incremental
SELECT id, x, n, r FROM (SELECT *, row_number() OVER w AS n, rank() OVER w AS r FROM src.a WINDOW w AS
  (ORDER BY x DESC, id, k, g, d, day)) WHERE n < 5;

-- window_of_top | window without PARTITION BY over few rows | incremental
SELECT id, x, sum(x) OVER (ORDER BY id, x) AS running, count(*) OVER () AS n FROM (SELECT id, x FROM src.a
  ORDER BY x, id, k, g, d, day LIMIT 6);

-- cte_twice | a CTE used twice | incremental
WITH t AS (SELECT k, sum(x) AS total FROM src.a GROUP BY k) SELECT l.k, l.total, r.total AS next FROM t
  l LEFT JOIN t r ON r.k = l.k + 1;

-- files_rows | rows of files | incremental
SELECT k, upper(w) AS w, z * 2 AS z FROM json.`files` WHERE z > 2;

-- files_grouped | aggregate over a join with files | incremental
SELECT a.g, sum(f.z) AS z, count(*) AS n FROM json.`files` f JOIN src.a a ON a.k = f.k GROUP BY a.g;

-- views_base | a view that others read | incremental
SELECT a.k, a.g, sum(b.y) AS total, count(*) AS n FROM src.a a JOIN src.b b ON a.k = b.k GROUP BY a.k,
  a.g;

-- views_left | one side of a diamond | incremental
SELECT g, sum(total) AS total FROM views_base GROUP BY g;

-- views_right | the other side | incremental
SELECT g, max(n) AS most FROM views_base WHERE k > 2 GROUP BY g;

-- views_diamond | views over views over views | incremental
SELECT l.g, l.total, r.most, b.n FROM views_left l LEFT JOIN views_right r ON l.g <=> r.g JOIN
  views_base b ON b.g <=> l.g;

-- views_mixed | a view joined with a table that it reads | incremental
SELECT a.id, v.total FROM src.a a LEFT JOIN views_base v ON a.k = v.k AND a.g = v.g;

-- views_odd | columns with dots, blanks and backticks | incremental
SELECT k AS `a.b`, f AS `f``f`, count(*) AS `n n`, max(z) AS `a.b.c` FROM src.c GROUP BY k, f;

-- views_odd_read | a view over odd columns | incremental
SELECT `a.b`, sum(`n n`) AS `n.n`, max(`f``f`) AS ```most```, count(`a.b.c`) AS `a` FROM views_odd GROUP BY
  `a.b`;

-- views_odd_compared | a view over odd columns that is compared | diff
SELECT `a.b`, `f``f`, first(`n n`) AS `n.n` FROM views_odd GROUP BY `a.b`, `f``f`;

-- views_tiny | columns narrower than the lake stores | incremental
SELECT id, CAST(k AS TINYINT) AS k, CAST(x AS SMALLINT) AS x FROM src.a;

-- views_tiny_sums | aggregates over narrow columns | incremental
SELECT k, sum(x) AS s, CAST(max(x) AS TINYINT) AS most, count(*) AS n FROM views_tiny GROUP BY k;

-- views_tiny_joined | narrow columns joined with their aggregates | incremental
SELECT t.id, t.k, s.most, t.x * s.n AS times FROM views_tiny t JOIN views_tiny_sums s ON t.k = s.k AND t.x <=
  s.most;
