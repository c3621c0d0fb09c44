//! GET DIAGNOSTICS, where others have used the connection that it asks about since: answered from the
//! messages that were saved then. What no saved message tells (the names that SIGNAL can give) is empty.

use millrace_engine::image::user_variables::{variable_name, write_variable};
use millrace_engine::state::write_hex;
use millrace_metrics::PinReason;
use millrace_protocol::ok::OkFields;
use millrace_sql::Family;

use crate::error::Abort;
use crate::session::Session;

/// What one GET DIAGNOSTICS asks for.
#[derive(Debug, PartialEq, Eq)]
struct Get {
    /// The condition, or the statement as a whole.
    condition: Option<Number>,
    /// Variables, and what each is to be given.
    items: Vec<(Box<[u8]>, Item)>,
}

/// Which condition.
#[derive(Debug, PartialEq, Eq)]
enum Number {
    Literal(u64),
    Variable(Box<[u8]>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    Number,
    RowCount,
    Sqlstate,
    Errno,
    Message,
    ClassOrigin,
    SubclassOrigin,
    /// One of the names that only SIGNAL gives.
    Name,
    /// MariaDB's ROW_NUMBER, which a saved message does not tell.
    RowNumber,
}

impl Item {
    fn of(word: &[u8], of_condition: bool) -> Option<Item> {
        const NAMES: [&str; 8] = [
            "CONSTRAINT_CATALOG",
            "CONSTRAINT_SCHEMA",
            "CONSTRAINT_NAME",
            "CATALOG_NAME",
            "SCHEMA_NAME",
            "TABLE_NAME",
            "COLUMN_NAME",
            "CURSOR_NAME",
        ];
        let word = std::str::from_utf8(word).ok()?.to_ascii_uppercase();
        Some(match (of_condition, word.as_str()) {
            (false, "NUMBER") => Item::Number,
            (false, "ROW_COUNT") => Item::RowCount,
            (true, "RETURNED_SQLSTATE") => Item::Sqlstate,
            (true, "MYSQL_ERRNO") => Item::Errno,
            (true, "MESSAGE_TEXT") => Item::Message,
            (true, "CLASS_ORIGIN") => Item::ClassOrigin,
            (true, "SUBCLASS_ORIGIN") => Item::SubclassOrigin,
            (true, "ROW_NUMBER") => Item::RowNumber,
            (true, name) if NAMES.contains(&name) => Item::Name,
            _ => return None,
        })
    }
}

/// A statement that begins like GET DIAGNOSTICS.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Get(Get),
    /// The server refuses it, whatever messages there are.
    Refused,
    /// Something else, or not plain to see.
    Unclear,
}

/// Reads `GET [CURRENT] DIAGNOSTICS …`.
fn asked(text: &[u8], family: Family) -> Asked {
    let is = |word: &[u8], wanted: &str| word.eq_ignore_ascii_case(wanted.as_bytes());
    let Some(words) = words(text) else {
        return Asked::Unclear;
    };
    let words = match words.as_slice() {
        [get, current, words @ ..] if is(get, "GET") && is(current, "CURRENT") => words,
        [get, words @ ..] if is(get, "GET") => words,
        _ => return Asked::Unclear,
    };
    match words {
        [word, rest @ ..] if is(word, "DIAGNOSTICS") => match rest {
            [word, number, rest @ ..] if is(word, "CONDITION") => {
                match Number::of(number, rest, family) {
                    Ok(number) => items(rest, Some(number)),
                    Err(other) => other,
                }
            }
            _ => items(rest, None),
        },
        _ => Asked::Unclear,
    }
}

impl Number {
    /// `rest`: the words behind it.
    fn of(word: &[u8], rest: &[&[u8]], family: Family) -> Result<Number, Asked> {
        const VALUES: [&str; 3] = ["null", "true", "false"];
        if let Some(name) = word.strip_prefix(b"@") {
            return match name.is_empty() {
                true => Err(Asked::Unclear),
                false => Ok(Number::Variable(variable_name(name))),
            };
        }
        let text = String::from_utf8_lossy(word).to_ascii_lowercase();
        let is_name = text.starts_with(|first: char| first.is_ascii_alphabetic());
        // MySQL takes a name for a condition that does not exist (observed).
        let no_column = is_name && family == Family::MariaDb && !VALUES.contains(&&*text);
        if word == b"-" || rest.first() == Some(&&b"("[..]) || no_column {
            return Err(Asked::Refused);
        }
        let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
        let rounds_up = part.starts_with(|digit| ('5'..='9').contains(&digit));
        match whole.parse::<u64>() {
            Ok(number) if part.bytes().all(|digit| digit.is_ascii_digit()) => {
                Ok(Number::Literal(number.saturating_add(rounds_up.into())))
            }
            _ => Err(Asked::Unclear),
        }
    }
}

