//! Has a server run a KILL for a session. Says nothing to the session.

use std::time::Duration;

use millrace_backend::error::BackendError;
use millrace_backend::pool::Pool;

/// How long a server may take to answer a KILL.
const LIMIT: Duration = Duration::from_secs(5);

/// Has the server of a pool run `kill`, on a connection of the pool's account that counts with no limit.
///
/// # Errors
/// The server is not known to have run it.
pub async fn kill_aside(pool: &Pool, kill: &str) -> Result<(), BackendError> {
    let mut other = pool.open_aside().await?;
    run_kill(other.query(kill)).await
}

/// Waits for the answer to a KILL that is on its way. Where its target has ended by itself, it is done.
///
/// # Errors
/// The server is not known to have run it.
pub async fn run_kill<T>(
    running: impl Future<Output = Result<T, BackendError>>,
) -> Result<(), BackendError> {
    match tokio::time::timeout(LIMIT, running).await {
        Ok(Ok(_)) => Ok(()),
        // ER_NO_SUCH_THREAD.
        Ok(Err(BackendError::Server(error))) if error.code == 1094 => Ok(()),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(BackendError::Timeout("the KILL's own limit")),
    }
}
