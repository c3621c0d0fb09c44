//! Logins and compressed answers as real clients and servers exchanged them: the
//! `mariadb` 10.11 and `mysql` 9.7 command lines, with the password `secret`.
#![allow(clippy::unwrap_used, reason = "tests")]

use millrace_protocol::auth::{self, Plugin};
use millrace_protocol::compress::{Algorithm, Decoder};
use millrace_protocol::handshake::{
    AuthSwitch, ChangeUser, ClientHello, Family, Greeting, HandshakeResponse, OldResponse,
    ServerAuthPacket, encode_auth_more, encode_ssl_request,
};
use millrace_protocol::ok::OkPacket;
use millrace_protocol::packet::{payload, whole};
use millrace_protocol::response::{Event, Expect};
use millrace_protocol::{Capabilities, Malformed, Status};

mod support;
use support::{follow, unhex};

const MARIADB_GREETING: &str = "\
    0a352e352e352d31302e31312e31392d4d6172696144422d302b646562313275312d6c6f67002400000065\
    316322795e4b3c00fef7080200ff81150000000000001d0000002c66404a35682e4b6c5f7656006d797371\
    6c5f6e61746976655f70617373776f726400";
const MARIADB_RESPONSE: &str = "\
    84a2bf000000100021000000000000000000000000000000000000001d0000006e001402c49fd8aa1d4387\
    f3c7f26bb205b167d6fb45e26d7973716c5f6e61746976655f70617373776f7264007f035f6f73054c696e\
    75780c5f636c69656e745f6e616d650a6c69626d617269616462045f7069640532353032350f5f636c6965\
    6e745f76657273696f6e06332e332e3230095f706c6174666f726d067838365f36340c70726f6772616d5f\
    6e616d65056d7973716c0c5f7365727665725f686f7374093132372e302e302e31";
const ED25519_SWITCH: &str = "\
    fe636c69656e745f65643235353139009ebf3bc238519d390556e1d49ec8907ed486ab7f14f79e92c8e5cf\
    9dbb1ed787";
const ED25519_SIGNATURE: &str = "\
    fadd17399241a4c6d0f40a0bf0ea4e0cd78780ff3d4ae681f883e803256ea673809e8850067ff3eb3a6fef\
    646e4ad03ddcf552639121ba22b7e6b4f597b2550a";
const MYSQL_GREETING: &str = "\
    0a392e372e342d32002e000000090e33341425465600ffffff0200ffdf1500000000000000000000771e6b\
    55363e15622652271d0063616368696e675f736861325f70617373776f726400";
const MYSQL_RESPONSE: &str = "\
    8da2bf1d00000001ff0000000000000000000000000000000000000000000000630020685f25437d39636a\
    d35d1977119bfe73c824c7819eaf47e26bf17162ef5870e4766563746f72730063616368696e675f736861\
    325f70617373776f72640072045f706964053235333038095f706c6174666f726d067838365f3634035f6f\
    73054c696e75780c5f636c69656e745f6e616d65086c69626d7973716c076f735f7573657204726f6f740f\
    5f636c69656e745f76657273696f6e05392e372e340c70726f6772616d5f6e616d65056d7973716c07";
const MYSQL_LOGGED_IN: &str = "00000002400000000a010807766563746f7273";
const SHA256_SWITCH: &str =
    "fe7368613235365f70617373776f726400721f12755452013b763b6c4f2a6168381910654600";
const ZLIB_ANSWER: &str = "\
    6c000001ef0300789c636460606452676060624e494d636060102c4a2d484d2cd1504a4c4a56d2313630d0\
    64e0f9cf20c0c7c0f09781419e814196818119aa94bd24235521352f05a44006c8ffcb0852d0cfccc0f2a7\
    8519a87d148da2513480089641d9191858ff01b338308f0200f1116d41";
