//! The kinds of values: each reads a value, shows it again and says what it takes. Knows no key.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use crate::Address;
use crate::environment::Context;
use crate::value::{self, Wrong, show_duration, show_size};
use crate::words::Words;

type Parsed<V> = Result<V, Wrong>;

/// What the value of a key may be.
pub(crate) trait Kind<V> {
    /// Reads what stands in the file.
    fn parse(&self, context: &Context<'_>, value: &DeValue<'_>) -> Parsed<V>;
    /// As it would stand in the file, without quotes; empty where there is none.
    fn show(&self, value: &V) -> String;
    /// What it takes, for documents.
    fn takes(&self) -> String;
    /// It stands in the file without quotes.
    fn is_bare(&self) -> bool {
        false
    }
}

/// A whole number within bounds, both included.
pub(crate) struct Number {
    min: u32,
    max: u32,
}

pub(crate) fn number(min: u32, max: u32) -> Number {
    Number { min, max }
}

impl<V: TryFrom<u32> + Display> Kind<V> for Number {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<V> {
        let number = value::number(self.min, self.max)(value)?;
        V::try_from(number).map_err(|_| Wrong::new("is too large"))
    }

    fn show(&self, value: &V) -> String {
        value.to_string()
    }

    fn takes(&self) -> String {
        format!("number from {} to {}", self.min, self.max)
    }

    fn is_bare(&self) -> bool {
        true
    }
}

/// A part of a whole, from 0 to 1.
pub(crate) struct Share;

impl Kind<f64> for Share {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<f64> {
        value::share(value)
    }

    fn show(&self, value: &f64) -> String {
        format!("{value:?}")
    }

    fn takes(&self) -> String {
        "number from 0.0 to 1.0".to_owned()
    }

    fn is_bare(&self) -> bool {
        true
    }
}

/// True or false.
pub(crate) struct Flag;

impl Kind<bool> for Flag {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<bool> {
        value::flag(value)
    }

    fn show(&self, value: &bool) -> String {
        value.to_string()
    }

    fn takes(&self) -> String {
        "true or false".to_owned()
    }

    fn is_bare(&self) -> bool {
        true
    }
}

/// A string that is not empty; shown as empty where there is none.
pub(crate) struct Text;

impl<V: From<String> + AsRef<str>> Kind<V> for Text {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<V> {
        value::text(value).map(V::from)
    }

    fn show(&self, value: &V) -> String {
        value.as_ref().to_owned()
    }

    fn takes(&self) -> String {
        "text".to_owned()
    }
}

/// One string or a list of them.
pub(crate) struct Texts;

impl Kind<Vec<String>> for Texts {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<Vec<String>> {
        value::texts(value)
    }

    fn show(&self, value: &Vec<String>) -> String {
        value.join(", ")
    }

    fn takes(&self) -> String {
        "text, or a list of texts".to_owned()
    }
}

/// One of a few words.
pub(crate) struct Choice<V: 'static>(pub(crate) Words<V>);

impl<V: Copy + PartialEq> Kind<V> for Choice<V> {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<V> {
        value::choice(self.0)(value)
    }

    fn show(&self, value: &V) -> String {
        let word = self.0.iter().find(|(_, known)| known == value);
        word.map_or("", |(word, _)| word).to_owned()
    }

    fn takes(&self) -> String {
        let words: Vec<String> = self
            .0
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        listed(&words)
    }
}

/// As people list things: `a, b or c`.
fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// A duration of at least so much, in whatever unit the option is kept.
pub(crate) struct Time {
    min: Duration,
}

/// A duration of at least `min`.
pub(crate) fn time(min: Duration) -> Time {
    Time { min }
}

/// A duration, 0 included.
pub(crate) const ANY_TIME: Time = Time {
    min: Duration::ZERO,
};

impl Time {
    fn parsed(&self, value: &DeValue<'_>) -> Parsed<Duration> {
        value::duration(self.min)(value)
    }

    fn says(&self) -> String {
        match self.min {
            Duration::ZERO => "duration".to_owned(),
            min => format!("duration, at least {}", show_duration(min)),
        }
    }
}

impl Kind<Duration> for Time {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<Duration> {
        self.parsed(value)
    }

    fn show(&self, value: &Duration) -> String {
        show_duration(*value)
    }

    fn takes(&self) -> String {
        self.says()
    }
}

/// An option that is kept in milliseconds.
pub(crate) struct Millis(pub(crate) Time);

