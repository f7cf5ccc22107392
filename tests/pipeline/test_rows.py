"""Rows of CSV files and JSON lines, without Spark: each becomes a message, or is rejected with its reason."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deliveries.pipeline.jobs import jsonvalues, reading, rows
from deliveries.pipeline.jobs.messages import Columns, Row, RowError
from deliveries.pipeline.jobs.reading import Reading, read_files
from deliveries.pipeline.jobs.rows import USUAL, Dialect, csv_header, read_rows
from deliveries.pipeline.jobs.sources import files_of
from deliveries.pipeline.jobs.spans import LAST
from pushhub.common.errors import InvalidArgument

BODY = Columns(data="body", attributes=("kind",), ordering_key="key")


def read(
    path: Path, content: bytes, *, form: str = "csv", columns: Columns = BODY, dialect: Dialect = USUAL
) -> list[Row]:
    path.write_bytes(content)
    return list(read_rows(path, form=form, columns=columns, dialect=dialect))


def datas(parsed_rows: list[Row]) -> list[str]:
    return [row.data.decode() for row in parsed_rows if not row.reason]


def reasons(parsed_rows: list[Row]) -> list[str]:
    return [row.reason for row in parsed_rows if row.reason]


def test_a_field_with_newlines_and_quotes_is_one_message(tmp_path: Path) -> None:
    content = b'body,kind,key\r\n"two\nlines, and ""quotes""",k,o\r\n\r\nlast,,\r\n'
    assert read(tmp_path / "a.csv", content) == [
        Row(2, b'two\nlines, and "quotes"', {"kind": "k"}, "o"),
        Row(5, b"last", {}, ""),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"a,b,c,d", "line 3: it has 4 columns, and the header has 3"),
        (b"a,b", "line 3: it has 2 columns, and the header has 3"),
        (b'"a"b,c,d', "line 3: it is not CSV: "),
        (b"a\xff,b,c", "line 3: it is not UTF-8: invalid start byte"),
        (b"a\rb,c,d", "line 3: it is not CSV: new-line character"),
    ],
)
def test_a_malformed_line_of_csv_is_rejected_and_the_others_are_not(tmp_path: Path, line: bytes, reason: str) -> None:
    parsed_rows = read(tmp_path / "a.csv", b"body,kind,key\nfirst,,\n" + line + b"\nlast,,\n")

    assert datas(parsed_rows) == ["first", "last"]
    [rejected] = [row for row in parsed_rows if row.reason]
    assert rejected.reason.startswith(reason)
    assert rejected.text == line.decode(errors="replace") + "\n"


def test_a_quote_that_never_ends_is_rejected_with_the_lines_that_it_spans(tmp_path: Path) -> None:
    parsed_rows = read(tmp_path / "a.csv", b'body,kind,key\nfirst,,\n"open,k,o\nx,y,z\n')
    assert datas(parsed_rows) == ["first"]
    assert reasons(parsed_rows) == ["line 3 to 4: it is not CSV: unexpected end of data"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"body": "x"', "line 2: it is not JSON: "),
        (b"[1]", "line 2: it is JSON, but not an object"),
        (b'{"bodi": "x"}', "line 2: it has no field 'body'"),
        (b'{"body": "\xff"}', "line 2: it is not JSON: "),
        (b'{"body": NaN}', "line 2: it is not JSON: "),
    ],
)
def test_a_malformed_line_of_json_is_rejected_and_the_others_are_not(tmp_path: Path, line: bytes, reason: str) -> None:
    parsed_rows = read(tmp_path / "a.json", b'{"body": "first"}\n' + line + b'\n\n{"body": "last"}', form="json")

    assert datas(parsed_rows) == ["first", "last"]
    [actual] = reasons(parsed_rows)
    assert actual.startswith(reason)


def test_json_values_other_than_strings_become_json(tmp_path: Path) -> None:
    content = b'{"body": {"a": [1, null]}, "kind": true, "key": 7}\n{"body": null, "kind": null}'
    assert read(tmp_path / "a.json", content, form="json") == [
        Row(1, b'{"a":[1,null]}', {"kind": "true"}, "7"),
        Row(2, b"", {}, ""),
    ]


@pytest.mark.parametrize(
    "number", ["9007199254740993", "18446744073709551616", "-" + "9" * 40, "1.10", "1E5", "0.1000000000000000055511"]
)
def test_numbers_of_json_keep_their_digits(tmp_path: Path, number: str) -> None:
    content = f'{{"body": {{"a": [{number}]}}, "kind": {number}, "key": {number}}}'.encode()
    assert read(tmp_path / "a.json", content, form="json") == [
        Row(1, f'{{"a":[{number}]}}'.encode(), {"kind": number}, number)
    ]


def test_an_object_of_json_becomes_an_attribute_for_each_entry(tmp_path: Path) -> None:
    content = b'{"body": "", "kind": {"a": "1", "b": 2, "c": null, "d": {"e": []}}}'
    [row] = read(tmp_path / "a.json", content, form="json")
    assert row.attributes == {"a": "1", "b": "2", "d": '{"e":[]}'}


