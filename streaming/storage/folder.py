"""A folder of small files on any file system that Hadoop knows: the checkpoint's files, and the pointers to it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from conf.java.spark_line import checkpoint_class


class Folder:
    """The folder at `path`, any Hadoop URI. Files are named by their paths below it."""

    def __init__(self, spark: SparkSession, path: str, before_write: Callable[[], None] = lambda: None) -> None:
        """Take a callback that raises if this process may not write. It is called directly before each write."""
        self._before_write = before_write
        jvm: Any = spark.sparkContext._jvm
        # Looked up once: each step of a dotted name costs Java a search through all jars, and a batch reads several
        # files.
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._text_of = jvm.org.apache.commons.io.IOUtils.toString
        self._file_manager = operator.attrgetter(checkpoint_class("CheckpointFileManager"))(jvm)
        # With the SQL options, one of which names the class of the file manager: Spark gives it to its own logs so too.
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        self.path = path
        self._files = self._path_of(path).getFileSystem(self._conf)
        # On a local disk, Hadoop keeps the checksum of a file next to it.
        self._has_checksums = self._files.getUri().getScheme() == "file"

    def exists(self) -> bool:
        """Return whether there is anything at `path`."""
        return bool(self._files.exists(self._path_of(self.path)))

    def has(self, name: str) -> bool:
        """Return whether there is a file or folder of this name."""
        return bool(self._files.exists(self._path_of(self.path, name)))

    def names(self, name: str = "") -> list[str]:
        """Return the names of what is in the folder, or in the folder `name` below it; empty if that is missing."""
        folder = self._path_of(self.path, name) if name else self._path_of(self.path)
        if not self._files.exists(folder):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(folder)]

    def read(self, name: str) -> str | None:
        """Return the text of a file, or None if the file does not exist."""
        path = self._path_of(self.path, name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._text_of(stream, "UTF-8"))
        finally:
            stream.close()

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        self._before_write()
        self._files.delete(self._path_of(self.path, name), False)

    def write(self, name: str, text: str, replace: bool = True) -> None:
        """Write a file in one step: readers find the whole text, or what was there before.

        Raises FileExistsError if the file exists, but not with `replace`.
        """
        self._before_write()
        try:
            self._write(name, text, replace)
        except Py4JJavaError as problem:
            # Java's exception differs between file systems.
            if replace or not self.has(name):
                raise
            raise FileExistsError(f"{self.path}/{name}") from problem

    def _write(self, name: str, text: str, replace: bool) -> None:
        manager = self._file_manager.create(self._path_of(self.path), self._conf)
        manager.mkdirs(self._path_of(self.path))
        stream = manager.createAtomic(self._path_of(self.path, name), replace)
        stream.write(bytearray(text.encode()))
        if replace and self._has_checksums:
            # `close` renames the file, and then its checksum. After a kill in between, the one of the file before would
            # fit nothing, and no start could read the file.
            folder, slash, file = name.rpartition("/")
            self._files.delete(self._path_of(self.path, f"{folder}{slash}.{file}.crc"), False)
        stream.close()
