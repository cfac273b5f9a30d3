"""The same as `remex_client`, without `await`: one thread with an event loop does the work.

    from remex_client import sync

    with sync.connect("ws://127.0.0.1:7070") as host:
        print(host.run(["uname", "-a"]).text)

Everything may be called from any thread; Ctrl-C cancels a call. Generated from the asynchronous classes by
scripts/generate_sync.py; do not edit.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TYPE_CHECKING, overload

from . import _files, _host, _http, _lines, _observe, _process, _stdin, _streams, _text_file, _transfer, agent, models
from ._codec import StrPath
from ._event import Chunk, Closed, Event, Stream
from ._exit import Exit
from ._file_search import SearchReport, SearchResult
from ._files import Changes, DirEntry, Metadata, Walk
from ._http import Headers, Response
from ._line_face import LineFace
from ._lines import MAX_LINE_BYTES
from ._match import Match
from ._observe import SessionInfo
from ._options import ConnectionState, SessionChoice, UNSET, Unset
from ._portal import Face, Portal
from ._process import ProcessInfo, Snapshot
from ._queue import WINDOW_BYTES
from ._result import OutputCallback, Result
from ._start import Command, DEVNULL, StartOptions, Tty
from ._stdin import Data, Input
from ._target import Target, Token
from ._text import TruncatedText
from ._transfer import LocalPath, Progress
from ._tree import SkipUnchanged, TreeCopied
from .agent import Limits, ListedProcess, Step

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Events(Face[_streams.Events]):
    """The events of one process for one consumer, in order and exactly once. `async for` ends after `Closed`."""

    def __iter__(self) -> Iterator[Event]:
        return self._each(self._inner)

    def __next__(self) -> Event:
        return self._next(self._inner)

    def next(self) -> Event | None:
        """Waits for the next event; None after the last. Cancelling it loses nothing."""
        return self._run(self._inner.next())

    def close(self) -> None:
        """Lifts the backpressure of this consumer."""
        self._call(lambda: self._inner.close())


class PolledEvents(Face[_streams.PolledEvents]):
    """The events of a process of another session, in order; what was dropped is a `Gap`."""

    def __iter__(self) -> Iterator[Event]:
        return self._each(self._inner)

    def __next__(self) -> Event:
        return self._next(self._inner)

    def next(self) -> Event | None:
        """Waits for the next event; None after the last. Cancelling it loses nothing."""
        return self._run(self._inner.next())

    def close(self) -> None:
        """Does nothing: a reference holds up no process."""
        self._call(lambda: self._inner.close())


class Chunks(Face[_streams.Chunks]):
    """The output of a process, in order and exactly once. At a gap it raises `GapError`, and can be continued."""

    def __iter__(self) -> Iterator[Chunk]:
        return self._each(self._inner)

    def __next__(self) -> Chunk:
        return self._next(self._inner)

    def close(self) -> None:
        """Lifts the backpressure of this consumer."""
        self._call(lambda: self._inner.close())


class Reader(Face[_streams.Reader]):
    """One stream of a process as bytes, with the methods of `asyncio.StreamReader`.

    At a gap, reading raises `GapError` once, and then continues after it; what it had read before is kept for the next
    call, as it is when a call is cancelled.
    """

    def close(self) -> None:
        """Lifts the backpressure of this reader."""
        self._call(lambda: self._inner.close())

    def at_eof(self) -> bool:
        """Returns whether everything was read."""
        return self._call(lambda: self._inner.at_eof())

    def read(self, n: int=-1) -> bytes:
        """Reads up to `n` bytes, as soon as there are some; without `n`, everything up to the end."""
        return self._run(self._inner.read(n))

    def readexactly(self, n: int) -> bytes:
        """Reads exactly `n` bytes; raises `asyncio.IncompleteReadError` if the stream ends before that."""
        return self._run(self._inner.readexactly(n))

    def readline(self) -> bytes:
        """Reads a line with its end; less at the end of the stream."""
        return self._run(self._inner.readline())

    def readuntil(self, separator: bytes=b'\n') -> bytes:
        """Reads up to a separator, and with it; raises `asyncio.IncompleteReadError` at the end of the stream."""
        return self._run(self._inner.readuntil(separator))

    def __iter__(self) -> Iterator[bytes]:
        return self._each(self._inner)

    def __next__(self) -> bytes:
        return self._next(self._inner)


class Lines(LineFace):
    """The lines of a process. At a gap it raises `GapError`, and can be continued."""

    def close(self) -> None:
        """Lifts the backpressure of this consumer."""
        self._call(lambda: self._inner.close())


class Stdin(Face[_stdin.Stdin]):
    """The input of a process.

    Bytes arrive in order and exactly once, also across disconnects. A write waits while the process does not read.
    """

    @property
    def is_open(self) -> bool:
        return self._inner.is_open

    def write(self, data: Data) -> None:
        """Writes; returns once everything is sent, and waits while the process does not read.

        Raises `RefusedError` (the kind is `stdinClosed`) if the process does not accept input. `drain` tells whether
        the server has taken everything.
        """
        self._run(self._inner.write(data))

    def drain(self) -> None:
        """Waits until the server has taken everything."""
        self._run(self._inner.drain())

    def close(self) -> None:
        """Closes the input after everything that was written. A terminal gets its end-of-file key, and stays open.

        If it fails or is cancelled, it can be called again.
        """
        self._run(self._inner.close())


class ProcessRef(Face[_process.ProcessRef]):
    """A process of any session of this user, by its id.

    It needs no handle on the process, and receives nothing by itself: output is polled. Without an incarnation, each
    call is for whichever process has the id then, also after a restart.

        other = host.process_ref("nightly", "build")
        for line in other.lines():
            ...
    """

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def session_id(self) -> str | None:
        return self._inner.session_id

    @property
    def incarnation(self) -> int | None:
        """The start of the process that calls are for; once it is restarted, they fail with an error `is_restarted`.

        None stands for whichever runs.
        """
        return self._inner.incarnation

    def read(self, after: int=0, *, max_bytes: int=WINDOW_BYTES, wait: float=0.0) -> list[Event]:
        """Returns retained events after an event, and waits for some for up to `wait` seconds.

        What was dropped is a `Gap`. Ask again with the `seq` of the last one; `Closed` is the last.
        """
        return self._run(self._inner.read(after, max_bytes=max_bytes, wait=wait))

    def write(self, data: Data) -> None:
        """Writes to the input, and waits until the server has accepted everything."""
        self._run(self._inner.write(data))

    def close_stdin(self) -> None:
        """Closes the input after everything that was written."""
        self._run(self._inner.close_stdin())

    def signal(self, signal: str | int) -> None:
        """Sends a signal, such as `INT`, `SIGUSR1` or `signal.SIGINT`, to the process group."""
        self._run(self._inner.signal(signal))

    def terminate(self, grace: float=5.0, *, tree: bool=False) -> None:
        """Sends SIGTERM to the process and its descendants, and kills what is left after `grace` seconds.

        With `tree`, also descendants of a process that has ended.
        """
        self._run(self._inner.terminate(grace, tree=tree))

    def kill(self, *, tree: bool=False) -> None:
        """Kills the process with its descendants, and returns once all of them are gone."""
        self._run(self._inner.kill(tree=tree))

    def restart(self, grace: float=5.0) -> int | None:
        """Ends the process with its descendants, and starts it again under its id, as it was started; returns the pid.

        It has `grace` seconds to end after SIGTERM; with 0, it is killed at once. It must have been started with
        `restartable`, and no other client may be attached to its session; it may have ended already. The restart takes
        effect once, also across disconnects, and is carried out even if this call is cancelled. If the new process does
        not start, the error says that the old one has ended. Handles on the old process end with it; this reference
        becomes one to the new process.
        """
        return self._run(self._inner.restart(grace))

    def resize(self, rows: int, cols: int) -> None:
        """Changes the size of the terminal."""
        self._run(self._inner.resize(rows, cols))

    def snapshot(self, max_bytes: int | None=None) -> Snapshot:
        """Returns the beginning and the end of all output so far."""
        return self._run(self._inner.snapshot(max_bytes))

    def seek(self, to: Mapping[str, int]) -> models.ProcessSeekResult:
        """Finds a position in the output: `{"atMs": …}`, `{"offset": …}` or `{"tailBytes": …}`."""
        return self._run(self._inner.seek(to))

    def info(self) -> ProcessInfo | None:
        """Returns what the server knows about the process, or None if it has forgotten it."""
        return self._run(self._inner.info())

    def wait(self) -> Exit:
        """Waits until the process has exited."""
        return self._run(self._inner.wait())

    def release(self) -> None:
        """Lets the process run while this client is away: a full log drops the oldest output instead of pausing it."""
        self._run(self._inner.release())

    def forget(self) -> None:
        """Makes the server forget a closed process and its output."""
        self._run(self._inner.forget())

    def events(self, after: int=0) -> PolledEvents | Events:
        """Returns the events after an event, in order."""
        face: PolledEvents | Events = self._wrap(self._call(lambda: self._inner.events(after)), PolledEvents, Events)
        return face

    @property
    def stdout(self) -> Reader:
        """Standard output as a stream of bytes."""
        return Reader(self._portal, self._call(lambda: self._inner.stdout))

    @property
    def stderr(self) -> Reader:
        """Standard error as a stream of bytes."""
        return Reader(self._portal, self._call(lambda: self._inner.stderr))

    @property
    def terminal(self) -> Reader:
        """The output of the terminal as a stream of bytes."""
        return Reader(self._portal, self._call(lambda: self._inner.terminal))

    def chunks(self, stream: Stream | None=None) -> Chunks:
        """Returns the output from the beginning, of one stream or of all.

        At a gap, it raises `GapError` once, and then continues behind it.
        """
        return Chunks(self._portal, self._call(lambda: self._inner.chunks(stream)))

    def lines(self, stream: Stream | None=None, *, max_bytes: int=MAX_LINE_BYTES) -> Lines:
        """Returns the lines of the output from the beginning; longer ones come in pieces of `max_bytes`.

        At a gap, it raises `GapError` once, and then continues behind it.
        """
        return Lines(self._portal, self._call(lambda: self._inner.lines(stream, max_bytes=max_bytes)))

    def wait_for(self, pattern: str | bytes | re.Pattern[bytes], *, after: int | Match=0, timeout: float | None=None) -> Match:
        """Waits until output matches, and returns the match, with what came before it and its groups.

        Raises `NoMatchError`, which has the exit, if all output ends before that, and `TimedOutError` after
        `timeout` seconds.

        The pattern is one of `re` over bytes; text stands for its UTF-8. Standard output and standard error are
        searched separately. `$` also matches at the end of what has arrived. So that a prompt is not matched twice,
        give the last match as `after`: the search begins behind it. The `seq` of an event skips all of that event,
        also what it has behind a match.

        Background processes that hold the output open may still print a match after the exit, and are waited for: give
        a `timeout`, or a `linger` to `start`.

            prompt = shell.wait_for(r"\\$ $")
            shell.stdin.write("make\\n")
            shell.wait_for(r"\\$ $", after=prompt)
        """
        return self._run(self._inner.wait_for(pattern, after=after, timeout=timeout))


class Process(ProcessRef):
    """A process of this session.

    Its output is kept for the first consumer (`chunks`, `lines`, `events`, `stdout` …). A consumer that does not read
    holds up the process, as a full pipe does; `wait` and dropping the last handle lift that.

        process = host.start(["make"])
        for line in process.lines():
            print(line.text)
        print(process.wait())
    """

    _inner: _process.Process

    @property
    def pid(self) -> int | None:
        return self._inner.pid

    @property
    def stdin(self) -> Stdin:
        return Stdin(self._portal, self._inner.stdin)

    def __enter__(self) -> Process:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))

    @property
    def incarnation(self) -> int | None:
        """Which start of the process this handle is on; None if the server does not tell."""
        return self._inner.incarnation

    @property
    def exit(self) -> Exit | None:
        """How the process ended, if it has, as far as this client knows."""
        return self._inner.exit

    @property
    def closed(self) -> Closed | None:
        """The last event, if it has arrived: no more output follows."""
        return self._inner.closed

    def events(self, after: int=0) -> Events:
        """Returns all events after an event, from the beginning by default; gaps are events, too."""
        return Events(self._portal, self._call(lambda: self._inner.events(after)))

    def read(self, after: int=0, *, max_bytes: int=WINDOW_BYTES, wait: float=0.0) -> list[Event]:
        return self._run(self._inner.read(after, max_bytes=max_bytes, wait=wait))

    def restart(self, grace: float=5.0) -> int | None:
        """Ends the process with its descendants, and starts it again under its id, as it was started; returns the pid.

        Afterwards, this handle is that of the new process: `pid`, `exit`, `wait`, `stdin` and new consumers of output.
        Consumers from before get the rest of the old output and end, with a `RefusedError` (`unknownProcess`) if not
        all of it arrives; so do other handles on the old process. What such a consumer has not read yet holds up the
        output of the new process; another handle that nobody reads keeps up to 1 MiB of the rest, and fails beyond it.

            process = host.start(["worker"], restartable=True)
            ...
            process.restart(grace=30)
            for line in process.lines():
                ...

        It has `grace` seconds to end after SIGTERM; with 0, it is killed at once. It may have ended already. The
        restart takes effect once, also across disconnects, and is carried out even if this call is cancelled. If the
        new process does not start, the error says that the old one has ended.
        """
        return self._run(self._inner.restart(grace))

    def post_signal(self, signal: str | int) -> None:
        """Sends a signal without waiting, and without reporting errors."""
        self._call(lambda: self._inner.post_signal(signal))

    def post_kill(self) -> None:
        """Kills the process with its descendants, without waiting."""
        self._call(lambda: self._inner.post_kill())

    def discard_output(self) -> None:
        """Lets the process run although nobody reads its output, which stays readable as far as it is retained."""
        self._call(lambda: self._inner.discard_output())

    def communicate(self, input: Input=b'') -> Result:
        """Writes the input and closes it, and returns all output from the beginning when everything has ended.

        On a terminal, the end of the input is the end-of-file key. Raises `GapError` if output is missing. `stdout` and
        `stderr` begin anew afterwards.
        """
        return self._run(self._inner.communicate(input))

    def wait(self) -> Exit:
        """Waits until the process has exited. Unread output no longer holds it up."""
        return self._run(self._inner.wait())

    def wait_closed(self) -> Exit:
        """Waits until the process has exited and all output has ended, also that of background processes."""
        return self._run(self._inner.wait_closed())

    def wait_for_silence(self, seconds: float) -> Exit | None:
        """Waits until there was no output for this long; returns the exit if that comes first.

        Unread output no longer holds the process up.
        """
        return self._run(self._inner.wait_for_silence(seconds))


class RemoteReader(Face[_transfer.RemoteReader]):
    """A file of the remote host, opened for reading: `with host.files.open(path) as file`.

    It is read as it was when it was opened: if it changes during a disconnect, reading raises `ChangedError`.
    """

    def __enter__(self) -> RemoteReader:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))

    @property
    def size(self) -> int:
        """The size of the file when it was opened."""
        return self._inner.size

    def tell(self) -> int:
        """Returns the position."""
        return self._call(lambda: self._inner.tell())

    def seek(self, offset: int) -> None:
        """Sets the position, from the beginning of the file."""
        self._call(lambda: self._inner.seek(offset))

    def read(self, n: int=-1) -> bytes:
        """Reads up to `n` bytes, less only at the end; without `n`, everything up to the end.

        Cancelling it loses nothing: the next call begins where this one did.
        """
        return self._run(self._inner.read(n))

    def __iter__(self) -> Iterator[bytes]:
        return self._each(self._inner)

    def __next__(self) -> bytes:
        return self._next(self._inner)


class RemoteWriter(Face[_transfer.RemoteWriter]):
    """A file of the remote host, opened for writing: `with host.files.open(path, "wb") as file`.

    The content is collected beside the file, and replaces it in one step when the block ends without an exception. The
    permissions of an existing file stay.
    """

    def __enter__(self) -> RemoteWriter:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))

    def tell(self) -> int:
        """Returns how much was written."""
        return self._call(lambda: self._inner.tell())

    @property
    def acknowledged(self) -> int:
        """How much the server has confirmed."""
        return self._inner.acknowledged

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Writes; waits while too much is on its way.

        A write that fails or is cancelled leaves the content incomplete: every later one fails, and so does the end of
        the block, which leaves the file as it was.
        """
        return self._run(self._inner.write(data))


