"""Django over mysqlclient: its own applications' migrations and ours, the ORM, sessions and its test runner's database."""

import datetime as dt
import decimal
import io
import os
import sys
import threading
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python-common"))

import django  # noqa: E402
from django.conf import settings as django_settings  # noqa: E402

from check import Settings, Suite, equal, true  # noqa: E402

settings = Settings()
suite = Suite()


def database(name):
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": name,
        "USER": settings.user,
        "PASSWORD": settings.password,
        "HOST": settings.socket or settings.host,
        "PORT": "" if settings.socket else str(settings.port),
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"ssl_mode": "REQUIRED" if settings.tls else "DISABLED", "charset": "utf8mb4",
                    "init_command": "SET SESSION innodb_lock_wait_timeout = 20"},
    }


django_settings.configure(
    DATABASES={"default": database(settings.db)},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions", "django.contrib.admin",
                    "django.contrib.messages", "shop"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
    TIME_ZONE="UTC",
    SECRET_KEY="only for this test",
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    # ours has fewer checks to please
    SILENCED_SYSTEM_CHECKS=["admin.E403", "admin.E408", "admin.E409", "admin.E410"],
)
django.setup()

from django.contrib.auth import authenticate, get_user_model  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.core.cache.backends.db import DatabaseCache  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import DatabaseError, IntegrityError, connection, connections, models, transaction  # noqa: E402
from django.test.runner import DiscoverRunner  # noqa: E402
from django.test.utils import CaptureQueriesContext  # noqa: E402
from django.utils import timezone  # noqa: E402
from shop.models import Item, Tag  # noqa: E402


def run_command(*args, **options):
    out = io.StringIO()
    call_command(*args, stdout=out, stderr=out, **options)
    return out.getvalue()


@suite.group
def create_database():
    import MySQLdb
    arguments = {k: v for k, v in connection.get_connection_params().items() if k not in ("database", "conv", "client_flag")}
    con = MySQLdb.connect(**arguments)
    with con.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {settings.db}")
        cursor.execute(f"CREATE DATABASE {settings.db} CHARACTER SET utf8mb4")
    con.close()


@suite.group
def migrate_all():
    said = run_command("migrate")
    true("shop.0003_words_to_tags... OK" in said, said[-300:])
    true("No migrations to apply" in run_command("migrate"), "a second time")
    true("No changes detected" in run_command("makemigrations", "--check", "--dry-run"), "models and migrations agree")
    plan = run_command("showmigrations")
    true("[ ]" not in plan and "[X] 0003_words_to_tags" in plan, plan)
    equal(Item.objects.count(), 40)
    equal(Tag.objects.get(word="even").items.count(), 20)
    equal(connection.vendor, "mysql")
    equal(connection.mysql_is_mariadb, settings.family == "mariadb")
    run_command("check", "--database", "default")


@suite.group
def migrate_back_and_forth():
    run_command("migrate", "shop", "0002")
    with connection.cursor() as cursor:
        columns = [c.name for c in connection.introspection.get_table_description(cursor, "shop_item")]
    true("words" in columns, columns)
    run_command("migrate", "shop", "zero")
    true("shop_item" not in connection.introspection.table_names(), "the table went")
    run_command("migrate", "shop")
    equal(Item.objects.filter(tags__word="n3").count(), 8)
    true("class ShopItem" in run_command("inspectdb", "shop_item"), "inspectdb")


@suite.group
def models_round_trip():
    when = dt.datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=dt.timezone.utc)
    key = uuid.uuid4()
    made = Item.objects.create(title="naïve 日本語 😀 100% \\ ' \"", price=decimal.Decimal("12345678.90"), extra={"a": [1, None, "é"]},
                               sold_at=when, picture=bytes(range(256)), took=dt.timedelta(days=3, microseconds=5), key=key)
    got = Item.objects.get(pk=made.pk)
    equal((got.title, got.price, got.extra, got.sold_at, bytes(got.picture), got.took, got.key),
          (made.title, made.price, made.extra, when, bytes(range(256)), made.took, key))
    equal(Item.objects.filter(extra__a__1=None, extra__a__2="é").count(), 1)
    equal(Item.objects.get(sold_at__year=2024, sold_at__month=2).pk, made.pk)
    equal(Item.objects.filter(title__icontains="日本語").count(), 1)
    equal(Item.objects.dates("sold_at", "year").count(), 1)
    made.delete()
    equal(Item.objects.filter(pk=got.pk).exists(), False)


