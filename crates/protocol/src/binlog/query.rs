//! Statements in the log. Reads no SQL.

use super::payload::Packed;
use super::{Header, Unreadable, event_type as t};
use crate::packet::{Malformed, Reader};

/// A statement, with what its meaning depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// The connection that ran it, by its number.
    pub thread_id: u32,
    /// The error that it ended with, 0 for none. It may have changed something nevertheless.
    pub error: u16,
    /// The default database; empty without one.
    pub database: &'a [u8],
    pub settings: Settings,
    /// Its text, in the character set of the client.
    pub text: Packed<'a>,
    /// LOAD DATA: the file's content came before, in notes.
    pub loads_data: bool,
}

/// Settings that a statement ran under, as far as they change what its text means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bits of `OPTION_…`, such as those of foreign_key_checks and autocommit.
    pub options: Option<u32>,
    /// As `@@sql_mode`, of which the families share some bits.
    pub sql_mode: Option<u64>,
    /// Collation numbers of the client's character set, of the connection and of the server.
    pub collations: Option<[u16; 3]>,
    /// Whether all settings were known. Those after an unknown one are left out, as servers do.
    pub are_complete: bool,
}

/// Bytes of the fixed part, which newer versions may lengthen (MySQL, binlog_event.h, QUERY_HEADER_LEN).
const POST_HEADER: usize = 4 + 4 + 1 + 2 + 2;

/// Most databases that a statement names; 254 says that there were more (MySQL, binlog_event.h,
/// MAX_DBS_IN_EVENT_MTS).
const DATABASES_MAX: u8 = 16;

impl<'a> Query<'a> {
    /// MySQL, statement_events.cpp, `Query_event`; MariaDB, log_event.cc, `Query_log_event`: the same, and with its
    /// text packed, `Query_compressed_log_event`. LOAD DATA's has 13 bytes more in its fixed part.
    pub(super) fn parse(
        header: &Header,
        post_header: usize,
        body: &'a [u8],
    ) -> Result<Self, Unreadable> {
        let mut reader = Reader::new(body);
        let thread_id = reader.u32()?;
        let _seconds = reader.u32()?;
        let database = usize::from(reader.u8()?);
        let error = reader.u16()?;
        let settings = usize::from(reader.u16()?);
        let further = post_header.checked_sub(POST_HEADER);
        reader.bytes(further.ok_or(Unreadable::NotUnderstood)?)?;
        let settings = Settings::parse(reader.bytes(settings)?)?;
        let database = reader.bytes(database)?;
        if reader.u8()? != 0 {
            return Err(Unreadable::Malformed);
        }
        let text = match header.kind {
            t::QUERY_COMPRESSED => Packed::parse(reader.rest())?,
            _ => Packed::Plain(reader.rest()),
        };
        Ok(Self {
            thread_id,
            error,
            database,
            settings,
            text,
            loads_data: header.kind == t::EXECUTE_LOAD_QUERY,
        })
    }
}

impl Settings {
    /// A byte each of what it is, and a value of the length that it has (MySQL, statement_events.cpp and .h,
    /// `Q_…`; MariaDB's of 128 and more in log_event.h).
    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut settings = Self::default();
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            match reader.u8()? {
                0 => settings.options = Some(reader.u32()?),
                1 => settings.sql_mode = Some(reader.u64()?),
                4 => settings.collations = Some([reader.u16()?, reader.u16()?, reader.u16()?]),
                // Catalogue and time zone.
                5 | 6 => skip_text(&mut reader)?,
                // The catalogue of old servers, with a zero after it.
                2 => {
                    let len = usize::from(reader.u8()?);
                    let zero = usize::from(len > 0);
                    reader.bytes(len + zero)?;
                }
                // The invoker: user and host.
                11 => {
                    skip_text(&mut reader)?;
                    skip_text(&mut reader)?;
                }
                12 => skip_databases(&mut reader)?,
                // auto_increment_increment and _offset; lc_time_names, collation_database; tables of a
                // multi-table UPDATE; an old length.
                3 | 10 => skip(&mut reader, 4)?,
                7 | 8 | 18 => skip(&mut reader, 2)?,
                9 | 17 | 129 => skip(&mut reader, 8)?,
                // Microseconds of the time.
                13 | 128 => skip(&mut reader, 3)?,
                // binlog_alter_two_phase (observed on MariaDB 10.11): a part of an ALTER, and with the second parts
                // the number of the first.
                130 => {
                    const SECOND: u8 = 4 | 8;
                    if reader.u8()? & SECOND != 0 {
                        skip(&mut reader, 8)?;
                    }
                }
                // Switches: explicit_defaults_for_timestamp, sql_require_primary_key,
                // default_table_encryption, cascades' triggers.
                16 | 19 | 20 | 21 => skip(&mut reader, 1)?,
                _ => return Ok(settings),
            }
        }
        settings.are_complete = true;
        Ok(settings)
    }
}

fn skip(reader: &mut Reader<'_>, len: usize) -> Result<(), Malformed> {
    reader.bytes(len).map(drop)
}

fn skip_text(reader: &mut Reader<'_>) -> Result<(), Malformed> {
    let len = usize::from(reader.u8()?);
    skip(reader, len)
}

fn skip_databases(reader: &mut Reader<'_>) -> Result<(), Malformed> {
    let count = reader.u8()?;
    if count > DATABASES_MAX {
        return Ok(());
    }
    for _ in 0..count {
        reader.nul_bytes()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_both_families() {
        // MySQL 9.7's order, then what only MariaDB has.
        let mut bytes = vec![
            0, 0, 0, 0, 4, 1, 1, 2, 3, 4, 5, 6, 7, 8, 6, 3, b's', b't', b'd',
        ];
        bytes.extend_from_slice(&[4, 255, 0, 8, 0, 63, 0, 5, 1, b'x', 12, 2, b'a', 0, b'b', 0]);
        bytes.extend_from_slice(&[18, 255, 0, 128, 1, 2, 3, 129, 1, 2, 3, 4, 5, 6, 7, 8]);
        bytes.extend_from_slice(&[130, 2, 130, 4, 6, 0, 0, 0, 0, 0, 0, 0]);
        let settings = Settings {
            options: Some(0x0400_0000),
            sql_mode: Some(0x0807_0605_0403_0201),
            collations: Some([255, 8, 63]),
            are_complete: true,
        };
        assert_eq!(Settings::parse(&bytes), Ok(settings));
        bytes.extend_from_slice(&[99, 1, 2]);
        let unknown = Settings {
            are_complete: false,
            ..settings
        };
        assert_eq!(Settings::parse(&bytes), Ok(unknown));
    }
}
