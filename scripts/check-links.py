#!/usr/bin/env python3
"""Fails where a link of a Markdown document leads nowhere: no such file, or no such heading.

  scripts/check-links.py FILE…    these documents; links to the web are not followed
"""

import os
import re
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(path):
    """The lines of a document without its code."""
    fenced = False
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.lstrip().startswith(("```", "~~~")):
                fenced = not fenced
            elif not fenced:
                yield line


def anchors(path):
    """The anchors of a document's headings, as GitHub makes them."""
    found = set()
    for line in prose(path):
        heading = re.match(r"#{1,6} +(.*?)\s*$", line)
        if not heading:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number, base = 0, anchor
        while anchor in found:
            number += 1
            anchor = f"{base}-{number}"
        found.add(anchor)
    return found


def broken(path):
    """Each link of a document that leads nowhere, and why."""
    for line in prose(path):
        for link in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            name, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
            if not os.path.exists(target):
                yield link, "which does not exist"
            elif anchor and target.endswith(".md") and anchor not in anchors(target):
                yield link, "where there is no such heading"


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    wrong = [(path, *why) for path in sys.argv[1:] for why in broken(path)]
    for path, link, why in wrong:
        print(f"readme: {path} links to {link}, {why}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
