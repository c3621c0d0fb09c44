"""SQLAlchemy's ORM over PyMySQL, its pool, and Alembic's migrations up and down."""

import concurrent.futures
import datetime as dt
import decimal
import os
import ssl
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python-common"))

import sqlalchemy as sa  # noqa: E402
from alembic import command  # noqa: E402
from alembic.config import Config  # noqa: E402
from sqlalchemy import event, exc, orm  # noqa: E402
from sqlalchemy.dialects.mysql import insert as mysql_insert  # noqa: E402
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship  # noqa: E402

from check import Settings, Suite, equal, true  # noqa: E402

settings = Settings()
suite = Suite()
here = os.path.dirname(os.path.abspath(__file__))


def make_engine(database=settings.db, **options):
    tls = {"ssl_disabled": True}
    if settings.tls:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        tls = {"ssl": context}
    if settings.socket:
        tls["unix_socket"] = settings.socket
    url = sa.URL.create("mysql+pymysql", settings.user, settings.password, settings.host, settings.port, database,
                        query={"charset": "utf8mb4"})
    return sa.create_engine(url, connect_args=tls, **options)


class Base(orm.DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "authors"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(80), unique=True)
    born: Mapped[dt.date | None]
    books: Mapped[list["Book"]] = relationship(back_populates="author", cascade="all, delete-orphan")


class Book(Base):
    __tablename__ = "books"
    id: Mapped[int] = mapped_column(primary_key=True)
    author_id: Mapped[int] = mapped_column(sa.ForeignKey("authors.id"))
    title: Mapped[str] = mapped_column(sa.String(200))
    price: Mapped[decimal.Decimal] = mapped_column(sa.Numeric(10, 2))
    extra: Mapped[dict | None] = mapped_column(sa.JSON)
    stock: Mapped[int] = mapped_column(server_default="0")
    version: Mapped[int] = mapped_column()
    author: Mapped[Author] = relationship(back_populates="books")
    __mapper_args__ = {"version_id_col": version}
    __table_args__ = (sa.Index("books_title", "title"),)


def alembic(engine):
    config = Config()
    config.set_main_option("script_location", os.path.join(here, "migrations"))
    config.attributes["engine"] = engine
    return config


@suite.group
def create_database():
    engine = make_engine(None)
    with engine.connect() as c:
        c.execute(sa.text(f"DROP DATABASE IF EXISTS {settings.db}"))
        c.execute(sa.text(f"CREATE DATABASE {settings.db} CHARACTER SET utf8mb4"))
    equal(engine.dialect.is_mariadb, settings.family == "mariadb", "the dialect's view of the server")
    engine.dispose()


@suite.group
def migrate_up_and_down():
    engine = make_engine()
    config = alembic(engine)
    command.upgrade(config, "head")
    names = set(sa.inspect(engine).get_table_names())
    true({"authors", "books", "alembic_version"} <= names, names)
    command.downgrade(config, "0001")
    columns = {c["name"] for c in sa.inspect(engine).get_columns("books")}
    true("stock" not in columns, columns)
    command.downgrade(config, "base")
    equal(set(sa.inspect(engine).get_table_names()), {"alembic_version"})
    command.upgrade(config, "head")
    with engine.connect() as c:
        equal(c.scalar(sa.text("SELECT version_num FROM alembic_version")), "0003")
    engine.dispose()


@suite.group
def the_migrated_schema_is_the_models():
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    engine = make_engine()
    with engine.connect() as c:
        differences = compare_metadata(MigrationContext.configure(c), Base.metadata)
    equal(differences, [], "differences that Alembic's autogenerate sees")
    book = sa.inspect(engine)
    equal([k["referred_table"] for k in book.get_foreign_keys("books")], ["authors"])
    true(any(i["column_names"] == ["title"] for i in book.get_indexes("books")), "the index")
    engine.dispose()


@suite.group
def unit_of_work():
    engine = make_engine()
    with Session(engine) as s:
        ursula = Author(name="Ursula", born=dt.date(1929, 10, 21))
        ursula.books = [Book(title="A Wizard", price=decimal.Decimal("9.99"), extra={"tags": ["é", None, 1.5]}),
                        Book(title="日本語 😀", price=decimal.Decimal("12.50"))]
        s.add(ursula)
        s.commit()
        true(ursula.id and all(b.id for b in ursula.books), "generated ids")
        key = ursula.id
    with Session(engine) as s:
        again = s.get_one(Author, key)
        equal([b.title for b in sorted(again.books, key=lambda b: b.id)], ["A Wizard", "日本語 😀"])
        equal(again.books[0].extra, {"tags": ["é", None, 1.5]})
        again.books[0].price += 1
        del again.books[1]
        s.commit()
        equal(s.scalar(sa.select(sa.func.count()).select_from(Book)), 1)
        equal(s.scalar(sa.select(Book.price)), decimal.Decimal("10.99"))
    with Session(engine) as s:
        s.add(Author(name="Ursula"))
        try:
            s.commit()
        except exc.IntegrityError as error:
            equal(error.orig.args[0], 1062)
            s.rollback()
        else:
            raise AssertionError("a duplicate went through")
        with s.begin_nested():
            s.add(Author(name="Kept"))
        try:
            with s.begin_nested():
                s.add(Author(name="Dropped"))
                s.flush()
                raise KeyError
        except KeyError:
            pass
        s.commit()
        equal(sorted(s.scalars(sa.select(Author.name))), ["Kept", "Ursula"])
    engine.dispose()


