"""Finds the sockets of a process by looking into /proc, without knowing what the process is.

A socket is named by its inode: /proc/PID/fd says which inodes a process holds, /proc/PID/net/* says
what each inode is. `find` returns the sockets that strangers can send to: TCP sockets that listen,
UDP, raw and packet sockets, Unix sockets that listen or are datagram sockets with a name.
"""
import dataclasses
import os
import pathlib
import socket
import stat
import time

UNIX_LISTENS = 0x10000  # __SO_ACCEPTCON in the flags of /proc/net/unix
TCP_LISTENS = "0A"
# A socket may be opened or closed between two reads: it is reported if no table has it in so many
# looks.
LOOKS = 5


@dataclasses.dataclass(frozen=True)
class Found:
    pid: int
    family: str  # tcp, tcp6, udp, udp6, raw, raw6, packet, unix, or unlisted
    address: str  # HOST:PORT, a path, @ABSTRACT, or the inode of what no table lists
    type: int = socket.SOCK_STREAM

    def is_internet(self) -> bool:
        return self.family not in ("unix", "unlisted")

    def is_abstract(self) -> bool:
        return self.family == "unix" and not self.address.startswith("/")


def with_children(pid: int) -> list[int]:
    """The process and all below it."""
    parents = {}
    for each in pathlib.Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                # The name before it, in parentheses, may hold anything.
                parents[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                pass  # it has ended
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def find(pid: int) -> list[Found]:
    for look in range(LOOKS):
        found = _find_once(pid)
        if not any(each.family == "unlisted" for each in found):
            return found
        time.sleep(0.05 * look)
    return found


def _find_once(pid: int) -> list[Found]:
    held = _socket_inodes(pid)
    found, listed = [], set()
    for family in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        for words in _rows(pid, family):
            inode = int(words[9])
            listed.add(inode)
            if inode in held and (not family.startswith("tcp") or words[3] == TCP_LISTENS):
                kind = {"t": socket.SOCK_STREAM, "u": socket.SOCK_DGRAM, "r": socket.SOCK_RAW}[family[0]]
                found.append(Found(pid, family, _internet_address(words[1]), kind))
    for words in _rows(pid, "packet"):
        listed.add(int(words[8]))
        if int(words[8]) in held:
            found.append(Found(pid, "packet", f"protocol {words[3]} of interface {words[4]}", socket.SOCK_RAW))
    # Between the process and the kernel only.
    listed |= {int(words[9]) for words in _rows(pid, "netlink")}
    for words in _rows(pid, "unix"):
        inode, path = int(words[6]), words[7] if len(words) > 7 else ""
        listed.add(inode)
        kind = int(words[4], 16)
        receives = int(words[3], 16) & UNIX_LISTENS or kind == socket.SOCK_DGRAM
        if inode in held and path and receives:
            found.append(Found(pid, "unix", _current_path(path), kind))
    return found + [Found(pid, "unlisted", str(inode)) for inode in held - listed]


def _current_path(bound: str) -> str:
    """The socket's path now: a renamed file keeps the part of its name after the first "-"."""
    folder, name = os.path.split(bound)
    if not bound.startswith("/") or os.path.lexists(bound) or not os.path.isdir(folder):
        return bound
    rest = name.partition("-")[2]
    renamed = [each.path for each in os.scandir(folder) if rest and each.name.endswith("-" + rest)]
    return renamed[0] if len(renamed) == 1 else bound


def _socket_inodes(pid: int) -> set[int]:
    inodes = set()
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return inodes  # the process has ended
    for descriptor in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            inodes.add(int(target[len("socket:["):-1]))
    return inodes


def _rows(pid: int, table: str) -> list[list[str]]:
    """Rows of a table of the process's network namespace, without the headings."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/net/{table}").read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return []  # the kernel has no such sockets, or the process has ended
    return [line.split(maxsplit=7 if table == "unix" else -1) for line in lines[1:]]


def _internet_address(hexadecimal: str) -> str:
    host, port = hexadecimal.split(":")
    words = [int(host[at:at + 8], 16).to_bytes(4, "little") for at in range(0, len(host), 8)]
    if len(words) == 1:
        return f"{socket.inet_ntop(socket.AF_INET, words[0])}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, b''.join(words))}]:{int(port, 16)}"


def broken_promises(found: list[Found], has_secret: bool, asked: set[str], borrows_only: bool) -> list[str]:
    """Promises of SECURITY.md that these sockets break.

    `asked`: addresses and paths that the command line named.
    """
    broken = []
    for each in found:
        what = f"process {each.pid} has a {each.family} socket at {each.address}"
        if each.family == "unlisted":
            broken.append(f"{what}: no table of /proc/net has that inode")
        elif borrows_only:
            broken.append(f"{what}, but a program that only borrows listens nowhere")
        elif each.is_internet() and not has_secret:
            broken.append(f"{what}, but without a secret no port opens")
        elif each.is_internet() and (each.family[:3] != "tcp" or each.address not in asked):
            broken.append(f"{what}, which nobody asked for: {', '.join(sorted(asked))}")
        elif each.is_abstract():
            broken.append(f"{what}: an abstract name is open to every user")
        elif each.family == "unix":
            broken += [f"{what}: {why}" for why in _open_to_others(each.address)]
    return broken


def _open_to_others(path: str) -> list[str]:
    folder = os.lstat(os.path.dirname(path))
    if not stat.S_ISDIR(folder.st_mode) or stat.S_IMODE(folder.st_mode) != 0o700:
        return [f"its folder has mode {stat.S_IMODE(folder.st_mode):o} instead of 700"]
    return [] if folder.st_uid == os.geteuid() else [f"its folder belongs to user {folder.st_uid}"]
