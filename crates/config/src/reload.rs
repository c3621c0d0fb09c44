//! The configuration in force, and what a file that was read again changes of it: the keys that are declared
//! to be followed. Reads no file.

use crate::key::Key;
use crate::keys;
use crate::model::no_address;
use crate::{Config, RuleText, Server, Setting};

/// What is configured, at one moment. Never changed: a reload makes another, which replaces it whole.
#[derive(Debug)]
pub struct Settings {
    /// Every key as it is in force.
    pub config: Config,
    /// The same for operators, without secrets.
    pub shown: Vec<Setting>,
    /// The rules for operators.
    pub rules: Vec<RuleText>,
}

impl Settings {
    /// Those that a process starts with.
    pub fn new(config: Config) -> Settings {
        Settings {
            shown: config.settings(),
            rules: config.rule_texts(),
            config,
        }
    }

    /// Those that take the place of these where `read` is what the file says now.
    pub fn reloaded(&self, read: &Config) -> Settings {
        Settings::new(self.config.following(read))
    }
}

impl Config {
    /// With the values that `read` has for the keys that are followed; all others stay.
    fn following(&self, read: &Config) -> Config {
        let mut next = self.clone();
        for keys in root_and_tables() {
            follow(&keys, read, &mut next);
        }
        let keys = keys::server();
        for server in &mut next.servers {
            let mut same = read.servers.iter();
            match same.find(|other| other.address == server.address) {
                Some(now) => follow(&keys, now, server),
                // It is used until a restart, as one of which nothing is said.
                None => follow(&keys, &Server::at(no_address()), server),
            }
        }
        next.derive();
        next
    }

    /// The names of the keys in which `read` is not what is in force. They take a restart.
    pub fn differences(&self, read: &Config) -> Vec<String> {
        let mut names = Vec::new();
        for (name, keys) in std::iter::once("")
            .chain(table_names())
            .zip(root_and_tables())
        {
            let prefix = match name {
                "" => String::new(),
                name => format!("{name}."),
            };
            differ(&mut names, &prefix, &keys, self, read);
        }
        if self.discovery.options.translate != read.discovery.options.translate {
            names.push("discovery.translate".to_owned());
        }
        let (listen, server, account) = (keys::listen(), keys::server(), keys::account());
        differ_each(
            &mut names,
            "listen",
            &listen,
            &self.listeners,
            &read.listeners,
        );
        differ_each(&mut names, "server", &server, &self.servers, &read.servers);
        differ_each(
            &mut names,
            "account",
            &account,
            &self.accounts,
            &read.accounts,
        );
        match (&self.admin, &read.admin) {
            (None, None) => {}
            (Some(admin), Some(other)) => {
                differ(&mut names, "admin.", &keys::admin(), admin, other);
            }
            _ => names.push("admin".to_owned()),
        }
        if self.sets != read.sets {
            names.push("server_set".to_owned());
        }
        if self.rule_texts() != read.rule_texts() {
            names.push("rule".to_owned());
        }
        names
    }
}

fn root_and_tables() -> impl Iterator<Item = Vec<Key<'static, Config>>> {
    let tables = keys::tables().into_iter().map(|table| table.keys);
    std::iter::once(keys::root()).chain(tables)
}

fn table_names() -> impl Iterator<Item = &'static str> {
    keys::tables().into_iter().map(|table| table.name)
}

fn follow<T>(keys: &[Key<'_, T>], from: &T, to: &mut T) {
    for key in keys.iter().filter(|key| key.is_followed()) {
        key.copy(from, to);
    }
}

/// Names the keys whose values are not the same.
fn differ<T>(names: &mut Vec<String>, prefix: &str, keys: &[Key<'_, T>], one: &T, other: &T) {
    let changed = keys.iter().filter(|key| !key.is_same(one, other));
    names.extend(changed.map(|key| format!("{prefix}{}", key.name)));
}

/// The same of tables that are there several times, in their order.
fn differ_each<T>(
    names: &mut Vec<String>,
    list: &str,
    keys: &[Key<'_, T>],
    these: &[T],
    others: &[T],
) {
    for (number, (one, other)) in (1..).zip(these.iter().zip(others)) {
        differ(names, &format!("{list}[{number}]."), keys, one, other);
    }
    let (fewer, more) = (these.len().min(others.len()), these.len().max(others.len()));
    names.extend((fewer + 1..=more).map(|number| format!("{list}[{number}]")));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Environment;

    const FILE: &str = "coalesce_limit = \"1ms\"\n\
        [[listen]]\naddress = \"*:1\"\n\
        [[server]]\naddress = \"a\"\n\
        [[server]]\naddress = \"b\"\ndraining = true\n\
        [[rule]]\nname = \"r\"\naccount = \"x\"\nrefuse = \"no\"\n\
        [monitor]\nuser = \"m\"\npassword_file = \"one\"\n";

    /// A file's name is the password in it.
    fn config(text: &str) -> Config {
        let environment = Environment {
            read: Box::new(|path: &Path| Ok(path.as_os_str().as_encoded_bytes().to_vec())),
            variable: Box::new(|_| None),
        };
        Config::from_toml("m.toml", text, &environment).expect("a right file")
    }

    fn draining(config: &Config) -> Vec<bool> {
        config
            .servers
            .iter()
            .map(|server| server.draining)
            .collect()
    }

    #[test]
    fn a_reload_takes_what_is_followed_and_names_the_rest() {
        let table: [(&str, &str, [bool; 2], &[&str]); 9] = [
            ("", "", [false, true], &[]),
            ("\"a\"\n", "\"a\"\ndraining = true\n", [true, true], &[]),
            ("draining = true", "draining = false", [false, false], &[]),
            ("\"1ms\"", "\"2ms\"", [false, true], &["coalesce_limit"]),
            ("\"*:1\"", "\"*:2\"", [false, true], &["listen[1].address"]),
            ("\"one\"", "\"two\"", [false, true], &["monitor.password"]),
            ("\"no\"", "\"never\"", [false, true], &["rule"]),
            (
                "[[server]]\naddress = \"b\"\ndraining = true\n",
                "",
                [false, false],
                &["server[2]"],
            ),
            (
                "[[rule]]",
                "[admin]\npassword_file = \"x\"\n[[server_set]]\nname = \"s\"\nservers = [\"a:3306\"]\n[[rule]]",
                [false, true],
                &["admin", "server_set"],
            ),
        ];
        let before = Settings::new(config(FILE));
        for (old, new, drained, rest) in table {
            let read = config(&FILE.replacen(old, new, 1));
            let after = before.reloaded(&read);
            assert_eq!(draining(&after.config), drained, "{new:?}");
            assert_eq!(after.config.differences(&read), rest, "{new:?}");
            let shown = after
                .shown
                .iter()
                .filter(|one| one.name.ends_with(".draining"));
            let shown: Vec<bool> = shown.map(|one| one.value == "true").collect();
            assert_eq!(shown, drained, "{new:?}");
        }
    }
}