class RemoteTextReader(Face[_text_file.RemoteTextReader]):
    """A text file of the remote host, opened for reading: `with host.files.open(path, "r") as file`.

    Line ends become `\\n`, as with `open` of Python. Iterate over its lines.
    """

    def __enter__(self) -> RemoteTextReader:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))

    def read(self, n: int=-1) -> str:
        """Reads up to `n` characters, less only at the end; without `n`, everything up to the end."""
        return self._run(self._inner.read(n))

    def readline(self) -> str:
        """Reads a line with its end; less at the end of the file."""
        return self._run(self._inner.readline())

    def __iter__(self) -> Iterator[str]:
        return self._each(self._inner)

    def __next__(self) -> str:
        return self._next(self._inner)


class RemoteTextWriter(Face[_text_file.RemoteTextWriter]):
    """A text file of the remote host, opened for writing: `with host.files.open(path, "w") as file`."""

    def __enter__(self) -> RemoteTextWriter:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))

    def write(self, text: str) -> int:
        """Writes; returns the number of characters."""
        return self._run(self._inner.write(text))


class Files(Face[_files.Files]):
    """The files of the remote host.

    Paths are text, bytes or `PurePosixPath`; a relative one begins at the working directory of the server, and `~` is
    the home directory there. An error of the server is a `RefusedError`, and where it fits also a `FileNotFoundError`,
    `FileExistsError`, `IsADirectoryError`, `PermissionError` or another `OSError`.

        host.files.write("/srv/motd", b"hello\\n", atomic=True)
        with host.files.open("/var/log/syslog") as file:
            for block in file:
                ...
    """

    def read(self, path: StrPath) -> bytes:
        """Returns the content of a file of up to 512 MiB.

        After a disconnect it continues where it was, and raises `ChangedError` if the file has changed meanwhile.
        """
        return self._run(self._inner.read(path))

    def read_text(self, path: StrPath, encoding: str='utf-8', errors: str='strict') -> str:
        """Returns the content of a file as text."""
        return self._run(self._inner.read_text(path, encoding, errors))

    def write(self, path: StrPath, data: bytes | bytearray | memoryview, *, atomic: bool=False, if_match: str | Unset=UNSET, permissions: int | None=None) -> str:
        """Replaces the content of a file, or creates it; returns the hash of the new content.

        With `atomic`, every reader finds either the old content or the new. With `if_match`, the content must have this
        hash, as a `write` or `hash` returned it, or the file must be `"absent"`; otherwise the error is
        `contentChanged`, and nothing happens. A new file gets `permissions`, less the umask of the server.
        A file of more than about 48 MiB may not fit into a message: use `open` or `upload`.
        """
        return self._run(self._inner.write(path, data, atomic=atomic, if_match=if_match, permissions=permissions))

    def write_text(self, path: StrPath, text: str, encoding: str='utf-8', *, atomic: bool=False, if_match: str | Unset=UNSET, permissions: int | None=None) -> str:
        """Replaces the content of a file with text, as `write` does."""
        return self._run(self._inner.write_text(path, text, encoding, atomic=atomic, if_match=if_match, permissions=permissions))

    def hash(self, path: StrPath, *, offset: int | None=None, length: int | None=None) -> str:
        """Returns the hash of a file, or of a part of it: `sha256:` and 64 hexadecimal digits."""
        return self._run(self._inner.hash(path, offset=offset, length=length))

    @overload
    def open(self, path: StrPath, mode: Literal['rb']='rb') -> RemoteReader: ...
    @overload
    def open(self, path: StrPath, mode: Literal['wb', 'xb']) -> RemoteWriter: ...
    @overload
    def open(self, path: StrPath, mode: Literal['r', 'rt'], *, encoding: str='utf-8', errors: str='strict') -> RemoteTextReader: ...
    @overload
    def open(self, path: StrPath, mode: Literal['w', 'wt', 'x', 'xt'], *, encoding: str='utf-8', errors: str='strict') -> RemoteTextWriter: ...
    @overload
    def open(self, path: StrPath, mode: str, *, encoding: str='utf-8', errors: str='strict') -> RemoteReader | RemoteWriter | RemoteTextReader | RemoteTextWriter: ...
    def open(self, path: StrPath, mode: str='rb', *, encoding: str='utf-8', errors: str='strict') -> RemoteReader | RemoteWriter | RemoteTextReader | RemoteTextWriter:
        """Opens a file of any size, for `async with`; several blocks are in flight, and memory is constant.

        `rb` reads. `wb` writes beside the file and replaces it at the end of the block, unless an exception ends that;
        `xb` does the same and fails if the file exists. Both survive disconnects. `r`, `w` and `x` are the same for
        text; unlike that of Python, this `open` is for bytes by default.
        """
        face: RemoteReader | RemoteWriter | RemoteTextReader | RemoteTextWriter = self._wrap(self._call(lambda: self._inner.open(path, mode, encoding=encoding, errors=errors)), RemoteReader, RemoteWriter, RemoteTextReader, RemoteTextWriter)
        return face

    def upload(self, source: LocalPath, path: StrPath, *, permissions: int | None=None, progress: Callable[[Progress], None] | None=None) -> int:
        """Copies a local file to the remote host, and returns its size.

        It replaces the destination in one step when everything has arrived, with the time of the source, and with its
        permissions unless others are given. It survives disconnects.
        """
        return self._run(self._inner.upload(source, path, permissions=permissions, progress=progress))

    def download(self, path: StrPath, destination: LocalPath, *, progress: Callable[[Progress], None] | None=None) -> int:
        """Copies a file of the remote host to a local one, as `upload` does, and returns its size."""
        return self._run(self._inner.download(path, destination, progress=progress))

    def upload_tree(self, source: LocalPath, path: StrPath, *, skip_unchanged: SkipUnchanged='sizeAndTime', ignore: Callable[[str], bool] | None=None, progress: Callable[[Progress], None] | None=None) -> TreeCopied:
        """Copies a local directory to the remote host, with permissions, times and symbolic links.

        Files that are the same there, by size and time or by `content`, are skipped, so an interrupted copy continues
        where it stopped. `ignore` is asked about each path relative to the root.
        """
        return self._run(self._inner.upload_tree(source, path, skip_unchanged=skip_unchanged, ignore=ignore, progress=progress))

    def download_tree(self, path: StrPath, destination: LocalPath, *, skip_unchanged: SkipUnchanged='sizeAndTime', ignore: Callable[[str], bool] | None=None, progress: Callable[[Progress], None] | None=None) -> TreeCopied:
        """Copies a directory of the remote host to a local one, as `upload_tree` does."""
        return self._run(self._inner.download_tree(path, destination, skip_unchanged=skip_unchanged, ignore=ignore, progress=progress))

    def metadata(self, path: StrPath, *, follow_symlinks: bool=True) -> Metadata:
        """Returns what is at a path."""
        return self._run(self._inner.metadata(path, follow_symlinks=follow_symlinks))

    def exists(self, path: StrPath) -> bool:
        """Returns whether a path exists; a dangling link does not."""
        return self._run(self._inner.exists(path))

    def realpath(self, path: StrPath) -> str:
        """Returns the path with all links resolved; it must exist."""
        return self._run(self._inner.realpath(path))

    def remove(self, path: StrPath, *, recursive: bool=False, missing_ok: bool=False) -> None:
        """Removes a file, a link or an empty directory; with `recursive`, a directory with everything in it."""
        self._run(self._inner.remove(path, recursive=recursive, missing_ok=missing_ok))

    def copy(self, source: StrPath, destination: StrPath, *, recursive: bool=False) -> None:
        """Copies a file or a link on the host; with `recursive`, a directory with everything in it."""
        self._run(self._inner.copy(source, destination, recursive=recursive))

    def rename(self, source: StrPath, destination: StrPath, *, overwrite: bool=True) -> None:
        """Renames a file or directory within one file system, atomically."""
        self._run(self._inner.rename(source, destination, overwrite=overwrite))

    def chmod(self, path: StrPath, permissions: int) -> None:
        """Sets the permissions."""
        self._run(self._inner.chmod(path, permissions))

    def set_times(self, path: StrPath, *, modified: float | None=None, accessed: float | None=None) -> None:
        """Sets times, in seconds since the Unix epoch."""
        self._run(self._inner.set_times(path, modified=modified, accessed=accessed))

    def symlink(self, path: StrPath, target: str | bytes) -> None:
        """Makes a symbolic link at `path` that points to `target`."""
        self._run(self._inner.symlink(path, target))

    def read_link(self, path: StrPath) -> str:
        """Returns where a symbolic link points."""
        return self._run(self._inner.read_link(path))

    def mkdir(self, path: StrPath, *, parents: bool=True) -> None:
        """Makes a directory; with `parents`, also missing directories above it, and no error if it exists."""
        self._run(self._inner.mkdir(path, parents=parents))

    def listdir(self, path: StrPath) -> list[DirEntry]:
        """Lists a directory, in the byte order of the names."""
        return self._run(self._inner.listdir(path))

    def iterdir(self, path: StrPath) -> Iterator[DirEntry]:
        """Lists a directory of any size page by page, in the byte order of the names."""
        return self._iterate(self._inner.iterdir(path))

    def walk(self, path: StrPath, *, max_depth: int=64, max_directories: int=10000, max_entries: int=50000, follow_directory_symlinks: bool=False, prune_hidden_directories: bool=False) -> Walk:
        """Lists the tree below a directory in one request."""
        return self._run(self._inner.walk(path, max_depth=max_depth, max_directories=max_directories, max_entries=max_entries, follow_directory_symlinks=follow_directory_symlinks, prune_hidden_directories=prune_hidden_directories))

    def search(self, path: StrPath, pattern: str | None=None, *, literal: bool=False, ignore_case: bool=False, globs: Sequence[str]=(), with_ignored: bool=False, report: SearchReport='lines', context_before: int=0, context_after: int=0, max_depth: int | None=None, skip: int=0, max_items: int=500, max_bytes: int=256 << 10, max_line_bytes: int=1 << 10, timeout: float=20.0) -> SearchResult:
        """Searches a file, or the files below a directory, as ripgrep does; the host needs no program for that.

            found = host.files.search("/srv/project", r"fn \\w+", globs=["*.rs", "!target"])
            for file in found.files:
                for line in file.lines:
                    print(f"{file.path}:{line.number}: {line.text}")
            if found.truncated:
                print(f"there may be more: the limit of {found.truncated} ended the search")

        - `pattern` is a regular expression of Rust for one line; with `literal`, plain text. Without it, every file is
          found.
        - It follows no links and searches hidden files, but neither binary ones nor, unless `with_ignored`, what
          `.gitignore` and `.ignore` files exclude. The result says how many it has left out.
        - `globs` are those of gitignore with `{a,b}`, for paths below `path`: only files that match one of them, and
          none of those that begin with `!`.
        - `report` is what to return of a file: its `lines`, with `context_before` and `context_after` (up to 100),
          `counts` of them, or nothing but the `files`.
        - A limit ends the search with what it has found, and `truncated` names it: `max_items` lines or files (up to
          10,000), `max_bytes` of text and paths (up to 1 MiB), or `timeout` seconds (up to 120). To continue, repeat it
          with `skip` increased by the `returned` of the result.
        - Of a line, up to `max_line_bytes` (up to 64 KiB) around its first match are returned.
        """
        return self._run(self._inner.search(path, pattern, literal=literal, ignore_case=ignore_case, globs=globs, with_ignored=with_ignored, report=report, context_before=context_before, context_after=context_after, max_depth=max_depth, skip=skip, max_items=max_items, max_bytes=max_bytes, max_line_bytes=max_line_bytes, timeout=timeout))

    def watch(self, path: StrPath, *, recursive: bool=True) -> Watch:
        """Watches a file or a directory; everything below it, unless `recursive` is false.

            for changes in host.files.watch("/srv/project"):
                ...

        After a disconnect it watches again, and reports an `overflow`.
        """
        return Watch(self._portal, self._run(self._inner.watch(path, recursive=recursive)))


