#!/usr/bin/env python3
"""Measures the shape of the code and the length of its sentences.

  scripts/measure-code.py                  the files as they are
  scripts/measure-code.py main             a commit, branch or tag
  scripts/measure-code.py v0.1 main .      several side by side ('.': the files as they are)
  scripts/measure-code.py --arrows session    what holds the circles of that crate together
  scripts/measure-code.py --check          whether the files as they are keep to the limits; CI asks that

Measured are the sources in crates/*/src. Tests, benches, examples, fuzz targets and the
simulation are left out. Prose is the comments of these sources and the Markdown documents.

  function length  lines from `fn` to the closing brace
  fields           of a struct, or of one variant of an enum
  circles          files of one crate that reach each other. An arrow is an import or path
                   (re-exports are followed to the file they come from), or a call of a
                   method of a type whose `impl` blocks stand in several files
  sentence         words of prose up to a full stop, question or exclamation mark;
                   tables, code, headings and link targets are left out
"""

import io
import os
import re
import signal
import subprocess
import sys
import tarfile

# The crates of which no files reach each other.
LAYERED = ("session", "worker", "engine", "admin", "config", "backend")

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE = re.compile(r"crates/[^/]+/src/.*\.rs$")
LEFT_OUT = re.compile(r"(^|/)(tests?|benches|examples|fuzz|simulation|target)(/|\.rs$)|_tests?\.rs$")
DOCUMENT = re.compile(r"^(?!bench/results/|tests/foreign/|fuzz/).*\.md$")
NO_PROSE = re.compile(r"(^|/)(CHANGELOG|LICENSE)[^/]*$|(^|/)(node_modules|target|\.[^/]+)/")

# --- Reading ----------------------------------------------------------------------


def files_at(ref):
    """Every file that is measured, by path."""
    wanted = lambda p: SOURCE.search(p) or (DOCUMENT.search(p) and not NO_PROSE.search(p))
    if ref != ".":
        command = ["git", "-C", ROOT, "archive", "--format=tar", ref]
        archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            return {
                m.name: tar.extractfile(m).read().decode("utf-8", "replace")
                for m in tar.getmembers()
                if m.isfile() and wanted(m.name)
            }
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")
    found = {}
    for name in names:
        path = os.path.join(ROOT, name)
        if wanted(name) and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                found[name] = file.read()
    return found


TOKEN = re.compile(
    r"""
    (?P<line>//[^\n]*)
  | (?P<block>/\*)
  | (?P<raw>\b(?:br|cr|r)(?P<hashes>\#*)"(?:.|\n)*?"(?P=hashes))
  | (?P<string>\b[bc]?"(?:\\(?:.|\n)|[^"\\])*"|"(?:\\(?:.|\n)|[^"\\])*")
  | (?P<char>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^'\\\n])')
    """,
    re.VERBOSE,
)


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def code_and_comments(text):
    """The code with comments, strings and characters blanked (same length), and the line comments."""
    out, comments, at = [], [], 0
    while True:
        found = TOKEN.search(text, at)
        if not found:
            out.append(text[at:])
            return "".join(out), comments
        out.append(text[at : found.start()])
        end = found.end()
        if found["line"]:
            comments.append((found.start(), found["line"]))
        elif found["block"]:
            depth, end = 1, found.end()
            while depth and end < len(text):
                step = re.compile(r"/\*|\*/").search(text, end)
                if not step:
                    end = len(text)
                    break
                depth += 1 if step[0] == "/*" else -1
                end = step.end()
        out.append(blank(text[found.start() : end]))
        at = end


def closing(code, at):
    """Where the bracket that opens at `at` closes."""
    depth = 0
    for found in re.compile(r"[{}()\[\]]").finditer(code, at):
        depth += 1 if found[0] in "{([" else -1
        if depth == 0:
            return found.start()
    return len(code) - 1


CFG_TEST = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*|any\(test\b[^\]]*)\)\]")


def without_tests(code):
    """Items under #[cfg(test)] blanked, and which of them are `mod name;`."""
    modules = []
    while True:
        found = CFG_TEST.search(code)
        if not found:
            return code, modules
        end = found.end()
        for step in re.compile(r"[{(\[;,]").finditer(code, end):
            if step.start() < end:
                continue
            if step[0] in ";,":
                end = step.start() + 1
                break
            end = closing(code, step.start()) + 1
            if step[0] == "{":
                break
        item = code[found.end() : end]
        modules += re.findall(r"\bmod\s+(\w+)\s*;", item)
        code = code[: found.start()] + blank(code[found.start() : end]) + code[end:]


