"""What tests need of the system. They skip without it, but not where CI has seen that it is there.

.ci/run says so in $HOTRELOAD_CI_HAS, in Debian's names for packages; nobody else sets it.
"""

import os
import re
from collections.abc import Generator
from typing import Any

import pytest

VARIABLE = "HOTRELOAD_CI_HAS"
WANTED_BY = {
    "tests/systemd/": "systemd",
    "tests/page/": "chromium",
    "tests/monitoring/": "prometheus",
    "tests/observe/test_metrics.py": "prometheus",
    "tests/integration/test_top.py": "tmux",
}
"""Tests that skip for want of this and of nothing else."""


def had_all_the_same(nodeid: str, reason: str, has: str) -> str | None:
    """The package for want of which a test skipped though CI has it; None when it may skip."""
    named = re.findall(r"apt-get install ([\w.+-]+)", reason)
    wanted = [package for place, package in WANTED_BY.items() if nodeid.startswith(place)]
    return next((package for package in (*named, *wanted) if package in has.split()), None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Make a skip a failure where there is no reason for it."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        package = had_all_the_same(item.nodeid, reason, os.environ.get(VARIABLE, ""))
        if package is not None:
            report.outcome = "failed"
            report.longrepr = f"skipped ({reason}), though .ci/run has seen that {package} is here"
    return report
