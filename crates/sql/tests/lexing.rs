//! How texts are read: comments, quotes, character sets, numbers, what a server of that family
//! and version executes. Every case stands for one that goes wrong elsewhere.

mod common;

use common::{mariadb, mysql, read};
use millrace_sql::{Access, Charset, Flags, Kind, LexMode, parts};

/// Whether the text is read as a locking read: the sign that FOR UPDATE was seen as code.
fn locks(text: impl AsRef<[u8]>, mode: &LexMode) -> bool {
    let out = read(text, mode);
    assert_eq!(out.kind, Kind::Select, "{out:?}");
    out.flags.contains(Flags::LOCKING_READ)
}

fn unknown(text: impl AsRef<[u8]>, mode: &LexMode) -> bool {
    let out = read(text, mode);
    (out.kind == Kind::Unknown) && out.access == Access::Write
}

#[test]
fn comments() {
    for mode in [mysql(), mariadb()] {
        assert!(!locks("SELECT 1 -- FOR UPDATE", &mode));
        assert!(!locks("SELECT 1 --", &mode));
        assert!(!locks("SELECT 1 --\tFOR UPDATE", &mode));
        assert!(locks("SELECT 1 --\n FOR UPDATE", &mode));
        assert!(locks("SELECT 5--1 FOR UPDATE", &mode), "two minus signs");
        assert!(!locks("SELECT 1 # FOR UPDATE", &mode));
        assert!(!locks("SELECT 1 /* FOR UPDATE */", &mode));
        assert!(
            !locks("SELECT 1 /* /* FOR UPDATE */", &mode),
            "comments do not nest"
        );
        assert!(!locks("SELECT 1 /*/ FOR UPDATE */", &mode));
        assert!(locks("SELECT 1 /**/FOR/***/UPDATE", &mode));
        assert!(unknown("SELECT 1 /* FOR", &mode));
        assert!(unknown("SELECT 1 /*", &mode));
        assert!(unknown("SELECT 1 /*! FOR UPDATE", &mode));
        assert!(unknown("/*!", &mode));
        assert!(
            unknown("SELECT 1 -- a\0 FOR UPDATE", &mode),
            "a NUL ends the comment"
        );
        assert_eq!(read("/* c", &mode).flags, Flags::UNTERMINATED);
    }
}

#[test]
fn version_comments_of_mysql() {
    let mode = mysql();
    assert!(locks("SELECT 1 /*! FOR UPDATE */", &mode));
    assert!(locks("SELECT 1 /*!FOR UPDATE*/", &mode));
    assert!(locks("SELECT 1 /*!50000 FOR UPDATE */", &mode));
    assert!(locks("SELECT 1 /*!50000FOR UPDATE */", &mode));
    assert!(locks("SELECT 1 /*!90704 FOR UPDATE */", &mode));
    assert!(!locks("SELECT 1 /*!90705 FOR UPDATE */", &mode));
    assert!(!locks("SELECT 1 /*!99999 FOR UPDATE */", &mode));
    assert!(
        locks("SELECT 1 /*!080000 FOR UPDATE */", &mode),
        "six digits before a blank"
    );
    assert!(!locks("SELECT 1 /*!100000 FOR UPDATE */", &mode));
    // Five digits where no blank follows six: 10000 and then `0`.
    let out = read("SELECT /*!1000001*/", &mode);
    assert!(out.flags.contains(Flags::VERSION_COMMENT));
    assert!(!locks(
        "SELECT 1 /*!99999 /* nested */ FOR UPDATE */",
        &mode
    ));
    assert!(locks("SELECT 1 /*!50000 /* inside */ FOR UPDATE */", &mode));
    assert!(
        !locks("SELECT 1 /*M! FOR UPDATE */", &mode),
        "MariaDB's are plain comments"
    );
    assert!(!locks("SELECT 1 /*M!50000 FOR UPDATE */", &mode));
    assert_eq!(read("/*!40101 SET NAMES utf8 */", &mode).kind, Kind::Set);
    assert_eq!(read("/*!99999 SET NAMES utf8 */", &mode).kind, Kind::Empty);
    assert_eq!(read("/*! SELECT 1 */", &mode).kind, Kind::Select);
}

