"""rows are moved by a migration: what it writes, it reads back at once"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade():
    bind = op.get_bind()
    bind.execute(sa.text("INSERT INTO authors (name) VALUES ('migrated')"))
    key = bind.scalar(sa.text("SELECT id FROM authors WHERE name = 'migrated'"))
    if key is None:
        raise RuntimeError("a migration did not see its own row")
    bind.execute(sa.text("DELETE FROM authors WHERE id = :key"), {"key": key})


def downgrade():
    pass