const ZLIB_MARIADB_ANSWER: &str = "\
    72000001f90300789c636260606462d4606060624e494d636060102c4a2d484d2cd1504a4c4a56d2313630\
    d06460e05164e8e16260f8cbc0a0cec020c7c0c00c55cb5e9291aa909a970256210a14f8cb0852c1cac0c0\
    f20f6822433f3303eb9f1666a049a368148da20144b0ac0acc9b6ce0bc0900ebe36d13";
const ZSTD_ANSWER: &str = "\
    73000001ef030028b52ffd60ef024d03007405010000010227000002036465660000001172657065617428\
    22616263222c33303029000cff00100e0000fd00001f00001d0000030774686520656e641c000000fd018f\
    030004fc840361626307000005fe0000020000000500a40501fcea0a012b44594e2e5350";

fn greeting(hex: &str) -> Greeting {
    Greeting::parse(&unhex(hex)).unwrap().unwrap()
}

fn response(hex: &str, server: Capabilities) -> HandshakeResponse {
    match ClientHello::parse(&unhex(hex), server, Family::MySql).unwrap() {
        ClientHello::Response(response) => response,
        other => panic!("{other:?}"),
    }
}

/// The payload of the one packet that `encode` writes.
fn encoded(encode: impl FnOnce(&mut Vec<u8>) -> u8) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    assert_eq!(whole(&out), Some(out.len()));
    payload(&out).into_owned()
}

#[test]
fn a_mariadb_client_logs_in() {
    let greeting = greeting(MARIADB_GREETING);
    assert_eq!(greeting.family(), Family::MariaDb);
    assert_eq!(greeting.thread_id, 36);
    assert_eq!(greeting.auth_plugin, "mysql_native_password");
    assert_eq!(greeting.status, Status::AUTOCOMMIT);
    assert_eq!(greeting.capabilities.extended(), 0x1D);
    assert!(greeting.capabilities.contains(Capabilities::CACHE_METADATA));
    let again = encoded(|out| greeting.encode(out, 0));
    assert_eq!(again, unhex(MARIADB_GREETING));

    let response = response(MARIADB_RESPONSE, greeting.capabilities);
    assert_eq!(response.user, b"n");
    assert_eq!(
        response.plugin.as_deref(),
        Some(&b"mysql_native_password"[..])
    );
    assert_eq!(response.attributes.iter().count(), 7);
    assert!(response.capabilities.contains(Capabilities::PROGRESS));
    let again = encoded(|out| response.encode(out, 1));
    assert_eq!(again, unhex(MARIADB_RESPONSE));

    let expected = auth::scramble_native(b"secret", &greeting.nonce);
    assert_eq!(response.auth_response, expected);
    let stored = auth::native_double_hash(b"secret");
    let learnt = auth::verify_native(&response.auth_response, &greeting.nonce, &stored).unwrap();
    let elsewhere = [7; 20];
    assert_eq!(
        auth::native_from_stage1(&learnt, &elsewhere),
        auth::scramble_native(b"secret", &elsewhere),
    );
    let wrong = auth::native_double_hash(b"Secret");
    assert_eq!(
        auth::verify_native(&expected, &greeting.nonce, &wrong),
        None
    );
    assert_eq!(auth::verify_native(b"", &greeting.nonce, &stored), None);
}

