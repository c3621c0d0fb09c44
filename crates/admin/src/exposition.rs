//! Writes the metrics as text for Prometheus (the OpenMetrics format). Collects nothing itself.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use millrace_metrics::{
    BUCKETS, Definition, HistogramSum, Kind, Metrics, Sample, Value, Visitor, bucket_bound_seconds,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::process;

/// The text's media type.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics as text.
pub fn exposition(metrics: &Arc<Metrics>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(All(metrics.clone())));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct All(Arc<Metrics>);

impl Collector for All {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer(encoder);
        self.0.collect(&mut writer)?;
        process::collect(&mut writer)
    }
}

struct Writer<'a>(DescriptorEncoder<'a>);

impl Visitor for Writer<'_> {
    type Error = fmt::Error;

    fn metric(&mut self, definition: &'static Definition, samples: &[Sample<'_>]) -> fmt::Result {
        let kind = match definition.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        let help = format!("{}.", definition.help);
        let mut metric = self
            .0
            .encode_descriptor(definition.name, &help, None, kind)?;
        for sample in samples {
            let labels: Vec<(&str, Cow<'_, str>)> = definition
                .labels
                .iter()
                .copied()
                .zip(sample.labels.iter().copied().map(escape))
                .collect();
            if labels.is_empty() {
                write_value(&mut metric, definition.kind, &sample.value)?;
            } else {
                let mut one = metric.encode_family(&labels)?;
                write_value(&mut one, definition.kind, &sample.value)?;
            }
        }
        Ok(())
    }
}

/// A label's value as the format wants it between quotes; the encoder writes it as it is.
fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['\\', '"', '\n']) {
        return text.into();
    }
    let text = text.replace('\\', r"\\").replace('"', "\\\"");
    text.replace('\n', r"\n").into()
}

fn write_value(encoder: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Count(count)) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(count, None)
        }
        (Kind::Counter, Value::Number(number)) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(number, None)
        }
        (_, Value::Count(count)) => {
            encoder.encode_gauge(&i64::try_from(*count).unwrap_or(i64::MAX))
        }
        (_, Value::Number(number)) => encoder.encode_gauge(number),
        (_, Value::Histogram(histogram)) => write_histogram(encoder, histogram),
    }
}

fn write_histogram(encoder: &mut MetricEncoder<'_>, histogram: &HistogramSum) -> fmt::Result {
    let bound = |bucket| {
        if bucket < BUCKETS {
            bucket_bound_seconds(bucket)
        } else {
            // How the encoder is told of "+Inf".
            f64::MAX
        }
    };
    let buckets: Vec<(f64, u64)> = histogram
        .counts
        .iter()
        .enumerate()
        .map(|(bucket, count)| (bound(bucket), *count))
        .collect();
    let sum = histogram.sum_us as f64 / 1e6;
    encoder.encode_histogram::<NoLabelSet>(sum, histogram.count(), &buckets, None)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_metrics::{StatementKind, TABLE, markdown};

    use super::*;
    use crate::page::has_table;

    fn text(metrics: Metrics) -> String {
        exposition(&Arc::new(metrics)).unwrap()
    }

    #[test]
    fn writes_every_kind_as_prometheus_reads_it() {
        let metrics = Metrics::new(2, vec!["a:1".into()]);
        metrics.worker(0).client_opened();
        let read = |us| {
            let elapsed = Duration::from_micros(us);
            metrics
                .worker(1)
                .statement(Some(0), StatementKind::Read, elapsed);
        };
        read(10);
        read(20);
        read(60_000_000);
        let text = text(metrics);
        for line in [
            "# HELP millrace_clients Clients connected.",
            "# TYPE millrace_clients gauge",
            "millrace_clients 1",
            "# TYPE millrace_statements counter",
            "millrace_statements_total{server=\"a:1\",kind=\"read\"} 3",
            "# TYPE millrace_statement_duration_seconds histogram",
            "millrace_statement_duration_seconds_count{server=\"a:1\",kind=\"read\"} 3",
            "millrace_statement_duration_seconds_sum{server=\"a:1\",kind=\"read\"} 60.00003",
            "millrace_statement_duration_seconds_bucket{le=\"0.000016\",server=\"a:1\",kind=\"read\"} 1",
            "millrace_statement_duration_seconds_bucket{le=\"0.000032\",server=\"a:1\",kind=\"read\"} 2",
            "millrace_statement_duration_seconds_bucket{le=\"33.554432\",server=\"a:1\",kind=\"read\"} 2",
            "millrace_statement_duration_seconds_bucket{le=\"+Inf\",server=\"a:1\",kind=\"read\"} 3",
            "millrace_pool_wait_seconds_total{server=\"a:1\"} 0.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "missing: {line}\n{text}");
        }
    }

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        let metrics = Metrics::new(1, vec!["/tmp/a\"b\\c\n.sock".into()]);
        let text = text(metrics);
        assert!(text.contains(r#"server="/tmp/a\"b\\c\n.sock""#), "{text}");
    }

    #[test]
    fn the_documentation_lists_exactly_these() {
        has_table("docs/metrics.md", "# Metrics", &markdown(TABLE));
        has_table(
            "docs/metrics.md",
            "The process itself:",
            &markdown(process::TABLE),
        );
    }
}
