//! EXPLAIN ROUTE and SHOW ROUTE: what would become of a statement, and what became of the last one.
//! Answered here; the explained statement is never run.

use millrace_engine::request::{Request, Task};
use millrace_protocol::resultset::{Cell, ColumnDef, TextResult};
use millrace_routing::Reason;
use millrace_routing::explain::{Line, Question, explain};
use millrace_routing::rules::idle_item;
use millrace_sql::{Family, Hint};

use crate::error::{Abort, ClientError};
use crate::session::Session;

/// Whether the text asks Millrace about routes.
pub(in crate::session) fn is_own(text: &[u8]) -> bool {
    explained(text).is_some() || asks_for_last(text)
}

/// EXPLAIN ROUTE: the statement that it asks about. A single name is that of a column: `EXPLAIN route
/// id` describes a table.
pub(in crate::session) fn explained(text: &[u8]) -> Option<&[u8]> {
    let rest = after_word(after_word(text.trim_ascii(), b"EXPLAIN")?, b"ROUTE")?;
    let statement = rest.strip_suffix(b";").unwrap_or(rest).trim_ascii_end();
    let mut words = statement
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let first = words.next()?;
    let ends = [&b"BEGIN"[..], b"COMMIT", b"ROLLBACK"];
    let alone = ends.iter().any(|end| first.eq_ignore_ascii_case(end));
    (words.next().is_some() || alone || first.contains(&b'(')).then_some(rest)
}

/// SHOW ROUTE, with or without a `;`.
pub(in crate::session) fn asks_for_last(text: &[u8]) -> bool {
    let rest = after_word(text.trim_ascii(), b"SHOW").and_then(|rest| after_word(rest, b"ROUTE"));
    rest.is_some_and(|rest| matches!(rest, b"" | b";"))
}

fn after_word<'t>(text: &'t [u8], word: &[u8]) -> Option<&'t [u8]> {
    let (start, rest) = text.split_at_checked(word.len())?;
    let ends = rest
        .first()
        .is_none_or(|byte| byte.is_ascii_whitespace() || *byte == b';');
    (start.eq_ignore_ascii_case(word) && ends).then(|| rest.trim_ascii_start())
}

/// What a read was held to, where that was not its whole position.
const BY_TABLE: &str = "what touches its tables and keys: docs/consistency.md";

impl Session {
    /// Answers EXPLAIN ROUTE.
    pub(in crate::session) async fn explain_route(&mut self, text: &[u8]) -> Result<(), Abort> {
        let text = text.strip_suffix(b";").unwrap_or(text);
        let database = &self.image.vars.state.database;
        let class = self.worker.lists.classify(text, &self.image.vars.lex);
        let access = self.access(&class, text);
        let directions = self.said(&class, text, access, database);
        let rewritten = self.rewritten(directions.as_deref(), text);
        let text = rewritten.as_deref().unwrap_or(text);
        let (class, access, directions) = match rewritten {
            None => (class, access, directions),
            Some(_) => {
                self.worker.lists.put_class(class);
                let class = self.worker.lists.classify(text, &self.image.vars.lex);
                let access = self.access(&class, text);
                let directions = self.said(&class, text, access, database);
                (class, access, directions)
            }
        };
        let request = Request::packet(Task::Query, &[], &class, access).directed(directions);
        let seen = self.look_around(&request);
        self.image.reads.primary_position = None;
        if self.needs_primary_position(&request) {
            Box::pin(self.ask_frontier()).await;
        }
        self.project(&request, Some(text));
        let pins = self.handle.pins().names();
        let hint = Hint::of(&class, text);
        let mut lines = self.weigh(&request, seen, |world, options, session, load| {
            explain(&Question {
                text,
                class: &class,
                access,
                directions: request.directions.as_deref(),
                unknown_hint: hint
                    .as_ref()
                    .and_then(|hint| idle_item(hint, &self.settings.sets)),
                rules: &self.settings.rules,
                pins: &pins,
                session: *session,
                world,
                options,
                load: *load,
            })
        });
        if rewritten.is_some() {
            let text = String::from_utf8_lossy(text).into_owned();
            lines.insert(0, ("rewritten to".to_owned(), text));
        }
        if self.running.route.by_table {
            lines.push(("held to".to_owned(), BY_TABLE.to_owned()));
        }
        self.forget_projected();
        if let Some(cached) = self.explain_cached(&request, text) {
            lines.push(("cache".to_owned(), cached));
        }
        self.worker.lists.put_class(class.clone());
        self.show_lines(&lines).await
    }

