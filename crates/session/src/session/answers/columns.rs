//! Names of columns in whose expressions answers took the place of questions: the server names a column after
//! its text, and shall go on naming it after what the client wrote. Pure.

use millrace_sql::Family;

/// The select lists of a statement, read token by token beside what is written in its place.
#[derive(Debug)]
pub(in crate::session) struct Columns {
    family: Family,
    /// Parentheses that are open.
    depth: usize,
    /// The lists that are being read, each inside a column of the one before it.
    lists: Vec<List>,
}

/// A select list as far as it was read.
#[derive(Debug)]
struct List {
    /// The parentheses around its SELECT.
    depth: usize,
    /// It has had a comma.
    goes_on: bool,
    /// In one of the columns before this one something was replaced.
    replaced: bool,
    column: Column,
}

/// One column as far as it was read.
#[derive(Debug, Default)]
struct Column {
    /// Where its name begins in the client's text.
    start: Option<usize>,
    /// Behind its last token: in the client's text, and in what is written.
    end: (usize, usize),
    replaced: bool,
    /// The client gave it a name.
    named: bool,
    /// Its last token ends an operand; a word behind it would be a name.
    operand: bool,
    /// The last token was such a word.
    trailing_name: bool,
}

/// What a token is to a select list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum Token {
    /// A word as it is, or a quoted name or string.
    Word,
    /// An answer in a question's place.
    Answer,
    /// A sign.
    Sign(u8),
    Comment,
}

/// Words that a column's expression goes on behind.
const OPERATORS: [&str; 22] = [
    "and", "between", "binary", "case", "collate", "div", "else", "escape", "in", "interval", "is",
    "like", "mod", "not", "or", "regexp", "rlike", "sounds", "then", "when", "xor", "distinct",
];

/// Words before the first column.
const MODIFIERS: [&str; 11] = [
    "all",
    "distinct",
    "distinctrow",
    "high_priority",
    "straight_join",
    "sql_big_result",
    "sql_buffer_result",
    "sql_cache",
    "sql_calc_found_rows",
    "sql_no_cache",
    "sql_small_result",
];

/// Words that end a select list.
const CLAUSES: [&str; 14] = [
    "except",
    "for",
    "from",
    "group",
    "having",
    "intersect",
    "into",
    "limit",
    "lock",
    // INSERT … SELECT … ON DUPLICATE KEY UPDATE.
    "on",
    "order",
    "procedure",
    "union",
    "where",
];

/// The longest name a column may be given, in bytes; the servers take 256 characters.
const NAME_MAX: usize = 255;

fn is_one_of(word: &[u8], words: &[&str]) -> bool {
    words
        .iter()
        .any(|other| word.eq_ignore_ascii_case(other.as_bytes()))
}

impl Columns {
    pub(in crate::session) fn new(family: Family) -> Columns {
        Columns {
            family,
            depth: 0,
            lists: Vec::new(),
        }
    }

    /// Takes in the token at `at` of `text`, `length` long, before it is written to the end of `out`; what
    /// names the column before it is written first.
    pub(in crate::session) fn before(
        &mut self,
        text: &[u8],
        at: usize,
        length: usize,
        token: Token,
        out: &mut Vec<u8>,
    ) {
        let Some(list) = self.lists.last_mut().filter(|it| it.depth == self.depth) else {
            return;
        };
        match token {
            Token::Sign(b',') => {
                list.goes_on = true;
                list.replaced |= list.column.replaced;
                std::mem::take(&mut list.column).name(text, out);
            }
            Token::Sign(b')' | b';') => self.end_list(text, out),
            Token::Word if is_one_of(&text[at..at + length], &CLAUSES) => self.end_list(text, out),
            _ => {}
        }
    }

    /// Takes in that the token is written.
    pub(in crate::session) fn after(
        &mut self,
        text: &[u8],
        at: usize,
        length: usize,
        token: Token,
        out: &[u8],
    ) {
        match token {
            Token::Sign(b'(') => self.depth += 1,
            Token::Sign(b')') => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        let word = &text[at..at + length];
        if let Some(list) = self.lists.last_mut() {
            let top = list.depth == self.depth;
            if top && token == Token::Sign(b',') {
                return;
            }
            // MariaDB names a column with the comments ahead of it, but for the first (observed).
            let begins_with_comments = list.goes_on && self.family == Family::MariaDb;
            match token {
                Token::Comment if !begins_with_comments => {}
                Token::Comment => _ = list.column.start.get_or_insert(at),
                _ => list.column.read(word, at, token, top, out.len()),
            }
        }
        if token == Token::Word && word.eq_ignore_ascii_case(b"select") {
            self.lists.push(List {
                depth: self.depth,
                goes_on: false,
                replaced: false,
                column: Column::default(),
            });
        }
    }

    /// Names the columns that end with the text.
    pub(in crate::session) fn finish(&mut self, text: &[u8], out: &mut Vec<u8>) {
        if (self.lists.last()).is_some_and(|list| list.depth == self.depth) {
            self.end_list(text, out);
        }
    }

    fn end_list(&mut self, text: &[u8], out: &mut Vec<u8>) {
        let Some(list) = self.lists.pop() else {
            return;
        };
        // Its columns are part of the column that it stands in.
        if let Some(outer) = self.lists.last_mut() {
            outer.column.replaced |= list.replaced || list.column.replaced;
        }
        list.column.name(text, out);
    }
}

impl Column {
    /// Takes in a token that is no comment, with the length of what is written then.
    fn read(&mut self, word: &[u8], at: usize, token: Token, top: bool, written: usize) {
        if self.start.is_none() && token == Token::Word && is_one_of(word, &MODIFIERS) {
            return;
        }
        self.start.get_or_insert(at);
        self.end = (at + word.len(), written);
        match token {
            Token::Sign(b'(') => self.operand = false,
            Token::Sign(b')') => (self.operand, self.trailing_name) = (true, false),
            Token::Sign(sign) => {
                // A number is an operand.
                self.operand = sign.is_ascii_digit() || sign == b'.';
                self.trailing_name = false;
            }
            Token::Answer => {
                self.replaced = true;
                (self.operand, self.trailing_name) = (true, false);
            }
            Token::Word if top && word.eq_ignore_ascii_case(b"as") => self.named = true,
            Token::Word if is_one_of(word, &OPERATORS) => {
                (self.operand, self.trailing_name) = (false, false);
            }
            Token::Word => {
                let is_end = word.eq_ignore_ascii_case(b"end");
                self.trailing_name = top && self.operand && !is_end;
                self.operand = true;
            }
            Token::Comment => {}
        }
    }

    /// Writes the name of a column that would have another now.
    fn name(self, text: &[u8], out: &mut Vec<u8>) {
        let Some(start) = self.start.filter(|_| self.replaced) else {
            return;
        };
        let (end, written) = self.end;
        let name = &text[start..end];
        if self.named || self.trailing_name || name.len() > NAME_MAX {
            return;
        }
        let mut naming = b" AS `".to_vec();
        for byte in name {
            if *byte == b'`' {
                naming.push(b'`');
            }
            naming.push(*byte);
        }
        naming.push(b'`');
        out.splice(written..written, naming);
    }
}
