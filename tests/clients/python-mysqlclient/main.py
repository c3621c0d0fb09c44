"""mysqlclient: the C driver's binding (libmariadb on Debian), text protocol."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python-common"))

import MySQLdb  # noqa: E402
import MySQLdb.cursors  # noqa: E402

from dbapi_suite import settings, suite  # noqa: E402


class Adapter:
    Error = MySQLdb.Error

    @staticmethod
    def Binary(value):
        return value

    @staticmethod
    def connect(db=None, multi=False, local_infile=False, streaming=False, **options):
        address = {"unix_socket": settings.socket} if settings.socket else {"host": settings.host, "port": settings.port}
        arguments = {
            "user": settings.user, "password": settings.password, "charset": "utf8mb4", "connect_timeout": 20,
            "ssl_mode": "REQUIRED" if settings.tls else "DISABLED",
            "multi_statements": multi, "local_infile": int(local_infile),
            "cursorclass": MySQLdb.cursors.SSCursor if streaming else MySQLdb.cursors.Cursor,
            **address, **options,
        }
        if db is not None:
            arguments["database"] = db
        return MySQLdb.connect(**arguments)

    @staticmethod
    def uses_tls(con):
        return settings.tls  # the binding does not tell; ssl_mode REQUIRED fails without

    @staticmethod
    def server_version(con):
        return con.get_server_info()

    @staticmethod
    def statistics(con):
        return con.stat()

    @staticmethod
    def change_user(con):
        con.change_user(settings.user, settings.password, settings.db)
        return True

    @staticmethod
    def reconnect(_con):
        return False

    @staticmethod
    def kill(con, thread_id):
        con.kill(thread_id)

    @staticmethod
    def abort(con, cursor):
        # mysql_close() with rows unread: the library just closes the socket.
        con.close()


sys.exit(suite.run(Adapter))