def in_tests(whole, kept, at):
    """Whether the nearest code before and after was blanked with the tests."""
    before = len(whole[:at].rstrip()) - 1
    after = re.compile(r"\S").search(whole, at)
    blanked = lambda n: kept[n] != whole[n]
    return before >= 0 and blanked(before) and after is not None and blanked(after.start())


class Source:
    def __init__(self, path, text):
        self.path = path
        self.lines = text.count("\n")
        self.code, self.comments = code_and_comments(text)
        whole = self.code
        self.code, self.test_modules = without_tests(self.code)
        # Comments inside what was blanked are the tests'.
        self.comments = [
            (at, text) for at, text in self.comments if not in_tests(whole, self.code, at)
        ]
        self.crate, inner = re.match(r"crates/([^/]+)/src/(.*)\.rs$", path).groups()
        parts = inner.split("/")
        if parts[-1] in ("mod", "lib", "main"):
            parts = parts[:-1]
        self.module = tuple(parts)

    def line(self, at):
        return self.code.count("\n", 0, at) + 1


# --- Functions and types ----------------------------------------------------------

FN = re.compile(r"\bfn\s+(\w+)")


def functions(source):
    """(name, parameters, body's start, end, lines) of every function that has a body."""
    found = []
    for match in FN.finditer(source.code):
        depth, at = 0, match.end()
        for step in re.compile(r"[{}()\[\];]").finditer(source.code, match.end()):
            if step[0] in "([":
                depth += 1
            elif step[0] in ")]":
                depth -= 1
            elif depth == 0:
                at = step.start()
                break
        if source.code[at : at + 1] != "{":
            continue
        end = closing(source.code, at)
        lines = source.code.count("\n", match.start(), end) + 1
        found.append((match[1], source.code[match.end() : at], at, end, lines))
    return found


def members(body):
    """The parts of a list, split at its commas, without attributes."""
    body = re.sub(r"#\[[^\]]*\]", "", body)
    parts, depth, start = [], 0, 0
    for step in re.compile(r"->|=>|[{}()\[\]<>,]").finditer(body):
        if step[0] in "{([<":
            depth += 1
        elif step[0] in "})]>":
            depth -= 1
        elif step[0] == "," and depth == 0:
            parts.append(body[start : step.start()])
            start = step.end()
    parts.append(body[start:])
    return [part for part in parts if part.strip()]


def types(source):
    """(name, fields) of every struct and of every variant of an enum that has named fields."""
    found = []
    for match in re.finditer(r"\b(struct|enum)\s+(\w+)", source.code):
        step = re.compile(r"[{(;]").search(source.code, match.end())
        if not step or step[0] == ";":
            continue
        body = source.code[step.start() + 1 : closing(source.code, step.start())]
        if match[1] == "struct":
            found.append((match[2], len(members(body))))
            continue
        for variant in members(body):
            name = re.match(r"\s*(\w+)\s*\{(.*)\}", variant, re.DOTALL)
            if name:
                found.append((f"{match[2]}::{name[1]}", len(members(name[2]))))
    return found


# --- Circles ----------------------------------------------------------------------

USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
PATH = re.compile(r"(?<![\w:])((?:\w+\s*::\s*)+)(\w+|\*)?")


