"""A reader of pages that is strict about what a report may contain."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "line", "rect", "circle", "polyline", "br"}


class Page(HTMLParser):
    """Tags in order, the text, and every mistake found on the way."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.mistakes: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        self.mistakes += [f"<{tag}> is not closed" for tag in self._open]
        ids = [values["id"] for _, values in self.tags if "id" in values]
        self.mistakes += [f"id {name} twice" for name in set(ids) if ids.count(name) > 1]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag in {"script", "iframe", "object", "embed", "form", "base", "img", "a"}:
            self.mistakes.append(f"<{tag}> in a report")
        for name, value in values.items():
            outside = name in {"src", "href", "xlink:href", "srcset", "action"} and value != "data:,"
            if name.startswith("on") or outside:
                self.mistakes.append(f'{name}="{value}" on <{tag}>')
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.mistakes.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] != "style":
            self.words.append(data)
        elif "url(" in data or "@import" in data:
            self.mistakes.append("the style sheet asks for another file")
