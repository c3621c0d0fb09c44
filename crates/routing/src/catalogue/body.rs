//! Reads a stored routine's body token by token and says whether it can do more than read. Where
//! in doubt, it can. Knows no catalogue: what it calls and names is handed back.

use millrace_sql::Flags;

/// What a statement (or a built-in function) may have to do with the session or with one server.
pub(super) const SESSION_FLAGS: Flags = Flags::LOCKING_READ
    .union(Flags::INTO_OUTFILE)
    .union(Flags::INTO_VARIABLE)
    .union(Flags::CALC_FOUND_ROWS)
    .union(Flags::USES_FOUND_ROWS)
    .union(Flags::USES_ROW_COUNT)
    .union(Flags::USES_LAST_INSERT_ID)
    .union(Flags::SETS_LAST_INSERT_ID)
    .union(Flags::USES_CONNECTION_ID)
    .union(Flags::ACQUIRES_USER_LOCK)
    .union(Flags::RELEASES_USER_LOCK)
    .union(Flags::RELEASES_ALL_USER_LOCKS)
    .union(Flags::USES_USER_LOCK_STATE)
    .union(Flags::SEQUENCE)
    .union(Flags::SERVER_LOCAL)
    .union(Flags::WAITS)
    .union(Flags::LOAD_FILE);

/// What a body refers to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Body<'t> {
    /// Something in it writes, or is not understood.
    pub(super) hazard: bool,
    /// It mentions a user variable.
    pub(super) user_variables: bool,
    /// Those that it may set, as they are written.
    pub(super) sets: Vec<&'t [u8]>,
    /// It may set one whose name cannot be told.
    pub(super) sets_unknown: bool,
    /// It may set a session variable.
    pub(super) sets_session: bool,
    /// It may leave other things on the connection: a temporary table, a role, a lock, what a
    /// sequence gave last.
    pub(super) leaves_more: bool,
    /// It runs statements that it makes itself.
    pub(super) dynamic: bool,
    /// Calls that look like functions, built-in or stored.
    pub(super) functions: Vec<Reference<'t>>,
    /// Procedures that are called.
    pub(super) procedures: Vec<Reference<'t>>,
    /// Every possibly qualified name: tables and views are among them.
    pub(super) names: Vec<Reference<'t>>,
    /// It has a SELECT.
    pub(super) selects: bool,
}

