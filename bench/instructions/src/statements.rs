//! Whole statements: a real session on a real worker, from the client's bytes to the client's
//! answer.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::{Context, ensure};
use millrace_metrics::{Metrics, PerServer};
use millrace_protocol::command::{COM_STMT_PREPARE, encode_command, encode_query};
use millrace_protocol::packet;
use millrace_protocol::response::Expect;
use millrace_session::Worker;
use millrace_worker::{
    Accounts, FailoverOptions, Held, ListenerContext, Message, Registry, ServerKey,
    SessionSettings, Shared, Shown, Written,
};
use tokio::sync::mpsc::{self, UnboundedSender};

use crate::client::Script;
use crate::server::{CLIENT, execute, point_select, update};
use crate::stage::{Stage, WARM_UP, plain_network};

/// A worker with one client, logged in, in front of the servers.
fn stage() -> anyhow::Result<Stage> {
    let (mut stage, mailbox) = empty_stage()?;
    let client = arrive(&mailbox)?;
    stage.log_in(client)?;
    Ok(stage)
}

/// A client that has just connected; the worker gets the other end.
fn arrive(mailbox: &UnboundedSender<Message>) -> anyhow::Result<UnixStream> {
    let (client, accepted) = UnixStream::pair()?;
    accepted.set_nonblocking(true)?;
    let message = Message::UnixClient {
        plain: accepted,
        entry: ListenerContext::default(),
    };
    ensure!(mailbox.send(message).is_ok(), "the worker is gone");
    Ok(client)
}

/// A worker in front of the servers, and where its clients come in.
fn empty_stage() -> anyhow::Result<(Stage, UnboundedSender<Message>)> {
    let mut stage = Stage::new()?;
    let monitor = stage.monitor()?;
    let addresses = stage.addresses();
    let names = addresses.iter().map(ToString::to_string).collect();
    let (mailbox, messages) = mpsc::unbounded_channel();
    let shared = Shared {
        settings: SessionSettings::default(),
        counts: Arc::new(PerServer::new(addresses.len())),
        accounts: Arc::new(Accounts::default()),
        registry: Arc::new(Registry::default()),
        key: Arc::new(ServerKey::generate()?),
        tls: None,
        certificate: Shown::default(),
        network: plain_network()?,
        metrics: Arc::new(Metrics::new(1, names)),
        monitor,
        written: Arc::new(Written::new(1)),
        cache: None,
        held: Arc::new(Held::new(&FailoverOptions::default())),
        mailboxes: Arc::new(vec![mailbox.clone()]),
    };
    let worker = Worker::new(0, shared);
    stage.runtime.spawn_local(worker.run(messages));
    Ok((stage, mailbox))
}

fn query(text: &[u8]) -> (Vec<u8>, Expect) {
    let mut command = Vec::new();
    encode_query(&mut command, text, CLIENT);
    (command, Expect::Query)
}

pub(crate) fn text(count: u32) -> anyhow::Result<()> {
    let script: Box<Script> = Box::new(|at, _| query(&point_select(at)));
    stage()?.play(script, count)
}

pub(crate) fn prepared(count: u32) -> anyhow::Result<()> {
    let mut statement = None;
    let script: Box<Script> = Box::new(move |at, answer| {
        let mut command = Vec::new();
        if at == 0 {
            let text = b"SELECT c FROM sbtest1 WHERE id=?";
            encode_command(&mut command, COM_STMT_PREPARE, text);
            return (command, Expect::Prepare);
        }
        let number = statement.get_or_insert_with(|| prepared_number(answer).unwrap_or(0));
        execute(&mut command, *number, at);
        (command, Expect::Execute)
    });
    stage()?.play(script, count)
}

/// The statement's number, in the answer to its prepare.
fn prepared_number(answer: &[u8]) -> anyhow::Result<u32> {
    let bytes = answer.get(packet::HEADER + 1..).unwrap_or_default();
    let bytes = bytes.first_chunk().context("a short answer to a prepare")?;
    Ok(u32::from_le_bytes(*bytes))
}

pub(crate) fn write_then_read(count: u32) -> anyhow::Result<()> {
    let script: Box<Script> = Box::new(|at, _| {
        query(&match at % 2 {
            0 => update(at),
            _ => point_select(at),
        })
    });
    stage()?.play(script, 2 * count)
}

pub(crate) fn visit(count: u32) -> anyhow::Result<()> {
    let (mut stage, mailbox) = empty_stage()?;
    let mut script: Box<Script> = Box::new(|at, _| query(&point_select(at)));
    for at in 0..WARM_UP + count {
        let client = arrive(&mailbox)?;
        script = stage.visit(client, script, at, at >= WARM_UP)?;
    }
    Ok(())
}
