"""SQLAlchemy over PyMySQL, unchanged: what an ordinary application does with its tables.

usage: sqlalchemy_client.py SOCKET

Each function named test_… gets an engine on an empty database. Prints "N passed, N failed".
"""

import datetime
import decimal
import os
import sys
import traceback

import sqlalchemy as sa
import sqlalchemy.dialects.mysql
from sqlalchemy import orm


class Base(orm.DeclarativeBase):
    """The tables of these tests."""


class Author(Base):
    __tablename__ = "author"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(100), unique=True)
    books: orm.Mapped[list["Book"]] = orm.relationship(
        back_populates="author", order_by="Book.id",
        primaryjoin="Book.author_id == Author.id", foreign_keys="Book.author_id",
    )


class Book(Base):
    __tablename__ = "book"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    # A plain column and an index: foreign keys are not every engine's business.
    author_id: orm.Mapped[int] = orm.mapped_column(index=True)
    title: orm.Mapped[str] = orm.mapped_column(sa.String(200))
    price: orm.Mapped[decimal.Decimal] = orm.mapped_column(sa.Numeric(10, 2))
    published: orm.Mapped[datetime.date | None]
    entered: orm.Mapped[datetime.datetime | None] = orm.mapped_column(sa.dialects.mysql.DATETIME(fsp=6))
    cover: orm.Mapped[bytes | None] = orm.mapped_column(sa.LargeBinary(2**24))
    author: orm.Mapped[Author] = orm.relationship(
        back_populates="books", primaryjoin="Book.author_id == Author.id", foreign_keys="Book.author_id"
    )


def test_tables_are_created_and_reflected(engine):
    Base.metadata.create_all(engine)
    inspector = sa.inspect(engine)
    assert set(inspector.get_table_names()) == {"author", "book"}
    assert [c["name"] for c in inspector.get_columns("author")] == ["id", "name"]
    assert inspector.get_pk_constraint("book")["constrained_columns"] == ["id"]
    assert inspector.get_indexes("book")[0]["column_names"] == ["author_id"]
    Base.metadata.drop_all(engine)
    assert sa.inspect(engine).get_table_names() == []


def test_objects_are_stored_queried_changed_and_deleted(engine):
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        for number in range(20):
            author = Author(name=f"author {number:02}")
            author.books = [Book(title=f"book {n}", price=decimal.Decimal("9.99")) for n in range(number)]
            session.add(author)
        session.commit()
        counts = session.execute(
            sa.select(Author.name, sa.func.count(Book.id))
            .join(Book, Book.author_id == Author.id)
            .group_by(Author.name)
            .order_by(Author.name)
        ).all()
        assert counts == [(f"author {n:02}", n) for n in range(1, 20)], counts
        last = session.scalars(sa.select(Author).where(Author.name == "author 19")).one()
        last.name = "somebody else"
        for book in last.books[5:]:
            session.delete(book)
        session.commit()
    with orm.Session(engine) as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(Book)) == 19 * 20 // 2 - 14
        titles = session.scalars(
            sa.select(Book.title).join(Author, Book.author_id == Author.id).where(Author.name == "somebody else")
        ).all()
        assert sorted(titles) == [f"book {n}" for n in range(5)]


def test_values_come_back_as_they_went(engine):
    Base.metadata.create_all(engine)
    cover = os.urandom(3_000_000)
    values = {
        "title": "Ein Übergrößenträger \U0001f30a\U0001f980 潮だまり \U0001f469\u200d\U0001f52c",
        "price": decimal.Decimal("12345678.90"),
        "published": datetime.date(1999, 12, 31),
        "entered": datetime.datetime(2024, 2, 29, 23, 59, 59, 999999),
        "cover": cover,
        "author_id": 1,
    }
    with engine.begin() as connection:
        key = connection.execute(sa.insert(Book.__table__).values(**values)).inserted_primary_key[0]
    with engine.connect() as connection:
        row = connection.execute(sa.select(Book.__table__).where(Book.id == key)).mappings().one()
        for name, value in values.items():
            assert row[name] == value, name
        found = connection.execute(sa.select(Book.id).where(Book.title.like("%\U0001f980%"))).scalar_one()
        assert found == key


