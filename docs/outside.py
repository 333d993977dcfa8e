"""Links from pages to files of the repository that are not part of the site, such as `../../notes/results.md`.

MyST takes every link to a `.md` file for one to a page, and warns where there is none. Here such links go to the file
in the repository, section included, if the theme has its public address; otherwise they download the file.
In conf.py: `extensions.append("outside")`, with docs/ on the path of modules.
"""

import os
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class LinkOutside(SphinxTransform):
    """Gives such links another kind of node. It runs before files to download are collected."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        """Sphinx calls this for each page that it has read."""
        for link in list(self.document.findall(addnodes.pending_xref)):
            path = Path(f"{link.get('reftarget', '')}.md")
            if link.get("reftype") == "myst" and link.get("refdomain") == "doc" and path.is_absolute():
                link.replace_self(self._replaced(link, path))

    def _replaced(self, link: addnodes.pending_xref, path: Path) -> nodes.Element:
        options = self.config.html_theme_options
        if repository := options.get("source_repository"):
            place = os.path.relpath(path, Path(self.env.srcdir).parent)
            anchor = f"#{link['reftargetid']}" if link.get("reftargetid") else ""
            address = f"{str(repository).rstrip('/')}/blob/{options.get('source_branch', 'main')}/{place}{anchor}"
            return nodes.reference("", "", *link.children, refuri=address, internal=False)
        folder = Path(self.env.doc2path(self.env.docname)).parent
        target = os.path.relpath(path, folder)
        return addnodes.download_reference("", "", *link.children, reftarget=target, refdoc=self.env.docname)


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.add_transform(LinkOutside)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
