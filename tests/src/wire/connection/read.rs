//! Reading of answers.

use super::*;

impl Connection {
    /// Reads a whole reply. A broken connection and a silence are events of the reply.
    pub async fn read_reply(&mut self, expect: Expect) -> Reply {
        let mut reply = Reply::default();
        let outcome = match expect {
            Expect::Nothing => Ok(()),
            Expect::Auth => self.read_auth(&mut reply).await,
            Expect::Prepare => self.read_prepare(&mut reply).await,
            Expect::Columns => self.read_columns(&mut reply).await,
            Expect::Rows => self.read_rows(&mut reply, true).await.map(|_| ()),
            Expect::Results { binary } => self.read_results(&mut reply, binary).await,
            Expect::Single | Expect::Raw => self.read_single(&mut reply, expect).await,
        };
        if let Err(e) = outcome {
            let item = match e.kind() {
                io::ErrorKind::TimedOut => Item::Timeout,
                _ => Item::Closed(e.to_string()),
            };
            reply.events.push(Event {
                seq: 0,
                chunks: 0,
                item,
            });
        }
        reply
    }

    pub(super) async fn packet(&mut self) -> io::Result<Packet> {
        match tokio::time::timeout(self.login.timeout, self.frames.read()).await {
            Ok(packet) => packet,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    pub(super) fn deprecates_eof(&self) -> bool {
        self.capabilities & cap::DEPRECATE_EOF != 0
    }

    /// OK, EOF and error packets; `None` for anything else.
    pub(super) fn plain_item(&self, packet: &Packet) -> Option<Item> {
        let body = &packet.body;
        match body.first()? {
            0x00 => OkPacket::parse(body, self.capabilities).map(Item::Ok),
            0xfe if body.len() < 9 && !(self.deprecates_eof() && body.len() > 5) => {
                let mut r = Reader::new(&body[1..]);
                let warnings = r.u16().unwrap_or(0);
                Some(Item::Eof {
                    warnings,
                    status: r.u16().unwrap_or(0),
                })
            }
            0xfe if self.deprecates_eof() && packet.chunks == 1 => {
                OkPacket::parse(body, self.capabilities).map(Item::Ok)
            }
            0xff if body.len() > 2 && body[1..3] == [0xff, 0xff] => Some(Item::Progress),
            0xff => ErrPacket::parse(body).map(Item::Err),
            _ => None,
        }
    }

    pub(super) async fn read_single(
        &mut self,
        reply: &mut Reply,
        expect: Expect,
    ) -> io::Result<()> {
        let packet = self.packet().await?;
        let item = match expect {
            Expect::Raw if packet.body.first() != Some(&0xff) => None,
            _ => self.plain_item(&packet),
        };
        push(reply, &packet, item);
        Ok(())
    }

    pub(super) async fn read_columns(&mut self, reply: &mut Reply) -> io::Result<()> {
        loop {
            let packet = self.packet().await?;
            if matches!(packet.body.first(), Some(0xfe | 0xff)) && packet.chunks == 1 {
                let item = self.plain_item(&packet);
                push(reply, &packet, item);
                return Ok(());
            }
            let item =
                Column::parse(&packet.body, self.capabilities).map(|c| Item::Column(Box::new(c)));
            push(reply, &packet, item);
        }
    }

    pub(super) async fn read_definitions(
        &mut self,
        reply: &mut Reply,
        count: u64,
        eof: bool,
    ) -> io::Result<()> {
        for _ in 0..count {
            let packet = self.packet().await?;
            let item =
                Column::parse(&packet.body, self.capabilities).map(|c| Item::Column(Box::new(c)));
            push(reply, &packet, item);
        }
        if eof && !self.deprecates_eof() {
            let packet = self.packet().await?;
            let item = self.plain_item(&packet);
            push(reply, &packet, item);
        }
        Ok(())
    }

    pub(super) async fn read_prepare(&mut self, reply: &mut Reply) -> io::Result<()> {
        let packet = self.packet().await?;
        if packet.body.first() == Some(&0xff) {
            let item = self.plain_item(&packet);
            push(reply, &packet, item);
            return Ok(());
        }
        let mut r = Reader::new(&packet.body);
        let fields = (|| {
            r.u8()?;
            let (id, columns, params) = (r.u32()?, r.u16()?, r.u16()?);
            r.u8()?;
            Some((id, columns, params, r.u16().unwrap_or(0)))
        })();
        let (id, columns, params, warnings) =
            fields.ok_or_else(|| protocol_error("short prepare reply"))?;
        push(
            reply,
            &packet,
            Some(Item::PrepareOk {
                id,
                columns,
                params,
                warnings,
            }),
        );
        self.read_definitions(reply, u64::from(params), params > 0)
            .await?;
        self.read_definitions(reply, u64::from(columns), columns > 0)
            .await
    }

    pub(super) async fn read_results(&mut self, reply: &mut Reply, binary: bool) -> io::Result<()> {
        while self.read_result(reply, binary).await? & status::MORE_RESULTS != 0 {}
        Ok(())
    }

    /// Reads one result and returns the status flags that it ended with.
    pub(super) async fn read_result(&mut self, reply: &mut Reply, binary: bool) -> io::Result<u16> {
        let packet = self.packet().await?;
        match packet.body.first() {
            Some(0x00 | 0xfe | 0xff) => {
                let item = self.plain_item(&packet);
                push(reply, &packet, item);
                if matches!(
                    reply.events.last(),
                    Some(Event {
                        item: Item::Progress,
                        ..
                    })
                ) {
                    return Ok(status::MORE_RESULTS);
                }
                return Ok(self.last_status(reply));
            }
            Some(0xfb) => {
                push(
                    reply,
                    &packet,
                    Some(Item::LocalInfile(packet.body[1..].to_vec())),
                );
                self.send_infile().await?;
                let packet = self.packet().await?;
                let item = self.plain_item(&packet);
                push(reply, &packet, item);
                return Ok(self.last_status(reply));
            }
            _ => {}
        }
        let (count, metadata) = self.column_count(&packet)?;
        push(reply, &packet, Some(Item::ColumnCount { count, metadata }));
        self.read_definitions(reply, if metadata { count } else { 0 }, true)
            .await?;
        // A routine's own cursors set the flag as well.
        if self.wants_cursor && self.last_status(reply) & status::CURSOR_EXISTS != 0 {
            return Ok(self.last_status(reply) & !status::MORE_RESULTS);
        }
        self.read_rows(reply, binary).await
    }

    pub(super) fn column_count(&self, packet: &Packet) -> io::Result<(u64, bool)> {
        let mut r = Reader::new(&packet.body);
        let count = r
            .lenenc()
            .ok_or_else(|| protocol_error("bad column count"))?;
        let cached = self.capabilities & cap::MARIADB_CACHE_METADATA != 0;
        let metadata = !cached || r.u8() != Some(0);
        Ok((count, metadata))
    }

    /// The status of the reply's last packet; 0 unless that is an OK or EOF.
    pub(super) fn last_status(&self, reply: &Reply) -> u16 {
        match reply.events.last().map(|e| &e.item) {
            Some(Item::Ok(ok)) => ok.status,
            Some(Item::Eof { status, .. }) => *status,
            _ => 0,
        }
    }

    pub(super) async fn read_rows(&mut self, reply: &mut Reply, binary: bool) -> io::Result<u16> {
        loop {
            let packet = self.packet().await?;
            let short = packet.chunks == 1 && (self.deprecates_eof() || packet.body.len() < 9);
            let first = packet.body.first().copied();
            if first == Some(0xff) || (first == Some(0xfe) && short) {
                let item = self.plain_item(&packet);
                push(reply, &packet, item);
                return Ok(self.last_status(reply));
            }
            let item = if binary {
                Some(Item::BinaryRow(packet.body.clone()))
            } else {
                text_row(&packet.body).map(Item::TextRow)
            };
            push(reply, &packet, item);
        }
    }

    pub(super) async fn send_infile(&mut self) -> io::Result<()> {
        for piece in self.infile.clone() {
            if !piece.is_empty() {
                self.frames.write(&piece).await?;
            }
        }
        self.frames.write(&[]).await
    }

    pub(super) async fn read_auth(&mut self, reply: &mut Reply) -> io::Result<()> {
        let mut scramble = self.greeting.scramble.clone();
        let password = self.login.password.clone().into_bytes();
        let mut made_up = false;
        loop {
            let packet = self.packet().await?;
            let answer = match packet.body.split_first() {
                Some((0x00 | 0xff, _)) => {
                    let item = self.plain_item(&packet);
                    push(reply, &packet, item);
                    return Ok(());
                }
                Some((0xfe, rest)) => {
                    let mut r = Reader::new(rest);
                    let name = r
                        .null_terminated()
                        .ok_or_else(|| protocol_error("bad auth switch"))?;
                    let plugin = String::from_utf8_lossy(name).into_owned();
                    made_up = auth::is_made_up(&plugin);
                    let rest = r.rest();
                    scramble = match plugin.as_str() {
                        // 32 bytes of any value, the last one included.
                        "client_ed25519" => rest.get(..32).unwrap_or(rest),
                        _ => rest.strip_suffix(&[0]).unwrap_or(rest),
                    }
                    .to_vec();
                    self.greeting.scramble.clone_from(&scramble);
                    Some(auth::first_answer(
                        &plugin,
                        &password,
                        &scramble,
                        self.secure(&plugin),
                    ))
                }
                Some((0x01, challenge)) if made_up => Some([&password, challenge].concat()),
                Some((0x01, [3])) => None,
                Some((0x01, [4])) if self.secure("caching_sha2_password") => {
                    Some(auth::with_nul(&password))
                }
                Some((0x01, [4])) if self.login.server_key.is_some() => {
                    let key = self.login.server_key.clone().unwrap_or_default();
                    Some(auth::rsa(&password, &scramble, &key)?)
                }
                Some((0x01, [4])) if !self.login.shows_password => {
                    return Err(protocol_error("this client does not show its password"));
                }
                Some((0x01, [4])) => Some(vec![2]),
                Some((0x01, pem)) => Some(auth::rsa(&password, &scramble, pem)?),
                _ => return Err(protocol_error("unexpected packet in authentication")),
            };
            if let Some(answer) = answer {
                self.frames.write(&answer).await?;
            }
        }
    }
}
