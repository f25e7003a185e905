"""The layered drawing: all nodes have positions, nothing overlaps, readers are right of their sources."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tautochrone.metaservice.pages.graph import layered

names = st.sampled_from([f"n{number}" for number in range(14)])
graphs = st.tuples(st.sets(names, max_size=14), st.sets(st.tuples(names, names), max_size=30))


def check_layout(nodes: set[str], edges: set[tuple[str, str]]) -> None:
    """What holds for every graph, with and without cycles."""
    nodes = nodes | {name for edge in edges for name in edge}
    layout = layered(nodes, edges)
    assert set(layout.positions) == nodes
    assert set(layout.bends) == {edge for edge in edges if edge[0] != edge[1]}
    columns: dict[int, list[float]] = defaultdict(list)
    for x, y in [*layout.positions.values(), *(bend for bends in layout.bends.values() for bend in bends)]:
        assert 0 <= x < layout.layers
        assert -1e-9 <= y <= layout.rows + 1e-9
        columns[x].append(y)
    for heights in columns.values():
        heights.sort()
        assert all(b - a > 1 - 1e-9 for a, b in pairwise(heights))


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(graphs)
def test_layout_of_any_graph(graph: tuple[set[str], set[tuple[str, str]]]) -> None:
    check_layout(*graph)


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(graphs)
def test_edges_go_right_without_cycles(graph: tuple[set[str], set[tuple[str, str]]]) -> None:
    nodes, edges = graph
    edges = {(a, b) for a, b in edges if int(a[1:]) < int(b[1:])}
    check_layout(nodes, edges)
    layout = layered(nodes | {name for edge in edges for name in edge}, edges)
    for (a, b), bends in layout.bends.items():
        (left, _), (right, _) = layout.positions[a], layout.positions[b]
        assert [x for x, _ in bends] == list(range(left + 1, right))
        assert left < right


def test_layout_of_an_empty_graph() -> None:
    assert layered([], []).positions == {}


def test_chain_is_a_line_and_comb_does_not_cross() -> None:
    chain = layered("abcd", [("a", "b"), ("b", "c"), ("c", "d")])
    assert chain.positions == {"a": (0, 0), "b": (1, 0), "c": (2, 0), "d": (3, 0)}
    edges = [(f"in{number}", f"out{9 - number}") for number in range(10)]
    comb = layered({name for edge in edges for name in edge}, edges)
    assert all(comb.positions[a][1] == comb.positions[b][1] for a, b in edges)


def test_source_is_next_to_its_first_reader() -> None:
    layout = layered("abcds", [("a", "b"), ("b", "c"), ("c", "d"), ("s", "d")])
    assert layout.positions["s"][0] == 2


def test_long_chain_needs_no_recursion() -> None:
    count = 3_000
    edges = [(str(number), str(number + 1)) for number in range(count - 1)]
    layout = layered(map(str, range(count)), edges)
    assert layout.layers == count
