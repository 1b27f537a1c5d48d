# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory of GPUs in tiers, for programs in Python 3.9 or newer, by libgpuos.so.

    from gpuos import memory

    with memory.open(hbm=8 << 30, host=64 << 30) as mem:
        cache = mem.alloc(40 << 30)
        with cache.acquire(offset, length, write=True, stream=stream.cuda_stream) as part:
            launch(part.address, part.length)

An object may be larger than the GPU's memory: only what is acquired has to be there, and stays until the work that its stream was given before
it was released has ended. docs/user/memory.md has the whole of it, `gpuos.h` each function.

`device=None` has host memory take the place of a GPU's; then `part.view()` is its bytes. Nothing is imported but the standard library; with numpy,
`numpy.frombuffer(part.view(), dtype)` is an array without a copy.
"""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_long, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Optional, Union

__all__ = [
    "ADVICE", "Event", "Forked", "Full", "Memory", "NoDriver", "Object", "Part", "Poisoned", "SaveError", "TierError", "TimedOut",
    "library", "open", "saved", "torch_allocator",
]

ADVICE = {"normal": 0, "hot": 1, "cold": 2, "read-mostly": 3, "pin": 4}
_KINDS = {1: "wanted", 2: "over", 3: "less"}
_TIERS = {0: "hbm", 1: "host", 2: "file"}
_READ, _WRITE = 1, 2
_NO_STREAM = c_void_p(-1)


class TierError(Exception):
    """A call of libgpuos failed; the text has the call and the reason."""

    refuses = False  # Whether a session takes a checkpoint for unreadable, as its load raised this.


class Full(TierError, MemoryError):
    """There is no room."""


class TimedOut(TierError):
    """The time limit was over first."""


class Poisoned(TierError):
    """Bytes are lost, as they could not be read when they were moved."""


class NoDriver(TierError):
    """There is no driver, no such GPU, or no libgpuos.so."""


class Forked(TierError):
    """This process is a child of the one that opened the memory."""


class SaveError(TierError, OSError):
    """A folder or file of a save cannot be written or read, or is no save of what is registered."""

    refuses = True


_ERRORS = {-2: Full, -3: TimedOut, -4: Poisoned, -5: NoDriver, -6: Forked, -7: SaveError}


class Event(NamedTuple):
    """What the library tells of pressure: `wanted`, `over` or `less`, the tier, and bytes."""

    kind: str
    tier: str
    bytes: int


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("device", c_int32), ("flags", c_uint32), ("hbm", c_uint64), ("host", c_uint64), ("file", c_uint64),
        ("folder", c_char_p), ("extent", c_uint64), ("policy", c_char_p),
    ]


class _Event(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("kind", c_uint32), ("tier", c_uint32), ("bytes", c_uint64)]


_STATS = [
    "extent", "hbm_used", "hbm_limit", "host_used", "host_limit", "file_used", "file_limit", "objects", "tickets",
    "hits", "brought", "ahead", "copied", "dropped", "filed", "poisoned", "direct", "saves", "saved", "saved_hbm", "saved_shared",
]


class _Stats(ctypes.Structure):
    _fields_ = [("size", c_size_t), *((name, c_uint64) for name in _STATS)]


_SIGNATURES = {
    "open": [POINTER(_Options), POINTER(c_void_p)],
    "close": [c_void_p],
    "message": [c_char_p, c_size_t],
    "alloc": [c_void_p, c_uint64, c_uint, POINTER(c_uint64)],
    "map": [c_void_p, c_char_p, POINTER(c_uint64)],
    "place": [c_void_p, c_uint64, POINTER(c_uint64), POINTER(c_uint64)],
    "acquire": [c_void_p, c_uint64, c_uint64, c_uint64, c_uint, c_void_p, POINTER(c_uint64)],
    "wait": [c_void_p, c_uint64, c_long],
    "release": [c_void_p, c_uint64],
    "prefetch": [c_void_p, c_uint64, c_uint64, c_uint64],
    "advise": [c_void_p, c_uint64, c_uint64, c_uint64, c_int],
    "read": [c_void_p, c_uint64, c_uint64, c_void_p, c_size_t],
    "write": [c_void_p, c_uint64, c_uint64, c_void_p, c_size_t],
    "free": [c_void_p, c_uint64],
    "limit": [c_void_p, c_uint64, c_uint64, c_uint64],
    "pressure_fd": [c_void_p],
    "pressure": [c_void_p, POINTER(_Event)],
    "get_stats": [c_void_p, POINTER(_Stats)],
    "register": [c_void_p, c_uint64, c_char_p],
    "registered": [c_void_p, c_size_t, POINTER(c_uint64), c_char_p, c_size_t],
    "now": [c_void_p, POINTER(c_uint64)],
    "written": [c_void_p, c_uint64, c_uint64, c_uint64, POINTER(c_uint64), POINTER(c_uint64)],
    "save": [c_void_p, c_char_p, c_uint],
    "load": [c_void_p, c_char_p, c_uint],
    "saved": [c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_uint64)],
}

_loaded: Optional[ctypes.CDLL] = None


def library() -> str:
    """The path of libgpuos.so: `GPUOS_LIBRARY`, else where it is installed with this package, else what the loader finds."""
    named = os.environ.get("GPUOS_LIBRARY")
    if named:
        return named
    # PREFIX/share/gpuos/python/gpuos/memory.py beside PREFIX/lib/gpuos.
    installed = Path(__file__).resolve().parents[4] / "lib/gpuos/libgpuos.so.0" if len(Path(__file__).resolve().parents) > 4 else None
    return str(installed) if installed and installed.exists() else "libgpuos.so.0"


def _load() -> ctypes.CDLL:
    global _loaded
    if _loaded is None:
        try:
            loaded = ctypes.CDLL(library())
        except OSError as error:
            raise NoDriver(f"{error}: GPUOS_LIBRARY can name libgpuos.so") from None
        for name, arguments in _SIGNATURES.items():
            function = getattr(loaded, f"gpuos_mem_{name}")
            function.argtypes, function.restype = arguments, c_int
        loaded.gpuos_torch_use.argtypes, loaded.gpuos_torch_use.restype = [c_void_p, c_int], c_int
        for name in ("pause", "resume"):
            function = getattr(loaded, f"gpuos_torch_{name}")
            function.argtypes, function.restype = [c_int], c_int
        _loaded = loaded
    return _loaded


def _checked(code: int) -> int:
    if code < 0:
        text = ctypes.create_string_buffer(1024)
        _load().gpuos_mem_message(text, len(text))
        raise _ERRORS.get(code, TierError)(text.value.decode(errors="replace"))
    return code


def _call(name: str, *arguments: Any) -> int:
    return _checked(getattr(_load(), f"gpuos_mem_{name}")(*arguments))


def _limit(seconds: Optional[float]) -> int:
    return -1 if seconds is None else max(0, round(seconds * 1000))


class Part:
    """A part of an object that is acquired, or will be. A context manager: it waits at the beginning, and releases at the end."""

    def __init__(self, owner: "Object", offset: int, length: int, ticket: int):
        self.owner, self.offset, self.length = owner, offset, length
        self._ticket: Optional[int] = ticket

    @property
    def address(self) -> int:
        """Where the part begins in GPU memory: a CUdeviceptr."""
        return self.owner.address + self.offset

    def wait(self, limit: Optional[float] = None) -> "Part":
        """Waits until it is there, at most so many seconds. After an error other than `TimedOut` there is nothing left to release."""
        if self._ticket is None:
            raise TierError("the part was released before")
        try:
            _call("wait", self.owner._mem._handle, self._ticket, _limit(limit))
        except TimedOut:
            raise
        except TierError:
            self._ticket = None
            raise
        return self

    def view(self) -> memoryview:
        """The bytes, where host memory takes the place of a GPU's. Do not use it after the release."""
        if self.owner._mem.device is not None:
            raise TierError("the bytes are in a GPU's memory: read() copies them")
        if self._ticket is None:
            raise TierError("the part was released before")
        return memoryview((ctypes.c_ubyte * self.length).from_address(self.address)).cast("B")

    def release(self) -> None:
        """Gives it back. What its stream was given before keeps it there until it has ended."""
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            raise TierError("the part was released before")
        _call("release", self.owner._mem._handle, ticket)

    def __enter__(self) -> "Part":
        try:
            return self.wait()
        except BaseException:
            # Interrupted while it waits: nobody else will release it.
            if self._ticket is not None:
                self.release()
            raise

    def __exit__(self, *_: Any) -> None:
        if self._ticket is not None:
            self.release()