#[test]
fn a_mysql_client_logs_in() {
    let greeting = greeting(MYSQL_GREETING);
    assert_eq!(greeting.family(), Family::MySql);
    assert_eq!(greeting.server_version, "9.7.4-2");
    assert_eq!(greeting.capabilities.extended(), 0);
    let again = encoded(|out| greeting.encode(out, 0));
    assert_eq!(again, unhex(MYSQL_GREETING));

    let response = response(MYSQL_RESPONSE, greeting.capabilities);
    assert_eq!(response.database.as_deref(), Some(&b"vectors"[..]));
    assert_eq!(response.zstd_level, 7);
    let again = encoded(|out| response.encode(out, 1));
    assert_eq!(again, unhex(MYSQL_RESPONSE));

    let expected = auth::scramble_sha2(b"secret", &greeting.nonce);
    assert_eq!(response.auth_response, expected);
    let cached = auth::sha2_double_hash(b"secret");
    let learnt = auth::verify_sha2(&expected, &greeting.nonce, &cached).unwrap();
    let elsewhere = [7; 20];
    assert_eq!(
        auth::sha2_from_stage1(&learnt, &elsewhere),
        auth::scramble_sha2(b"secret", &elsewhere),
    );
    assert_eq!(auth::verify_sha2(&expected, &elsewhere, &cached), None);

    let caps = response.capabilities & greeting.capabilities;
    let logged_in = unhex(MYSQL_LOGGED_IN);
    assert_eq!(
        ServerAuthPacket::parse(&logged_in, caps),
        Ok(ServerAuthPacket::Ok)
    );
    let ok = OkPacket::parse(&logged_in, caps).unwrap();
    assert_eq!(ok.changes().count(), 1);
}

#[test]
fn ed25519_signs_as_mariadb_does() {
    let switch = AuthSwitch::parse(&unhex(ED25519_SWITCH)).unwrap();
    assert_eq!(Plugin::from_name(&switch.plugin), Plugin::Ed25519);
    let nonce: [u8; 32] = switch.nonce[..].try_into().unwrap();
    let signature = auth::sign_ed25519(b"secret", &nonce);
    assert_eq!(signature.to_vec(), unhex(ED25519_SIGNATURE));
    let again = encoded(|out| switch.encode(out, 2));
    assert_eq!(again, unhex(ED25519_SWITCH));

    // ZIgUREUg5PVgQ6LskhXmO+eZLS0nC8be6HPjYWR4YJY in mysql.global_priv
    let stored = unhex("648814444520e4f56043a2ec9215e63be7992d2d270bc6dee873e36164786096");
    let public = auth::ed25519_public(b"secret");
    assert_eq!(public.to_vec(), stored);
    assert!(auth::verify_ed25519(&signature, &nonce, &public));
    assert!(!auth::verify_ed25519(&signature, &[0; 32], &public));
    assert!(!auth::verify_ed25519(&signature[1..], &nonce, &public));
}

#[test]
fn a_switch_loses_its_final_zero_and_gets_it_back() {
    let switch = AuthSwitch::parse(&unhex(SHA256_SWITCH)).unwrap();
    assert_eq!(Plugin::from_name(&switch.plugin), Plugin::Sha256Password);
    assert_eq!(switch.nonce.len(), 20);
    let again = encoded(|out| switch.encode(out, 2));
    assert_eq!(again, unhex(SHA256_SWITCH));
    assert_eq!(
        AuthSwitch::parse(&[0xFE]).unwrap().plugin,
        "mysql_old_password"
    );
}

#[test]
fn authentication_packets_are_told_apart() {
    let caps = Capabilities::PLUGIN_AUTH;
    let more = encoded(|out| encode_auth_more(out, 2, &[auth::FULL_AUTH]));
    assert_eq!(more, [1, 4]);
    let parse = |payload| ServerAuthPacket::parse(payload, caps);
    assert_eq!(parse(&[1, 4]), Ok(ServerAuthPacket::More(&[4])));
    assert_eq!(
        parse(b"\x02Password: "),
        Ok(ServerAuthPacket::More(b"\x02Password: "))
    );
    assert!(
        matches!(parse(b"\xff\x15\x04#28000no"), Ok(ServerAuthPacket::Err(err)) if err.code == 1045)
    );
    assert!(matches!(
        parse(b"\xfedialog\0x"),
        Ok(ServerAuthPacket::Switch(_))
    ));
    assert_eq!(parse(b""), Err(Malformed));
    let factor = ServerAuthPacket::parse(b"\x02dialog\0x", caps | Capabilities::MULTI_FACTOR);
    assert!(matches!(factor, Ok(ServerAuthPacket::NextFactor(_))));
}

