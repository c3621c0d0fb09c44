//! Walks the parsed file table by table: hands out values by key, collects what is wrong, and
//! reports the keys that nobody asked for. Knows no key itself.

use std::cell::RefCell;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::environment::Context;
use crate::error::{ConfigError, Place};
use crate::kind::Kind;
use crate::nearest::nearest;
use crate::value::{self, Wrong};
use crate::{Environment, Secret};

/// The file being read, and what was found wrong in it so far.
pub(crate) struct Source<'a> {
    pub(crate) context: Context<'a>,
    text: &'a str,
    errors: RefCell<Vec<ConfigError>>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str, environment: &'a Environment) -> Self {
        Source {
            context: Context { file, environment },
            text,
            errors: RefCell::default(),
        }
    }

    /// The line that holds the byte at `offset`.
    pub(crate) fn place(&self, offset: usize) -> Place {
        let before = self.text.as_bytes().get(..offset).unwrap_or_default();
        Place::Line {
            file: self.context.file.into(),
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
        }
    }

    pub(crate) fn error(&self, offset: usize, what: String, hint: Option<String>) {
        self.push(ConfigError {
            what,
            place: self.place(offset),
            hint,
        });
    }

    pub(crate) fn push(&self, error: ConfigError) {
        self.errors.borrow_mut().push(error);
    }

    /// Everything that was wrong, in the order of lines; what belongs to no line comes last.
    pub(crate) fn into_errors(self) -> Vec<ConfigError> {
        let mut errors = self.errors.into_inner();
        errors.sort_by_key(|error| match error.place {
            Place::Line { line, .. } => line,
            Place::File(_) | Place::Flag(_) => usize::MAX,
        });
        errors
    }
}

