"""PyMySQL: a pure Python driver, text protocol only."""

import os
import ssl
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python-common"))

import pymysql  # noqa: E402
import pymysql.cursors  # noqa: E402
from pymysql.constants import CLIENT  # noqa: E402

from dbapi_suite import settings, suite  # noqa: E402


class Adapter:
    Error = (pymysql.err.Error, OSError)

    @staticmethod
    def Binary(value):
        return pymysql.Binary(value)

    @staticmethod
    def connect(db=None, multi=False, local_infile=False, streaming=False, **options):
        address = {"unix_socket": settings.socket} if settings.socket else {"host": settings.host, "port": settings.port}
        tls = {"ssl_disabled": True}
        if settings.tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            tls = {"ssl": context}
        arguments = {
            "user": settings.user, "password": settings.password, "charset": "utf8mb4", "connect_timeout": 20,
            "max_allowed_packet": 1 << 30, "client_flag": CLIENT.MULTI_STATEMENTS if multi else 0,
            "local_infile": local_infile, "cursorclass": pymysql.cursors.SSCursor if streaming else pymysql.cursors.Cursor,
            **address, **tls, **options,
        }
        return pymysql.connect(database=db, **arguments)

    @staticmethod
    def uses_tls(con):
        return isinstance(con._sock, ssl.SSLSocket)

    @staticmethod
    def server_version(con):
        return con.get_server_info()

    @staticmethod
    def statistics(_con):
        return None

    @staticmethod
    def change_user(_con):
        return False  # the driver has no COM_CHANGE_USER

    @staticmethod
    def reconnect(con):
        con.close()
        con.connect()
        return True

    @staticmethod
    def kill(con, thread_id):
        con.kill(thread_id)

    @staticmethod
    def abort(con, cursor):
        # The socket goes away in the middle of a result; the cursor must not try to drain it.
        con._force_close()
        cursor._result.unbuffered_active = False
        cursor._result.connection = None


sys.exit(suite.run(Adapter))
