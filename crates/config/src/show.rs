//! The configuration in force as a list of keys and values, for operators. Secrets are never in
//! it: only whether there is one.

use millrace_routing::rules::Rule;

use crate::key::Key;
use crate::keys;
use crate::rules::{self, Names, RuleDraft};
use crate::{Admin, Config, Secret};

/// One key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// `section.key`; of a list of tables, `section[1].key`, counted from 1.
    pub name: String,
    /// As it would stand in the file, without quotes. A secret is `(set)` or empty.
    pub value: String,
    /// The value is the default. Keys of listed tables (`[[listen]]`, `[[server]]`) count as having none.
    pub is_default: bool,
}

/// One rule in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleText {
    /// Its name.
    pub name: String,
    /// Its conditions, as `key = value`, separated by commas; empty: every statement.
    pub when: String,
    /// What it does, in the same form.
    pub then: String,
}

impl Config {
    /// Every key with its value, in the order of the sections.
    pub fn settings(&self) -> Vec<Setting> {
        let own = self.lines();
        let default = Config {
            admin: self
                .admin
                .is_some()
                .then(|| Admin::new(Secret::new(Vec::new()))),
            ..Config::default()
        };
        let default = default.lines();
        let is_default = |name: &str, value: &str| {
            let mut same = default.iter().filter(|(other, _)| other == name);
            same.any(|(_, other)| other == value)
        };
        own.into_iter()
            .map(|(name, value)| Setting {
                is_default: is_default(&name, &value),
                name,
                value,
            })
            .collect()
    }

    fn lines(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        put(&mut lines, "", &keys::root(), self);
        let lists =
            |name: &'static str| (1..).map(move |number: usize| format!("{name}[{number}]."));
        for (prefix, listener) in lists("listen").zip(&self.listeners) {
            put(&mut lines, &prefix, &keys::listen(), listener);
        }
        for (prefix, server) in lists("server").zip(&self.servers) {
            put(&mut lines, &prefix, &keys::server(), server);
        }
        for (prefix, account) in lists("account").zip(&self.accounts) {
            put(&mut lines, &prefix, &keys::account(), account);
        }
        for table in keys::tables() {
            put(&mut lines, &format!("{}.", table.name), &table.keys, self);
            if table.name == "discovery" {
                for (named, reachable) in &self.discovery.options.translate {
                    let name = format!("discovery.translate.{named}");
                    lines.push((name, reachable.to_string()));
                }
            }
        }
        match &self.admin {
            Some(admin) => put(&mut lines, "admin.", &keys::admin(), admin),
            None => lines.push(("admin.listen".to_owned(), String::new())),
        }
        lines
    }

    /// The rules, in order.
    pub fn rule_texts(&self) -> Vec<RuleText> {
        self.rules.iter().map(|rule| self.rule_text(rule)).collect()
    }

    fn rule_text(&self, rule: &Rule) -> RuleText {
        let names = Names {
            sets: &self.sets,
            listeners: &self.listeners,
        };
        let draft = RuleDraft::of(rule.clone());
        let told = |keys: Vec<Key<'_, RuleDraft>>| {
            let shown = keys.iter().map(|key| (key.name, key.show(&draft)));
            shown
                .filter(|(_, value)| !value.is_empty())
                .map(|(name, value)| format!("{name} = {value}"))
                .collect::<Vec<_>>()
        };
        let mut then = told(rules::then_keys(names));
        if rule.goes_on {
            then.push("continue = true".to_owned());
        }
        RuleText {
            name: rule.name.to_string(),
            when: told(rules::when_keys(names)).join(", "),
            then: then.join(", "),
        }
    }
}

/// The sections by which keys are named here: `pool` of `pool.max_connections`.
pub fn sections() -> impl Iterator<Item = &'static str> {
    let lists = ["listen", "server", "account", "admin"];
    let tables = keys::tables().into_iter().map(|table| table.name);
    lists.into_iter().chain(tables)
}

/// Adds a line for each key.
fn put<T>(lines: &mut Vec<(String, String)>, prefix: &str, keys: &[Key<'_, T>], target: &T) {
    for key in keys {
        lines.push((format!("{prefix}{}", key.name), key.show(target)));
    }
}
