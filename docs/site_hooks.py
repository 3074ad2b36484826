"""Add to the site what no page has: the planner, doctests as code, functions in rooms."""

import re

import griffe
from mkdocs.structure.files import File

from tacit.reports.planner import planner_page


def on_files(files, config, **kwargs):
    files.append(File.generated(config, "tacit-planner.html", content=planner_page()))
    return files


class Doctests(griffe.Extension):
    """Fence doctests, which Markdown takes for quotations."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            parts = re.split(r"\n\s*\n", obj.docstring.value)
            obj.docstring.value = "\n\n".join(
                f"```pycon\n{part}\n```" if part.lstrip().startswith(">>>") else part
                for part in parts
            )


class NamedAsTheirModule(griffe.Extension):
    """Show `tacit.training.fit` as the function that a reader imports, not as fit.py."""

    def on_package(self, *, pkg, loader, **kwargs):
        loader.resolve_aliases(implicit=False, external=False)
        rooms = [pkg, *(room for room in pkg.members.values() if not room.is_alias)]
        for room in [room for room in rooms if room.is_module]:
            for name in room.exports or ():
                module = room.members.get(str(name))
                if module is not None and module.is_module and str(name) in module.members:
                    room.members[str(name)] = griffe.Alias(
                        str(name), module.members[str(name)], parent=room
                    )
