//! Prints what classifying one statement costs, and reading it for the result cache. Run with `--release`; further statements can be
//! given as arguments.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "an example measures and prints; the crate does neither"
)]

use millrace_sql::{Family, LexMode, Reads, Statement, classify, reads};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: u32 = 200_000;

fn main() {
    let mode = LexMode::new(Family::MySql, 90704);
    let mut statement = Statement::default();
    let given: Vec<String> = std::env::args().skip(1).collect();
    let built_in = [
        "SELECT c FROM sbtest1 WHERE id=12345",
        "SELECT 1",
        "UPDATE sbtest1 SET k=k+1 WHERE id=4711",
        "INSERT INTO sbtest1 (id, k, c, pad) VALUES (1, 2, 'aaaaaaaaaaaaaaaaaaaaaaa', 'bbbbbbbbb')",
        "SET NAMES utf8mb4",
        "SELECT u.id, u.name, COUNT(*) FROM users AS u LEFT JOIN orders o ON o.user_id = u.id \
         WHERE u.created_at > '2024-01-01' GROUP BY u.id, u.name ORDER BY 3 DESC LIMIT 10",
    ];
    let texts: Vec<&str> = match given.is_empty() {
        true => built_in.to_vec(),
        false => given.iter().map(String::as_str).collect(),
    };
    for text in texts {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            classify(black_box(text.as_bytes()), black_box(&mode), &mut statement);
            black_box(&statement);
        }
        let ns = start.elapsed().as_nanos() / u128::from(ROUNDS);
        let mut out = Reads::default();
        let start = Instant::now();
        for _ in 0..ROUNDS {
            reads(
                black_box(text.as_bytes()),
                black_box(&mode),
                &statement,
                &mut out,
            );
            black_box(&out);
        }
        let ns_reads = start.elapsed().as_nanos() / u128::from(ROUNDS);
        println!(
            "{ns:>6} ns {ns_reads:>6} ns  {:?} {:?}  {text}",
            statement.kind, statement.access
        );
    }
}
