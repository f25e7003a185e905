"""MariaDB and MySQL as change logs: their row binlog, decoded and written into one log table."""

import importlib.util

from tautochrone.errors import DefinitionError

if importlib.util.find_spec("pymysql") is None:
    raise DefinitionError(
        "CAPTURE_DRIVER_MISSING",
        "Captures of MariaDB and MySQL need the package pymysql, which is not installed",
        hint="pip install 'tautochrone[mysql]'",
    )

from tautochrone.sources.mysql.capture import capture

__all__ = ["capture"]
