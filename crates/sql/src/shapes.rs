//! Classified statements by their shape: what a text is but for the values of its numbers and
//! strings. An application has few shapes, so that most texts need not be read as SQL.

use std::rc::Rc;

use crate::{Charset, Flags, LexMode, Span, Statement, Traits, classify};

/// Shapes kept at once; a power of two.
const PLACES: usize = 512;
/// Longer shapes are not kept, so that all of them take less than a MiB.
const SHAPE_MAX: usize = 1024;
/// Classified statements kept for reuse.
const SPARE_MAX: usize = 64;

/// The statements of one worker's clients. Answers as [`classify`] would.
pub struct Shapes {
    places: Vec<Option<Place>>,
    spare: Vec<Rc<Statement>>,
    /// The shape of the statement being read.
    shape: Vec<u8>,
}

struct Place {
    mode: LexMode,
    shape: Box<[u8]>,
    class: Rc<Statement>,
}

impl Default for Shapes {
    fn default() -> Self {
        Shapes {
            places: (0..PLACES).map(|_| None).collect(),
            spare: Vec::new(),
            shape: Vec::with_capacity(SHAPE_MAX),
        }
    }
}

impl Shapes {
    /// What [`classify`] says of `text`. Spans that it names are right for this text.
    pub fn classify(&mut self, text: &[u8], mode: &LexMode) -> Rc<Statement> {
        let Some(first_value) = read_shape(text, mode, &mut self.shape) else {
            return self.read(text, mode);
        };
        let at = hash(&self.shape) as usize % PLACES;
        if let Some(place) = &self.places[at]
            && *place.shape == *self.shape
            && place.mode == *mode
        {
            return place.class.clone();
        }
        let class = self.read(text, mode);
        if first_value.is_none_or(|at| holds_for_all_values(&class, at)) {
            self.places[at] = Some(Place {
                mode: *mode,
                shape: self.shape.as_slice().into(),
                class: class.clone(),
            });
        }
        class
    }

    /// Takes back what is no longer needed.
    pub fn recycle(&mut self, class: Rc<Statement>) {
        if self.spare.len() < SPARE_MAX && Rc::strong_count(&class) == 1 {
            self.spare.push(class);
        }
    }

    fn read(&mut self, text: &[u8], mode: &LexMode) -> Rc<Statement> {
        let mut class = self.spare.pop().unwrap_or_default();
        match Rc::get_mut(&mut class) {
            Some(free) => classify(text, mode, free),
            None => {
                let mut free = Statement::default();
                classify(text, mode, &mut free);
                class = Rc::new(free);
            }
        }
        class
    }
}

/// Whether the answer is the same whatever the values are: nothing in it says what a value is, and
/// it names no place behind the first of them, as that moves with their lengths.
fn holds_for_all_values(class: &Statement, first_value: usize) -> bool {
    let plain = class.is(Traits::ROWS);
    let harmless = Flags::LOCKING_READ | Flags::PARAMETERS | Flags::COMPOUND_QUERY;
    let before = |span: Span| span.end as usize <= first_value;
    let both_before = |schema: Option<Span>, name: Span| schema.is_none_or(before) && before(name);
    plain
        && harmless.contains(class.flags)
        && class.user_vars_read.is_empty()
        && class.user_vars_assigned.is_empty()
        && class.sysvars_read.is_empty()
        && class.assignments.is_empty()
        && class.kill.is_none()
        && class.name.is_none()
        && class.source.is_none()
        && class.hint.is_none()
        && class
            .tables
            .iter()
            .all(|table| both_before(table.schema, table.name))
        && class
            .functions
            .iter()
            .all(|function| both_before(function.schema, function.name))
}

const VERBATIM: u8 = 0;
/// As `VERBATIM`; and a number does not begin or end beside it.
const WORD: u8 = 1;
const DIGIT: u8 = 2;
const QUOTE: u8 = 3;
const BACKTICK: u8 = 4;
/// May begin a comment when it stands before another like it, or before `*`.
const DASH: u8 = 5;
const SLASH: u8 = 6;
/// Not understood here: the text must be read.
const OTHER: u8 = 7;

static CLASS: [u8; 256] = {
    let mut table = [OTHER; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b' ' | b'\t' | b'\n' | b'\r' | b',' | b'(' | b')' | b'=' | b'<' | b'>' | b'!'
            | b'+' | b'%' | b'?' | b'*' => VERBATIM,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'.' => WORD,
            b'0'..=b'9' => DIGIT,
            b'\'' => QUOTE,
            b'`' => BACKTICK,
            b'-' => DASH,
            b'/' => SLASH,
            _ => OTHER,
        };
        byte += 1;
    }
    table
};

