"""Servers and replicas of them, for tests of what happens when one takes the place of another."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from tests.support import mariadb, mysql
from tests.support.mysql_protocol import PrivateServer

__all__ = ["SERVERS", "Servers", "execute"]

SERVERS = {"mariadb": mariadb, "mysql": mysql}


def execute(server: PrivateServer, *statements: str) -> list[tuple[Any, ...]]:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


@dataclass
class Servers:
    """A server, and others that are made of it."""

    kind: str
    started: list[PrivateServer] = field(default_factory=list)

    def start(self) -> PrivateServer:
        server = SERVERS[self.kind].private_server(networking=True, server_id=11 + len(self.started))
        self.started.append(server)
        return server

    def reset(self, server: PrivateServer) -> None:
        """It has no transactions."""
        execute(server, *(["RESET MASTER"] if self.kind == "mariadb" else ["RESET BINARY LOGS AND GTIDS"]))

    def replica_of(self, primary: PrivateServer) -> PrivateServer:
        replica = self.start()
        execute(replica, "DROP USER capture@'%'")
        self.reset(replica)
        self.follow(replica, primary)
        return replica

    def follow(self, server: PrivateServer, primary: PrivateServer) -> None:
        """Behind the transactions that it has."""
        settings = {
            "HOST": "'127.0.0.1'",
            "PORT": primary.port,
            "USER": "'capture'",
            "PASSWORD": "'se:cret/1'",
        }
        if self.kind == "mariadb":
            source = ", ".join(f"MASTER_{name} = {value}" for name, value in settings.items())
            execute(
                server,
                "SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_binlog_pos",
                f"CHANGE MASTER TO {source}, MASTER_USE_GTID = slave_pos",
            )
        else:
            source = ", ".join(f"SOURCE_{name} = {value}" for name, value in settings.items())
            more = "SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
            execute(server, f"CHANGE REPLICATION SOURCE TO {source}, {more}")
        self.start_replication(server)

    def start_replication(self, replica: PrivateServer) -> None:
        execute(replica, f"START {self._replica}")

    def promote(self, replica: PrivateServer) -> None:
        execute(replica, f"STOP {self._replica}")

    @property
    def _replica(self) -> str:
        return "SLAVE" if self.kind == "mariadb" else "REPLICA"

    def wait(self, primary: PrivateServer, replica: PrivateServer) -> None:
        """Until it has all transactions of the primary."""
        if self.kind == "mariadb":
            ((position,),) = execute(primary, "SELECT @@GLOBAL.gtid_binlog_pos")
            ((late,),) = execute(replica, f"SELECT MASTER_GTID_WAIT('{position}', 60)")
        else:
            ((executed,),) = execute(primary, "SELECT @@GLOBAL.gtid_executed")
            ((late,),) = execute(replica, f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{executed}', 60)")
        assert late == 0, execute(
            replica, "SHOW SLAVE STATUS" if self.kind == "mariadb" else "SHOW REPLICA STATUS"
        )

    def remove(self) -> None:
        for server in self.started:
            server.kill()
            server.remove()
