//! Reads a file: its tables and keys are `keys`', rules across them are `check`'s.

use millrace_worker::ListenerTls;
use toml::de::DeTable;

use crate::check::{self, Item};
use crate::key::{Key, read_all};
use crate::keys;
use crate::model::no_address;
use crate::rules;
use crate::section::{Section, Source};
use crate::{Account, Admin, Config, ConfigError, Environment, Listener, Secret, Server};

impl Config {
    /// Reads a file's text. `file` names it in errors; relative paths in it are relative to its
    /// folder. All errors are reported, in the order of lines.
    pub fn from_toml(
        file: &str,
        text: &str,
        environment: &Environment,
    ) -> Result<Config, Vec<ConfigError>> {
        let (root, syntax) = DeTable::parse_recoverable(text);
        let source = Source::new(file, text, environment);
        for error in &syntax {
            let at = error.span().map_or(0, |span| span.start);
            source.error(at, error.message().replace('\n', ", "), None);
        }
        let mut config = Config::default();
        let mut origins = Origins::default();
        let section = Section::new(&source, root.get_ref(), 0);
        config.read(&section, &mut origins);
        config.derive();
        section.finish();
        if syntax.is_empty() {
            check::check(&mut config, &origins.places(&source), &mut |error| {
                source.push(error);
            });
        }
        let errors = source.into_errors();
        if errors.is_empty() {
            Ok(config)
        } else {
            Err(errors)
        }
    }

    fn read(&mut self, root: &Section<'_>, origins: &mut Origins) {
        read_all(&keys::root(), root, self);
        for table in keys::tables() {
            let Some(section) = root.table(table.name) else {
                continue;
            };
            read_all(&table.keys, &section, self);
            if let Some(also) = table.also {
                also(&section, self);
            }
            if let Some(item) = table.item {
                origins.tables.push((item, section.start));
            }
            section.finish();
        }
        if let Some(section) = root.table("admin") {
            self.admin = read_admin(&section);
            origins.tables.push((Item::Admin, section.start));
            section.finish();
        }
        self.read_lists(root, origins);
        self.read_rules(root);
    }

    fn read_lists(&mut self, root: &Section<'_>, origins: &mut Origins) {
        let listeners = root.tables("listen");
        origins.listeners_named = !listeners.is_empty();
        for section in listeners {
            let mut listener = Listener::at(no_address());
            if self.tls.required {
                listener.tls = ListenerTls::Required;
            }
            if let Some(listener) = read_one(&keys::listen(), &section, listener) {
                origins.listeners.push(section.start);
                self.listeners.push(listener);
            }
            section.finish();
        }
        let servers = root.tables("server");
        origins.servers_named = !servers.is_empty();
        for section in servers {
            let server = Server::at(no_address());
            if let Some(server) = read_one(&keys::server(), &section, server) {
                origins.servers.push(section.start);
                self.servers.push(server);
            }
            section.finish();
        }
        for section in root.tables("account") {
            if let Some(account) = read_account(&section) {
                origins.accounts.push(section.start);
                self.accounts.push(account);
            }
            section.finish();
        }
    }

    fn read_rules(&mut self, root: &Section<'_>) {
        for section in root.tables("server_set") {
            if let Some((name, servers)) = rules::read_set(&section, &self.servers) {
                if self.sets.contains_key(&name) {
                    section.missing(&format!("the server set `{name}` is there already"));
                }
                self.sets.insert(name, servers);
            }
            section.finish();
        }
        for section in root.tables("rule") {
            let names = rules::Names {
                sets: &self.sets,
                listeners: &self.listeners,
            };
            let rule = rules::read_rule(&section, self.rules.len() + 1, &names);
            if self.rules.iter().any(|other| other.name == rule.name) {
                section.missing(&format!("the rule `{}` is there already", rule.name));
            }
            self.rules.push(rule);
            section.finish();
        }
    }
}

/// None where something is missing without which there is no such thing.
fn read_one<T>(keys: &[Key<'_, T>], section: &Section<'_>, mut target: T) -> Option<T> {
    read_all(keys, section, &mut target).then_some(target)
}

fn read_account(section: &Section<'_>) -> Option<Account> {
    let account = read_one(&keys::account(), section, Account::default());
    let says = account.as_ref().is_some_and(|it| it.consistency.is_some());
    if !section.names_secret() && !says && !section.has("consistency") {
        section.missing("`password_file`, `password_env` or `consistency` is missing");
    }
    // A secret that cannot be read is an error already.
    account.filter(|account| account.password.is_some() || !section.names_secret())
}

/// None where it has no password: that is an error, never a listener without one.
fn read_admin(section: &Section<'_>) -> Option<Admin> {
    let mut admin = Admin::new(Secret::new(Vec::new()));
    let keys = keys::admin();
    let mut is_read = true;
    for key in &keys {
        is_read &= key.read(section, &mut admin) || key.name != "password";
    }
    if !section.names_secret() {
        section.missing("`password_file` or `password_env` is missing");
    } else if is_read && admin.password.is_empty() {
        section.missing("the password of [admin] is empty");
    }
    (!admin.password.is_empty()).then_some(admin)
}

/// Where each thing stood, for the checks across sections.
#[derive(Default)]
struct Origins {
    listeners: Vec<usize>,
    servers: Vec<usize>,
    accounts: Vec<usize>,
    /// There was a `[[listen]]`, right or wrong.
    listeners_named: bool,
    /// There was a `[[server]]`, right or wrong.
    servers_named: bool,
    /// Tables that are there once.
    tables: Vec<(Item, usize)>,
}

impl Origins {
    fn places<'a>(&'a self, source: &'a Source<'a>) -> check::Places<'a> {
        let at = move |item| {
            let offset = match item {
                Item::Listener(at) => self.listeners.get(at).copied(),
                Item::Server(at) => self.servers.get(at).copied(),
                Item::Account(at) => self.accounts.get(at).copied(),
                table => {
                    let mut tables = self.tables.iter();
                    tables.find(|(of, _)| *of == table).map(|(_, at)| *at)
                }
            };
            match offset {
                Some(offset) => source.place(offset),
                None => crate::Place::File(source.context.file.into()),
            }
        };
        check::Places {
            of: Box::new(at),
            listeners_named: self.listeners_named,
            servers_named: self.servers_named,
            how: check::How::File,
        }
    }
}

#[cfg(test)]
mod tests;
