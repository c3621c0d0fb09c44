"""Counts each part's instructions with callgrind and compares them with counts.toml. Started by
scripts/check-instructions.sh, which says how to use it."""

import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).parent
COUNTS = HERE / "counts.toml"
# A count that grows by more than this fails; one that shrinks by more is worth an update.
TOLERANCE = 0.05
# Differences below this are no news: an update keeps the old number.
NOISE = 0.005
# Callgrind collects within the first, but not in the second within the first.
TOGGLES = ["millrace_instructions::counted::counted", "millrace_instructions::counted::uncounted"]
# What an allocation takes depends on what the heap has seen before, random keys included. With
# this every small one is as short as most are anyway, and counts agree.
MALLOC = "glibc.malloc.tcache_count=65535:glibc.malloc.mxfast=0"
SKIPPED = 3


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def made_with():
    """What the counts depend on besides the code."""
    version = output("rustc", "-vV")
    field = lambda name: re.search(rf"^{name}: (.*)$", version, re.MULTILINE)[1]
    return {
        "rustc": field("release"),
        "target": field("host"),
        "libc": " ".join(platform.libc_ver()),
    }


def parts_of(binary):
    """The parts: name, repetitions, what one is."""
    rows = [line.split("|") for line in output(binary, "list").splitlines()]
    return [(name, int(count), what) for name, count, what in rows]


def per_repetition(binary, name, count, folder):
    """Instructions of one repetition, over `count` of them in one run."""
    out = folder / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
    command += [f"--toggle-collect={toggle}" for toggle in TOGGLES]
    command += [binary, name, str(count)]
    environment = os.environ | {"GLIBC_TUNABLES": MALLOC}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    if run.returncode != 0:
        sys.exit(f"instructions: {name} failed under valgrind:\n{run.stderr}")
    total = int(re.search(r"^totals: (\d+)", out.read_text(), re.MULTILINE)[1])
    if total < count:
        sys.exit(f"instructions: nothing of {name} was counted: is there no {TOGGLES[0]}?")
    return round(total / count)


def write(made, counts, parts):
    lines = [
        "# Instructions of one repetition of each part; see README.md. Written by",
        "#     scripts/check-instructions.sh --update",
        "",
        "[made_with]",
        *(f'{name} = "{value}"' for name, value in made.items()),
        "",
        "[instructions]",
    ]
    for name, _, what in parts:
        if name in counts:
            lines += [f"# {what}", f"{name} = {counts[name]}"]
    COUNTS.write_text("\n".join(lines) + "\n")


def verdict(old, new):
    if old is None:
        return "not in counts.toml"
    if new > old * (1 + TOLERANCE):
        return "GREW"
    if new < old * (1 - TOLERANCE):
        return "shrank"
    return ""


def print_row(name, old, new, word):
    change = f"{100 * (new - old) / old:+.2f} %" if old else ""
    print(f"{name:<24} {old or '':>10} {new:>10} {change:>10}  {word}", flush=True)


def conclude(words, differing):
    """Says what is to be done; the exit status."""
    of = lambda wanted: [name for name, word in words.items() if word == wanted]
    grew, unknown, shrank = of("GREW"), of("not in counts.toml"), of("shrank")
    update = "scripts/check-instructions.sh --update " + " ".join(grew + unknown + shrank)
    if shrank and not grew:
        print(f"\nFewer than before, so that the next growth would hide in it: {update}")
    if not grew and not unknown:
        return 0
    if grew and differing and not unknown:
        print(f"\n!!! {', '.join(grew)}: more than before, but not with the same {differing}.")
        print("!!! Whether the code or that is to blame is NOT known. Count a commit that is")
        print("!!! known to be good, with what is here, and update the file there.")
        return SKIPPED
    print(f"\nFAILED: {', '.join(grew + unknown)}.")
    print(f"Where the growth is worth it, say why in the commit, and: {update}")
    return 1


def main(binary, arguments):
    update = "--update" in arguments
    wanted = [argument for argument in arguments if argument != "--update"]
    parts = parts_of(binary)
    names = [name for name, _, _ in parts]
    if strange := [name for name in wanted if name not in names]:
        print(f"no part {', '.join(strange)}; there are: {', '.join(names)}", file=sys.stderr)
        return 2
    file = tomllib.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    old, made = file.get("instructions", {}), made_with()
    differing = [name for name in made if made[name] != file.get("made_with", {}).get(name)]
    if differing and update and wanted:
        print(f"another {', '.join(differing)}: update all parts together", file=sys.stderr)
        return 2
    if "target" in differing and not update:
        target = file.get("made_with", {}).get("target")
        print(f"\n!!! The counts are for {target}, and this is {made['target']}:")
        print("!!! the instructions were NOT compared.\n")
        return SKIPPED
    for name in differing:
        print(f"{name}: {made[name]} here, {file.get('made_with', {}).get(name)} in counts.toml")
    if gone := [name for name in old if name not in names and not update]:
        print(f"counts.toml names parts that are not there: {', '.join(gone)}")
        return 1

    print(f"{'part':<24} {'counts.toml':>10} {'now':>10} {'change':>10}")
    counts = {name: count for name, count in old.items() if name in names}
    words = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, count, _ in parts:
            if wanted and name not in wanted:
                continue
            new = per_repetition(binary, name, count, pathlib.Path(folder))
            words[name] = verdict(old.get(name), new)
            print_row(name, old.get(name), new, words[name])
            is_news = name not in old or abs(new - old[name]) > NOISE * old[name]
            if is_news or differing:
                counts[name] = new
    if update:
        write(made, counts, parts)
        print(f"written: {COUNTS}")
        return 0
    return conclude(words, " and ".join(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
