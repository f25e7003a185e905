-- What each customer has and has spent. `money` is the same at every checkpoint: it only moves.
CREATE MATERIALIZED VIEW customer_totals AS
SELECT c.id, c.name, c.balance, coalesce(sum(o.amount), 0) AS spent
FROM shop_customers c LEFT JOIN shop_orders o ON o.customer_id = c.id
GROUP BY c.id, c.name, c.balance;

CREATE MATERIALIZED VIEW money AS
SELECT sum(balance + spent) AS total, count(*) AS customers FROM customer_totals;