#[test]
fn version_comments_of_mariadb() {
    let mode = mariadb();
    assert!(locks("SELECT 1 /*! FOR UPDATE */", &mode));
    assert!(locks("SELECT 1 /*!40101 FOR UPDATE */", &mode));
    assert!(
        !locks("SELECT 1 /*!50700 FOR UPDATE */", &mode),
        "meant for MySQL"
    );
    assert!(!locks("SELECT 1 /*!80000 FOR UPDATE */", &mode));
    assert!(locks("SELECT 1 /*!100100 FOR UPDATE */", &mode));
    assert!(locks("SELECT 1 /*!100100FOR UPDATE */", &mode));
    assert!(!locks("SELECT 1 /*!110000 FOR UPDATE */", &mode));
    assert!(locks("SELECT 1 /*M! FOR UPDATE */", &mode));
    assert!(locks("SELECT 1 /*M!50701 FOR UPDATE */", &mode));
    assert!(!locks("SELECT 1 /*M!120000 FOR UPDATE */", &mode));
}

#[test]
fn hints() {
    let mode = mysql();
    assert!(!locks("SELECT /*+ NO_ICP(t) FOR UPDATE */ 1", &mode));
    assert!(
        unknown("SELECT /*+ SET_VAR(sql_mode='*/') */ 1", &mode),
        "a quote hides the end"
    );
    let text = "/* millrace: primary */ SELECT 1";
    let hint = read(text, &mode).hint.expect("a hint");
    assert_eq!(common::spanned(text, hint), " primary ");
    assert_eq!(
        read("SELECT 1 -- Millrace:x", &mode)
            .hint
            .map(|h| h.end - h.start),
        Some(1)
    );
    assert_eq!(read("SELECT '/* millrace: x */'", &mode).hint, None);
}

#[test]
fn strings() {
    for mode in [mysql(), mariadb()] {
        assert!(locks(r"SELECT 'a\\' FOR UPDATE -- '", &mode));
        assert!(!locks(r"SELECT 'a\' FOR UPDATE -- '", &mode));
        assert!(locks("SELECT 'a''b' FOR UPDATE", &mode));
        assert!(locks("SELECT 'a' 'b' FOR UPDATE", &mode));
        assert!(locks("SELECT \"'\" FOR UPDATE", &mode));
        assert!(locks(
            "SELECT N'x', n'y', _utf8'z', x'4D', b'01', 0x4D, 0b01 FOR UPDATE",
            &mode
        ));
        assert!(locks("SELECT `a``b` FOR UPDATE", &mode));
        assert!(!locks("SELECT 'a\0' AS `x FOR UPDATE`", &mode));
        assert!(unknown("SELECT 'a", &mode));
        assert!(unknown("SELECT `a", &mode));
        assert!(unknown("SELECT 'a\\'", &mode));
        assert!(unknown("SELECT x'4G'", &mode));
        assert!(unknown("SELECT `a\0`", &mode));

        let mut no_escapes = mode;
        no_escapes.no_backslash_escapes = true;
        assert!(locks(r"SELECT 'a\' FOR UPDATE", &no_escapes));
        assert!(unknown(r"SELECT 'a\'' FOR UPDATE", &no_escapes));

        let mut ansi = mode;
        ansi.ansi_quotes = true;
        let text = r#"SELECT "a\" FOR UPDATE"#;
        assert!(locks(text, &ansi), "no escapes in identifiers");
        assert!(unknown(text, &mode));
        assert_eq!(read("SELECT * FROM \"T\"", &ansi).tables.len(), 1);
        assert_eq!(read("SELECT * FROM \"T\"", &mode).tables.len(), 0);
    }
}

#[test]
fn bracket_quotes() {
    let mut mode = mariadb();
    mode.set_sql_mode(b"MSSQL");
    assert!(!locks("SELECT [a FOR UPDATE], [b]]c;] FROM [t]", &mode));
    assert_eq!(read("SELECT 1 FROM [t]", &mode).tables.len(), 1);
    assert!(unknown("SELECT [a", &mode));
}

#[test]
fn dollar_quotes() {
    assert!(!locks("SELECT $$ FOR UPDATE $$", &mysql()));
    assert!(!locks("SELECT $a$ $$ FOR UPDATE ' $a$", &mysql()));
    assert!(unknown("SELECT $$ FOR UPDATE", &mysql()));
    assert!(
        locks("SELECT $$ FOR UPDATE", &mariadb()),
        "an identifier there"
    );
    assert!(locks("SELECT a$$, $b FROM t FOR UPDATE", &mysql()));
    let body = "CREATE FUNCTION f() RETURNS INT LANGUAGE JAVASCRIPT AS $$ a; 'b; $$";
    assert_eq!(read(body, &mysql()).kind, Kind::Ddl);
}

