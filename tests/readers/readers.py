"""Reads user data and network data as a guest does: one JSON document per line in, one answer per line out.

    {"field": "userData", "text": "..."}  ->  {"fails": ["packages: ..."], "complains": ["runcmd: ..."]}

`fails` is what ends the whole document or a module, `complains` what only cloud-init's JSON Schema objects to.
The folder of the unpacked packages is the only argument. Nothing of this machine is read or changed.
"""

import copy
import ctypes
import glob
import json
import logging
import os
import signal
import sys
import tempfile

root = sys.argv[1]
sys.path.insert(0, os.path.join(root, "usr/lib/python3/dist-packages"))
logging.disable(logging.CRITICAL)

from cloudinit import handlers, net, safeyaml, util  # noqa: E402
from cloudinit.config import cc_power_state_change, schema  # noqa: E402
from cloudinit.distros import Distro, ug_util  # noqa: E402
from cloudinit.net import netplan, network_state  # noqa: E402


# Of processor time: a document may be one that a reader never ends with, such as aliases of aliases.
SECONDS = 3


class Unending(BaseException):
    pass


def stop(*_):
    raise Unending


class GError(ctypes.Structure):
    _fields_ = [("domain", ctypes.c_uint32), ("code", ctypes.c_int), ("message", ctypes.c_char_p)]


def library(name):
    found = sorted(glob.glob(f"{root}/usr/lib/*/{name}.so.*"))
    return ctypes.CDLL(found[0], mode=ctypes.RTLD_GLOBAL)


library("libyaml-0")
libnetplan = library("libnetplan")
libnetplan.netplan_parser_new.restype = ctypes.c_void_p
libnetplan.netplan_state_new.restype = ctypes.c_void_p
draft = tempfile.NamedTemporaryFile(mode="w", suffix=".yaml", encoding="utf-8")


def read_by_netplan(text):
    """The fault that netplan reports. A process of its own survives netplan's assertions."""
    draft.seek(0)
    draft.truncate()
    draft.write(text)
    draft.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        parser = ctypes.c_void_p(libnetplan.netplan_parser_new())
        state = ctypes.c_void_p(libnetplan.netplan_state_new())
        error = ctypes.POINTER(GError)()
        path = draft.name.encode()
        accepted = libnetplan.netplan_parser_load_yaml(parser, path, ctypes.byref(error)) and (
            libnetplan.netplan_state_import_parser_results(state, parser, ctypes.byref(error))
        )
        message = b"" if accepted else error.contents.message if error else b"no reason"
        os.write(writing, b"=" + message)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        message = answer.read().decode(errors="replace")
    os.waitpid(child, 0)
    if not message:
        return "crashes"
    return message[1:].split(".yaml:", 1)[-1] or None


class Distribution:
    name = "debian"
    shutdown_options_map = Distro.shutdown_options_map

    def get_default_user(self):
        return {"name": "debian", "groups": ["adm"], "lock_passwd": True}

    def shutdown_command(self, **given):
        return Distro.shutdown_command(self, **given)


def as_in_guest(name, call):
    """What a module of cloud-init raises."""
    try:
        call()
    except Exception as error:
        return [f"{name}: {type(error).__name__}: {error}"]
    return []


validator, formats = schema.get_jsonschema_validator()
release = schema.get_schema()
user_data_schema = validator(release, format_checker=formats())
known = {key for one in release["$defs"].values() for key in one.get("properties", {})}


def user_data(text):
    kind = handlers.type_from_starts_with(text)
    if kind is None:
        return {"fails": ["format: unknown"]}
    if kind != "text/cloud-config":
        return {}
    try:
        config = safeyaml.load(text)
    except Exception as error:
        return {"fails": [f"yaml: {error}"]}
    if config is None:
        return {}
    if not isinstance(config, dict):
        return {"fails": ["document: not a mapping"]}
    own = lambda: copy.deepcopy(config)
    fails = as_in_guest("users", lambda: ug_util.normalize_users_groups(own(), Distribution()))
    if "packages" in config:
        packages = lambda: util.expand_package_list("%s=%s", util.get_cfg_option_list(own(), "packages", []))
        fails += as_in_guest("packages", packages)
    for key in ["runcmd", "bootcmd"]:
        if config.get(key) is not None:
            fails += as_in_guest(key, lambda: util.shellify(config[key]))
    fails += as_in_guest("power_state", lambda: cc_power_state_change.load_power_state(own(), Distribution()))
    complains = [f"{key}: is not in the schema of this release" for key in config if key not in known]
    try:
        for error in user_data_schema.iter_errors(config):
            if not isinstance(error, schema.SchemaDeprecationError):
                path = ".".join(str(step) for step in error.path)
                complains.append(f"{path}: {error.message}"[:300])
    except Exception as error:  # a key that is no text, or a type that JSON does not have
        complains.append(f": {error}")
    return {"fails": fails, "complains": complains}


def network_data(text):
    try:
        config = safeyaml.load(text)
    except Exception as error:
        return {"fails": [f"yaml: {error}"]}
    if not config:
        return {}
    if isinstance(config, dict) and "network" in config:
        config = config["network"]
    if isinstance(config, dict) and net.is_disabled_cfg(config):
        return {}
    if not config:
        return {}
    try:
        if config.get("version") == 2:
            renderer = netplan.Renderer({})
            state = network_state.parse_net_config_data(config, renderer=renderer)
            rendered = renderer._render_content(state)
        else:
            network_state.parse_net_config_data(config, skip_broken=False)
            return {}
    except Exception as error:
        return {"fails": [f"cloud-init: {type(error).__name__}: {error}"]}
    fault = read_by_netplan(rendered)
    return {"fails": [f"netplan: {fault}"]} if fault else {}


signal.signal(signal.SIGPROF, stop)
for line in sys.stdin:
    document = json.loads(line)
    read = user_data if document["field"] == "userData" else network_data
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        answer = read(document["text"])
    except Unending:
        answer = {"fails": ["time: does not end"]}
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps(answer), flush=True)