def expand(tree, prefix=()):
    """The paths of a `use` tree, each with the name it is given."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, alias = tree.partition(" as ")
        parts = tuple(p for p in re.split(r"\s*::\s*", path.strip()) if p)
        full = prefix + parts
        if full and full[-1] == "self":
            full = full[:-1]
        yield full, alias.strip() or (full[-1] if full else "")
        return
    head = tuple(p for p in re.split(r"\s*::\s*", tree[:brace].strip()) if p)
    for part in members(tree[brace + 1 : closing(tree, brace)]):
        yield from expand(part, prefix + head)


class Crate:
    def __init__(self, sources):
        self.by_module = {}
        for source in sorted(sources, key=lambda s: s.path.endswith("main.rs")):
            self.by_module.setdefault(source.module, source)
        self.sources = sources
        self.exports = {s.path: {} for s in sources}
        for source in sources:
            for match in USE.finditer(source.code):
                for path, name in expand(match[2]):
                    full = self.absolute(source, path)
                    if full is not None:
                        self.exports[source.path][name] = full

    def absolute(self, source, path):
        """A path from the crate's root, or None where it leads out of the crate."""
        path, module = tuple(path), source.module
        if not path:
            return None
        if path[0] == "crate":
            return path[1:]
        if path[0] in ("self", "super"):
            while path and path[0] in ("self", "super"):
                if path[0] == "super":
                    module = module[:-1]
                path = path[1:]
            return module + path
        if module + path[:1] in self.by_module:
            return module + path
        return None

    def home(self, path, hops=0):
        """The file that defines what an absolute path names."""
        for length in range(len(path), -1, -1):
            source = self.by_module.get(path[:length])
            if source is None:
                continue
            if length < len(path) and hops < 8:
                known = self.exports[source.path].get(path[length])
                if known is not None and known != path:
                    return self.home(known + path[length + 1 :], hops + 1)
            return source
        return None

    def arrows(self):
        """file -> file it reaches -> what it names there."""
        out = {s.path: {} for s in self.sources}
        for source in self.sources:
            for path in self.paths(source):
                target = self.home(path)
                if target is not None:
                    out[source.path].setdefault(target.path, set()).add("::".join(path))
            for path, name in self.calls(source):
                out[source.path].setdefault(path, set()).add(name)
            out[source.path].pop(source.path, None)
        return out

    def paths(self, source):
        code = source.code
        for match in USE.finditer(code):
            # A parent that re-exports what its children have does not use it.
            if match[1]:
                continue
            for path, _ in expand(match[2]):
                full = self.absolute(source, path)
                if full is not None:
                    yield full
        # Who may see an item is no use of it.
        code = re.sub(r"\bpub\(in [^)]*\)", lambda m: blank(m[0]), code)
        for match in PATH.finditer(USE.sub(lambda m: blank(m[0]), code)):
            parts = [p for p in re.split(r"\s*::\s*", match[0]) if p]
            full = self.absolute(source, parts)
            if full is not None:
                yield full

    def impls(self, source):
        """(type, start, end) of the inherent `impl` blocks of a file."""
        for match in re.finditer(r"(?m)^\s*impl\b\s*(<[^{]*?>)?\s*([^{;]*?)\{", source.code):
            head = match[2]
            if re.search(r"\bfor\b", head):
                head = re.split(r"\bfor\b", head)[1]
                inherent = False
            else:
                inherent = True
            name = re.match(r"\s*&?(?:mut\s+)?(?:\w+::)*(\w+)", head)
            if name:
                start = match.end() - 1
                yield name[1], start, closing(source.code, start), inherent

    def methods(self):
        """type -> method -> files."""
        if not hasattr(self, "_methods"):
            self._methods = {}
            for source in self.sources:
                spans = list(self.impls(source))
                for name, _, start, _, _ in functions(source):
                    for kind, begin, end, inherent in spans:
                        if inherent and begin < start < end:
                            files = self._methods.setdefault(kind, {})
                            files.setdefault(name, set()).add(source.path)
        return self._methods

    def calls(self, source):
        """(file, method) of calls on self, and on parameters of a type of this crate."""
        known, reached = self.methods(), set()
        spans = list(self.impls(source))
        for _, parameters, start, end, _ in functions(source):
            body = source.code[start:end]
            receivers = {}
            for kind, begin, finish, _ in spans:
                if begin < start < finish:
                    receivers["self"] = receivers["Self"] = kind
            for name, kind in re.findall(r"\b(\w+)\s*:\s*&?(?:'\w+\s+)?(?:mut\s+)?(\w+)", parameters):
                receivers.setdefault(name, kind)
            for receiver, kind in receivers.items():
                if kind not in known:
                    continue
                for name in re.findall(rf"\b{receiver}\s*(?:\.|::)\s*(\w+)\s*\(", body):
                    reached |= {(p, f"{kind}.{name}()") for p in known[kind].get(name, ())}
        return reached


def circles(arrows):
    """Groups of files that reach each other (Tarjan), largest first."""
    index, low, on, stack, found = {}, {}, set(), [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for following in sorted(arrows[node]):
            if following not in index:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in on:
                low[node] = min(low[node], index[following])
        if low[node] == index[node]:
            group = []
            while True:
                last = stack.pop()
                on.discard(last)
                group.append(last)
                if last == node:
                    break
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10000)
    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


# --- Prose ------------------------------------------------------------------------

