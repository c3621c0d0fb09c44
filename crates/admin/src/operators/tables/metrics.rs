//! SHOW METRICS: what `/metrics` says, as rows. Histograms as their count, their sum and the
//! bounds of two quantiles.

use std::convert::Infallible;

use millrace_metrics::{
    BUCKETS, Definition, HistogramSum, Kind, Metrics, Sample, Value, Visitor, bucket_bound_seconds,
};

use crate::operators::answer::Answer;
use crate::operators::cell::Trouble;
use crate::operators::listing::{Listing, Show, real, text};
use crate::operators::sources::Sources;
use crate::process;

pub(crate) const LISTING: Listing = Listing {
    show: Show::Metrics,
    name: "METRICS",
    also: &["METRIC"],
    statement: "SHOW METRICS",
    help: "every metric with its labels and value; of a histogram the count, the sum and quantiles",
    columns: &[
        text("name", "as `/metrics` shows it"),
        text("labels", "`name=value`, separated by commas"),
        real("value", "its value now; times are in seconds"),
        text("type", "`counter`, `gauge` or `histogram`"),
    ],
    like: 0,
};

/// All samples at one moment.
pub(crate) struct Collected(Vec<Row>);

struct Row {
    name: &'static str,
    suffix: &'static str,
    labels: Vec<(&'static str, String)>,
    value: f64,
    kind: &'static str,
}

impl Collected {
    pub(crate) fn of(metrics: &Metrics) -> Self {
        let mut collected = Collected(Vec::new());
        // Infallible: nothing in it can go wrong.
        let _ = metrics.collect(&mut collected);
        collected
    }

    /// The sum of a metric's samples with this label.
    pub(crate) fn sum(&self, name: &str, label: &str, value: &str) -> f64 {
        let has = |row: &&Row| {
            row.name == name
                && row
                    .labels
                    .iter()
                    .any(|(key, own)| *key == label && own == value)
        };
        self.0.iter().filter(has).map(|row| row.value).sum()
    }

    fn add(&mut self, definition: &'static Definition, sample: &Sample<'_>) {
        let labels: Vec<(&str, String)> = definition
            .labels
            .iter()
            .copied()
            .zip(sample.labels.iter().map(ToString::to_string))
            .collect();
        let kind = match definition.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let mut put = |suffix, value| {
            self.0.push(Row {
                name: definition.name,
                suffix,
                labels: labels.clone(),
                value,
                kind,
            });
        };
        let suffix = match definition.kind {
            Kind::Counter => "_total",
            _ => "",
        };
        match &sample.value {
            Value::Count(count) => put(suffix, *count as f64),
            Value::Number(number) => put(suffix, *number),
            Value::Histogram(histogram) => {
                put("_count", histogram.count() as f64);
                put("_sum", histogram.sum_us as f64 / 1e6);
                put("_p50", quantile(histogram, 0.5));
                put("_p99", quantile(histogram, 0.99));
            }
        }
    }
}

impl Visitor for Collected {
    type Error = Infallible;

    fn metric(
        &mut self,
        definition: &'static Definition,
        samples: &[Sample<'_>],
    ) -> Result<(), Infallible> {
        samples
            .iter()
            .for_each(|sample| self.add(definition, sample));
        Ok(())
    }
}

/// The upper bound of the bucket that holds a quantile, in seconds; of the last, its lower one.
fn quantile(histogram: &HistogramSum, share: f64) -> f64 {
    let wanted = (histogram.count() as f64 * share).ceil();
    let mut seen = 0;
    for (bucket, count) in histogram.counts.iter().enumerate() {
        seen += count;
        if seen as f64 >= wanted {
            return bucket_bound_seconds(bucket.min(BUCKETS - 1));
        }
    }
    0.0
}

pub(crate) async fn rows(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let mut collected = Collected::of(&sources.metrics);
    let _ = process::collect(&mut collected);
    for row in collected.0 {
        let labels: Vec<String> = row
            .labels
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let row = [
            format!("{}{}", row.name, row.suffix).into(),
            labels.join(",").into(),
            row.value.into(),
            row.kind.into(),
        ];
        answer.row(&row).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_metrics::StatementKind;

    use super::*;

    #[test]
    fn a_histogram_tells_its_quantiles() {
        let metrics = Metrics::new(1, vec!["a:1".into()]);
        for us in [10, 10, 10, 900_000] {
            let elapsed = Duration::from_micros(us);
            let worker = metrics.worker(0);
            worker.statement(Some(0), StatementKind::Read, elapsed);
        }
        let collected = Collected::of(&metrics);
        let find = |suffix| {
            let mut rows = collected.0.iter();
            let found = rows.find(|row| {
                row.name == "millrace_statement_duration_seconds" && row.suffix == suffix
            });
            found.map(|row| row.value)
        };
        assert_eq!(find("_count"), Some(4.0));
        assert_eq!(find("_p50"), Some(0.000_016));
        assert!(find("_p99").unwrap() >= 0.9);
        assert_eq!(collected.sum("millrace_statements", "server", "a:1"), 4.0);
        assert_eq!(collected.sum("millrace_statements", "server", "b:1"), 0.0);
    }
}
