//! What a replica says: the settings of its connection, who it is, and the commands that begin the
//! stream. All are answered with OK or ERR, but the last: its answer is the stream.

use std::fmt::Write as _;
use std::time::Duration;

use crate::command::{COM_BINLOG_DUMP, COM_BINLOG_DUMP_GTID, COM_REGISTER_SLAVE};
use crate::packet::Writer;

/// Flags of the commands that begin the stream (MySQL, sql/rpl_constants.h).
pub mod dump_flags {
    /// End the stream where the log ends, instead of waiting.
    pub const NON_BLOCK: u16 = 1;
    /// Send heartbeats of the second version (MySQL 8.0.26 and later).
    pub const HEARTBEAT_V2: u16 = 2;
}

/// Appends COM_REGISTER_SLAVE: under which number, name and port the replica is listed in SHOW REPLICAS (MySQL
/// manual, "COM_REGISTER_SLAVE"; MariaDB manual, the same). The name is cut after 255 bytes, and MySQL
/// takes 60. Returns the next sequence number.
pub fn encode_register(out: &mut Vec<u8>, server_id: u32, host: &str, port: u16) -> u8 {
    let host = &host.as_bytes()[..host.len().min(usize::from(u8::MAX))];
    let mut writer = Writer::new(out, 0);
    writer
        .u8(COM_REGISTER_SLAVE)
        .u32(server_id)
        .u8(host.len() as u8)
        .bytes(host)
        // User and password, which servers show only with --show-replica-auth-info.
        .u8(0)
        .u8(0)
        .u16(port)
        // Rank, which is not used, and the source's number, which it knows.
        .u32(0)
        .u32(0);
    writer.finish()
}

/// Appends COM_BINLOG_DUMP: the stream from a file's position on. MariaDB's begins where @slave_connect_state
/// says instead, if that is set; `file` is then empty (MySQL manual, "COM_BINLOG_DUMP"; MariaDB manual, the same).
pub fn encode_dump(
    out: &mut Vec<u8>,
    server_id: u32,
    flags: u16,
    file: &[u8],
    position: u32,
) -> u8 {
    let mut writer = Writer::new(out, 0);
    writer
        .u8(COM_BINLOG_DUMP)
        .u32(position)
        .u16(flags)
        .u32(server_id)
        .bytes(file);
    writer.finish()
}

/// Appends MySQL's COM_BINLOG_DUMP_GTID: the stream of all transactions but those of `executed`, which is an encoded
/// set (see [`SetEncoder`](super::gtid::SetEncoder)) (MySQL manual, "COM_BINLOG_DUMP_GTID").
pub fn encode_dump_gtid(out: &mut Vec<u8>, server_id: u32, flags: u16, executed: &[u8]) -> u8 {
    /// Where the first event of a file is.
    const FILE_START: u64 = 4;
    let mut writer = Writer::new(out, 0);
    writer
        .u8(COM_BINLOG_DUMP_GTID)
        .u16(flags)
        .u32(server_id)
        // No name of a file.
        .u32(0)
        .u64(FILE_START)
        .u32(executed.len() as u32)
        .bytes(executed);
    writer.finish()
}

/// The statement that prepares a connection to MySQL: events with checksums where the source has them,
/// heartbeats so often, and an identity, under which the source ends an older stream (MySQL, sql/rpl_replica.cc,
/// `get_master_version_and_clock`; both spellings, because 8.0.26 renamed them). `uuid` is of hexadecimal digits
/// and dashes; other characters are left out.
pub fn mysql_settings(heartbeat: Duration, uuid: &str) -> String {
    let nanoseconds = heartbeat.as_nanos();
    let uuid: String = uuid
        .chars()
        .filter(|c| c.is_ascii_hexdigit() || *c == '-')
        .collect();
    let mut text = String::from("SET");
    for (name, value) in [
        ("binlog_checksum", "@@global.binlog_checksum".to_owned()),
        ("heartbeat_period", nanoseconds.to_string()),
    ] {
        let _ = write!(text, " @source_{name}={value}, @master_{name}={value},");
    }
    let _ = write!(text, " @replica_uuid='{uuid}', @slave_uuid='{uuid}'");
    text
}

/// The statement that prepares a connection to MariaDB. Beside what [`mysql_settings`] says: the replica knows all
/// events (capability 4, with GTIDs), and wants what follows `position`, GTIDs as `@@gtid_current_pos` has
/// them; an error where the log does not have that any longer, or never had (MariaDB, slave.cc,
/// `get_master_version_and_clock`). Characters of `position` that no GTID has are left out.
pub fn mariadb_settings(heartbeat: Duration, position: &str) -> String {
    let nanoseconds = heartbeat.as_nanos();
    let position: String = position
        .chars()
        .filter(|c| c.is_ascii_digit() || matches!(c, '-' | ','))
        .collect();
    format!(
        "SET @master_binlog_checksum=@@global.binlog_checksum, @master_heartbeat_period={nanoseconds}, \
         @mariadb_slave_capability=4, @slave_connect_state='{position}', @slave_gtid_strict_mode=1, \
         @slave_gtid_ignore_duplicates=0"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binlog::gtid::SetEncoder;

    #[test]
    fn the_commands() {
        let mut out = Vec::new();
        encode_dump_gtid(
            &mut out,
            7,
            dump_flags::HEARTBEAT_V2,
            &SetEncoder::default().encode(),
        );
        let mut wanted = vec![31, 0, 0, 0, 0x1E, 2, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        wanted.extend_from_slice(&[4, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0]);
        wanted.extend_from_slice(&[0; 8]);
        assert_eq!(out, wanted);
        out.clear();
        encode_dump(&mut out, 7, dump_flags::NON_BLOCK, b"log.1", 4);
        let wanted = b"\x10\0\0\0\x12\x04\0\0\0\x01\0\x07\0\0\0log.1";
        assert_eq!(out, wanted);
        out.clear();
        encode_register(&mut out, 7, "here", 3306);
        let wanted = b"\x16\0\0\0\x15\x07\0\0\0\x04here\0\0\xEA\x0C\0\0\0\0\0\0\0\0";
        assert_eq!(out, wanted);
    }

    #[test]
    fn settings_cannot_be_escaped() {
        let second = Duration::from_secs(1);
        let text = mysql_settings(second, "ab-1'; DROP");
        assert!(text.ends_with("@slave_uuid='ab-1D'"), "{text}");
        assert!(text.contains("@source_heartbeat_period=1000000000,"));
        let text = mariadb_settings(second, "0-1-2'x,1-1-1");
        assert!(text.contains("@slave_connect_state='0-1-2,1-1-1',"));
    }
}
