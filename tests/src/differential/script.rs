//! The script language of the cases: parsing only.
//!
//! ```text
//! # a comment
//! == name mysql|mariadb          a case; without a family it is for both
//! setup: SQL                     run on the primaries before the suite, in the case's database
//! mask: REGEX => TEXT # reason   applied to the printed replies of this case
//! SELECT 1                       a statement of session 1
//! 2> SELECT 1                    of session 2
//! 2& SELECT SLEEP(1)             sent; its reply is read by `2> .recv`
//! ~sort SELECT ...               modifiers: ~sort ~shape ~ignore ~cid ~cols(1,3)
//! .prepare p SELECT ?            any other command: see `player`
//! ```
//!
//! `{db}`, `{cid:N}`, `{x:HEX}`, `{rep:N:TEXT}`, `{nl}` and `{tab}` are replaced in every step.

use std::fmt;

pub use millrace_sandbox::Family;
use regex::Regex;

/// The collation that a current client library of this family asks for: utf8mb4_0900_ai_ci or
/// utf8mb4_general_ci.
pub fn client_charset(family: Family) -> u8 {
    match family {
        Family::MySql => 255,
        Family::MariaDb => 45,
    }
}

fn named(family: &str) -> Result<Family, String> {
    let mut known = Family::ALL.into_iter();
    known
        .find(|known| known.as_str() == family)
        .ok_or_else(|| format!("unknown family {family}: mysql or mariadb"))
}

/// How much of a step's reply is compared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// The order of rows is not promised.
    pub sort: bool,
    /// Values differ by nature: only kinds of packets and column definitions are compared.
    pub shape: bool,
    /// Nothing is compared.
    pub ignore: bool,
    /// Cells that equal a session's connection id are replaced by the session's number.
    pub connection_ids: bool,
    /// These columns (from 1) are left out.
    pub columns: Vec<usize>,
}

/// One line of a case.
#[derive(Debug, Clone)]
pub struct Step {
    pub line: usize,
    pub session: u32,
    /// Sent without reading the reply.
    pub send_only: bool,
    pub view: View,
    /// The statement, or a command that begins with a dot.
    pub text: String,
}

/// A substitution in printed replies, with the reason why it is needed.
#[derive(Debug, Clone)]
pub struct Mask {
    pub regex: Regex,
    pub text: String,
    pub reason: String,
}

/// One case.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: String,
    pub file: String,
    pub family: Option<Family>,
    pub setup: Vec<String>,
    pub masks: Vec<Mask>,
    pub steps: Vec<Step>,
}

/// A line that cannot be read.
#[derive(Debug)]
pub struct ScriptError {
    file: String,
    line: usize,
    what: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

impl std::error::Error for ScriptError {}

impl Case {
    /// The case's own database on every server.
    pub fn database(&self) -> String {
        format!("d_{}", self.name)
    }

    /// Whether the case says something about this family.
    pub fn applies_to(&self, family: Family) -> bool {
        self.family.is_none_or(|f| f == family)
    }
}

/// Reads a file of cases.
pub fn parse(file: &str, text: &str) -> Result<Vec<Case>, ScriptError> {
    let mut cases: Vec<Case> = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let line = index + 1;
        let error = |what: &str| ScriptError {
            file: file.to_owned(),
            line,
            what: what.to_owned(),
        };
        let trimmed = raw.trim_end();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        if let Some(head) = trimmed.strip_prefix("== ") {
            let case = parse_head(file, head).map_err(|what| error(&what))?;
            if cases
                .iter()
                .any(|c| c.name == case.name && c.family == case.family)
            {
                return Err(error("a case of this name exists"));
            }
            cases.push(case);
            continue;
        }
        let case = cases
            .last_mut()
            .ok_or_else(|| error("a step before the first case"))?;
        if let Some(sql) = trimmed.strip_prefix("setup: ") {
            case.setup.push(sql.to_owned());
        } else if let Some(mask) = trimmed.strip_prefix("mask: ") {
            case.masks
                .push(parse_mask(mask).map_err(|what| error(&what))?);
        } else {
            // Trailing blanks belong to the statement.
            case.steps
                .push(parse_step(line, raw).map_err(|what| error(&what))?);
        }
    }
    Ok(cases)
}

fn parse_head(file: &str, head: &str) -> Result<Case, String> {
    let mut words = head.split_whitespace();
    let name = words.next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || name.len() > 50 || !name.chars().all(plain) {
        return Err(format!(
            "case name {name:?}: lower case, digits and _ only, at most 50"
        ));
    }
    let family = words.next().map(named).transpose()?;
    Ok(Case {
        name: name.to_owned(),
        file: file.to_owned(),
        family,
        setup: Vec::new(),
        masks: Vec::new(),
        steps: Vec::new(),
    })
}

fn parse_mask(text: &str) -> Result<Mask, String> {
    let (rule, reason) = text
        .rsplit_once(" # ")
        .ok_or("a mask needs a reason after ' # '")?;
    let (regex, to) = rule
        .split_once(" => ")
        .ok_or("a mask is REGEX => TEXT # reason")?;
    let regex = Regex::new(regex).map_err(|e| e.to_string())?;
    Ok(Mask {
        regex,
        text: to.to_owned(),
        reason: reason.to_owned(),
    })
}

