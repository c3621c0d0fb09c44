//! Follows the binary logs of real servers, as a replica does: the commands that begin the stream, what comes, and where it
//! begins again.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a test that needs servers"
)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use millrace_protocol::Capabilities;
use millrace_protocol::binlog::command::{self, dump_flags};
use millrace_protocol::binlog::gtid::SetEncoder;
use millrace_protocol::binlog::rows::Value;
use millrace_protocol::binlog::table::Layout;
use millrace_protocol::binlog::{Event, Format, Header, events};
use millrace_protocol::command::encode_query;
use millrace_protocol::handshake::{Greeting, HandshakeResponse};
use millrace_protocol::packet::{payload, whole};
use millrace_protocol::resultset::{Reply, parse_text_rows};
use millrace_sandbox::{Cluster, ClusterSpec, Family, skip_unless};

const HEARTBEAT: Duration = Duration::from_millis(300);
const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

struct Connection {
    stream: TcpStream,
    buf: Vec<u8>,
    caps: Capabilities,
}

impl Connection {
    fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let caps = Capabilities::PROTOCOL_41
            | Capabilities::SECURE_CONNECTION
            | Capabilities::PLUGIN_AUTH
            | Capabilities::LONG_PASSWORD;
        let mut this = Self {
            stream,
            buf: Vec::new(),
            caps,
        };
        let greeting = Greeting::parse(&this.packet()).unwrap().unwrap();
        let response = HandshakeResponse {
            capabilities: caps & greeting.capabilities | Capabilities::LONG_PASSWORD,
            max_packet: 1 << 24,
            collation: 45,
            user: b"follower".to_vec(),
            plugin: Some(greeting.auth_plugin.into_bytes()),
            ..HandshakeResponse::default()
        };
        let mut out = Vec::new();
        response.encode(&mut out, 1);
        this.send(&out);
        let answer = this.packet();
        assert_eq!(answer[0], 0, "{}", String::from_utf8_lossy(&answer));
        this
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn packet(&mut self) -> Vec<u8> {
        loop {
            if let Some(len) = whole(&self.buf) {
                let packet = payload(&self.buf[..len]).into_owned();
                self.buf.drain(..len);
                return packet;
            }
            self.more();
        }
    }

    fn more(&mut self) {
        let mut more = [0; 65536];
        let read = self.stream.read(&mut more).unwrap();
        assert!(read > 0, "the server hung up");
        self.buf.extend_from_slice(&more[..read]);
    }

    /// The first column of all rows, joined.
    fn ask(&mut self, text: &str) -> String {
        let mut out = Vec::new();
        encode_query(&mut out, text.as_bytes(), self.caps);
        self.send(&out);
        loop {
            match parse_text_rows(&self.buf, self.caps) {
                Ok((reply, used)) => {
                    self.buf.drain(..used);
                    return match reply {
                        Reply::Err { message, .. } => {
                            panic!("{text}: {}", String::from_utf8_lossy(&message))
                        }
                        Reply::Ok { .. } => String::new(),
                        Reply::Rows(rows) => rows
                            .rows
                            .iter()
                            .filter_map(|row| row.first()?.as_deref())
                            .map(|value| String::from_utf8_lossy(value).into_owned())
                            .collect(),
                    };
                }
                Err(_) => self.more(),
            }
        }
    }

    fn ok(&mut self, packet: &[u8]) {
        self.send(packet);
        let answer = self.packet();
        assert_eq!(answer[0], 0, "{}", String::from_utf8_lossy(&answer));
    }
}

/// What a stream has brought so far.
struct Stream {
    connection: Connection,
    format: Format,
    layout: Layout,
    gtids: Vec<String>,
    /// First columns of rows.
    rows: Vec<i64>,
    heartbeats: u32,
}

impl Stream {
    fn begin(family: Family, port: u16, executed: &str) -> Self {
        let mut connection = Connection::open(port);
        let mut out = Vec::new();
        match family {
            Family::MySql => connection.ask(&command::mysql_settings(HEARTBEAT, UUID)),
            Family::MariaDb => connection.ask(&command::mariadb_settings(HEARTBEAT, executed)),
        };
        let checksum = connection.ask("SELECT @@global.binlog_checksum") == "CRC32";
        command::encode_register(&mut out, 4711, "a follower", 0);
        connection.ok(&out);
        out.clear();
        match family {
            Family::MySql => {
                let executed = encoded(executed);
                command::encode_dump_gtid(&mut out, 4711, dump_flags::HEARTBEAT_V2, &executed);
            }
            Family::MariaDb => {
                command::encode_dump(&mut out, 4711, 0, b"", 4);
            }
        }
        connection.send(&out);
        Self {
            connection,
            format: Format::new(checksum),
            layout: Layout::default(),
            gtids: Vec::new(),
            rows: Vec::new(),
            heartbeats: 0,
        }
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done(self) {
            assert!(
                Instant::now() < deadline,
                "{what}: {:?}, {:?}",
                self.gtids,
                self.rows
            );
            let packet = self.connection.packet();
            assert_eq!(packet[0], 0, "{}", String::from_utf8_lossy(&packet));
            let mut format = self.format.clone();
            let (header, event) = format.read(&packet[1..]).unwrap();
            self.format = format;
            self.event(&header, event);
        }
    }