class Watch(Face[_files.Watch]):
    """A watch on files: iterate over its `Changes`."""

    def __iter__(self) -> Iterator[Changes]:
        return self._each(self._inner)

    def __next__(self) -> Changes:
        return self._next(self._inner)

    def close(self) -> None:
        """Stops watching."""
        self._run(self._inner.close())


class Http(Face[_http.Http]):
    """Makes HTTP requests from the remote host.

    response = host.http.get("http://127.0.0.1:8000/health")
    """

    def get(self, url: str, *, headers: Headers=(), timeout: float | None=None) -> Response:
        """Makes a GET request, which is repeated after a disconnect."""
        return self._run(self._inner.get(url, headers=headers, timeout=timeout))

    def post(self, url: str, body: bytes=b'', *, headers: Headers=(), timeout: float | None=None) -> Response:
        """Makes a POST request, which is not repeated after a disconnect."""
        return self._run(self._inner.post(url, body, headers=headers, timeout=timeout))

    def request(self, method: str, url: str, *, headers: Headers=(), secret_headers: Mapping[str, tuple[str, str]] | None=None, body: bytes | None=None, timeout: float | None=None, redirects: Literal['follow', 'stop']='follow') -> Response:
        """Makes a request, and returns the response with its body of up to 32 MiB, whatever its status.

        `secret_headers` maps a name to a prefix and a variable of the server's environment, the value of which follows
        it: `{"authorization": ("Bearer ", "API_TOKEN")}`. GET, HEAD and OPTIONS are repeated after a disconnect.
        """
        return self._run(self._inner.request(method, url, headers=headers, secret_headers=secret_headers, body=body, timeout=timeout, redirects=redirects))

    def stream(self, method: str, url: str, *, headers: Headers=(), secret_headers: Mapping[str, tuple[str, str]] | None=None, body: bytes | None=None, timeout: float | None=None, redirects: Literal['follow', 'stop']='follow') -> StreamingResponse:
        """Makes a request, and returns the response once its head has arrived; the body follows in pieces.

            with host.http.stream("GET", url) as response:
                for piece in response:
                    ...

        A disconnect ends the body with `RequestInterrupted`.
        """
        return StreamingResponse(self._portal, self._run(self._inner.stream(method, url, headers=headers, secret_headers=secret_headers, body=body, timeout=timeout, redirects=redirects)))