/// A possibly qualified name, quotes included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reference<'t> {
    pub(super) schema: Option<&'t [u8]>,
    pub(super) name: &'t [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    /// A bare word: a keyword or an identifier.
    Word(&'t [u8]),
    /// An identifier in backticks, quotes included.
    Quoted(&'t [u8]),
    /// A string or a number.
    Literal,
    /// Any other byte.
    Sign(u8),
    /// Something without an end.
    Broken,
}

/// Words that write, lock, or open a transaction, wherever they stand.
const HAZARDS: &[&str] = &[
    "ALTER",
    "ANALYZE",
    "BACKUP",
    "BINLOG",
    "CACHE",
    "CHANGE",
    "CHECK",
    "CHECKSUM",
    "CLONE",
    "COMMIT",
    "CREATE",
    "DEALLOCATE",
    "DELETE",
    "DROP",
    "DUMPFILE",
    "EXECUTE",
    "FLUSH",
    "GLOBAL",
    "GRANT",
    "IMPORT",
    "INSTALL",
    "KILL",
    "LASTVAL",
    "LOAD",
    "LOCAL",
    "LOCK",
    "MERGE",
    "NEXTVAL",
    "OPTIMIZE",
    "OUTFILE",
    "PERSIST",
    "PERSIST_ONLY",
    "PREPARE",
    "PROCEDURE",
    "PURGE",
    "RELEASE",
    "RENAME",
    "REPAIR",
    "RESET",
    "RESTART",
    "REVOKE",
    "ROLLBACK",
    "SAVEPOINT",
    "SESSION",
    "SETVAL",
    "SHARE",
    "SHUTDOWN",
    "SQL_CALC_FOUND_ROWS",
    "START",
    "STOP",
    "UNINSTALL",
    "UNLOCK",
    "UPDATE",
    "USE",
    "XA",
];

/// Statements that are also built-in functions where `(` follows.
const HAZARDS_BUT_CALLS: &[&str] = &["INSERT", "REPLACE", "TRUNCATE"];

/// Variables that `SET @@name` sets for the next transaction only, and no server tells.
const NEXT_TRANSACTION: &[&str] = &[
    "TRANSACTION_ISOLATION",
    "TRANSACTION_READ_ONLY",
    "TX_ISOLATION",
    "TX_READ_ONLY",
];

/// Words before `(` that call nothing.
const NO_CALLS: &[&str] = &[
    "ALL",
    "AND",
    "ANY",
    "AS",
    "BETWEEN",
    "BIGINT",
    "BINARY",
    "BIT",
    "BLOB",
    "BY",
    "CASE",
    "CHAR",
    "CHARACTER",
    "DATETIME",
    "DEC",
    "DECIMAL",
    "DEFAULT",
    "DISTINCT",
    "DIV",
    "DO",
    "DOUBLE",
    "ELSE",
    "ELSEIF",
    "ENUM",
    "EXCEPT",
    "EXISTS",
    "FIXED",
    "FLOAT",
    "FROM",
    "HAVING",
    "IF",
    "IN",
    "INT",
    "INTEGER",
    "INTERSECT",
    "INTERVAL",
    "IS",
    "JOIN",
    "LIKE",
    "LIMIT",
    "MEDIUMINT",
    "MOD",
    "NCHAR",
    "NOT",
    "NUMERIC",
    "NVARCHAR",
    "ON",
    "OR",
    "OVER",
    "PARTITION",
    "PRECISION",
    "REAL",
    "REGEXP",
    "RETURN",
    "RLIKE",
    "SELECT",
    "SET",
    "SMALLINT",
    "SOME",
    "TEXT",
    "THEN",
    "TIME",
    "TIMESTAMP",
    "TINYINT",
    "UNION",
    "UNTIL",
    "USING",
    "VALUES",
    "VARBINARY",
    "VARCHAR",
    "WHEN",
    "WHERE",
    "WHILE",
    "XOR",
    "YEAR",
];

fn is_word(token: Option<&Token<'_>>, word: &str) -> bool {
    matches!(token, Some(Token::Word(w)) if w.eq_ignore_ascii_case(word.as_bytes()))
}

fn is_sign(token: Option<&Token<'_>>, sign: u8) -> bool {
    token == Some(&Token::Sign(sign))
}

fn is_one_of(word: &[u8], words: &[&str]) -> bool {
    words
        .iter()
        .any(|w| word.eq_ignore_ascii_case(w.as_bytes()))
}

/// Reads a body as the server stores it, in utf8.
pub(super) fn read(text: &[u8]) -> Body<'_> {
    let tokens = tokens(text);
    let mut reader = Reader {
        tokens: &tokens,
        declared: declared(&tokens),
        body: Body::default(),
    };
    reader.read();
    reader.body
}

/// Every name that a DECLARE introduces: `DECLARE a, b INT`.
fn declared<'t>(tokens: &[Token<'t>]) -> Vec<&'t [u8]> {
    let mut names = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let mut next = at + 1;
        if is_word(Some(token), "DECLARE") {
            while let Some(Token::Word(name) | Token::Quoted(name)) = tokens.get(next) {
                names.push(*name);
                if !is_sign(tokens.get(next + 1), b',') {
                    break;
                }
                next += 2;
            }
        }
    }
    names
}

struct Reader<'a, 't> {
    tokens: &'a [Token<'t>],
    declared: Vec<&'t [u8]>,
    body: Body<'t>,
}

