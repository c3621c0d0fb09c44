//! The metrics as they are told.

use super::*;

/// The text of /metrics, taken apart by the OpenMetrics specification's rules.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    /// Types by family.
    types: BTreeMap<String, String>,
    /// Values by series as written, labels included.
    pub(super) series: BTreeMap<String, f64>,
}

impl Exposition {
    pub(super) async fn of(proxy: &Proxy) -> anyhow::Result<Self> {
        let answer = proxy.metrics().await?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no body")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
        let head = head.to_lowercase();
        ensure!(
            head.contains("content-type: application/openmetrics-text"),
            "{head}"
        );
        // Chunked answers would need joining; the client asked for a closed connection.
        ensure!(!head.contains("transfer-encoding"), "{head}");
        Self::parse(body)
    }

    pub(super) fn parse(body: &str) -> anyhow::Result<Self> {
        let mut parsed = Self::default();
        let mut family = String::new();
        let body = body
            .strip_suffix("# EOF\n")
            .context("no `# EOF` at the end")?;
        for line in body.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let mut words = comment.splitn(3, ' ');
                let (keyword, name, rest) = (words.next(), words.next(), words.next());
                let name = name.with_context(|| line.to_owned())?;
                match keyword {
                    Some("TYPE") => {
                        family = name.to_owned();
                        let kind = rest.with_context(|| line.to_owned())?.to_owned();
                        let twice = parsed.types.insert(family.clone(), kind);
                        ensure!(twice.is_none(), "{name} has two types");
                    }
                    Some("HELP" | "UNIT") => {}
                    _ => bail!("an unknown comment: {line}"),
                }
                continue;
            }
            parsed.sample(&family, line)?;
        }
        Ok(parsed)
    }

    pub(super) fn sample(&mut self, family: &str, line: &str) -> anyhow::Result<()> {
        let (series, value) = line
            .rsplit_once(' ')
            .with_context(|| format!("no value: {line}"))?;
        let value: f64 = match value {
            "+Inf" => f64::INFINITY,
            number => number
                .parse()
                .with_context(|| format!("no number: {line}"))?,
        };
        let name = series.split('{').next().unwrap_or_default();
        let suffix = name
            .strip_prefix(family)
            .with_context(|| format!("{line} in {family}"))?;
        let allowed: &[&str] = match self.types.get(family).map(String::as_str) {
            Some("counter") => &["_total"],
            Some("gauge") => &[""],
            Some("histogram") => &["_bucket", "_sum", "_count"],
            kind => bail!("{family} is a {kind:?}"),
        };
        ensure!(allowed.contains(&suffix), "{name} in {family}");
        if let Some(labels) = series
            .strip_prefix(name)
            .filter(|labels| !labels.is_empty())
        {
            let inner = labels.strip_prefix('{').and_then(|l| l.strip_suffix('}'));
            for label in inner.with_context(|| line.to_owned())?.split("\",") {
                let (key, value) = label.split_once("=\"").with_context(|| line.to_owned())?;
                let fine = key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
                ensure!(
                    fine && !key.is_empty() && !value.is_empty(),
                    "label {label} of {line}"
                );
            }
        }
        let twice = self.series.insert(series.to_owned(), value);
        ensure!(twice.is_none(), "{series} is there twice");
        Ok(())
    }

    /// A series' value; 0 where there is none yet.
    pub(super) fn value(&self, series: &str) -> f64 {
        self.series.get(series).copied().unwrap_or(0.0)
    }

    /// The sum over all series of this name whose labels contain these.
    pub(super) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let of = |series: &str| {
            series.split('{').next() == Some(name) && labels.iter().all(|l| series.contains(l))
        };
        let fitting = self.series.iter().filter(|(series, _)| of(series));
        fitting.map(|(_, value)| value).sum()
    }

    pub(super) fn names(&self) -> BTreeSet<String> {
        let name = |(family, kind): (&String, &String)| match kind.as_str() {
            "counter" => format!("{family}_total"),
            _ => family.clone(),
        };
        self.types.iter().map(name).collect()
    }
}

/// Names in the first column of the documentation's tables.
pub(super) fn documented() -> anyhow::Result<BTreeMap<String, String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let text = std::fs::read_to_string(path)?;
    let mut names = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, name, kind, ..] = cells[..]
            && let Some(name) = name.strip_prefix('`').and_then(|n| n.strip_suffix('`'))
        {
            names.insert(name.to_owned(), kind.to_owned());
        }
    }
    Ok(names)
}

pub(super) async fn format(cluster: &Cluster) -> anyhow::Result<()> {
    let proxy = proxy(cluster, "").await?;
    let mut connection = Connection::open(&app(&proxy)).await?;
    for sql in [
        "SELECT 1 FROM app.seen",
        "INSERT INTO app.seen VALUES (1)",
        "SELEC",
        "SELECT CONNECTION_ID()",
    ] {
        connection.query(sql).await;
    }
    let exposition = Exposition::of(&proxy).await?;
    let documented = documented()?;
    let names: BTreeSet<String> = documented.keys().cloned().collect();
    let missing: Vec<_> = names.difference(&exposition.names()).cloned().collect();
    let unknown: Vec<_> = exposition.names().difference(&names).cloned().collect();
    ensure!(
        missing.is_empty() && unknown.is_empty(),
        "missing {missing:?}, undocumented {unknown:?}"
    );
    for (family, kind) in &exposition.types {
        let name = if kind == "counter" {
            format!("{family}_total")
        } else {
            family.clone()
        };
        ensure!(documented.get(&name) == Some(kind), "{name} is a {kind}");
    }
    buckets(&exposition)
}

/// Buckets only grow, and the last one holds all.
pub(super) fn buckets(exposition: &Exposition) -> anyhow::Result<()> {
    pub(super) const NAME: &str = "millrace_statement_duration_seconds";
    let mut seen = 0;
    for (series, count) in &exposition.series {
        let Some(labels) = series.strip_prefix(&format!("{NAME}_count")) else {
            continue;
        };
        seen += 1;
        let labels = labels.trim_matches(['{', '}']);
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (other, value) in &exposition.series {
            let Some(rest) = other.strip_prefix(&format!("{NAME}_bucket{{le=\"")) else {
                continue;
            };
            let (bound, rest) = rest.split_once("\",").context("labels")?;
            if rest.trim_end_matches('}') == labels {
                let bound = match bound {
                    "+Inf" => f64::INFINITY,
                    number => number.parse()?,
                };
                buckets.push((bound, *value));
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        ensure!(
            buckets.windows(2).all(|w| w[0].1 <= w[1].1),
            "{labels}: {buckets:?}"
        );
        let last = buckets.last().context("no buckets")?;
        ensure!(
            last.0.is_infinite() && last.1 == *count,
            "{labels}: {last:?}, count {count}"
        );
        let total = exposition.value(&format!("millrace_statements_total{{{labels}}}"));
        ensure!(
            total == *count,
            "{labels}: {total} statements, {count} durations"
        );
    }
    ensure!(seen > 0, "no durations");
    Ok(())
}
