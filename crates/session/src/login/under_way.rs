//! A login under way at a server, between a client's packets and the server's.

use std::time::Duration;

use millrace_backend::connect::LOGIN_PACKET_MAX;
use millrace_backend::packet_io::{read_packet, write_packet};
use millrace_backend::stream::Stream;
use millrace_protocol::Capabilities;
use millrace_protocol::auth::{self, Plugin};
use millrace_protocol::handshake::ServerAuthPacket;

/// A login under way at a server. One that breaks off is counted against Millrace's address, which the
/// server shuts out after max_connect_errors of them: so it is brought to its end, whoever has left.
pub(super) struct UnderWay {
    pub(super) server: Stream,
    ahead: Vec<u8>,
    capabilities: Capabilities,
    /// The number of the packet that the server waits for an answer to.
    asked: Option<u8>,
    pub(super) plugin: Plugin,
    /// What it waits for an answer to.
    stage: Stage,
    pub(super) ended: bool,
}

/// How far a plugin is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It was just named.
    Named,
    /// caching_sha2_password asks for the password itself.
    Password,
    /// It has asked for more.
    More,
}

/// So long may a server take to refuse a login that its client has left.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

impl UnderWay {
    pub(super) fn new(server: Stream, ahead: Vec<u8>, capabilities: Capabilities) -> UnderWay {
        UnderWay {
            server,
            ahead,
            capabilities,
            asked: None,
            plugin: Plugin::NativePassword,
            stage: Stage::Named,
            ended: false,
        }
    }

    pub(super) async fn read(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let read = read_packet(&mut self.server, &mut self.ahead, LOGIN_PACKET_MAX).await;
        match &read {
            Ok((sequence, payload)) => {
                self.asked = Some(*sequence);
                self.stage = Stage::More;
                match ServerAuthPacket::parse(payload, self.capabilities) {
                    Ok(ServerAuthPacket::Switch(asked)) => {
                        (self.plugin, self.stage) =
                            (Plugin::from_name(&asked.plugin), Stage::Named);
                    }
                    Ok(ServerAuthPacket::NextFactor(asked)) => {
                        (self.plugin, self.stage) =
                            (Plugin::from_name(&asked.plugin), Stage::Named);
                    }
                    Ok(ServerAuthPacket::More([auth::FULL_AUTH])) => self.stage = Stage::Password,
                    _ => {}
                }
            }
            Err(_) => self.ended = true,
        }
        read
    }

    pub(super) async fn answer(&mut self, sequence: u8, reply: &[u8]) -> std::io::Result<()> {
        self.asked = None;
        write_packet(&mut self.server, sequence.wrapping_add(1), reply).await
    }

    pub(super) fn take(mut self) -> (Stream, Vec<u8>) {
        let server = std::mem::replace(&mut self.server, Stream::Gone);
        (server, std::mem::take(&mut self.ahead))
    }

    /// Whether the server takes an answer for one of the plugin's, right or wrong. One that it does not is counted against
    /// Millrace's address (observed on both families).
    pub(super) fn is_well_formed(&self, reply: &[u8]) -> bool {
        match (&self.plugin, self.stage) {
            (Plugin::NativePassword, _) => matches!(reply.len(), 0 | 20),
            (Plugin::Ed25519, _) => reply.len() == 64,
            (Plugin::CachingSha2, Stage::Named) => matches!(reply, [] | [0]) || reply.len() == 32,
            (Plugin::CachingSha2 | Plugin::Sha256Password | Plugin::ClearPassword, _) => {
                !reply.is_empty()
            }
            (Plugin::Other(name), Stage::Named) if name == "parsec" => reply.is_empty(),
            (Plugin::Other(name), _) if name == "parsec" => reply.len() == 96,
            _ => true,
        }
    }

    /// Well-formed, and no right answer but to an empty password.
    fn wrong(&self) -> &'static [u8] {
        match (&self.plugin, self.stage) {
            (Plugin::NativePassword, _) => &[],
            (Plugin::Ed25519, _) => &[0; 64],
            (Plugin::Other(name), Stage::Named) if name == "parsec" => &[],
            (Plugin::Other(name), _) if name == "parsec" => &[0; 96],
            _ => &[0],
        }
    }

    /// Answers with what is well-formed and wrong until the server has refused it.
    async fn fail(mut self) -> std::io::Result<()> {
        // It is not begun once more where its time runs out.
        self.ended = true;
        loop {
            if let Some(sequence) = self.asked {
                let wrong = self.wrong();
                self.answer(sequence, wrong).await?;
            }
            let (_, payload) = self.read().await?;
            match ServerAuthPacket::parse(&payload, self.capabilities) {
                // The empty password was the right one.
                Ok(ServerAuthPacket::Ok) => return self.server.send(&[1, 0, 0, 0, 1]).await,
                Ok(ServerAuthPacket::Err(_)) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.ended || matches!(self.server, Stream::Gone) {
            return;
        }
        let mut rest = UnderWay::new(
            std::mem::replace(&mut self.server, Stream::Gone),
            std::mem::take(&mut self.ahead),
            self.capabilities,
        );
        (rest.asked, rest.plugin, rest.stage) = (self.asked, self.plugin.clone(), self.stage);
        tokio::task::spawn_local(tokio::time::timeout(REFUSED_WITHIN, rest.fail()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_answered_for_a_client_is_well_formed() {
        for plugin in [
            "mysql_native_password",
            "client_ed25519",
            "caching_sha2_password",
            "sha256_password",
            "mysql_clear_password",
            "dialog",
            "parsec",
            "another",
        ] {
            for stage in [Stage::Named, Stage::Password, Stage::More] {
                let mut under_way = UnderWay::new(Stream::Gone, Vec::new(), Capabilities::empty());
                (under_way.plugin, under_way.stage) = (Plugin::from_name(plugin), stage);
                assert!(under_way.is_well_formed(under_way.wrong()), "{plugin}");
            }
        }
    }

    #[test]
    fn what_servers_count_is_not_passed_on() {
        let cases: [(&str, Stage, &[u8]); 6] = [
            ("client_ed25519", Stage::Named, &[1]),
            ("client_ed25519", Stage::Named, &[]),
            ("caching_sha2_password", Stage::Password, &[]),
            ("caching_sha2_password", Stage::Named, &[1; 31]),
            ("mysql_native_password", Stage::Named, &[1; 19]),
            ("parsec", Stage::More, &[1; 95]),
        ];
        for (plugin, stage, reply) in cases {
            let mut under_way = UnderWay::new(Stream::Gone, Vec::new(), Capabilities::empty());
            (under_way.plugin, under_way.stage) = (Plugin::from_name(plugin), stage);
            assert!(!under_way.is_well_formed(reply), "{plugin}");
        }
    }
}
