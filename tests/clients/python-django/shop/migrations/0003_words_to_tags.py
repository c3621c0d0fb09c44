"""Moves data between tables: each step reads what the one before it wrote."""

from django.db import migrations, models


def make_rows(apps, _editor):
    item = apps.get_model("shop", "Item")
    for i in range(40):
        item.objects.create(title=f"item {i}", words=f"all {'even' if i % 2 == 0 else 'odd'} n{i % 5}")


def words_to_tags(apps, _editor):
    item, tag = apps.get_model("shop", "Item"), apps.get_model("shop", "Tag")
    for row in item.objects.all():
        for word in row.words.split():
            row.tags.add(tag.objects.get_or_create(word=word)[0])


def tags_to_words(apps, _editor):
    item = apps.get_model("shop", "Item")
    for row in item.objects.prefetch_related("tags"):
        row.words = " ".join(sorted(t.word for t in row.tags.all()))
        row.save()
    if item.objects.exclude(words__contains="all").exists():
        raise RuntimeError("a migration did not see its own rows")


def drop_rows(apps, _editor):
    apps.get_model("shop", "Item").objects.all().delete()


class Migration(migrations.Migration):
    dependencies = [("shop", "0002_fields")]
    operations = [
        migrations.RunPython(make_rows, drop_rows),
        migrations.RunPython(words_to_tags, tags_to_words),
        migrations.RemoveField("Item", "words"),
    ]
