//! A client that sends a script's commands, each when the last is answered. Like the servers it has
//! no thread of its own.

use std::io::Write;
use std::os::unix::net::UnixStream;

use anyhow::{bail, ensure};
use millrace_protocol::command::{COM_QUIT, encode_command};
use millrace_protocol::handshake::{Greeting, HandshakeResponse};
use millrace_protocol::response::{Event, Expect, Tracker};
use millrace_protocol::{Capabilities, packet};

use crate::server::{CLIENT, COLLATION, receive};

/// The default database.
pub(crate) const DATABASE: &[u8] = b"sbtest";

/// The command with a number, and how its answer is read. Gets the answer to the one before.
pub(crate) type Script = dyn FnMut(u32, &[u8]) -> (Vec<u8>, Expect) + Send;

pub(crate) struct Client {
    socket: UnixStream,
    /// Of the answer under way.
    input: Vec<u8>,
    greeted: bool,
    logged_in: bool,
    playing: Option<Box<Script>>,
    expect: Expect,
    next: u32,
    end: u32,
    answered: bool,
}

impl Client {
    pub(crate) fn new(socket: UnixStream) -> anyhow::Result<Client> {
        socket.set_nonblocking(true)?;
        Ok(Client {
            socket,
            input: Vec::new(),
            greeted: false,
            logged_in: false,
            playing: None,
            expect: Expect::Simple,
            next: 0,
            end: 0,
            answered: false,
        })
    }

    /// Goes on with the login; true when it is done.
    pub(crate) fn log_in(&mut self) -> anyhow::Result<bool> {
        self.receive()?;
        if packet::whole(&self.input) != Some(self.input.len()) {
            return Ok(false);
        }
        let payload = packet::payload(&self.input).into_owned();
        self.input.clear();
        if self.greeted {
            ensure!(payload.first() == Some(&0), "the login was refused");
            self.logged_in = true;
            return Ok(true);
        }
        ensure!(Greeting::parse(&payload)?.is_ok(), "refused");
        let hello = HandshakeResponse {
            capabilities: CLIENT.union(Capabilities::CONNECT_WITH_DB),
            max_packet: 1 << 24,
            collation: COLLATION,
            user: b"app".into(),
            database: Some(DATABASE.into()),
            plugin: Some(b"caching_sha2_password".into()),
            ..HandshakeResponse::default()
        };
        let mut out = Vec::new();
        hello.encode(&mut out, 1);
        self.socket.write_all(&out)?;
        self.greeted = true;
        Ok(false)
    }

    /// Sends the first of `count` commands, once it is logged in.
    pub(crate) fn begin(
        &mut self,
        script: Box<Script>,
        first: u32,
        count: u32,
    ) -> anyhow::Result<()> {
        self.playing = Some(script);
        (self.next, self.end) = (first, first + count);
        if self.logged_in {
            self.send_next()?;
        }
        Ok(())
    }

    /// Says that it leaves.
    pub(crate) fn quit(mut self) -> anyhow::Result<()> {
        let mut command = Vec::new();
        encode_command(&mut command, COM_QUIT, b"");
        Ok(self.socket.write_all(&command)?)
    }

    /// The script, for more of it.
    pub(crate) fn end(&mut self) -> Option<Box<Script>> {
        self.playing.take()
    }

    /// Reads what has come, and sends the next command when the answer is whole; false where there
    /// was nothing.
    pub(crate) fn go_on(&mut self) -> anyhow::Result<bool> {
        if !self.logged_in {
            let greeted = self.greeted;
            if self.log_in()? {
                self.send_next()?;
            }
            return Ok(self.logged_in || self.greeted != greeted);
        }
        let before = self.input.len();
        self.receive()?;
        let any = self.input.len() > before;
        self.answered = self.answered || (any && is_whole(&self.input, self.expect)?);
        if self.answered && self.next < self.end {
            self.send_next()?;
        }
        Ok(any)
    }

    /// All commands are answered.
    pub(crate) fn is_done(&self) -> bool {
        self.answered && self.next == self.end
    }

    fn send_next(&mut self) -> anyhow::Result<()> {
        if let Some(script) = &mut self.playing {
            let (command, expect) = script(self.next, &self.input);
            self.expect = expect;
            self.next += 1;
            self.answered = false;
            self.input.clear();
            self.socket.write_all(&command)?;
        }
        Ok(())
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        ensure!(receive(&mut self.socket, &mut self.input)?, "disconnected");
        Ok(())
    }
}

fn is_whole(answer: &[u8], expect: Expect) -> anyhow::Result<bool> {
    let mut tracker = Tracker::new(expect, CLIENT);
    let mut at = 0;
    loop {
        match tracker.next(&answer[at..]) {
            Event::Pass(len)
            | Event::Ok { len, .. }
            | Event::Eof { len, .. }
            | Event::PrepareOk { len, .. } => at += len,
            Event::NeedMore => return Ok(false),
            Event::Done => return Ok(at == answer.len()),
            event => bail!("the answer has {event:?}"),
        }
    }
}
