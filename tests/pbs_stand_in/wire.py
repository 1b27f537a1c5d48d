# SPDX-License-Identifier: MIT OR Apache-2.0
"""How commands, moms and the server talk: a line of JSON each way, over sockets in a folder that all hosts of a lab share.

The kernel says who is at the other end, so nobody needs a password or a port of root's: a user's word about himself counts for nothing.
"""
import json
import os
import pwd
import socket
import struct

from .errors import NO_CONNECTION, Refused

# Hosts of a lab have one /etc.
FOLDER = "/etc/pbs_stand_in"
SERVER = FOLDER + "/server"


def of_mom(host):
    """The socket of a mom."""
    return "%s/mom.%s" % (FOLDER, host)


def listen(name):
    """A socket that everybody may use."""
    os.makedirs(FOLDER, mode=0o755, exist_ok=True)
    try:
        os.unlink(name)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(name)
    os.chmod(name, 0o777)
    listener.listen(128)
    return listener


def peer(connection):
    """The number and the name of the user at the other end."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid = struct.unpack("3i", data)[1]
    try:
        return uid, pwd.getpwuid(uid).pw_name
    except KeyError:
        return uid, str(uid)


class Talk:
    """One end of a connection that is read in pieces."""

    def __init__(self, connection):
        self.socket, self.read = connection, b""
        self.uid, self.user = peer(connection)

    def fileno(self):
        return self.socket.fileno()

    def lines(self):
        """Whole messages that have come; None at the end of all."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            return None
        *whole, self.read = (self.read + data).split(b"\n")
        return [json.loads(line) for line in whole]

    def send(self, message):
        """Sends a message; False where nobody is there any more."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
            return True
        except OSError:
            return False

    def close(self):
        self.socket.close()


def connect(name):
    """A connection to a daemon.

    Raises OSError where nobody listens.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(name)
    except OSError:
        connection.close()
        raise
    return Talk(connection)


def ask(op, **words):
    """The server's answer to a command.

    Raises Refused: the server refuses, or there is none.
    """
    try:
        talk = connect(SERVER)
    except OSError:
        raise Refused(NO_CONNECTION)
    talk.send(dict(words, op=op, host=os.uname().nodename))
    lines = []
    while not lines:
        lines = talk.lines()
        if lines is None:
            raise Refused(NO_CONNECTION)
    answer = lines[0]
    if "code" in answer:
        raise Refused((answer["code"], ""), words=answer["text"])
    return answer["answer"]
