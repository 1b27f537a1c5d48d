# SPDX-License-Identifier: MIT OR Apache-2.0
"""What qmgr asks: objects are made, set, unset and deleted, and hooks imported and exported."""
import os
import re

from . import hooks, values
from .errors import (BAD_VALUE, NO_ATTRIBUTE, NODE_EXISTS, NODE_STATE, NOT_HERE, RESOURCE_BUSY, RESOURCE_EXISTS, UNAUTHORIZED, UNKNOWN_NODE, UNKNOWN_QUEUE,
                     UNKNOWN_RESOURCE, Refused)
from .nodes import SET
from .records import path, write

# What can be set of the server and of queues; anything else is a mistake of whoever writes it, or is missing here.
OF_SERVER = set("scheduling acl_roots flatuid job_history_enable job_history_duration log_events node_fail_requeue default_queue query_other_jobs resv_enable "
                "node_group_key node_group_enable scheduler_iteration job_sort_formula max_run backfill_depth managers operators job_requeue_timeout "
                "restrict_res_to_release_on_suspend eligible_time_enable".split())
OF_QUEUES = set("queue_type enabled started Priority max_run partition node_group_key".split())
WITH_RESOURCES = ("resources_default", "resources_available", "default_chunk", "resources_max")
TRUTHS = ("scheduling", "flatuid", "job_history_enable", "query_other_jobs", "resv_enable", "node_group_enable", "enabled", "started", "eligible_time_enable")
HOOK = {"enabled", "event", "alarm", "freq", "order", "debug", "fail_action", "user", "type"}
SCRIPT, CONFIG = "application/x-python", "application/x-config"


def hook_error(words):
    """A refusal about a hook, with its own words in front of PBS's sentence."""
    return Refused((15136, ""), words=words)


def manager(asker):
    if not asker.manager:
        raise Refused(UNAUTHORIZED)


def act(server, asker, words):
    """One line of qmgr: `do` something to an object of a kind, by the name of an attribute, an operator and a value."""
    manager(asker)
    ALL[words["kind"]](server, words["do"], words["name"], words.get("key"), words.get("sign"), words.get("value"))
    server.save()


def of_resource(server, do, name, key, sign, value):
    known = server.resources.own.get(name)
    if do == "create":
        wanted = dict(type="string", flag="")
        for word in [word for word in (value or "").split(",") if word]:
            part, _, text = word.partition("=")
            if part.strip() not in ("type", "flag"):
                raise Refused(NO_ATTRIBUTE, part)
            wanted[part.strip()] = text.strip()
        if known or name in values.BUILT_IN:
            raise Refused(RESOURCE_EXISTS, words="Resource already exists")
        if wanted["type"] not in values.TYPES or not values.NAME.match(name):
            raise Refused(BAD_VALUE)
        server.resources.own[name] = dict(wanted, flag=flags(wanted["flag"]))
    elif known is None:
        raise Refused(UNKNOWN_RESOURCE)
    elif any(name in job.resources or re.search(r"\b%s=" % re.escape(name), job.resources.get("select", "")) for job in server.jobs.values()):
        raise Refused(RESOURCE_BUSY)
    elif do == "delete":
        del server.resources.own[name]
        for node in server.nodes.all.values():
            node.resources.pop(name, None)
    elif key == "flag":
        known["flag"] = flags(value)
    else:
        raise Refused(NO_ATTRIBUTE, key)
    server.hooks_changed()


def flags(text):
    if set(text) - values.FLAGS:
        raise Refused(BAD_VALUE)
    return "".join(letter for letter in "hnfqirm" if letter in text)


def of_node(server, do, name, key, sign, value):
    node = server.nodes.all.get(name)
    if do == "create":
        if node:
            raise Refused(NODE_EXISTS)
        server.nodes.add(name, name)
        server.take_vnodes(name)
        return
    if node is None:
        raise Refused(UNKNOWN_NODE)
    if do == "delete":
        if server.nodes.taken[name]:
            raise Refused((15027, "Cannot delete busy object"))
        server.nodes.remove(name)
        return
    part, _, resource = key.partition(".")
    if part == "resources_available" and resource:
        if server.resources.get(resource) is None:
            raise Refused(UNKNOWN_RESOURCE, key)
        try:
            node.set_resource(resource, server.resources.value(resource, value, part) if do == "set" and value else "", SET)
        except Refused:
            raise Refused(BAD_VALUE)
    elif key == "state":
        if value not in ("offline", "free", None):
            raise Refused(NODE_STATE)
        node.kept["offline"] = do == "set" and value == "offline"
    elif key in ("comment", "queue", "resv_enable"):
        node.kept[key] = value or ""
    else:
        raise Refused(NO_ATTRIBUTE, key)
    server.nodes.note_states()


