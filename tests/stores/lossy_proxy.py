"""A way to a PostgreSQL server that can be cut at a chosen moment."""

import socket
import threading
from pathlib import Path


class LossyProxy:
    """Listens in `folder` and passes everything on to the server's socket.

    After `cut_at_commit`, the next COMMIT reaches the server, and its answer is lost with the connection. While `refusing`,
    nobody is let in.
    """

    def __init__(self, folder: Path, server: Path) -> None:
        self.refusing = False
        self.cuts = 0
        self._armed = threading.Event()
        self._refuse_after = False
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(50)
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut_at_commit(self, *, and_refuse: bool = False) -> None:
        self._refuse_after = and_refuse
        self._armed.set()

    def close(self) -> None:
        for end in self._sockets:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in list(self._threads):
            thread.join(5)
        for end in self._sockets:
            end.close()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # pyright: ignore[reportArgumentType]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self._server))
            except OSError:
                client.close()
                server.close()
                continue
            self._sockets += [client, server]
            lost = threading.Event()
            self._start(self._pass_on, client, server, lost, True)
            self._start(self._pass_on, server, client, lost, False)

    def _pass_on(self, source: socket.socket, target: socket.socket, lost: threading.Event, asking: bool) -> None:
        while True:
            try:
                data = source.recv(65536)
                if asking and b"COMMIT\0" in data and self._armed.is_set():
                    self._armed.clear()
                    self.cuts += 1
                    self.refusing = self._refuse_after
                    lost.set()
                if not data or (lost.is_set() and not asking):
                    break
                target.sendall(data)
            except OSError:
                break
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