def test_nulls_and_limits(engine):
    table = sa.Table(
        "limits",
        sa.MetaData(),
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("small", sa.SmallInteger),
        sa.Column("big", sa.BigInteger, index=True),
        sa.Column("real", sa.Double),
        sa.Column("exact", sa.Numeric(38, 10)),
        sa.Column("flag", sa.Boolean),
        sa.Column("day", sa.Time),
        sa.Column("note", sa.Text),
    )
    rows = [
        dict(id=1, small=-32768, big=-(2**63), real=-1.5e300, exact=decimal.Decimal("-1234567890123456789012345678.0123456789"), flag=True, day=datetime.time(23, 0), note=""),
        dict(id=2, small=32767, big=2**63 - 1, real=2.5e-300, exact=decimal.Decimal("0.0000000001"), flag=False, day=datetime.time(0, 0), note="x" * 60_000),
        dict(id=-3, small=None, big=None, real=None, exact=None, flag=None, day=None, note=None),
    ]
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(table), rows)
        back = connection.execute(sa.select(table).order_by(table.c.big.desc())).mappings().all()
    for row, expected in zip(back, (rows[1], rows[0], rows[2]), strict=True):
        for name, value in expected.items():
            assert row[name] == value, (name, row[name], value)


def test_a_transaction_rolls_back_as_a_whole(engine):
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add(Author(name="kept"))
        session.commit()
        session.add(Author(name="dropped"))
        session.flush()
        try:
            session.add(Author(name="kept"))
            session.flush()
            raise AssertionError("the same name was stored twice")
        except sa.exc.IntegrityError as error:
            assert "Duplicate entry 'kept'" in str(error), error
            session.rollback()
        assert session.scalars(sa.select(Author.name)).all() == ["kept"]


def test_a_savepoint_rolls_back_its_part(engine):
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add(Author(name="before"))
        nested = session.begin_nested()
        session.add(Author(name="inside"))
        session.flush()
        nested.rollback()
        session.add(Author(name="after"))
        session.commit()
        assert sorted(session.scalars(sa.select(Author.name))) == ["after", "before"]


def test_isolation_levels(engine):
    Base.metadata.create_all(engine)
    for level, seen in (("READ COMMITTED", 1), ("REPEATABLE READ", 0)):
        with engine.connect().execution_options(isolation_level=level) as reader:
            count = sa.select(sa.func.count()).select_from(Author)
            assert reader.execute(count).scalar_one() == 0
            with engine.begin() as writer:
                writer.execute(sa.insert(Author).values(name=level))
            assert reader.execute(count).scalar_one() == seen, level
            reader.rollback()
        with engine.begin() as connection:
            connection.execute(sa.delete(Author))


def main():
    passed = failed = 0
    url = sa.URL.create(
        "mysql+pymysql", username="root", query={"unix_socket": sys.argv[1], "charset": "utf8mb4"}
    )
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    for name, test in sorted(globals().items()):
        if not name.startswith("test_"):
            continue
        with admin.connect() as connection:
            connection.execute(sa.text("DROP DATABASE IF EXISTS alchemy"))
            connection.execute(sa.text("CREATE DATABASE alchemy CHARACTER SET utf8mb4"))
        engine = sa.create_engine(url.set(database="alchemy"))
        try:
            test(engine)
            passed += 1
            print(f"sqlalchemy: {name[5:].replace('_', ' ')}: ok")
        except Exception:
            failed += 1
            print(f"sqlalchemy: {name[5:].replace('_', ' ')}: FAILED")
            traceback.print_exc(file=sys.stdout)
        finally:
            engine.dispose()
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