# From how many blanks on a line is code. A comment has one more, after its slashes.
DOCUMENT_CODE = 4
COMMENT_CODE = 5
BULLET = re.compile(r"^\s*([-*+]|\d+\.)\s+")
SENTENCE_END = re.compile(r"[.!?][)*_`\"”]*(?=\s+[A-Z`*_(\[\"“0-9]|\s*$)")


def paragraphs_of_comments(source):
    """Comment lines that follow each other, joined."""
    text, last = [], None
    for at, comment in source.comments:
        line = source.line(at)
        if last is not None and line != last + 1:
            yield text
            text = []
        text.append(re.sub(r"^//[/!]?", "", comment))
        last = line
    yield text


def blocks(lines, indent):
    """Paragraphs and list items of Markdown, without code, tables and headings. A line that
    does not continue a paragraph is code from `indent` blanks on."""
    text, fenced = [], False
    for line in lines:
        bare = line.strip()
        if bare.startswith(("```", "~~~")):
            fenced = not fenced
            bare = ""
        elif fenced or bare.startswith(("|", "#", "<", "[!")):
            bare = ""
        elif not text and not BULLET.match(line) and re.match(rf" {{{indent},}}\S", line):
            bare = ""
        elif not re.search(r"\w", bare):
            bare = ""
        if not bare or BULLET.match(line):
            if text:
                yield " ".join(text)
            text = []
        if bare:
            text.append(BULLET.sub("", bare))
    if text:
        yield " ".join(text)


def sentences(lines, indent):
    for block in blocks(lines, indent):
        # Links and code keep their marks: a sentence may begin with one.
        block = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"[\1]", block)
        block = re.sub(r"`[^`]*`", "`code`", block)
        block = re.sub(r"\b(e\.g|i\.e|etc|cf|vs|Nr|No)\.", r"\1", block)
        start = 0
        for end in [m.end() for m in SENTENCE_END.finditer(block)] + [len(block)]:
            words = re.findall(r"[\w'’./%-]*\w[\w'’%-]*", block[start:end])
            if len(words) >= 3:
                yield len(words), block[start:end].strip()
            start = end


# What other crates can name: a function, or a field.
PUBLIC = re.compile(r"(?m)^\s*pub\s+(?!mod\b|use\b|struct\b|enum\b|trait\b|type\b|const [A-Z])\w")

# --- The report -------------------------------------------------------------------


def percentile(numbers, share):
    numbers = sorted(numbers)
    return numbers[min(len(numbers) - 1, int(len(numbers) * share))] if numbers else 0


def shipped(ref):
    """The files that are measured, and the sources among them."""
    files = files_at(ref)
    sources = [Source(p, t) for p, t in sorted(files.items()) if SOURCE.search(p)]
    by_crate = {}
    for source in sources:
        by_crate.setdefault(source.crate, {})[source.module] = source
    dropped = set()
    for source in sources:
        for name in source.test_modules:
            dropped.add((source.crate, source.module + (name,)))
    sources = [
        s
        for s in sources
        if not LEFT_OUT.search(s.path.split("/src/", 1)[1])
        and not any((s.crate, s.module[:n]) in dropped for n in range(1, len(s.module) + 1))
    ]
    return files, sources


# What no change may exceed: the row of the table, and the most that it may say.
LIMITS = {
    "types over 25 fields": 0,
    "files over 800 lines": 0,
    "pub(crate) in session, worker and engine": 150,
    "words a sentence, 90th percentile: comments": 28,
    "words a sentence, 90th percentile: documents": 28,
    **{f"circles in {crate}, files in each": "none" for crate in LAYERED},
}


def long_files():
    """Rust files over 800 lines, those of tests included, with their lines."""
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.rs"]
    for name in subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode().split("\0"):
        path = os.path.join(ROOT, name)
        if name and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = sum(1 for _ in file)
            if lines > 800:
                yield name, lines


def check():
    rows, details = measured(".")
    exceeded = []
    for what, value in rows:
        limit = LIMITS.get(what)
        if limit is not None and (value != limit if isinstance(limit, str) else value > limit):
            exceeded.append(f"{what}: {value}; at most {limit}")
    exceeded += [f"{path} has {lines} lines; at most 800, in tests, too" for path, lines in long_files()]
    for line in exceeded:
        print("shape:", line)
    if exceeded:
        print("\n".join(details))
        sys.exit(1)
    print("shape: files, types, circles and sentences are within their limits")