fn parse_step(line: usize, raw: &str) -> Result<Step, String> {
    let (session, send_only, mut rest) = split_session(raw);
    let mut view = View::default();
    while let Some(tail) = rest.strip_prefix('~') {
        let (word, after) = tail.split_once(' ').unwrap_or((tail, ""));
        rest = after;
        match word {
            "sort" => view.sort = true,
            "shape" => view.shape = true,
            "ignore" => view.ignore = true,
            "cid" => view.connection_ids = true,
            _ => view.columns = parse_columns(word)?,
        }
    }
    Ok(Step {
        line,
        session,
        send_only,
        view,
        text: rest.to_owned(),
    })
}

fn parse_columns(word: &str) -> Result<Vec<usize>, String> {
    let list = word
        .strip_prefix("cols(")
        .and_then(|w| w.strip_suffix(')'))
        .ok_or_else(|| format!("unknown modifier ~{word}"))?;
    list.split(',')
        .map(|n| n.parse().map_err(|_| format!("bad column {n:?}")))
        .collect()
}

/// `2> x` and `2& x`; anything else belongs to session 1.
fn split_session(raw: &str) -> (u32, bool, &str) {
    let digits = raw.bytes().take_while(u8::is_ascii_digit).count();
    let mark = raw.as_bytes().get(digits);
    match (raw[..digits].parse(), mark) {
        (Ok(session), Some(mark @ (b'>' | b'&'))) => (
            session,
            *mark == b'&',
            raw[digits + 1..]
                .strip_prefix(' ')
                .unwrap_or(&raw[digits + 1..]),
        ),
        _ => (1, false, raw),
    }
}

/// Words separated by blanks; double quotes hold blanks together and are removed.
pub(crate) fn words(text: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let mut word = Vec::new();
    let (mut quoted, mut open) = (false, false);
    for b in text {
        match b {
            b'"' => {
                quoted = !quoted;
                open = true;
            }
            b' ' if !quoted => {
                if open {
                    out.push(std::mem::take(&mut word));
                }
                open = false;
            }
            _ => {
                word.push(*b);
                open = true;
            }
        }
    }
    if open {
        out.push(word);
    }
    out
}

/// What `{...}` stands for on one side.
pub(crate) trait Names {
    fn database(&self) -> String;
    fn connection_id(&self, session: u32) -> Option<u32>;
}

/// Replaces the placeholders; unknown ones stay (JSON and ODBC escapes use braces).
pub(crate) fn expand(text: &str, names: &dyn Names) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        out.extend_from_slice(&rest.as_bytes()[..start]);
        rest = &rest[start..];
        match rest
            .find('}')
            .and_then(|end| Some((end, placeholder(&rest[1..end], names)?)))
        {
            Some((end, value)) => {
                out.extend_from_slice(&value);
                rest = &rest[end + 1..];
            }
            None => {
                out.push(b'{');
                rest = &rest[1..];
            }
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

fn placeholder(word: &str, names: &dyn Names) -> Option<Vec<u8>> {
    match word {
        "db" => return Some(names.database().into_bytes()),
        "nl" => return Some(b"\n".to_vec()),
        "tab" => return Some(b"\t".to_vec()),
        _ => {}
    }
    let (kind, value) = word.split_once(':')?;
    match kind {
        "cid" => Some(
            names
                .connection_id(value.parse().ok()?)?
                .to_string()
                .into_bytes(),
        ),
        "x" => unhex(value),
        "rep" => {
            let (count, text) = value.split_once(':')?;
            Some(text.as_bytes().repeat(count.parse().ok()?))
        }
        _ => None,
    }
}

/// Hexadecimal digits to bytes.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;
    impl Names for Fixed {
        fn database(&self) -> String {
            "d_x".to_owned()
        }
        fn connection_id(&self, session: u32) -> Option<u32> {
            Some(100 + session)
        }
    }

    #[test]
    fn a_case_is_read() {
        let text = "== one mysql\nsetup: CREATE TABLE t (a INT)\nmask: [0-9]+ => N # they count\nSELECT 1\n2& ~sort ~cols(1,2) SELECT 2 \n";
        let cases = parse("f", text).unwrap();
        assert_eq!(cases.len(), 1);
        let case = &cases[0];
        assert_eq!(case.family, Some(Family::MySql));
        assert_eq!(
            (case.setup.len(), case.masks.len(), case.steps.len()),
            (1, 1, 2)
        );
        let step = &case.steps[1];
        assert_eq!(
            (step.session, step.send_only, step.text.as_str()),
            (2, true, "SELECT 2 ")
        );
        assert!(step.view.sort);
        assert_eq!(step.view.columns, [1, 2]);
    }

    #[test]
    fn mistakes_name_the_line() {
        let error = parse("f", "== a\n~what SELECT 1\n").unwrap_err();
        assert!(error.to_string().starts_with("f:2: "), "{error}");
        assert!(parse("f", "SELECT 1").is_err());
        assert!(parse("f", "== A").is_err());
    }

    #[test]
    fn placeholders() {
        assert_eq!(
            expand("{db} {cid:2} {x:6162} {rep:3:z} {d '1'}", &Fixed),
            b"d_x 102 ab zzz {d '1'}"
        );
    }

    #[test]
    fn quoted_words() {
        assert_eq!(
            words(b"p i:1 \"s:a b\" \"\""),
            [
                b"p".to_vec(),
                b"i:1".to_vec(),
                b"s:a b".to_vec(),
                Vec::new()
            ]
        );
    }
}
