//! Reads Millrace's own pages: one request over HTTP/1.0 on 127.0.0.1, and the text format of
//! metrics. Not an HTTP client for anything else.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(5);

/// The body of a page.
///
/// # Errors
/// When there is no answer within 5 seconds or its status is not 200.
pub(super) async fn get(port: u16, path: &str) -> io::Result<String> {
    timeout(LIMIT, exchange(port, path)).await?
}

async fn exchange(port: u16, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        Err(io::Error::other(status.to_owned()))
    }
}

/// One line of `/metrics`.
#[derive(Debug, PartialEq)]
pub(super) struct Sample<'a> {
    labels: &'a str,
    pub(super) value: f64,
}

impl Sample<'_> {
    /// Whether it has this label. The demo's values have nothing that must be escaped.
    pub(super) fn has(&self, name: &str, value: &str) -> bool {
        let label = format!("{name}=\"{value}\"");
        self.labels.split(',').any(|found| found == label)
    }
}

/// The samples of one metric, under its full name.
pub(super) fn samples<'a>(text: &'a str, name: &str) -> impl Iterator<Item = Sample<'a>> {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_once("} ")?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let value = value.parse().ok()?;
        Some(Sample { labels, value })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_name_and_label() {
        let text = "# HELP a_total x\na_total{server=\"h:1\",kind=\"read\"} 3\n\
                    a_total{server=\"h:2\",kind=\"read\"} 4\na 7\nab 8\n# EOF\n";
        let of = |server: &str| {
            let found = samples(text, "a_total").find(|sample| sample.has("server", server));
            found.map(|sample| sample.value)
        };
        assert_eq!(of("h:2"), Some(4.0));
        assert_eq!(of("h:3"), None);
        let alone: Vec<f64> = samples(text, "a").map(|sample| sample.value).collect();
        assert_eq!(alone, [7.0]);
    }
}
