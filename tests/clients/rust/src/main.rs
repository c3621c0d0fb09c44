//! mysql_async and sqlx run as an application would use them.

mod check;
mod with_mysql_async;
mod with_sqlx;

use std::process::ExitCode;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<ExitCode> {
    let settings = check::Settings::from_env()?;
    let mut report = check::Report::default();
    with_mysql_async::run(&settings, &mut report).await;
    with_sqlx::run(&settings, &mut report).await;
    Ok(if report.finish() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
