//! Runs one inner part of Millrace so often, for callgrind to count its instructions. Measures
//! nothing itself: `scripts/check-instructions.sh` does, and `README.md` says how.
//!
//!     millrace-instructions list             the parts: name, repetitions, what one of them is
//!     millrace-instructions PART COUNT       runs the part COUNT times

mod client;
mod counted;
mod lease;
mod pure;
mod server;
mod stage;
mod statements;
mod world;

use std::process::ExitCode;

use anyhow::{Context, bail};

/// Something to count.
struct Part {
    name: &'static str,
    /// How often it is run for a count: enough that what happens once, or once a second, is lost
    /// in it.
    count: u32,
    /// What one repetition does.
    what: &'static str,
    run: fn(u32) -> anyhow::Result<()>,
}

const fn part(
    name: &'static str,
    count: u32,
    what: &'static str,
    run: fn(u32) -> anyhow::Result<()>,
) -> Part {
    Part {
        name,
        count,
        what,
        run,
    }
}

const PARTS: &[Part] = &[
    part(
        "frame-command",
        10_000,
        "a command found in a client's stream and split into its arguments",
        pure::frame_command,
    ),
    part(
        "track-1-row",
        10_000,
        "the answer of a point select followed to its end, text protocol",
        pure::track_1_row,
    ),
    part(
        "track-100-rows",
        2_000,
        "an answer of 100 rows, text protocol",
        pure::track_100_rows,
    ),
    part(
        "track-1-row-binary",
        10_000,
        "the answer of a prepared point select",
        pure::track_1_row_binary,
    ),
    part(
        "classify-point-select",
        10_000,
        "a point select read and classified",
        pure::classify_point_select,
    ),
    part(
        "classify-known-shape",
        10_000,
        "a point select that was seen with other values",
        pure::classify_known_shape,
    ),
    part(
        "classify-insert",
        10_000,
        "an INSERT of one row",
        pure::classify_insert,
    ),
    part(
        "classify-join",
        5_000,
        "a report over four tables with a subquery",
        pure::classify_join,
    ),
    part(
        "decide-read",
        10_000,
        "where a read goes whose position both replicas have",
        pure::decide_read,
    ),
    part(
        "decide-read-waiting",
        10_000,
        "where a read goes whose position no replica is known to have",
        pure::decide_read_waiting,
    ),
    part(
        "state-difference",
        5_000,
        "the commands that turn one session's state into another's",
        pure::state_difference,
    ),
    part(
        "lease",
        5_000,
        "a connection lent from eight idle ones with the session's state, and given back",
        lease::lease,
    ),
    part(
        "statement-text",
        1_000,
        "a point select, from the client's bytes to the client's answer",
        statements::text,
    ),
    part(
        "statement-prepared",
        1_000,
        "the same as a prepared statement's execution",
        statements::prepared,
    ),
    part(
        "write-then-read",
        500,
        "an UPDATE, and a point select that a replica waits with for the UPDATE's position",
        statements::write_then_read,
    ),
    part(
        "visit",
        500,
        "a client that logs in, sends a point select, and leaves when it has the answer",
        statements::visit,
    ),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace-instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [word] if word == "list" => {
            for part in PARTS {
                println!("{}|{}|{}", part.name, part.count, part.what);
            }
            Ok(())
        }
        [name, count] => {
            let part = PARTS
                .iter()
                .find(|part| part.name == name)
                .with_context(|| format!("no part '{name}'; `list` names them"))?;
            (part.run)(count.parse().context("COUNT is a number")?)
        }
        _ => bail!("usage: millrace-instructions list | PART COUNT"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part checks for itself that it does what it says.
    #[test]
    fn every_part_runs() {
        for part in PARTS {
            if let Err(error) = (part.run)(3) {
                panic!("{}: {error:#}", part.name);
            }
        }
    }
}
