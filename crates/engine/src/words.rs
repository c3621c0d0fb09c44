//! A statement's text, made easy to compare.

/// The statement in lower case, with single blanks and without a `;` at the end.
pub fn words(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text).to_ascii_lowercase();
    let text = text.trim().trim_end_matches(';');
    text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// What stands after SELECT: the server names the column so.
pub fn expression(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let text = text.trim().trim_end_matches(';').trim();
    text.get(6..).unwrap_or("").trim().to_owned()
}
