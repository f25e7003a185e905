"""Iceberg's own REST catalog service (the reference for tests of engines) as a process.

Its jars are resolved by the Ivy that PySpark ships. The service is of an older release than the client, as a
service of a user may be.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tautochrone.spark.session.jars import CORE, cache_folder, resolve
from tautochrone.spark.session.java import find_java

__all__ = ["rest_service"]

_IVY = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tautochrone" module="rest-service"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->default(compile),runtime(*),master(*)">
    <dependency org="org.apache.iceberg" name="iceberg-core" rev="1.9.0">
      <artifact name="iceberg-core" type="jar" ext="jar"/>
      <artifact name="iceberg-core" type="jar" ext="jar" m:classifier="tests"/>
    </dependency>
    <dependency org="org.apache.iceberg" name="iceberg-open-api" rev="1.9.0" transitive="false">
      <artifact name="iceberg-open-api" type="jar" ext="jar" m:classifier="test-fixtures"/>
    </dependency>
    <dependency org="org.apache.iceberg" name="iceberg-bundled-guava" rev="1.9.0"/>
    <dependency org="org.eclipse.jetty" name="jetty-servlet" rev="11.0.25"/>
  </dependencies>
</ivy-module>
"""
_START_S = 60


def _jars() -> Path:
    folder = cache_folder() / "rest-service-1.9.0"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ivy.xml").write_text(_IVY)
        ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
        pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
        command = [find_java(), "-jar", str(ivy), "-ivy", str(folder / "ivy.xml"), "-confs", "default"]
        command += ["-types", "jar", "bundle", "-retrieve", pattern]
        # A cache of its own: another worker of the tests may download other jars at the same time.
        with tempfile.TemporaryDirectory(dir=folder) as cache:
            subprocess.run([*command, "-cache", cache], check=True, timeout=300)
        (folder / "complete").touch()
    return folder


@contextmanager
def rest_service(folder: Path) -> Iterator[str]:
    """The address of a service whose tables and database are in `folder`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    hadoop = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar")
    class_path = [f"{_jars()}/*", *map(str, hadoop), *map(str, resolve(CORE[1:2]))]
    environment = {
        **os.environ,
        "CATALOG_WAREHOUSE": (folder / "warehouse").as_uri(),
        "CATALOG_URI": f"jdbc:sqlite:{folder}/service.db",
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_REST_PORT": str(port),
    }
    command = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", ":".join(class_path)]
    process = subprocess.Popen([*command, "org.apache.iceberg.rest.RESTCatalogServer"], env=environment)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(process, address)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_for(process: subprocess.Popen[bytes], address: str) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            direct.open(f"{address}/v1/config", timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"the catalog service does not answer at {address}")
