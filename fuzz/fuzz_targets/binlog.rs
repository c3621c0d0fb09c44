//! Binary-log events that say anything: reading them must not panic, must not inflate beyond the limit, and the images
//! of rows must end, and be the same whichever columns are asked for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_protocol::binlog::rows::{Images, Value};
use millrace_protocol::binlog::table::Layout;
use millrace_protocol::binlog::{Event, Format, events};

const LIMIT: usize = 1 << 16;

/// Begin with a FORMAT_DESCRIPTION of each family.
const LOGS: [&[u8]; 2] = [
    include_bytes!("../../crates/protocol/tests/vectors/binlog/mysql-unchecked.log"),
    include_bytes!("../../crates/protocol/tests/vectors/binlog/mariadb-rows.log"),
];

// The first byte chooses the family.
fuzz_target!(|data: &[u8]| {
    let [family, data @ ..] = data else {
        return;
    };
    let log = LOGS[usize::from(*family) % LOGS.len()];
    let mut format = Format::new(false);
    let first = events(&log[4..]).next().and_then(Result::ok);
    format.read(first.unwrap_or_default()).expect("recorded");
    follow(&format, &mut None, data, 2);
    // And as it is in a stream, with whatever it says of its format.
    for event in events(data).map_while(Result::ok) {
        let _ = format.read(event);
    }
});

fn follow(format: &Format, layout: &mut Option<Layout>, data: &[u8], depth: u32) {
    let mut buf = Vec::new();
    for event in events(data).map_while(Result::ok) {
        match format.read_inner(event) {
            Ok((_, Event::TableMap(map))) => {
                let mut read = Layout::default();
                *layout = read.read(&map).is_ok().then_some(read);
            }
            Ok((_, Event::Rows(rows))) => {
                let Some(layout) = layout.as_ref() else {
                    continue;
                };
                let Ok(data) = rows.data.plain(&mut buf, LIMIT) else {
                    continue;
                };
                assert!(rows.columns <= 4096);
                let Ok(images) = rows.images(layout, data) else {
                    continue;
                };
                let all: Vec<u16> = (0..rows.columns as u16).collect();
                let whole = walk(images.clone(), &all, data.len());
                if let Some(last) = all.last() {
                    let one = walk(images, &[*last], data.len());
                    let of_whole: Vec<_> = whole.iter().map(|row| row[row.len() - 1..].to_vec()).collect();
                    assert_eq!(one, of_whole);
                }
            }
            Ok((_, Event::Query(query))) => {
                if let Ok(text) = query.text.plain(&mut buf, LIMIT) {
                    assert!(text.len() <= LIMIT.max(event.len()));
                }
            }
            Ok((_, Event::Payload(payload))) if depth > 0 => {
                if let Ok(plain) = payload.plain(&mut buf, LIMIT) {
                    follow(format, layout, plain, depth - 1);
                }
            }
            Ok((_, Event::PreviousGtids(set))) => {
                set.sources().for_each(|source| source.intervals().for_each(drop));
            }
            Ok((_, Event::GtidList(list))) => list.entries().for_each(drop),
            _ => {}
        }
    }
}

fn walk<'d>(mut images: Images<'_, 'd>, wanted: &[u16], len: usize) -> Vec<Vec<Value<'d>>> {
    let mut values = vec![Value::Absent; wanted.len()];
    let mut seen = Vec::new();
    while let Ok(Some(_)) = images.next(wanted, &mut values) {
        seen.push(values.clone());
        assert!(seen.len() <= 2 * len + 2);
    }
    seen
}