    fn event(&mut self, header: &Header, event: Event<'_>) {
        let mut buf = Vec::new();
        match event {
            Event::Gtid(gtid) => {
                let tag = String::from_utf8_lossy(gtid.tag).into_owned();
                self.gtids.push(format!("{tag}:{}", gtid.number));
            }
            Event::MariaDbGtid(gtid) => {
                let text = format!("{}-{}-{}", gtid.domain, header.server_id, gtid.sequence);
                self.gtids.push(text);
            }
            Event::TableMap(map) => self.layout.read(&map).unwrap(),
            Event::Rows(rows) => {
                let data = rows.data.plain(&mut buf, 1 << 20).unwrap();
                let mut images = rows.images(&self.layout, data).unwrap();
                let mut value = [Value::Absent];
                while images.next(&[0], &mut value).unwrap().is_some() {
                    if let Value::Int(value) = value[0] {
                        self.rows.push(value.signed());
                    }
                }
            }
            Event::Payload(payload) => {
                for event in events(payload.plain(&mut buf, 1 << 20).unwrap()) {
                    let (header, event) = self.format.read_inner(event.unwrap()).unwrap();
                    self.event(&header, event);
                }
            }
            Event::Heartbeat { file, position } => {
                assert!(!file.is_empty() && position > 0);
                self.heartbeats += 1;
            }
            Event::Unknown(_) | Event::Ignorable(_) => panic!("{header:?}"),
            _ => {}
        }
    }
}

/// MySQL's set, as the command takes it.
fn encoded(text: &str) -> Vec<u8> {
    let mut encoder = SetEncoder::default();
    for source in text
        .split(',')
        .map(str::trim)
        .filter(|source| !source.is_empty())
    {
        let (uuid, rest) = source.split_once(':').unwrap();
        let digits: Vec<u8> = uuid.replace('-', "").into_bytes();
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        }
        let (mut tag, mut intervals) = ("", Vec::new());
        for part in rest.split(':') {
            if part.starts_with(|c: char| c.is_ascii_digit()) {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                intervals.push((first.parse().unwrap(), last.parse().unwrap()));
            } else {
                if !intervals.is_empty() {
                    encoder.source(id, tag.as_bytes(), std::mem::take(&mut intervals));
                }
                tag = part;
            }
        }
        encoder.source(id, tag.as_bytes(), intervals);
    }
    encoder.encode()
}

async fn the_stream_of(family: Family) {
    let spec = ClusterSpec {
        replicas: 0,
        ..ClusterSpec::new(family)
    };
    let cluster = Cluster::up(spec).await.unwrap();
    let primary = cluster.primary();
    let mut control = cluster.control(&primary.name).await.unwrap();
    control
        .run("CREATE USER follower@'%' IDENTIFIED BY ''")
        .await
        .unwrap();
    control
        .run("GRANT ALL ON *.* TO follower@'%'")
        .await
        .unwrap();
    control.close().await;
    follow(family, primary.port);
    cluster.down().await.unwrap();
}

fn follow(family: Family, port: u16) {
    let mut client = Connection::open(port);
    let position = match family {
        Family::MySql => "SELECT @@gtid_executed",
        Family::MariaDb => "SELECT @@gtid_binlog_pos",
    };
    client.ask("CREATE DATABASE d");
    client.ask("CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(20))");
    client.ask("INSERT INTO d.t VALUES (1, 'before')");
    let begun = client.ask(position);

    let mut stream = Stream::begin(family, port, &begun);
    client.ask("INSERT INTO d.t VALUES (-5, 'new'), (6, 'new')");
    stream.until("rows", |stream| stream.rows.len() == 2);
    assert_eq!(stream.rows, [-5, 6]);
    assert_eq!(
        stream.gtids.len(),
        1,
        "what was before does not come: {:?}",
        stream.gtids
    );
    stream.until("heartbeats", |stream| stream.heartbeats >= 2);
    let listed = match family {
        Family::MySql => client.ask("SHOW REPLICAS"),
        Family::MariaDb => client.ask("SHOW SLAVE HOSTS"),
    };
    assert!(listed.contains("4711"), "{listed}");

    // What the families have of their own, and a file that ends.
    match family {
        Family::MySql => {
            client.ask("SET SESSION binlog_transaction_compression=1");
            client.ask("SET GTID_NEXT='AUTOMATIC:tag'");
        }
        Family::MariaDb => {
            client.ask("SET GLOBAL log_bin_compress=1");
            client.ask("SET SESSION gtid_domain_id=7");
        }
    }
    client.ask("FLUSH BINARY LOGS");
    client.ask(&format!("INSERT INTO d.t VALUES (7, '{}')", "x".repeat(20)));
    let middle = client.ask(position);
    client.ask("UPDATE d.t SET id = 8 WHERE id = 7");
    stream.until("all rows", |stream| stream.rows.len() == 5);
    assert_eq!(stream.rows, [-5, 6, 7, 7, 8]);

    // Another begins in the middle, and the older one of the same identity ends.
    let mut stream = Stream::begin(family, port, &middle);
    stream.until("the last row", |stream| stream.rows.len() == 2);
    assert_eq!((&stream.rows[..], stream.gtids.len()), (&[7, 8][..], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql() {
    if skip_unless(Family::MySql, "mysql") {
        the_stream_of(Family::MySql).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb() {
    if skip_unless(Family::MariaDb, "mariadb") {
        the_stream_of(Family::MariaDb).await;
    }
}
