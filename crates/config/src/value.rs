//! Reads single values: durations, sizes, numbers, words. Knows no key.

use std::time::Duration;

use toml::de::DeValue;

use crate::nearest::nearest;

/// Why a value is wrong: `must be …`, and what was probably meant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) what: String,
    pub(crate) hint: Option<String>,
}

impl Wrong {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Wrong {
            what: what.into(),
            hint: None,
        }
    }

    fn not(expected: &str, value: &DeValue<'_>) -> Self {
        Wrong::new(format!("must be {expected}, not {}", show(value)))
    }
}

type Parsed<T> = Result<T, Wrong>;

/// A value as it was written, shortened to what fits a line.
fn show(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) if text.len() <= 60 => format!("\"{text}\""),
        DeValue::String(_) => "a long string".into(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".into(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

pub(crate) fn text(value: &DeValue<'_>) -> Parsed<String> {
    match value.as_str() {
        Some("") => Err(Wrong::new("must not be empty")),
        Some(text) => Ok(text.into()),
        None => Err(Wrong::not("a string", value)),
    }
}

/// A string, or a list of them.
pub(crate) fn texts(value: &DeValue<'_>) -> Parsed<Vec<String>> {
    match value {
        DeValue::Array(list) if !list.is_empty() => {
            list.iter().map(|item| text(item.get_ref())).collect()
        }
        DeValue::String(_) => Ok(vec![text(value)?]),
        _ => Err(Wrong::not("a string or a list of strings", value)),
    }
}

pub(crate) fn flag(value: &DeValue<'_>) -> Parsed<bool> {
    value
        .as_bool()
        .ok_or_else(|| Wrong::not("true or false", value))
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A number from 0 to 1, both included.
pub(crate) fn share(value: &DeValue<'_>) -> Parsed<f64> {
    let number = match value {
        DeValue::Float(number) => number.as_str().parse().ok(),
        _ => integer(value).map(|number| number as f64),
    };
    number
        .filter(|number| (0.0..=1.0).contains(number))
        .ok_or_else(|| Wrong::not("a number from 0.0 to 1.0", value))
}

/// A whole number within bounds, both included.
pub(crate) fn number(min: u32, max: u32) -> impl Fn(&DeValue<'_>) -> Parsed<u32> {
    move |value| {
        integer(value)
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| Wrong::not(&format!("a number from {min} to {max}"), value))
    }
}

/// One of a few words.
pub(crate) fn choice<T: Copy>(
    words: &'static [(&'static str, T)],
) -> impl Fn(&DeValue<'_>) -> Parsed<T> {
    move |value| {
        let text = value.as_str().unwrap_or_default();
        if let Some((_, chosen)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(*chosen);
        }
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
        Err(Wrong {
            hint: nearest(text, &names).map(|name| format!("did you mean \"{name}\"?")),
            ..Wrong::not(&format!("one of {}", quoted.join(", ")), value)
        })
    }
}

/// A number and a unit without a blank: `10s`. Fractions are not taken.
fn split_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start()))
}

fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text)?;
    let us = match unit {
        "us" | "µs" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        "" if number == 0 => 0,
        _ => return None,
    };
    number.checked_mul(us).map(Duration::from_micros)
}

/// In the largest unit that needs no fraction.
pub(crate) fn show_duration(time: Duration) -> String {
    let us = time.as_micros();
    let units = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    match units
        .iter()
        .find(|(unit, _)| us >= *unit && us.is_multiple_of(*unit))
    {
        _ if us == 0 => "0s".to_owned(),
        Some((unit, name)) => format!("{}{name}", us / unit),
        None => format!("{us}us"),
    }
}

const YEAR: Duration = Duration::from_secs(366 * 86_400);

/// A duration of at least `min` and at most a year.
pub(crate) fn duration(min: Duration) -> impl Fn(&DeValue<'_>) -> Parsed<Duration> {
    move |value| {
        let parsed = match value.as_str() {
            Some(text) => parse_duration(text),
            None => integer(value).filter(|n| *n == 0).map(|_| Duration::ZERO),
        };
        match parsed {
            Some(duration) if duration < min => Err(Wrong::new(format!(
                "must be at least {min:?}, not {}",
                show(value)
            ))),
            Some(duration) if duration > YEAR => Err(Wrong::new(format!(
                "must be a year at most, not {}",
                show(value)
            ))),
            Some(duration) => Ok(duration),
            None => Err(Wrong {
                hint: integer(value).map(|n| format!("give a unit: \"{n}s\" or \"{n}ms\"")),
                ..Wrong::not("a duration such as \"500ms\", \"10s\" or \"5m\"", value)
            }),
        }
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text)?;
    let bytes = match unit {
        "B" | "" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return None,
    };
    number.checked_mul(bytes)
}

/// A string as it stands in a file.
pub(crate) fn show_text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A number of bytes within bounds, both included: `"64MiB"`, or a plain number.
pub(crate) fn size(min: u64, max: u64) -> impl Fn(&DeValue<'_>) -> Parsed<u64> {
    move |value| {
        let parsed = match value.as_str() {
            Some(text) => parse_size(text),
            None => integer(value),
        };
        match parsed {
            Some(bytes) if (min..=max).contains(&bytes) => Ok(bytes),
            Some(_) => Err(Wrong::new(format!(
                "must be from {} to {}, not {}",
                show_size(min),
                show_size(max),
                show(value)
            ))),
            None => Err(Wrong::not("a size such as \"64MiB\" or \"512KiB\"", value)),
        }
    }
}

/// In the largest unit that needs no fraction.
pub(crate) fn show_size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    units
        .iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))
        .map_or_else(
            || format!("{bytes}B"),
            |(unit, name)| format!("{}{name}", bytes / unit),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let table = [
            ("500ms", Some(500)),
            ("3000us", Some(3)),
            ("3000 µs", Some(3)),
            ("10s", Some(10_000)),
            ("10 s", Some(10_000)),
            ("5m", Some(300_000)),
            ("5min", Some(300_000)),
            ("1h", Some(3_600_000)),
            ("2d", Some(172_800_000)),
            ("0", Some(0)),
            ("10", None),
            ("1.5s", None),
            ("-1s", None),
            ("s", None),
            ("", None),
            ("18446744073709551615d", None),
        ];
        for (text, ms) in table {
            let parsed = parse_duration(text);
            assert_eq!(parsed, ms.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn sizes() {
        let table = [
            ("64MiB", Some(64 << 20)),
            ("64M", Some(64 << 20)),
            ("1GiB", Some(1 << 30)),
            ("3KB", Some(3_000)),
            ("77", Some(77)),
            ("77B", Some(77)),
            ("64mib", None),
            ("MiB", None),
        ];
        for (text, bytes) in table {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
        assert_eq!(show_size(64 << 20), "64MiB");
        assert_eq!(show_size(1500), "1500B");
    }
}