impl<'t> Reader<'_, 't> {
    fn at(&self, index: usize) -> Option<&Token<'t>> {
        self.tokens.get(index)
    }

    fn before(&self, index: usize) -> Option<&Token<'t>> {
        self.tokens.get(index.checked_sub(1)?)
    }

    fn read(&mut self) {
        let mut index = 0;
        while let Some(token) = self.at(index).copied() {
            match token {
                Token::Broken => self.body.hazard = true,
                Token::Sign(b'@') => {
                    self.body.user_variables = true;
                    if self.may_set(index) {
                        match self.variable(index) {
                            Some(name) => self.body.sets.push(name),
                            None => self.body.sets_unknown = true,
                        }
                    }
                    self.body.hazard = true;
                }
                Token::Word(word) => {
                    self.keyword(index, word);
                    index = self.name(index);
                }
                Token::Quoted(_) => index = self.name(index),
                Token::Literal | Token::Sign(_) => {}
            }
            index += 1;
        }
    }

    fn keyword(&mut self, index: usize, word: &'t [u8]) {
        let next = self.at(index + 1).copied();
        let next = next.as_ref();
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        let hazard = is_one_of(word, HAZARDS)
            || (is_one_of(word, HAZARDS_BUT_CALLS) && !is_sign(next, b'('))
            || (is("VALUE") && is_word(next, "FOR"))
            || (is("HANDLER") && !self.is_declared_handler(index))
            || (is("SET") && !self.sets_locals_only(index));
        self.body.hazard |= hazard;
        self.body.selects |= is("SELECT");
        self.body.sets_session |=
            is("SET") && self.is_statement_set(index) && self.sets_session(index);
        self.body.leaves_more |= is("TEMPORARY")
            || is("ROLE")
            || is("RESOURCE")
            || is("FLUSH")
            || (is("LOCK") && !is_word(next, "IN"))
            || is("NEXTVAL")
            || is("SETVAL")
            || (is("NEXT") && is_word(next, "VALUE"))
            || (is("TRANSACTION") && is_word(self.before(index), "SET"))
            || (is_one_of(word, NEXT_TRANSACTION) && is_sign(self.before(index), b'@'))
            // Galera's are told with an OK only, and not by its functions (observed on 10.11).
            || word.get(..6).is_some_and(|start| start.eq_ignore_ascii_case(b"wsrep_"));
        self.body.dynamic |= is("PREPARE") || is("EXECUTE");
    }

    /// The name of the user variable that begins here; none where it is a string, or has more parts.
    fn variable(&self, index: usize) -> Option<&'t [u8]> {
        match self.at(index + 1) {
            Some(Token::Word(name) | Token::Quoted(name)) if !is_sign(self.at(index + 2), b'.') => {
                Some(name)
            }
            _ => None,
        }
    }

    /// Whether the user variable that begins here may be assigned to: `SET @a`, `INTO @a, @b`,
    /// `@a := …`, an argument, `GET DIAGNOSTICS @a = …`.
    fn may_set(&self, index: usize) -> bool {
        let before = self.before(index);
        if is_sign(before, b'@') || is_sign(self.at(index + 1), b'@') {
            return false;
        }
        ["SET", "INTO"].iter().any(|word| is_word(before, word))
            || is_sign(before, b',')
            || is_sign(before, b'(')
            || [b':', b'='].iter().any(|sign| is_sign(self.at(index + 2), *sign))
            // Of another name than a word.
            || self.variable(index).is_none()
    }

    /// `DECLARE CONTINUE HANDLER FOR …`
    fn is_declared_handler(&self, index: usize) -> bool {
        let before = self.before(index);
        ["CONTINUE", "EXIT", "UNDO"]
            .iter()
            .any(|word| is_word(before, word))
    }

    /// Every target of a SET is declared in the body: a bare name could be a system variable.
    fn sets_locals_only(&self, index: usize) -> bool {
        let mut depth = 0_u32;
        let mut target = true;
        for (at, token) in self.tokens.iter().enumerate().skip(index + 1) {
            if target {
                let (Token::Word(name) | Token::Quoted(name)) = token else {
                    return false;
                };
                let known = self.declared.iter().any(|d| d.eq_ignore_ascii_case(name));
                let assigned = is_sign(self.at(at + 1), b'=') || is_sign(self.at(at + 1), b':');
                if !known || !assigned {
                    return false;
                }
                target = false;
                continue;
            }
            match token {
                Token::Sign(b'(') => depth += 1,
                Token::Sign(b')') => depth = depth.saturating_sub(1),
                Token::Sign(b',') if depth == 0 => target = true,
                Token::Sign(b';') => return true,
                _ => {}
            }
        }
        !target
    }

    /// Whether this SET begins a statement, and is no part of an UPDATE, INSERT or SIGNAL.
    fn is_statement_set(&self, index: usize) -> bool {
        let openers = ["BEGIN", "THEN", "ELSE", "DO", "LOOP", "REPEAT"];
        let others = [
            "UPDATE", "INSERT", "REPLACE", "SIGNAL", "RESIGNAL", "LOAD", "ALTER",
        ];
        let before = self.before(index);
        if [b';', b':'].iter().any(|sign| is_sign(before, *sign))
            || openers.iter().any(|word| is_word(before, word))
        {
            return true;
        }
        let statement = self.tokens[..index].iter().rev();
        let mut statement = statement.take_while(|token| **token != Token::Sign(b';'));
        !statement.any(|token| others.iter().any(|word| is_word(Some(token), word)))
    }

    /// Some target of a SET is neither declared in the body, nor a user variable, nor a column of
    /// the new row. A parameter counts as a variable: what parameters there are is not known here.
    fn sets_session(&self, index: usize) -> bool {
        let mut depth = 0_u32;
        let mut target = true;
        for (at, token) in self.tokens.iter().enumerate().skip(index + 1) {
            if target {
                target = false;
                let next = self.at(at + 1);
                let own = match token {
                    Token::Sign(b'@') => !is_sign(next, b'@'),
                    Token::Word(name) | Token::Quoted(name) => {
                        let known = self.declared.iter().any(|d| d.eq_ignore_ascii_case(name));
                        (known && (is_sign(next, b'=') || is_sign(next, b':')))
                            || (is_word(Some(token), "NEW") && is_sign(next, b'.'))
                    }
                    _ => false,
                };
                if !own {
                    return true;
                }
                continue;
            }
            match token {
                Token::Sign(b'(') => depth += 1,
                Token::Sign(b')') => depth = depth.saturating_sub(1),
                Token::Sign(b',') if depth == 0 => target = true,
                Token::Sign(b';') => return false,
                _ => {}
            }
        }
        target
    }

    /// Takes a possibly qualified name; the index of its last token.
    fn name(&mut self, index: usize) -> usize {
        let part = |token: Option<&Token<'t>>| match token {
            Some(Token::Word(name) | Token::Quoted(name)) => Some(*name),
            _ => None,
        };
        let mut names = vec![];
        let mut last = index;
        names.extend(part(self.at(index)));
        while is_sign(self.at(last + 1), b'.') {
            let Some(name) = part(self.at(last + 2)) else {
                break;
            };
            names.push(name);
            last += 2;
        }
        let reference = match names[..] {
            [name] => Reference { schema: None, name },
            [schema, name] => Reference {
                schema: Some(schema),
                name,
            },
            // `schema.table.column`: the table counts.
            [schema, name, ..] => Reference {
                schema: Some(schema),
                name,
            },
            [] => return last,
        };
        self.refer(index, last, reference);
        last
    }

    fn refer(&mut self, first: usize, last: usize, reference: Reference<'t>) {
        let bare = first == last && matches!(self.at(first), Some(Token::Word(_)));
        if is_word(self.before(first), "CALL") {
            self.body.procedures.push(reference);
        } else if is_sign(self.at(last + 1), b'(') && !(bare && is_one_of(reference.name, NO_CALLS))
        {
            self.body.functions.push(reference);
        } else {
            self.body.names.push(reference);
        }
    }
}

