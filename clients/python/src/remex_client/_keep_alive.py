"""Ending connections to a server that does not respond. Start at `keep_alive`."""

from __future__ import annotations

import asyncio
import time

from ._call import encode
from ._connector import HANDSHAKE
from ._inbox import Inbox
from ._link import Link
from ._options import Options

#: After how many keep-alive timeouts a server that sends, but never answers, counts as unresponsive.
_UNRESPONSIVE = 6


async def keep_alive(link: Link, inbox: Inbox, options: Options) -> None:
    """Ends the connection if the server stops answering.

    Other messages prove that the server sends, not that it receives: they extend the timeout, but not forever.
    """
    silence = options.keep_alive_timeout
    while True:
        await asyncio.sleep(options.keep_alive_interval)
        asked, answers = time.monotonic(), inbox.answers
        if link.is_websocket:
            link.ping()
        else:
            probe = {"id": HANDSHAKE, "method": "environment/status", "params": {}}
            link.send(encode(probe))
        while True:
            heard = inbox.received
            await asyncio.sleep(silence)
            if inbox.answers != answers:
                break
            waited = time.monotonic() - asked
            if inbox.received == heard or waited >= silence * _UNRESPONSIVE:
                link.abort(f"the server did not respond for {waited:.1f} s")
                return
