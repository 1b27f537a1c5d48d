# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is refused: numbers and sentences of PBS, as its commands print them. A command ends with the number modulo 256."""

# The sentences end as PBS's do, some with a blank.
UNKNOWN_JOB = 15001, "Unknown Job Id"
NO_ATTRIBUTE = 15002, "Undefined Attribute"
READ_ONLY = 15003, "Cannot set attribute, read only or insufficient permission "
UNAUTHORIZED = 15007, "Unauthorized Request "
BAD_VALUE = 15014, "Illegal attribute or resource value"
RUNNING = 15015, "Cannot modify attribute while job running "
BAD_STATE = 15016, "Request invalid for state of job"
UNKNOWN_QUEUE = 15018, "Unknown queue"
UNKNOWN_RESOURCE = 15035, "Unknown resource"
NOT_RERUNNABLE = 15038, "job is not rerunnable"
NO_CONNECTION = 111, "Connection refused"
MOM_REJECTS = 15041, "Execution server rejected request"
UNKNOWN_NODE = 15062, "Unknown node "
NODE_EXISTS = 15066, "Node name already exists"
NODE_STATE = 15067, "Illegal value for node state"
NO_NODES = 15044, "No available resources on nodes"
BESIDE_SELECT = 15109, '"-lresource=" cannot be used with "select" or "place", resource is: %s'
TWICE_IN_CHUNK = 15116, "duplicated resource within a section of a select specification, resource is: %s"
HOOK_ERROR = 15136, "hook error returned from server"
FINISHED = 15139, "Job has finished"
RESOURCE_BUSY = 15174, "Resource busy on job"
RESOURCE_EXISTS = 15025, "Resource already exists"
# Not PBS's: what is not there in the stand-in.
NOT_HERE = 15029, "the stand-in for PBS has no %s; run this test on a real PBS"


class Refused(Exception):
    """A request that is refused. `about` is what PBS names behind its sentence, such as `Resource_List.mem`."""

    def __init__(self, error, about="", words=None):
        code, sentence = error
        if "%s" in sentence:
            sentence, about = sentence % about, ""
        self.code = code
        self.text = words if words is not None else (sentence + (" " + about if about else ""))
        super().__init__(self.text)


class Misuse(Exception):
    """gpuos has done what no PBS takes and no test may do: the daemon that sees it says so in its log and ends."""
