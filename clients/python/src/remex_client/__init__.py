"""Run processes, copy files and make HTTP requests on a remote host, across disconnects.

    import remex_client

    async with remex_client.connect("ws://127.0.0.1:7070") as host:
        result = await host.run(["make", "test"], cwd="/srv/project")
        print(result.exit_code, result.text)

Start at `connect`, which gives a `Host`. `remex_client.sync` has the same without `await`,
`remex_client.asyncio_subprocess` has the shapes of `asyncio.subprocess`, `remex_client.agent` serves the tool calls of
a language model, and `remex_client.models` has the types of the protocol.
"""

from ._errors import (
    AlreadyExistsError,
    ChangedError,
    CommandFailedError,
    GapError,
    LocalError,
    NoMatchError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    RefusedError,
    RemexError,
    RemoteIsADirectoryError,
    RemoteNotADirectoryError,
    RemoteOSError,
    RequestInterrupted,
    RequestInterruptedError,
    SessionLostError,
    StdinClosedError,
    TimedOutError,
    UnauthorizedError,
    UnreachableError,
    UsageError,
)
from ._event import Chunk, Closed, Event, Exited, Gap, Stream
from ._exit import DeniedHost, Exit, Usage
from ._file_search import FoundFile, FoundLine, SearchResult
from ._files import Change, Changes, DirEntry, Files, Metadata, Walk, Watch, content_hash
from ._host import Command, Connecting, Host, connect
from ._http import Http, Response, StreamingResponse
from ._lines import Line, LineBatch, Lines
from ._match import Match
from ._observe import ObservedEvents, SessionInfo
from ._options import ConnectionState, Resume
from ._process import Process, ProcessInfo, ProcessRef, Snapshot
from ._result import Result
from ._start import DEVNULL, PIPE, ProcessOptions, StartOptions
from ._stdin import Stdin
from ._streams import Chunks, Events, PolledEvents, Reader
from ._target import Program, Target, Unix, WebSocket
from ._text_file import RemoteTextReader, RemoteTextWriter
from ._transfer import Progress, RemoteReader, RemoteWriter
from ._tree import TreeCopied

__version__ = "0.1.0"

__all__ = [
    "DEVNULL",
    "PIPE",
    "AlreadyExistsError",
    "Change",
    "ChangedError",
    "Changes",
    "Chunk",
    "Chunks",
    "Closed",
    "Command",
    "CommandFailedError",
    "Connecting",
    "ConnectionState",
    "DeniedHost",
    "DirEntry",
    "Event",
    "Events",
    "Exit",
    "Exited",
    "Files",
    "FoundFile",
    "FoundLine",
    "Gap",
    "GapError",
    "Host",
    "Http",
    "Line",
    "LineBatch",
    "Lines",
    "LocalError",
    "Match",
    "Metadata",
    "NotFoundError",
    "ObservedEvents",
    "PermissionDeniedError",
    "PolledEvents",
    "Process",
    "NoMatchError",
    "ProcessInfo",
    "ProcessOptions",
    "ProcessRef",
    "Program",
    "Progress",
    "ProtocolError",
    "Reader",
    "RefusedError",
    "RemexError",
    "RemoteIsADirectoryError",
    "RemoteNotADirectoryError",
    "RemoteOSError",
    "RemoteReader",
    "RemoteTextReader",
    "RemoteTextWriter",
    "RemoteWriter",
    "RequestInterrupted",
    "RequestInterruptedError",
    "Response",
    "Result",
    "Resume",
    "SearchResult",
    "SessionInfo",
    "SessionLostError",
    "Snapshot",
    "StartOptions",
    "Stdin",
    "StdinClosedError",
    "Stream",
    "StreamingResponse",
    "Target",
    "TimedOutError",
    "TreeCopied",
    "UnauthorizedError",
    "Unix",
    "UnreachableError",
    "Usage",
    "UsageError",
    "Walk",
    "Watch",
    "WebSocket",
    "connect",
    "content_hash",
]
