//! What reading row events costs: `cargo run --release --example binlog_cost -p millrace-protocol`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a clock and a terminal are what this is for"
)]

use std::hint::black_box;
use std::time::Instant;

use millrace_protocol::binlog::rows::Value;
use millrace_protocol::binlog::table::Layout;
use millrace_protocol::binlog::{Event, Format, events};

fn main() {
    for (name, log) in [
        (
            "MySQL",
            &include_bytes!("../tests/vectors/binlog/mysql-rows.log")[..],
        ),
        (
            "MariaDB",
            &include_bytes!("../tests/vectors/binlog/mariadb-rows.log")[..],
        ),
    ] {
        let (mut rows, mut images) = (0_u32, 0_u32);
        let rounds = 2000;
        let began = Instant::now();
        for _ in 0..rounds {
            follow(log, &mut rows, &mut images);
        }
        let spent = began.elapsed();
        println!(
            "{name}: {:?} a row event with all that is around it, {} images each on average",
            spent / rows,
            f64::from(images) / f64::from(rows)
        );
    }
}

/// As a follower reads: checksums, tables and the first column of each image.
fn follow(log: &[u8], rows_seen: &mut u32, images_seen: &mut u32) {
    let mut format = Format::new(false);
    let mut layout = Layout::default();
    let mut buf = Vec::new();
    for event in events(&log[4..]).map_while(Result::ok) {
        match format.read(event) {
            Ok((_, Event::TableMap(map))) => {
                let _ = black_box(layout.read(&map));
            }
            Ok((_, Event::Rows(rows))) => {
                *rows_seen += 1;
                let Ok(data) = rows.data.plain(&mut buf, 1 << 20) else {
                    continue;
                };
                let mut values = [Value::Absent];
                let Ok(mut images) = rows.images(&layout, data) else {
                    continue;
                };
                while let Ok(Some(_)) = images.next(&[0], &mut values) {
                    black_box(&values);
                    *images_seen += 1;
                }
            }
            other => {
                let _ = black_box(other);
            }
        }
    }
}