def test_without_a_data_column_the_row_is_the_data(tmp_path: Path) -> None:
    whole = Columns()
    [row] = read(tmp_path / "a.json", b' {"b": 1.50, "a": null} \n', form="json", columns=whole)
    assert row.data == b'{"b": 1.50, "a": null}', "as it was written"
    [row] = read(tmp_path / "a.csv", "\ufeffa,b\n語,\n".encode(), columns=whole)
    assert row.data.decode() == '{"a":"語"}'


@pytest.mark.parametrize(("form", "head"), [("csv", b"body,kind,key\nfirst,,\n"), ("json", b'{"body": "first"}\n')])
def test_a_row_that_is_too_long_ends_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, head: bytes
) -> None:
    monkeypatch.setattr(rows, "MAX_ROW_BYTES", 1000)
    parsed_rows = read(tmp_path / "a", head + b'"' + b"x\n" * 600 + b"y" * 2000, form=form)

    assert datas(parsed_rows) == ["first"]
    assert "longer than 1,000 bytes; the rest of the file was not read" in reasons(parsed_rows)[-1]
    assert all(len(row.text) <= rows.SHOWN_CHARACTERS for row in parsed_rows)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "is empty"), (b"a,b,a\n", "column 'a' twice"), (b"a\xff\n", "not UTF-8"), (b'"a', "cannot be read")],
)
def test_a_bad_header_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(RowError, match=reason):
        csv_header(path)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    content = b"body,kind,key\nfirst,,\n"
    assert datas(read(tmp_path / "a.csv.gz", gzip.compress(content))) == ["first"]
    assert datas(read(tmp_path / "a.csv.bz2", bz2.compress(content))) == ["first"]


def test_rows_come_in_batches_in_the_order_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_ROWS", 2)
    for name in ("b", "a"):
        (tmp_path / name).write_text("body,kind,key\n" + "".join(f"{name}{number},,\n" for number in range(3)))
    whole = {"first": [0, 0], "last": [LAST, LAST], "line": [1, 1]}
    paths = pa.RecordBatch.from_pydict({"part": [3, 4], "path": [str(tmp_path / "a"), str(tmp_path / "b")], **whole})

    batches = list(read_files([paths], reading=Reading("csv", BODY)))

    assert [len(batch) for batch in batches] == [2, 1, 2, 1]
    table: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    assert [(row["part"], row["row"], row["file"], row["line"], row["data"]) for row in table] == [
        (part, number + 1, name, number + 2, f"{name}{number}".encode())
        for part, name in ((3, "a"), (4, "b"))
        for number in range(3)
    ]


def test_rows_with_large_attributes_come_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1000)
    (tmp_path / "a").write_text("body,kind,key\n" + f"x,{'k' * 400},\n" * 4)
    paths = pa.RecordBatch.from_pydict(
        {"part": [1], "path": [str(tmp_path / "a")], "first": [0], "last": [LAST], "line": [1]}
    )

    batches = list(read_files([paths], reading=Reading("csv", BODY)))

    assert [len(batch) for batch in batches] == [2, 2]


def test_the_files_of_a_folder_come_by_name(tmp_path: Path) -> None:
    (tmp_path / "day=2").mkdir()
    names = ["b.csv", "a.csv", "day=2/c.csv", ".hidden", "_SUCCESS", "a.csv.rejected"]
    for name in names:
        (tmp_path / name).write_text(name)

    assert files_of(str(tmp_path), form="csv") == [tmp_path / name for name in ("a.csv", "b.csv", "day=2/c.csv")]
    assert files_of(f"{tmp_path}/*.csv*", form="csv") == [tmp_path / name for name in ("a.csv", "b.csv")]
    assert files_of(f"{tmp_path}/b.csv", form="csv") == files_of(f"{tmp_path}/b.csv", form="parquet")
    assert files_of(f"{tmp_path}/b.csv", form="parquet") == [tmp_path / "b.csv"]
    with pytest.raises(InvalidArgument, match="no such file"):
        files_of(str(tmp_path / "none"), form="csv")
    with pytest.raises(InvalidArgument, match="There are no files at"):
        files_of("http://host/rows.csv", form="csv")


@pytest.mark.parametrize(
    ("dialect", "content", "message"),
    [
        (Dialect(delimiter=";"), b"body;kind;key\na,b;k;o\n", Row(2, b"a,b", {"kind": "k"}, "o")),
        (Dialect(delimiter="\t", quote=""), b'body\tkind\tkey\n"a\tk\to\n', Row(2, b'"a', {"kind": "k"}, "o")),
        (Dialect(quote="'"), b"body,kind,key\n'it''s, so',k,\n", Row(2, b"it's, so", {"kind": "k"}, "")),
        (Dialect(null="NULL"), b"body,kind,key\na,NULL,NULL\n", Row(2, b"a", {}, "")),
        (Dialect(null="NULL"), b"body,kind,key\na,,\n", Row(2, b"a", {"kind": ""}, "")),
        (Dialect(encoding="cp1252"), b"body,kind,key\n\x80 5,k,\n", Row(2, "€ 5".encode(), {"kind": "k"}, "")),
    ],
)
def test_csv_of_other_dialects_is_read(tmp_path: Path, dialect: Dialect, content: bytes, message: Row) -> None:
    assert read(tmp_path / "a.csv", content, dialect=dialect) == [message]
    assert csv_header(tmp_path / "a.csv", dialect=dialect) == ["body", "kind", "key"]


