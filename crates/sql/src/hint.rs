//! What clients say in comments: hints for Millrace itself, and tags that rules look for. A comment
//! never changes what a statement means to a server.

use crate::lexer::{Lexer, Tok};
use crate::mode::LexMode;
use crate::{Flags, Statement};

/// What a hint asks for: the items of `/* millrace: … */`, separated by commas or blanks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hint<'t> {
    /// `primary` (true) or `replica` (false).
    pub primary: Option<bool>,
    /// `servers=NAME`: a set of servers.
    pub servers: Option<&'t str>,
    /// `consistency=LEVEL`.
    pub consistency: Option<&'t str>,
    /// `cache=off`, or `no_cache`: the answer must not come from the cache.
    pub no_cache: bool,
    /// The first item that is none of these.
    pub unknown: Option<&'t str>,
}

impl<'t> Hint<'t> {
    /// The hint of a classified statement; none where it has none.
    pub fn of(class: &Statement, text: &'t [u8]) -> Option<Self> {
        let body = class.hint?.of(text);
        Some(Hint::read(std::str::from_utf8(body).unwrap_or_default()))
    }

    fn read(body: &'t str) -> Self {
        let mut hint = Hint::default();
        let separates = |letter: char| letter == ',' || letter.is_whitespace();
        for item in body.split(separates).filter(|item| !item.is_empty()) {
            let (key, value) = match item.split_once('=') {
                Some((key, value)) => (key, Some(unquoted(value))),
                None => (item, None),
            };
            let is = |name: &str| key.eq_ignore_ascii_case(name);
            match value {
                None if is("primary") => hint.primary = Some(true),
                None if is("replica") => hint.primary = Some(false),
                None if is("no_cache") => hint.no_cache = true,
                Some(value) if is("cache") && value.eq_ignore_ascii_case("off") => {
                    hint.no_cache = true;
                }
                Some(name) if is("servers") => hint.servers = Some(name),
                Some(level) if is("consistency") => hint.consistency = Some(level),
                // A tag is for rules.
                Some(_) if is("tag") => {}
                _ => hint.unknown = hint.unknown.or(Some(item)),
            }
        }
        hint
    }
}

fn unquoted(value: &str) -> &str {
    let value = value.trim();
    ['\'', '"', '`']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(value)
}

/// The tags of a classified statement, in order: the items of its comments, separated by commas.
/// `key='value'`, as sqlcommenter writes it, is `key=value`; of `millrace:` comments those that
/// say `tag=NAME`, as `NAME`.
pub fn tags(class: &Statement, text: &[u8], mode: &LexMode) -> Vec<String> {
    let mut tags = Vec::new();
    if !class.flags.contains(Flags::COMMENT) {
        return tags;
    }
    let mut lexer = Lexer::new(text, mode);
    let mut end = 0;
    loop {
        let token = lexer.next();
        if let Some(gap) = text.get(end..token.start as usize) {
            tags_between(&String::from_utf8_lossy(gap), &mut tags);
        }
        if token.tok == Tok::End {
            return tags;
        }
        end = token.end as usize;
    }
}

/// `gap`: what stands between two tokens: blanks and comments.
fn tags_between(gap: &str, tags: &mut Vec<String>) {
    let mut rest = gap;
    while let Some(at) = rest.find(['/', '#', '-']) {
        let (marker, close) = match &rest[at..] {
            comment if comment.starts_with("/*") => (2, "*/"),
            comment if comment.starts_with("--") => (2, "\n"),
            comment if comment.starts_with('#') => (1, "\n"),
            _ => (1, ""),
        };
        rest = &rest[at + marker..];
        if close.is_empty() {
            continue;
        }
        let length = rest.find(close).unwrap_or(rest.len());
        tags_in(&rest[..length], tags);
        rest = rest.get(length + close.len()..).unwrap_or("");
    }
}

fn tags_in(body: &str, tags: &mut Vec<String>) {
    let version = |letter: char| letter == '!' || letter.is_ascii_digit();
    let body = match body.strip_prefix('!') {
        Some(_) => body.trim_start_matches(version).trim(),
        None => body.trim(),
    };
    let own = body
        .get(..9)
        .is_some_and(|start| start.eq_ignore_ascii_case("millrace:"));
    if own {
        let items = body[9..].split(|letter: char| letter == ',' || letter.is_whitespace());
        let named = items.filter_map(|item| item.strip_prefix("tag="));
        tags.extend(named.map(|name| unquoted(name).to_owned()));
        return;
    }
    for item in body
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        tags.push(match item.split_once('=') {
            Some((key, value)) => format!("{}={}", key.trim(), unquoted(value)),
            None => item.to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Family, classify};

    fn read(text: &str, look: impl FnOnce(&Statement, &LexMode)) {
        let mode = LexMode::new(Family::MySql, 90_700);
        let mut class = Statement::default();
        classify(text.as_bytes(), &mode, &mut class);
        look(&class, &mode);
    }

    #[test]
    fn hints_are_read_wherever_they_stand() {
        let table = [
            "/* millrace: primary */ SELECT 1",
            "SELECT /* Millrace: PRIMARY */ 1",
            "SELECT 1 /*!99999 millrace: primary */",
            "SELECT 1 /*!999999 millrace: primary */",
            "SELECT 1 -- millrace: primary",
            "SELECT 1 # millrace: primary\n",
        ];
        for text in table {
            read(text, |class, _| {
                let hint = Hint::of(class, text.as_bytes());
                assert_eq!(hint.and_then(|hint| hint.primary), Some(true), "{text}");
            });
        }
        let text = "SELECT /* primary */ '/* millrace: primary */'";
        read(text, |class, _| {
            assert_eq!(Hint::of(class, text.as_bytes()), None)
        });
    }

    #[test]
    fn all_that_a_hint_can_say() {
        let expected = Hint {
            primary: Some(false),
            servers: Some("reporting"),
            consistency: Some("global"),
            no_cache: true,
            unknown: Some("faster"),
        };
        let body = " replica, servers='reporting' consistency=global,no_cache tag=x faster now";
        assert_eq!(Hint::read(body), expected);
    }

    #[test]
    fn a_hint_keeps_a_statement_out_of_the_cache() {
        for (body, no_cache, unknown) in [
            ("cache=off", true, None),
            ("primary, Cache='OFF'", true, None),
            ("no_cache", true, None),
            ("cache=on", false, Some("cache=on")),
            ("cache", false, Some("cache")),
        ] {
            let hint = Hint::read(body);
            assert_eq!((hint.no_cache, hint.unknown), (no_cache, unknown), "{body}");
        }
    }

    #[test]
    fn tags_are_what_comments_list() {
        let table: &[(&str, &[&str])] = &[
            ("SELECT 1", &[]),
            ("SELECT 1 /* report */", &["report"]),
            (
                "/* a, b = 'c d' */ SELECT /*x*/ 1 -- last",
                &["a", "b=c d", "x", "last"],
            ),
            (
                "SELECT 1 /*controller='users',action='show'*/",
                &["controller=users", "action=show"],
            ),
            ("SELECT 1 /* millrace: primary, tag=report */", &["report"]),
            ("SELECT 1 /*!99999 report */", &["report"]),
            ("SELECT '/* no */', 1 - 2 / 3 # yes", &["yes"]),
        ];
        for (text, expected) in table {
            read(text, |class, mode| {
                assert_eq!(tags(class, text.as_bytes(), mode), *expected, "{text}");
            });
        }
    }
}