fn tokens(text: &[u8]) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.first().copied() {
        let (token, length) = next(rest, first);
        tokens.extend(token);
        rest = &rest[length.max(1)..];
    }
    tokens
}

/// The token at the start of `rest`, none for blanks and comments, and its length.
fn next(rest: &[u8], first: u8) -> (Option<Token<'_>>, usize) {
    match first {
        b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => (None, 1),
        b'#' => (None, line(rest)),
        b'-' if is_dash_comment(rest) => (None, line(rest)),
        b'/' if rest.starts_with(b"/*") => comment(rest),
        // The end of an executed comment.
        b'*' if rest.starts_with(b"*/") => (None, 2),
        b'\'' | b'"' => quoted(rest, first, true, Token::Literal),
        b'`' => {
            let (token, length) = quoted(rest, first, false, Token::Literal);
            match token {
                Some(Token::Literal) => (Some(Token::Quoted(&rest[..length])), length),
                other => (other, length),
            }
        }
        b'0'..=b'9' => number_or_word(rest),
        _ if is_word_byte(first) => {
            let length = word(rest);
            (Some(Token::Word(&rest[..length])), length)
        }
        _ => (Some(Token::Sign(first)), 1),
    }
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}

fn word(rest: &[u8]) -> usize {
    rest.iter().take_while(|byte| is_word_byte(**byte)).count()
}