#[test]
fn a_refusal_can_stand_in_for_the_greeting() {
    let refusal = b"\xff\x10\x04Too many connections";
    let err = Greeting::parse(refusal).unwrap().unwrap_err();
    assert_eq!((err.code, &err.state), (1040, b"HY000"));
    assert_eq!(err.message, b"Too many connections");
    assert_eq!(encoded(|out| err.encode_before_greeting(out)), refusal);
    let refusal = b"\xff\x10\x04#08004Too many connections";
    let err = Greeting::parse(refusal).unwrap().unwrap_err();
    assert_eq!((err.code, &err.state), (1040, b"08004"));
}

#[test]
fn tls_requests_and_old_clients_are_told_apart() {
    let greeting = greeting(MYSQL_GREETING);
    let caps = Capabilities::PROTOCOL_41 | Capabilities::LONG_PASSWORD;
    let request = encoded(|out| encode_ssl_request(out, 1, caps, 1 << 24, 45));
    assert_eq!(request.len(), 32);
    assert_eq!(
        ClientHello::parse(&request, greeting.capabilities, Family::MySql),
        Ok(ClientHello::SslRequest {
            capabilities: caps | Capabilities::SSL,
            max_packet: 1 << 24,
            collation: 45,
        }),
    );
    let old = b"\x85\x24\0\0\x01root\0";
    assert_eq!(
        ClientHello::parse(old, greeting.capabilities, Family::MariaDb),
        Ok(ClientHello::TooOld)
    );
    let parsed = OldResponse::parse(old).expect("it is whole");
    assert_eq!(
        (&*parsed.user, &*parsed.auth_response),
        (&b"root"[..], &b""[..])
    );
    // As HAProxy's `mysql-check user … pre-41` says it.
    let probe = OldResponse::parse(b"\0\x80\0\0\x01haproxy\0\0").expect("it is whole");
    assert_eq!((&*probe.user, probe.database), (&b"haproxy"[..], None));
    assert!(OldResponse::parse(b"\0\x80\0\0\x01haproxy\0").is_err());
}

#[test]
fn logins_cut_short_are_refused_not_misread() {
    for hex in [MARIADB_GREETING, MYSQL_GREETING] {
        let whole = unhex(hex);
        let name = greeting(hex).auth_plugin.len() + 1;
        for cut in 0..whole.len() - name {
            assert_eq!(Greeting::parse(&whole[..cut]), Err(Malformed), "{cut}");
        }
    }
    let server = greeting(MYSQL_GREETING).capabilities;
    let whole = unhex(MYSQL_RESPONSE);
    for cut in 0..67 {
        for family in [Family::MySql, Family::MariaDb] {
            let hello = ClientHello::parse(&whole[..cut], server, family);
            assert_eq!(hello, Err(Malformed), "{cut}");
        }
    }
}

#[test]
fn a_change_of_user_comes_back() {
    let caps = greeting(MYSQL_GREETING).capabilities;
    let change = ChangeUser {
        user: b"n".to_vec(),
        auth_response: vec![9; 20],
        database: b"vectors".to_vec(),
        collation: Some(255),
        plugin: Some(b"mysql_native_password".to_vec()),
        attributes: [("_os", "Linux")].into_iter().collect(),
    };
    let payload = encoded(|out| change.encode(out, caps));
    assert_eq!(payload[0], 0x11);
    for family in [Family::MySql, Family::MariaDb] {
        let parse = |body, caps| ChangeUser::parse(body, caps, family);
        assert_eq!(parse(&payload[1..], caps), Ok(change.clone()));
        // A client that knows of plugins has to name one.
        assert_eq!(parse(b"n\0\0db\0", caps), Err(Malformed));
        let few = caps - Capabilities::PLUGIN_AUTH - Capabilities::CONNECT_ATTRS;
        let short = parse(b"n\0\0db\0", few).unwrap();
        assert_eq!((short.database, short.collation), (b"db".to_vec(), None));
    }
}

