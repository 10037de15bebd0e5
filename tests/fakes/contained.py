"""What runs in a fake container: a server with every bad habit that one in a container has.

    contained.py --port N [--state DIRECTORY] [--start-period S] [--fetch S] [--silent-for S] [--ignore-term] [--grandchild]

It closes every descriptor but its output, clears its environment, and rewrites its title. On its first start it fetches,
for as long as --fetch says, and remembers that in --state; then it listens, and answers 503 on /health for --start-period.
Its first request otherwise is silent for --silent-for, and no page is answered meanwhile.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import time


def main() -> int:
    words = argparse.ArgumentParser()
    words.add_argument("--port", type=int, required=True)
    words.add_argument("--state", default="")
    words.add_argument("--key", default="")
    for name in ("--start-period", "--fetch", "--silent-for"):
        words.add_argument(name, type=float, default=0.0)
    for name in ("--ignore-term", "--grandchild"):
        words.add_argument(name, action="store_true")
    given = words.parse_args()
    os.closerange(3, 4096)
    os.environ.clear()
    ctypes.CDLL(None).prctl(15, b"kworker/u8:1", 0, 0, 0)  # PR_SET_NAME
    if given.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if given.grandchild and os.fork() == 0:
        while True:
            signal.pause()
    mark = os.path.join(given.state, "fetched")
    if given.fetch and not os.path.exists(mark):
        for part in range(10):
            print(f"fetching weights: {part * 10} %", flush=True)
            time.sleep(given.fetch / 10)
        with open(mark, "w", encoding="ascii") as file:
            file.write("whole\n")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", given.port))
    listener.listen(64)
    ready = time.monotonic() + given.start_period
    print("listening", flush=True)
    first, said = True, False
    while True:
        client, _ = listener.accept()
        with client:
            try:
                asked = client.recv(65536).split(b" ")
                if asked[1:2] != [b"/health"] and first:
                    first = False
                    time.sleep(given.silent_for)
                well = time.monotonic() >= ready
                if well and not said:
                    said = True
                    print("ready to serve", flush=True)
                status = b"200 OK" if well else b"503 Service Unavailable"
                client.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            except OSError:
                continue


if __name__ == "__main__":
    sys.exit(main())
