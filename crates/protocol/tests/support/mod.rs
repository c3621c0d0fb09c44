//! Reads the captured vectors.

use millrace_protocol::Capabilities;
use millrace_protocol::response::Expect;

/// One captured command.
#[derive(Clone, Debug)]
pub struct Vector {
    pub family: &'static str,
    pub name: String,
    pub expect: Expect,
    pub caps: Capabilities,
    pub request: Vec<u8>,
    pub response: Vec<u8>,
}

/// All responses of both families.
pub fn vectors() -> Vec<Vector> {
    let mysql = parse("mysql", include_str!("../vectors/mysql.txt"));
    let mariadb = parse("mariadb", include_str!("../vectors/mariadb.txt"));
    mysql.chain(mariadb).collect()
}

fn parse(family: &'static str, text: &'static str) -> impl Iterator<Item = Vector> {
    text.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, expect, caps, request, response] = fields[..] else {
            panic!("bad line: {line}");
        };
        Some(Vector {
            family,
            name: name.to_owned(),
            expect: expect_named(expect)?,
            caps: Capabilities::from_bits_retain(u64::from_str_radix(caps, 16).unwrap()),
            request: unhex(request),
            response: unhex(response),
        })
    })
}

fn expect_named(name: &str) -> Option<Expect> {
    Some(match name {
        "query" => Expect::Query,
        "prepare" => Expect::Prepare,
        "execute" => Expect::Execute,
        "fetch" => Expect::Fetch,
        "field_list" => Expect::FieldList,
        "statistics" => Expect::Statistics,
        "set_option" => Expect::SetOption,
        "simple" => Expect::Simple,
        "greeting" => return None,
        other => panic!("no such expectation: {other}"),
    })
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}