fn class_at(text: &[u8], at: usize) -> u8 {
    text.get(at).map_or(VERBATIM, |byte| CLASS[*byte as usize])
}

/// Writes the text's shape: the text with a `0` for each number and `''` for each string. Gives
/// where the first of these stands. None: the text may be more than it looks.
fn read_shape(text: &[u8], mode: &LexMode, shape: &mut Vec<u8>) -> Option<Option<usize>> {
    let usual = mode.charset == Charset::AsciiSafe && !mode.oracle_mode && !mode.bracket_quotes;
    if !usual {
        return None;
    }
    shape.clear();
    let mut first_value = None;
    // What is before `kept` is in the shape.
    let (mut kept, mut at) = (0, 0);
    while let Some(&byte) = text.get(at) {
        let value_end = match CLASS[byte as usize] {
            VERBATIM | WORD => {
                at += 1;
                continue;
            }
            DIGIT => {
                if at > 0 && matches!(text[at - 1], b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'0'..=b'9')
                {
                    // In a name.
                    at += 1;
                    continue;
                }
                let digits = text[at..].iter().take_while(|byte| byte.is_ascii_digit());
                let end = at + digits.count();
                // A fraction, an exponent, a name that begins with digits.
                let longer = matches!(class_at(text, end), WORD | BACKTICK | QUOTE | OTHER);
                if longer || (at > 0 && text[at - 1] == b'.') {
                    return None;
                }
                end
            }
            QUOTE => {
                // A word before it may say how to read it.
                if at > 0 && !matches!(CLASS[text[at - 1] as usize], VERBATIM) {
                    return None;
                }
                let len = text[at + 1..]
                    .iter()
                    .position(|byte| matches!(byte, b'\'' | b'\\' | 0))?;
                let end = at + 1 + len;
                if text[end] != b'\'' || matches!(class_at(text, end + 1), QUOTE | WORD | DIGIT) {
                    return None;
                }
                end + 1
            }
            BACKTICK => {
                let len = text[at + 1..].iter().position(|byte| *byte == b'`')?;
                at += len + 2;
                continue;
            }
            DASH if class_at(text, at + 1) != DASH => {
                at += 1;
                continue;
            }
            SLASH if text.get(at + 1) != Some(&b'*') => {
                at += 1;
                continue;
            }
            _ => return None,
        };
        first_value = first_value.or(Some(at));
        if shape.len() + (at - kept) + 2 > SHAPE_MAX {
            return None;
        }
        shape.extend_from_slice(&text[kept..at]);
        shape.extend_from_slice(if byte == b'\'' { b"''" } else { b"0" });
        (kept, at) = (value_end, value_end);
    }
    if shape.len() + (text.len() - kept) > SHAPE_MAX {
        return None;
    }
    shape.extend_from_slice(&text[kept..]);
    Some(first_value)
}

