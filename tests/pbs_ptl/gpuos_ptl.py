# SPDX-License-Identifier: MIT OR Apache-2.0
"""A plugin of pbs_benchpress: notes how each test ended, bounds its time, and puts gpuos into PBS again after PTL's setUp has reverted the server, as its
administrator would. On the side without gpuos it only notes."""
import collections
import collections.abc
import json
import os
import subprocess
import time
import traceback

from nose.plugins.base import Plugin
from nose.plugins.skip import SkipTest
from ptl.utils.pbs_testsuite import PBSTestSuite
from ptl.utils.plugins.ptl_test_runner import PTLTestRunner

INSTALL = os.environ.get("GPUOS_PTL_INSTALL", "").split()
HOOK = ["/var/spool/pbs/mom_priv/hooks/gpuos." + part for part in ("HK", "PY", "CF")]
# Of the test that runs.
STATE = {"began": time.time()}

# PTL of this age uses names that Python has no more since 3.10.
for known in ("Callable", "Iterable", "Mapping", "MutableMapping", "Sequence"):
    setattr(collections, known, getattr(collections.abc, known))

set_up, tear_down = PBSTestSuite.setUp, PBSTestSuite.tearDown


def set_up_and_install(self):
    STATE.clear()
    STATE["began"] = time.time()
    set_up(self)
    if not INSTALL:
        return
    ran = subprocess.run(INSTALL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if ran.returncode != 0:
        raise Exception("gpuos pbs install failed: " + ran.stdout.decode(errors="replace"))
    # A mom has the files of a hook some time after qmgr has returned.
    until = time.time() + 20
    while not all(map(os.path.exists, HOOK)) and time.time() < until:
        time.sleep(0.1)
    # PTL writes this file from what it remembers of it.
    self.scheduler.parse_sched_config()


def note_and_tear_down(self):
    if INSTALL:
        ran = subprocess.run(["qmgr", "-c", "list hook gpuos"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        STATE["hook_at_end"] = b"enabled = true" in ran.stdout
    tear_down(self)


PBSTestSuite.setUp, PBSTestSuite.tearDown = set_up_and_install, note_and_tear_down
# Each test has this time, also one that asks for more.
PTLTestRunner._PTLTestRunner__get_timeout = lambda self, test: int(os.environ.get("GPUOS_PTL_LIMIT", 180))


class Results(Plugin):
    """Writes a line of JSON for each test."""

    name = "gpuos-results"

    def options(self, parser, env):
        """It has none."""

    def configure(self, options, config):
        self.enabled = True

    def note(self, test, outcome, err=None):
        case = getattr(test, "test", None) or getattr(test, "context", None)
        suite = case if isinstance(case, type) else type(case)
        line = dict(STATE, file=suite.__module__.split(".")[-1], suite=suite.__name__, outcome=outcome, ended=time.time())
        line["test"] = getattr(case, "_testMethodName", "setUpClass")
        if err:
            line["error"] = "".join(traceback.format_exception(*err))[-6000:]
        with open(os.environ["GPUOS_PTL_RESULTS"], "a") as file:
            file.write(json.dumps(line) + "\n")

    def addSuccess(self, test):
        self.note(test, "pass")

    def addFailure(self, test, err):
        self.note(test, "fail", err)

    def addError(self, test, err):
        self.note(test, "skip" if issubclass(err[0], SkipTest) else "fail", err)