class Object:
    """An object. `address` is the same as long as it lives; only what is acquired may be touched there."""

    def __init__(self, mem: "Memory", number: int):
        self._mem, self.number = mem, number
        address, size = c_uint64(), c_uint64()
        _call("place", mem._handle, number, byref(address), byref(size))
        self.address, self.size = address.value, size.value

    def _rest(self, offset: int, length: Optional[int]) -> int:
        return self.size - offset if length is None else length

    def acquire(self, offset: int = 0, length: Optional[int] = None, *, read: bool = True, write: bool = False,
                stream: Optional[int] = None) -> Part:
        """Asks for a part, to be used by work on `stream` (a number, as torch's `cuda_stream`; 0 is the default stream; None: none)."""
        length = self._rest(offset, length)
        ticket = c_uint64()
        access = (_READ if read else 0) | (_WRITE if write else 0)
        on = _NO_STREAM if stream is None else c_void_p(stream)
        _call("acquire", self._mem._handle, self.number, _word(offset), _word(length), access, on, byref(ticket))
        return Part(self, offset, length, ticket.value)

    def prefetch(self, offset: int = 0, length: Optional[int] = None) -> None:
        """Asks for a part in advance."""
        _call("prefetch", self._mem._handle, self.number, _word(offset), _word(self._rest(offset, length)))

    def advise(self, advice: str, offset: int = 0, length: Optional[int] = None) -> None:
        """Says what the program knows about a part: a key of `ADVICE`."""
        if advice not in ADVICE:
            raise TierError(f"no advice {advice!r}: they are {', '.join(ADVICE)}")
        _call("advise", self._mem._handle, self.number, _word(offset), _word(self._rest(offset, length)), ADVICE[advice])

    def read(self, offset: int = 0, length: Optional[int] = None) -> bytes:
        """A copy of bytes from wherever they are, without moving them."""
        length = self._rest(offset, length)
        if not 0 < length <= self.size:
            raise TierError(f"{length} bytes of an object that has {self.size}")
        buffer = bytearray(length)
        _call("read", self._mem._handle, self.number, _word(offset), (ctypes.c_ubyte * length).from_buffer(buffer), length)
        return bytes(buffer)

    def write(self, data: Union[bytes, bytearray, memoryview], offset: int = 0) -> None:
        """Writes bytes, by way of GPU memory."""
        copy = bytes(data)
        _call("write", self._mem._handle, self.number, _word(offset), c_char_p(copy), len(copy))

    def register(self, name: Optional[str]) -> None:
        """Registers it for checkpoints under a name of its own; None: not any more."""
        _call("register", self._mem._handle, self.number, None if name is None else _name(name))

    def written(self, since: int = 0) -> "Iterator[tuple[int, int]]":
        """Offsets and lengths of what was written after a time of `Memory.now`, or may be being written; whole extents."""
        offset, length = c_uint64(), c_uint64()
        start = 0
        while _call("written", self._mem._handle, self.number, since, start, byref(offset), byref(length)):
            yield offset.value, length.value
            start = offset.value + length.value

    def free(self) -> None:
        """Frees it; no part of it may be held."""
        _call("free", self._mem._handle, self.number)


