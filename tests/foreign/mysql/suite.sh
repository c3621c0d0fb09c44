# The tests of mysql, the blocking client for Rust, from its crate.
crate=mysql version=26.0.1 features=default-rust targets=(--lib)
. "$here/rust-crate.sh"
# It dials an address beyond this machine.
left_out=(--skip should_handle_tcp_connect_timeout)
