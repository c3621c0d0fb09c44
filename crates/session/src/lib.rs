//! The client's side: handshake, command loop, relay, session state.
