//! Logins with no user list: every account that may log in to the server may log in through the
//! proxy, and no other; the servers' own answers are the specification.

mod entering;
mod factors;
mod ground;
mod kerberos;
mod other_user;
mod pluggable;
mod refused;
mod rotated;
mod scripted;
mod secrecy;
mod server_tls;
mod unlearnt;

use millrace_sandbox::{Cluster, ClusterSpec, Family, Release, skip_unless};
use millrace_tests::checks::Checks;

use crate::entering::{
    auth_switch, character_sets, database_at_login, empty_passwords, every_plugin, late_and_full,
    late_replicas, no_plugin_support, probes_from_before_4_1, strange_passwords, tls_at_once,
    vouched_for, warm_server,
};
use crate::ground::Ground;
use crate::other_user::{change_user, change_user_natively, relayed_become_others};
use crate::refused::{
    changed_with_few_connections, expired, locked, max_user_connections, password_changed,
    refusals, require_ssl,
};
use crate::rotated::{
    attempts_are_left, new_passwords_are_no_guesses, old_passwords_are_no_guesses, servers_key,
    sessions_go_on, two_passwords,
};
use crate::secrecy::{guesses_count, no_secret_gets_out, slowed_down};
use crate::server_tls::{old_servers, server_tls_modes};
use crate::unlearnt::{configured, refuses_to_show};

async fn accounts(release: Release) -> anyhow::Result<()> {
    let ground = Ground::start(release).await?;
    let mut checks = Checks::new(format!("auth, {release}"));
    checks.run("every plugin", every_plugin(&ground)).await;
    checks.run("a warm server", warm_server(&ground)).await;
    checks.run("TLS at once", tls_at_once(&ground)).await;
    checks
        .run("empty passwords", empty_passwords(&ground))
        .await;
    checks.run("auth switch", auth_switch(&ground)).await;
    checks
        .run("certificate by the password", vouched_for(&ground))
        .await;
    checks
        .run("clients without plugins", no_plugin_support(&ground))
        .await;
    checks
        .run("probes from before 4.1", probes_from_before_4_1(&ground))
        .await;
    checks
        .run("strange passwords", strange_passwords(&ground))
        .await;
    checks.run("character sets", character_sets(&ground)).await;
    checks
        .run("database at login", database_at_login(&ground))
        .await;
    checks.run("late replicas", late_replicas(&ground)).await;
    checks.run("late and full", late_and_full(&ground)).await;
    checks.run("refusals", refusals(&ground)).await;
    checks.run("require ssl", require_ssl(&ground)).await;
    checks
        .run("password changed", password_changed(&ground))
        .await;
    checks
        .run(
            "password changed, few connections",
            changed_with_few_connections(&ground),
        )
        .await;
    checks.run("sessions go on", sessions_go_on(&ground)).await;
    checks
        .run("attempts are left", attempts_are_left(&ground))
        .await;
    checks
        .run(
            "new passwords are no guesses",
            new_passwords_are_no_guesses(&ground),
        )
        .await;
    checks.run("two passwords", two_passwords(&ground)).await;
    checks
        .run(
            "old passwords are no guesses",
            old_passwords_are_no_guesses(&ground),
        )
        .await;
    checks.run("the servers' key", servers_key(&ground)).await;
    checks.run("locked", locked(&ground)).await;
    checks.run("expired", expired(&ground)).await;
    checks
        .run("max_user_connections", max_user_connections(&ground))
        .await;
    checks.run("change user", change_user(&ground)).await;
    checks
        .run("change user, natively", change_user_natively(&ground))
        .await;
    checks
        .run("relayed: change user", relayed_become_others(&ground))
        .await;
    checks
        .run("refuses to show", refuses_to_show(&ground))
        .await;
    checks.run("parsec", pluggable::parsec(&ground)).await;
    checks.run("configured", configured(&ground)).await;
    checks.run("slowed down", slowed_down(&ground)).await;
    checks.run("guesses count", guesses_count(&ground)).await;
    checks
        .run("monitor refused", refused::monitor_refused(&ground))
        .await;
    checks
        .run("no secret gets out", no_secret_gets_out(&ground))
        .await;
    server_tls_modes(&mut checks, &ground.cluster).await;
    drop(ground);
    checks.run("old servers", old_servers(release)).await;
    if release.family() == Family::MariaDb {
        let mut spec = ClusterSpec::new(release);
        spec.replicas = 0;
        // MariaDB makes a certificate of its own from 11.4 on.
        spec.extra_args.push("--skip-ssl".to_owned());
        let without = Cluster::up(spec).await?;
        server_tls_modes(&mut checks, &without).await;
    }
    checks.finish()
}

async fn test(release: Release) -> anyhow::Result<()> {
    if millrace_tests::harness::direct_only() || !skip_unless(release, "auth") {
        return Ok(());
    }
    accounts(release).await
}

#[tokio::test]
async fn mariadb() -> anyhow::Result<()> {
    test(Release::MariaDb).await
}

#[tokio::test]
async fn mariadb_11_8() -> anyhow::Result<()> {
    test(Release::MariaDb11_8).await
}

#[tokio::test]
async fn mysql() -> anyhow::Result<()> {
    test(Release::MySql).await
}

#[tokio::test]
async fn factors() -> anyhow::Result<()> {
    if millrace_tests::harness::direct_only() || !skip_unless(Release::MySql, "factors") {
        return Ok(());
    }
    factors::factors().await
}

/// Plugins of MySQL Enterprise, by a scripted server.
#[tokio::test]
async fn scripted() -> anyhow::Result<()> {
    if millrace_tests::harness::direct_only() || !skip_unless(Release::MySql, "scripted") {
        return Ok(());
    }
    scripted::enterprise().await
}

#[tokio::test]
async fn pam() -> anyhow::Result<()> {
    let release = Release::MariaDb;
    if millrace_tests::harness::direct_only() || !skip_unless(release, "PAM") {
        return Ok(());
    }
    if !millrace_tests::netns::enter("pam")? {
        return Ok(());
    }
    pluggable::pam(release).await
}

#[tokio::test]
async fn second_passwords() -> anyhow::Result<()> {
    for release in [Release::MariaDb, Release::MariaDb11_8] {
        let test = "second passwords";
        if !millrace_tests::harness::direct_only() && skip_unless(release, test) {
            pluggable::second_passwords(release).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn gssapi() -> anyhow::Result<()> {
    let release = Release::MariaDb;
    if millrace_tests::harness::direct_only()
        || !skip_unless(release, "GSSAPI")
        || !kerberos::is_here()?
    {
        return Ok(());
    }
    // The servers find the realm's configuration by their environment.
    let config = kerberos::config();
    if !millrace_tests::netns::enter_with("gssapi", &[(kerberos::CONFIG, &config)])? {
        return Ok(());
    }
    kerberos::gssapi().await
}