class StreamingResponse(Face[_http.StreamingResponse]):
    """A response with its body still to come: iterate over the pieces, or `read` all of it.

    If the body does not arrive completely, the iteration raises `RefusedError` (`httpFailed`), `ProtocolError` or
    `RequestInterrupted` behind what has arrived.
    """

    @property
    def status(self) -> int:
        return self._inner.status

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return self._inner.headers

    def header(self, name: str) -> str | None:
        """Returns the first value of a header."""
        return self._call(lambda: self._inner.header(name))

    def __iter__(self) -> Iterator[bytes]:
        return self._each(self._inner)

    def __next__(self) -> bytes:
        return self._next(self._inner)

    def read(self) -> bytes:
        """Returns the rest of the body."""
        return self._run(self._inner.read())

    def close(self) -> None:
        """Ends the request unless all of its body has arrived."""
        self._run(self._inner.close())

    def __enter__(self) -> StreamingResponse:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))


class ObservedEvents(Face[_observe.ObservedEvents]):
    """The events of all processes of another session, as pairs of the id of a process and an event.

    The events of one process come in order and exactly once, or a `Gap` says what is missing. Observing survives
    disconnects, and raises `RefusedError` (`unknownSession`) when the session has ended.
    """

    def __iter__(self) -> Iterator[tuple[str, Event]]:
        return self._each(self._inner)

    def __next__(self) -> tuple[str, Event]:
        return self._next(self._inner)

    def close(self) -> None:
        """Stops observing."""
        self._run(self._inner.close())


