//! When a TCP connection whose peer has gone without a word is given up: keepalive probes and the
//! user time-out of the kernel. Opens no socket.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Liveness of TCP connections, in the kernel's terms (Linux manual, tcp(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// TCP_KEEPIDLE: a silent connection is probed after this; whole seconds. Zero: never.
    pub keepalive_idle: Duration,
    /// TCP_KEEPINTVL: the time between two probes; whole seconds.
    pub keepalive_interval: Duration,
    /// TCP_KEEPCNT: this many probes without an answer end the connection. Where `user_timeout` is
    /// set, the kernel goes by that instead.
    pub keepalive_count: u32,
    /// TCP_USER_TIMEOUT: sent bytes, or probes, without an acknowledgement for this long end the
    /// connection; milliseconds. Zero: after the kernel's retransmissions, some 15 minutes.
    pub user_timeout: Duration,
}

impl TcpOptions {
    /// The defaults towards clients.
    pub const CLIENTS: TcpOptions = TcpOptions {
        keepalive_idle: Duration::from_secs(30),
        keepalive_interval: Duration::from_secs(10),
        keepalive_count: 3,
        // A server's own net_write_timeout.
        user_timeout: Duration::from_secs(60),
    };
    /// The defaults towards servers.
    pub const SERVERS: TcpOptions = TcpOptions {
        keepalive_idle: Duration::from_secs(10),
        keepalive_interval: Duration::from_secs(5),
        keepalive_count: 3,
        user_timeout: Duration::from_secs(20),
    };

    /// Sets them on a socket. What a listening socket has, the sockets that it accepts inherit.
    ///
    /// # Errors
    /// When the kernel refuses one.
    pub fn apply(&self, socket: impl AsFd) -> io::Result<()> {
        let fd = socket.as_fd();
        if !self.keepalive_idle.is_zero() {
            let whole = |time: Duration| Duration::from_secs(time.as_secs().max(1));
            sockopt::set_tcp_keepidle(fd, whole(self.keepalive_idle))?;
            sockopt::set_tcp_keepintvl(fd, whole(self.keepalive_interval))?;
            sockopt::set_tcp_keepcnt(fd, self.keepalive_count.max(1))?;
            sockopt::set_socket_keepalive(fd, true)?;
        }
        if !self.user_timeout.is_zero() {
            sockopt::set_tcp_user_timeout(fd, millis(self.user_timeout))?;
        }
        Ok(())
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn accepted_sockets_inherit_what_their_listener_has() -> io::Result<()> {
        let options = TcpOptions {
            keepalive_idle: Duration::from_secs(7),
            keepalive_interval: Duration::from_millis(200),
            keepalive_count: 2,
            user_timeout: Duration::from_millis(12_500),
        };
        let listener = TcpListener::bind("127.0.0.1:0")?;
        options.apply(&listener)?;
        let _client = TcpStream::connect(listener.local_addr()?)?;
        let (accepted, _) = listener.accept()?;
        assert!(sockopt::socket_keepalive(&accepted)?);
        assert_eq!(sockopt::tcp_keepidle(&accepted)?, Duration::from_secs(7));
        assert_eq!(sockopt::tcp_keepintvl(&accepted)?, Duration::from_secs(1));
        assert_eq!(sockopt::tcp_keepcnt(&accepted)?, 2);
        assert_eq!(sockopt::tcp_user_timeout(&accepted)?, 12_500);
        Ok(())
    }

    #[test]
    fn zero_leaves_the_kernels_own() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        TcpOptions::default().apply(&listener)?;
        assert!(!sockopt::socket_keepalive(&listener)?);
        assert_eq!(sockopt::tcp_user_timeout(&listener)?, 0);
        Ok(())
    }
}
