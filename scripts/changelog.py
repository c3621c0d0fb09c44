#!/usr/bin/env python3
"""Puts the fragments of changelog.d into CHANGELOG.md, under "Unreleased", and removes their files.

scripts/changelog.py            put them in
scripts/changelog.py --check    only say which files are not named or written as they should be
"""

import pathlib
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECTIONS = ["security", "added", "fixed", "changed", "deprecated", "removed"]
WIDTH = 130


def fragments():
    return [p for p in sorted((ROOT / "changelog.d").iterdir()) if p.name != "README.md"]


def faults():
    for path in fragments():
        text = path.read_text(encoding="utf-8").strip()
        if path.suffix != ".md" or path.stem.split("-")[0] not in SECTIONS or "-" not in path.stem:
            yield f"{path.name}: must be named SECTION-words.md; sections: {', '.join(SECTIONS)}"
        elif not text or text.startswith(("-", "#")):
            yield f"{path.name}: must hold its text alone, without dash or heading"


def gathered(changelog):
    """The changelog with every fragment at the end of its section of "Unreleased"."""
    lines = changelog.split("\n")
    begin = lines.index("## [Unreleased]") + 1
    for section in SECTIONS:
        items = [p.read_text(encoding="utf-8") for p in fragments() if p.stem.split("-")[0] == section]
        if not items:
            continue
        new = [
            line
            for item in items
            for line in textwrap.wrap(
                " ".join(item.split()), WIDTH, initial_indent="- ", subsequent_indent="  ",
                break_long_words=False, break_on_hyphens=False,
            )
        ]  # fmt: skip
        end = next((n for n in range(begin, len(lines)) if lines[n].startswith("## ")), len(lines))
        heading = f"### {section.capitalize()}"
        if heading in lines[begin:end]:
            at = lines.index(heading, begin, end) + 1
            while at < end and not lines[at].startswith("#"):
                at += 1
            while lines[at - 1] == "":
                at -= 1
            lines[at:at] = new
        else:
            while lines[end - 1] == "" and end > begin:
                end -= 1
            lines[end:end] = ["", heading, *new]
    return "\n".join(lines)


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__.strip())
        return 2
    wrong = list(faults())
    for fault in wrong:
        print(f"changelog: {fault}")
    if wrong or sys.argv[1:]:
        return int(bool(wrong))
    path = ROOT / "CHANGELOG.md"
    path.write_text(gathered(path.read_text(encoding="utf-8")), encoding="utf-8")
    for fragment in fragments():
        fragment.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
