//! Names of columns in whose expressions answers took the place of questions: the server names a column after
//! its text, and shall go on naming it after what the client wrote. Pure.

/// The select list of a statement, read token by token beside what is written in its place.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    /// The statement's first word was seen.
    begun: bool,
    /// The tokens are those of the statement's own select list.
    in_list: bool,
    depth: usize,
    column: Column,
}

/// One column as far as it was read.
#[derive(Debug, Default)]
struct Column {
    /// Where it begins in the client's text.
    start: Option<usize>,
    /// Behind its last token: in the client's text, and in what is written.
    end: (usize, usize),
    replaced: bool,
    /// It has a name, or what the server makes of its text is not certain.
    named: bool,
    /// Its last token is a comment.
    commented: bool,
    /// Its last token ends an operand; a word behind it would be a name.
    operand: bool,
    /// The last token was such a word.
    trailing_name: bool,
}

/// What a token is to a select list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// A word as it is, or a quoted name or string.
    Word,
    /// An answer in a question's place.
    ClientError,
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
const CLAUSES: [&str; 12] = [
    "except",
    "for",
    "from",
    "group",
    "having",
    "intersect",
    "into",
    "limit",
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
    /// Takes in the token at `at` of `text`, `length` long, before it is written to the end of `out`; what
    /// names the column before it is written first.
    pub(crate) fn before(
        &mut self,
        text: &[u8],
        at: usize,
        length: usize,
        token: Token,
        out: &mut Vec<u8>,
    ) {
        if !self.in_list {
            // Comments may stand before the statement.
            if !self.begun && token != Token::Comment {
                self.begun = true;
                self.in_list = text[at..at + length].eq_ignore_ascii_case(b"select");
            }
            return;
        }
        let ends = match token {
            Token::Sign(b',' | b';') => self.depth == 0,
            Token::Word => self.depth == 0 && is_one_of(&text[at..at + length], &CLAUSES),
            _ => false,
        };
        if ends {
            self.finish(text, out);
            self.in_list = token == Token::Sign(b',');
        }
    }

    /// Takes in that the token is written.
    pub(crate) fn after(
        &mut self,
        text: &[u8],
        at: usize,
        length: usize,
        token: Token,
        out: &[u8],
    ) {
        let word = &text[at..at + length];
        let column = &mut self.column;
        let is_list =
            self.in_list && !(column.start.is_none() && word.eq_ignore_ascii_case(b"select"));
        match token {
            Token::Sign(b',' | b';') if self.depth == 0 => return,
            Token::Comment => {
                column.commented = column.start.is_some();
                return;
            }
            _ if !is_list => return,
            Token::Word if column.start.is_none() && is_one_of(word, &MODIFIERS) => return,
            _ => {}
        }
        column.start.get_or_insert(at);
        column.named |= column.commented;
        column.end = (at + length, out.len());
        let top = self.depth == 0;
        match token {
            Token::Sign(b'(') => {
                self.depth += 1;
                column.operand = false;
            }
            Token::Sign(b')') => {
                self.depth = self.depth.saturating_sub(1);
                (column.operand, column.trailing_name) = (true, false);
            }
            Token::Sign(sign) => {
                // A number is an operand.
                column.operand = sign.is_ascii_digit() || sign == b'.';
                column.trailing_name = false;
            }
            Token::ClientError => {
                column.replaced = true;
                (column.operand, column.trailing_name) = (true, false);
            }
            Token::Word if top && word.eq_ignore_ascii_case(b"as") => column.named = true,
            Token::Word if is_one_of(word, &OPERATORS) => {
                (column.operand, column.trailing_name) = (false, false);
            }
            Token::Word => {
                let is_end = word.eq_ignore_ascii_case(b"end");
                column.trailing_name = top && column.operand && !is_end;
                column.operand = true;
            }
            Token::Comment => {}
        }
    }

    /// Names the column that has ended.
    pub(crate) fn finish(&mut self, text: &[u8], out: &mut Vec<u8>) {
        let column = std::mem::take(&mut self.column);
        let Some(start) = column.start.filter(|_| self.in_list && column.replaced) else {
            return;
        };
        let (end, written) = column.end;
        let name = &text[start..end];
        if column.named || column.trailing_name || name.len() > NAME_MAX || self.depth > 0 {
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