/// Eight bytes at a time; the places are compared, so it need not be strong.
fn hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = words.iter().fold(bytes.len() as u64, |hash, word| {
        mix(hash, u64::from_le_bytes(*word))
    });
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    hash = mix(hash, u64::from_le_bytes(last));
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Family;

    fn modes() -> Vec<LexMode> {
        let mut modes = vec![
            LexMode::new(Family::MySql, 90704),
            LexMode::new(Family::MariaDb, 101119),
        ];
        let mut ansi = modes[0];
        ansi.set_sql_mode(b"ANSI,NO_BACKSLASH_ESCAPES");
        modes.push(ansi);
        modes
    }

    fn check(shapes: &mut Shapes, text: &str) {
        for mode in modes() {
            let mut expected = Statement::default();
            classify(text.as_bytes(), &mode, &mut expected);
            for _ in 0..2 {
                let class = shapes.classify(text.as_bytes(), &mode);
                assert_eq!(*class, expected, "{text}");
                shapes.recycle(class);
            }
        }
    }

    fn shape(text: &str) -> Option<String> {
        let mut shape = Vec::new();
        read_shape(text.as_bytes(), &modes()[0], &mut shape)?;
        Some(String::from_utf8(shape).unwrap())
    }

    #[test]
    fn values_do_not_matter() {
        let of = |text| shape(text).unwrap();
        assert_eq!(
            of("SELECT c FROM t1 WHERE id=5023"),
            "SELECT c FROM t1 WHERE id=0"
        );
        assert_eq!(
            of("select `1a`, -12 from t where s = 'it is'"),
            "select `1a`, -0 from t where s = ''"
        );
        assert_eq!(
            of("INSERT INTO a.b2 VALUES (1,'x'),(22,'')"),
            "INSERT INTO a.b2 VALUES (0,''),(0,'')"
        );
    }

    #[test]
    fn what_may_be_more_than_it_looks_is_read() {
        for text in [
            "SELECT 1.5",
            "SELECT 1e5",
            "SELECT 0x1F",
            "SELECT 1a FROM t",
            "SELECT .5",
            "SELECT t.5a",
            "SELECT x'00'",
            "SELECT _latin1'a'",
            "SELECT 'it''s'",
            "SELECT 'a\\'b'",
            "SELECT 'open",
            "SELECT \"a\"",
            "SELECT 1 -- 2",
            "SELECT 1 # 2",
            "SELECT /* 1 */ 2",
            "SELECT @a",
            "SELECT 1; SELECT 2",
            "SELECT `open",
            "SELECT $1",
            "SELECT 1\u{e9}",
            "SELECT 'a'b",
            "SELECT 5'a'",
        ] {
            assert_eq!(shape(text), None, "{text}");
        }
    }

    #[test]
    fn a_shape_is_found_again_with_other_values() {
        let mut shapes = Shapes::default();
        let mode = modes()[0];
        let one = shapes.classify(b"SELECT c FROM t WHERE id=1", &mode);
        let other = shapes.classify(b"SELECT c FROM t WHERE id=4711", &mode);
        assert!(Rc::ptr_eq(&one, &other));
        // The table's place depends on the value before it.
        let one = shapes.classify(b"SELECT 1 FROM t", &mode);
        let other = shapes.classify(b"SELECT 4711 FROM t", &mode);
        assert!(!Rc::ptr_eq(&one, &other));
        let ansi = modes()[2];
        let other = shapes.classify(b"SELECT c FROM t WHERE id=1", &ansi);
        assert!(!Rc::ptr_eq(&one, &other));
    }

    const PIECES: [&str; 48] = [
        "SELECT ",
        "INSERT INTO ",
        "UPDATE ",
        "DELETE FROM ",
        "REPLACE ",
        "SET ",
        "CALL ",
        "KILL ",
        " FROM ",
        " WHERE ",
        " SET ",
        " VALUES ",
        " LIMIT ",
        " FOR UPDATE",
        " UNION ",
        " JOIN ",
        "t1",
        "`t 2`",
        "db.t",
        "a",
        "`5`",
        "autocommit",
        "sleep",
        "f",
        "get_lock",
        "last_insert_id",
        "(",
        ")",
        ",",
        "=",
        " ",
        "-",
        "--",
        "/",
        "/*",
        "*/",
        "*",
        "?",
        ".",
        "'",
        "\\",
        "\"",
        "@v",
        "@@x",
        ";",
        "_latin1",
        "0x1f",
        "1.5e3",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// Many texts through one cache: each is classified as if there were none.
        #[test]
        fn answers_are_those_of_reading(
            texts in proptest::collection::vec(
                proptest::collection::vec(
                    prop_oneof![
                        8 => (0..PIECES.len()).prop_map(|at| PIECES[at].to_owned()),
                        2 => any::<u16>().prop_map(|n| n.to_string()),
                        2 => "'[a-z ;]{0,6}'",
                        1 => "[ -~]{0,3}",
                    ],
                    0..12,
                ),
                1..6,
            ),
        ) {
            let mut shapes = Shapes::default();
            for text in texts {
                check(&mut shapes, &text.concat());
            }
        }

        /// The same text with other values.
        #[test]
        fn values_are_of_no_account(
            start in (0..8usize),
            pieces in proptest::collection::vec(0..34usize, 0..10),
            values in proptest::collection::vec((any::<u32>(), "[a-z]{0,9}", any::<bool>()), 24),
        ) {
            let mut shapes = Shapes::default();
            for values in values.chunks(8) {
                let mut text = PIECES[start].to_owned();
                for (piece, (number, word, is_text)) in pieces.iter().zip(values.iter().cycle()) {
                    text += PIECES[*piece];
                    text += &if *is_text { format!(" '{word}' ") } else { format!(" {number} ") };
                }
                check(&mut shapes, &text);
            }
        }
    }
}
