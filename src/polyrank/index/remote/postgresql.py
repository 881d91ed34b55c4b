"""One table of a PostgreSQL database with the extension pgvector: the only module that imports its client. No torch.

An index is a view of its table, which the comment on the view names; the comment on the table has its description.
Facts are a column of JSON with an index of names. Other texts are JSON in ASCII, as PostgreSQL's texts cannot hold NUL.
"""

import json
from collections.abc import Iterator, Sequence
from math import ceil, frexp
from typing import Any

from polyrank.errors import ArtifactError, MissingExtraError, OfflineError, PolyrankError, ResourceError, UsageError
from polyrank.index.checks import Vectors
from polyrank.index.filters import Tree
from polyrank.index.remote.address import Address
from polyrank.index.remote.facts import COLUMN, Columns, Language, condition
from polyrank.index.remote.store import FIELDS, FLAT, KEY, TIMEOUT_S, CollectionDescription, Row, Store
from polyrank.storage.time_limit import check_time_left

BREADTH = 200  # nodes of a graph that a search visits, and the length of the longest list from a graph
ROWS_AT_A_TIME = 1024  # of a scan
OF_INDEX, OF_TABLE = "polyrank index of ", "polyrank "  # how comments start
EXISTS = f"({COLUMN} ? '{{0}}')"
LANGUAGE: Language[str] = Language(
    EXISTS.format,
    lambda name, kind, digits: f"""({EXISTS.format(name)} and {COLUMN} ->> '{name}' {kind} '{digits}' collate "C")""",
    lambda kind, parts: f"({f' {kind} '.join(parts)})",
    lambda part: f"(not {part})",
)


