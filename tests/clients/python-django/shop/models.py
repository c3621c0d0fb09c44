"""The models that the migrations beside them lead up to."""

from django.conf import settings
from django.db import models


class Tag(models.Model):
    word = models.CharField(max_length=40, unique=True)


class Item(models.Model):
    title = models.CharField(max_length=100, db_index=True)
    price = models.DecimalField(max_digits=10, decimal_places=2, default=0)
    extra = models.JSONField(default=dict)
    sold_at = models.DateTimeField(null=True)
    picture = models.BinaryField(default=b"")
    took = models.DurationField(null=True)
    key = models.UUIDField(null=True, unique=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="items")
    tags = models.ManyToManyField(Tag, related_name="items")
    stock = models.PositiveIntegerField(default=0)

    class Meta:
        indexes = [models.Index(fields=["price", "stock"], name="price_stock")]
        constraints = [models.CheckConstraint(condition=models.Q(price__gte=0), name="price_not_negative")]