/// Reads `@variable = ITEM, …`.
fn items(mut words: &[&[u8]], condition: Option<Number>) -> Asked {
    let mut items = Vec::new();
    loop {
        let name = match words.first() {
            Some(name) => name.strip_prefix(b"@").filter(|name| !name.is_empty()),
            None => return Asked::Refused,
        };
        let Some(name) = name else {
            return Asked::Unclear;
        };
        let [_, b"=", item, rest @ ..] = words else {
            return Asked::Refused;
        };
        let Some(item) = Item::of(item, condition.is_some()) else {
            return Asked::Refused;
        };
        items.push((variable_name(name), item));
        match rest {
            [] => return Asked::Get(Get { condition, items }),
            [b",", rest @ ..] => words = rest,
            _ => return Asked::Refused,
        }
    }
}

/// The text's words, variables and signs; none where it holds what is not plain to see.
fn words(text: &[u8]) -> Option<Vec<&[u8]>> {
    let text = text.trim_ascii_end();
    let text = text.strip_suffix(b";").unwrap_or(text);
    let is_word =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"_$.".contains(byte) || *byte >= 0x80;
    let mut words = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let length = match rest[0] {
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'/' if rest.starts_with(b"/*") && !matches!(rest.get(2), Some(b'!' | b'M' | b'+')) => {
                at += rest.windows(2).skip(2).position(|two| two == b"*/")? + 4;
                continue;
            }
            // Two of them begin a comment.
            b'-' if rest.starts_with(b"--") => return None,
            b'=' | b',' | b'-' | b'(' | b')' => 1,
            b'@' => match *rest.get(1)? {
                quote @ (b'`' | b'\'' | b'"') => {
                    rest.iter().skip(2).position(|byte| *byte == quote)? + 3
                }
                _ => 1 + rest[1..].iter().take_while(|byte| is_word(byte)).count(),
            },
            ref byte if is_word(byte) => rest.iter().take_while(|byte| is_word(byte)).count(),
            _ => return None,
        };
        words.push(&rest[..length]);
        at += length;
    }
    Some(words)
}

/// The SQLSTATE of a message that was raised with its code alone.
fn sqlstate(code: u32, family: Family) -> &'static str {
    // Above, the families' codes are not the same.
    let known = family == Family::MySql || code < 1900;
    SQLSTATES
        .iter()
        .find(|(_, codes)| known && codes.contains(&code))
        .map_or("HY000", |(state, _)| state)
}

/// Who defines a class of SQLSTATEs, or a subclass: CLASS_ORIGIN and SUBCLASS_ORIGIN.
fn origin(state: &[u8], family: Family, subclass: bool) -> &'static [u8] {
    let standard = |byte: Option<&u8>| matches!(byte, Some(b'0'..=b'4' | b'A'..=b'H'));
    let of_class = standard(state.first());
    let of_subclass = state.get(2..) == Some(b"000") || (of_class && standard(state.get(2)));
    match family {
        // MariaDB says nothing (observed).
        Family::MariaDb => b"",
        Family::MySql if if subclass { of_subclass } else { of_class } => b"ISO 9075",
        Family::MySql => b"MySQL",
    }
}

impl Session {
    /// GET DIAGNOSTICS that is no valid statement: its server says so.
    pub(in crate::session) fn is_refused_diagnostics(&self, text: &[u8]) -> bool {
        asked(text, self.image.family) == Asked::Refused
    }