    /// Answers SHOW ROUTE.
    pub(in crate::session) async fn show_route(&mut self) -> Result<(), Abort> {
        let route = self.running.route.clone();
        let mut lines: Vec<Line> = Vec::new();
        let mut say = |about: &str, what: String| lines.push((about.to_owned(), what));
        if route.reason == Some(Reason::Cached) {
            say("went to", "memory: docs/cache.md".to_owned());
            say("level", route.level.name().to_owned());
            return self.show_lines(&lines).await;
        }
        let Some(server) = route.server else {
            let text = "Millrace: no server has run a statement of this session yet";
            return Err(ClientError::client(1105, b"HY000", text).into());
        };
        let name = self.worker.cluster.with_world(|world| {
            let view = world.snapshot.server(server);
            view.map_or_else(|| server.to_string(), |view| view.address.to_string())
        });
        say("went to", name);
        if let Some(reason) = route.reason {
            say("because", reason.as_str().to_owned());
        }
        say("level", route.level.name().to_owned());
        if route.by_table {
            say("held to", BY_TABLE.to_owned());
        }
        say(
            "waited for its position",
            if route.waited { "yes" } else { "no" }.to_owned(),
        );
        say("servers tried before", route.refused.to_string());
        if let Some(directions) = &route.directions {
            for number in &directions.matched {
                if let Some(rule) = self.settings.rules.get(*number) {
                    say("rule", rule.name.to_string());
                }
            }
        }
        let pins = self.handle.pins().names();
        if !pins.is_empty() {
            say("kept connection", pins.join(", "));
        }
        self.show_lines(&lines).await
    }

    /// An empty one, with the columns of both answers.
    pub(in crate::session) fn route_table(&self) -> TextResult {
        let collation = match self.image.family {
            Family::MySql => 255,
            Family::MariaDb => 45,
        };
        let columns = ["about", "route"].map(|name| ColumnDef::text(name, collation));
        TextResult::new(columns.into())
    }

    async fn show_lines(&mut self, lines: &[Line]) -> Result<(), Abort> {
        let mut result = self.route_table();
        for (about, what) in lines {
            result.row(&[Cell::Bytes(about.as_bytes()), Cell::Bytes(what.as_bytes())]);
        }
        self.show(&result, 0).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_about_routes_are_told_from_statements() {
        let explained = |text: &'static str| explained(text.as_bytes());
        assert_eq!(explained("EXPLAIN ROUTE SELECT 1"), Some(&b"SELECT 1"[..]));
        assert_eq!(
            explained(" explain\n route  SELECT 1;"),
            Some(&b"SELECT 1;"[..])
        );
        assert_eq!(explained("EXPLAIN ROUTE commit;"), Some(&b"commit;"[..]));
        assert_eq!(
            explained("EXPLAIN ROUTE (SELECT 1)"),
            Some(&b"(SELECT 1)"[..])
        );
        for table in [
            "EXPLAIN route",
            "EXPLAIN route;",
            "EXPLAIN route id",
            "explain route 'i%' ;",
        ] {
            assert_eq!(explained(table), None, "{table} describes a table");
        }
        assert_eq!(explained("EXPLAIN routes"), None);
        assert_eq!(explained("EXPLAIN SELECT 1"), None);
        assert!(asks_for_last(b"show route;"));
        assert!(!asks_for_last(b"show routes"));
        assert!(!asks_for_last(b"SHOW ROUTE x"));
    }
}
