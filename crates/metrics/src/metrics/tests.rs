use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use super::*;
use crate::{
    Definition, ErrorClass, LoginOutcome, PinReason, PoolWait, PositionWait, ReplayFailure,
    RetryKind, Sample, Side, StatementKind, TABLE, Value,
};

/// `name{value,value}` to the value.
#[derive(Default)]
struct Seen(BTreeMap<String, f64>, Vec<&'static str>);

impl Visitor for Seen {
    type Error = Infallible;

    fn metric(
        &mut self,
        definition: &'static Definition,
        samples: &[Sample<'_>],
    ) -> Result<(), Infallible> {
        self.1.push(definition.name);
        for sample in samples {
            assert_eq!(sample.labels.len(), definition.labels.len());
            let value = match &sample.value {
                Value::Count(count) => *count as f64,
                Value::Number(number) => *number,
                Value::Histogram(histogram) => histogram.count() as f64,
            };
            let key = format!("{}{{{}}}", definition.name, sample.labels.join(","));
            assert!(self.0.insert(key, value).is_none(), "a sample twice");
        }
        Ok(())
    }
}

fn seen(metrics: &Metrics) -> Seen {
    let mut seen = Seen::default();
    let Ok(()) = metrics.collect(&mut seen);
    seen
}

#[test]
fn every_metric_of_the_table_is_shown_once_in_order() {
    let seen = seen(&Metrics::new(1, vec!["a:1".into()]));
    let names: Vec<_> = TABLE.iter().map(|definition| definition.name).collect();
    assert_eq!(seen.1, names);
}

#[test]
fn sums_what_the_workers_counted() {
    let metrics = Metrics::new(2, vec!["a:1".into(), "b:2".into()]);
    let (one, two) = (metrics.worker(0), metrics.worker(1));
    one.client_opened();
    two.client_opened();
    two.client_closed();
    one.received(10);
    two.received(5);
    one.statement(Some(1), StatementKind::Read, Duration::from_micros(50));
    two.statement(Some(1), StatementKind::Read, Duration::from_micros(70));
    two.statement(None, StatementKind::Session, Duration::ZERO);
    two.statement(Some(9), StatementKind::Read, Duration::ZERO);
    one.login(LoginOutcome::Denied);
    one.error(Side::Proxy, ErrorClass::Limit);
    two.retry(RetryKind::Unsent);
    one.held();
    two.held();
    two.hold_ended();
    two.replay_failed(ReplayFailure::Differs);
    one.pinned(PinReason::Transaction);
    two.pinned(PinReason::Transaction);
    two.unpinned(PinReason::Transaction);
    one.connection_opened(0);
    one.connection_opened(0);
    one.leased(0);
    // Taken over by another worker, and closed there.
    two.connection_closed(0);
    one.pool_wait(0, PoolWait::TimedOut, Duration::from_millis(1500));
    one.position_wait(1, PositionWait::Reached);

    let seen = seen(&metrics).0;
    let table = [
        ("millrace_clients{}", 1.0),
        ("millrace_client_connections{}", 2.0),
        ("millrace_client_received_bytes{}", 15.0),
        ("millrace_statements{b:2,read}", 2.0),
        ("millrace_statement_duration_seconds{b:2,read}", 2.0),
        ("millrace_statements{local,session}", 1.0),
        ("millrace_logins{denied}", 1.0),
        ("millrace_errors{proxy,limit}", 1.0),
        ("millrace_retries{unsent}", 1.0),
        ("millrace_statements_held{}", 1.0),
        ("millrace_replay_failures{differs}", 1.0),
        ("millrace_pins{transaction}", 1.0),
        ("millrace_pins_begun{transaction}", 2.0),
        ("millrace_pool_connections{a:1,idle}", 0.0),
        ("millrace_pool_connections{a:1,leased}", 1.0),
        ("millrace_pool_connections_opened{a:1}", 2.0),
        ("millrace_pool_connections_closed{a:1}", 1.0),
        ("millrace_pool_waits{a:1,timed_out}", 1.0),
        ("millrace_pool_wait_seconds{a:1}", 1.5),
        ("millrace_position_waits{b:2,reached}", 1.0),
    ];
    for (key, expected) in table {
        assert_eq!(seen.get(key), Some(&expected), "{key}");
    }
    assert_eq!(metrics.clients(), 1);
    assert_eq!((metrics.clients_of(0), metrics.clients_of(1)), (1, 0));
}

#[test]
fn shows_the_servers_as_they_were_last_set() {
    let metrics = Metrics::new(1, vec!["a:1".into()]);
    let mut state = ServerState {
        name: "a:1".into(),
        up: true,
        fit: false,
        primary: false,
        draining: false,
        gone: false,
        lag_seconds: Some(7),
    };
    metrics.set_servers(vec![state.clone()]);
    let shown = seen(&metrics).0;
    assert_eq!(shown["millrace_server_up{a:1}"], 1.0);
    assert_eq!(shown["millrace_server_fit{a:1}"], 0.0);
    assert_eq!(shown["millrace_server_lag_seconds{a:1}"], 7.0);
    state.lag_seconds = None;
    metrics.set_servers(vec![state]);
    assert!(
        !seen(&metrics)
            .0
            .contains_key("millrace_server_lag_seconds{a:1}")
    );
}

#[test]
fn classes_follow_the_sqlstate() {
    let table = [
        ("42000", ErrorClass::Syntax),
        ("28000", ErrorClass::Access),
        ("23000", ErrorClass::Data),
        ("40001", ErrorClass::Transaction),
        ("08S01", ErrorClass::Connection),
        ("70100", ErrorClass::Interrupted),
        ("HY000", ErrorClass::Other),
        ("", ErrorClass::Other),
    ];
    for (state, class) in table {
        assert_eq!(
            ErrorClass::from_sqlstate(state.as_bytes()),
            class,
            "{state}"
        );
    }
}
