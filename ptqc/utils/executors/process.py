"""The process of a worker: `python -m ptqc.utils.executors.process` reads messages and writes replies, one to a line.

It ends as soon as the process that started it does, whatever it is busy with.
"""

import json
import os
import signal
import sys
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO


def main() -> None:
    """Answer until there is nobody who asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal it goes to all; who started this process ends it
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is no reply
    messages = SimpleQueue[bytes]()
    Thread(target=_listen, args=(sys.stdin.buffer, messages), daemon=True).start()
    from ptqc.utils.executors.worker import work

    while True:
        replies.write(json.dumps(work(json.loads(messages.get()))).encode() + b"\n")


def _listen(stream: BinaryIO, messages: "SimpleQueue[bytes]") -> None:
    """Take messages in; end the process behind the last."""
    for line in stream:
        messages.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
