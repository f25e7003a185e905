"""Incremental view maintenance over a small relational algebra, without any engine.

    nodes       queries as trees, and the plans that compute their changes
    delta       from a query and the changes of its inputs to the change of its result
    rules       one rule per kind of node: how it is evaluated, and its change
    strategy    how the rules' plans are computed: what is read by key, the order of joins
    join_graph  inner joins of many inputs
    pushdown    selecting rows by key as far down a plan as possible
    explain     how a plan will be refreshed, as text

Nothing here knows Spark: `delta.Engine` is what an engine provides. Only a user of the algebra imports
`rules`; the other modules get them as an argument.
"""
