"""A compile cache that machines share: a directory of any file system that fsspec knows, behind each machine's own disk.

``TORCH_TPU_CACHE_SHARED`` names it: ``gs://bucket/programs``, ``s3://..``, ``/mnt/share/programs``. A program that is not on the
own disk is looked for there before it is compiled; one that was compiled is put there by a thread of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import queue
import threading
import time
import uuid
import warnings
from typing import Any

from torch_tpu import _core

_FLUSH_S = 30  # given to what is still to be written when the process ends


class Shared:
    """The directory at ``url``, in use until the process ends.

    Raises:
        RuntimeError: if it cannot be used, with what is missing.
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise RuntimeError(f"TORCH_TPU_CACHE_SHARED={url} needs the package fsspec: pip install fsspec") from None
        try:
            self.fs, self.root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as e:
            raise RuntimeError(f"TORCH_TPU_CACHE_SHARED={url} cannot be used: {e}") from e
        self.local = getattr(self.fs, "protocol", "") in ("file", ("file", "local"))
        self.todo: queue.Queue[tuple[str, bytes] | None] = queue.Queue()
        self.lock = threading.Lock()
        self.writer: threading.Thread | None = None
        self.warned = False
        # Kept here: the core holds their addresses.
        self.fetch, self.store = _core.FETCH(self._fetch), _core.STORE(self._store)
        _core.core().ttc_tier_set(self.fetch, self.store)
        atexit.register(self.close)

    def _path(self, name: str) -> str:
        return f"{self.root}/{name[:2]}/{name}"

    def _warn(self, what: str, e: Exception) -> None:
        if not self.warned:
            self.warned = True
            warnings.warn(f"the shared compile cache {self.root} cannot be {what}: {e}; going on without", stacklevel=2)

    def _fetch(self, name: bytes, sink: Any) -> None:
        try:
            data = self.fs.cat_file(self._path(name.decode()))
        except FileNotFoundError:
            return
        except Exception as e:
            self._warn("read", e)
            return
        _core.core().ttc_tier_give(sink, data, len(data))

    def _store(self, name: bytes, data: int, n: int) -> None:
        with self.lock:
            if self.writer is None:
                self.writer = threading.Thread(target=self._write, name="torch_tpu shared cache", daemon=True)
                self.writer.start()
        self.todo.put((name.decode(), ctypes.string_at(data, n)))

    def _write(self) -> None:
        while (job := self.todo.get()) is not None:
            name, data = job
            try:
                self._put(self._path(name), data)
            except Exception as e:
                self._warn("written", e)
            self.todo.task_done()
        self.todo.task_done()

    def _put(self, path: str, data: bytes) -> None:
        """Whole or not at all: an object store's writes are, a directory's are by renaming."""
        if not self.local:
            self.fs.pipe_file(path, data)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            with open(part, "wb") as f:
                f.write(data)
            os.replace(part, path)
        finally:
            if os.path.exists(part):
                os.remove(part)

    def flush(self, seconds: float = _FLUSH_S) -> None:
        """Wait, but not for ever, until all programs compiled so far are there."""
        until = time.monotonic() + seconds
        while self.todo.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.01)

    def close(self) -> None:
        _core.core().ttc_tier_set(_core.FETCH(), _core.STORE())
        self.flush()
        self.todo.put(None)


shared: Shared | None = None


def follow() -> None:
    """Use what the environment names."""
    global shared
    url = os.environ.get("TORCH_TPU_CACHE_SHARED", "")
    if url and shared is None:
        shared = Shared(url)
