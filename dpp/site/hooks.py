"""What MkDocs calls while it builds the site."""

from dpp.site.build import mathematics


def on_page_content(html: str, **_) -> str:
    return mathematics(html)
