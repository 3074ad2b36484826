"""Add to the site what no page has: the planner, and doctests shown as code."""

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