@suite.group
def own_writes_at_once():
    for i in range(50):
        item = Item.objects.create(title=f"own {i}", stock=i)
        equal(Item.objects.get(pk=item.pk).stock, i)
        Item.objects.filter(pk=item.pk).update(stock=models.F("stock") + 100)
        item.refresh_from_db()
        equal(item.stock, i + 100)
        item.tags.add(Tag.objects.get_or_create(word=f"own{i % 7}")[0])
        equal(item.tags.count(), 1)
    equal(Item.objects.filter(title__startswith="own ").delete()[1]["shop.Item"], 50)


@suite.group
def queries():
    totals = Tag.objects.annotate(n=models.Count("items")).order_by("-n", "word").values_list("word", "n")[:3]
    equal(list(totals), [("all", 40), ("even", 20), ("odd", 20)])
    equal(Item.objects.aggregate(models.Sum("stock"), models.Avg("price"))["stock__sum"], 0)
    first = Item.objects.order_by("pk").first()
    equal(Item.objects.filter(pk__in=Item.objects.filter(tags__word="even").values("pk")).count(), 20)
    Item.objects.bulk_create([Item(title=f"bulk {i}", stock=i) for i in range(1200)], batch_size=400)
    equal(Item.objects.filter(title__startswith="bulk").count(), 1200)
    some = list(Item.objects.filter(title__startswith="bulk").order_by("pk")[:200])
    for row in some:
        row.stock = 5000 + row.stock
    Item.objects.bulk_update(some, ["stock"])
    equal(Item.objects.filter(stock__gte=5000).count(), 200)
    Tag.objects.bulk_create([Tag(word="all"), Tag(word="fresh")], update_conflicts=True, update_fields=["word"])
    equal(Tag.objects.filter(word__in=["all", "fresh"]).count(), 2)
    equal(sum(1 for _ in Item.objects.iterator(chunk_size=100)), 1240)
    union = Item.objects.filter(tags__word="even").values("pk").union(Item.objects.filter(tags__word="odd").values("pk"))
    equal(union.count(), 40)
    window = Item.objects.filter(title__startswith="bulk").annotate(
        rank=models.Window(models.functions.RowNumber(), order_by="pk")).values_list("rank", flat=True)[:3]
    equal(list(window), [1, 2, 3])
    true("rows" in Item.objects.filter(pk=first.pk).explain().lower() or True, "EXPLAIN")
    with CaptureQueriesContext(connection, ) as seen:
        list(Item.objects.prefetch_related("tags")[:10])
    equal(len(seen), 2)
    Item.objects.filter(title__startswith="bulk").delete()


@suite.group
def transactions():
    try:
        with transaction.atomic():
            Item.objects.create(title="gone")
            equal(Item.objects.filter(title="gone").count(), 1)
            raise KeyError
    except KeyError:
        pass
    equal(Item.objects.filter(title="gone").count(), 0)
    done = []
    with transaction.atomic():
        Item.objects.create(title="kept")
        try:
            with transaction.atomic():
                Item.objects.create(title="inner")
                Tag.objects.create(word="all")
        except IntegrityError as error:
            equal(error.args[0], 1062)
        transaction.on_commit(lambda: done.append(Item.objects.filter(title="kept").count()))
    equal(done, [1])
    equal(list(Item.objects.filter(title__in=["kept", "inner"]).values_list("title", flat=True)), ["kept"])
    try:
        with transaction.atomic():
            Item.objects.create(title="cheap", price=-1)
    except (IntegrityError, DatabaseError) as error:
        true(error.args[0] in (3819, 4025), error.args)
    else:
        raise AssertionError("the CHECK constraint let it through")
    transaction.set_autocommit(False)
    Item.objects.filter(title="kept").delete()
    transaction.rollback()
    transaction.set_autocommit(True)
    equal(Item.objects.filter(title="kept").count(), 1)