class Host(Face[_host.Host]):
    """A remote host, reached through a session with its server.

    After a disconnect it reconnects and resumes the session: calls and streams notice a pause, unless a call cannot be
    repeated (`RequestInterrupted`) or the session is lost (`SessionLostError`).
    """

    @property
    def files(self) -> Files:
        return Files(self._portal, self._inner.files)

    @property
    def http(self) -> Http:
        return Http(self._portal, self._inner.http)

    def __enter__(self) -> Host:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))

    @property
    def session_id(self) -> str:
        """The id of the session, for `Resume(id)`."""
        return self._inner.session_id

    @property
    def welcome(self) -> models.InitializeResult:
        """The answer to the handshake: name and version of the server, capabilities, limits."""
        return self._inner.welcome

    @property
    def state(self) -> ConnectionState:
        """Whether the client is connected."""
        return self._inner.state

    @property
    def disconnects(self) -> int:
        """How often the connection was lost."""
        return self._inner.disconnects

    def state_changed(self) -> ConnectionState:
        """Waits for the next change of `state`."""
        return self._run(self._inner.state_changed())

    def close(self) -> None:
        """Closes the connection; the session with its processes survives for its time to live (80 s by default)."""
        self._run(self._inner.close())

    def end(self) -> None:
        """Ends the session with all its processes, and closes the connection."""
        self._run(self._inner.end())

    def call(self, method: str, params: Mapping[str, object] | None=None) -> Any:
        """Makes any request of the protocol; `remex_client.models` has the types of its params and its result."""
        return self._run(self._inner.call(method, params))

    def info(self) -> models.EnvironmentInfo:
        """Returns information about the host: shell, directories, what its server can enforce and keep."""
        return self._run(self._inner.info())

    def sessions(self) -> list[SessionInfo]:
        """Lists the sessions of this user, the oldest first."""
        return self._run(self._inner.sessions())

    def end_session(self, session: str) -> None:
        """Ends another session of this user, with its processes, by id or name."""
        self._run(self._inner.end_session(session))

    def observe(self, session: str, *, from_start: bool=True) -> ObservedEvents:
        """Returns the events of all processes of another session, without taking it over.

        Observing never holds up a process: what the server drops before it is received is a `Gap`.

            for process_id, event in host.observe("nightly"):
                ...
        """
        return ObservedEvents(self._portal, self._run(self._inner.observe(session, from_start=from_start)))

    def run(self, command: Command, *, input: Input | None=None, check: bool=False, merge: bool=False, max_output_bytes: int | None=None, on_stdout: OutputCallback | None=None, on_stderr: OutputCallback | None=None, name: str | None=None, **options: Unpack[StartOptions]) -> Result:
        """Runs a command and returns its complete output and how it ended. `options` are those of `start`.

            result = host.run(["make", "test"], cwd="/srv/project", timeout=600)
            result = host.run("sort | uniq -c", input=b"b\\na\\n", check=True)

        - A command as text is a line for `/bin/sh`, a list is a program with its arguments.
        - `input` is bytes, text, or an iterable of pieces, also an asynchronous one.
        - With `check`, an exit code other than 0 raises `CommandFailedError`.
        - With `merge`, standard error goes into `stdout`, in the order in which it arrived.
        - `max_output_bytes` is how much of each stream the result keeps: the beginning and the end, with a notice
          between them.
        - `on_stdout` and `on_stderr` get output as it arrives, and the process waits for them; what they raise ends the
          run.

        Cancelling it kills the process.
        """
        return self._run(self._inner.run(command, input=input, check=check, merge=merge, max_output_bytes=max_output_bytes, on_stdout=on_stdout, on_stderr=on_stderr, name=name, **options))

    def start(self, command: Command, *, cwd: StrPath | None=None, env: Mapping[str, str] | None=None, inherit_env: Literal['all', 'core', 'none']='all', inherit_secrets: bool=False, env_exclude: Sequence[str]=(), env_include_only: Sequence[str]=(), stdin: int | Literal['pipe', 'devnull']=DEVNULL, tty: Tty=None, timeout: float | None=None, idle_timeout: float | None=None, timeout_grace: float | None=None, linger: float | None=None, name: str | None=None, labels: Mapping[str, str] | None=None, durable: bool | None=None, sync: bool=False, retain_bytes: int | None=None, retain_time: float | None=None, overflow: Literal['pause', 'evict', 'hold'] | None=None, limits: models.ProcessResourceLimits | None=None, sandbox: models.SandboxContext | None=None, isolate_pids: bool=False, restart: models.ProcessRestart | None=None, restartable: bool=False, arg0: str | None=None, user: str | int | None=None) -> Process:
        """Starts a process; a start takes effect once, also across disconnects.

            process = host.start(["python3", "-i"], tty=True)

        - A command as text is a line for `/bin/sh`, a list is a program with its arguments.
        - A relative `cwd` begins at the working directory of the server, and `~` is the home directory there.
        - It inherits the environment of the server, except variables whose names contain KEY, SECRET or TOKEN, and
          nothing of this program's; `env` adds to that.
        - `stdin=PIPE` makes its input writable; that of a terminal always is, and otherwise there is none.
        - `tty` is `True`, or `(rows, cols)`.
        - `timeout` and `idle_timeout` (without output) kill it with its descendants, in seconds; with `timeout_grace`
          they get SIGTERM first, and this time to end.
        - `name` is the id of the process; `host.process(name)` finds it again.
        - `overflow` says what a full log of `retain_bytes` does: `pause` the process while a client is connected (the
          default), `evict` the oldest output, or `hold`: pause it also while the client is away.
        - `restart` runs the command again when it fails or whenever it ends, so many times at most, as one process:
          `{"policy": "onFailure", "maxRestarts": 5}` or `{"policy": "always"}`.
        - `restartable` lets the server keep this request in memory for `process.restart`; a server that cannot do that
          starts the process all the same.
        - `linger` is how long after its exit to wait for background processes that hold the output open.
        - `user` is the account of the host as which it runs, by name or uid, where the server runs as root; without a
          `cwd` it starts in the home of that account.
        """
        return Process(self._portal, self._run(self._inner.start(command, cwd=cwd, env=env, inherit_env=inherit_env, inherit_secrets=inherit_secrets, env_exclude=env_exclude, env_include_only=env_include_only, stdin=stdin, tty=tty, timeout=timeout, idle_timeout=idle_timeout, timeout_grace=timeout_grace, linger=linger, name=name, labels=labels, durable=durable, sync=sync, retain_bytes=retain_bytes, retain_time=retain_time, overflow=overflow, limits=limits, sandbox=sandbox, isolate_pids=isolate_pids, restart=restart, restartable=restartable, arg0=arg0, user=user)))

    def attach_or_start(self, command: Command, *, name: str, **options: Unpack[StartOptions]) -> Process:
        """Returns a handle on the process with this name, which it starts if there is none. `options` are those of
        `start`.

            with remex_client.connect("build", session="nightly") as host:
                process = host.attach_or_start(["make"], name="build")

        The process may have ended; then its output and its exit are still there.
        """
        return Process(self._portal, self._run(self._inner.attach_or_start(command, name=name, **options)))

    def process(self, id: str) -> Process:
        """Returns a handle on a process of this session by its id, for example after `connect(session=Resume(id))`."""
        return Process(self._portal, self._run(self._inner.process(id)))

    def process_ref(self, session: str, id: str, *, incarnation: int | None=None) -> ProcessRef:
        """Returns a reference to a process of any session, which is given by its id or name.

        Each call is for the process that has this id then, also after a restart; or, with the `incarnation` of a handle
        or of a `ProcessInfo`, for that start only: once it is restarted, calls fail with an error `is_restarted`.
        """
        return ProcessRef(self._portal, self._call(lambda: self._inner.process_ref(session, id, incarnation=incarnation)))

    def processes(self, scope: Literal['session', 'identity']='session') -> list[ProcessInfo]:
        """Lists the processes of this session, or of all sessions of this user, the oldest first."""
        return self._run(self._inner.processes(scope))

    def agent(self, limits: Limits | None=None) -> Agent:
        """Returns an agent, which serves the tool calls of a language model on this host."""
        return Agent(self._portal, self._call(lambda: self._inner.agent(limits)))


