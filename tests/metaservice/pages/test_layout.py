"""The layered drawing: everything is placed, nothing overlaps, who reads stands to the right."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tautochrone.metaservice.pages.layout import layered

names = st.sampled_from([f"n{at}" for at in range(14)])
graphs = st.tuples(st.sets(names, max_size=14), st.sets(st.tuples(names, names), max_size=30))


def placed(nodes: set[str], edges: set[tuple[str, str]]) -> None:
    """What holds for every graph, with circles or without."""
    nodes = nodes | {name for edge in edges for name in edge}
    found = layered(nodes, edges)
    assert set(found.positions) == nodes
    assert set(found.bends) == {edge for edge in edges if edge[0] != edge[1]}
    columns: dict[int, list[float]] = defaultdict(list)
    for x, y in [*found.positions.values(), *(bend for bends in found.bends.values() for bend in bends)]:
        assert 0 <= x < found.layers
        assert -1e-9 <= y <= found.rows + 1e-9
        columns[x].append(y)
    for heights in columns.values():
        heights.sort()
        assert all(b - a > 1 - 1e-9 for a, b in pairwise(heights))


@given(graphs)
def test_any_graph(graph: tuple[set[str], set[tuple[str, str]]]) -> None:
    placed(*graph)


@given(graphs)
def test_without_circles_every_edge_goes_right(graph: tuple[set[str], set[tuple[str, str]]]) -> None:
    nodes, edges = graph
    edges = {(a, b) for a, b in edges if int(a[1:]) < int(b[1:])}
    placed(nodes, edges)
    found = layered(nodes | {name for edge in edges for name in edge}, edges)
    for (a, b), bends in found.bends.items():
        (left, _), (right, _) = found.positions[a], found.positions[b]
        assert [x for x, _ in bends] == list(range(left + 1, right))
        assert left < right


def test_nothing() -> None:
    assert layered([], []).positions == {}


def test_a_chain_is_a_line_and_a_comb_does_not_cross() -> None:
    chain = layered("abcd", [("a", "b"), ("b", "c"), ("c", "d")])
    assert chain.positions == {"a": (0, 0), "b": (1, 0), "c": (2, 0), "d": (3, 0)}
    edges = [(f"in{at}", f"out{9 - at}") for at in range(10)]
    comb = layered({name for edge in edges for name in edge}, edges)
    assert all(comb.positions[a][1] == comb.positions[b][1] for a, b in edges)


def test_a_source_stands_beside_its_first_reader() -> None:
    found = layered("abcds", [("a", "b"), ("b", "c"), ("c", "d"), ("s", "d")])
    assert found.positions["s"][0] == 2


def test_a_long_chain_is_no_recursion() -> None:
    count = 3_000
    edges = [(str(at), str(at + 1)) for at in range(count - 1)]
    found = layered(map(str, range(count)), edges)
    assert found.layers == count
