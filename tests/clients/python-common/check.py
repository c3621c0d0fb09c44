"""The frame of the Python suites: groups of checks, their report and their exit status.

It knows no driver and opens no connection.
"""

import os
import sys
import time
import traceback


class Skip(Exception):
    """Raised by a group that cannot run here; counted apart from passes and failures."""


class Settings:
    """Where to connect, from the environment that run.sh sets."""

    def __init__(self):
        env = os.environ
        self.host = env.get("MILLRACE_TEST_HOST", "127.0.0.1")
        self.port = int(env["MILLRACE_TEST_PORT"])
        self.user = env["MILLRACE_TEST_USER"]
        self.password = env.get("MILLRACE_TEST_PASSWORD", "")
        self.db = env["MILLRACE_TEST_DB"]
        self.family = env["MILLRACE_TEST_FAMILY"]
        self.tls = env.get("MILLRACE_TEST_TLS", "0") == "1"
        self.socket = env.get("MILLRACE_TEST_SOCKET") or None
        if self.family not in ("mysql", "mariadb"):
            sys.exit("MILLRACE_TEST_FAMILY must be mysql or mariadb")


class Suite:
    def __init__(self):
        self.groups = []

    def group(self, function):
        """Registers a function; its name with blanks for underscores names the group."""
        self.groups.append(function)
        return function

    def run(self, *args):
        """Runs all groups in order, each with `args`; returns the process's exit status."""
        passed = failed = skipped = 0
        only = os.environ.get("MILLRACE_TEST_ONLY")
        for function in self.groups:
            name = function.__name__.replace("_", " ").strip()
            if only and only not in name:
                continue
            begun = time.monotonic()
            try:
                function(*args)
            except Skip as why:
                skipped += 1
                print(f"skip {name}: {why}", flush=True)
            except Exception as error:
                failed += 1
                print(f"FAIL {name}: {where(error)}: {type(error).__name__}: {error}", flush=True)
                if os.environ.get("MILLRACE_TEST_VERBOSE"):
                    traceback.print_exc()
            else:
                passed += 1
                print(f"ok   {name} ({time.monotonic() - begun:.2f} s)", flush=True)
        print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
        return 1 if failed or not passed else 0


def where(error):
    """The innermost line of our own code on the error's stack."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    ours = [f for f in traceback.extract_tb(error.__traceback__)
            if f.filename.startswith(here) and not f.filename.endswith("check.py")]
    frame = ours[-1] if ours else traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


def equal(got, wanted, what=""):
    if got != wanted:
        raise AssertionError(f"{what}{': ' if what else ''}got {shorten(got)}, wanted {shorten(wanted)}")


def true(value, what):
    if not value:
        raise AssertionError(f"{what}: got {shorten(value)}")


def shorten(value):
    text = repr(value)
    return text if len(text) < 300 else text[:280] + f"… ({len(text)} characters)"


def eventually(what, wanted, function, seconds=10.0):
    """For a read on another session than the one that wrote: it may lag, but not for ever."""
    end = time.monotonic() + seconds
    while True:
        got = function()
        if got == wanted:
            return
        if time.monotonic() > end:
            raise AssertionError(f"{what}: after {seconds} s still {shorten(got)}, wanted {shorten(wanted)}")
        time.sleep(0.05)
