"""HTML as a tree, from the standard library's parser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

__all__ = ["Element", "parse"]

_VOID = {"meta", "link", "input", "img", "br", "line", "path", "rect", "circle", "hr"}


@dataclass
class Element:
    """A tag with its attributes; `text` is all text in it."""

    tag: str
    attributes: dict[str, str]
    content: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(self.raw.split())

    @property
    def raw(self) -> str:
        return "".join(part if isinstance(part, str) else part.raw for part in self.content)

    @property
    def children(self) -> list[Element]:
        return [part for part in self.content if isinstance(part, Element)]

    def all(self, tag: str | None = None) -> list[Element]:
        """Every element below, by tag."""
        below = [element for child in self.children for element in (child, *child.all())]
        return [element for element in below if tag is None or element.tag == tag]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].content.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].content.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)


def parse(text: str) -> Element:
    """The document as a tree.

    Raises:
        AssertionError: an element is not closed in order.
    """
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert len(reader.open) == 1, [element.tag for element in reader.open]
    return reader.root
