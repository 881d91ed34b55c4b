"""Additions for mkdocs: pages at the repository's root, and links to files outside docs/.

On the site, SECURITY.md, CONTRIBUTING.md, CHANGELOG.md and the READMEs of chats/ and cluster/ are pages, a link to
another file of the repository downloads a copy of it, and a link to a folder is the folder's name. On GitHub all are
ordinary links.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BOOSTS = {  # of pages in search: reference pages match many words
    "api.md": 0.3,
    "commands.md": 0.5,
    "results.md": 0.5,
    "recipe.md": 0.5,
    "papers.md": 0.5,
    "decisions.md": 0.5,
    "CHANGELOG.md": 0.3,
    "choosing.md": 1.5,
    "messages.md": 1.5,
    "glossary.md": 1.5,
}
PAGES = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "chats/README.md", "cluster/README.md")
LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./|docs/)?)([\w./-]+)(#[\w-]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root, and every file that a page links to."""
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for page in files.documentation_pages():
        for _, above, path, _ in LINK.findall(page.content_string):
            if above == "../" and (ROOT / path).is_file() and not path.endswith(".md"):
                files.append(File.generated(config, f"files/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Set the page's rank in search; point links out of docs/, or from a root page into it, at pages and copies."""
    page.meta.setdefault("search", {"boost": BOOSTS.get(page.file.src_path, 1)})

    def replaced(match: re.Match[str]) -> str:
        text, above, path, anchor = match[1], match[2], match[3], match[4] or ""
        if page.file.src_path in PAGES:
            inside = path if above == "docs/" or path in PAGES else ""
        else:
            inside = path if path in PAGES else f"files/{path}"
            if above != "../":
                return match[0]
        return f"[{text}]({inside}{anchor})" if files.get_file_from_path(inside) else text

    return LINK.sub(replaced, markdown)
