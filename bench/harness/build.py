"""How the measured Millrace was built: what scripts/build-release.sh wrote beside the program."""

import hashlib
import pathlib
import tomllib


def of(program):
    """What BUILD says; `kind` is "profile-guided" or "plain", or "unknown" with a `why`."""
    program = pathlib.Path(program)
    try:
        facts = tomllib.loads((program.parent / "BUILD").read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        return {"kind": "unknown", "why": str(error)}
    if facts["sha256"] != hashlib.sha256(program.read_bytes()).hexdigest():
        return {"kind": "unknown", "why": "the BUILD beside it is of another program"}
    return facts


def in_words(facts):
    """For readers of the results."""
    if facts["kind"] == "unknown":
        return f"How Millrace was built is not known: {facts['why']}."
    of_what = f"commit {facts['commit']}, {facts['compiler']}"
    if facts["kind"] == "profile-guided":
        return f"Millrace is built as released, profile-guided: {of_what}; trained on {facts['trained_on']}."
    return f"Millrace is NOT built as released but plainly, without a profile: {of_what}."