    /// GET DIAGNOSTICS from what was saved. True if that could answer it.
    pub(in crate::session) async fn get_saved_diagnostics(
        &mut self,
        text: &[u8],
    ) -> Result<bool, Abort> {
        let Asked::Get(get) = asked(text, self.image.family) else {
            return Ok(false);
        };
        let messages = match self.image.last.messages.at {
            Some(_) => self.image.last.saved_warnings(),
            None => Some(Vec::new()),
        };
        let Some(messages) = messages else {
            return Ok(false);
        };
        let number = match &get.condition {
            None => None,
            Some(Number::Literal(number)) => Some(*number),
            Some(Number::Variable(name)) => Some(self.image.vars.private.number(name).unwrap_or(0)),
        };
        let found = number.map(|number| {
            let at = usize::try_from(number).ok()?.checked_sub(1)?;
            messages.get(at)
        });
        let message = match found {
            None => None,
            Some(Some(message)) => Some(message),
            Some(None) => {
                let message = ["Error", "1758", "Invalid condition number"];
                let message = message.map(|text| text.as_bytes().into());
                self.image.last.add_message(message);
                self.image.last.answered_here(-1);
                let warnings = 1;
                let fields = OkFields {
                    warnings,
                    ..OkFields::default()
                };
                self.ok(fields).await?;
                return Ok(true);
            }
        };
        let (rows, count) = (self.image.last.row_count(), messages.len());
        let mut values = Vec::new();
        for (name, item) in &get.items {
            let value = match (item, message) {
                (Item::Number, _) => format!("CAST({count} AS UNSIGNED)").into_bytes(),
                (Item::RowCount, _) => rows.to_string().into_bytes(),
                (item, Some(message)) => self.condition_item(*item, message),
                (_, None) => continue,
            };
            values.push((&**name, value));
        }
        self.give_values(&values).await;
        self.image.last.answered_here(rows);
        self.ok(OkFields::default()).await?;
        Ok(true)
    }

    /// Gives user variables their values, also on a connection that is kept.
    async fn give_values(&mut self, values: &[(&[u8], Vec<u8>)]) {
        if values.is_empty() {
            return;
        }
        let mut holds = false;
        let mut kept = self.lease.take();
        if let Some(lease) = &mut kept {
            let mut text = b"SET ".to_vec();
            for (name, value) in values {
                if text.len() > 4 {
                    text.push(b',');
                }
                write_variable(&mut text, name);
                text.push(b'=');
                text.extend_from_slice(value);
            }
            lease.begin();
            holds = self.holds_private(lease);
            let text = String::from_utf8_lossy(&text);
            lease.broken |= lease.query(&text).await.is_err();
        }
        // Those of a connection that is kept for them are not known here.
        if !self.handle.pins().has(PinReason::UserVariable) {
            for (name, value) in values {
                self.image.vars.private.set(name, value.as_slice().into());
            }
            if let Some(lease) = &mut kept {
                self.note_private(lease, holds);
            }
        }
        if let Some(lease) = kept {
            self.keep(lease);
        }
    }

    fn condition_item(&self, item: Item, [level, code, message]: &[Box<[u8]>; 3]) -> Vec<u8> {
        let code = std::str::from_utf8(code)
            .ok()
            .and_then(|code| code.parse().ok())
            .unwrap_or(0);
        let raised = self
            .image
            .last
            .messages
            .last_error
            .filter(|(raised, _)| **level == *b"Error" && u32::from(*raised) == code);
        let state = raised.map_or_else(
            || sqlstate(code, self.image.family).as_bytes().to_vec(),
            |(_, state)| state.to_vec(),
        );
        let text = match item {
            Item::Errno => return format!("CAST({code} AS UNSIGNED)").into_bytes(),
            Item::RowNumber => return b"CAST(0 AS UNSIGNED)".to_vec(),
            Item::Sqlstate => &*state,
            Item::Message => message,
            Item::ClassOrigin => origin(&state, self.image.family, false),
            Item::SubclassOrigin => origin(&state, self.image.family, true),
            Item::Name | Item::Number | Item::RowCount => b"",
        };
        // Saved as results are; the servers' own name for what these items are in is the default.
        let charset = match self.image.vars.state.reported("character_set_results") {
            Some(charset) if item == Item::Message && !charset.starts_with(b"utf8") => {
                String::from_utf8_lossy(charset).into_owned()
            }
            _ => "utf8mb3".to_owned(),
        };
        let mut literal = Vec::new();
        write_hex(&mut literal, &format!("_{charset}"), text);
        literal
    }
}