#[test]
fn character_sets_that_hide_quotes() {
    let with = |charset| {
        let mut mode = mysql();
        mode.charset = charset;
        mode
    };
    // 0xBF5C is one character in GBK: the quote behind it ends the string.
    let gbk = b"SELECT '\xBF\x5C' FOR UPDATE -- '";
    assert!(locks(gbk, &with(Charset::Gbk)));
    assert!(!locks(gbk, &with(Charset::AsciiSafe)));
    // 0xBF27 is none, in no set.
    assert!(locks(b"SELECT '\xBF' FOR UPDATE", &with(Charset::Gbk)));
    assert!(locks(
        b"SELECT '\x81\x5C' FOR UPDATE -- '",
        &with(Charset::Sjis)
    ));
    assert!(locks(
        b"SELECT '\xA5\x5C' FOR UPDATE -- '",
        &with(Charset::Big5)
    ));
    assert!(!locks(
        b"SELECT '\x81\x5C' FOR UPDATE -- '",
        &with(Charset::Big5)
    ));
    assert!(locks(
        b"SELECT '\x81\x30\x81\x30' FOR UPDATE",
        &with(Charset::Gb18030)
    ));
    assert!(
        locks(b"SELECT `\x81\x60` FOR UPDATE", &with(Charset::Sjis)),
        "0x60 is a backquote"
    );
    // A backslash escapes one byte, not one character.
    assert!(!locks(
        b"SELECT '\\\xBF\x5C' FOR UPDATE -- '",
        &with(Charset::Gbk)
    ));
    // The no-break space is a blank in latin1.
    assert!(locks(
        b"SELECT\xA01\xA0FOR\xA0UPDATE",
        &with(Charset::Latin1)
    ));
    assert!(!locks(
        "SELECT a\u{a0}FOR FROM t",
        &with(Charset::AsciiSafe)
    ));
    assert!(unknown(b"SELECT\xA01", &with(Charset::SingleByte)));
    assert!(locks(
        b"SELECT '\xA0\xE9' FOR UPDATE",
        &with(Charset::SingleByte)
    ));
}

#[test]
fn numbers_and_names() {
    for mode in [mysql(), mariadb()] {
        for text in [
            "SELECT 1.5e3, .5, 1., 1e5, 1E+5, 0x1F, 0b1, 1a, 0xg, 5e, t.1e5, t.5 FROM t FOR UPDATE",
            "SELECT -1, +1, 1-1, a-1, a->'$.b', a->>'$.b' FROM t FOR UPDATE",
            "SELECT :a, a:=1 FROM t FOR UPDATE",
            "SELECT {d '2020-01-01'} FOR UPDATE",
        ] {
            assert!(locks(text, &mode), "{text}");
        }
        assert!(!locks("SELECT t.for.update FROM t", &mode));
        assert!(!locks("SELECT t.`for` update_ FROM t", &mode));
    }
}

#[test]
fn statements_are_taken_apart() {
    let split = |text: &str, mode: &LexMode| -> Vec<String> {
        parts(text.as_bytes(), mode)
            .map(|span| common::spanned(text, span))
            .collect()
    };
    let my = mysql();
    assert_eq!(split("SELECT 1; SELECT 2", &my), ["SELECT 1", "SELECT 2"]);
    assert_eq!(
        split(" ; SELECT ';' ; -- x\n; /* ; */ ", &my),
        ["SELECT ';' "]
    );
    assert_eq!(split("", &my), Vec::<String>::new());
    assert_eq!(
        split("CREATE PROCEDURE p() BEGIN SELECT 1; END; SELECT 2", &my),
        ["CREATE PROCEDURE p() BEGIN SELECT 1; END", "SELECT 2"]
    );
    assert_eq!(
        split("SELECT 1;/*!50000 SELECT */ 2", &my),
        ["SELECT 1", "/*!50000 SELECT */ 2"]
    );
    assert!(unknown("SELECT 1 /*! ; SELECT 2 */", &my));
    let dumped =
        "/*!50003 CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW BEGIN SET @a = 1; END */;";
    assert_eq!(read(dumped, &my).kind, Kind::Ddl);
    assert_eq!(split("SELECT 'a; b", &my).len(), 1);
    assert_eq!(split("BEGIN NOT ATOMIC SELECT 1; END", &mariadb()).len(), 1);
    assert_eq!(read("SELECT 1;", &my).parts, 1);
    assert_eq!(read("SELECT 1; /* x */", &my).parts, 1);
    assert_eq!(read("SELECT 1; SELECT 2;", &my).parts, 2);
    assert_eq!(read(" /* x */ ", &my).parts, 0);
}
