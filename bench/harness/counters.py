"""What Millrace counts of its cache, as its /metrics page tells."""

import re
import time
import urllib.request
from collections import Counter

PREFIX = "millrace_cache_"
LINE = re.compile(rf"^{PREFIX}(\w+?)(?:_total)?(?:{{(.*)}})? ([-+.\deE]+)$", re.MULTILINE)
#: What the page tells is at most so old.
AGE_SECONDS = 1.1
FOLLOWS_WITHIN_SECONDS = 15


class Counters:
    """All of them, as the page tells them."""

    def __init__(self, address):
        self.address = address
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
            text = page.read().decode()
        self.sums, self.kinds = Counter(), Counter()
        for name, labels, value in LINE.findall(text):
            self.sums[name] += float(value)
            self.kinds[name, labels] = float(value)

    def since(self, before, name):
        return self.sums[name] - before.sums[name]

    def causes(self, before, name):
        """{what its label says: growth} of one counter, the most first."""
        grown = {labels: value - before.kinds[of, labels] for (of, labels), value in self.kinds.items() if of == name}
        return dict(sorted(((key, value) for key, value in grown.items() if value), key=lambda one: -one[1]))

    def follows(self):
        """Whether the primary's binary log is followed."""
        return "follower_silence_seconds" in self.sums


def of(running):
    """Of a started system, all that it has done until now; None where it counts nothing."""
    if not running.metrics_address:
        return None
    time.sleep(AGE_SECONDS)
    return Counters(running.metrics_address)


def wait_until_following(running):
    """Before it follows the log, nothing is kept."""
    deadline = time.monotonic() + FOLLOWS_WITHIN_SECONDS
    while not Counters(running.metrics_address).follows():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{running.system.name}'s cache does not follow the binary log:\n{running.log_end()}")
        time.sleep(0.05)
