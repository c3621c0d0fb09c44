//! Names that come to mean other machines.

use super::*;

fn of(family: Family, uuid: &str, server_id: u32, report: ProbeReport) -> ProbeReport {
    ProbeReport {
        family,
        server_uuid: uuid.into(),
        server_id,
        identity: format!("host:{uuid}:{server_id}").into(),
        ..report
    }
}

fn follows(uuid: &str, server_id: u32) -> ProbeReport {
    replica_with(|status| {
        status.source_uuid = uuid.into();
        status.source_server_id = server_id;
    })
}

#[test]
fn a_machine_of_another_cluster_is_told_on_mysql() {
    let my = |uuid, report| of(Family::MySql, uuid, 1, report);
    let mut world = world(2);
    world.report(A, executed("1-9", my("a", writable())));
    world.report(B, executed("1-9", my("b", follows("a", 1))));
    let is_kin = |report| world.topology.is_kin(A, &report);
    assert!(
        is_kin(my("b", follows("a", 1))),
        "it is known by another name"
    );
    assert!(is_kin(my("c", follows("a", 1))), "it follows one");
    let restored = executed("1-9", my("c", writable()));
    assert!(is_kin(restored), "it has all that was written");
    let older = executed("1-5", my("c", writable()));
    assert!(!is_kin(older), "it lacks something");
    assert!(!is_kin(my("x", writable())));
    assert!(!is_kin(my("y", follows("x", 1))), "another's replica");
}

#[test]
fn a_machine_of_another_cluster_is_told_on_mariadb() {
    let maria = |host: u32, server_id, report: ProbeReport| {
        let mut report = of(Family::MariaDb, "", server_id, report);
        report.identity = format!("host{host}:3306").into();
        report
    };
    let mut world = world(2);
    world.report(A, maria(1, 1, writable()));
    world.report(B, maria(2, 2, follows("", 1)));
    let is_kin = |report| world.topology.is_kin(A, &report);
    assert!(is_kin(maria(3, 3, follows("", 1))), "it follows one");
    assert!(!is_kin(maria(9, 1, writable())), "another's first server");
    world.fail(A, Cause::Refused);
    let is_kin = |report| world.topology.is_kin(A, &report);
    assert!(
        is_kin(maria(3, 1, writable())),
        "the source came up elsewhere"
    );
}
