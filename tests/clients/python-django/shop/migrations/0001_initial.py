from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL)]
    operations = [
        migrations.CreateModel(
            "Item",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100)),
                ("price", models.DecimalField(decimal_places=2, default=0, max_digits=10)),
                ("words", models.CharField(default="", max_length=200)),
                ("owner", models.ForeignKey(null=True, on_delete=models.CASCADE, related_name="items", to=settings.AUTH_USER_MODEL)),
            ],
        ),
    ]