/// Codes whose SQLSTATE is not HY000, from MySQL's
/// `performance_schema.events_errors_summary_global_by_error`. MariaDB has the same below 1900.
const SQLSTATES: &[(&str, &[u32])] = &[
    (
        "01000",
        &[1249, 1261, 1262, 1265, 1311, 1642, 3519, 3565, 3751],
    ),
    ("01S00", &[3713]),
    ("01S01", &[3715]),
    ("02000", &[1329, 1643]),
    ("08004", &[1040, 1251]),
    (
        "08S01",
        &[
            1042, 1043, 1047, 1053, 1080, 1081, 1152, 1153, 1154, 1155, 1156, 1157, 1158, 1159,
            1160, 1161, 1184, 1189, 1190, 1218, 3068,
        ],
    ),
    ("0A000", &[1312, 1314, 1335, 1336, 1415, 1845, 1846]),
    ("0K000", &[1645]),
    ("0Z002", &[3004]),
    ("20000", &[1339]),
    ("21000", &[1222, 1241, 1242]),
    ("21S01", &[1058, 1136]),
    ("22001", &[1406, 3907]),
    ("22003", &[1264, 1416, 1690, 3155, 3669, 3706, 3752, 3904]),
    ("22004", &[1138, 1263]),
    ("22007", &[1292, 1367]),
    ("22008", &[1441]),
    ("22012", &[1365]),
    ("22018", &[3156, 3903]),
    ("2201E", &[3020]),
    (
        "22023",
        &[3037, 3558, 3559, 3560, 3561, 3562, 3563, 3564, 3727],
    ),
    (
        "22032",
        &[
            3140, 3141, 3144, 3145, 3146, 3147, 3150, 3151, 3157, 3158, 3853,
        ],
    ),
    ("22034", &[3967]),
    ("22035", &[3665, 3966]),
    ("2203F", &[3666]),
    (
        "22S00",
        &[3520, 3618, 3682, 3704, 3705, 3726, 3741, 3742, 3743, 3744],
    ),
    ("22S01", &[3516, 4032]),
    ("22S02", &[3616, 3731]),
    ("22S03", &[3617, 3732]),
    ("22S04", &[4033]),
    ("22S05", &[4034]),
    (
        "23000",
        &[
            1022, 1048, 1052, 1062, 1169, 1216, 1217, 1451, 1452, 1557, 1586, 1761, 1762, 1859,
            3673,
        ],
    ),
    ("24000", &[1325, 1326]),
    ("25000", &[1179, 1207]),
    ("25001", &[1568]),
    ("25006", &[1792]),
    ("28000", &[1045, 1698, 1873]),
    ("2F003", &[1303]),
    ("2F005", &[1321]),
    ("35000", &[1758]),
    ("3D000", &[1046]),
    ("40000", &[3101]),
    ("40001", &[1213]),
    (
        "42000",
        &[
            1044, 1049, 1055, 1056, 1057, 1059, 1061, 1063, 1064, 1065, 1066, 1067, 1068, 1069,
            1070, 1071, 1072, 1073, 1074, 1075, 1083, 1084, 1090, 1091, 1101, 1102, 1103, 1104,
            1106, 1107, 1110, 1112, 1113, 1115, 1118, 1120, 1121, 1131, 1132, 1133, 1139, 1140,
            1141, 1142, 1143, 1144, 1145, 1147, 1148, 1149, 1162, 1163, 1164, 1166, 1167, 1170,
            1171, 1172, 1173, 1176, 1177, 1178, 1203, 1211, 1226, 1227, 1230, 1231, 1232, 1234,
            1235, 1239, 1248, 1250, 1252, 1253, 1280, 1281, 1286, 1304, 1305, 1308, 1309, 1310,
            1313, 1315, 1316, 1318, 1319, 1320, 1322, 1323, 1324, 1327, 1330, 1331, 1332, 1333,
            1337, 1338, 1370, 1403, 1407, 1410, 1413, 1414, 1425, 1426, 1427, 1437, 1439, 1453,
            1458, 1460, 1461, 1463, 1582, 1583, 1584, 1630, 1641, 1687, 1701, 3057, 3061, 3119,
            3131, 3143, 3148, 3149, 3152, 3153, 3154, 3165, 3202, 3630, 3667, 3670, 3753, 3948,
            3999, 4048, 4163,
        ],
    ),
    ("42S01", &[1050]),
    ("42S02", &[1051, 1109, 1146]),
    ("42S12", &[1082]),
    ("42S21", &[1060]),
    ("42S22", &[1054, 1247]),
    ("42Y07", &[3503]),
    ("70100", &[1317]),
    ("HY001", &[1037, 1038]),
    ("SR000", &[3714]),
    ("SR001", &[3521, 3548]),
    (
        "SR002",
        &[
            3517, 3736, 3737, 3738, 3739, 3740, 4105, 4106, 4107, 4124, 4125, 4126, 4127,
        ],
    ),
    ("SR003", &[3518]),
    ("SR004", &[3712]),
    ("SR005", &[3716]),
    ("SR006", &[3708, 3709, 3710, 3711, 3717, 3718]),
    ("SU001", &[3882, 3902]),
    ("XA100", &[1402]),
    ("XA102", &[1614]),
    ("XA106", &[1613]),
    ("XAE03", &[1401]),
    ("XAE04", &[1397]),
    ("XAE05", &[1398]),
    ("XAE07", &[1399]),
    ("XAE08", &[1440]),
    ("XAE09", &[1400]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read() {
        let read = |text: &str| match asked(text.as_bytes(), Family::MySql) {
            Asked::Get(get) => get,
            other => panic!("{text}: {other:?}"),
        };
        let get = read("GET DIAGNOSTICS @n = NUMBER, @`R x`=row_count;");
        assert_eq!(get.condition, None);
        let n: (Box<[u8]>, Item) = (b"n".as_slice().into(), Item::Number);
        let r: (Box<[u8]>, Item) = (b"r x".as_slice().into(), Item::RowCount);
        assert_eq!(get.items, [n, r]);
        for (number, expected) in [("2", 2), ("1.1", 1), ("1.5", 2)] {
            let get = read(&format!(
                "get current diagnostics condition {number} @m=message_text"
            ));
            assert_eq!(get.condition, Some(Number::Literal(expected)));
        }
    }

    #[test]
    fn what_a_server_refuses_is_left_to_it() {
        for (text, in_mysql, in_mariadb) in [
            ("GET DIAGNOSTICS @n=MESSAGE_TEXT", true, true),
            ("GET DIAGNOSTICS @n=INVALID", true, true),
            ("GET DIAGNOSTICS @n=NUMBER,", true, true),
            ("GET DIAGNOSTICS @n", true, true),
            ("GET DIAGNOSTICS CONDITION 1 @n=NUMBER", true, true),
            ("GET DIAGNOSTICS CONDITION -1 @n=MYSQL_ERRNO", true, true),
            ("GET DIAGNOSTICS CONDITION p() @n=MYSQL_ERRNO", true, true),
            (
                "GET DIAGNOSTICS CONDITION 1 @m=MESSAGE_TEXT garbage",
                true,
                true,
            ),
            ("GET DIAGNOSTICS CONDITION a @n=MYSQL_ERRNO", false, true),
            (
                "GET DIAGNOSTICS CONDITION NULL @n=MYSQL_ERRNO",
                false,
                false,
            ),
            ("GET DIAGNOSTICS CONDITION 1e0 @n=MYSQL_ERRNO", false, false),
            ("GET STACKED DIAGNOSTICS @n=NUMBER", false, false),
            ("GET DIAGNOSTICS n=NUMBER", false, false),
            ("GET DIAGNOSTICS @n=NUMBER --", false, false),
            ("GET /*! CURRENT */ DIAGNOSTICS @n=NUMBER", false, false),
        ] {
            for (family, refused) in [(Family::MySql, in_mysql), (Family::MariaDb, in_mariadb)] {
                let expected = match refused {
                    true => Asked::Refused,
                    false => Asked::Unclear,
                };
                assert_eq!(asked(text.as_bytes(), family), expected, "{text}");
            }
        }
    }

    #[test]
    fn codes_have_their_sqlstates() {
        assert_eq!(sqlstate(1264, Family::MySql), "22003");
        assert_eq!(sqlstate(1287, Family::MariaDb), "HY000");
        assert_eq!(sqlstate(3003, Family::MySql), "HY000");
        assert_eq!(origin(b"22003", Family::MySql, true), b"ISO 9075");
        assert_eq!(origin(b"HY000", Family::MySql, true), b"ISO 9075");
        assert_eq!(origin(b"HY000", Family::MySql, false), b"ISO 9075");
        assert_eq!(origin(b"XA100", Family::MySql, false), b"MySQL");
    }
}
