"""The Content-Security-Policy of the page, which proves that the page loads and sends nothing."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html import unescape

__all__ = ["POLICY_MARK", "with_policy"]

POLICY_MARK = "CONTENT-SECURITY-POLICY"
"""What the template has in place of the policy, which follows from the rest of the page."""


def with_policy(page: str) -> str:
    """Return a page with its policy in place of the mark.

    Nothing is allowed except the scripts and styles that are in the page, each by its SHA-256
    hash; see https://www.w3.org/TR/CSP3/. A hash of a style attribute needs 'unsafe-hashes', which
    allows no others. The texts of results cannot hold a tag or a quoted attribute, because the
    template escapes them.
    """
    head, mark, body = page.partition(POLICY_MARK)
    scripts = re.findall(r"<script>(.*?)</script>", body, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", body, re.DOTALL)
    attributes = [unescape(each) for each in re.findall(r' style="([^"]*)"', body)]
    policy = (
        "default-src 'none'",
        f"script-src {_hashes(scripts)}",
        f"style-src 'unsafe-hashes' {_hashes(styles + attributes)}",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return f"{head}{'; '.join(policy)}{body}" if mark else page


def _hashes(texts: list[str]) -> str:
    found = dict.fromkeys(b64encode(sha256(each.encode()).digest()).decode() for each in texts)
    return " ".join(f"'sha256-{each}'" for each in found)
