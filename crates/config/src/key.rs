//! What a key is: one declaration, from which it is read, shown and documented. Knows no key itself.

use crate::Secret;
use crate::kind::Kind;
use crate::section::Section;

/// One key of a table that is read into a `T`.
pub(crate) struct Key<'a, T> {
    pub(crate) name: &'static str,
    doc: &'static str,
    sample: Sample,
    is_required: bool,
    is_followed: bool,
    behind: Box<dyn Behind<T> + 'a>,
}

/// How the default file shows a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sample {
    /// Commented out, with its default.
    Default,
    /// Commented out, with this value: it has no default.
    Example(&'static str),
    /// In force, with this value.
    Given(&'static str),
}

/// A key as documents show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    /// What values it takes.
    pub(crate) takes: String,
    /// Empty where it has none.
    pub(crate) default: String,
    pub(crate) sample: Sample,
    /// Its value stands without quotes.
    pub(crate) is_bare: bool,
    pub(crate) is_required: bool,
    /// A change is followed while Millrace runs.
    pub(crate) is_followed: bool,
}

/// A field of `T`.
trait Behind<T> {
    /// Whether nothing was wrong with it.
    fn read(&self, name: &'static str, section: &Section<'_>, target: &mut T) -> bool;
    fn show(&self, target: &T) -> String;
    fn copy(&self, from: &T, to: &mut T);
    fn is_same(&self, one: &T, other: &T) -> bool;
    fn takes(&self) -> String;
    fn is_bare(&self) -> bool;
}

struct Field<T, V, K> {
    get: fn(&T) -> &V,
    get_mut: fn(&mut T) -> &mut V,
    kind: K,
}

impl<T, V: Clone, K: Kind<V>> Behind<T> for Field<T, V, K> {
    fn read(&self, name: &'static str, section: &Section<'_>, target: &mut T) -> bool {
        section.read_as(name, (self.get_mut)(target), &self.kind)
    }

    fn show(&self, target: &T) -> String {
        self.kind.show((self.get)(target))
    }

    fn copy(&self, from: &T, to: &mut T) {
        (self.get_mut)(to).clone_from((self.get)(from));
    }

    fn is_same(&self, one: &T, other: &T) -> bool {
        self.show(one) == self.show(other)
    }

    fn takes(&self) -> String {
        self.kind.takes()
    }

    fn is_bare(&self) -> bool {
        self.kind.is_bare()
    }
}

/// A password, which stands elsewhere: `password_file` or `password_env` say where.
struct Password<T> {
    get: fn(&T) -> Option<&Secret>,
    set: fn(&mut T, Secret),
}

impl<T> Behind<T> for Password<T> {
    fn read(&self, _: &'static str, section: &Section<'_>, target: &mut T) -> bool {
        let secret = section.secret();
        let is_right = secret.is_some() || !section.names_secret();
        if let Some(secret) = secret {
            (self.set)(target, secret);
        }
        is_right
    }

    fn show(&self, target: &T) -> String {
        let is_set = (self.get)(target).is_some_and(|secret| !secret.is_empty());
        if is_set { "(set)" } else { "" }.to_owned()
    }

    fn copy(&self, from: &T, to: &mut T) {
        if let Some(secret) = (self.get)(from) {
            (self.set)(to, secret.clone());
        }
    }

    fn is_same(&self, one: &T, other: &T) -> bool {
        match ((self.get)(one), (self.get)(other)) {
            (Some(one), Some(other)) => one.is(other),
            (one, other) => one.is_some() == other.is_some(),
        }
    }

    fn takes(&self) -> String {
        String::new()
    }

    fn is_bare(&self) -> bool {
        false
    }
}

/// The name under which a password is shown.
const PASSWORD: &str = "password";

