from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [
        migrations.RenameField("Item", "name", "title"),
        migrations.AlterField("Item", "title", models.CharField(db_index=True, max_length=100)),
        migrations.AddField("Item", "extra", models.JSONField(default=dict)),
        migrations.AddField("Item", "sold_at", models.DateTimeField(null=True)),
        migrations.AddField("Item", "picture", models.BinaryField(default=b"")),
        migrations.AddField("Item", "took", models.DurationField(null=True)),
        migrations.AddField("Item", "key", models.UUIDField(null=True, unique=True)),
        migrations.AddField("Item", "stock", models.PositiveIntegerField(default=0)),
        migrations.CreateModel(
            "Tag",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("word", models.CharField(max_length=40, unique=True)),
            ],
        ),
        migrations.AddField("Item", "tags", models.ManyToManyField(related_name="items", to="shop.tag")),
        migrations.AddIndex("Item", models.Index(fields=["price", "stock"], name="price_stock")),
        migrations.AddConstraint("Item", models.CheckConstraint(condition=models.Q(("price__gte", 0)), name="price_not_negative")),
    ]