def test_json_lines_of_another_encoding_become_utf_8(tmp_path: Path) -> None:
    content = '{"body": "語", "kind": "種"}\n'.encode("shift_jis") + b'{"body": "\x81"}\n'
    message, rejected = read(tmp_path / "a.json", content, form="json", dialect=Dialect(encoding="shift_jis"))

    assert message == Row(1, "語".encode(), {"kind": "種"}, "")
    assert rejected.reason == "line 2: it is not SHIFT_JIS: illegal multibyte sequence"


def test_a_strict_job_ends_at_the_first_malformed_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"body,kind,key\nfirst,,\na,b\nlast,,\n")
    rows_of_file = read_rows(path, form="csv", columns=BODY, dialect=Dialect(is_strict=True))

    assert next(rows_of_file).data == b"first"
    with pytest.raises(RowError, match=r"a\.csv, line 3: it has 2 columns, and the header has 3"):
        next(rows_of_file)


@pytest.mark.parametrize(
    ("dialect", "reason"),
    [
        (Dialect(delimiter="::"), "the delimiter must be one character"),
        (Dialect(delimiter="\n"), "the delimiter must be one character"),
        (Dialect(delimiter=""), "the delimiter must be one character"),
        (Dialect(quote=","), "the quote must be one character"),
        (Dialect(encoding="utf-16"), "lines cannot be told apart in utf-16"),
        (Dialect(encoding="klingon"), "there is no encoding 'klingon'"),
    ],
)
def test_an_impossible_dialect_is_refused(dialect: Dialect, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        dialect.check()


def test_the_options_of_a_dialect_are_those_that_differ_from_the_usual() -> None:
    USUAL.check()
    assert USUAL.options() == {}
    assert Dialect(delimiter=";", is_strict=True).options() == {"delimiter": ";", "is_strict": True}


MULTI_LINE = Dialect(multi_line=True)


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
@pytest.mark.parametrize(
    "content",
    [
        b'{"a": 1}\n{\n  "a": "}{\\\\\\" ]"\n}\n{"a": {"b": [{}]}}\n',
        b'\xef\xbb\xbf [{"a": 1},\n{\n  "a": "}{\\\\\\" ]"\n}\n, {"a": {"b": [{}]}} ]\n',
        b'{"a": 1}{\n  "a": "}{\\\\\\" ]"\n}{"a": {"b": [{}]}}',
    ],
)
def test_json_objects_may_span_several_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, chunk: int
) -> None:
    """Given objects one after the other or in an array, then each is a message exactly as it was written."""
    monkeypatch.setattr(jsonvalues, "CHUNK_BYTES", chunk)
    parsed_rows = read(tmp_path / "a.json", content, form="json", columns=Columns(), dialect=MULTI_LINE)
    assert [row.data for row in parsed_rows] == [b'{"a": 1}', b'{\n  "a": "}{\\\\\\" ]"\n}', b'{"a": {"b": [{}]}}']
    assert not any(row.reason for row in parsed_rows)


def test_text_that_is_no_object_is_rejected_and_the_objects_are_not(tmp_path: Path) -> None:
    content = b'{"body": 1}\n{\n "body": 2,\n}\nnonsense\n{"other": 3}\n{"body": "\xff"}\n{"body": 4}\n{"body":\n5'
    parsed_rows = read(tmp_path / "a.json", content, form="json", columns=Columns(data="body"), dialect=MULTI_LINE)

    assert datas(parsed_rows) == ["1", "4"]
    assert [reason.split(": ")[0] for reason in reasons(parsed_rows)] == [
        "line 2 to 4", "line 5", "line 6", "line 7", "line 9 to 10",
    ]  # fmt: skip
    assert [word in reason for word, reason in zip(
        ["not JSON", "not JSON", "no field 'body'", "not UTF-8", "does not end"], reasons(parsed_rows), strict=True
    )] == [True] * 5  # fmt: skip
    assert [row.text for row in parsed_rows if row.reason][1] == "nonsense"


def test_an_object_that_is_too_long_ends_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROW_BYTES", 100)
    monkeypatch.setattr(jsonvalues, "CHUNK_BYTES", 10)
    content = b'[{"body": 1}, {"body": "' + b"x" * 200 + b'"}, {"body": 2}]'
    parsed_rows = read(tmp_path / "a.json", content, form="json", columns=Columns(data="body"), dialect=MULTI_LINE)
    assert datas(parsed_rows) == ["1"]
    assert "it does not end, or is too long; the rest of the file was not read" in reasons(parsed_rows)[0]