def of_server(server, do, name, key, sign, value):
    settings(server, server.attributes, OF_SERVER, do, key, value)


def of_queue(server, do, name, key, sign, value):
    if do == "create":
        server.queues[name] = {"queue_type": "Execution", "enabled": "False", "started": "False"}
        for word in [word for word in (value or "").split(",") if word]:
            part, _, text = word.partition("=")
            settings(server, server.queues[name], OF_QUEUES, "set", part.strip(), text.strip())
        return
    if name not in server.queues:
        raise Refused(UNKNOWN_QUEUE)
    if do == "delete":
        del server.queues[name]
        return
    settings(server, server.queues[name], OF_QUEUES, do, key, value)


def settings(server, has, known, do, key, value):
    """Sets or unsets an attribute of the server or of a queue."""
    part, _, resource = key.partition(".")
    if resource and part in WITH_RESOURCES:
        if do == "set":
            has.setdefault(part, {})[resource] = server.resources.value(resource, value, part)
        else:
            has.get(part, {}).pop(resource, None)
        return
    if key not in known:
        raise Refused(NOT_HERE, "attribute " + key)
    if do == "unset":
        has.pop(key, None)
        return
    try:
        has[key] = values.boolean(value) if key in TRUTHS else value
    except ValueError:
        raise Refused(BAD_VALUE)
    if key == "queue_type":
        has[key] = {"e": "Execution", "r": "Route"}.get(value[:1].lower(), value)


def of_hook(server, do, name, key, sign, value):
    hook = server.hooks.get(name)
    if do == "create":
        if hook:
            raise hook_error("hook name '%s' already registered, try another name" % name)
        server.hooks[name] = {"attributes": dict(hooks.DEFAULTS), "script": ""}
        return
    if hook is None:
        raise hook_error("%s does not exist!" % name if do == "delete" else "hook not found")
    if do == "delete":
        del server.hooks[name]
        for end in (".PY", ".CF"):
            if os.path.exists(path("server_priv", "hooks", name + end)):
                os.unlink(path("server_priv", "hooks", name + end))
    else:
        set_hook(name, hook["attributes"], key, sign, value)
    server.hooks_changed()


def set_hook(name, has, key, sign, value):
    if key not in HOOK:
        raise hook_error("Undefined attribute  - %s" % key)
    if key == "event":
        words = [word for word in value.split(",") if word]
        wrong = [word for word in words if word not in hooks.EVENTS]
        if wrong:
            raise hook_error("invalid argument (%s) to event. Should be one or more of: %s" % (wrong[0], ",".join(hooks.EVENTS)))
        old = [word for word in has["event"].split(",") if word in hooks.EVENTS]
        new = {"=": words, "+=": old + words, "-=": [word for word in old if word not in words]}[sign]
        has["event"] = ",".join(event for event in hooks.EVENTS if event in new) or '""'
    elif key in ("alarm", "freq", "order"):
        if not value.isdigit() or int(value) < 1:
            raise hook_error("%s value of a hook must be > 0" % key)
        has[key] = value
    elif key in ("enabled", "debug"):
        try:
            has[key] = values.boolean(value).lower()
        except ValueError:
            raise hook_error("unexpected value '%s' must be (not case sensitive) true|t|y|1|false|f|n|0" % value)
    else:
        has[key] = value


def import_hook(server, asker, words):
    """A hook's script or its configuration, as qmgr has read it."""
    manager(asker)
    hook = server.hooks.get(words["name"])
    if hook is None:
        raise hook_error("hook not found")
    if words["type"] == SCRIPT:
        try:
            compile(words["text"], words["name"], "exec")
        except SyntaxError as why:
            raise hook_error("Failed to compile script: %s" % why)
        hook["script"] = words["text"]
    end = {SCRIPT: ".PY", CONFIG: ".CF"}[words["type"]]
    write(path("server_priv", "hooks", words["name"] + end), words["text"], 0o700)
    server.hooks_changed()


def stathook(server, asker, words):
    manager(asker)
    if words["name"] and words["name"] not in server.hooks:
        raise hook_error("hook not found")
    found = {name: hook["attributes"] for name, hook in server.hooks.items() if words["name"] in ("", name)}
    return {name: {key: has[key] for key in hooks.ORDER if key in has} for name, has in found.items()}


def export_hook(server, asker, words):
    manager(asker)
    hook = server.hooks.get(words["name"])
    if hook is None:
        raise hook_error("hook not found")
    return hook["script"] if words["type"] == SCRIPT else server.config(words["name"])


def terminate(server, asker, words):
    manager(asker)
    server.over = True


ALL = {"resource": of_resource, "node": of_node, "server": of_server, "queue": of_queue, "hook": of_hook}
OPS = {"manage": act, "import": import_hook, "export": export_hook, "stathook": stathook, "terminate": terminate}