@suite.group
def autocommit_reads_its_own_writes():
    engine = make_engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as c:
        for i in range(60):
            key = c.execute(sa.insert(Author).values(name=f"auto {i}")).inserted_primary_key[0]
            equal(c.scalar(sa.select(Author.name).where(Author.id == key)), f"auto {i}")
            c.execute(sa.update(Author).where(Author.id == key).values(name=f"changed {i}"))
            equal(c.scalar(sa.select(Author.name).where(Author.id == key)), f"changed {i}")
            c.execute(sa.delete(Author).where(Author.id == key))
            equal(c.scalar(sa.select(Author.name).where(Author.id == key)), None)
    engine.dispose()


@suite.group
def bulk_and_upsert():
    engine = make_engine()
    with engine.begin() as c:
        c.execute(sa.insert(Author), [{"name": f"bulk {i}"} for i in range(1500)])
    with engine.begin() as c:
        equal(c.scalar(sa.select(sa.func.count()).where(Author.name.like("bulk %"))), 1500)
        upsert = mysql_insert(Author).values(name="bulk 7", born=dt.date(2000, 1, 1))
        c.execute(upsert.on_duplicate_key_update(born=upsert.inserted.born))
        equal(c.scalar(sa.select(Author.born).where(Author.name == "bulk 7")), dt.date(2000, 1, 1))
        c.execute(sa.delete(Author).where(Author.name.like("bulk %")))
    engine.dispose()


@suite.group
def stale_versions_are_found():
    engine = make_engine()
    with Session(engine) as one, Session(engine) as two:
        mine = one.scalars(sa.select(Book)).one()
        theirs = two.scalars(sa.select(Book)).one()
        mine.stock = 1
        one.commit()
        theirs.stock = 2
        try:
            two.commit()
        except orm.exc.StaleDataError:
            two.rollback()
        else:
            raise AssertionError("a lost update")
    engine.dispose()


@suite.group
def thirty_threads_on_a_pool_of_eight():
    engine = make_engine(pool_size=5, max_overflow=3, pool_timeout=60, pool_recycle=1, pool_pre_ping=True)
    with Session(engine) as s:
        stock = s.scalars(sa.select(Book.id)).one()
        before = s.scalars(sa.select(Book.stock)).one()

    def work(n):
        for i in range(8):
            with Session(engine) as s:
                book = s.get_one(Book, stock, with_for_update=True)
                book.stock += 1
                s.add(Author(name=f"thread {n}/{i}"))
                s.flush()
                equal(s.scalar(sa.select(sa.func.count()).where(Author.name.like(f"thread {n}/%"))), i + 1)
                s.commit()
        return n

    with concurrent.futures.ThreadPoolExecutor(30) as threads:
        equal(sorted(threads.map(work, range(30))), list(range(30)))
    with Session(engine) as s:
        equal(s.get_one(Book, stock, with_for_update=True).stock, before + 240)
    engine.dispose()


@suite.group
def streamed_results():
    engine = make_engine()
    with engine.connect() as c:
        wide = sa.text("SELECT a.id, REPEAT('y', 40) FROM authors a, authors b, authors c LIMIT 50000")
        count = 0
        for part in c.execution_options(stream_results=True, max_row_buffer=500).execute(wide).partitions(1000):
            count += len(part)
        equal(count, 50000)
        equal(c.scalar(sa.text("SELECT 5")), 5)
    engine.dispose()


@suite.group
def disconnects_are_survived():
    engine = make_engine(pool_pre_ping=True, pool_size=1, max_overflow=0)
    killer = make_engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as c:
        key = c.scalar(sa.text("SELECT CONNECTION_ID()"))
    with killer.connect() as k:
        k.execute(sa.text(f"KILL {key}"))
    with engine.connect() as c:
        equal(c.scalar(sa.text("SELECT 'pre-ping replaced it'")), "pre-ping replaced it")
    engine.dispose()
    killer.dispose()


@suite.group
def settings_on_connect():
    engine = make_engine(isolation_level="READ COMMITTED", pool_size=3)

    @event.listens_for(engine, "connect")
    def on_connect(con, _record):
        with con.cursor() as cursor:
            cursor.execute("SET time_zone = '+05:45', @tenant = 'blue', SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')")

    for _ in range(5):
        with engine.connect() as c:
            equal(tuple(c.execute(sa.text('''SELECT @@time_zone, @tenant, "name" FROM "authors" WHERE name = 'Kept' ''')).one()),
                  ("+05:45", "blue", "Kept"))
            equal(c.get_isolation_level(), "READ COMMITTED")
    engine.dispose()


@suite.group
def clean_up():
    engine = make_engine(None)
    with engine.connect() as c:
        c.execute(sa.text(f"DROP DATABASE {settings.db}"))
    engine.dispose()


sys.exit(suite.run())