def print_arrows(crate):
    _, sources = shipped(".")
    arrows = Crate([s for s in sources if s.crate == crate]).arrows()
    short = lambda p: p.split("/src/")[1].removesuffix(".rs")
    for ring in circles(arrows):
        print("circle of", len(ring))
        for path in ring:
            for target, names in sorted(arrows[path].items()):
                if target in ring:
                    print(f"  {short(path)} -> {short(target)}: {', '.join(sorted(names))}")


def measured(ref):
    files, sources = shipped(ref)
    fns = [(f[4], f[0], s) for s in sources for f in functions(s)]
    structs = [(n, name, s) for s in sources for name, n in types(s)]
    rings = []
    for crate in sorted({s.crate for s in sources}):
        mine = [s for s in sources if s.crate == crate]
        rings += [(crate, ring) for ring in circles(Crate(mine).arrows())]
    comments = [x for s in sources for part in paragraphs_of_comments(s) for x in sentences(part, COMMENT_CODE)]
    documents = [
        x for p, t in sorted(files.items()) if p.endswith(".md") for x in sentences(t.split("\n"), DOCUMENT_CODE)
    ]
    lengths = [n for n, _, _ in fns]
    session = [s for s in sources if s.crate in ("session", "worker", "engine")]
    worker = [s for s in sources if s.crate == "worker"]
    over = [(s.lines, s.path) for s in sources if s.lines > 800]
    largest_ring = {}
    for crate, ring in rings:
        largest_ring.setdefault(crate, []).append(len(ring))
    longest, widest = max(fns, key=lambda f: f[0]), max(structs, key=lambda f: f[0])
    rows = [
        ("source files", len(sources)),
        ("lines of them", sum(s.lines for s in sources)),
        ("functions", len(fns)),
        ("function length, median", percentile(lengths, 0.5)),
        ("function length, 99th percentile", percentile(lengths, 0.99)),
        ("longest function", f"{longest[0]} ({longest[1]})"),
        ("most fields in a type", f"{widest[0]} ({widest[1]})"),
        ("types over 25 fields", sum(n > 25 for n, _, _ in structs)),
        ("files over 800 lines", len(over)),
        ("circles of files", len(rings)),
        ("pub(crate) in session, worker and engine", sum(len(re.findall(r"\bpub\s*\(\s*crate\s*\)", s.code)) for s in session)),
        ("public functions and fields of worker", sum(len(PUBLIC.findall(s.code)) for s in worker)),
        ("words a sentence, 90th percentile: comments", percentile([n for n, _ in comments], 0.9)),
        ("words a sentence, 90th percentile: documents", percentile([n for n, _ in documents], 0.9)),
        ("words a sentence, 90th percentile: both", percentile([n for n, _ in comments + documents], 0.9)),
    ]
    for crate in LAYERED:
        rows.append((f"circles in {crate}, files in each", " ".join(map(str, largest_ring.get(crate, []))) or "none"))
    details = ["the longest functions:"]
    details += [f"  {n:5}  {name}  {s.path}" for n, name, s in sorted(fns, key=lambda f: -f[0])[:10]]
    details += ["the types with most fields:"]
    details += [f"  {n:5}  {name}  {s.path}" for n, name, s in sorted(structs, key=lambda f: -f[0])[:10]]
    details += ["files over 800 lines:"] + [f"  {n:5}  {p}" for n, p in sorted(over, reverse=True)]
    details += ["circles:"]
    details += [
        f"  {crate}: " + " ".join(p.split("/src/")[1].removesuffix(".rs") for p in ring)
        for crate, ring in rings
    ]
    return rows, details


def main():
    if any(a in ("-h", "--help") for a in sys.argv[1:]):
        print(__doc__.strip())
        return
    if sys.argv[1:2] == ["--arrows"] and len(sys.argv) == 3:
        print_arrows(sys.argv[2])
        return
    if sys.argv[1:] == ["--check"]:
        check()
        return
    refs = sys.argv[1:] or ["."]
    reports = [measured(ref) for ref in refs]
    table = [["", *("the files as they are" if r == "." else r for r in refs)]]
    for at, (what, _) in enumerate(reports[0][0]):
        table.append([what, *(str(rows[at][1]) for rows, _ in reports)])
    widths = [max(len(row[n]) for row in table) for n in range(len(table[0]))]
    table.insert(1, ["-" * w for w in widths])
    for row in table:
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |")
    for ref, (_, details) in zip(refs, reports):
        print("\n" + (ref if ref != "." else "the files as they are"))
        print("\n".join(details))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