impl<'a, T: 'a> Key<'a, T> {
    pub(crate) fn new<V: Clone + 'a>(
        name: &'static str,
        get: fn(&T) -> &V,
        get_mut: fn(&mut T) -> &mut V,
        kind: impl Kind<V> + 'a,
        doc: &'static str,
    ) -> Self {
        Key {
            name,
            doc,
            sample: Sample::Default,
            is_required: false,
            is_followed: false,
            behind: Box::new(Field { get, get_mut, kind }),
        }
    }

    /// The password of something. `sample`: how the default file shows the name of the environment variable.
    pub(crate) fn password(
        get: fn(&T) -> Option<&Secret>,
        set: fn(&mut T, Secret),
        sample: Sample,
    ) -> Self {
        Key {
            name: PASSWORD,
            doc: "",
            sample,
            is_required: false,
            is_followed: false,
            behind: Box::new(Password { get, set }),
        }
    }

    /// It must be there.
    pub(crate) fn required(self) -> Self {
        Key {
            is_required: true,
            ..self
        }
    }

    /// A change is followed on SIGHUP.
    pub(crate) fn followed(self) -> Self {
        Key {
            is_followed: true,
            ..self
        }
    }

    /// The default file shows this value, commented out.
    pub(crate) fn example(self, value: &'static str) -> Self {
        Key {
            sample: Sample::Example(value),
            ..self
        }
    }

    /// The default file has this value.
    pub(crate) fn given(self, value: &'static str) -> Self {
        Key {
            sample: Sample::Given(value),
            ..self
        }
    }

    /// Whether a change is followed while Millrace runs.
    pub(crate) fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// Takes the value over as another configuration has it.
    pub(crate) fn copy(&self, from: &T, to: &mut T) {
        self.behind.copy(from, to);
    }

    /// Whether both have the same value. Secrets are compared as well.
    pub(crate) fn is_same(&self, one: &T, other: &T) -> bool {
        self.behind.is_same(one, other)
    }

    /// Reads it. False where it is wrong, or missing and required; both are reported.
    pub(crate) fn read(&self, section: &Section<'_>, target: &mut T) -> bool {
        let is_right = self.behind.read(self.name, section, target);
        if self.is_required && !section.has(self.name) {
            section.missing(&format!("`{}` is missing", self.name));
            return false;
        }
        is_right
    }

    /// As it would stand in the file, without quotes; of a password only whether there is one.
    pub(crate) fn show(&self, target: &T) -> String {
        self.behind.show(target)
    }

    /// How documents show it, in a table that is like `default` unless something else is said.
    pub(crate) fn rows(&self, default: &T) -> Vec<Row> {
        let row = Row {
            name: self.name,
            doc: self.doc,
            takes: self.behind.takes(),
            default: self.show(default),
            sample: self.sample,
            is_bare: self.behind.is_bare(),
            is_required: self.is_required,
            is_followed: self.is_followed,
        };
        if self.name != PASSWORD {
            return vec![row];
        }
        let file = Row {
            name: "password_file",
            doc: "The password is the content of this file.",
            takes: "file".to_owned(),
            default: String::new(),
            sample: Sample::Example("password"),
            ..row
        };
        let variable = Row {
            name: "password_env",
            doc: "The password is in this environment variable.",
            takes: "name of a variable".to_owned(),
            sample: self.sample,
            ..file.clone()
        };
        vec![variable, file]
    }
}

/// Reads every key; false where one that is required is missing or wrong.
pub(crate) fn read_all<T>(keys: &[Key<'_, T>], section: &Section<'_>, target: &mut T) -> bool {
    let mut is_whole = true;
    for key in keys {
        is_whole &= key.read(section, target) || !key.is_required;
    }
    is_whole
}

/// Declares a key of the table that is read into `$on`: its name, where it is kept, what it takes, and
/// what it is.
macro_rules! key {
    ($on:ty: $name:literal, $($field:tt).+, $kind:expr, $doc:literal $(,)?) => {
        $crate::key::Key::<$on>::new(
            $name,
            |all| &all.$($field).+,
            |all| &mut all.$($field).+,
            $kind,
            $doc,
        )
    };
}
pub(crate) use key;