/// An identifier may start with digits.
fn number_or_word(rest: &[u8]) -> (Option<Token<'_>>, usize) {
    let length = word(rest);
    let taken = &rest[..length];
    if taken.iter().all(u8::is_ascii_digit) {
        (Some(Token::Literal), length)
    } else {
        (Some(Token::Word(taken)), length)
    }
}

fn line(rest: &[u8]) -> usize {
    rest.iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(rest.len())
}

fn is_dash_comment(rest: &[u8]) -> bool {
    rest.starts_with(b"--") && rest.get(2).is_none_or(|byte| *byte <= b' ')
}

/// What an executed comment (`/*!`, `/*M!`) holds is read as if it stood outside.
fn comment(rest: &[u8]) -> (Option<Token<'_>>, usize) {
    let marker = [&b"/*!"[..], b"/*M!"]
        .iter()
        .find(|marker| rest.starts_with(marker))
        .map(|marker| marker.len());
    if let Some(length) = marker {
        let digits = rest[length..].iter().take_while(|b| b.is_ascii_digit());
        return (None, length + digits.count());
    }
    match rest[2..].windows(2).position(|pair| pair == b"*/") {
        Some(end) => (None, end + 4),
        None => (Some(Token::Broken), rest.len()),
    }
}

fn quoted<'t>(
    rest: &[u8],
    quote: u8,
    escapes: bool,
    token: Token<'t>,
) -> (Option<Token<'t>>, usize) {
    let mut at = 1;
    while let Some(byte) = rest.get(at) {
        match *byte {
            b'\\' if escapes => at += 1,
            byte if byte == quote && rest.get(at + 1) == Some(&quote) => at += 1,
            byte if byte == quote => return (Some(token), at + 1),
            _ => {}
        }
        at += 1;
    }
    (Some(Token::Broken), rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_can_write() {
        let table = [
            ("RETURN x * 2", false),
            ("RETURN (SELECT max(a) FROM t)", false),
            (
                "BEGIN DECLARE a, b INT DEFAULT 0; SET a = f(1, 2), b = 2; RETURN a + b; END",
                false,
            ),
            (
                "BEGIN DECLARE c CURSOR FOR SELECT 1; DECLARE CONTINUE HANDLER FOR NOT FOUND SET a = 1; END",
                true,
            ),
            (
                "BEGIN DECLARE a INT; DECLARE CONTINUE HANDLER FOR NOT FOUND SET a = 1; END",
                false,
            ),
            ("RETURN 'INSERT INTO t'", false),
            ("RETURN 'it''s \\' UPDATE t'", false),
            ("RETURN 1 -- DELETE FROM t\n", false),
            ("RETURN 1 # DELETE FROM t", false),
            ("RETURN 1 /* DELETE FROM t */ + 1", false),
            (
                "RETURN replace(insert('a', 1, 1, 'b'), 'x', truncate(1.5, 1))",
                false,
            ),
            ("RETURN `update`", false),
            ("BEGIN INSERT INTO t VALUES (1); RETURN 1; END", true),
            ("BEGIN insert t values (1); RETURN 1; END", true),
            ("RETURN /*!50000 (SELECT 1 FROM t FOR UPDATE) */", true),
            ("RETURN /*M!100100 (SELECT 1 FROM t FOR UPDATE) */", true),
            ("RETURN @x", true),
            ("RETURN @@x", true),
            ("SET sql_log_bin = 0", true),
            ("BEGIN DECLARE a INT; SET a = 1, sql_mode = ''; END", true),
            ("SET SESSION sql_mode = ''", true),
            ("SELECT 1 INTO OUTFILE '/tmp/x'", true),
            ("SELECT a FROM t FOR SHARE", true),
            ("SELECT NEXT VALUE FOR s", true),
            ("FETCH NEXT FROM c INTO a", false),
            ("START TRANSACTION", true),
            ("HANDLER t OPEN", true),
            ("RETURN 'never ends", true),
            ("RETURN 1 /* never ends", true),
            ("RETURN 1--1", false),
            ("SELECT 1--\nDELETE FROM t", true),
        ];
        for (text, hazard) in table {
            assert_eq!(read(text.as_bytes()).hazard, hazard, "{text}");
        }
    }

    #[test]
    fn finds_what_sets_session_variables() {
        let table = [
            ("SET SESSION sql_mode = ''", true),
            ("BEGIN SET @@group_concat_max_len = a; RETURN a; END", true),
            ("BEGIN SET time_zone = '+07:00'; RETURN 1; END", true),
            ("SET @a = 1, sql_mode = ''", true),
            ("SET NAMES latin1", true),
            (
                "BEGIN IF (SELECT 1 FROM t FOR UPDATE) THEN SET sql_mode = ''; END IF; END",
                true,
            ),
            (
                "BEGIN DECLARE EXIT HANDLER FOR SQLSTATE '23000' SET sql_mode = ''; END",
                true,
            ),
            ("l: LOOP SET sql_mode = ''; LEAVE l; END LOOP", true),
            ("BEGIN SET a = a + 1; RETURN a; END", true),
            (
                "BEGIN DECLARE a INT; SET a = a + 1, @b = f(1, 2); RETURN a; END",
                false,
            ),
            ("SET NEW.a = 1, NEW.b = 2", false),
            (
                "BEGIN UPDATE t SET a = 1; INSERT INTO t SET a = 2; END",
                false,
            ),
            ("SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'", false),
            ("RETURN 1", false),
        ];
        for (text, sets) in table {
            assert_eq!(read(text.as_bytes()).sets_session, sets, "{text}");
        }
    }

    #[test]
    fn finds_what_leaves_locks_and_numbers() {
        let table = [
            ("FLUSH TABLES WITH READ LOCK", true),
            ("LOCK INSTANCE FOR BACKUP", true),
            ("RETURN NEXTVAL(s)", true),
            ("SET NEW.id = NEXT VALUE FOR s", true),
            ("DO SETVAL(s, 100)", true),
            ("SET @@transaction_read_only = 1", true),
            ("BEGIN SET @@wsrep_on = 0; RETURN 1; END", true),
            ("SET SESSION wsrep_dirty_reads = 1", true),
            ("SELECT a FROM t LOCK IN SHARE MODE", false),
            ("FETCH NEXT FROM c INTO a", false),
            ("RETURN LASTVAL(s)", false),
        ];
        for (text, leaves) in table {
            assert_eq!(read(text.as_bytes()).leaves_more, leaves, "{text}");
        }
    }

    #[test]
    fn hands_back_what_is_called_and_named() {
        let body =
            read(b"BEGIN CALL p(1); SELECT s.f (1), g(2), COUNT(*) FROM d.`v` WHERE a IN (1); END");
        let show = |list: &[Reference<'_>]| -> Vec<String> {
            list.iter()
                .map(|r| {
                    let schema = r.schema.map(|s| format!("{}.", s.escape_ascii()));
                    format!("{}{}", schema.unwrap_or_default(), r.name.escape_ascii())
                })
                .collect()
        };
        assert_eq!(show(&body.functions), ["s.f", "g", "COUNT"]);
        assert_eq!(show(&body.procedures), ["p"]);
        assert!(show(&body.names).contains(&"d.`v`".to_owned()));
        assert!(body.selects);
    }

    /// Pieces that open, close, quote, escape and comment, to be put together at random.
    const PIECES: &[&str] = &[
        "'", "\"", "`", "\\", "/*", "/*!50000", "/*M!", "*/", "-- ", "#", "\n", "@", ".", "(", ")",
        ",", ";", "=", "SET", "DECLARE", "a", "b", "INSERT", "CALL", "1", "\u{e9}", "",
    ];

    proptest::proptest! {
        #[test]
        fn never_panics(pieces in proptest::collection::vec(0..PIECES.len(), 0..40)) {
            let text: String = pieces.iter().map(|at| PIECES[*at]).collect();
            // What is appended outside of quotes and comments is always seen.
            let open = tokens(text.as_bytes()).contains(&Token::Broken);
            let more = format!("{text}\n; DELETE FROM t");
            proptest::prop_assert!(open || read(more.as_bytes()).hazard);
        }

        #[test]
        fn takes_any_bytes(text in proptest::collection::vec(0_u8..=255, 0..60)) {
            read(&text);
        }
    }
}