def _word(number: int) -> int:
    if not 0 <= number < 1 << 64:
        raise TierError(f"{number} is no offset or length")
    return number


def _text(text: "Union[str, os.PathLike[str]]") -> bytes:
    given = os.fsencode(text)
    if b"\0" in given:
        raise TierError(f"{text!r} has a NUL")
    return given


def _name(name: str) -> bytes:
    if "\0" in name:
        raise TierError(f"{name!r} has a NUL")
    return name.encode()


class Memory:
    """Memory in tiers, of `open`. A context manager that closes it."""

    def __init__(self, handle: c_void_p, device: Optional[int]):
        self._handle, self.device = handle, device

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends it with all its objects."""
        handle, self._handle = self._handle, c_void_p()
        _call("close", handle)

    def alloc(self, size: int) -> Object:
        """Makes an object of zeros."""
        number = c_uint64()
        _call("alloc", self._handle, _word(size), 0, byref(number))
        return Object(self, number.value)

    def map(self, path: "Union[str, os.PathLike[str]]") -> Object:
        """Makes an object of a file, which can only be read, and is shared in host memory with all who map it."""
        number = c_uint64()
        _call("map", self._handle, _text(path), byref(number))
        return Object(self, number.value)

    def limit(self, hbm: int, host: int, file: int = 0) -> None:
        """Other limits, in bytes."""
        _call("limit", self._handle, _word(hbm), _word(host), _word(file))

    def fileno(self) -> int:
        """The descriptor that is readable while there is an event: for `select` and `asyncio`."""
        return _call("pressure_fd", self._handle)

    def pressure(self) -> Optional[Event]:
        """The oldest event."""
        event = _Event(size=ctypes.sizeof(_Event))
        if not _call("pressure", self._handle, byref(event)):
            return None
        return Event(_KINDS.get(event.kind, str(event.kind)), _TIERS.get(event.tier, str(event.tier)), event.bytes)

    def stats(self) -> "dict[str, int]":
        """What is used, in bytes, and what was done, in extents."""
        stats = _Stats(size=ctypes.sizeof(_Stats))
        _call("get_stats", self._handle, byref(stats))
        return {name: getattr(stats, name) for name in _STATS}

    def now(self) -> int:
        """The time of now, for `Object.written`."""
        time = c_uint64()
        _call("now", self._handle, byref(time))
        return time.value

    def registered(self) -> "dict[str, int]":
        """Names and numbers of the objects that are registered."""
        found: "dict[str, int]" = {}
        number, name = c_uint64(), ctypes.create_string_buffer(4096)
        while _call("registered", self._handle, len(found), byref(number), name, len(name)):
            found[name.value.decode()] = number.value
        return found

    def save(self, folder: "Union[str, os.PathLike[str]]") -> None:
        """Saves all registered objects into a folder, as `write` of a session's `save`. Reads from GPU memory no more than was written since the
        last save where the file system can have files share bytes."""
        _call("save", self._handle, _text(folder), 0)

    def load(self, folder: "Union[str, os.PathLike[str]]") -> None:
        """Loads all registered objects from such a folder: the same names and sizes. SaveError: it is no such save, and nothing has changed unless the
        text says so."""
        _call("load", self._handle, _text(folder), 0)

    def use_for_torch(self, device: int = 0) -> None:
        """Has segments of `torch_allocator` on this device come from here."""
        _checked(_load().gpuos_torch_use(self._handle, device))

    @staticmethod
    def pause_torch(device: int = 0) -> None:
        """Lets all such segments leave GPU memory; nothing may use them until `resume_torch`."""
        _checked(_load().gpuos_torch_pause(device))

    @staticmethod
    def resume_torch(device: int = 0) -> None:
        """Has them in GPU memory again, at the same addresses."""
        _checked(_load().gpuos_torch_resume(device))


def open(*, device: Optional[int] = 0, hbm: int = 0, host: int = 0, file: int = 0,  # noqa: A001 - named with its module
         folder: "Optional[Union[str, os.PathLike[str]]]" = None, extent: int = 0, policy: Optional[str] = None) -> Memory:
    """Opens memory in tiers: bytes of each tier, as gpuos_mem_options of gpuos.h has them. `device=None`: host memory takes the place of a GPU's."""
    options = _Options(
        size=ctypes.sizeof(_Options), device=-1 if device is None else device, hbm=_word(hbm), host=_word(host), file=_word(file),
        folder=None if folder is None else os.fsencode(folder), extent=_word(extent), policy=None if policy is None else policy.encode(),
    )
    handle = c_void_p()
    _call("open", byref(options), byref(handle))
    return Memory(handle, device)


def saved(folder: "Union[str, os.PathLike[str]]") -> "dict[str, int]":
    """Names and bytes of the objects that are saved in a folder, to allocate and register them before `Memory.load`."""
    found: "dict[str, int]" = {}
    size, name = c_uint64(), ctypes.create_string_buffer(4096)
    index = 0
    while _call("saved", _text(folder), index, name, len(name), byref(size)):
        found[name.value.decode()] = size.value
        index += 1
    return found


def torch_allocator() -> Any:
    """An allocator for `torch.cuda.MemPool(memory.torch_allocator().allocator())`, after `Memory.use_for_torch`."""
    _load()
    import torch  # noqa: PLC0415 - only programs that have it call this

    return torch.cuda.memory.CUDAPluggableAllocator(library(), "gpuos_torch_malloc", "gpuos_torch_free")