/// What each family makes of packets that no library sends (observed on MySQL 9.7 and MariaDB 10.11).
#[test]
fn odd_responses_are_read_as_the_servers_read_them() {
    let server = greeting(MYSQL_GREETING).capabilities;
    let base = Capabilities::PROTOCOL_41 | Capabilities::LONG_PASSWORD;
    let whole = base | Capabilities::SECURE_CONNECTION | Capabilities::PLUGIN_AUTH;
    let attributes = whole | Capabilities::CONNECT_ATTRS;
    let parse = |flags: Capabilities, rest: &[u8], family| {
        let mut payload = flags.basic().to_le_bytes().to_vec();
        payload.extend_from_slice(&[0; 28]);
        payload.extend_from_slice(rest);
        match ClientHello::parse(&payload, server, family) {
            Ok(ClientHello::Response(response)) => Ok(response),
            Ok(other) => panic!("{other:?}"),
            Err(malformed) => Err(malformed),
        }
    };
    for family in [Family::MySql, Family::MariaDb] {
        let has = |flags, rest: &[u8]| parse(flags, rest, family).is_ok();
        assert!(has(attributes, b"u\0\0p\0\0"));
        assert!(!has(attributes, b"u\0\0p\0"), "attributes are announced");
        assert!(!has(attributes, b"u\0\0p\0\x02a"), "they are cut short");
        assert!(has(attributes, b"u\0\0p\0\x02\x07a"), "nobody reads them");
        assert!(!has(whole, b"u\0\x02a"), "the proof is cut short");
        let database = whole | Capabilities::CONNECT_WITH_DB;
        let open_end = parse(database, b"u\0\0db", family);
        assert_eq!(open_end.is_ok(), family == Family::MariaDb);
    }
    // Without the flag the proof ends with a zero for one of them, and has its length for the other.
    let short = base | Capabilities::PLUGIN_AUTH_LENENC;
    let proof = |family| parse(short, b"u\0\x01ab\0", family).unwrap().auth_response;
    assert_eq!(proof(Family::MySql), b"a");
    assert_eq!(proof(Family::MariaDb), b"\x01ab");
}

#[test]
fn the_password_goes_masked_into_rsa() {
    let mut buf = *b"secret\0";
    auth::xor_password(&mut buf, b"abc");
    assert_eq!(&buf, b"\x12\x07\x00\x13\x07\x17a");
    auth::xor_password(&mut buf, b"abc");
    assert_eq!(&buf, b"secret\0");
    auth::xor_password(&mut buf, b"");
}

#[test]
fn compressed_answers_of_real_servers_are_read() {
    let caps = Capabilities::PROTOCOL_41;
    let eof_free = caps | Capabilities::DEPRECATE_EOF;
    for (algorithm, hex, caps) in [
        (Algorithm::Zlib, ZLIB_ANSWER, eof_free),
        (
            Algorithm::Zlib,
            ZLIB_MARIADB_ANSWER,
            caps | Capabilities::CACHE_METADATA,
        ),
        (Algorithm::Zstd(3), ZSTD_ANSWER, eof_free),
    ] {
        let mut decoder = Decoder::new(algorithm);
        let mut plain = Vec::new();
        let wire = unhex(hex);
        assert_eq!(decoder.feed(&wire, &mut plain), Ok(wire.len()));
        assert_eq!(decoder.next_seq(), 2);
        let (events, left) = follow(Expect::Query, caps, &[&plain]);
        assert_eq!((events.last(), left), (Some(&Event::Done), 0));
        assert!(plain.windows(7).any(|window| window == b"the end"));
    }
}

#[test]
fn a_password_does_not_show_in_debug_output() {
    let login = HandshakeResponse {
        auth_response: b"hunter2".to_vec(),
        ..HandshakeResponse::default()
    };
    let change = ChangeUser {
        auth_response: b"hunter2".to_vec(),
        ..ChangeUser::default()
    };
    for shown in [format!("{login:?}"), format!("{change:?}")] {
        assert!(
            !shown.contains("hunter2") && !shown.contains("104"),
            "{shown}"
        );
    }
}
