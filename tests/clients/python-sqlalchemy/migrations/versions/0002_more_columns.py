"""stock, a version and JSON for books; authors get a name that is unique"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    op.add_column("books", sa.Column("extra", sa.JSON))
    op.add_column("books", sa.Column("stock", sa.Integer, nullable=False, server_default="0"))
    op.add_column("books", sa.Column("version", sa.Integer, nullable=False))
    op.alter_column("authors", "full_name", new_column_name="name", existing_type=sa.String(80), existing_nullable=False)
    op.create_unique_constraint("name", "authors", ["name"])
    op.create_index("books_title", "books", ["title"])


def downgrade():
    op.drop_index("books_title", "books")
    op.drop_constraint("name", "authors", type_="unique")
    op.alter_column("authors", "name", new_column_name="full_name", existing_type=sa.String(80), existing_nullable=False)
    for column in ("version", "stock", "extra"):
        op.drop_column("books", column)
