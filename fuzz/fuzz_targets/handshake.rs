//! Connection phase packets from anything; what is read comes out the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_protocol::Capabilities;
use millrace_protocol::auth;
use millrace_protocol::handshake::{
    AuthSwitch, ChangeUser, ClientHello, Family, Greeting, ServerAuthPacket,
};
use millrace_protocol::packet::payload;

// The first eight bytes choose the server's capabilities.
fuzz_target!(|data: &[u8]| {
    let Some((head, data)) = data.split_first_chunk::<8>() else {
        return;
    };
    let caps = Capabilities::from_bits_retain(u64::from_le_bytes(*head));
    greeting(data);
    hello(data, caps);
    let _ = ServerAuthPacket::parse(data, caps);
    if let Ok(switch) = AuthSwitch::parse(data) {
        let mut out = Vec::new();
        switch.encode(&mut out, 2);
        assert_eq!(AuthSwitch::parse(&payload(&out)), Ok(switch));
    }
    for family in [Family::MySql, Family::MariaDb] {
        let Ok(change) = ChangeUser::parse(data, caps, family) else {
            continue;
        };
        let is_usual = caps.contains(Capabilities::SECURE_CONNECTION);
        if is_usual && change.collation.is_some() {
            let mut out = Vec::new();
            change.encode(&mut out, caps);
            let again = ChangeUser::parse(&payload(&out)[1..], caps, family);
            assert_eq!(again, Ok(change));
        }
    }
    assert_eq!(auth::verify_native(data, &[1; 20], &[2; 20]), None);
    assert_eq!(auth::verify_sha2(data, &[1; 20], &[2; 32]), None);
    assert!(!auth::verify_ed25519(
        data,
        &[1; 32],
        &auth::ed25519_public(b"secret")
    ));
});

fn greeting(data: &[u8]) {
    let Ok(Ok(greeting)) = Greeting::parse(data) else {
        return;
    };
    let mut out = Vec::new();
    greeting.encode(&mut out, 0);
    assert_eq!(Greeting::parse(&payload(&out)), Ok(Ok(greeting)));
}

fn hello(data: &[u8], caps: Capabilities) {
    for family in [Family::MySql, Family::MariaDb] {
        let Ok(ClientHello::Response(response)) = ClientHello::parse(data, caps, family) else {
            continue;
        };
        let usual = Capabilities::SECURE_CONNECTION | Capabilities::PLUGIN_AUTH;
        if !response.capabilities.contains(usual) || response.plugin.is_none() {
            continue;
        }
        let mut out = Vec::new();
        response.encode(&mut out, 1);
        match ClientHello::parse(&payload(&out), caps, family) {
            Ok(ClientHello::Response(again)) => assert_eq!(again, response),
            other => panic!("our own response: {other:?}"),
        }
    }
}