class Agent(Face[agent.Agent]):
    """Runs the commands of a language model on a host. See the module for an example."""

    def exec(self, command: Command, *, yield_after: float | None=None, max_output_bytes: int | None=None, name: str | None=None, **options: Unpack[StartOptions]) -> Step:
        """Starts a command, and waits until it has ended or `yield_after` seconds have passed.

        `options` are those of `Host.start`; the input is a pipe unless they say otherwise.
        """
        return self._run(self._inner.exec(command, yield_after=yield_after, max_output_bytes=max_output_bytes, name=name, **options))

    def write(self, handle: int, data: Data=b'', *, end: bool=False, yield_after: float | None=None, max_output_bytes: int | None=None) -> Step:
        """Writes to a process, closes its input with `end`, and waits as `exec` does; without data, it only waits."""
        return self._run(self._inner.write(handle, data, end=end, yield_after=yield_after, max_output_bytes=max_output_bytes))

    def output(self, handle: int, max_bytes: int) -> TruncatedText:
        """Returns the beginning and the end of all output of a process, including what was returned before."""
        return self._run(self._inner.output(handle, max_bytes))

    def list(self) -> list[ListedProcess]:
        """Lists the open processes."""
        return self._call(lambda: self._inner.list())

    def process(self, handle: int) -> Process:
        """Returns the process of a handle."""
        return Process(self._portal, self._call(lambda: self._inner.process(handle)))

    def interrupt(self, handle: int) -> None:
        """Interrupts a process, as Ctrl-C does."""
        self._run(self._inner.interrupt(handle))

    def terminate(self, handle: int, grace: float=5.0) -> None:
        """Sends SIGTERM to a process, and kills it after `grace` seconds."""
        self._run(self._inner.terminate(handle, grace))

    def kill(self, handle: int) -> None:
        """Kills a process with everything that it started."""
        self._run(self._inner.kill(handle))

    def __enter__(self) -> Agent:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Kills all processes that still run."""
        self._run(self._inner.close())


def connect(target: str | Sequence[str] | Target, *, session: SessionChoice=None, token: Token | None=None, ca: str | os.PathLike[str] | None=None, pin: str | None=None, client_cert: tuple[str, str] | None=None, ssl_context: ssl.SSLContext | None=None, headers: Mapping[str, str] | None=None, detach_ttl: float | None=None, client_name: str='remex-python', connect_timeout: float | None=None, connect_retry: float=0.0, handshake_timeout: float | None=None, request_timeout: float | None=None, reconnect_timeout: float | None=None, keep_alive_interval: float=15.0, keep_alive_timeout: float=10.0) -> Host:
    """Connects to a server; use it in `with`, or call `close` or `end`.

    The arguments are those of `remex_client.connect`.
    """

    async def make() -> _host.Host:
        return await _host.connect(target, session=session, token=token, ca=ca, pin=pin, client_cert=client_cert, ssl_context=ssl_context, headers=headers, detach_ttl=detach_ttl, client_name=client_name, connect_timeout=connect_timeout, connect_retry=connect_retry, handshake_timeout=handshake_timeout, request_timeout=request_timeout, reconnect_timeout=reconnect_timeout, keep_alive_interval=keep_alive_interval, keep_alive_timeout=keep_alive_timeout)

    portal = Portal.shared()
    return Host(portal, portal.run(make()))


__all__ = [
    "Agent",
    "Chunks",
    "Events",
    "Files",
    "Host",
    "Http",
    "Lines",
    "ObservedEvents",
    "PolledEvents",
    "Process",
    "ProcessRef",
    "Reader",
    "RemoteReader",
    "RemoteTextReader",
    "RemoteTextWriter",
    "RemoteWriter",
    "Stdin",
    "StreamingResponse",
    "Watch",
    "connect",
]
