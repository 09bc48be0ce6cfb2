"""Hooks of mkdocs.yml: pages of the site that lie outside of docs/, and links that lead out of it.

In the repository, links go where the files are. On the site, a README elsewhere is a page (`PAGES`), any other file that
a page links to is copied, and a link to a folder without a page becomes its text. A link to something that is not there
is a warning, which fails the build.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "kernels/README.md": "kernels.md",
    "papers/README.md": "perbit-papers.md",
    "examples/ddp/README.md": "example-ddp.md",
    "examples/flower/README.md": "example-flower.md",
}
SOURCES = {page: source for source, page in PAGES.items()}
LINK = r"(?P<mark>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)"
CODE = r"^```.*?^```|^    .*?$|`[^`\n]*`"
LINK_OR_CODE = re.compile(f"{LINK}|{CODE}", flags=re.DOTALL | re.MULTILINE)  # whichever begins first holds the other
log = logging.getLogger("mkdocs.hooks.docs_site")


def slug(title: str, separator: str) -> str:
    """Headings are linked as GitHub names them."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    named = set(_named(config.nav))
    others = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
    rest = [page for page in [*others, *PAGES.values()] if page not in named]
    config.nav.append({"More": rest})
    return config


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    pages = [file.src_uri for file in files if file.src_uri.endswith(".md")]
    wanted = {path for page in pages for path in _files_of(page)}
    for path in sorted(wanted):
        files.append(File.generated(config, f"files/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = page.file.src_uri

    def rewritten(found: re.Match[str]) -> str:
        if found["target"] is None:
            return found[0]
        link = _link(here, found["target"])
        return found["text"] if link is None else f"{found['mark']}[{found['text']}]({link})"

    return LINK_OR_CODE.sub(rewritten, markdown)


def _link(page: str, target: str) -> str | None:
    """Where a link of this page leads on the site; None if that is nowhere."""
    if "://" in target or target.startswith(("#", "mailto:")):
        return target
    path, mark, anchor = target.partition("#")
    found = _place(page, path)
    if found is None:
        return None
    return posixpath.relpath(found, posixpath.dirname(page) or ".") + mark + anchor


def _place(page: str, path: str) -> str | None:
    """The page or file of the site that stands for a path in the repository."""
    name = _in_repository(page, path)
    if (ROOT / name).is_dir():
        name = f"{name}/README.md"
    if name in PAGES:
        return PAGES[name]
    if not (ROOT / name).is_file():
        if not (ROOT / name).parent.is_dir() or not name.endswith("/README.md"):
            log.warning("%s links to %s, which is not there", page, path)
        return None
    return name.removeprefix("docs/") if name.startswith("docs/") else f"files/{name}"


def _in_repository(page: str, path: str) -> str:
    source = SOURCES.get(page, f"docs/{page}")
    return os.path.normpath(posixpath.join(posixpath.dirname(source), path))


def _files_of(page: str) -> Iterator[str]:
    """Files outside of docs/ that a page links to."""
    text = (ROOT / SOURCES.get(page, f"docs/{page}")).read_text("utf-8")
    for found in LINK_OR_CODE.finditer(text):
        path = (found["target"] or "").partition("#")[0]
        if path and "://" not in path and (place := _place(page, path)) and place.startswith("files/"):
            yield place.removeprefix("files/")


def _named(nav: Any) -> Iterator[str]:
    for item in nav if isinstance(nav, list) else nav.values():
        if isinstance(item, str):
            yield item
        else:
            yield from _named(item)