/// One table of the file.
pub(crate) struct Section<'a> {
    source: &'a Source<'a>,
    table: &'a DeTable<'a>,
    /// Where it starts, for errors about what is missing.
    pub(crate) start: usize,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Section<'a> {
    pub(crate) fn new(source: &'a Source<'a>, table: &'a DeTable<'a>, start: usize) -> Self {
        Section {
            source,
            table,
            start,
            asked: RefCell::default(),
        }
    }

    fn value(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().push(key);
        self.table.get(key)
    }

    fn wrong(&self, at: &Spanned<DeValue<'_>>, key: &str, wrong: Wrong) {
        let what = format!("`{key}` {}", wrong.what);
        self.source.error(at.span().start, what, wrong.hint);
    }

    /// Parses a key's value into `target`, which stays as it is where the key is missing or wrong.
    pub(crate) fn read<T>(
        &self,
        key: &'static str,
        target: &mut T,
        parse: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
    ) {
        if let Some(value) = self.value(key) {
            match parse(value.get_ref()) {
                Ok(parsed) => *target = parsed,
                Err(wrong) => self.wrong(value, key, wrong),
            }
        }
    }

    /// As [`Section::read`], for what may be left out.
    pub(crate) fn read_some<T>(
        &self,
        key: &'static str,
        target: &mut Option<T>,
        parse: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
    ) {
        self.read(key, target, |value| parse(value).map(Some));
    }

    /// Reports something that the table as a whole lacks.
    pub(crate) fn missing(&self, what: &str) {
        self.source.error(self.start, what.into(), None);
    }

    /// As [`Section::read`], by the kind of the value. False where it is wrong.
    pub(crate) fn read_as<V>(
        &self,
        key: &'static str,
        target: &mut V,
        kind: &impl Kind<V>,
    ) -> bool {
        let Some(value) = self.value(key) else {
            return true;
        };
        match kind.parse(&self.source.context, value.get_ref()) {
            Ok(parsed) => *target = parsed,
            Err(wrong) => {
                self.wrong(value, key, wrong);
                return false;
            }
        }
        true
    }

    /// Whether the key is there, right or wrong.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.get(key).is_some()
    }

    /// The secret that `password_file` or `password_env` names; none where neither does, or where
    /// it is wrong.
    pub(crate) fn secret(&self) -> Option<Secret> {
        self.refuse_plain_password();
        let (mut file, mut variable) = (None, None);
        self.read_some("password_file", &mut file, |value| {
            let path = self.source.context.resolve(&value::text(value)?);
            read_secret(self.source.context.environment, &path).map_err(Wrong::new)
        });
        self.read_some("password_env", &mut variable, |value| {
            let name = value::text(value)?;
            (self.source.context.environment.variable)(&name)
                .map(|secret| Secret::new(secret.into_bytes()))
                .ok_or_else(|| {
                    Wrong::new(format!("names `{name}`, which is not in the environment"))
                })
        });
        if let (Some(_), Some(second)) = (
            self.table.get("password_file"),
            self.table.get("password_env"),
        ) {
            let wrong = Wrong::new("must not stand beside `password_file`");
            self.wrong(second, "password_env", wrong);
        }
        file.or(variable)
    }

    /// Whether a secret is named, right or wrong.
    pub(crate) fn names_secret(&self) -> bool {
        ["password", "password_file", "password_env"]
            .iter()
            .any(|key| self.has(key))
    }

    fn refuse_plain_password(&self) {
        if self.table.get("password").is_some() {
            self.asked.borrow_mut().push("password");
            let hint = "passwords are not kept in this file: put it into a file of its own and \
                        name that with `password_file`, or into an environment variable and name \
                        that with `password_env`";
            let at = self.offset_of("password");
            let what = "`password` is not allowed".into();
            self.source.error(at, what, Some(hint.into()));
        }
    }

    fn offset_of(&self, key: &str) -> usize {
        self.table
            .iter()
            .find(|(name, _)| name.get_ref() == key)
            .map_or(self.start, |(name, _)| name.span().start)
    }

    /// `[key]`; none where it is missing.
    pub(crate) fn table(&self, key: &'static str) -> Option<Section<'a>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Section::new(self.source, table, value.span().start)),
            DeValue::Array(_) => {
                let what = format!("`{key}` is one table; write [{key}], not [[{key}]]");
                self.source.error(value.span().start, what, None);
                None
            }
            _ => {
                self.wrong(value, key, Wrong::new(format!("must be a table: [{key}]")));
                None
            }
        }
    }

    /// Every key, which may be any, with its value. What is wrong is reported and left out.
    pub(crate) fn pairs<K, V>(
        &self,
        parse_key: impl Fn(&str) -> Result<K, String>,
        parse: impl Fn(&DeValue<'_>) -> Result<V, Wrong>,
    ) -> Vec<(K, V)> {
        let mut pairs = Vec::new();
        for (name, value) in self.table {
            let key: &str = name.get_ref();
            match (parse_key(key), parse(value.get_ref())) {
                (Ok(key), Ok(value)) => pairs.push((key, value)),
                (Err(what), _) => self.source.error(name.span().start, what, None),
                (_, Err(wrong)) => self.wrong(value, key, wrong),
            }
        }
        pairs
    }

    /// Every `[[key]]`.
    pub(crate) fn tables(&self, key: &'static str) -> Vec<Section<'a>> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let DeValue::Array(array) = value.get_ref() else {
            let what = format!("`{key}` is a list of tables; write [[{key}]]");
            self.source.error(value.span().start, what, None);
            return Vec::new();
        };
        let mut sections = Vec::new();
        for item in array.iter() {
            match item.get_ref() {
                DeValue::Table(table) => {
                    sections.push(Section::new(self.source, table, item.span().start));
                }
                _ => self.wrong(item, key, Wrong::new(format!("must be tables: [[{key}]]"))),
            }
        }
        sections
    }

    /// Reports the keys that were never asked for.
    pub(crate) fn finish(self) {
        let asked = self.asked.borrow();
        for name in self.table.keys() {
            let key: &str = name.get_ref();
            if !asked.contains(&key) {
                let hint = nearest(key, &asked).map(|near| format!("did you mean `{near}`?"));
                let what = format!("unknown key `{key}`");
                self.source.error(name.span().start, what, hint);
            }
        }
    }
}

/// A file's content without the line end that editors leave behind it.
pub(crate) fn read_secret(environment: &Environment, path: &Path) -> Result<Secret, String> {
    let mut bytes = (environment.read)(path)
        .map_err(|error| format!("names a file that cannot be read: {error}"))?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    Ok(Secret::new(bytes))
}