class PostgresqlTable(Store):
    """See ``Store``. A column of numbers bounds the norms by itself."""

    def __init__(self, address: Address, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(address, timeout_s=timeout_s)
        try:
            import psycopg
            import psycopg.sql
        except ImportError as error:
            raise MissingExtraError("psycopg", "postgresql") from error
        self._library, self._quote, self._table = psycopg, psycopg.sql.quote, f'"{address.collection}"'
        self._errors = (psycopg.Error,)

    def _open(self, timeout_s: float) -> Any:
        user, _, password = self.address.token.partition(":")
        host, _, port = self.address.uri.partition("://")[2].rpartition(":")
        trust = {"sslmode": "verify-full", "sslrootcert": self.address.authority} if self.address.authority else {}
        return self._library.connect(
            host=host.strip("[]"),
            port=port,
            dbname=self.address.database,
            user=user or None,
            password=password,  # an empty one keeps PGPASSWORD from a server that the user did not name
            connect_timeout=ceil(timeout_s),
            options=f"-c jit=off -c hnsw.ef_search={BREADTH}",
            autocommit=True,
            prepare_threshold=None,  # a plan would not survive the replacement of a view
            **trust,
        )

    def _request(self, client: Any, timeout_s: float, method: str, *arguments: Any, **settings: Any) -> Any:
        client.wait = lambda answer, *_, **__: type(client).wait(client, answer, timeout=timeout_s)
        cursor = client.execute(*arguments)
        return cursor.fetchall() if cursor.description else []

    def _fault(self, error: Any) -> type[PolyrankError]:
        state = error.sqlstate or ""
        if state == "42P01":  # no such table
            return ArtifactError
        if state.startswith("28") or "authentication failed" in str(error) or "no password supplied" in str(error):
            return UsageError
        lost = state[:2] in ("", "08", "57") and "does not exist" not in str(error)
        return OfflineError if lost and isinstance(error, self._library.OperationalError) else ResourceError

    def _comment(self, name: str) -> tuple[str, str, int]:
        """The kind of a relation in the catalogue, its comment, and how many numbers its vectors have."""
        width = "(select max(atttypmod) from pg_attribute where attrelid = c.oid and attname = 'vector')"
        found = self._call(
            "execute",
            f"select relkind::text, coalesce(obj_description(oid, 'pg_class'), ''), coalesce({width}, 0)"
            " from pg_class c where oid = to_regclass(%s)",
            [f'"{name}"'],
        )
        if not found:
            raise ArtifactError(self._message(ArtifactError, "", ArtifactError()))
        kind, text, n = found[0]
        if kind == "v" and text.startswith(OF_INDEX):
            return self._comment(text.removeprefix(OF_INDEX))
        return name, text.removeprefix(OF_TABLE) if kind == "r" and text.startswith(OF_TABLE) else "", int(n)

    def create(self, *, width: int, kind: str, n: int, info: str, divided: bool = False) -> None:
        table, index = self._table, f"create index on {self._table} using"
        comment = self._quote(f"{OF_TABLE}{kind} {info}")
        graph = f"; {index} hnsw (vector vector_ip_ops)" if kind != FLAT else ""
        self._call(
            "execute",
            "create extension if not exists vector;"
            f" create table {table} ({KEY} text primary key, candidate json, {COLUMN} jsonb, vector vector({width}));"
            f" {index} gin ({COLUMN}); {index} btree (vector_norm(vector));"
            f" comment on table {table} is {comment}{graph}",
        )

    def allow_norms(self, exponent: int) -> None:
        """Does nothing: the table has an index of the norms."""

    def names(self) -> list[str]:
        return self._commented("r", f"{OF_TABLE}%")

    def aliases(self, collection: str) -> tuple[str, ...]:
        return tuple(self._commented("v", OF_INDEX + collection.replace("_", r"\_")))

    def _commented(self, kind: str, pattern: str) -> list[str]:
        visible = "relkind = %s and pg_table_is_visible(oid) and obj_description(oid, 'pg_class') like %s"
        return [
            name for (name,) in self._call("execute", f"select relname from pg_class where {visible}", [kind, pattern])
        ]

    def described(self, name: str) -> CollectionDescription | None:
        table, comment, width = self._comment(name)
        if not comment or not width:
            return None
        ((norm,),) = self._call("execute", f'select max(vector_norm(vector)) from "{table}"')
        bound = 2.0 ** frexp(float(norm or 0.0) * (1 + 1e-9))[1]
        return CollectionDescription(table, comment.partition(" ")[2], width, bound)

    def kind(self) -> str:
        return self._comment(self.address.collection)[1].partition(" ")[0]

    def n_indexed(self) -> int:
        return self.count()

    def set_alias(self, alias: str, *, replace: bool) -> None:
        comment = self._quote(OF_INDEX + self.address.collection)
        self._call(
            "execute",
            (f'drop view if exists "{alias}"; ' if replace else "")
            + f'create view "{alias}" as table {self._table}; comment on view "{alias}" is {comment}',
        )

    def drop_alias(self, alias: str) -> None:
        self._call("execute", f'drop view "{alias}"')

    def drop(self, collection: str) -> None:
        self._call("execute", f'drop table "{collection}"')

    def write(self, rows: Sequence[Row]) -> None:
        texts = [{name: row[name] for name in FIELDS if name != "vector"} for row in rows]
        columns = [texts, [row[COLUMN] for row in rows], [row["vector"] for row in rows]]
        self._call(
            "execute",
            f"insert into {self._table} select k, c::json, f::jsonb, v::vector from"
            " unnest(%s::text[], %s::text[], %s::text[], %s::text[]) as new (k, c, f, v)"
            f" on conflict ({KEY}) do update set candidate = excluded.candidate, {COLUMN} = excluded.{COLUMN},"
            " vector = excluded.vector",
            [[row[KEY] for row in rows], *(list(map(json.dumps, column)) for column in columns)],
        )

    def delete(self, keys: Sequence[str]) -> None:
        self._call("execute", f"delete from {self._table} where {KEY} = any(%s)", [list(keys)])

    def condition(self, columns: Columns, tree: Tree) -> str:
        return condition(tree, LANGUAGE)

    def nearest(self, vectors: Vectors, n: int, condition: str, *, kind: str) -> list[list[tuple[str, float]]]:
        # no index orders by a product, so PostgreSQL compares every vector that passes; a graph would lose some of them
        order = "product desc" if kind == FLAT or condition or n > BREADTH else "vector <#> q.v"
        found = self._call(
            "execute",
            f"select q.i, r.{KEY}, r.product from unnest(%s::text[]::vector[]) with ordinality as q (v, i),"
            f" lateral (select {KEY}, -(vector <#> q.v) as product from {self._table} where {condition or 'true'}"
            f" order by {order} limit {n}) r order by q.i, r.product desc",
            [[json.dumps(row.tolist()) for row in vectors]],
        )
        return [[(key, float(product)) for i, key, product in found if i == one] for one in range(1, len(vectors) + 1)]

    def get(self, keys: Sequence[str]) -> list[Row]:
        return self._rows(f"{KEY} = any(%s)", [list(keys)])

    def count(self) -> int:
        return int(self._call("execute", f"select count(*) from {self._table}")[0][0])

    def scan(self, condition: str) -> Iterator[Row]:
        after, last = f"{condition or 'true'} and {KEY} > %s order by {KEY} limit {ROWS_AT_A_TIME}", ""
        while rows := self._rows(after, [last]):
            yield from rows
            check_time_left()
            last = rows[-1][KEY]

    def _rows(self, where: str, values: list[Any]) -> list[Row]:
        query = f"select {KEY}, candidate, vector::text from {self._table} where {where}"
        found = self._call("execute", query, values)
        return [{**candidate, KEY: key, "vector": json.loads(vector)} for key, candidate, vector in found]
