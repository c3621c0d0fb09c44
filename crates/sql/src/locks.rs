//! The names of user-level locks in a text. Does not know which of its calls are made.

/// Adds the names in a text's GET_LOCK calls to `names`, as string literals; false where one is no
/// literal that means the same in another statement.
pub fn lock_names(text: &[u8], names: &mut Vec<Box<str>>) -> bool {
    let lower = text.to_ascii_lowercase();
    let mut from = 0;
    let mut found = false;
    while let Some(at) = find(&lower[from..], b"get_lock") {
        let rest = &text[from + at + 8..];
        from += at + 8;
        let Some(rest) = rest.trim_ascii_start().strip_prefix(b"(") else {
            return false;
        };
        let Some(rest) = rest.trim_ascii_start().strip_prefix(b"'") else {
            return false;
        };
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.:/ $".contains(byte);
        let length = rest.iter().take_while(|byte| plain(byte)).count();
        if !rest[length..].starts_with(b"'")
            || !rest[length + 1..].trim_ascii_start().starts_with(b",")
        {
            return false;
        }
        let name: Box<str> = format!("'{}'", String::from_utf8_lossy(&rest[..length])).into();
        if !names.contains(&name) {
            names.push(name);
        }
        found = true;
    }
    found
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_literals_are_names() {
        let names = |text: &str| {
            let mut names = Vec::new();
            lock_names(text.as_bytes(), &mut names).then(|| names.join(" "))
        };
        assert_eq!(names("SELECT GET_LOCK('a', 1)").as_deref(), Some("'a'"));
        let two = names("DO get_lock ( 'a b', 1), GET_LOCK('c',0), GET_LOCK('c',0)");
        assert_eq!(two.as_deref(), Some("'a b' 'c'"));
        assert_eq!(names("DO GET_LOCK(@x, 1)"), None);
        assert_eq!(names("DO GET_LOCK('it''s', 1)"), None);
        assert_eq!(names("DO 1"), None);
    }
}
