# The tests of mysql_async, from its crate.
crate=mysql_async version=0.36.2 features=minimal-rust,derive targets=(--lib --test generic)
. "$here/rust-crate.sh"
