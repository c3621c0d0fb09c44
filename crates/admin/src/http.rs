//! The HTTP server: three paths, all of them reads. Knows no metric.

use std::future::Future;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use millrace_metrics::Metrics;

use crate::Listener;
use crate::exposition::{CONTENT_TYPE, exposition};

/// Whether clients can be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// New clients may be sent here.
    pub ready: bool,
    /// Why (not), in a line.
    pub detail: String,
}

struct Shared<R> {
    metrics: Arc<Metrics>,
    ready: R,
}

/// Serves until `stop` is done. `/healthz` answers 200 as long as the process lives, `/readyz`
/// 200 or 503 as `ready` says, `/metrics` the metrics.
pub async fn serve<R, S>(
    listener: Listener,
    metrics: Arc<Metrics>,
    ready: R,
    stop: S,
) -> io::Result<()>
where
    R: Fn() -> Readiness + Send + Sync + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let shared = Arc::new(Shared { metrics, ready });
    let router = Router::new()
        .route("/metrics", get(show_metrics::<R>))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(show_readiness::<R>))
        .with_state(shared);
    match listener {
        Listener::Tcp(listener) => {
            axum::serve(listener, router)
                .with_graceful_shutdown(stop)
                .await
        }
        Listener::Unix(listener, path) => {
            let served = axum::serve(listener, router)
                .with_graceful_shutdown(stop)
                .await;
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::debug!(path = %path.display(), %error, "socket file not removed");
            }
            served
        }
    }
}

async fn show_metrics<R>(State(shared): State<Arc<Shared<R>>>) -> Response {
    match exposition(&shared.metrics) {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn show_readiness<R: Fn() -> Readiness>(State(shared): State<Arc<Shared<R>>>) -> Response {
    let Readiness { ready, detail } = (shared.ready)();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, format!("{detail}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use std::path::Path;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use tokio::net::{TcpStream, UnixListener, UnixStream};
    use tokio::sync::oneshot;

    use super::*;

    async fn get(address: &str, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        if address.starts_with('/') {
            let mut stream = UnixStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.read_to_string(&mut answer).await.unwrap();
        } else {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.read_to_string(&mut answer).await.unwrap();
        }
        answer
    }

    #[tokio::test]
    async fn answers_each_path_and_stops_when_told() {
        let socket = std::env::temp_dir().join(format!("millrace-http-{}", std::process::id()));
        let socket = socket.to_str().unwrap();
        // One is left behind by a process that was killed.
        drop(UnixListener::bind(socket).unwrap());
        for address in ["127.0.0.1:0", socket] {
            let listener = Listener::bind(address).await.unwrap();
            let address = listener.local_address().unwrap();
            let metrics = Arc::new(Metrics::new(1, vec!["a:1".into()]));
            let up = Arc::new(AtomicBool::new(false));
            let (stop, stopped) = oneshot::channel::<()>();
            let ready = {
                let up = up.clone();
                move || Readiness {
                    ready: up.load(Ordering::Relaxed),
                    detail: "no primary".into(),
                }
            };
            let server = tokio::spawn(serve(listener, metrics, ready, async {
                let _ = stopped.await;
            }));
            assert!(get(&address, "/healthz").await.starts_with("HTTP/1.1 200"));
            let answer = get(&address, "/readyz").await;
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
            assert!(answer.ends_with("no primary\n"), "{answer}");
            up.store(true, Ordering::Relaxed);
            assert!(get(&address, "/readyz").await.starts_with("HTTP/1.1 200"));
            let answer = get(&address, "/metrics").await;
            assert!(answer.contains(CONTENT_TYPE), "{answer}");
            assert!(answer.contains("millrace_clients 0"), "{answer}");
            assert!(get(&address, "/").await.starts_with("HTTP/1.1 404"));
            stop.send(()).unwrap();
            server.await.unwrap().unwrap();
        }
        assert!(!Path::new(socket).exists());
    }

    #[tokio::test]
    async fn a_path_in_use_is_not_taken_away() {
        let path = std::env::temp_dir().join(format!("millrace-used-{}", std::process::id()));
        let text = path.to_str().unwrap();
        let used = UnixListener::bind(text).unwrap();
        assert!(Listener::bind(text).await.is_err());
        drop(used);
        std::fs::remove_file(path).unwrap();
    }
}