impl<V: TryFrom<u128> + Copy + Into<u64>> Kind<V> for Millis {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<V> {
        let time = self.0.parsed(value)?;
        V::try_from(time.as_millis()).map_err(|_| Wrong::new("is too long"))
    }

    fn show(&self, value: &V) -> String {
        show_duration(Duration::from_millis((*value).into()))
    }

    fn takes(&self) -> String {
        self.0.says()
    }
}

/// An option that is kept in whole seconds.
pub(crate) struct Seconds(pub(crate) Time);

impl Kind<u64> for Seconds {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<u64> {
        Ok(self.0.parsed(value)?.as_secs())
    }

    fn show(&self, value: &u64) -> String {
        show_duration(Duration::from_secs(*value))
    }

    fn takes(&self) -> String {
        self.0.says()
    }
}

/// A duration of which 0 means that it never passes.
pub(crate) struct OrNever(pub(crate) Time);

impl Kind<Duration> for OrNever {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<Duration> {
        match self.0.parsed(value)? {
            Duration::ZERO => Ok(Duration::MAX),
            time => Ok(time),
        }
    }

    fn show(&self, value: &Duration) -> String {
        match *value {
            Duration::MAX => show_duration(Duration::ZERO),
            time => show_duration(time),
        }
    }

    fn takes(&self) -> String {
        self.0.says()
    }
}

/// A number of bytes within bounds, both included.
pub(crate) struct Size {
    min: u64,
    max: u64,
}

pub(crate) fn size(min: u64, max: u64) -> Size {
    Size { min, max }
}

impl Kind<usize> for Size {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<usize> {
        let bytes = value::size(self.min, self.max)(value)?;
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    fn show(&self, value: &usize) -> String {
        show_size(*value as u64)
    }

    fn takes(&self) -> String {
        match self.min {
            0 => format!("size up to {}", show_size(self.max)),
            min => format!("size from {} to {}", show_size(min), show_size(self.max)),
        }
    }
}

/// What may be left out.
pub(crate) struct Maybe<K>(pub(crate) K);

impl<V, K: Kind<V>> Kind<Option<V>> for Maybe<K> {
    fn parse(&self, context: &Context<'_>, value: &DeValue<'_>) -> Parsed<Option<V>> {
        self.0.parse(context, value).map(Some)
    }

    fn show(&self, value: &Option<V>) -> String {
        value
            .as_ref()
            .map_or_else(String::new, |value| self.0.show(value))
    }

    fn takes(&self) -> String {
        self.0.takes()
    }

    fn is_bare(&self) -> bool {
        self.0.is_bare()
    }
}

/// A path to a file, relative to the configuration's folder.
pub(crate) enum File {
    /// It must be there.
    Readable,
    /// It may be made later.
    Any,
}

impl Kind<PathBuf> for File {
    fn parse(&self, context: &Context<'_>, value: &DeValue<'_>) -> Parsed<PathBuf> {
        let path = context.resolve(&value::text(value)?);
        match self {
            File::Readable => match (context.environment.read)(&path) {
                Ok(_) => Ok(path),
                Err(error) => Err(Wrong::new(format!(
                    "names a file that cannot be read: {error}"
                ))),
            },
            File::Any => Ok(path),
        }
    }

    fn show(&self, value: &PathBuf) -> String {
        value.display().to_string()
    }

    fn takes(&self) -> String {
        "file".to_owned()
    }
}

/// An address to listen on, or to connect to.
pub(crate) enum At {
    Listen,
    Connect,
}

impl Kind<Address> for At {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<Address> {
        let port = match self {
            At::Listen => None,
            At::Connect => Some(3306),
        };
        Address::parse(&value::text(value)?, port)
            .map_err(|why| Wrong::new(format!("is wrong: {why}")))
    }

    fn show(&self, value: &Address) -> String {
        value.to_string()
    }

    fn takes(&self) -> String {
        match self {
            At::Listen => "address",
            At::Connect => "address; without a port it is 3306",
        }
        .to_owned()
    }
}

/// A kind that one key alone has.
pub(crate) struct Own<V> {
    pub(crate) parse: fn(&DeValue<'_>) -> Parsed<V>,
    pub(crate) show: fn(&V) -> String,
    pub(crate) takes: &'static str,
}

impl<V> Kind<V> for Own<V> {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<V> {
        (self.parse)(value)
    }

    fn show(&self, value: &V) -> String {
        (self.show)(value)
    }

    fn takes(&self) -> String {
        self.takes.to_owned()
    }
}