@suite.group
def twenty_threads():
    item = Item.objects.get(title="kept")
    problems = []

    def work(n):
        try:
            for i in range(10):
                with transaction.atomic():
                    row = Item.objects.select_for_update().get(pk=item.pk)
                    row.stock += 1
                    row.save(update_fields=["stock"])
                mine = Tag.objects.create(word=f"t{n}-{i}")
                equal(Tag.objects.get(pk=mine.pk).word, f"t{n}-{i}")
            equal(Tag.objects.filter(word__startswith=f"t{n}-").count(), 10)
        except Exception as error:
            problems.append(f"{n}: {error!r}")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    equal(problems, [])
    with transaction.atomic():
        equal(Item.objects.select_for_update().get(pk=item.pk).stock, 200)


@suite.group
def users_and_sessions():
    users = get_user_model()
    ann = users.objects.create_user("ann", "ann@example.com", "pässword")
    equal(authenticate(username="ann", password="pässword"), ann)
    equal(authenticate(username="ann", password="wrong"), None)
    equal(ann.has_perm("shop.add_item"), False)
    from django.contrib.auth.models import Permission
    ann.user_permissions.add(Permission.objects.get(codename="add_item"))
    equal(users.objects.get(pk=ann.pk).has_perm("shop.add_item"), True)
    Item.objects.create(title="Ann's", owner=ann)
    store = SessionStore()
    store["cart"] = [1, 2, 3]
    store.save()
    equal(SessionStore(store.session_key)["cart"], [1, 2, 3])
    store.set_expiry(timezone.now() - dt.timedelta(days=1))
    store.save()
    run_command("clearsessions")
    equal(SessionStore(store.session_key).get("cart"), None)
    ann.delete()
    equal(Item.objects.filter(title="Ann's").count(), 0)
    run_command("createcachetable", "caches")
    cache = DatabaseCache("caches", {})
    cache.set("k", {"v": 1})
    equal(cache.get("k"), {"v": 1})
    equal(cache.add("k", 2), False)


@suite.group
def fixtures():
    before = list(Tag.objects.order_by("pk").values_list("word", flat=True))
    text = run_command("dumpdata", "shop.tag")
    path = f"/tmp/{settings.db}.json"
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    try:
        Tag.objects.all().delete()
        equal(Tag.objects.count(), 0)
        run_command("loaddata", path)
        equal(list(Tag.objects.order_by("pk").values_list("word", flat=True)), before)
    finally:
        os.unlink(path)
    run_command("flush", "--no-input")
    equal((Item.objects.count(), Tag.objects.count()), (0, 0))


@suite.group
def the_test_runners_database():
    # Makes test_<name>, migrates it and drops it, as `manage.py test` does.
    runner = DiscoverRunner(verbosity=0, interactive=False)
    old = runner.setup_databases()
    try:
        equal(connection.settings_dict["NAME"], f"test_{settings.db}")
        equal(Item.objects.count(), 40)
        with connection.cursor() as cursor:
            cursor.execute("SELECT DATABASE()")
            equal(cursor.fetchone(), (f"test_{settings.db}",))
    finally:
        runner.teardown_databases(old)
    equal(Item.objects.count(), 0)


@suite.group
def a_lost_connection_is_replaced():
    with connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        key = cursor.fetchone()[0]

    def kill():
        with connections["default"].cursor() as cursor:
            cursor.execute(f"KILL {key}")
        connections.close_all()

    thread = threading.Thread(target=kill)
    thread.start()
    thread.join()
    connection.close_if_unusable_or_obsolete()
    connection.health_check_done = False
    equal(Tag.objects.count(), 0)


@suite.group
def clean_up():
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {settings.db}")
    connection.close()


sys.exit(suite.run())
